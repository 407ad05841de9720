// How long a worker's steps last: one machine plays several unequal ones.
#ifndef PRD_WORKER_EXAMPLES_PACE_H_
#define PRD_WORKER_EXAMPLES_PACE_H_

#include <cstdint>
#include <functional>

#include "worker/examples/train_args.h"

namespace example {

// True when what is being done is to be cut short. Asked often.
using Interrupted = std::function<bool()>;

class Pace {
 public:
  Pace(const TrainArgs& args, int rank, int workers);

  // How long each step lasts without injected delays; 0 = as long as it does.
  std::int64_t step_ns() const { return step_ns_; }
  // When step number `step` (from 0), which began at begin_ns and had computed all by computed_ns,
  // is over: it lasts step_ns at least, and the delay comes on top.
  // A step of `samples` lasts as much longer or shorter than one of --batch examples.
  std::int64_t EndNs(std::int64_t step, std::int64_t begin_ns, std::int64_t computed_ns,
                     std::int64_t samples) const;

 private:
  const Injection injection_;
  const std::uint64_t seed_;
  const int rank_;
  const int workers_;
  const std::int64_t batch_;
  std::int64_t step_ns_ = 0;
};

// Waits until then (MonotonicNs), in short slices. False: interrupted before.
bool WaitUntil(std::int64_t monotonic_ns, const Interrupted& interrupted);

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_PACE_H_
