// What `groups --follow` and `shares --follow` have in common: a job's records as they come.
#ifndef PRD_TOOLS_PRDCTL_FOLLOW_H_
#define PRD_TOOLS_PRDCTL_FOLLOW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/prdctl/commands.h"
#include "tools/prdctl/json.h"

namespace prd::ctl {

inline constexpr std::uint32_t kFollowWaitMs = 5000;
inline constexpr std::uint32_t kFollowBytes = 1 << 20;

// Gives the view the records of the run from view->next() on, until the run is over or the user
// ends. `next`: the run in which the job goes on, once this one has been followed to its end.
template <typename View>
Status FollowRun(HistorySource& source, RunId run, const Console& console, View* view,
                 RunId* next) {
  const auto stopped = [&] { return !console.out || (console.stop && console.stop()); };
  while (!view->over() && !stopped()) {
    console.out.flush();
    Result<std::vector<Record>> records =
        source.Read(run, view->next(), kFollowBytes, kFollowWaitMs);
    if (!records.ok() && records.status().code() == Code::kCancelled) return Status::Ok();
    // A daemon that was started again has not got the question.
    const bool again =
        !records.ok() && records.status().code() == Code::kUnavailable && source.Daemon().ok();
    if (again) continue;
    if (!records.ok()) return records.status();
    for (const Record& record : *records) view->Add(record);
  }
  if (!stopped()) *next = view->next_run();
  return Status::Ok();
}

// Shows a run, and where it is followed by its job's name, those that go on from it. `show` takes
// the run, and a RunId for the one in which the job goes on, which is told by a line. Files do not
// change: following them is kFailedPrecondition.
template <typename Show>
Status ShowInTurn(HistorySource& source, const std::string& run, bool follow,
                  const Console& console, const Show& show) {
  Result<RunInfo> info = FindRun(source, run);
  if (!info.ok()) return info.status();
  if (follow) {
    const Result<DaemonStatus> daemon = source.Daemon();
    if (!daemon.ok()) return daemon.status();
  }
  const bool this_run_alone = run == std::to_string(info->run);
  while (true) {
    RunId next = kNoRun;
    const Status shown = show(*info, &next);
    if (!shown.ok() || next == kNoRun || this_run_alone) return shown;
    info = FindRun(source, std::to_string(next));
    if (!info.ok()) return info.status();
    if (console.json) {
      console.out << Dump({{"event", "switched"}, {"run", info->run}, {"engine", info->engine}})
                  << '\n';
    } else {
      console.out << "the job goes on in run " << info->run << " (" << info->engine << ")\n";
    }
  }
}

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_FOLLOW_H_
