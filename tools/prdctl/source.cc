#include "tools/prdctl/source.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <set>

#include "common/base/text.h"
#include "common/io/clock.h"
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

// "1 to 3, 7, 9 to 12": the runs that there are.
std::string RunNumbers(const std::vector<RunInfo>& runs) {
  constexpr std::size_t kShown = 10;
  std::string text;
  std::size_t shown = 0;
  for (std::size_t i = 0, end = 0; i < runs.size(); i = end) {
    for (end = i + 1; end < runs.size() && runs[end].run == runs[end - 1].run + 1;) ++end;
    const RunId last = runs[end - 1].run;
    if (shown++ == kShown && end < runs.size()) {
      return text + ", ..., " + std::to_string(runs.back().run);
    }
    text += (text.empty() ? "" : ", ") + std::to_string(runs[i].run) +
            (end - i > 1 ? " to " + std::to_string(last) : "");
  }
  return text;
}

bool IsNumber(const std::string& words, RunId* id) {
  const auto parsed = std::from_chars(words.data(), words.data() + words.size(), *id);
  return parsed.ec == std::errc() && parsed.ptr == words.data() + words.size();
}

// On a terminal, for whoever waits longer than a moment.
class ReadingProgress {
 public:
  ReadingProgress(RunId run, bool prints)
      : run_(run),
        terminal_(::isatty(STDERR_FILENO) == 1 && !(prints && ::isatty(STDOUT_FILENO) == 1)),
        shown_ns_(MonotonicNs() + kPatience - kEvery) {}
  ReadingProgress(const ReadingProgress&) = delete;
  ReadingProgress& operator=(const ReadingProgress&) = delete;
  ~ReadingProgress() {
    if (shows_) std::fputs("\r\33[K", stderr);
  }
  void Show(std::uint64_t record) {
    const std::int64_t now_ns = MonotonicNs();
    if (!terminal_ || now_ns - shown_ns_ < kEvery) return;
    shown_ns_ = now_ns;
    shows_ = true;
    std::fprintf(stderr, "\rreads run %s: %s records so far", std::to_string(run_).c_str(),
                 std::to_string(record).c_str());
  }

 private:
  static constexpr DurationNs kPatience = 2 * kSecond;
  static constexpr DurationNs kEvery = kSecond / 2;
  const RunId run_;
  const bool terminal_;
  std::int64_t shown_ns_;
  bool shows_ = false;
};

}  // namespace

