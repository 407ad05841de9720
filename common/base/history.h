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
  static constexpr const char* kName = "from_worker";
  static void Visit(auto& m, auto&& field) { WorkerEnvelope::Visit(m.envelope, field); }
  friend bool operator==(const FromWorker&, const FromWorker&) = default;
};

// A worker's lease ran out.
struct LeaseExpired {
  Rank rank = kNoRank;
  Incarnation incarnation = 0;
  static constexpr const char* kName = "lease_expired";
  static void Visit(auto& m, auto&& field) { field("rank", m.rank)("incarnation", m.incarnation); }
  friend bool operator==(const LeaseExpired&, const LeaseExpired&) = default;
};

// A worker's connection ended, and it was not back within death_grace_ms.
struct ProcessEnded {
  Rank rank = kNoRank;
  Incarnation incarnation = 0;
  static constexpr const char* kName = "process_ended";
  static void Visit(auto& m, auto&& field) { field("rank", m.rank)("incarnation", m.incarnation); }
  friend bool operator==(const ProcessEnded&, const ProcessEnded&) = default;
};

// A message of this worker proved that the controller has lost the end of this run's history: it
// had received more of the worker, or sent it more, than it knows.
struct HistoryLost {
  Rank rank = kNoRank;
  Incarnation incarnation = 0;
  static constexpr const char* kName = "history_lost";
  static void Visit(auto& m, auto&& field) { field("rank", m.rank)("incarnation", m.incarnation); }
  friend bool operator==(const HistoryLost&, const HistoryLost&) = default;
};

// This worker was not admitted to the run. Noted now and then, for who waits for it.
struct HelloRefused {
  Rank rank = kNoRank;
  std::string host_name;
  std::uint32_t pid = 0;
  Code code = Code::kInvalidArgument;
  std::string reason;
  static constexpr const char* kName = "hello_refused";
  static void Visit(auto& m, auto&& field) {
    field("rank", m.rank)("host_name", m.host_name)("pid", m.pid)("code", m.code);
    field("reason", m.reason);
  }
  friend bool operator==(const HelloRefused&, const HelloRefused&) = default;
};

// The deadline that the job or its engine had asked for was reached.
struct DeadlineReached {
  static constexpr const char* kName = "deadline_reached";
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
  static constexpr const char* kName = "operator_acted";
  static void Visit(auto& m, auto&& field) {
    field("verb", m.verb)("rank", m.rank)("host", m.host, kUnlessZero)("by", m.by);
    field("reason", m.reason, kUnlessZero)("spec", m.spec, kUnlessZero | kSparse);
    field("next", m.next, kUnlessZero, "next_run");
  }
  friend bool operator==(const OperatorActed&, const OperatorActed&) = default;
};

using Input = std::variant<FromWorker, LeaseExpired, DeadlineReached, HistoryLost, HelloRefused,
                           OperatorActed, ProcessEnded>;

// ---- decisions ----

// A worker that an operator has removed: this incarnation is over, and no other takes its place.
struct Dismissal {
  Incarnation incarnation = 0;
  std::string reason;
  static void Visit(auto& m, auto&& field) {
    field("incarnation", m.incarnation)("reason", m.reason);
  }
  friend bool operator==(const Dismissal&, const Dismissal&) = default;
};

// A rank in the run before.
struct FormerRank {
  Rank rank = kNoRank;
  Trained own;             // under it, so far
  bool awaited = false;    // its worker comes to the next run: the common start waits for it
  bool has_model = false;  // its worker has the final average of that run
  static void Visit(auto& m, auto&& field) {
    field("rank", m.rank)("own", m.own, kPlain, "own_*")("awaited", m.awaited);
    field("has_model", m.has_model);
  }
  friend bool operator==(const FormerRank&, const FormerRank&) = default;
};

// Workers have the mean of these numbers (GiveNumbers): a round has ended.
struct NumbersAveraged {
  std::uint64_t round = 0;           // from 1 in a job
  std::vector<Rank> ranks;           // whose numbers they were, ascending
  std::vector<std::uint64_t> calls;  // by rank
  std::vector<double> values;        // their mean
  static constexpr const char* kName = "numbers_averaged";
  static void Visit(auto& m, auto&& field) {
    field("round", m.round)("ranks", m.ranks)("calls", m.calls, kHidden)("values", m.values);
  }
  friend bool operator==(const NumbersAveraged& a, const NumbersAveraged& b) {
    return a.round == b.round && a.ranks == b.ranks && a.calls == b.calls &&
           SameBits(a.values, b.values);
  }
};

