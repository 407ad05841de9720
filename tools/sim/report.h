// A run in words and numbers.
#ifndef PRD_TOOLS_SIM_REPORT_H_
#define PRD_TOOLS_SIM_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/sim/cluster.h"

namespace prd::sim {

using Json = nlohmann::ordered_json;

// Rows of cells as an aligned table; the first row is the title, numbers are on the right.
std::string Table(const std::vector<std::vector<std::string>>& rows);

// 3.14159 with two places after the point: "3.14".
std::string Fixed(double value, int places);
// "3.1 GB".
std::string Bytes(double bytes);

// `costed`: [reduce] says what reductions and copies take and move. Else how long anything waits
// and moves means nothing, and is not told.
std::string TextReport(const Workload& workload, const RunResult& run, bool costed);
Json JsonReport(const Workload& workload, const RunResult& run, bool costed);

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_REPORT_H_
