// Reductions among workers and copies of models, costed by bytes, bandwidth and latency, with the
// values they carry.
//
// A reduction begins when its last member begins it, takes the time of a ring (workload.h), and
// then every member has the result, but for those on whom it fails. A member that is called off or
// dies breaks it: the others notice within a few ms. A failed reduction changes nothing. What is
// reduced, and where results go, is as in worker/mesh/mesh.h.
//
// While a link that a reduction needs is cut (links.h), or a member stands still, nothing moves. A
// member that has heard of nothing for a lease asks those whose data it needs: all others, or with
// Group::ring_only those next to it. Those who do not answer are unreachable, and the group fails.
// If all answer, however long one computes before it begins, it waits on. Who fails tells those
// that it reaches.
//
//   replicas-agree  members of a group that reduces gradients, or differences to a common base,
//                   have equal replicas before it (but where a fault makes them differ:
//                   replica_book.h)
//   outbox          is not touched while a round runs that it is contributed to, and a contributor
//                   has one
//   inbox           is empty when models are averaged, but for those averaged in the background
//   mass            a group with equal weights that succeeded for all members has not changed the
//                   sum of what they hold: parameters and, in the background, inbox
//   one-reduction   a worker is in one reduction at a time
//   group-order     a worker meets its groups in ascending order of ids, and so do all that it
//                   shares two with
//   same-group      all members have been told of the same group
//   average         what a worker averages in its own time are replicas of its run, each member's
//                   once and its own
//   final-model     the final average counts members as the history says
//   returning-start a common start takes what those have learned who have trained before: the
//                   newest replica where all are equal by design, else the average of theirs
//   switched-model  all whose run goes on in another one end it with one replica, and the other run
//                   begins with that
// and those of gradient_book.h and schedule_book.h.
#ifndef PRD_TOOLS_SIM_DATA_PLANE_H_
#define PRD_TOOLS_SIM_DATA_PLANE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "tools/sim/gradient_book.h"
#include "tools/sim/mutation.h"
#include "tools/sim/plane.h"
#include "tools/sim/schedule_book.h"
#include "tools/sim/world.h"
#include "worker/core/session_core.h"

namespace prd::sim {

class DataPlane {
 public:
  // `unreported` is called for each group that succeeded of those that no controller hears of.
  explicit DataPlane(World* world, Mutation mutation = Mutation::kNone,
                     std::function<void(const Group&)> unreported = {})
      : world_(world),
        mutation_(mutation),
        unreported_(std::move(unreported)),
        book_(world, mutation),
        current_(world->replicas.size(), 0),
        newest_(world->replicas.size()),
        fetches_(world->replicas.size()),
        averages_(world->replicas.size()),
        asks_(world->replicas.size()) {}

  // A record of a run has become durable.
  void Seen(RunId run, const ScheduleSet& set);
  void Seen(RunId run, const GroupFormed& formed);

  // The worker takes part in a group, with its replica as it is now where that is in the
  // background; `gain` is what the result then adds to the replica's iteration.
  void Begin(std::uint32_t worker, RunId run, const StartReduce& start, const Plan& plan);
  // Called off on this worker: no result follows there.
  void Cancel(std::uint32_t worker);
  // The worker's mesh is gone, or belongs to another incarnation now.
  void Gone(std::uint32_t worker);

  using Result = PlaneResult;
  // What the events kReduced, kReduceFails and kSilent say: who has which result now. Values are in
  // place.
  std::vector<Result> OnReduced(std::uint64_t serial);
  std::vector<Result> OnFails(std::uint32_t worker, std::uint64_t serial);
  std::vector<Result> OnSilent(std::uint32_t worker, std::uint64_t serial);

  // Asks the targets, at once and from time to time, until each has answered; instead of those
  // before. Asks are numbered: kProbe has the number.
  void Probe(std::uint32_t worker, const SharedList<GroupMember>& targets);
  // The event kProbe: who answers. They are asked no more.
  std::vector<GroupMember> OnProbe(std::uint32_t worker, std::uint64_t ask);

  // The source's replica, or the result of a kRound that it has.
  void Fetch(std::uint32_t worker, RunId run, const StartFetch& fetch, const Plan& plan);
  void CancelFetch(std::uint32_t worker) { ++fetches_[worker].ticket; }
  // The event kFetched; nullopt: void. `group`: whose result it was, or kNoGroup.
  std::optional<Result> OnFetched(std::uint32_t worker, std::uint64_t ticket);

  // What the worker copies from this source comes to nothing.
  void SourceOut(std::uint32_t worker, Incarnation source);

  // Session::Average: the worker's own replica, and a copy of each of these in turn.
  void BeginAverage(std::uint32_t worker, RunId run);
  void CopyForAverage(std::uint32_t worker, Incarnation source);
  void CancelAverage(std::uint32_t worker) { ++averages_[worker].ticket; }
  // The event kCopied: whether it is here; nullopt: void.
  std::optional<bool> OnCopied(std::uint32_t worker, std::uint64_t ticket);

  // The worker's gradient is added to its outbox.
  void Deposit(std::uint32_t worker);
  // Moves the inbox into the gradient; gives how many rounds that were, 0 if it was empty.
  std::int64_t TakeInbox(std::uint32_t worker, bool latest_only);

  // AveragesInBackground: adds the inbox to the parameters; gives of how many groups it was.
  std::int64_t AddInbox(std::uint32_t worker);

  std::uint64_t bytes() const { return bytes_; }
  const GradientBook& book() const { return book_; }

