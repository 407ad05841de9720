// What the controller writes down: the inputs of a run in the order they were applied, and between
// them the decisions they led to. The inputs alone restore a controller exactly (replay); the
// decisions serve readers, prdctl, and the proof that a replay is right. schemas/history.capnp is
// the stored form, common/io/codec.h the translation.
#ifndef PRD_COMMON_BASE_HISTORY_H_
#define PRD_COMMON_BASE_HISTORY_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "common/base/variant.h"

namespace prd {

// ---- inputs ----

// A sequenced message of a worker, exactly as accepted.
struct FromWorker {
  WorkerEnvelope envelope;
  friend bool operator==(const FromWorker&, const FromWorker&) = default;
};

// A worker's lease ran out.
struct LeaseExpired {
  Rank rank = kNoRank;
  Incarnation incarnation = 0;
  friend bool operator==(const LeaseExpired&, const LeaseExpired&) = default;
};

// A worker's connection ended, and it was not back within death_grace_ms.
struct ProcessEnded {
  Rank rank = kNoRank;
  Incarnation incarnation = 0;
  friend bool operator==(const ProcessEnded&, const ProcessEnded&) = default;
};

// A message of this worker proved that the controller has lost the end of this run's history: it
// had received more of the worker, or sent it more, than it knows.
struct HistoryLost {
  Rank rank = kNoRank;
  Incarnation incarnation = 0;
  friend bool operator==(const HistoryLost&, const HistoryLost&) = default;
};

// This worker was not admitted to the run. Noted now and then, for who waits for it.
struct HelloRefused {
  Rank rank = kNoRank;
  std::string host_name;
  std::uint32_t pid = 0;
  Code code = Code::kInvalidArgument;
  std::string reason;
  friend bool operator==(const HelloRefused&, const HelloRefused&) = default;
};

// The deadline that the job or its engine had asked for was reached.
struct DeadlineReached {
  friend bool operator==(const DeadlineReached&, const DeadlineReached&) = default;
};

enum class OperatorVerb : std::uint8_t {
  kEvict = 0,  // this worker is removed
  kDrain = 1,  // the workers of this host leave, each once it is in no group
  kEnd = 2,    // the job is done, as if its goal were reached
  kPause = 3,  // no signal is handed to the engine until kResume
  kResume = 4,
  kSwitch = 5,  // the job goes on in another run, with another engine or other settings
};

constexpr const char* VerbName(OperatorVerb verb) {
  switch (verb) {
    case OperatorVerb::kEvict:
      return "evict";
    case OperatorVerb::kDrain:
      return "drain";
    case OperatorVerb::kEnd:
      return "end";
    case OperatorVerb::kPause:
      return "pause";
    case OperatorVerb::kResume:
      return "resume";
    case OperatorVerb::kSwitch:
      return "switch";
  }
  return "unknown";
}

// An operator acts on the run (prdctl).
struct OperatorActed {
  OperatorVerb verb = OperatorVerb::kEvict;
  Rank rank = kNoRank;  // kEvict
  std::string host;     // kDrain: the Hello's host, or host_name
  std::string by;       // "identity alice", as the daemon knows the operator
  std::string reason;   // in the operator's words; may be empty
  std::string spec;     // kSwitch: of the next run, as RunStarted::spec
  RunId next = kNoRun;  // kSwitch: its number, which no other run gets
  friend bool operator==(const OperatorActed&, const OperatorActed&) = default;
};

using Input = std::variant<FromWorker, LeaseExpired, DeadlineReached, HistoryLost, HelloRefused,
                           OperatorActed, ProcessEnded>;

// ---- decisions ----

// A worker that an operator has removed: this incarnation is over, and no other takes its place.
struct Dismissal {
  Incarnation incarnation = 0;
  std::string reason;
  void Archive(StateArchive& ar) { ar(incarnation, reason); }
  friend bool operator==(const Dismissal&, const Dismissal&) = default;
};

// A rank in the run before.
struct FormerRank {
  Rank rank = kNoRank;
  Trained own;             // under it, so far
  bool awaited = false;    // its worker comes to the next run: the common start waits for it
  bool has_model = false;  // its worker has the final average of that run
  void Archive(StateArchive& ar) { ar(rank, own, awaited, has_model); }
  friend bool operator==(const FormerRank&, const FormerRank&) = default;
};

// Workers have the mean of these numbers (GiveNumbers): a round has ended.
struct NumbersAveraged {
  std::uint64_t round = 0;           // from 1 in a job
  std::vector<Rank> ranks;           // whose numbers they were, ascending
  std::vector<std::uint64_t> calls;  // by rank
  std::vector<double> values;        // their mean
  void Archive(StateArchive& ar) { ar(round, ranks, calls, values); }
  friend bool operator==(const NumbersAveraged& a, const NumbersAveraged& b) {
    return a.round == b.round && a.ranks == b.ranks && a.calls == b.calls &&
           SameBits(a.values, b.values);
  }
};

// What a worker has given to the round that is open.
struct GivenNumbers {
  Rank rank = kNoRank;
  std::uint64_t call = 0;
  std::vector<double> values;
  void Archive(StateArchive& ar) { ar(rank, call, values); }
  friend bool operator==(const GivenNumbers& a, const GivenNumbers& b) {
    return a.rank == b.rank && a.call == b.call && SameBits(a.values, b.values);
  }
};

// What a run takes over from the run that it continues.
struct FormerRun {
  RunId run = kNoRun;          // kNoRun: it continues none
  std::uint64_t identity = 0;  // the higher half of its RunIdentity
  Trained trained;             // by the job so far
  Trained goal;                // 0: none
  std::int32_t workers = 0;    // that the job started with
  std::string launch;
  std::uint64_t model_hash = 0;
  std::vector<FormerRank> ranks;     // by rank, ascending
  std::vector<Dismissal> dismissed;  // the newest last
  std::string stopped;               // who has stopped the job, and why; empty: nobody
  std::vector<GivenNumbers> given;   // by rank, ascending: to the round that is open
  NumbersAveraged averaged;          // the newest round that has ended
  bool known() const { return run != kNoRun; }
  void Archive(StateArchive& ar) {
    ar(run, identity, trained, goal, workers, launch, model_hash, ranks, dismissed, stopped, given,
       averaged);
  }
  friend bool operator==(const FormerRun&, const FormerRun&) = default;
};

struct RunStarted {
  std::string job;
  std::string engine;
  std::string spec;  // the job's config as TOML, normalised: what replay builds the engine from
  std::int64_t wall_ns =
      0;  // Unix time when the run began, for display; with `now` it dates every record
  RunIdentity identity;
  FormerRun former;
  friend bool operator==(const RunStarted&, const RunStarted&) = default;
};

// The worker is in the engine's hands from now on.
struct WorkerJoined {
  Rank rank = kNoRank;
  Incarnation incarnation = 0;
  std::string host_name;
  std::uint32_t pid = 0;
  Iteration iteration = 0;
  std::string reason;  // "initial group 1", "adopted rank 0's model"
  friend bool operator==(const WorkerJoined&, const WorkerJoined&) = default;
};

enum class LeftReason : std::uint8_t {
  kFinished = 0,  // called Finish: it waits for the final average
  kLeft = 1,      // said so
  kLost = 2,      // its lease ran out, or its process ended
  kEvicted = 3,   // broke the protocol, or an operator evicted it
  kPaused = 4,    // does something else than training, and comes back
};

struct WorkerLeft {
  Rank rank = kNoRank;
  Incarnation incarnation = 0;
  LeftReason why = LeftReason::kLeft;
  std::string reason;
  std::uint32_t gradients = 0;  // of its own in no round: lost with it
  friend bool operator==(const WorkerLeft&, const WorkerLeft&) = default;
};

struct GroupShare {
  Rank rank = kNoRank;
  double weight = 0;
  Iteration iteration = 0;  // the member's own, at its newest ready signal
  bool passive = false;     // as in GroupMember
  void Archive(StateArchive& ar) { ar(rank, weight, iteration, passive); }
  friend bool operator==(const GroupShare&, const GroupShare&) = default;
};

struct GroupFormed {
  GroupId id = kNoGroup;
  GroupKind kind = GroupKind::kTrain;
  std::vector<GroupShare> members;  // in ring order
  Iteration iteration = 0;          // where members continue
  double initial_weight = 0;  // the initial model's share; with the members' weights it sums to 1
  std::string reason;
  // It was drawn while a member was in another group, drawn for another caller and not done: the
  // two had to be serialised (Prague, section 3.1).
  bool conflict = false;
  void Archive(StateArchive& ar) {
    ar(id, kind, members, iteration, initial_weight, reason, conflict);
  }
  friend bool operator==(const GroupFormed&, const GroupFormed&) = default;
};

// Every live member has said Finished.
struct GroupEnded {
  GroupId id = kNoGroup;
  bool ok = false;     // every member has the result
  std::string reason;  // when not ok
  friend bool operator==(const GroupEnded&, const GroupEnded&) = default;
};

struct AdoptOrdered {
  Rank rank = kNoRank;
  Rank source = kNoRank;
  std::string reason;
  GroupId result = kNoGroup;  // kNoGroup: the whole replica; else that round's result
  friend bool operator==(const AdoptOrdered&, const AdoptOrdered&) = default;
};

// What the worker computed on an older model is not used: it goes on from the newest.
struct UpdateDropped {
  Rank rank = kNoRank;
  Iteration iteration = 0;  // that its model had
  std::string reason;
  friend bool operator==(const UpdateDropped&, const UpdateDropped&) = default;
};

// An answer to a worker's signal without a group (QueryReply).
struct QueryAnswered {
  Rank rank = kNoRank;
  Iteration iteration = 0;        // of the signal
  std::uint32_t local_steps = 0;  // the same
  bool ready = false;
  std::string reason;
  Iteration next = 0;  // NeighbourPlan, StorePlan: where the worker goes on
  // StorePlan: workers that train now. Sent with the reply, not recorded: 0 in a history.
  std::uint32_t workers = 0;
  friend bool operator==(const QueryAnswered&, const QueryAnswered&) = default;
};

// From now on these workers draw their groups themselves (messages.h, Schedule).
struct ScheduleSet {
  GroupId first = kNoGroup;
  std::vector<Rank> members;        // ascending
  std::vector<std::int32_t> hosts;  // by member
  std::string reason;
  friend bool operator==(const ScheduleSet&, const ScheduleSet&) = default;
};

// An edge of a communication graph, as its receiver sees it.
struct InEdge {
  Rank rank = kNoRank;  // the sender
  double weight = 0;    // of its update in the receiver's average
  Iteration from = 0;   // no updates of iterations before this one come
  void Archive(StateArchive& ar) { ar(rank, weight, from); }
  friend bool operator==(const InEdge&, const InEdge&) = default;
};

// With whom this worker exchanges updates from now on (messages.h, Neighbourhood). Also an effect
// of an engine.
struct NeighboursSet {
  Rank rank = kNoRank;
  Iteration at = 0;
  std::vector<InEdge> in;  // by rank, ascending
  std::vector<Rank> out;   // ascending
  double own_weight = 1;
  std::uint32_t slots = 1;
  std::string reason;
  friend bool operator==(const NeighboursSet&, const NeighboursSet&) = default;
};

// Where the shards are to be (messages.h, Placement). Also an effect of an engine.
struct PlacementSet {
  std::uint64_t epoch = 0;
  std::vector<Rank> members;  // ascending
  std::vector<Iteration> at;  // by member
  SharedList<ShardPlace> shards;
  std::string reason;
  friend bool operator==(const PlacementSet&, const PlacementSet&) = default;
};

// Where they are. Also an effect of an engine: all members are told.
struct PlacementOpened {
  std::uint64_t epoch = 0;
  std::vector<Rank> members;  // ascending
  friend bool operator==(const PlacementOpened&, const PlacementOpened&) = default;
};

// The link between two workers was found broken, or works again.
struct LinkChanged {
  Rank a = kNoRank;  // a < b
  Rank b = kNoRank;
  bool works = false;
  std::string reason;  // "rank 1 did not reach rank 2 in group 96"
  friend bool operator==(const LinkChanged&, const LinkChanged&) = default;
};

// Replicas that are to be equal are not, or are again.
struct ReplicasDiffer {
  GroupId group = kNoGroup;  // after which they were compared
  Iteration iteration = 0;   // of the group
  std::vector<Rank> ranks;   // whose parameters are not those of most members, ascending; none: all
                             // are equal again
  std::string reason;
  friend bool operator==(const ReplicasDiffer&, const ReplicasDiffer&) = default;
};

// The job has reached its goal: every worker is told that training is done.
struct GoalReached {
  Trained trained;
  friend bool operator==(const GoalReached&, const GoalReached&) = default;
};

// The last worker has gone, the run cannot be continued (HistoryLost), or the job goes on in
// another one (OperatorVerb::kSwitch).
struct RunEnded {
  std::string reason;
  bool finished = false;  // its workers ended it themselves: none of them belongs to another run
  RunId next = kNoRun;    // the run in which the job goes on; kNoRun: it does not
  friend bool operator==(const RunEnded&, const RunEnded&) = default;
};

struct RecordBody
    : std::variant<FromWorker, LeaseExpired, DeadlineReached, RunStarted, WorkerJoined, WorkerLeft,
                   GroupFormed, GroupEnded, AdoptOrdered, RunEnded, UpdateDropped, QueryAnswered,
                   ScheduleSet, NeighboursSet, PlacementSet, PlacementOpened, HistoryLost,
                   LinkChanged, HelloRefused, ReplicasDiffer, GoalReached, OperatorActed,
                   NumbersAveraged, ProcessEnded> {
  PRD_DECLARE_VARIANT(RecordBody)
};

struct Record {
  RunId run = kNoRun;
  std::uint64_t index = 0;  // from 0 without a hole, per run
  Instant now;              // the controller's clock when the input was applied
  RecordBody body;
  friend bool operator==(const Record&, const Record&) = default;
};

// True for the kinds that replay feeds back in.
inline bool IsInput(const RecordBody& body) {
  return std::holds_alternative<FromWorker>(body) || std::holds_alternative<LeaseExpired>(body) ||
         std::holds_alternative<DeadlineReached>(body) ||
         std::holds_alternative<HistoryLost>(body) || std::holds_alternative<HelloRefused>(body) ||
         std::holds_alternative<OperatorActed>(body) || std::holds_alternative<ProcessEnded>(body);
}

}  // namespace prd

#endif  // PRD_COMMON_BASE_HISTORY_H_
