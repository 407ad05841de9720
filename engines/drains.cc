#include "engines/drains.h"

#include <map>
#include <string>

namespace prd {

// Groups of the plan take workers without a signal of theirs: a worker that only holds its signals
// back would be in group after group.
bool Drains::StopsInGroups(Rank rank) const {
  const bool unasked =
      TrainsInRounds(run_.plan) || (DrawnAhead(run_.plan) && !FollowsSchedule(run_.plan));
  return unasked && run_.roster[rank].state == WorkerState::kActive;
}

// The worker is in no group, and nobody needs anything of it.
bool Drains::MayGo(Rank rank) const {
  const RunWorker& worker = run_.roster[rank];
  // Another member may still read what this one has sent, also in a group before its newest.
  if (groups_.AnyWith(rank)) return false;
  if (worker.state == WorkerState::kFinal) return false;  // it goes with the others
  if (copies_.Serves(rank)) return false;
  // The step that its signal ends is to count.
  const bool asked = worker.state == WorkerState::kActive && worker.Waits() && worker.holds == 0;
  return (!asked || orders_.paused()) && engine_.leaving(rank) != Engine::Leaving::kLater;
}

// The other workers hear of it as if the worker had left when it goes.
void Drains::LetGo() {
  const std::map<Rank, std::string> draining = orders_.draining();
  for (const auto& [rank, why] : draining) {
    if (!orders_.Drains(rank)) continue;
    if (StopsInGroups(rank)) stops_.Stop(rank, LeftReason::kPaused, why);
    if (MayGo(rank)) Dismiss(rank, LeftReason::kLeft, why);
  }
}

void Drains::LetAllGo() {
  const std::map<Rank, std::string> draining = orders_.draining();
  for (const auto& [rank, why] : draining) Dismiss(rank, LeftReason::kLeft, why);
}

void Drains::Dismiss(Rank rank, LeftReason why, const std::string& reason) {
  orders_.Dismiss(run_.roster[rank].incarnation, reason);
  run_.roster.Send(rank, Released{.reason = reason});
  run_.run.Remove(rank, why, reason);
}

}  // namespace prd