  // What the busiest link of a ring carries, in rows.
  static double RingRows(std::size_t members, std::size_t contributors);
  // The time of a ring among these workers, in ring order, to which some contribute.
  static DurationNs RingCost(const Workload& workload, const std::vector<std::uint32_t>& members,
                             std::size_t contributors);

 private:
  struct Reduction {
    std::uint64_t serial = 0;
    RunId run = kNoRun;
    Group group;
    std::vector<std::uint32_t> members;  // in ring order
    std::vector<Incarnation> incarnations;
    std::vector<std::uint32_t> arrived;
    std::map<std::uint32_t, Iteration> goes_on_at;  // by worker: DrawnAhead, each has its own
    std::size_t through = 0;                        // members for whom it is over
    Plan plan;
    bool broken = false;
    std::vector<std::uint32_t> gave_up;  // those of them without a result
    std::size_t Contributors() const;
    Reduced what;
    DurationNs took = 0;  // once all have arrived
    bool Overlaps() const { return what == Reduced{Payload::kParameters, Landing::kInbox}; }
    bool Unreported() const { return group.kind == GroupKind::kTrain && FollowsSchedule(plan); }
  };
  struct Sum {  // what comes of a reduction
    std::vector<double> values;
    std::uint64_t tag = 0;
    std::uint64_t state = 0;                   // kInitial
    std::shared_ptr<const RoundResult> round;  // kRound
  };
  struct Copy {
    RunId run = kNoRun;
    StartFetch what;
    bool from_base = false;  // the source's base is what counts
    std::uint64_t ticket = 0;
    Instant since;
    bool out = false;  // the source is
  };

  struct Average {
    RunId run = kNoRun;
    Incarnation source = 0;
    std::uint64_t ticket = 0;
    Instant since;
    bool out = false;               // the source is
    std::vector<std::uint32_t> of;  // whose replicas are in it
  };
  enum class Copied : std::uint8_t { kHere, kFails, kWaits };

  struct Ask {
    std::vector<GroupMember> targets;
    std::uint64_t number = 0;
  };
  struct Met {  // the newest group that a worker was in
    RunId run = kNoRun;
    Incarnation incarnation = 0;
    GroupId group = kNoGroup;
  };

  std::uint64_t Find(RunId run, const StartReduce& start, const Plan& plan);
  void CheckOrder(std::uint32_t worker, RunId run, const Group& group, const Plan& plan);
  void Break(std::uint64_t serial, std::uint32_t by);
  void FailSoon(std::uint32_t worker, std::uint64_t serial);
  Result Failed(std::uint32_t worker, std::uint64_t serial, bool asked);
  void Through(std::uint64_t serial);
  void Forget(const Reduction& reduction);
  // Whether two of a reduction's members send to each other; by places.
  static bool Linked(const Reduction& reduction, std::size_t a, std::size_t b);
  // When all links that the reduction needs are whole, and all its members run; now, if they are.
  Instant Clear(const Reduction& reduction) const;
  DurationNs Slowness(const Reduction& reduction) const;
  void CheckBefore(const Reduction& reduction) const;
  void CheckFinal(const Reduction& reduction) const;
  void CheckStart(const Reduction& reduction) const;
  bool CheckSwitched(const Reduction& reduction) const;
  Sum SumUp(const Reduction& reduction) const;
  std::vector<double> Mean(const Reduction& reduction) const;
  std::vector<std::uint64_t> GradientsOf(const Reduction& reduction) const;
  std::uint64_t SentBy(const Reduction& reduction, std::size_t member) const;
  // The member has the result. Gives how many gradients of its own are in it.
  std::uint32_t Commit(const Reduction& reduction, const Sum& sum, std::size_t member);
  void CommitModel(const Reduction& reduction, const Sum& sum, std::uint32_t worker);
  std::uint32_t Take(std::uint32_t worker, RunId run,
                     const std::shared_ptr<const RoundResult>& round, bool contributed);
  void CopyReplica(std::uint32_t worker, const Copy& copy);
  // How long a copy takes; and, once that is over, what becomes of it. Where it waits, the event
  // comes again.
  DurationNs CopyCost(std::uint32_t worker, Incarnation source);
  DurationNs Cost(const Reduction& reduction);
  Copied Look(std::uint32_t worker, Incarnation source, Instant since, const SimEvent& again);
  bool CopiesState() const;

  // Virtual replicas (data_plane_overlap.cc).
  void FillOutbox(std::uint32_t worker, Iteration gain);
  void CommitOverlap(const Sum& sum, double initial_weight, std::uint32_t worker);
  double Mass(const Reduction& reduction) const;
  void CheckMass(const Reduction& reduction, double before) const;

  World* world_;
  const Mutation mutation_;
  const std::function<void(const Group&)> unreported_;
  GradientBook book_;
  ScheduleBook schedules_;
  std::map<std::uint64_t, Reduction> reductions_;                             // by serial
  std::map<std::pair<RunId, GroupId>, std::vector<std::uint64_t>> by_group_;  // serials
  std::vector<std::uint64_t> current_;                                        // by worker; 0: none
  std::vector<Met> newest_;                                                   // by worker
  std::vector<Copy> fetches_;                                                 // by worker
  std::vector<Average> averages_;                                             // by worker
  std::map<std::pair<RunId, GroupId>, std::map<Rank, double>> finals_;        // as recorded
  std::vector<Ask> asks_;                                                     // by worker
  std::uint64_t next_serial_ = 1;
  std::uint64_t bytes_ = 0;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_DATA_PLANE_H_
