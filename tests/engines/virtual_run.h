// Drives a real engine in virtual time, with free and instant communication: the counterpart of
// tools/reference/fifo_reference.h.
#ifndef PRD_TESTS_ENGINES_VIRTUAL_RUN_H_
#define PRD_TESTS_ENGINES_VIRTUAL_RUN_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "engines/engine.h"
#include "tools/reference/fifo_reference.h"

namespace prd {

struct VirtualRun {
  double updates_per_s = 0;        // as FifoUpdatesPerSecond counts
  std::int64_t bridges = 0;        // groups whose reason says that they bridge
  std::int64_t split_windows = 0;  // of `window` groups in a row, links not all connected
  std::int64_t left_split = 0;     // of these, those not connected either with the next window's
  std::int64_t windows = 0;
};

// `updates` groups after as many to settle. Every group is passed to `seen`, if given. Windows are
// counted over the groups measured.
VirtualRun RunEngine(Engine* engine, const StepTimes& times, std::int64_t updates,
                     std::int64_t window,
                     const std::function<void(Instant, const GroupFormed&)>& seen = nullptr);

// True if these groups' links connect all workers that are in any of them.
bool Connected(const std::vector<std::vector<Rank>>& groups);

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_VIRTUAL_RUN_H_
