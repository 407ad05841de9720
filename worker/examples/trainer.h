// One worker of a data-parallel training, whatever is trained.
#ifndef PRD_WORKER_EXAMPLES_TRAINER_H_
#define PRD_WORKER_EXAMPLES_TRAINER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/examples/pace.h"
#include "worker/examples/train_args.h"

namespace example {

// A float32 array that stays where it is for its owner's life.
struct Array {
  float* data = nullptr;
  std::size_t count = 0;
};

// A model and the data it learns from. One thread at a time.
class Learner {
 public:
  virtual ~Learner() = default;

  virtual std::vector<Array> Parameters() = 0;
  virtual std::vector<Array> Gradients() = 0;  // as Parameters
  // Which part of the data this worker learns from. Called once, before ComputeGradients.
  virtual void TakePart(int rank, int workers) = 0;
  // Fills the gradients with those of the next batch and gives its loss; or nothing, with undefined
  // gradients, soon after it finds itself interrupted.
  virtual std::optional<double> ComputeGradients(const Interrupted& interrupted) = 0;
  // Changes the parameters by the gradients.
  virtual void Apply(double learning_rate) = 0;
  // The loss on data that no worker learns from, where the program tells it at the end.
  virtual std::optional<double> ValidationLoss() { return std::nullopt; }
};

// Joins the job that the environment names, trains until the arguments or a signal say stop, and
// ends with the average of all replicas. Gives the exit code; what fails is told on stderr after
// the program's name. Throws std::runtime_error for files that cannot be written.
int RunTrainer(const char* program, const TrainArgs& args, Learner& learner);

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_TRAINER_H_
