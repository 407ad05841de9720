#include "engines/tombstones.h"

#include <algorithm>
#include <optional>

namespace prd {

void Tombstones::RememberDismissed(const std::vector<Dismissal>& dismissed) {
  for (auto it = dismissed.rbegin(); it != dismissed.rend(); ++it) {
    if (dismissed_.contains(it->incarnation)) break;  // and all before
    dismissed_.Add(it->incarnation, it->reason);
  }
}

void Tombstones::RememberEnded(RunId run, const std::string& job, std::uint64_t identity,
                               bool finished) {
  if (identity == 0 || ended_.contains(identity)) return;
  if (finished) finished_[job] = std::max(finished_[job], run);
  const std::optional<EndedRun> oldest = ended_.Add(identity, {run, job});
  if (!oldest) return;
  const auto newest = finished_.find(oldest->job);
  if (newest != finished_.end() && newest->second == oldest->run) finished_.erase(newest);
}

std::string Tombstones::RejectReason(const RunIdentity& former) const {
  const EndedRun* const ended = ended_.Find(former.high);
  if (ended == nullptr) return {};
  const auto& [run, job] = *ended;
  const auto finished = finished_.find(job);
  if (finished == finished_.end() || finished->second < run) return {};
  const std::string in =
      finished->second == run ? std::string() : ", in run " + std::to_string(finished->second);
  return "run " + std::to_string(run) + " of job " + job +
         ", in which this worker trained, has ended: the job's workers finished it" + in +
         " while this one was away";
}

}  // namespace prd
