// The control protocol as plain structs. schemas/control.capnp is its wire form, common/io/codec.h
// the translation; the meaning of every message stands here.
//
// A worker and the controller keep one link per incarnation. Each direction numbers its messages
// from 1 (`seq`); each envelope acknowledges the other direction up to `ack`, cumulatively. What is
// not acknowledged is sent again, what was seen is dropped: nothing is lost or acted on twice, also
// when the controller restarts from its history. seq 0 marks messages outside that order, which may
// be lost: Heartbeat, HeartbeatAck, Refused.
#ifndef PRD_COMMON_BASE_MESSAGES_H_
#define PRD_COMMON_BASE_MESSAGES_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/base/archive.h"
#include "common/base/ids.h"
#include "common/base/plan.h"
#include "common/base/shared_list.h"
#include "common/base/time.h"
#include "common/base/variant.h"
#include "prd/status.h"

namespace prd {

inline constexpr std::uint32_t kProtocolVersion = 10;
// The oldest version whose workers a controller admits. They are told nothing that they do not know
// (kVersionOfGone).
inline constexpr std::uint32_t kOldestVersion = 9;
inline constexpr std::uint32_t kVersionOfGone = 10;  // the first that knows Gone

// What has been trained: steps that were completed and not discarded, and the samples in them, as
// far as they were told.
struct Trained {
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  bool known() const { return steps != 0 || samples != 0; }
  static void Visit(auto& m, auto&& field) { field("steps", m.steps)("samples", m.samples); }
  friend bool operator==(const Trained&, const Trained&) = default;
};

// Losses that a training loop has told (Session::TellLoss), for people who watch the job.
struct Losses {
  std::uint32_t count = 0;
  double mean = 0;  // of these; finite
  // Left out where the mean would not be finite.
  void Add(const Losses& others) {
    if (others.count == 0) return;
    const double all = static_cast<double>(count) + others.count;
    const double both = mean * (count / all) + others.mean * (others.count / all);
    if (std::isfinite(both)) *this = {.count = count + others.count, .mean = both};
  }
  friend bool operator==(const Losses&, const Losses&) = default;
};

// Samples in one step of all workers of a job, at most.
inline constexpr std::int64_t kMaxBatch = std::int64_t{1} << 31;

// Numbers of a worker's of which a job takes the mean, at most.
inline constexpr std::size_t kMaxNumbers = 64;
// Equal bit by bit: NaN is equal to itself.
inline bool SameBits(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
  });
}

// How far a job is.
struct JobProgress {
  Trained trained;           // by all workers
  std::int32_t workers = 0;  // that are there now
  bool done = false;         // the job's goal is reached
  friend bool operator==(const JobProgress&, const JobProgress&) = default;
};

// The public half of an X25519 pair, with which a worker's peers know it. All zero: none.
struct MeshKey {
  std::array<std::uint8_t, 32> bytes{};
  bool known() const { return *this != MeshKey{}; }
  void Archive(auto& ar) {
    for (std::uint8_t& byte : bytes) ar(byte);
  }
  friend bool operator==(const MeshKey&, const MeshKey&) = default;
};

// How what workers send each other is protected. All admit only those whom the controller has
// announced to them, by their keys.
enum class MeshSecurity : std::uint8_t {
  kNone = 0,   // frames are sent as they are
  kAead = 1,   // each frame is sealed: AES-GCM, with the pair's key
  kCurve = 2,  // connections are CURVE's
};

// Whether a worker's replica has gradients.
enum class HasGradients : std::uint8_t {
  kHere = 0,
  kNone = 1,   // and there come none
  kLater = 2,  // once an engine needs them
};

// What becomes of a step whose gradients are not all finite.
enum class OnNonfinite : std::uint8_t {
  kPass = 0,  // it counts as any other; the controller is told
  kDrop = 1,  // it is discarded; the controller is told
  kStop = 2,  // its worker leaves the job
};

// ---- worker to controller ----

