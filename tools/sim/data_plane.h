// Reductions among workers and copies of models, costed by bytes, bandwidth and latency, with the
// values they carry.
//
// A reduction begins when its last member has been told, takes the time of a ring (workload.h), and
// then every member has the result, but for those on whom it fails. A member that is called off or
// dies breaks it: the others notice within a few ms. A failed reduction changes nothing. What is
// reduced, and where results go, is as in worker/mesh/mesh.h.
//
//   replicas-agree  members of a group that reduces gradients, or differences to a common base,
//   have
//                   equal replicas before it
//   outbox          is not touched while a round runs that it is contributed to, and a contributor
//                   has one
//   inbox           is empty when models are averaged
// and those of gradient_book.h.
#ifndef PRD_TOOLS_SIM_DATA_PLANE_H_
#define PRD_TOOLS_SIM_DATA_PLANE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "tools/sim/gradient_book.h"
#include "tools/sim/mutation.h"
#include "tools/sim/world.h"
#include "worker/core/session_core.h"

namespace prd::sim {

class DataPlane {
 public:
  explicit DataPlane(World* world, Mutation mutation = Mutation::kNone)
      : world_(world),
        mutation_(mutation),
        book_(world, mutation),
        current_(world->replicas.size(), 0),
        fetches_(world->replicas.size()) {}

  // The worker takes part in a group.
  void Begin(std::uint32_t worker, RunId run, const Group& group, const Plan& plan);
  // Called off on this worker: no result follows there.
  void Cancel(std::uint32_t worker);
  // The worker's mesh is gone, or belongs to another incarnation now.
  void Gone(std::uint32_t worker);

  struct Result {
    std::uint32_t worker = 0;
    GroupId group = kNoGroup;
    bool ok = false;
    std::uint64_t bytes = 0;     // sent
    std::uint32_t included = 0;  // kRound: gradients of this worker's in the result
  };
  // What the events kReduced and kReduceFails say: who has which result now. Values are in place.
  std::vector<Result> OnReduced(std::uint64_t serial);
  std::vector<Result> OnFails(std::uint32_t worker, std::uint64_t serial);

  // The source's replica, or the result of a kRound that it has.
  void Fetch(std::uint32_t worker, RunId run, const StartFetch& fetch, Strategy strategy);
  void CancelFetch(std::uint32_t worker) { ++fetches_[worker].ticket; }
  // The event kFetched; nullopt: void. `group`: whose result it was, or kNoGroup.
  std::optional<Result> OnFetched(std::uint32_t worker, std::uint64_t ticket);

  // The worker's gradient is added to its outbox.
  void Deposit(std::uint32_t worker);
  // Moves the inbox into the gradient; gives how many rounds that were, 0 if it was empty.
  std::int64_t TakeInbox(std::uint32_t worker, bool latest_only);

  std::uint64_t bytes() const { return bytes_; }
  const GradientBook& book() const { return book_; }

  // Of a ring among these workers, in ring order, to which some contribute.
  static DurationNs RingCost(const Workload& workload, const std::vector<std::uint32_t>& members,
                             std::size_t contributors);

 private:
  struct Reduction {
    RunId run = kNoRun;
    Group group;
    std::vector<std::uint32_t> members;  // in ring order
    std::vector<Incarnation> incarnations;
    std::vector<std::uint32_t> arrived;
    std::size_t through = 0;  // members for whom it is over
    Plan plan;
    bool broken = false;
    std::size_t Contributors() const;
    bool Trains(Strategy strategy) const {
      return group.kind == GroupKind::kTrain && plan.strategy == strategy;
    }
  };
  struct Sum {  // what comes of a reduction
    std::vector<double> values;
    std::uint64_t tag = 0;
    std::shared_ptr<const RoundResult> round;  // kRound
  };
  struct Copy {
    RunId run = kNoRun;
    StartFetch what;
    Strategy strategy = Strategy::kAverageModels;
    std::uint64_t ticket = 0;
  };

  std::uint64_t Find(RunId run, const Group& group, const Plan& plan);
  void Break(std::uint64_t serial);
  void FailSoon(std::uint32_t worker, std::uint64_t serial);
  void Through(std::uint64_t serial);
  void CheckBefore(const Reduction& reduction) const;
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

  World* world_;
  const Mutation mutation_;
  GradientBook book_;
  std::map<std::uint64_t, Reduction> reductions_;                // by serial
  std::map<std::pair<RunId, GroupId>, std::uint64_t> by_group_;  // serials
  std::vector<std::uint64_t> current_;                           // by worker; 0: none
  std::vector<Copy> fetches_;                                    // by worker
  std::uint64_t next_serial_ = 1;
  std::uint64_t bytes_ = 0;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_DATA_PLANE_H_
