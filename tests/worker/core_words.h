// What a SessionCore does, and what it is told, in the words of its transcripts
// (core_transcript.h).
#ifndef PRD_TESTS_WORKER_CORE_WORDS_H_
#define PRD_TESTS_WORKER_CORE_WORDS_H_

#include <map>
#include <string>
#include <vector>

#include "tests/transcript/text.h"
#include "worker/core/session_core.h"

namespace prd::testing::core_words {

inline constexpr Rank kRank = 3;
inline constexpr Incarnation kMe = 1001;
inline Incarnation PeerOf(Rank rank) { return 1998 + static_cast<Incarnation>(rank); }

// What the lines about actions leave out, for it is as expected.
struct Expected {
  WorkerEnvelope header;            // of the next envelope; but for seq
  Hello hello;                      // as attached
  Welcome welcome;                  // the newest
  Incarnation me = kMe;             // of members of rank 3
  Trained own;                      // of outcomes
  std::map<GroupId, Group> groups;  // that were started
};

std::string Number(double value);
std::string Time(DurationNs time);
std::string Of(const Trained& trained);  // "3/18"
std::string Of(const std::vector<GroupMember>& members, Incarnation me);
std::string Of(const StepOutcome& step, const Expected& expected);
// One line.
std::string Of(const Action& action, const Expected& expected);

std::vector<GroupMember> ParseMembers(const std::vector<std::string>& words, Incarnation me);
Trained ParseTrained(const std::string& text);
// The next word of the command is one of plans.h: models, gradients, rounds, newest-round, asked,
// asked-late, change, ahead, schedule, neighbours, store or background. Keys: every=N; of
// background run_ahead=N members=ahead|schedule; of neighbours backups=N serial=1; of store
// staleness=N.
Plan ParsePlan(transcript::Command* command);
// The words from `index` on: "update 5", "delta 1", "shard 1", "state 1"; keys shard=, epoch=.
PeerItem ParseItem(transcript::Command* command, std::size_t index);
// The words from `index` on: nothing, "failed", or a code and a message.
Status ParseStatus(const transcript::Command& command, std::size_t index);
Code ParseCode(const std::string& word);

}  // namespace prd::testing::core_words

#endif  // PRD_TESTS_WORKER_CORE_WORDS_H_