// The first message of an incarnation (seq 1). Answered by Welcome or Refused; until one of them
// has come, a worker disregards everything else, acknowledgements included, and repeats its Hello.
struct Hello {
  std::uint32_t version = kProtocolVersion;
  std::string job;              // the job's name, matched against the config's patterns
  Rank rank = kNoRank;          // kNoRank: the controller gives the lowest free one
  std::int32_t world_size = 0;  // workers the launcher started (torchrun's WORLD_SIZE); 0 = unknown
  std::string host;             // equal for workers that share a host (boot id), so that ipc works
  std::string host_name;        // human-readable
  std::uint32_t pid = 0;
  std::vector<std::string>
      endpoints;                  // where peers reach this worker's mesh: "ipc://..", "tcp://.."
  std::uint64_t model_bytes = 0;  // of all parameters
  std::uint64_t model_hash = 0;   // of dtypes and sizes; equal for every worker of a job
  Iteration iteration = 0;        // of the replica it brings; counts only in the common start
  // The run in which that replica was trained; none: the replica is as the training program made
  // it.
  RunIdentity former;
  // Which start of the training program this is, in the words of its launcher; empty: not told.
  // Workers of two launches are never in one run.
  std::string launch;
  Trained goal;  // the job is done there; 0: no goal. Counts where the config has none
  Trained own;   // by this worker so far, as far as it knows
  // By all workers of the job so far, as far as this worker knows: from a checkpoint, or from a
  // former run.
  Trained job_trained;
  MeshKey mesh_key;
  HasGradients gradients = HasGradients::kHere;
  // This sender, as the daemon knows it from its connection: the name of an identity of the
  // config. What a worker says here does not count.
  std::string identity;
  // Where its connection breaks, it makes another one at once, and says a word over it.
  bool returns_at_once = false;
  // Samples of a step of all workers together; 0: not told. Counts where the config has none; the
  // job's first worker says.
  std::int64_t batch = 0;
  std::int64_t max_share = 0;  // samples that fit into the worker's memory at once; 0: no limit
  bool accumulates = false;    // its training loop adds up the gradients of several passes
  bool takes_shares = false;   // it knows SetShare
  // The version of what workers send each other (worker/mesh/frame.h); all workers of a job have
  // the same. 0: not told, by a library from before this field.
  std::uint32_t mesh_version = 0;
  static constexpr const char* kName = "hello";
  static void Visit(auto& m, auto&& field) {
    field("version", m.version, kHidden)("job", m.job)("rank", m.rank, kPlain, "wanted_rank");
    field("world_size", m.world_size)("host", m.host)("host_name", m.host_name)("pid", m.pid);
    field("endpoints", m.endpoints)("model_bytes", m.model_bytes);
    field("model_hash", m.model_hash, kHidden)("iteration", m.iteration);
    field("former", m.former, kUnlessZero)("launch", m.launch, kUnlessZero);
    field("goal", m.goal, kUnlessZero | kSparse, "goal_*");
    field("own", m.own, kUnlessZero | kSparse, "own_*");
    field("job_trained", m.job_trained, kUnlessZero | kSparse, "job_*");
    field("mesh_key", m.mesh_key, kHidden | kSparse)("gradients", m.gradients, kUnlessZero);
    field("identity", m.identity, kUnlessZero | kSparse);
    field("returns_at_once", m.returns_at_once, kHidden);
    field("batch", m.batch, kUnlessZero)("max_share", m.max_share, kUnlessZero);
    field("accumulates", m.accumulates, kUnlessZero)("takes_shares", m.takes_shares, kHidden);
    field("mesh_version", m.mesh_version, kHidden);
  }
  friend bool operator==(const Hello&, const Hello&) = default;
};

