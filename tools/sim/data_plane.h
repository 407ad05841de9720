// Reductions among workers and copies of models, costed by bytes, bandwidth and latency, with the
// values they carry.
//
// A reduction begins when its last member has been told, takes the time of a ring all-reduce
// (workload.h), and then every member has the result, but for those on whom it fails. A member that
// is called off or dies breaks it: the others notice within a few ms. A failed reduction changes
// nothing.
//
//   replicas-agree  members of a round of gradients have equal replicas before it
#ifndef PRD_TOOLS_SIM_DATA_PLANE_H_
#define PRD_TOOLS_SIM_DATA_PLANE_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "tools/sim/world.h"

namespace prd::sim {

class DataPlane {
 public:
  explicit DataPlane(World* world)
      : world_(world), current_(world->replicas.size(), 0), fetches_(world->replicas.size()) {}

  // The worker takes part in a group. `gradients`: what is reduced (Strategy::kReduceGradients).
  void Begin(std::uint32_t worker, RunId run, const Group& group, bool gradients);
  // Called off on this worker: no result follows there.
  void Cancel(std::uint32_t worker);
  // The worker's mesh is gone, or belongs to another incarnation now.
  void Gone(std::uint32_t worker);

  struct Result {
    std::uint32_t worker = 0;
    GroupId group = kNoGroup;
    bool ok = false;
    std::uint64_t bytes = 0;  // sent
  };
  // What the events kReduced and kReduceFails say: who has which result now. Values are in place.
  std::vector<Result> OnReduced(std::uint64_t serial);
  std::vector<Result> OnFails(std::uint32_t worker, std::uint64_t serial);

  void Fetch(std::uint32_t worker, Incarnation source);
  void CancelFetch(std::uint32_t worker) { ++fetches_[worker].ticket; }
  // The event kFetched: 0 = void, 1 = failed, 2 = the replica is copied.
  int OnFetched(std::uint32_t worker, std::uint64_t ticket);

  std::uint64_t bytes() const { return bytes_; }

  // Of a ring all-reduce among these workers, in ring order.
  static DurationNs RingCost(const Workload& workload, const std::vector<std::uint32_t>& members);

 private:
  struct Reduction {
    RunId run = kNoRun;
    Group group;
    std::vector<std::uint32_t> members;  // in ring order
    std::vector<Incarnation> incarnations;
    std::vector<std::uint32_t> arrived;
    std::size_t through = 0;  // members for whom it is over
    bool gradients = false;
    bool broken = false;
  };
  struct Copy {
    Incarnation source = 0;
    std::uint64_t ticket = 0;
  };

  std::uint64_t Find(RunId run, const Group& group, bool gradients);
  void Break(std::uint64_t serial);
  void FailSoon(std::uint32_t worker, std::uint64_t serial);
  void Through(std::uint64_t serial);
  void CheckAgreement(const Reduction& reduction) const;
  std::vector<double> Mean(const Reduction& reduction) const;
  void Commit(const Reduction& reduction, const std::vector<double>& mean, std::uint64_t tag,
              std::uint32_t worker);

  World* world_;
  std::map<std::uint64_t, Reduction> reductions_;                // by serial
  std::map<std::pair<RunId, GroupId>, std::uint64_t> by_group_;  // serials
  std::vector<std::uint64_t> current_;                           // by worker; 0: none
  std::vector<Copy> fetches_;                                    // by worker
  std::uint64_t next_serial_ = 1;
  std::uint64_t bytes_ = 0;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_DATA_PLANE_H_
