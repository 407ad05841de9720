// A small real objective, split over the workers, so that statistical efficiency is simulated too:
// every gradient is a real stochastic gradient at the parameters the worker really has.
//
//   quadratic  f_i(x) = 1/2 sum_j a_j (x_j - b_ij)^2, curvatures a_j from 0.1 to 1, gradients with
//              normal noise; `skew` spreads the shards' minima b_i apart
//   logistic   l2-regularised logistic regression over seeded examples of two classes; `skew` is
//              the share of the examples that are dealt out sorted by class
//
// A loss is that over all shards, above the least there is.
#ifndef PRD_TOOLS_SIM_OBJECTIVE_H_
#define PRD_TOOLS_SIM_OBJECTIVE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/prng.h"
#include "tools/sim/workload.h"

namespace prd::sim {

class Objective {
 public:
  virtual ~Objective() = default;
  // Where training starts; the same for all workers.
  virtual std::vector<double> Start() const = 0;
  // A stochastic gradient of the worker's shard at x. REQUIRES: gradient->size() == x.size().
  virtual void Gradient(std::uint32_t worker, std::span<const double> x, Prng* prng,
                        std::vector<double>* gradient) const = 0;
  virtual double Loss(std::span<const double> x) const = 0;
};

// Nothing is trained: a few numbers per worker, which each step changes, so that what averages do
// to models is seen.
std::unique_ptr<Objective> MakeToy(std::size_t numbers = 1);

// Null for Objective::kNone.
std::unique_ptr<Objective> MakeObjective(const TrainingPart& training, std::int64_t workers,
                                         std::uint64_t seed);

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_OBJECTIVE_H_
