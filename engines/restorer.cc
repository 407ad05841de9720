#include "engines/restorer.h"

#include <utility>

namespace prd {
namespace {

// Messages kept while a restored run waits for its workers. Others come again.
constexpr std::size_t kMaxHeld = 4096;

}  // namespace

NextRun NextRunOf(const Run& run, Instant now) {
  return {run.switching()->spec, run.WallAt(now), *run.next()};
}

void Restorer::Add(const Run& run) {
  for (Rank rank = 0; RankIndex(rank) < run.workers().size(); ++rank) {
    if (run.workers()[RankIndex(rank)].state == WorkerState::kAbsent) continue;
    runs_[run.id()].unheard[rank] = run.link(rank).last_out();
  }
}

bool Restorer::Waits(RunId run) const {
  const auto waiting = runs_.find(run);
  return waiting != runs_.end() && !waiting->second.unheard.empty();
}

bool Restorer::WaitsFor(RunId run, Rank rank) const {
  const auto waiting = runs_.find(run);
  return waiting != runs_.end() && waiting->second.unheard.contains(rank);
}

bool Restorer::ProvesLoss(const Run& run, Rank rank, const WorkerEnvelope& envelope) const {
  return envelope.ack > runs_.at(run.id()).unheard.at(rank) ||
         envelope.oldest > run.link(rank).last_in() + 1;
}

void Restorer::EndWait(RunId run, Rank rank) {
  const auto waiting = runs_.find(run);
  if (waiting != runs_.end()) waiting->second.unheard.erase(rank);
}

void Restorer::Hold(const WorkerEnvelope& envelope) {
  std::vector<WorkerEnvelope>& held = runs_.at(envelope.run).held;
  if (held.size() < kMaxHeld) held.push_back(envelope);
}

std::vector<WorkerEnvelope> Restorer::TakeHeld(RunId run) {
  const auto waiting = runs_.find(run);
  if (waiting == runs_.end() || !waiting->second.unheard.empty()) return {};
  std::vector<WorkerEnvelope> held = std::move(waiting->second.held);
  runs_.erase(waiting);
  return held;
}

}  // namespace prd
