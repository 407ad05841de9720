// What the workers of a job do at a step: the engine's plan, sent once, at Welcome.
//
// A Plan is data. The functions below are the only ones that look inside one, but for the engine
// that makes it and the codec; each is named after what follows from the plan. Library, controller,
// simulator and tools ask them, so that they cannot differ.
#ifndef PRD_COMMON_BASE_PLAN_H_
#define PRD_COMMON_BASE_PLAN_H_

#include <cstdint>
#include <string>
#include <variant>

#include "common/base/archive.h"

namespace prd {

// What members of a group that trains contribute.
enum class Payload : std::uint8_t {
  kParameters = 0,
  kGradients = 1,
  kChange = 2,  // of the parameters, since the last such group (the base)
};

// The members of a group that trains.
enum class Membership : std::uint8_t {
  // The controller announces a group once its members have signalled.
  kAnnounced = 0,
  // Groups may be drawn, and announced, before their members have signalled. A signal stands, and
  // is not said again, until a group in which this worker is not passive has succeeded, or a
  // QueryReply says that it needs none. Members keep their own count of iterations.
  kAhead = 1,
  // Workers draw their groups themselves, from the newest Schedule: no signal is said, and of their
  // kTrain groups none is announced and none reported. They keep their own count of iterations.
  kSchedule = 2,
};

// Workers reduce in groups.
struct GroupPlan {
  Payload payload = Payload::kParameters;
  Membership members = Membership::kAnnounced;
  // A group starts at once on each member, whatever its training loop does; otherwise once the
  // member's training loop is in a step. kParameters: with the replica as it is then; (average -
  // that) is added to the parameters at the member's next step boundary. kGradients: groups are
  // rounds (GroupKind::kRound), in which every worker takes part: with the sum of its gradients
  // that are in no round yet, or with nothing. A step applies what the rounds since the last step
  // gave.
  bool any_time = false;
  // kParameters, any_time: steps that the training loop may complete while a signal of it stands;
  // with one more it waits. 0: it waits for every signal to be answered.
  std::uint32_t run_ahead = 0;
  // kGradients, any_time: of several rounds that completed since the last step, apply only the
  // newest.
  bool newest_only = false;
  // kChange: a signal asks whether the group is due, and the QueryReply may send its worker back to
  // its steps.
  bool asks = false;
  // asks: a step does not wait for the answer to its Ready; "not ready" is not answered.
  bool delayed_ack = false;
  // kParameters: the engine may mix the initial model into a group (Group::initial_weight): keep a
  // copy of the parameters as they are after the common start, and pass it on with the replica
  // (Adopt).
  bool keep_initial = false;
  // kChange: the share of the mean change that is added to the base. Finite.
  double outer_rate = 1;
  static constexpr const char* kName = "groups";
  static void Visit(auto& m, auto&& field) {
    field("payload", m.payload)("members", m.members)("any_time", m.any_time);
    field("run_ahead", m.run_ahead)("newest_only", m.newest_only)("asks", m.asks);
    field("delayed_ack", m.delayed_ack)("keep_initial", m.keep_initial);
    field("outer_rate", m.outer_rate, kFinite);
  }
  friend bool operator==(const GroupPlan&, const GroupPlan&) = default;
};

// Each worker sends its parameters to its neighbours on a graph, and averages with those that they
// sent (Neighbourhood). No groups train. A Ready says that this worker has what it needs to enter
// the iteration in it; the QueryReply says which iteration it enters.
struct NeighbourPlan {
  // How many iterations an update may be older than the iteration that it is used in (Hop, section
  // 4.4); 0: none.
  std::int32_t staleness = 0;
  // Neighbours' updates that an iteration goes on without (Hop, section 4.3).
  std::uint32_t backups = 0;
  // Apply, send, receive, average (Hop, Figure 2a); otherwise send before the gradient is computed,
  // average, apply (Figure 2b).
  bool serial = false;
  static constexpr const char* kName = "neighbours";
  static void Visit(auto& m, auto&& field) {
    field("staleness", m.staleness)("backups", m.backups)("serial", m.serial);
  }
  friend bool operator==(const NeighbourPlan&, const NeighbourPlan&) = default;
};

// The parameters are shared, in shards that live in the workers (Placement): apply, push the
// difference to each shard's owner, and read all shards. No groups train. A Ready says that the
// update with which this worker reaches the clock in it is stored; the QueryReply lets it read.
struct StorePlan {
  // s of SSP. 0: lockstep, an update is not read before the clock in which all have pushed theirs
  // is over. -1: without a bound.
  std::int32_t staleness = 0;
  bool staleness_aware = false;  // a delayed update counts less (engines/ssp)
  static constexpr const char* kName = "store";
  static void Visit(auto& m, auto&& field) {
    field("staleness", m.staleness)("staleness_aware", m.staleness_aware);
  }
  friend bool operator==(const StorePlan&, const StorePlan&) = default;
};

// How a job's workers go about their steps. Sent once, at Welcome.
struct Plan {
  std::uint32_t every = 1;  // local steps per signal; the steps between end at once. >= 1
  std::variant<GroupPlan, NeighbourPlan, StorePlan> by;
  static void Visit(auto& m, auto&& field) { field("every", m.every)("by", m.by); }
  friend bool operator==(const Plan&, const Plan&) = default;
};

// Why no worker can carry out this combination, or empty. A worker refuses such a Welcome.
std::string Unsupported(const Plan& plan);

// ---- who synchronises with whom ----

// Workers train in groups that reduce. Otherwise no group trains: workers exchange updates or
// shards with peers, and the controller answers each signal with where its worker goes on.
bool TrainsInGroups(const Plan& plan);
// Groups that train are rounds (GroupKind::kRound): every worker takes part at once, also while its
// training loop computes.
bool TrainsInRounds(const Plan& plan);
// All workers hold one model: all members of a group that trains commit its result, or none does.
bool AllOrNone(const Plan& plan);
// All replicas have the same parameters once all are through with the same groups.
bool ReplicasAreEqual(const Plan& plan);
// Groups may be drawn, and announced, before their members have signalled. Members keep their own
// count of iterations.
bool DrawnAhead(const Plan& plan);
// Workers draw their groups themselves, from a schedule: no signal is said, no group is reported.
bool FollowsSchedule(const Plan& plan);
// Workers exchange updates with the neighbours on a graph; those of the plan. Null: they do not.
const NeighbourPlan* NeighboursOf(const Plan& plan);
inline bool HasNeighbours(const Plan& plan) { return NeighboursOf(plan) != nullptr; }
// The parameters are in shards that live in the workers; how. Null: they are not.
const StorePlan* StoreOf(const Plan& plan);
inline bool HasStore(const Plan& plan) { return StoreOf(plan) != nullptr; }

// ---- when a step ends ----

// Models are averaged beside the training loop; what an average changed waits in the inbox until
// the loop's next step adds it.
bool AveragesInBackground(const Plan& plan);
// Steps and groups are not one to one: groups are drawn ahead, by a schedule, or run in the
// background.
bool DecouplesSteps(const Plan& plan);
// AveragesInBackground: steps that a worker may complete while a signal of it stands.
std::uint32_t RunAhead(const Plan& plan);
// Every how many steps a worker signals; the others end at once.
std::uint32_t StepsPerSignal(const Plan& plan);
// A signal asks whether the round's group is due; "not yet" sends the worker back to its steps.
bool AsksBeforeGroups(const Plan& plan);
// AsksBeforeGroups: a step does not wait for the answer.
bool AcknowledgesLate(const Plan& plan);
// A step in progress is of no use once its worker has been ordered to copy a replica.
bool CopyVoidsStep(const Plan& plan);

// ---- what is applied and reduced ----

// The training loop must give gradients.
bool NeedsGradients(const Plan& plan);
// `apply` runs when a step begins, before anything is signalled; otherwise with what came of the
// step's group or round.
bool AppliesFirst(const Plan& plan);
// What `iteration` counts: a replica's local steps, or the rounds that are in it. Neither: the
// steps that all workers made together, or that the controller has let this worker begin.
bool CountsLocalSteps(const Plan& plan);
bool CountsRounds(const Plan& plan);

// Where the result of a group goes.
enum class Landing : std::uint8_t {
  kParameters,  // replaces them
  kGradients,   // replaces them; `apply` follows
  kBase,        // added to the base, which the parameters become
  kInbox,       // added there, until the training loop takes it. Of gradients, what is contributed
                // is the sum of those in no round yet
};
struct Reduced {
  Payload payload = Payload::kParameters;
  Landing landing = Landing::kParameters;
  friend bool operator==(const Reduced&, const Reduced&) = default;
};
// What the groups reduce that train: GroupKind::kRound if the plan TrainsInRounds, else kTrain.
// REQUIRES: TrainsInGroups. All other groups replace parameters by an average of parameters.
Reduced ReducedInTraining(const Plan& plan);

// What members contribute may be weighted by the samples in it, if the engine's options say so: it
// is a gradient, or a change. An average of parameters, an exchange with neighbours and a push to a
// shard are not, unless their engine's options say otherwise.
bool WeighsSamples(const Plan& plan);
// The share of the mean change that is added to the base.
double OuterRate(const Plan& plan);
// The training loop applies only the newest of several results in the inbox.
bool TakesNewestOnly(const Plan& plan);

// Rows, each as large as the parameters, that a worker keeps beside them.
struct Rows {
  bool initial = false;  // the parameters as they were after the common start
  bool outbox = false;   // what it contributes to a reduction
  bool inbox = false;    // results that the training loop has not taken
  bool base = false;     // the parameters as they were at some earlier time
  friend bool operator==(const Rows&, const Rows&) = default;
};
Rows RowsOf(const Plan& plan);

}  // namespace prd

#endif  // PRD_COMMON_BASE_PLAN_H_
