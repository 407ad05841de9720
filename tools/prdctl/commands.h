// What prdctl's commands do, apart from the command line: read, compute, print.
#ifndef PRD_TOOLS_PRDCTL_COMMANDS_H_
#define PRD_TOOLS_PRDCTL_COMMANDS_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <ostream>
#include <string>

#include "prd/status.h"
#include "tools/prdctl/meters.h"
#include "tools/prdctl/source.h"

namespace prd::ctl {

struct Console {
  std::ostream& out;
  bool json = false;
  std::function<bool()> stop;  // true once the user wants to end; null: never
};

// `run` is what FindRun understands.

// A job that was switched has a run per engine: names the others, on a line of its own. Of one that
// was not, and in JSON (former_run, next_run), nothing. `before`: what the line begins with.
Status PrintInTurn(HistorySource& source, const RunInfo& run, const Console& console,
                   const char* before = "");

// `options`: also those of each run's engine that are not at their defaults. `all`: all runs, as in
// JSON; else the newest 200, and those that go on.
Status ShowJobs(HistorySource& source, bool options, bool all, const Console& console);
// The columns of ShowWorkers and ShowStragglers, for --help.
std::string WorkersColumns();
std::string StragglersColumns();
Status ShowWorkers(HistorySource& source, const std::string& run, const Console& console);
// For one rank, or for all.
Status Explain(HistorySource& source, const std::string& run, std::optional<Rank> rank,
               const Console& console);
// The links between workers that are broken.
Status ShowLinks(HistorySource& source, const std::string& run, const Console& console);
Status ShowDaemon(HistorySource& source, const Console& console);
// An operator acts on the run that goes on. `run` empty: for a drain, all of them.
Status Operate(HistorySource& source, const std::string& run, const OperatorActed& what,
               const Console& console);
// Where `run` is no number, all runs of a job that was switched, in turn; and whether each takes
// over what the one before it leaves. kDataLoss where the replay differs from what is recorded.
Status Replay(HistorySource& source, const std::string& run, const Console& console);

struct GroupsQuery {
  GroupFilter filter;               // its `since` is not used
  std::optional<DurationNs> since;  // groups formed this long before the newest record, or later
  std::size_t last = 20;            // 0: all
  bool follow = false;              // where `run` is no number, across switches too
};
Status ShowGroups(HistorySource& source, const std::string& run, const GroupsQuery& query,
                  const Console& console);
Status ShowGroup(HistorySource& source, const std::string& run, GroupId id, const Console& console);

// How a job's batch was divided among its workers, and why. `last`, `follow` as in GroupsQuery.
Status ShowShares(HistorySource& source, const std::string& run, std::size_t last, bool follow,
                  const Console& console);

// `slow_factor`: from which factor on a worker is called slow.
Status ShowStragglers(HistorySource& source, const std::string& run, double slow_factor,
                      const Console& console);
// `last`: of the successful training groups; 0 is all. `table`: a table; else DOT, for graphviz.
Status ShowGraph(HistorySource& source, const std::string& run, std::size_t last, bool table,
                 const Console& console);
Status ShowSpectralGap(HistorySource& source, const std::string& run, std::size_t last,
                       const Console& console);

enum class ExportFormat { kJsonLines, kCsv, kTrace };
// To the console, or to a file of this name, which appears only when it is complete. Where `run` is
// no number, all runs of a job that was switched, in turn.
Status Export(HistorySource& source, const std::string& run, ExportFormat format,
              const std::string& file, const Console& console);

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_COMMANDS_H_
