#include "tests/engines/engine_driver.h"

#include <algorithm>
#include <utility>

namespace prd {

EngineDriver::EngineDriver(Engine* engine, std::uint64_t seed, Rank max_workers, Watch watch)
    : engine_(engine), random_(seed), max_workers_(max_workers), watch_(std::move(watch)) {}

std::vector<Rank> EngineDriver::In(State state) const {
  std::vector<Rank> ranks;
  for (const auto& [rank, worker] : workers_) {
    if (worker.state == state) ranks.push_back(rank);
  }
  return ranks;
}

std::string EngineDriver::Apply(const Event& event) {
  Applied& applied = applied_.emplace_back();
  applied.now = now_;
  applied.event = event;
  engine_->Step(now_, event, &next_group_, &applied.effects);
  for (const FormGroup& group : GroupsOf(applied.effects)) {
    Running& running = groups_[group.id];
    running.iteration = group.iteration;
    for (const GroupShare& member : group.members) {
      const auto found = workers_.find(member.rank);
      if (found == workers_.end() || found->second.state != State::kWaiting) {
        return "group " + std::to_string(group.id) + " has a member without a signal";
      }
      found->second.state = State::kReducing;
      found->second.group = group.id;
      running.pending.push_back(member.rank);
    }
  }
  return watch_(applied);
}

std::string EngineDriver::Join() {
  Rank rank = static_cast<Rank>(random_.Below(static_cast<std::uint64_t>(max_workers_)));
  while (workers_.contains(rank)) rank = (rank + 1) % max_workers_;
  Worker worker;
  if (!workers_.empty()) worker.iteration = workers_.begin()->second.iteration;
  workers_[rank] = worker;
  return Apply(JoinedEvent{.rank = rank,
                           .iteration = worker.iteration,
                           .host = "host" + std::to_string(random_.Below(3))});
}

std::string EngineDriver::BeReady(Rank rank) {
  Worker& worker = workers_[rank];
  worker.state = State::kWaiting;
  ++worker.iteration;
  const auto samples = static_cast<std::int64_t>(random_.Below(4) * 16);
  return Apply(
      ReadyEvent{.rank = rank, .ready = {.iteration = worker.iteration, .samples = samples}});
}

// One member's report; the last one ends the group.
std::string EngineDriver::Report(GroupId id, bool ok) {
  Running& group = groups_[id];
  ok = ok && !group.failed;
  const std::size_t index = random_.Below(group.pending.size());
  const Rank rank = group.pending[index];
  group.pending.erase(group.pending.begin() + static_cast<std::ptrdiff_t>(index));
  group.failed = group.failed || !ok;
  Worker& worker = workers_[rank];
  worker.state = State::kComputing;
  worker.group = kNoGroup;
  worker.iteration = ok ? group.iteration : worker.iteration - 1;
  worker.steps += ok ? 1 : 0;
  if (auto wrong = Apply(FinishedEvent{.rank = rank, .group = id, .ok = ok}); !wrong.empty()) {
    return wrong;
  }
  if (!groups_[id].pending.empty()) return "";
  const bool all_ok = !groups_[id].failed;
  groups_.erase(id);
  return Apply(EndedEvent{.group = id, .ok = all_ok});
}

std::string EngineDriver::Leave(Rank rank) {
  const GroupId id = workers_[rank].group;
  workers_.erase(rank);
  if (auto wrong = Apply(LeftEvent{.rank = rank, .why = LeftReason::kLost}); !wrong.empty()) {
    return wrong;
  }
  if (id == kNoGroup) return "";
  Running& group = groups_[id];
  group.failed = true;
  std::erase(group.pending, rank);
  if (!group.pending.empty()) return "";
  groups_.erase(id);
  return Apply(EndedEvent{.group = id, .ok = false});
}

std::string EngineDriver::PassDeadline() {
  now_ = std::max(now_, *engine_->NextDeadline());
  if (auto wrong = Apply(DeadlineEvent{}); !wrong.empty()) return wrong;
  const auto next = engine_->NextDeadline();
  return next && *next <= now_ ? "a deadline that has passed is still there" : "";
}

std::string EngineDriver::Storm(int events) {
  for (int i = 0; i < events; ++i) {
    now_.ns += static_cast<std::int64_t>(random_.Below(20 * kMillisecond));
    const auto deadline = engine_->NextDeadline();
    const std::vector<Rank> computing = In(State::kComputing);
    const std::uint64_t dice = random_.Below(100);
    std::string wrong;
    if (deadline && *deadline <= now_ && dice < 90) {
      wrong = PassDeadline();
    } else if (workers_.empty() || (dice < 4 && std::ssize(workers_) < max_workers_)) {
      wrong = Join();
    } else if (dice < 5) {
      wrong = Leave(
          std::next(workers_.begin(), static_cast<std::ptrdiff_t>(random_.Below(workers_.size())))
              ->first);
    } else if (!groups_.empty() && (dice < 60 || computing.empty())) {
      const auto group =
          std::next(groups_.begin(), static_cast<std::ptrdiff_t>(random_.Below(groups_.size())));
      wrong = Report(group->first, random_.Below(30) > 0);
    } else if (!computing.empty()) {
      wrong = BeReady(Pick(computing));
    }
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string EngineDriver::Calm(int steps) {
  for (auto& [rank, worker] : workers_) worker.steps = 0;
  const auto done = [&] {
    return std::all_of(workers_.begin(), workers_.end(),
                       [&](const auto& entry) { return entry.second.steps >= steps; });
  };
  const int limit = 200 * (steps + 2) * static_cast<int>(workers_.size() + 1);
  for (int i = 0; !done(); ++i) {
    if (i == limit) return "no progress for some worker";
    now_.ns += static_cast<std::int64_t>(random_.Below(kMillisecond));
    const std::vector<Rank> computing = In(State::kComputing);
    const auto deadline = engine_->NextDeadline();
    std::string wrong;
    if (deadline && *deadline <= now_) {
      wrong = PassDeadline();
    } else if (!groups_.empty() && (computing.empty() || random_.Below(2) == 0)) {
      wrong = Report(groups_.begin()->first, true);
    } else if (!computing.empty()) {
      wrong = BeReady(Pick(computing));
    } else if (deadline) {
      wrong = PassDeadline();
    } else {
      wrong = "deadlock: every worker waits, no group runs, no deadline is set; rank " +
              std::to_string(workers_.begin()->first) + ": " +
              engine_->Explain(now_, workers_.begin()->first);
    }
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string EngineDriver::Drain() {
  while (!workers_.empty()) {
    std::string wrong = Calm(2);
    if (wrong.empty()) {
      wrong = Leave(
          std::next(workers_.begin(), static_cast<std::ptrdiff_t>(random_.Below(workers_.size())))
              ->first);
    }
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace prd
