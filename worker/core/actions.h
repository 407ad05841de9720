// What a session core wants done (session_core.h), for the shell around it.
#ifndef PRD_WORKER_CORE_ACTIONS_H_
#define PRD_WORKER_CORE_ACTIONS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/core/exchange.h"

namespace prd {

// How a step ended, for its caller.
struct StepOutcome {
  Iteration iteration = 0;
  bool adopted = false;  // the replica was replaced by a peer's, or by a new common start
  // This step's gradient, or its parameters, are in a result that it applied. AveragesInBackground:
  // it applied any.
  bool included = false;
  // The results that this step applied: 0 or 1, except under TrainsInRounds, background and ahead
  // plans.
  std::int64_t rounds = 0;
  std::uint32_t local_steps = 0;  // Payload::kChange: completed since the round's start
  // The last one; id kNoGroup when there was none. AveragesInBackground: the newest whose average
  // is here, if the step applied any.
  Group group;
  // Since the step before, where rounds run in the background.
  int attempts = 0;  // groups tried, but for those in which it was passive
  std::uint64_t sent_bytes = 0;
  DurationNs reduced = 0;  // in groups
  // For groups to form; TrainsInRounds: until this step had something to apply;
  // AveragesInBackground: until the step might end.
  DurationNs waited = 0;
  Trained own;           // by this worker so far, the step included
  bool done = false;     // training is over with this step: the job's goal is reached
  bool partial = false;  // the step goes on: the worker has more of its batch to compute
};

// ---- actions: what the shell does, in this order ----

struct SendToController {
  WorkerEnvelope envelope;
};
// The mesh belongs to this incarnation from now on, and what it did for the one before is off.
struct BecomeIncarnation {
  Incarnation incarnation = 0;
};
struct JoinRun {
  Welcome welcome;
};
// Under DrawnAhead the group's iteration is this worker's own.
struct StartReduce {
  Group group;   // checked: distinct members, this one among them, finite weights >= 0
  Reduced what;  // what this worker contributes, and where the result goes
  // Landing::kInbox of parameters: what the replica's count gains when the result is added to the
  // parameters.
  Iteration gain = 0;
  // kInitial, of a worker that attaches, and contributes nothing: the result replaces its own
  // replica as it comes.
  bool in_place = false;
};
struct CancelReduce {};  // no result follows
// The reduction was handed over (SessionCore::HandedOver). Its end follows, and may still be its
// result.
struct GiveUpReduce {
  std::string reason;
};
struct StartFetch {
  GroupMember source;
  GroupId result = kNoGroup;  // kNoGroup: the replica; else that round's result
  bool contributed = false;   // this worker's outbox was part of that round
  // This worker attaches: the replica replaces its own as it comes.
  bool in_place = false;
};
struct CancelFetch {};
// Copy this member's parameters for the average that the caller asked for. Nothing of the replica
// changes. OnCopiedForAverage follows, unless it is cancelled.
struct CopyForAverage {
  GroupMember source;
};
struct CancelCopyForAverage {};
// The controller has announced these: they may turn to this worker, and it may turn to them.
// `copies`: each may copy this worker's replica, or its parameters, once.
struct AnnouncedMembers {
  SharedList<GroupMember> members;
  bool copies = false;
};
// These have left: nothing of theirs counts, and nothing is sent to them any more.
struct ForgetMembers {
  std::vector<Incarnation> incarnations;
};
// Ask these until each has answered, instead of those of the ProbePeers before. Each answer is an
// OnProbed.
struct ProbePeers {
  SharedList<GroupMember> targets;
};
// TrainsInRounds: add the gradients to the outbox, before any later action.
struct Deposit {};
// What Session::Interrupted says from now on.
struct Interrupt {
  bool on = false;
};
// The caller's thread does this, and then calls Applied.
struct ApplyNow {
  enum class What : std::uint8_t {
    // The result is in the gradients: runs `apply`. The replica's iteration becomes this one.
    kGradients,
    // Moves the inbox into the gradients, and runs `apply`. The inbox says the iteration, and the
    // number of rounds in it. That is 0, and `apply` does not run, where the replica was copied or
    // a new incarnation gave the inbox up.
    kInboxOfGradients,
    // Adds the inbox to the parameters. The inbox says the iteration, and the number of groups in
    // it: 0 where it is empty.
    kInboxOfChanges,
  };
  What what = What::kGradients;
  Iteration iteration = 0;
  bool digest = false;  // Applied is to say the digest of the parameters (Group::digest)
};
struct CallDone {
  Status status;
  StepOutcome step;             // of Step
  std::vector<double> numbers;  // of Mean: what came of it
};

// For the training program's log: what the call in progress waits for.
struct LogLine {
  std::string text;
};

// More actions are in exchange.h.

using Action =
    std::variant<SendToController, BecomeIncarnation, JoinRun, StartReduce, CancelReduce,
                 GiveUpReduce, StartFetch, CancelFetch, ProbePeers, Deposit, Interrupt, ApplyNow,
                 CallDone, CopyForAverage, CancelCopyForAverage, LogLine, AnnouncedMembers,
                 ForgetMembers, SetPeers, SendNote, StartPull, DropPull, Serve, Refuse,
                 SetIteration, PublishUpdate, RetireUpdate, MixUpdates, CutShards, TakeDelta,
                 KeepShard, AddDelta, MergePending, ReadShard, ForgetShard>;
using Actions = std::vector<Action>;

}  // namespace prd

#endif  // PRD_WORKER_CORE_ACTIONS_H_
