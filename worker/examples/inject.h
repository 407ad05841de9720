// Delays on top of the workers' own steps, as data: every worker works out the same ones from the
// same text and seed, and nothing is communicated.
#ifndef PRD_WORKER_EXAMPLES_INJECT_H_
#define PRD_WORKER_EXAMPLES_INJECT_H_

#include <cstdint>
#include <string>

namespace example {

// The two patterns of eager-SGD's experiments (Li et al., PPoPP 2020), and the random slowdown of
// Hop's (Luo et al., ASPLOS 2019).
struct Injection {
  enum class Kind {
    kNone,
    kOne,      // section 6.2.1: at every step one worker of all, drawn at random, waits max_ms
    kShifted,  // section 6.2.3: at every step all wait, linearly from min_ms to max_ms, and who
               // waits how long moves on by one worker after each step
    kRandom,   // Hop, section 7.3.1: each step of each worker lasts `factor` times as long, with a
               // probability
  };
  Kind kind = Kind::kNone;
  double min_ms = 0;
  double max_ms = 0;
  double factor = 1;
  double probability = 0;  // 0: one over the workers, as in the paper
};

// Fills *injection from "one:MS" or "shifted:MIN:MAX" (milliseconds, up to an hour, MIN <= MAX),
// "random:FACTOR" or "random:FACTOR:P" (FACTOR 1 to 1000, 0 < P <= 1) and gives "", or says what
// was found and what is allowed.
std::string ParseInjection(const std::string& text, Injection* injection);

// How long the worker is delayed in its step number `step`, counted from 0. With kOne, each worker
// looks at its own count, so that workers which are at different steps may be delayed at the same
// time, or none. A rank beyond the workers, of one that came later, is never drawn; with kShifted
// it waits as rank % workers does. step_ns: how long its steps last without, for kRandom.
// REQUIRES: rank >= 0, workers > 0, step >= 0.
std::int64_t DelayNs(const Injection& injection, std::uint64_t seed, int rank, int workers,
                     std::int64_t step, std::int64_t step_ns);

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_INJECT_H_