// "My local update is done": the ready signal of P-Reduce's Algorithm 2, line 5, and the state
// query of ESync's Algorithm 1, line 8.
struct Ready {
  Iteration iteration = 0;   // see engine.h
  DurationNs step_ns = 0;    // the worker's own measure of computing this step, waiting excluded
  std::int64_t samples = 0;  // in this step's batch; 0 = not told
  // A group answers this signal, and until then no other follows; but for AveragesInBackground the
  // training loop waits for it. False: it goes on, and this signal does not keep it from sending
  // more.
  bool waiting = true;
  // TrainsInRounds: gradients offered with this signal, 0 or 1.
  std::uint32_t gradients = 0;
  // Payload::kChange: local steps completed since the round's start.
  std::uint32_t local_steps = 0;
  // The worker's own measure of a round trip to the controller, 0 = unknown.
  DurationNs rtt_ns = 0;
  // NeighbourPlan, for display: updates in its queues now; and since the signal before, those that
  // came and were never used, and those of its own that were not sent because their receiver was
  // past them (Hop, section 6.2).
  std::uint32_t queued = 0;
  std::uint32_t dropped = 0;
  std::uint32_t suppressed = 0;
  Trained own;                  // by this worker so far, this step included
  std::uint32_t nonfinite = 0;  // steps that were not all finite, since the report before
  Losses losses;                // told since the report before
  // Jobs with a batch: steps after this one for which the worker's loader has drawn samples; and
  // the pieces of this step that others have lost (SetShare::more) and this worker has computed.
  std::uint32_t lead = 0;
  std::uint32_t made_up = 0;
  // Payload::kChange: the worker makes no other local step before the round's group, which it
  // waits for, whatever the answer would be.
  bool last = false;
  static constexpr const char* kName = "ready";
  static void Visit(auto& m, auto&& field) {
    field("iteration", m.iteration)("step_ns", m.step_ns)("samples", m.samples);
    field("waiting", m.waiting)("gradients", m.gradients, kUnlessZero);
    field("local_steps", m.local_steps, kUnlessZero)("rtt_ns", m.rtt_ns, kUnlessZero);
    field("queued", m.queued, kUnlessZero)("dropped", m.dropped, kUnlessZero);
    field("suppressed", m.suppressed, kUnlessZero)("own_steps", m.own.steps, kUnlessZero);
    field("own_samples", m.own.samples, kUnlessZero)("nonfinite", m.nonfinite, kUnlessZero);
    field("losses", m.losses.count, kUnlessZero)("loss", m.losses.mean, kUnlessZero | kFinite);
    field("lead", m.lead, kUnlessZero)("made_up", m.made_up, kUnlessZero);
    field("last", m.last, kUnlessZero);
  }
  friend bool operator==(const Ready&, const Ready&) = default;
};

enum class Outcome : std::uint8_t {
  kOk = 0,       // the result is in the worker's replica
  kFailed = 1,   // the worker saw it fail (a peer vanished, a time limit); replica unchanged
  kAborted = 2,  // called off by the controller's Abort; replica unchanged
};

// The worker is through with a group, one way or another. Sent exactly once per group and member.
// Where no group trains that is reported (neighbours, store, schedule), also of no group: kFailed,
// to name those whom the worker does not reach.
struct Finished {
  GroupId group = kNoGroup;
  Outcome outcome = Outcome::kOk;
  std::string detail;        // why it failed
  DurationNs wait_ns = 0;    // from Ready sent to Group received, the worker's own measure
  DurationNs reduce_ns = 0;  // from Group received to the end
  std::uint64_t bytes = 0;   // sent to peers for it
  // kRound: gradients of this worker's that are in the result.
  std::uint32_t included = 0;
  // kFailed: members that did not answer, or to whom the connection broke. The worker itself is
  // well, and so may they be: their links to each other may be broken.
  std::vector<Rank> unreachable;
  // Where the Group asked for it: of the parameters with its result. Equal for equal bits; 0: none.
  std::uint64_t digest = 0;
  static constexpr const char* kName = "finished";
  static void Visit(auto& m, auto&& field) {
    field("group", m.group)("outcome", m.outcome)("detail", m.detail, kUnlessZero);
    field("wait_ns", m.wait_ns)("reduce_ns", m.reduce_ns)("bytes", m.bytes);
    field("included", m.included, kUnlessZero);
    field("unreachable", m.unreachable, kUnlessZero | kSparse)("digest", m.digest, kUnlessZero);
  }
  friend bool operator==(const Finished&, const Finished&) = default;
};

// Answers Adopt, and voids every Ready sent before it (but not where Adopt asks for a result
// alone). ok = false: the source could not be reached, the replica is unchanged; a worker that was
// waiting for a group then signals Ready again.
struct Adopted {
  bool ok = false;
  Iteration iteration = 0;  // the source's, when ok
  std::string detail;
  std::uint32_t included = 0;  // as in Finished, where Adopt asked for a result
  bool unreachable = false;    // not ok, since the source did not answer
  static constexpr const char* kName = "adopted";
  static void Visit(auto& m, auto&& field) {
    field("ok", m.ok)("iteration", m.iteration)("detail", m.detail, kUnlessZero);
    field("included", m.included, kUnlessZero)("unreachable", m.unreachable, kUnlessZero);
  }
  friend bool operator==(const Adopted&, const Adopted&) = default;
};

