#include "tools/prdctl/source.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "tools/prdctl/meters.h"

namespace prd::ctl {
namespace {

constexpr std::uint32_t kChunkBytes = 4 << 20;

std::string JobNames(const std::vector<RunInfo>& runs) {
  constexpr std::size_t kShown = 10;
  std::set<std::string> names;
  for (const RunInfo& run : runs) names.insert(run.job);
  std::string text;
  std::size_t shown = 0;
  for (const std::string& name : names) {
    if (shown++ == kShown) return text + ", ...";
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

}  // namespace

Status ForEachRecord(HistorySource& source, RunId run, std::uint64_t from,
                     const std::function<bool(const Record&)>& visit) {
  while (true) {
    Result<std::vector<Record>> records = source.Read(run, from, kChunkBytes, 0);
    if (!records.ok()) return records.status();
    if (records->empty()) return Status::Ok();
    for (const Record& record : *records) {
      if (record.run != run || record.index != from) {
        return Status(Code::kDataLoss,
                      "run " + std::to_string(run) + ": record " + std::to_string(from) +
                          " is missing; the next one there is " + std::to_string(record.index));
      }
      ++from;
      if (!visit(record)) return Status::Ok();
    }
  }
}

Result<RunInfo> FindRun(HistorySource& source, const std::string& words) {
  Result<std::vector<RunInfo>> runs = source.Runs();
  if (!runs.ok()) return runs.status();
  if (runs->empty()) {
    return Status(Code::kNotFound, "the history holds no run: no worker has joined yet");
  }
  if (words.empty()) return runs->back();
  RunId id = kNoRun;
  const auto parsed = std::from_chars(words.data(), words.data() + words.size(), id);
  const bool number = parsed.ec == std::errc() && parsed.ptr == words.data() + words.size();
  for (const RunInfo& run : *runs) {
    if (number && run.run == id) return run;
  }
  const auto newest = std::find_if(runs->rbegin(), runs->rend(),
                                   [&](const RunInfo& run) { return run.job == words; });
  if (newest != runs->rend()) return *newest;
  return Status(Code::kNotFound, "run: found \"" + words + "\", there are runs " +
                                     std::to_string(runs->front().run) + " to " +
                                     std::to_string(runs->back().run) + " of the jobs " +
                                     JobNames(*runs));
}

Result<Plan> PlanOf(HistorySource& source, const RunInfo& run) {
  Plan plan;
  PRD_RETURN_IF_ERROR(ForEachRecord(source, run.run, 0, [&](const Record& record) {
    if (const auto* started = std::get_if<RunStarted>(&record.body)) plan = PlanOf(*started);
    return false;
  }));
  return plan;
}

}  // namespace prd::ctl
