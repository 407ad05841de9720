// Where a history comes from: a running daemon's admin socket or the files of a stopped one.
#ifndef PRD_TOOLS_PRDCTL_SOURCE_H_
#define PRD_TOOLS_PRDCTL_SOURCE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/admin.h"
#include "common/base/history.h"
#include "prd/status.h"

namespace prd::ctl {

class HistorySource {
 public:
  virtual ~HistorySource() = default;

  // All runs, oldest first.
  virtual Result<std::vector<RunInfo>> Runs() = 0;
  // The newest `most` runs, and all others that go on; oldest first.
  struct RecentRuns {
    std::vector<RunInfo> runs;
    bool all = true;  // there are no others
  };
  virtual Result<RecentRuns> Recent(std::size_t most);

  // Records of a run from an index on, in order, at least one when there is one and about
  // max_bytes at most. Empty: there is none (yet). A daemon waits up to wait_ms for the next one.
  virtual Result<std::vector<Record>> Read(RunId run, std::uint64_t from, std::uint32_t max_bytes,
                                           std::uint32_t wait_ms) = 0;

  // The newest one; state is empty when there is none.
  virtual Result<Snapshot> NewestSnapshot(RunId run) = 0;

  // Only a running daemon has one; kFailedPrecondition from files.
  virtual Result<DaemonStatus> Daemon() = 0;

  // What a running daemon has done as an operator said; the same from files.
  virtual Result<std::string> Act(const prd::Act&) {
    return Status(Code::kFailedPrecondition,
                  "only a running daemon can do that: give --admin ENDPOINT, not --state-dir");
  }

  // Removes ended runs for good. From files only where no daemon runs on them.
  virtual Result<std::string> Prune(const std::vector<RunId>&) {
    return Status(Code::kFailedPrecondition, "nothing can be removed here");
  }
};

// `runs` and `live`: the newest first. `more`: there are older runs than in `runs`.
HistorySource::RecentRuns Newest(std::vector<RunInfo> runs, bool more,
                                 const std::vector<RunInfo>& live, std::size_t most);

// Gives every record of a run from an index on to `visit`, until it returns false. kDataLoss when
// an index is missing: what is computed from a history with a hole would be wrong. Records behind
// record 0 that were removed (RunInfo::first) are not missed; TrimmedText tells of them. What takes
// long is told on a terminal, unless visit `prints` there.
Status ForEachRecord(HistorySource& source, RunId run, std::uint64_t from,
                     const std::function<bool(const Record&)>& visit, bool prints = false);

// The run that a person means: a run's number, a job's name (its newest run), or empty for the
// newest of all. kNotFound says which there are.
Result<RunInfo> FindRun(HistorySource& source, const std::string& words);
Result<RunInfo> FindRunIn(const std::vector<RunInfo>& runs, const std::string& words);

// The runs through which a job has gone by live switches, one after the other, oldest first: those
// that lead to `run` and those that it leads to, as far as they are in `runs`.
std::vector<RunInfo> RunsInTurn(const std::vector<RunInfo>& runs, const RunInfo& run);

// What a person means where a job is shown across its switches: a run's number is that run alone; a
// job's name, or nothing, all runs in turn up to the one that FindRun gives. At least one.
Result<std::vector<RunInfo>> FindRunsInTurn(HistorySource& source, const std::string& words);

// "records 1 to 99 of this run were removed ..."; empty: none was.
std::string TrimmedText(const RunInfo& run);

// "job mnist in turn: run 1 (p-reduce), run 2 (hop); this is run 2, and the others are shown by
// their numbers". Empty: the job was not switched.
Result<std::string> InTurnText(HistorySource& source, const RunInfo& run);

// Finds the run, and gives all of its records to `meter`.
template <typename Meter>
Result<RunInfo> Measure(HistorySource& source, const std::string& words, Meter& meter) {
  Result<RunInfo> run = FindRun(source, words);
  if (!run.ok()) return run;
  PRD_RETURN_IF_ERROR(ForEachRecord(source, run->run, 0, [&](const Record& record) {
    meter.Add(record);
    return true;
  }));
  return run;
}

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_SOURCE_H_