// StorePlan: all shards that this worker owns under that Placement are complete, here and on
// their other holders. Said once per Placement, unless a newer one comes first.
struct Placed {
  std::uint64_t epoch = 0;
  static constexpr const char* kName = "placed";
  static void Visit(auto& m, auto&& field) { field("epoch", m.epoch); }
  friend bool operator==(const Placed&, const Placed&) = default;
};

// A target of the newest Probe answers, and has been told so. Said once per target and Probe.
struct Probed {
  Rank rank = kNoRank;
  Incarnation incarnation = 0;
  static constexpr const char* kName = "probed";
  static void Visit(auto& m, auto&& field) {
    field("rank", m.rank, kPlain, "target");
    field("incarnation", m.incarnation, kPlain, "target_incarnation");
  }
  friend bool operator==(const Probed&, const Probed&) = default;
};

// Bytes that a worker's library holds beside the tensors of its program: now, and the most so far.
struct HeldMemory {
  std::uint64_t host = 0;
  std::uint64_t host_peak = 0;
  std::uint64_t device = 0;
  std::uint64_t device_peak = 0;
  friend bool operator==(const HeldMemory&, const HeldMemory&) = default;
};

// What the worker has trained, where no Ready has told it for a while; or what it holds has
// changed.
struct Progressed {
  Trained own;
  std::uint32_t nonfinite = 0;  // as in Ready, as the next
  Losses losses;
  HeldMemory memory;
  static constexpr const char* kName = "progressed";
  static void Visit(auto& m, auto&& field) {
    field("own_steps", m.own.steps)("own_samples", m.own.samples);
    field("nonfinite", m.nonfinite, kUnlessZero)("losses", m.losses.count, kUnlessZero);
    field("loss", m.losses.mean, kUnlessZero | kFinite);
    field("host_bytes", m.memory.host, kUnlessZero)("host_peak", m.memory.host_peak, kUnlessZero);
    field("device_bytes", m.memory.device, kUnlessZero);
    field("device_peak", m.memory.device_peak, kUnlessZero);
  }
  friend bool operator==(const Progressed&, const Progressed&) = default;
};

// The training loop does something else than training, for a time: the others go on without this
// worker. No signal of the worker that waits is unanswered.
struct Pause {
  static constexpr const char* kName = "pause";
  friend bool operator==(const Pause&, const Pause&) = default;
};

// It trains again. Answered by Resumed; before that maybe by Adopt, if others have gone on.
struct Resume {
  static constexpr const char* kName = "resume";
  friend bool operator==(const Resume&, const Resume&) = default;
};

// Asks which workers have a replica of the job now. Answered by Members.
struct AskMembers {
  static constexpr const char* kName = "ask_members";
  friend bool operator==(const AskMembers&, const AskMembers&) = default;
};

// Session::Finish: no more steps; wait for the final average of all live workers.
struct Finish {
  static constexpr const char* kName = "finish";
  friend bool operator==(const Finish&, const Finish&) = default;
};

// Leaves, without the final average: at once, or after Pause as who drains. Then Released comes.
struct Leave {
  std::string reason;
  bool failed = false;  // it cannot go on; no decision of its program
  static constexpr const char* kName = "leave";
  static void Visit(auto& m, auto&& field) {
    field("reason", m.reason)("failed", m.failed, kUnlessZero);
  }
  friend bool operator==(const Leave&, const Leave&) = default;
};

// Session::Stop: the job is done, as if its goal were reached.
struct StopJob {
  std::string reason;
  static constexpr const char* kName = "stop_job";
  static void Visit(auto& m, auto&& field) { field("reason", m.reason); }
  friend bool operator==(const StopJob&, const StopJob&) = default;
};

// Session::Mean: answered by NumbersMean, once all have given theirs who train and have not paused
// for good. Said again by an incarnation that follows; with the call of the round that has ended
// last it is answered at once, and else it replaces what was given under the rank.
struct GiveNumbers {
  std::uint64_t call = 0;
  std::vector<double> values;
  static constexpr const char* kName = "give_numbers";
  static void Visit(auto& m, auto&& field) { field("call", m.call)("values", m.values); }
  friend bool operator==(const GiveNumbers& a, const GiveNumbers& b) {
    return a.call == b.call && SameBits(a.values, b.values);
  }
};

// Keeps the lease alive and carries acknowledgements. seq 0. Answered by HeartbeatAck.
struct Heartbeat {
  static constexpr const char* kName = "heartbeat";
  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};

