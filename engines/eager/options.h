// Options of the engine `eager` (eager-SGD: Li et al., PPoPP 2020).
#ifndef PRD_ENGINES_EAGER_OPTIONS_H_
#define PRD_ENGINES_EAGER_OPTIONS_H_

#include <cstdint>

#include "prd/status.h"

namespace prd {

struct EagerOptions {
  // Values of quorum that have a name. Any other is a number of workers.
  static constexpr std::int64_t kMajority = 0;
  static constexpr std::int64_t kSolo = 1;
  // What happens to results of rounds that a worker has missed (section 5): kSum: it applies all of
  // them, so that every gradient moves every replica; kLatest: the newest alone, as in the paper's
  // receive buffer, where a later result overwrites an earlier one. Simulated
  // (tests/sim/workloads/training.toml, one of eight workers 5 times slower, 5 seeds), time to the
  // target loss: solo 19.4 s with kSum and 24.2 s with kLatest, majority 33.9 s and 38.0 s.
  enum class Missed : std::uint8_t { kSum, kLatest };

  // Who starts a round. kSolo (section 4.1): the first worker to arrive. kMajority (section 4.2): a
  // worker drawn for each round; half of the workers have arrived before it on average. A number Q:
  // the Qth worker to arrive; more than the joined workers counts as all of them.
  std::int64_t quorum = kMajority;
  std::int64_t seed = 1;  // of the draws, >= 0
  // tau of Lemma 5.1 (4): rounds in a row that may succeed without a gradient of a worker; the next
  // round waits for one. 0 = no bound. Theorem 5.2 needs one, and the rounds to convergence grow
  // with it; one far below (the slowest worker's step / a round) lets the slowest set the pace.
  std::int64_t max_stale_rounds = 16;
  // Rounds after which the models of all workers are averaged (section 5: "we periodically
  // synchronize the models across all processes"). 0 = never.
  std::int64_t sync_every = 500;
  Missed missed = Missed::kSum;

  friend bool operator==(const EagerOptions&, const EagerOptions&) = default;
};

// Ok, or what is wrong: "KEY: found X, allowed is Y". workers = those the job starts with, 0 if not
// known.
Status Validate(const EagerOptions& options, int workers);

}  // namespace prd

#endif  // PRD_ENGINES_EAGER_OPTIONS_H_
