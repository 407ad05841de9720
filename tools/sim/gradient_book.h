// Where every gradient is (TrainsInRounds): each has a number from its deposit on, and a
// round's result is the set of those that it contains.
//
//   gradients-once   a gradient is in one round, or was lost with its worker, or is still owed; in
//                    none twice, and none vanishes
//   rounds-agree     of a round there is one result, and all whom the run counts on have that one,
//                    on top of the same rounds before it
//   rounds-in-order  a worker takes each round once, in order
//
// The run does not count on an incarnation that the controller has removed. Such a worker may take
// a round all the same: it stood still, or was cut off, and finds the group's announcement when it
// is back. Others may have that round from another group by then. Its gradients are lost with it,
// and its result is none of the run's: it comes back with another incarnation, and copies a
// replica or takes part in a common start. So before its removal, so after it.
#ifndef PRD_TOOLS_SIM_GRADIENT_BOOK_H_
#define PRD_TOOLS_SIM_GRADIENT_BOOK_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "tools/sim/mutation.h"
#include "tools/sim/world.h"

namespace prd::sim {

class GradientBook {
 public:
  GradientBook(World* world, Mutation mutation) : world_(world), mutation_(mutation) {}

  // A gradient that the worker owes now.
  std::uint64_t Deposit(std::uint32_t worker);
  // The worker's outbox is emptied because its process, incarnation or replica is another one.
  void Lost(std::uint32_t worker);
  // The worker has the result of a round, to which it gave its outbox or nothing. Empties the
  // outbox in the former case. Throws Violation. Gives the number of its own gradients in it.
  std::uint32_t Took(std::uint32_t worker, RunId run, const RoundResult& result, bool contributed);
  // A common start: what rounds there were is forgotten.
  void Started(RunId run, Iteration iteration);
  // At the end of a run. Throws Violation.
  void CheckEnd() const;

  std::uint64_t deposited() const { return gradients_.size(); }
  std::uint64_t lost() const { return lost_; }

 private:
  struct Gradient {
    std::uint32_t worker = 0;
    bool lost = false;
    RunId run = kNoRun;  // of the round it is in
    Iteration round = 0;
    GroupId group = kNoGroup;  // kNoGroup: in none
  };
  struct Round {
    GroupId group = kNoGroup;
    std::uint64_t number = 0;  // of the reduction
    std::uint64_t before = 0;  // lineage of those who take it
    std::vector<std::uint64_t> gradients;
    std::vector<std::uint32_t> takers;
  };

  Gradient& At(std::uint64_t number) { return gradients_[number - 1]; }
  // The same result, where it is in the books.
  Round* Find(RunId run, const RoundResult& result);
  // Into the books, if it is not there; all who had another one must be gone.
  Round& Enter(RunId run, const RoundResult& result, std::uint64_t before);
  void Undo(RunId run, Iteration number, const Round& round);

  World* world_;
  const Mutation mutation_;
  std::vector<Gradient> gradients_;  // by number - 1
  std::map<std::pair<RunId, Iteration>, Round> rounds_;
  std::uint64_t lost_ = 0;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_GRADIENT_BOOK_H_