Status ForEachRecord(HistorySource& source, RunId run, std::uint64_t from,
                     const std::function<bool(const Record&)>& visit, bool prints) {
  ReadingProgress progress(run, prints);
  while (true) {
    Result<std::vector<Record>> records = source.Read(run, from, kChunkBytes, 0);
    if (!records.ok()) return records.status();
    if (records->empty()) return Status::Ok();
    progress.Show(from);
    for (const Record& record : *records) {
      if (from == 1 && record.run == run) from = record.index;  // as the source has it
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

HistorySource::RecentRuns Newest(std::vector<RunInfo> runs, bool more,
                                 const std::vector<RunInfo>& live, std::size_t most) {
  HistorySource::RecentRuns recent{.runs = {}, .all = !more && runs.size() <= most};
  if (runs.size() > most) runs.resize(most);
  const RunId oldest = runs.empty() ? kNoRun : runs.back().run;
  for (const RunInfo& run : live) {
    if (run.run < oldest) runs.push_back(run);
  }
  std::reverse(runs.begin(), runs.end());
  recent.runs = std::move(runs);
  return recent;
}

Result<HistorySource::RecentRuns> HistorySource::Recent(std::size_t most) {
  Result<std::vector<RunInfo>> runs = Runs();
  if (!runs.ok()) return runs.status();
  std::reverse(runs->begin(), runs->end());
  std::vector<RunInfo> live;
  std::copy_if(runs->begin(), runs->end(), std::back_inserter(live),
               [](const RunInfo& run) { return !run.ended; });
  return Newest(std::move(*runs), false, live, most);
}

Result<RunInfo> FindRun(HistorySource& source, const std::string& words) {
  const Result<std::vector<RunInfo>> runs = source.Runs();
  return runs.ok() ? FindRunIn(*runs, words) : runs.status();
}

Result<RunInfo> FindRunIn(const std::vector<RunInfo>& runs, const std::string& words) {
  if (runs.empty()) {
    return Status(Code::kNotFound, "the history holds no run: no worker has joined yet");
  }
  if (words.empty()) return runs.back();
  RunId id = kNoRun;
  const bool number = IsNumber(words, &id);
  for (const RunInfo& run : runs) {
    if (number && run.run == id) return run;
  }
  const auto newest = std::find_if(runs.rbegin(), runs.rend(),
                                   [&](const RunInfo& run) { return run.job == words; });
  if (newest != runs.rend()) return *newest;
  return Status(Code::kNotFound, "run: found \"" + words + "\", there are runs " +
                                     RunNumbers(runs) + " of the jobs " + JobNames(runs));
}

std::vector<RunInfo> RunsInTurn(const std::vector<RunInfo>& runs, const RunInfo& run) {
  const auto find = [&](RunId id) {
    const auto at = std::lower_bound(runs.begin(), runs.end(), id,
                                     [](const RunInfo& r, RunId wanted) { return r.run < wanted; });
    return at != runs.end() && at->run == id ? &*at : nullptr;
  };
  // No circle of a damaged history is followed: a run's number is above its former one's.
  std::vector<RunInfo> turn{run};
  for (const RunInfo* at = &run; at->former != kNoRun && at->former < at->run;) {
    at = find(at->former);
    if (at == nullptr || at->job != run.job) break;
    turn.push_back(*at);
  }
  std::reverse(turn.begin(), turn.end());
  for (const RunInfo* at = &run; at->next > at->run;) {
    at = find(at->next);
    if (at == nullptr || at->former != turn.back().run) break;
    turn.push_back(*at);
  }
  return turn;
}

Result<std::vector<RunInfo>> FindRunsInTurn(HistorySource& source, const std::string& words) {
  Result<RunInfo> run = FindRun(source, words);
  if (!run.ok()) return run.status();
  RunId id = kNoRun;
  if (!words.empty() && IsNumber(words, &id) && run->run == id) return std::vector{*run};
  Result<std::vector<RunInfo>> runs = source.Runs();
  if (!runs.ok()) return runs.status();
  return RunsInTurn(*runs, *run);
}

std::string TrimmedText(const RunInfo& run) {
  if (run.first == 0) return {};
  return "records 1 to " + std::to_string(run.first - 1) +
         " of this run were removed (retain_bytes); what is told of groups, waits and links begins "
         "after them";
}

Result<std::string> InTurnText(HistorySource& source, const RunInfo& run) {
  if (run.former == kNoRun && run.next == kNoRun) return std::string();
  Result<std::vector<RunInfo>> runs = source.Runs();
  if (!runs.ok()) return runs.status();
  const std::vector<RunInfo> turn = RunsInTurn(*runs, run);
  if (turn.size() == 1) return std::string();
  // If there are many, the first and the newest.
  constexpr std::size_t kShown = 8;
  std::string text = "job " + Harmless(run.job) + " in turn: ";
  for (std::size_t i = 0; i < turn.size(); ++i) {
    const bool left_out = turn.size() > kShown && i > 0 && i + kShown <= turn.size();
    if (left_out && i == 1) {
      text += ", " + std::to_string(turn.size() - kShown) + " more runs";
    }
    if (left_out) continue;
    text +=
        (i == 0 ? "run " : ", run ") + std::to_string(turn[i].run) + " (" + turn[i].engine + ")";
  }
  return text + "; this is run " + std::to_string(run.run) +
         ", and the others are shown by their numbers";
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
