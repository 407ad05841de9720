// What workers say in a transcript, and what they are told, as text.
#ifndef PRD_TESTS_ENGINES_SPEECH_H_
#define PRD_TESTS_ENGINES_SPEECH_H_

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/history.h"
#include "common/base/messages.h"
#include "tests/transcript/text.h"

namespace prd {

// A worker of a transcript: its newest incarnation that was taken.
struct Speaker {
  WorkerEnvelope hello;
  RunId run = kNoRun;
  RunIdentity identity;
  Seq seq = 0;  // of its newest message
  Seq ack = 0;
};

// The workers of a transcript, by rank.
class Speakers {
 public:
  // Takes a message. False: it is not the next one of its worker.
  using Deliver = std::function<bool(const WorkerEnvelope&)>;
  // The group that a rank is in.
  using GroupOf = std::function<GroupId(Rank)>;
  Speakers(Deliver deliver, GroupOf group_of)
      : deliver_(std::move(deliver)), group_of_(std::move(group_of)) {}

  // What the command says, for each of its ranks: the name and the fields of a message.
  // Incarnations are RANK * 100 + 1, 2, ...
  void Say(transcript::Command* command);
  void SayHello(Rank rank, Hello hello, transcript::Command* command = nullptr);
  void Say(Rank rank, WorkerBody body, transcript::Command* command = nullptr);
  static Hello HelloOf(Rank rank);

  // Forgets all; the workers that follow are in this run until they are told otherwise.
  void Reset(RunId run, RunIdentity identity);
  std::map<Rank, Speaker>& all() { return all_; }
  const std::map<Rank, Speaker>& all() const { return all_; }
  Incarnation IncarnationOf(Rank rank) const;

 private:
  Deliver deliver_;
  GroupOf group_of_;
  RunId run_ = kNoRun;
  RunIdentity identity_;
  std::map<Rank, Speaker> all_;
  std::map<Rank, std::uint64_t> lives_;  // Hellos so far
};

// Records and messages in words.
class StepWords {
 public:
  struct Send {
    std::string to;
    ControllerBody body;
    std::string suffix = {};  // what else there is to say
  };
  // `inputs`: also of records that are inputs, but for messages.
  explicit StepWords(const Speakers* speakers, bool inputs = false)
      : speakers_(speakers), inputs_(inputs) {}

  // One step, or several: the records after the inputs, and the messages.
  std::vector<std::string> Of(std::span<const Record> records, const std::vector<Send>& sends);
  std::string Of(const ControllerBody& body) const;

 private:
  template <typename T>
  std::string Words(const T& message) const;
  std::string Words(const Group& group) const;
  std::string Words(const Welcome& welcome) const;

  const Speakers* speakers_;
  const bool inputs_;
  std::map<GroupId, GroupFormed> groups_;  // as they were recorded
};

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_SPEECH_H_
