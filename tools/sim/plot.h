// Pictures (SVG) of a run, drawn by gnuplot, which must be installed.
#ifndef PRD_TOOLS_SIM_PLOT_H_
#define PRD_TOOLS_SIM_PLOT_H_

#include <string>
#include <utility>
#include <vector>

#include "prd/status.h"
#include "tools/sim/stats.h"

namespace prd::sim {

// Computing, waiting and reducing of each worker over time, up to to_s seconds (0: all there is).
Status PlotTimeline(const std::string& path, const std::string& title,
                    const std::vector<Slice>& slices, std::size_t workers, double to_s);

// Loss over time, a line per name.
Status PlotLoss(const std::string& path, const std::string& title,
                const std::vector<std::pair<std::string, std::vector<LossPoint>>>& curves);

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_PLOT_H_
