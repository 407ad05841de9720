// Options of the engine `hop` (Luo et al., Hop: Heterogeneity-aware Decentralized Training, ASPLOS
// 2019).
#ifndef PRD_ENGINES_HOP_OPTIONS_H_
#define PRD_ENGINES_HOP_OPTIONS_H_

#include <cstdint>
#include <string_view>

#include "engines/graph.h"
#include "prd/status.h"

namespace prd {

struct HopOptions {
  // Who sends updates to whom. Weights are doubly stochastic: 1 / (1 + the larger degree of the
  // two), which on regular graphs is the paper's Equation 1; and for a directed list Equation 1
  // itself.
  Graph graph{.kind = Graph::Kind::kRingBased, .edges = {}};
  // The edges of a list lead from the first rank to the second, and not back. Else they lead both
  // ways.
  bool directed = false;
  // hierarchical: workers of this many successive ranks count as on one host; 0: those whose host
  // is the same.
  int workers_per_host = 0;
  // max_ig (section 4.2): how many iterations a worker may be ahead of one that gets its updates;
  // each has so many tokens at the start. 0: no token queues, allowed without backups. 2, with
  // neither backups nor staleness, is notify-ack (section 3.3).
  int max_iteration_gap = 5;
  // N_buw (section 4.3): of the neighbours' updates, so many need not be there.
  int backups = 0;
  // s (section 4.4): an update may be this many iterations old.
  int staleness = 0;
  // Section 5: a worker that is behind all who get its updates by at least skip_behind iterations
  // skips iterations, at most max_jump at once, and never beyond them. 0: none skips. Needs token
  // queues.
  int max_jump = 0;
  int skip_behind = 2;
  // Figure 2: what comes first, the average with the neighbours or the gradient.
  enum class Order : std::uint8_t { kParallel, kSerial };
  Order order = Order::kParallel;

  friend bool operator==(const HopOptions&, const HopOptions&) = default;
};

std::string_view ToText(HopOptions::Order order);  // "parallel", "serial"

// Ok, or "KEY: found X, allowed is Y". `workers` that the job starts with, 0 = not known.
Status Validate(const HopOptions& options, int workers);

}  // namespace prd

#endif  // PRD_ENGINES_HOP_OPTIONS_H_
