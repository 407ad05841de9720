// The papers' experiments, with the papers' figures beside ours: a file for each paper, which says
// what its experiments are and what of them is calibrated or chosen.
#ifndef PRD_TOOLS_SIM_PAPERS_PAPERS_H_
#define PRD_TOOLS_SIM_PAPERS_PAPERS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/sim/report.h"

namespace prd::sim {

// One figure of ours, beside the paper's where the paper has that in numbers.
struct PaperRow {
  std::string engine;  // the paper's
  std::string figure;  // where it stands in the paper
  std::string setting;
  std::string unit;                  // what is told of the setting
  std::optional<double> paper = {};  // none: the paper has no number for it
  std::optional<double> ours = {};   // none: there is none, as of a target that was not reached
  std::string why = {};              // the two differ
  int digits = 2;                    // after the point
};

// The rows of one engine and figure: a table of settings by units.
struct Paper {
  std::string about;  // what was done, and what the paper says of it
  std::vector<PaperRow> rows;
  std::string notes = {};
  bool compared = true;  // how far ours is off the paper's is told
};

// `updates` per run: more are more exact.
std::vector<Paper> RunPapers(std::uint64_t seed, std::int64_t updates);

// Its parts.
std::vector<Paper> PartialReducePapers(std::uint64_t seed, std::int64_t updates);
std::vector<Paper> EagerPapers(std::uint64_t seed, std::int64_t updates);
std::vector<Paper> EsyncPapers(std::uint64_t seed, std::int64_t updates);
std::vector<Paper> PraguePapers(std::uint64_t seed, std::int64_t updates);
std::vector<Paper> HopPapers(std::uint64_t seed, std::int64_t updates);
std::vector<Paper> SspPapers(std::uint64_t seed, std::int64_t updates);

std::string TextPapers(const std::vector<Paper>& papers);
Json JsonPapers(const std::vector<Paper>& papers);  // all rows

// ---- what papers share ----

// Seconds until the workload's target loss; none: it was not reached.
std::optional<double> SecondsToTarget(const Workload& workload, std::uint64_t seed);
// Per worker, without the first one, which may be slowed down for good.
double StepsPerSecond(const RunResult& run);
// a / b; none where either is none or 0.
std::optional<double> Over(std::optional<double> a, std::optional<double> b);

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_PAPERS_PAPERS_H_
