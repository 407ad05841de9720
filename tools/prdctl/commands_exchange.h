// How `exchange.h` is shown: the parts of the commands for runs without groups that train.
#ifndef PRD_TOOLS_PRDCTL_COMMANDS_EXCHANGE_H_
#define PRD_TOOLS_PRDCTL_COMMANDS_EXCHANGE_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/prdctl/columns.h"
#include "tools/prdctl/commands.h"
#include "tools/prdctl/json.h"
#include "tools/prdctl/meters.h"
#include "tools/prdctl/present.h"

namespace prd::ctl {

// All records of the run.
Result<ExchangeMeter> MeasureExchange(HistorySource& source, const RunInfo& run);

// A worker of a run without groups that train.
struct ExchangeLine {
  const ExchangeMeter* meter;
  const ExchangeRow* worker;
};
// None of a rank that the records do not know.
std::optional<ExchangeLine> LineOf(const ExchangeMeter& meter, Rank rank);
// ExtraColumns its rank, state and iteration.
const std::vector<Column<ExchangeLine>>& ExchangeColumns();

// What the others do that a worker exchanges with, where that has to do with its going on.
std::vector<std::pair<Rank, std::string>> OthersOf(const ExchangeMeter& meter, Rank rank);

// `prdctl graph`, of neighbours or of shards.
Json GraphJson(const ExchangeMeter& meter);
std::string GraphDot(const ExchangeMeter& meter, const std::string& title);
void PrintGraph(const ExchangeMeter& meter, const Console& console);

// "0: 10%, 1: 90%": the share of steps with which the worker was let go on so far ahead. Of many
// values: "median 12, 90% up to 40, at most 770".
std::string Shares(const std::map<Iteration, std::uint64_t>& counts);

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_COMMANDS_EXCHANGE_H_
