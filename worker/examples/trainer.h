// One worker of a data-parallel training, whatever is trained.
#ifndef PRD_WORKER_EXAMPLES_TRAINER_H_
#define PRD_WORKER_EXAMPLES_TRAINER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/examples/pace.h"
#include "worker/examples/train_args.h"

namespace example {

// A float32 array on its learner's device, which stays where it is for its owner's life.
struct Array {
  float* data = nullptr;
  std::size_t count = 0;
};

// What a pass learns from: these samples of a step's batch, as prd::BatchShare.
struct Pass {
  std::int64_t step = 0;
  std::int64_t first = 0;
  std::int64_t samples = 0;
  std::int64_t batch = 0;  // 0: the job has none; the pass takes --batch examples of the worker's
};

// A model and the data it learns from. One thread at a time.
class Learner {
 public:
  virtual ~Learner() = default;

  // As prd::Replica has them.
  virtual std::string Device() const { return "cpu"; }
  virtual void* Stream() const { return nullptr; }
  virtual std::vector<Array> Parameters() = 0;
  virtual std::vector<Array> Gradients() = 0;  // as Parameters
  // What Apply keeps from one step to the next, beside the parameters.
  virtual std::vector<Array> State() { return {}; }
  // All parameters in the host's memory. One whose arrays are elsewhere has its own.
  virtual std::vector<float> CopyParameters();
  // Which part of the data this worker learns from. Called once, before ComputeGradients. `batch`:
  // of a step of all workers, which may then learn from any example; 0: the job has none.
  virtual void TakePart(int rank, int workers, std::int64_t batch) = 0;
  // Whether a pass can have any number of samples.
  virtual bool TakesShares() const { return true; }
  // Fills the gradients with those of the next batch, or enqueues that on the stream, and gives its
  // loss, or where that would be to wait, the last one that is there (NaN before the first); or
  // nothing, with undefined gradients, soon after it finds itself interrupted.
  virtual std::optional<double> ComputeGradients(const Pass& pass,
                                                 const Interrupted& interrupted) = 0;
  // Changes the parameters by the gradients, or enqueues that on the stream.
  virtual void Apply(double learning_rate) = 0;
  // The loss on data that no worker learns from, where the program tells it at the end.
  virtual std::optional<double> ValidationLoss() { return std::nullopt; }
  // The share of right answers on such data, the same.
  virtual std::optional<double> TestAccuracy() { return std::nullopt; }
};

// Joins the job that the environment names, trains until the arguments or a signal say stop, and
// ends with the average of all replicas. Gives the exit code; what fails is told on stderr after
// the program's name. Throws std::runtime_error for files that cannot be written.
int RunTrainer(const char* program, const TrainArgs& args, Learner& learner);

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_TRAINER_H_
