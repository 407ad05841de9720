// What workers keep beside their parameters, in the model's data plane: what they owe to rounds,
// what rounds have given them, and averages that are made while their training loops compute
// (AveragesInBackground).
//
// Laws of it are those of gradient_book.h.
#ifndef PRD_TOOLS_SIM_REPLICA_BOXES_H_
#define PRD_TOOLS_SIM_REPLICA_BOXES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tools/sim/gradient_book.h"
#include "tools/sim/mutation.h"
#include "tools/sim/world.h"

namespace prd::sim {

class ReplicaBoxes {
 public:
  explicit ReplicaBoxes(World* world, Mutation mutation = Mutation::kNone)
      : world_(world), mutation_(mutation), book_(world, mutation) {}

  // The worker's process, incarnation or replica is another one.
  void Empty(std::uint32_t worker);

  // The worker's gradient is added to its outbox.
  void Deposit(std::uint32_t worker);
  // The result of a round goes into its inbox. Gives how many gradients of its own are in it.
  std::uint32_t Take(std::uint32_t worker, RunId run,
                     const std::shared_ptr<const RoundResult>& round, bool contributed);
  // Moves the inbox into the gradient; gives how many rounds that were, 0 if it was empty.
  std::int64_t TakeInbox(std::uint32_t worker, bool latest_only);

  // A group begins on the virtual replica: the parameters with what earlier groups have changed.
  // `gain` is what its result adds to the replica's iteration.
  void FillOutbox(std::uint32_t worker, Iteration gain);
  // The result of that group, and its tag; the initial parameters count `initial_weight` in it.
  void Average(std::uint32_t worker, const std::vector<double>& sum, std::uint64_t tag,
               double initial_weight);
  // Adds the inbox to the parameters; gives of how many groups it was.
  std::int64_t AddInbox(std::uint32_t worker);

  // What is kept beside a replica's parameters (Replica::state) is copied with them.
  bool copies_state() const {
    return world_->workload.faults.state_not_told == 0 && mutation_ != Mutation::kStateNotCopied;
  }
  GradientBook& book() { return book_; }
  const GradientBook& book() const { return book_; }

 private:
  World* world_;
  const Mutation mutation_;
  GradientBook book_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_REPLICA_BOXES_H_
