// Options of the engine `all-reduce`.
#ifndef PRD_ENGINES_ALL_REDUCE_OPTIONS_H_
#define PRD_ENGINES_ALL_REDUCE_OPTIONS_H_

#include <cstdint>

#include "prd/status.h"

namespace prd {

struct AllReduceOptions {
  // How gradients are weighted: kUniform 1/N each; kSamples in proportion to the samples of each
  // worker's batch, which is the gradient of the mean over all samples. Equal when batches are
  // equal; a round in which any member told no samples is uniform.
  enum class Weights : std::uint8_t { kUniform, kSamples };
  Weights weights = Weights::kSamples;

  friend bool operator==(const AllReduceOptions&, const AllReduceOptions&) = default;
};

// Ok, or what is wrong: "KEY: found X, allowed is Y". workers = those the job starts with, 0 if not
// known.
Status Validate(const AllReduceOptions& options, int workers);

}  // namespace prd

#endif  // PRD_ENGINES_ALL_REDUCE_OPTIONS_H_
