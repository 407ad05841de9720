// Reductions among workers, costed by bytes, bandwidth and latency, with the values they carry.
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
//   outbox          is not touched while a round runs that it is contributed to
//   one-reduction   a worker is in one reduction at a time
//   group-order     a worker meets its groups in ascending order of ids, and so do all that it
//                   shares two with
//   same-group      all members have been told of the same group
// and those of reduction_laws.h, gradient_book.h and schedule_book.h.
#ifndef PRD_TOOLS_SIM_DATA_PLANE_H_
#define PRD_TOOLS_SIM_DATA_PLANE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "tools/sim/mutation.h"
#include "tools/sim/plane.h"
#include "tools/sim/reduction.h"
#include "tools/sim/reduction_laws.h"
#include "tools/sim/replica_boxes.h"
#include "tools/sim/schedule_book.h"
#include "tools/sim/world.h"
#include "worker/core/session_core.h"

namespace prd::sim {

class DataPlane {
 public:
  // `unreported` is called for each group that succeeded of those that no controller hears of.
  DataPlane(World* world, ReplicaBoxes* boxes, Mutation mutation = Mutation::kNone,
            std::function<void(const Group&)> unreported = {})
      : world_(world),
        boxes_(boxes),
        mutation_(mutation),
        unreported_(std::move(unreported)),
        laws_(world),
        current_(world->replicas.size(), 0),
        newest_(world->replicas.size()) {}

  // A record of a run has become durable.
  void Seen(RunId run, const ScheduleSet& set);
  void Seen(RunId run, const GroupFormed& formed) { laws_.Seen(run, formed); }

  // The worker takes part in a group, with its replica as it is now where that is in the
  // background; `gain` is what the result then adds to the replica's iteration.
  void Begin(std::uint32_t worker, RunId run, const StartReduce& start, const Plan& plan);
  // Called off on this worker: no result follows there.
  void Cancel(std::uint32_t worker);
  // The worker's mesh is gone, or belongs to another incarnation now.
  void Gone(std::uint32_t worker);

  // What the events kReduced, kReduceFails and kSilent say: who has which result now. Values are in
  // place.
  std::vector<PlaneResult> OnReduced(std::uint64_t serial);
  std::vector<PlaneResult> OnFails(std::uint32_t worker, std::uint64_t serial);
  std::vector<PlaneResult> OnSilent(std::uint32_t worker, std::uint64_t serial);

  // The worker's gradient is added to its outbox.
  void Deposit(std::uint32_t worker);

  std::uint64_t bytes() const { return bytes_; }

  // What the busiest link of a ring carries, in rows.
  static double RingRows(std::size_t members, std::size_t contributors);
  // The time of a ring among these workers, in ring order, to which some contribute.
  static DurationNs RingCost(const Workload& workload, const std::vector<std::uint32_t>& members,
                             std::size_t contributors);

 private:
  struct Sum {  // what comes of a reduction
    std::vector<double> values;
    std::uint64_t tag = 0;
    std::uint64_t state = 0;                   // kInitial
    std::shared_ptr<const RoundResult> round;  // kRound
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
  PlaneResult Failed(std::uint32_t worker, std::uint64_t serial, bool asked);
  void Through(std::uint64_t serial);
  void Forget(const Reduction& reduction);
  // When all links that the reduction needs are whole, and all its members run; now, if they are.
  Instant Clear(const Reduction& reduction) const;
  DurationNs Slowness(const Reduction& reduction) const;
  Sum SumUp(const Reduction& reduction) const;
  std::vector<double> Mean(const Reduction& reduction) const;
  std::vector<std::uint64_t> GradientsOf(const Reduction& reduction) const;
  std::uint64_t SentBy(const Reduction& reduction, std::size_t member) const;
  // The member has the result. Gives how many gradients of its own are in it.
  std::uint32_t Commit(const Reduction& reduction, const Sum& sum, std::size_t member);
  void CommitModel(const Reduction& reduction, const Sum& sum, std::uint32_t worker);
  DurationNs Cost(const Reduction& reduction);

  World* world_;
  ReplicaBoxes* boxes_;
  const Mutation mutation_;
  const std::function<void(const Group&)> unreported_;
  ReductionLaws laws_;
  ScheduleBook schedules_;
  std::map<std::uint64_t, Reduction> reductions_;                             // by serial
  std::map<std::pair<RunId, GroupId>, std::vector<std::uint64_t>> by_group_;  // serials
  std::vector<std::uint64_t> current_;                                        // by worker; 0: none
  std::vector<Met> newest_;                                                   // by worker
  std::uint64_t next_serial_ = 1;
  std::uint64_t bytes_ = 0;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_DATA_PLANE_H_
