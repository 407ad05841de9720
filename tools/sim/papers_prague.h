// Prague's experiment on heterogeneity, with the paper's figures beside ours (Luo et al., Prague:
// High-Performance Heterogeneity-Aware Asynchronous Decentralized Training, ASPLOS 2020): Figures
// 18 and 20 as told in sections 7.3 and 7.4, VGG-16 on CIFAR-10, 16 workers on 4 nodes, and one of
// them slowed down "by adding 2 or 5 times the normal iteration time of sleep every iteration".
//
// The paper's figures there are speedups in the time to a loss over a Parameter Server; what is
// compared is each way's share of its own homogeneous speed. How long a step and a reduction take
// is not told: with steps of 100 ms that vary by 5%, the sleep counted in steps, the reduction
// among 16 is chosen so that all-reduce's own share comes out as the paper's, and nothing else is
// fitted. Figures 21 and 22 tell images per second of two other models, homogeneous and with 5
// times.
#ifndef PRD_TOOLS_SIM_PAPERS_PRAGUE_H_
#define PRD_TOOLS_SIM_PAPERS_PRAGUE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/sim/report.h"

namespace prd::sim {

struct PaperTolerance {  // of one way to synchronise
  std::string method;
  // The paper's, 0 where it has none: overall speed in Figure 18 over all-reduce's; share of it
  // left with a sleep of 2; images per second left with 5 (Figures 21 and 22).
  double paper_speed = 0;
  double paper_twice = 0;
  std::array<double, 2> paper_five{};
  // Ours, homogeneous, with a sleep of 2, and of 5.
  std::array<double, 3> steps_per_s{};  // of all workers together
  std::array<double, 2> target_s{};     // of the first two, until the target loss; 0: not reached
  double groups_per_step = 0;           // homogeneous
  double conflicts_per_step = 0;        // groups that had to be serialised (section 3.1)
  std::string why;                      // where the share with 2 is below the paper's

  double Share(std::size_t setting) const {
    return steps_per_s[0] > 0 ? steps_per_s[setting] / steps_per_s[0] : 0;
  }
  double TargetShare() const { return target_s[1] > 0 ? target_s[0] / target_s[1] : 0; }
};

// all-reduce first.
std::vector<PaperTolerance> RunPraguePapers(std::uint64_t seed, std::int64_t updates);

std::string TextPraguePapers(const std::vector<PaperTolerance>& rows);
Json JsonPraguePapers(const std::vector<PaperTolerance>& rows);

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_PAPERS_PRAGUE_H_
