#include "tools/prdctl/prune.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <utility>

#include "tools/prdctl/json.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {

Result<std::int64_t> ParseDate(const std::string& text) {
  for (const char* format : {"%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"}) {
    std::tm parts{};
    const char* end = ::strptime(text.c_str(), format, &parts);
    if (end == nullptr || *end != '\0') continue;
    std::tm day = parts;  // timegm makes 3 March of 31 February
    const std::int64_t at = ::timegm(&day);
    if (at >= 0 && day.tm_mday == parts.tm_mday) return at * kSecond;
  }
  return Status(Code::kInvalidArgument,
                "found \"" + text +
                    "\", allowed is a date in UTC: 2026-11-03, \"2026-11-03 14:05\" or "
                    "\"2026-11-03 14:05:09\"");
}

std::vector<RunInfo> ToPrune(const std::vector<RunInfo>& runs, const PruneQuery& query) {
  std::vector<RunInfo> gone;
  std::map<std::string, std::size_t> newer;  // ended ones, of each name
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    if (!run->ended || (!query.job.empty() && run->job != query.job)) continue;
    if (newer[run->job]++ < query.keep) continue;
    if (query.wall_ns && run->started_wall_ns >= *query.wall_ns) continue;
    gone.push_back(*run);
  }
  std::reverse(gone.begin(), gone.end());
  return gone;
}

Status PruneRuns(HistorySource& source, const PruneQuery& query, const Console& console) {
  const Result<std::vector<RunInfo>> runs = source.Runs();
  if (!runs.ok()) return runs.status();
  const bool known = std::any_of(runs->begin(), runs->end(),
                                 [&](const RunInfo& run) { return run.job == query.job; });
  if (!query.job.empty() && !known) {
    return Status(Code::kNotFound, "the history has no run of job " + query.job);
  }
  const std::vector<RunInfo> gone = ToPrune(*runs, query);
  std::uint64_t bytes = 0;
  std::vector<RunId> numbers;
  Json list = Json::array();
  Table table({{"RUN", Table::Align::kRight},
               {"JOB"},
               {"IDENTITY"},
               {"STARTED"},
               {"BYTES", Table::Align::kRight}});
  for (const RunInfo& run : gone) {
    bytes += run.bytes;
    numbers.push_back(run.run);
    list.push_back(ToJson(run));
    table.Add({std::to_string(run.run), Harmless(run.job), Harmless(run.owner),
               WallTime(run.started_wall_ns), run.bytes == 0 ? "" : std::to_string(run.bytes)});
  }
  if (!query.dry_run && !numbers.empty()) {
    const Result<std::string> done = source.Prune(numbers);
    if (!done.ok()) return done.status();
  }
  if (console.json) {
    console.out << Dump({{"runs", std::move(list)}, {"bytes", bytes}, {"removed", !query.dry_run}})
                << '\n';
    return Status::Ok();
  }
  if (!gone.empty()) table.Print(console.out);
  console.out << gone.size() << (gone.size() == 1 ? " run" : " runs")
              << (query.dry_run ? " would be removed" : " removed") << ", " << bytes
              << " bytes before compression\n";
  return Status::Ok();
}

}  // namespace prd::ctl
