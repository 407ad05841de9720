#include "engines/presence.h"

#include <algorithm>

namespace prd {

void Presence::Add(RunId run, Incarnation incarnation, const std::string& identity) {
  const bool fresh = here_.try_emplace({incarnation, run}, identity).second;
  if (!fresh || identity.empty()) return;
  Share& share = shares_[identity];
  ++share.workers;
  ++share.runs[run];
}

void Presence::Remove(RunId run, Incarnation incarnation) {
  const auto gone = here_.extract({incarnation, run});
  const auto share = gone.empty() ? shares_.end() : shares_.find(gone.mapped());
  if (share == shares_.end()) return;
  const auto in_run = share->second.runs.find(run);
  if (--in_run->second == 0) share->second.runs.erase(in_run);
  if (--share->second.workers == 0) shares_.erase(share);
}

const Presence::Share* Presence::ShareOf(const std::string& identity) const {
  const auto share = shares_.find(identity);
  return share == shares_.end() ? nullptr : &share->second;
}

std::vector<RunId> Presence::RunsOf(Incarnation incarnation) const {
  std::vector<RunId> runs;
  for (auto it = here_.lower_bound({incarnation, kNoRun});
       it != here_.end() && it->first.first == incarnation; ++it) {
    runs.push_back(it->first.second);
  }
  return runs;
}

bool Presence::IsHere(Incarnation incarnation, const std::string& identity) const {
  const std::vector<RunId> runs = RunsOf(incarnation);
  return std::any_of(runs.begin(), runs.end(), [&](RunId run) {
    return here_.at({incarnation, run}) == identity;
  });
}

}  // namespace prd
