#include "tests/engines/neighbour_driver.h"

#include <algorithm>

namespace prd {

std::string NeighbourDriver::Join(Rank rank, Iteration iteration, const std::string& host) {
  Worker& worker = workers_[rank];
  worker.let_into = worker.entered = iteration;
  return Apply(JoinedEvent{.rank = rank, .iteration = iteration, .host = host});
}

std::string NeighbourDriver::Leave(Rank rank, LeftReason why) {
  workers_.erase(rank);
  for (auto& [other, worker] : workers_) {
    worker.in.erase(rank);
    worker.out.erase(rank);
    worker.received.erase(rank);
  }
  return Apply(LeftEvent{.rank = rank, .why = why});
}

std::string NeighbourDriver::Signal(Rank rank) {
  Worker& worker = workers_.at(rank);
  worker.waiting = true;
  return Apply(ReadyEvent{.rank = rank, .ready = {.iteration = worker.entered + 1}});
}

bool NeighbourDriver::CanSignal(Rank rank) const {
  const Worker& worker = workers_.at(rank);
  return worker.placed && !worker.waiting && worker.entered == worker.let_into &&
         MayEndRecv(worker, worker.entered);
}

std::vector<Rank> NeighbourDriver::WhoCanSignal() const {
  std::vector<Rank> ranks;
  for (const auto& [rank, worker] : workers_) {
    if (CanSignal(rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<Rank> NeighbourDriver::Present() const {
  std::vector<Rank> ranks;
  for (const auto& [rank, worker] : workers_) ranks.push_back(rank);
  return ranks;
}

// Figures 4, 8 and 9.
bool NeighbourDriver::MayEndRecv(const Worker& worker, Iteration k) const {
  const NeighbourPlan plan = *NeighboursOf(engine_->plan());
  std::uint32_t missing = 0;
  for (const auto& [rank, from] : worker.in) {
    if (from > k) continue;
    const auto found = worker.received.find(rank);
    bool there = false;
    if (found != worker.received.end() && plan.staleness == 0) {
      there = found->second.contains(k);
    } else if (found != worker.received.end() && !found->second.empty()) {
      there = *found->second.rbegin() >= k - plan.staleness;
    }
    missing += there ? 0 : 1;
  }
  return missing <= plan.backups;
}

void NeighbourDriver::Publish(Rank rank, Iteration k) {
  Worker& worker = workers_.at(rank);
  worker.published.insert(k);
  for (const Rank other : worker.out) workers_.at(other).received[rank].insert(k);
}

// Lets workers that were let in begin, those that have what a jump needs first.
void NeighbourDriver::EnterWhoCan() {
  for (bool again = true; again;) {
    again = false;
    for (auto& [rank, worker] : workers_) {
      if (worker.entered == worker.let_into) continue;
      const bool jump = worker.let_into > worker.entered + 1;
      if (jump && !MayEndRecv(worker, worker.let_into - 1)) continue;
      worker.entered = worker.let_into;
      ++worker.steps;
      Publish(rank, worker.entered);
      again = true;
    }
  }
  for (const auto& [rank, worker] : workers_) {
    for (const auto& [other, updates] : worker.received) {
      const auto first = updates.lower_bound(worker.entered);
      most_queued_ =
          std::max(most_queued_, static_cast<std::size_t>(std::distance(first, updates.end())));
    }
  }
}

std::string NeighbourDriver::Heed(const Effect& effect, const Event&) {
  if (const auto* answer = std::get_if<QueryAnswered>(&effect)) {
    Worker& worker = workers_.at(answer->rank);
    worker.let_into = answer->next;
    worker.waiting = false;
    return "";
  }
  const auto* set = std::get_if<NeighboursSet>(&effect);
  if (set == nullptr) return "another effect";
  Worker& worker = workers_.at(set->rank);
  if (!worker.placed) worker.let_into = worker.entered = set->at;
  worker.placed = true;
  worker.in.clear();
  for (const InEdge& edge : set->in) worker.in[edge.rank] = edge.from;
  std::erase_if(worker.received, [&](const auto& of) { return !worker.in.contains(of.first); });
  worker.out = {set->out.begin(), set->out.end()};
  told_.insert(set->rank);
  return "";
}

std::string NeighbourDriver::Look() {
  for (const Rank rank : told_) {  // new out-neighbours get the newest update there is
    const Worker& worker = workers_.at(rank);
    for (const Rank other : worker.out) {
      if (!workers_.at(other).in.contains(rank)) return "an edge of one end";
      std::set<Iteration>& received = workers_.at(other).received[rank];
      if (received.empty() && !worker.published.empty()) {
        received.insert(*worker.published.rbegin());
      }
    }
    if (worker.published.empty()) Publish(rank, worker.entered);
  }
  told_.clear();
  EnterWhoCan();
  return "";
}

std::string NeighbourDriver::JoinOne() {
  const std::vector<Rank> present = Present();
  const Rank rank = FreeRank();
  const Iteration at = present.empty() ? 0 : workers_.at(Pick(present)).entered;
  return Join(rank, at, "host" + std::to_string(random_.Below(3)));
}

std::string NeighbourDriver::LeaveOne(Rank rank) {
  const bool finishes = !Waits(rank) && random_.Below(2) == 0;
  return Leave(rank, finishes ? LeftReason::kFinished : LeftReason::kLost);
}

bool NeighbourDriver::Act(bool storms, std::uint64_t, std::string* wrong) {
  const std::vector<Rank> able = WhoCanSignal();
  if (able.empty()) return false;
  // In a storm some are slow: the higher the rank the rarer.
  const std::size_t among = storms ? 1 + random_.Below(able.size()) : able.size();
  *wrong = Signal(able[random_.Below(among)]);
  return true;
}

void NeighbourDriver::ForgetSteps() {
  for (auto& [rank, worker] : workers_) worker.steps = 0;
}

bool NeighbourDriver::AllHave(int steps) const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [&](const auto& entry) { return entry.second.steps >= steps; });
}

}  // namespace prd