// Part of a step's batch that a worker computes.
struct ShareGiven {
  Rank rank = kNoRank;
  std::int64_t first = 0;  // of the batch, from 0
  std::int64_t samples = 0;
  DurationNs expected_ns = 0;  // of computing that many; 0: not known
  static void Visit(auto& m, auto&& field) {
    field("rank", m.rank)("first", m.first)("samples", m.samples);
    field("expected_ns", m.expected_ns, kUnlessZero);
  }
  friend bool operator==(const ShareGiven&, const ShareGiven&) = default;
};

// The job has a batch, and its workers compute these shares of it from step `from` on. `more`: in
// that step alone, and besides what they had, because others do not compute theirs.
struct SharesSet {
  Iteration from = 0;              // as Ready.iteration; 0: from now on
  std::int64_t batch = 0;          // samples of a step; the sum of the shares, unless `more`
  std::vector<ShareGiven> shares;  // by rank, ascending
  bool more = false;
  std::string reason;
  static constexpr const char* kName = "shares_set";
  static void Visit(auto& m, auto&& field) {
    field("from", m.from)("batch", m.batch)("shares", m.shares);
    field("more", m.more, kUnlessZero)("reason", m.reason);
  }
  friend bool operator==(const SharesSet&, const SharesSet&) = default;
};

// What a worker has given to the round that is open.
struct GivenNumbers {
  Rank rank = kNoRank;
  std::uint64_t call = 0;
  std::vector<double> values;
  static void Visit(auto& m, auto&& field) {
    field("rank", m.rank)("call", m.call, kHidden)("values", m.values);
  }
  friend bool operator==(const GivenNumbers& a, const GivenNumbers& b) {
    return a.rank == b.rank && a.call == b.call && SameBits(a.values, b.values);
  }
};