struct WorkerBody
    : std::variant<Hello, Ready, Finished, Adopted, Finish, Leave, Heartbeat, Placed, Probed,
                   Progressed, Pause, Resume, AskMembers, StopJob, GiveNumbers> {
  PRD_DECLARE_VARIANT(WorkerBody)
};

struct WorkerEnvelope {
  RunId run = kNoRun;    // from Welcome; kNoRun until then
  RunIdentity identity;  // the newest that the controller sent
  Rank rank = kNoRank;   // from Welcome; kNoRank until then
  Incarnation incarnation = 0;
  Seq seq = 0;
  Seq ack = 0;  // the last controller message received in order
  // The lowest of its messages that the worker can send again; the controller has acknowledged all
  // before. With `ack` it proves that a controller has forgotten what it had received, or sent.
  Seq oldest = 1;
  LinkToken token;  // as in its Hello
  WorkerBody body;
  static void Visit(auto& m, auto&& field) {
    field("run", m.run)("identity", m.identity)("rank", m.rank)("incarnation", m.incarnation);
    field("seq", m.seq)("ack", m.ack)("oldest", m.oldest)("token", m.token)("body", m.body);
  }
  friend bool operator==(const WorkerEnvelope&, const WorkerEnvelope&) = default;
};

// ---- controller to worker ----

struct Welcome {
  RunId run = kNoRun;
  RunIdentity identity;
  Rank rank = kNoRank;
  std::string job;
  std::string engine;
  Plan plan;
  std::int32_t workers = 0;  // that the job starts with
  std::uint32_t lease_ms = 0;
  std::uint32_t heartbeat_ms = 0;
  Trained own;   // by the worker that had this rank before, or as the worker's Hello says
  Trained goal;  // the job's; 0: none
  OnNonfinite on_nonfinite = OnNonfinite::kPass;
  MeshSecurity mesh_security = MeshSecurity::kNone;
  // The network between devices is trusted: NCCL may be used though it protects nothing.
  bool device_network_trusted = false;
  bool job_calls = false;  // the controller knows StopJob and GiveNumbers
  std::int64_t batch = 0;  // samples of a step of all workers, of which SetShare tells; 0: none
  static constexpr const char* kName = "welcome";
  static void Visit(auto& m, auto&& field) {
    field("run", m.run)("identity", m.identity)("rank", m.rank)("job", m.job)("engine", m.engine);
    field("plan", m.plan)("workers", m.workers)("lease_ms", m.lease_ms);
    field("heartbeat_ms", m.heartbeat_ms)("own", m.own, kSparse)("goal", m.goal, kSparse);
    field("on_nonfinite", m.on_nonfinite)("mesh_security", m.mesh_security);
    field("device_network_trusted", m.device_network_trusted)("job_calls", m.job_calls);
    field("batch", m.batch, kUnlessZero);
  }
  friend bool operator==(const Welcome&, const Welcome&) = default;
};

// A member of a group, with all that a peer needs to reach it.
struct GroupMember {
  Rank rank = kNoRank;
  Incarnation incarnation = 0;
  double weight = 0;  // share in the reduction
  std::string host;
  std::vector<std::string> endpoints;
  // DrawnAhead: takes part on somebody else's account; its own signal, if one stands, stands on.
  bool passive = false;
  MeshKey mesh_key;
  static void Visit(auto& m, auto&& field) {
    field("rank", m.rank)("incarnation", m.incarnation)("weight", m.weight, kFinite);
    field("host", m.host)("endpoints", m.endpoints)("passive", m.passive);
    field("mesh_key", m.mesh_key, kSparse);
  }
  friend bool operator==(const GroupMember&, const GroupMember&) = default;
};

enum class GroupKind : std::uint8_t {
  // Answers its members' signals; each starts with it once its training loop waits (but see Plan).
  kTrain = 0,
  // Copies one member's parameters to all (that member has weight 1): the common start.
  kInitial = 1,
  kFinal = 2,  // the average of all live replicas, after which members are Released
  // TrainsInRounds: every member starts at once, whatever its training loop does, with the sum of
  // its gradients in no round yet, or with nothing where its weight is 0.
  kRound = 3,
  // The parameters of all members, who wait for a round; none of it ends their step.
  kAverage = 4,
};

