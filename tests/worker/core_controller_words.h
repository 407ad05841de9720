// What the controller says in a transcript (core_transcript.h), as messages.
#ifndef PRD_TESTS_WORKER_CORE_CONTROLLER_WORDS_H_
#define PRD_TESTS_WORKER_CORE_CONTROLLER_WORDS_H_

#include <map>
#include <string>
#include <vector>

#include "common/base/messages.h"
#include "tests/transcript/text.h"

namespace prd::testing::core_words {

struct ControllerWord {
  // Takes the command's words and keys. `me`: the incarnation of the worker, which is of rank
  // kRank.
  ControllerBody (*body)(transcript::Command* command, Incarnation me);
  bool in_order = true;  // the message has a number
};

// By the command's name. A Welcome is not among them.
const std::map<std::string, ControllerWord>& ControllerWords();

// As members are written, "3*0.5 4*0.5".
SharedList<GroupMember> Named(const std::vector<std::string>& words, Incarnation me);
SharedList<GroupMember> Named(const std::string& text, Incarnation me);

// The lists of members in a message, as the core announces them.
std::vector<std::vector<GroupMember>> MembersOf(const ControllerBody& body);

}  // namespace prd::testing::core_words

#endif  // PRD_TESTS_WORKER_CORE_CONTROLLER_WORDS_H_
