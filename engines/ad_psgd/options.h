// Options of the engine `ad-psgd` (Lian et al., Asynchronous Decentralized Parallel Stochastic
// Gradient Descent, ICML 2018).
#ifndef PRD_ENGINES_AD_PSGD_OPTIONS_H_
#define PRD_ENGINES_AD_PSGD_OPTIONS_H_

#include <cstdint>

#include "engines/graph.h"
#include "prd/status.h"

namespace prd {

struct AdPsgdOptions {
  // Who may be averaged with whom. Models mix after of the order of one average per worker on a
  // complete graph, and N^2 per worker on a ring of N (Boyd et al., Randomized Gossip Algorithms,
  // 2006); a sparse graph keeps traffic between near workers, and pairs that share a worker, of
  // which one waits for the other, are as frequent on either.
  Graph graph{.kind = Graph::Kind::kComplete, .edges = {}};
  // Every how many steps a worker asks for an average, >= 1. With a larger one less time is spent
  // on averages and more steps are needed (Prague, section 7.2 and Figure 17).
  std::int64_t section_length = 1;
  // A worker trains on while the average that it asked for is not through.
  bool overlap = false;
  // With overlap: steps that it may complete meanwhile, >= 1. 2 rides out a pair that has to wait
  // for another one as long as both take less than a step each.
  int overlap_steps = 2;
  std::int64_t seed = 1;  // of the draws, >= 0

  friend bool operator==(const AdPsgdOptions&, const AdPsgdOptions&) = default;
};

// Ok, or what is wrong: "KEY: found X, allowed is Y". workers = those the job starts with, 0 if not
// known.
Status Validate(const AdPsgdOptions& options, int workers);

}  // namespace prd

#endif  // PRD_ENGINES_AD_PSGD_OPTIONS_H_
