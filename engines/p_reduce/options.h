// Options of the engine `p-reduce` (Miao et al., SIGMOD 2021).
#ifndef PRD_ENGINES_P_REDUCE_OPTIONS_H_
#define PRD_ENGINES_P_REDUCE_OPTIONS_H_

#include <cstdint>

#include "prd/status.h"

namespace prd {

struct PReduceOptions {
  // Section 3.1 (constant: 1/P each) and 3.3 (dynamic: Eq. 9 over relative iterations).
  enum class Weights : std::uint8_t { kConstant, kDynamic };
  // Section 3.3.3: which model stands for a relative iteration that no member is at, and so who
  // gets its share of Eq. 9. kInitial: the initial model, whose share is then missing from the sum
  // (see p_reduce.h); kNearest: the member whose iteration is nearest; kRenormalize: nobody, the
  // shares present are scaled to sum to 1.
  enum class Missing : std::uint8_t { kInitial, kNearest, kRenormalize };

  int group_size = 3;  // P, >= 2
  Weights weights = Weights::kDynamic;
  double alpha = 0.5;  // the decay of Eq. 9, in [0, 1)
  Missing missing = Missing::kNearest;
  // T: groups over which the sync-graph must be connected (section 4), >= ceil((N-1)/(P-1)). When
  // more workers have joined than that allows for, ceil((N-1)/(P-1)) is used.
  // 0 = max(4, ceil(ln N)) times ceil((N-1)/(P-1)) for the N live workers. With T at the minimum a
  // healthy sync-graph is hardly ever connected, as its links would have to be a tree, and the
  // filter is busy with splits that heal by themselves; with a much larger T a frozen pair stays
  // frozen for longer. Windows found split, and updates per second beside plain FIFO, with steps
  // that vary by +-20%, P = 3, T at 1x, 2x and 4x the minimum:
  //   8 workers, one 5x slower:    100 of 4500, 0 of 2250, 0 of 1122;    1.000, 1.000, 1.000
  //   16 workers, one 5x slower:   2126 of 2250, 209 of 1122, 0 of 558;  0.995, 0.997, 1.000
  //   64 workers, eight 5x slower: 551 of 558, 0 of 276, 0 of 138;       0.997, 1.000, 1.000
  // ln N is what random groups need to reach every worker as N grows (coupon collector).
  int history_window = 0;
  // A queue that has waited this long is closed as a smaller group of at least two. 0 = off.
  std::int64_t max_wait_ms = 0;
  // A worker trains on while its signal stands and its group reduces, and adds what that changed
  // (average - what it gave) at its next step boundary. Who is in which group, and with which
  // weights, does not change.
  bool overlap = false;
  // With overlap: steps that a worker may complete beyond the one that its signal stands for, >= 1.
  // 1 is enough while a reduction is shorter than a step; from there on the worker waits for it. 2
  // costs a few groups when it is not, as a worker that goes on comes later to the next one.
  // Sketched in virtual time, 8 workers, one 5x slower, P = 3, steps that vary by +-20%: share of
  // all the steps that there is time for (and of the groups that these would fill), by how long a
  // reduction takes:
  //   overlap_steps         none (blocking)  1            2            4 and more
  //   0.1 of a fast step:   0.77 (0.77)      1.00 (1.00)  1.00 (1.00)  1.00 (1.00)
  //   0.5 of a fast step:   0.57 (0.57)      0.99 (0.99)  1.00 (0.93)  1.00 (0.93)
  //   1.5 of a fast step:   0.34 (0.34)      0.56 (0.56)  0.97 (0.50)  1.00 (0.44)
  int overlap_steps = 2;

  friend bool operator==(const PReduceOptions&, const PReduceOptions&) = default;
};

// Ok, or what is wrong: "KEY: found X, allowed is Y". workers = those the job starts with, 0 if not
// known.
Status Validate(const PReduceOptions& options, int workers);

}  // namespace prd

#endif  // PRD_ENGINES_P_REDUCE_OPTIONS_H_
