// The papers' experiments, with the papers' figures beside ours.
//
// Miao et al., Heterogeneity-Aware Distributed Machine Learning Training via Partial Reduce, SIGMOD
// 2021: Table 1 (per-update times), Figure 8 (the group size P), Figure 4 (rho). Of eager-SGD and
// ESync: papers_rounds.h; of Prague: papers_prague.h;
// of Hop and SSP: papers_exchange.h.
//
// What the paper does not say about its machines is calibrated from its all-reduce column alone:
// with HL of eight workers on one GPU that does the work of one, its two all-reduce times are
//   t(1) = step + reduce(8),   t(HL) = HL * step + reduce(8),
// which gives the step and the reduction; a reduction among n costs (n - 1) / n of the same. How
// much steps vary from one to the next is in neither: figures are given for steady steps (3%) and
// for steps that vary (20%), calibrated each by itself.
#ifndef PRD_TOOLS_SIM_PAPERS_H_
#define PRD_TOOLS_SIM_PAPERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/sim/papers_exchange.h"
#include "tools/sim/papers_prague.h"
#include "tools/sim/papers_rounds.h"
#include "tools/sim/report.h"

namespace prd::sim {

// One cell of Table 1: a method's per-update time over all-reduce's.
struct PaperRatio {
  std::string model;
  int level = 1;  // HL
  std::string method;
  double paper = 0;
  double steady = 0;  // ours, with steps that hardly vary
  double ours = 0;    // with steps that do
  std::string why;    // where either differs by more than 20%
};

struct PaperGroupSize {  // a point of Figure 8
  int group_size = 0;
  double update_s = 0;  // per update
  double updates = 0;   // until the target loss
  double run_time_s = 0;
};

struct PaperRho {  // Figure 4
  std::string setting;
  double paper = 0;
  double ours = 0;
  std::string why;
};

struct Papers {
  std::vector<PaperRatio> table1;
  std::vector<PaperGroupSize> figure8;
  std::vector<PaperRho> figure4;
  RoundPapers rounds;
  std::vector<PaperTolerance> tolerance;
  ExchangePapers exchange;
};

// `updates` per run: more are more exact.
Papers RunPapers(std::uint64_t seed, std::int64_t updates);

std::string TextPapers(const Papers& papers);
Json JsonPapers(const Papers& papers);

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_PAPERS_H_
