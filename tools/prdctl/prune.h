// prdctl prune: ended runs that are not wanted any more go from the history.
#ifndef PRD_TOOLS_PRDCTL_PRUNE_H_
#define PRD_TOOLS_PRDCTL_PRUNE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "prd/status.h"
#include "tools/prdctl/commands.h"
#include "tools/prdctl/source.h"

namespace prd::ctl {

struct PruneQuery {
  std::string job;                      // of this name; empty: of all
  std::optional<std::int64_t> wall_ns;  // that began before
  std::size_t keep = 0;                 // but the newest of each name, so many
  bool dry_run = false;                 // say what would go
};

// "2026-11-03" or "2026-11-03 14:05" or "2026-11-03 14:05:09", in UTC, as Unix time.
Result<std::int64_t> ParseDate(const std::string& text);

// Those of the runs that go, oldest first: ended ones alone.
std::vector<RunInfo> ToPrune(const std::vector<RunInfo>& runs, const PruneQuery& query);

// kNotFound: there is no job of this name.
Status PruneRuns(HistorySource& source, const PruneQuery& query, const Console& console);

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_PRUNE_H_