// "Reduce with these." Members are in the order of the ring; a group of one has nothing to reduce
// and lets its worker go on. A member of weight 0 contributes nothing, not even NaN, and gets the
// result.
struct Group {
  GroupId id = kNoGroup;
  GroupKind kind = GroupKind::kTrain;
  SharedList<GroupMember> members;
  Iteration iteration = 0;    // where members continue if the reduction succeeds
  double initial_weight = 0;  // the initial model's share, which each member adds from its own copy
  // Members send only to those next to them in this order, the last one's next being the first: the
  // link between two others is broken.
  bool ring_only = false;
  bool digest = false;  // members tell the digest of their parameters with the result
  bool last = false;    // the job's goal is reached with the steps that this group ends
  std::string reason;
  static constexpr const char* kName = "group";
  static void Visit(auto& m, auto&& field) {
    field("id", m.id)("kind", m.kind)("members", m.members)("iteration", m.iteration);
    field("initial_weight", m.initial_weight, kFinite)("ring_only", m.ring_only);
    field("digest", m.digest)("last", m.last)("reason", m.reason);
  }
  friend bool operator==(const Group&, const Group&) = default;
};

// Call the group off if it is still running here. Answered by the group's Finished, as ever.
// `undone`: the kRound failed here, and nobody has its result, so that what this worker gave is its
// own again. Not answered.
struct Abort {
  GroupId group = kNoGroup;
  std::string reason;
  bool undone = false;
  static constexpr const char* kName = "abort";
  static void Visit(auto& m, auto&& field) {
    field("group", m.group)("reason", m.reason)("undone", m.undone);
  }
  friend bool operator==(const Abort&, const Abort&) = default;
};

// Replace the replica by the source's (its weight has no meaning) and continue at its iteration:
// how a late worker starts, and how a member that missed a committed round catches up. It voids a
// Ready that is still unanswered. With a `result`: take that kRound's result from the source, as
// if the round had not failed here; at once, and no Ready is voided. Answered by Adopted.
struct Adopt {
  GroupMember source;
  std::string reason;
  GroupId result = kNoGroup;
  static constexpr const char* kName = "adopt";
  static void Visit(auto& m, auto&& field) {
    field("source", m.source)("reason", m.reason)("result", m.result);
  }
  friend bool operator==(const Adopt&, const Adopt&) = default;
};

// Answers a signal without a group. Payload::kChange: a state query (ESync, Algorithm 2). ready:
// the worker's next signal waits for the round's group; its training loop may cut the step in
// progress short. Not ready: it goes on locally. DrawnAhead, NeighbourPlan, StorePlan: never ready.
struct QueryReply {
  Iteration iteration = 0;        // as in the Ready that it answers
  std::uint32_t local_steps = 0;  // the same
  bool ready = false;
  // NeighbourPlan: the iteration that the worker enters. Where it is beyond the one it asked for,
  // the worker first averages with the updates of iteration next - 1 (Hop, section 5). StorePlan:
  // its clock, as it asked for.
  Iteration next = 0;
  // StorePlan: workers that train now; an update's share is one over that.
  std::uint32_t workers = 0;
  static constexpr const char* kName = "query_reply";
  static void Visit(auto& m, auto&& field) {
    field("iteration", m.iteration)("local_steps", m.local_steps)("ready", m.ready);
    field("next", m.next)("workers", m.workers);
  }
  friend bool operator==(const QueryReply&, const QueryReply&) = default;
};

