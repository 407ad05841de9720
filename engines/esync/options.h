// Options of the engine `esync` (Li et al., ESync: an efficient synchronous parallel algorithm for
// distributed ML in heterogeneous clusters).
#ifndef PRD_ENGINES_ESYNC_OPTIONS_H_
#define PRD_ENGINES_ESYNC_OPTIONS_H_

#include <cstdint>

#include "prd/status.h"

namespace prd {

struct EsyncOptions {
  // kBlocking: a worker waits for the answer to its query after each local iteration (section 4.1).
  // kDelayedAck: it trains on, and only READY is answered (section 4.2); for networks whose round
  // trip is long beside an iteration.
  enum class Mode : std::uint8_t { kBlocking, kDelayedAck };
  Mode mode = Mode::kBlocking;
  // Epsilon of Algorithm 2, line 9: how much earlier than the slowest worker another must be able
  // to end an iteration to begin it.
  std::int64_t margin_ms = 1;
  // Epsilon of Eq. 8: the share of the mean difference that is added, in (0, 10).
  double global_lr = 1;
  // A worker for which all others wait is taken out of the round when its last sign of life is
  // longer ago than this times its longest local iteration of late. 0 = never.
  std::int64_t stall_factor = 8;

  friend bool operator==(const EsyncOptions&, const EsyncOptions&) = default;
};

// Ok, or what is wrong: "KEY: found X, allowed is Y". workers = those the job starts with, 0 if not
// known.
Status Validate(const EsyncOptions& options, int workers);

}  // namespace prd

#endif  // PRD_ENGINES_ESYNC_OPTIONS_H_
