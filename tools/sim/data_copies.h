// Copies in the model's data plane: of replicas and of results of rounds, and of replicas that a
// worker averages in its own time (Session::Average).
//
// A copy takes as long as its bytes do. It fails when its source dies, or is out for the
// controller, and by fault. While the source is there and does not answer, its copier waits for a
// lease.
//
//   average   what a worker averages in its own time are replicas of its run, each member's once
//             and its own
#ifndef PRD_TOOLS_SIM_DATA_COPIES_H_
#define PRD_TOOLS_SIM_DATA_COPIES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/messages.h"
#include "tools/sim/mutation.h"
#include "tools/sim/plane.h"
#include "tools/sim/replica_boxes.h"
#include "tools/sim/world.h"
#include "worker/core/actions.h"

namespace prd::sim {

class DataCopies {
 public:
  DataCopies(World* world, ReplicaBoxes* boxes, Mutation mutation = Mutation::kNone)
      : world_(world),
        boxes_(boxes),
        mutation_(mutation),
        fetches_(world->replicas.size()),
        averages_(world->replicas.size()) {}

  // The source's replica, or the result of a kRound that it has.
  void Fetch(std::uint32_t worker, RunId run, const StartFetch& fetch, const Plan& plan);
  void CancelFetch(std::uint32_t worker) { ++fetches_[worker].ticket; }
  // The event kFetched; nullopt: void. `group`: whose result it was, or kNoGroup.
  std::optional<PlaneResult> OnFetched(std::uint32_t worker, std::uint64_t ticket);

  // Session::Average: the worker's own replica, and a copy of each of these in turn.
  void BeginAverage(std::uint32_t worker, RunId run);
  void CopyForAverage(std::uint32_t worker, Incarnation source);
  void CancelAverage(std::uint32_t worker) { ++averages_[worker].ticket; }
  // The event kCopied: whether it is here; nullopt: void.
  std::optional<bool> OnCopied(std::uint32_t worker, std::uint64_t ticket);

  // What the worker copies from this source comes to nothing.
  void SourceOut(std::uint32_t worker, Incarnation source);
  // The worker's mesh is gone, or belongs to another incarnation now.
  void Gone(std::uint32_t worker) {
    CancelFetch(worker);
    CancelAverage(worker);
  }

  std::uint64_t bytes() const { return bytes_; }

 private:
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

  // How long a copy takes; and, once that is over, what becomes of it. Where it waits, the event
  // comes again.
  DurationNs CopyCost(std::uint32_t worker, Incarnation source);
  Copied Look(std::uint32_t worker, Incarnation source, Instant since, const SimEvent& again);
  void CopyReplica(std::uint32_t worker, const Copy& copy);

  World* world_;
  ReplicaBoxes* boxes_;
  const Mutation mutation_;
  std::vector<Copy> fetches_;      // by worker
  std::vector<Average> averages_;  // by worker
  std::uint64_t bytes_ = 0;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_DATA_COPIES_H_