// FollowsSchedule: who reduces with whom from now on (static_schedule.h): each worker starts with
// slot 0 at its next step that synchronises, and calls off what still runs under the Schedule
// before. Not answered.
struct Schedule {
  GroupId first = kNoGroup;         // groups have ids from here on: StaticGroupId
  SharedList<GroupMember> members;  // by rank, ascending; their weights have no meaning
  std::vector<std::int32_t> hosts;  // by member: equal for those that count as on one host
  std::string reason;
  static constexpr const char* kName = "schedule";
  static void Visit(auto& m, auto&& field) {
    field("first", m.first)("members", m.members)("hosts", m.hosts)("reason", m.reason);
  }
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// NeighbourPlan: with whom this worker exchanges updates from now on; its receiver is not in it. An
// update of a neighbour that is in none any more is not waited for. Not answered.
struct Neighbourhood {
  SharedList<GroupMember> in;   // whose updates it gets; weight: that update's in the average
  std::vector<Iteration> from;  // by `in`: there come no updates of iterations before this one
  SharedList<GroupMember> out;  // who get its updates, from the iteration it is in on
  double own_weight = 1;        // of its own parameters; with those of `in` it sums to 1
  // Iterations of which updates are kept at once, from each neighbour: update queues (Hop, section
  // 6.1). >= 1.
  std::uint32_t slots = 1;
  // The receiver's iteration, as the controller counts it: where it goes on, if that is higher.
  Iteration at = 0;
  std::string reason;
  static constexpr const char* kName = "neighbourhood";
  static void Visit(auto& m, auto&& field) {
    field("in", m.in)("from", m.from)("out", m.out)("own_weight", m.own_weight, kFinite);
    field("slots", m.slots)("at", m.at)("reason", m.reason);
  }
  friend bool operator==(const Neighbourhood&, const Neighbourhood&) = default;
};

// Where a shard is.
struct ShardPlace {
  Rank owner = kNoRank;
  std::vector<Rank> holders;  // who have copies besides
  // The holder of its newest state: the owner takes it over. kNoRank: nobody has one (any
  // more), the owner takes what it read last, or began with.
  Rank source = kNoRank;
  static void Visit(auto& m, auto&& field) {
    field("owner", m.owner)("holders", m.holders)("source", m.source);
  }
  friend bool operator==(const ShardPlace&, const ShardPlace&) = default;
};

// StorePlan: where the shards are to be. From now on nothing is pushed, read or stored under an
// older one; under this one, once it is Opened. Owners get their shards meanwhile, see to their
// copies, and say Placed.
struct Placement {
  std::uint64_t epoch = 0;          // ascending within a run, from 1
  SharedList<GroupMember> members;  // all who train or hold shards; weights have no meaning
  SharedList<ShardPlace> shards;    // by shard; their number never changes within a run
  Iteration at = 0;                 // the receiver's clock, if it is higher than its own
  std::string reason;
  static constexpr const char* kName = "placement";
  static void Visit(auto& m, auto&& field) {
    field("epoch", m.epoch)("members", m.members)("shards", m.shards)("at", m.at);
    field("reason", m.reason);
  }
  friend bool operator==(const Placement&, const Placement&) = default;
};

// All have said Placed.
struct Opened {
  std::uint64_t epoch = 0;
  static constexpr const char* kName = "opened";
  static void Visit(auto& m, auto&& field) { field("epoch", m.epoch); }
  friend bool operator==(const Opened&, const Opened&) = default;
};

// Find out whether these workers answer, until each has: the links to them were broken. Replaces
// the Probe before; none: ask nobody any more. Costs no step. Each that answers is reported by
// Probed.
struct Probe {
  SharedList<GroupMember> targets;  // weights have no meaning
  static constexpr const char* kName = "probe";
  static void Visit(auto& m, auto&& field) { field("targets", m.targets); }
  friend bool operator==(const Probe&, const Probe&) = default;
};

// Answers Resume: the worker trains again, with the replica that it has now.
struct Resumed {
  static constexpr const char* kName = "resumed";
  friend bool operator==(const Resumed&, const Resumed&) = default;
};

// Answers AskMembers.
struct Members {
  SharedList<GroupMember> members;  // by rank, ascending; weights have no meaning
  static constexpr const char* kName = "members";
  static void Visit(auto& m, auto&& field) { field("members", m.members); }
  friend bool operator==(const Members&, const Members&) = default;
};

// These may turn to this worker from now on, to ask whether it answers, or to copy from it: the
// controller has told them of it. Members of groups, schedules, neighbourhoods and placements are
// announced by those. Not answered.
struct Announce {
  SharedList<GroupMember> members;  // weights have no meaning
  // Each may copy this worker's replica, or its parameters, once. Nobody copies a replica without
  // such an order. The result of a kRound may be copied by whoever was in it.
  bool copies = false;
  static constexpr const char* kName = "announce";
  static void Visit(auto& m, auto&& field) { field("members", m.members)("copies", m.copies); }
  friend bool operator==(const Announce&, const Announce&) = default;
};

// These members are out: they left, were lost, evicted or revoked. The worker forgets them, ends
// their connections and serves them no more, unless one is announced anew. Not answered. Who still
// reads what a member had sent before it left or was lost (a group, a replica) is told so once
// that is over.
struct Gone {
  std::vector<Incarnation> incarnations;
  static constexpr const char* kName = "gone";
  static void Visit(auto& m, auto&& field) { field("incarnations", m.incarnations); }
  friend bool operator==(const Gone&, const Gone&) = default;
};

// Answers GiveNumbers. `wrong`: why these are no numbers for the round that is open, which is
// without them then.
struct NumbersMean {
  std::uint64_t call = 0;
  std::vector<double> values;  // the same for all who are in the round
  std::string wrong;
  static constexpr const char* kName = "numbers_mean";
  static void Visit(auto& m, auto&& field) {
    field("call", m.call)("values", m.values)("wrong", m.wrong);
  }
  friend bool operator==(const NumbersMean& a, const NumbersMean& b) {
    return a.call == b.call && SameBits(a.values, b.values) && a.wrong == b.wrong;
  }
};

// Another run of the job follows this one, with another engine or other settings. The worker ends
// the step that it is in, or the next one, and then does what Finish does. After the final average
// it hears that its incarnation is over (Refused), and says Hello to the next run. The call of its
// step ends once it has that run's common start. Not answered.
struct EndRun {
  std::string reason;
  static constexpr const char* kName = "end_run";
  static void Visit(auto& m, auto&& field) { field("reason", m.reason); }
  friend bool operator==(const EndRun&, const EndRun&) = default;
};

// Jobs with a batch: which samples of each step's batch the worker computes, from step `from` on,
// until another SetShare says otherwise. `more`: samples of step `from` alone, which another worker
// was to compute and does not; the worker computes them besides its share, and signals after that.
// A signal of that step which it has sent before is void. Not answered.
struct SetShare {
  Iteration from = 0;        // as Ready.iteration; 0: from now on
  std::int64_t first = 0;    // of the batch, from 0
  std::int64_t samples = 0;  // >= 1
  bool more = false;
  static constexpr const char* kName = "set_share";
  static void Visit(auto& m, auto&& field) {
    field("from", m.from)("first", m.first)("samples", m.samples)("more", m.more, kUnlessZero);
  }
  friend bool operator==(const SetShare&, const SetShare&) = default;
};

// The session is over; the last message of a link.
struct Released {
  std::string reason;
  static constexpr const char* kName = "released";
  static void Visit(auto& m, auto&& field) { field("reason", m.reason); }
  friend bool operator==(const Released&, const Released&) = default;
};

// seq 0. kUnavailable: the same request may succeed after retry_ms (a rank whose last holder's
// lease still runs). kAborted: this incarnation is over (its lease ran out); say Hello as a new
// one. Any other code is final.
struct Refused {
  Code code = Code::kInvalidArgument;
  std::string reason;
  std::uint32_t retry_ms = 0;
  static constexpr const char* kName = "refused";
  static void Visit(auto& m, auto&& field) {
    field("code", m.code)("reason", m.reason)("retry_ms", m.retry_ms);
  }
  friend bool operator==(const Refused&, const Refused&) = default;
};

// seq 0.
struct HeartbeatAck {
  // Why the job has not begun for this worker, or for whom the worker has waited for some seconds;
  // empty: it does not wait.
  std::string waits_for;
  static constexpr const char* kName = "heartbeat_ack";
  static void Visit(auto& m, auto&& field) { field("waits_for", m.waits_for, kSparse); }
  friend bool operator==(const HeartbeatAck&, const HeartbeatAck&) = default;
};

struct ControllerBody
    : std::variant<Welcome, Group, Abort, Adopt, Released, Refused, HeartbeatAck, QueryReply,
                   Schedule, Neighbourhood, Placement, Opened, Probe, Resumed, Members, Announce,
                   EndRun, Gone, NumbersMean, SetShare> {
  PRD_DECLARE_VARIANT(ControllerBody)
};

struct ControllerEnvelope {
  RunIdentity identity;         // of the run; none in a Refused that comes from no run
  Incarnation incarnation = 0;  // whom it is for
  Seq seq = 0;
  Seq ack = 0;  // the last worker message received in order
  JobProgress progress;
  ControllerBody body;
  static void Visit(auto& m, auto&& field) {
    field("identity", m.identity)("incarnation", m.incarnation)("seq", m.seq)("ack", m.ack);
    field("steps", m.progress.trained.steps)("samples", m.progress.trained.samples);
    field("workers", m.progress.workers)("done", m.progress.done)("body", m.body);
  }
  friend bool operator==(const ControllerEnvelope&, const ControllerEnvelope&) = default;
};

}  // namespace prd

#endif  // PRD_COMMON_BASE_MESSAGES_H_