// Numbers of which the workers of the run before want the mean.
struct FormerNumbers {
  std::vector<GivenNumbers> given;  // by rank, ascending: to the round that is open
  NumbersAveraged averaged;         // the newest round that has ended
  static void Visit(auto& m, auto&& field) {
    field("given", m.given, kUnlessZero)("last", m.averaged, kUnlessZero, "averaged");
  }
  friend bool operator==(const FormerNumbers&, const FormerNumbers&) = default;
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
  FormerNumbers numbers;
  bool known() const { return run != kNoRun; }
  static void Visit(auto& m, auto&& field) {
    field("run", m.run)("identity", m.identity, kHidden)("trained", m.trained, kPlain, "*");
    field("goal", m.goal, kUnlessZero, "goal_*")("workers", m.workers);
    field("launch", m.launch, kUnlessZero)("model_hash", m.model_hash, kHidden);
    field("ranks", m.ranks)("dismissed", m.dismissed, kUnlessZero);
    field("stopped", m.stopped, kUnlessZero | kSparse)("numbers", m.numbers, kSparse, "*");
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
  static constexpr const char* kName = "run_started";
  static void Visit(auto& m, auto&& field) {
    field("job", m.job)("engine", m.engine)("spec", m.spec)("wall_ns", m.wall_ns);
    field("identity", m.identity, kUnlessZero)("former", m.former, kUnlessZero | kSparse);
  }
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
  static constexpr const char* kName = "worker_joined";
  static void Visit(auto& m, auto&& field) {
    field("rank", m.rank)("incarnation", m.incarnation)("host_name", m.host_name);
    field("pid", m.pid)("iteration", m.iteration)("reason", m.reason);
  }
  friend bool operator==(const WorkerJoined&, const WorkerJoined&) = default;
};

enum class LeftReason : std::uint8_t {
  kFinished = 0,  // called Finish: it waits for the final average
  kLeft = 1,      // said so
  kLost = 2,      // its lease ran out, or its process ended
  kEvicted = 3,   // broke the protocol, or an operator evicted it
  kPaused = 4,    // does something else than training, and comes back
  kFailed = 5,    // said that it cannot go on
};

struct WorkerLeft {
  Rank rank = kNoRank;
  Incarnation incarnation = 0;
  LeftReason why = LeftReason::kLeft;
  std::string reason;
  std::uint32_t gradients = 0;  // of its own in no round: lost with it
  static constexpr const char* kName = "worker_left";
  static void Visit(auto& m, auto&& field) {
    field("rank", m.rank)("incarnation", m.incarnation)("why", m.why)("reason", m.reason);
    field("gradients", m.gradients, kUnlessZero);
  }
  friend bool operator==(const WorkerLeft&, const WorkerLeft&) = default;
};

struct GroupShare {
  Rank rank = kNoRank;
  double weight = 0;
  Iteration iteration = 0;  // the member's own, at its newest ready signal
  bool passive = false;     // as in GroupMember
  static void Visit(auto& m, auto&& field) {
    field("rank", m.rank)("weight", m.weight)("iteration", m.iteration);
    field("passive", m.passive, kUnlessZero);
  }
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
  static constexpr const char* kName = "group_formed";
  static void Visit(auto& m, auto&& field) {
    field("id", m.id, kPlain, "group")("kind", m.kind)("iteration", m.iteration);
    field("initial_weight", m.initial_weight)("members", m.members)("reason", m.reason);
    field("conflict", m.conflict, kUnlessZero);
  }
  friend bool operator==(const GroupFormed&, const GroupFormed&) = default;
};

// Every live member has said Finished.
struct GroupEnded {
  GroupId id = kNoGroup;
  bool ok = false;     // every member has the result
  std::string reason;  // when not ok
  static constexpr const char* kName = "group_ended";
  static void Visit(auto& m, auto&& field) {
    field("id", m.id, kPlain, "group")("ok", m.ok)("reason", m.reason, kUnlessZero);
  }
  friend bool operator==(const GroupEnded&, const GroupEnded&) = default;
};

struct AdoptOrdered {
  Rank rank = kNoRank;
  Rank source = kNoRank;
  std::string reason;
  GroupId result = kNoGroup;  // kNoGroup: the whole replica; else that round's result
  static constexpr const char* kName = "adopt_ordered";
  static void Visit(auto& m, auto&& field) {
    field("rank", m.rank)("source", m.source)("reason", m.reason);
    field("result", m.result, kUnlessZero);
  }
  friend bool operator==(const AdoptOrdered&, const AdoptOrdered&) = default;
};

// What the worker computed on an older model is not used: it goes on from the newest.
struct UpdateDropped {
  Rank rank = kNoRank;
  Iteration iteration = 0;  // that its model had
  std::string reason;
  static constexpr const char* kName = "update_dropped";
  static void Visit(auto& m, auto&& field) {
    field("rank", m.rank)("iteration", m.iteration)("reason", m.reason);
  }
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
  static constexpr const char* kName = "query_answered";
  static void Visit(auto& m, auto&& field) {
    field("rank", m.rank)("iteration", m.iteration)("local_steps", m.local_steps);
    field("ready", m.ready)("next", m.next)("reason", m.reason);
  }
  friend bool operator==(const QueryAnswered&, const QueryAnswered&) = default;
};

// From now on these workers draw their groups themselves (messages.h, Schedule).
struct ScheduleSet {
  GroupId first = kNoGroup;
  std::vector<Rank> members;        // ascending
  std::vector<std::int32_t> hosts;  // by member
  std::string reason;
  static constexpr const char* kName = "schedule_set";
  static void Visit(auto& m, auto&& field) {
    field("first", m.first)("members", m.members)("hosts", m.hosts)("reason", m.reason);
  }
  friend bool operator==(const ScheduleSet&, const ScheduleSet&) = default;
};

// An edge of a communication graph, as its receiver sees it.
struct InEdge {
  Rank rank = kNoRank;  // the sender
  double weight = 0;    // of its update in the receiver's average
  Iteration from = 0;   // no updates of iterations before this one come
  static void Visit(auto& m, auto&& field) {
    field("rank", m.rank)("weight", m.weight)("from", m.from);
  }
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
  static constexpr const char* kName = "neighbours_set";
  static void Visit(auto& m, auto&& field) {
    field("rank", m.rank)("at", m.at)("in", m.in)("out", m.out);
    field("own_weight", m.own_weight)("slots", m.slots)("reason", m.reason);
  }
  friend bool operator==(const NeighboursSet&, const NeighboursSet&) = default;
};

// Where the shards are to be (messages.h, Placement). Also an effect of an engine.
struct PlacementSet {
  std::uint64_t epoch = 0;
  std::vector<Rank> members;  // ascending
  std::vector<Iteration> at;  // by member
  SharedList<ShardPlace> shards;
  std::string reason;
  static constexpr const char* kName = "placement_set";
  static void Visit(auto& m, auto&& field) {
    field("epoch", m.epoch)("members", m.members)("at", m.at)("shards", m.shards);
    field("reason", m.reason);
  }
  friend bool operator==(const PlacementSet&, const PlacementSet&) = default;
};

// Where they are. Also an effect of an engine: all members are told.
struct PlacementOpened {
  std::uint64_t epoch = 0;
  std::vector<Rank> members;  // ascending
  static constexpr const char* kName = "placement_opened";
  static void Visit(auto& m, auto&& field) { field("epoch", m.epoch)("members", m.members); }
  friend bool operator==(const PlacementOpened&, const PlacementOpened&) = default;
};

// The link between two workers was found broken, or works again.
struct LinkChanged {
  Rank a = kNoRank;  // a < b
  Rank b = kNoRank;
  bool works = false;
  std::string reason;  // "rank 1 did not reach rank 2 in group 96"
  static constexpr const char* kName = "link_changed";
  static void Visit(auto& m, auto&& field) {
    field("a", m.a)("b", m.b)("works", m.works)("reason", m.reason);
  }
  friend bool operator==(const LinkChanged&, const LinkChanged&) = default;
};

// Replicas that are to be equal are not, or are again.
struct ReplicasDiffer {
  GroupId group = kNoGroup;  // after which they were compared
  Iteration iteration = 0;   // of the group
  std::vector<Rank> ranks;   // whose parameters are not those of most members, ascending; none: all
                             // are equal again
  std::string reason;
  static constexpr const char* kName = "replicas_differ";
  static void Visit(auto& m, auto&& field) {
    field("group", m.group)("iteration", m.iteration)("ranks", m.ranks);
    field("reason", m.reason);
  }
  friend bool operator==(const ReplicasDiffer&, const ReplicasDiffer&) = default;
};

// The job has reached its goal: every worker is told that training is done.
struct GoalReached {
  Trained trained;
  static constexpr const char* kName = "goal_reached";
  static void Visit(auto& m, auto&& field) {
    field("steps", m.trained.steps)("samples", m.trained.samples);
  }
  friend bool operator==(const GoalReached&, const GoalReached&) = default;
};

// The last worker has gone, the run cannot be continued (HistoryLost), or the job goes on in
// another one (OperatorVerb::kSwitch).
struct RunEnded {
  std::string reason;
  bool finished = false;  // its workers ended it themselves: none of them belongs to another run
  RunId next = kNoRun;    // the run in which the job goes on; kNoRun: it does not
  static constexpr const char* kName = "run_ended";
  static void Visit(auto& m, auto&& field) {
    field("reason", m.reason)("finished", m.finished, kUnlessZero);
    field("next", m.next, kUnlessZero, "next_run");
  }
  friend bool operator==(const RunEnded&, const RunEnded&) = default;
};

struct RecordBody
    : std::variant<FromWorker, LeaseExpired, DeadlineReached, RunStarted, WorkerJoined, WorkerLeft,
                   GroupFormed, GroupEnded, AdoptOrdered, RunEnded, UpdateDropped, QueryAnswered,
                   ScheduleSet, NeighboursSet, PlacementSet, PlacementOpened, HistoryLost,
                   LinkChanged, HelloRefused, ReplicasDiffer, GoalReached, OperatorActed,
                   NumbersAveraged, ProcessEnded, SharesSet> {
  PRD_DECLARE_VARIANT(RecordBody)
};

struct Record {
  RunId run = kNoRun;
  std::uint64_t index = 0;  // from 0 without a hole, per run
  Instant now;              // the controller's clock when the input was applied
  RecordBody body;
  static void Visit(auto& m, auto&& field) {
    field("run", m.run)("index", m.index)("now_ns", m.now)("body", m.body);
  }
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
