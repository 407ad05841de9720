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
  // T: groups over which the sync-graph must be connected (section 4), >= ceil((N-1)/(P-1)).
  // 0 = chosen from the number of live workers.
  int history_window = 0;
  // A queue that has waited this long is closed as a smaller group of at least two. 0 = off.
  std::int64_t max_wait_ms = 0;

  friend bool operator==(const PReduceOptions&, const PReduceOptions&) = default;
};

// Ok, or what is wrong: "KEY: found X, allowed is Y". workers = those the job starts with, 0 if not
// known.
Status Validate(const PReduceOptions& options, int workers);

}  // namespace prd

#endif  // PRD_ENGINES_P_REDUCE_OPTIONS_H_
