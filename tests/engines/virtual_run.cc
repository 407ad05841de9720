#include "tests/engines/virtual_run.h"

#include <map>
#include <queue>
#include <set>
#include <stdexcept>
#include <tuple>

namespace prd {

namespace {

class Runner {
 public:
  Runner(Engine* engine, const StepTimes& times) : engine_(engine), steps_(times) {
    const auto workers = static_cast<Rank>(times.mean_s.size());
    iterations_.resize(times.mean_s.size());
    for (Rank rank = 0; rank < workers; ++rank) {
      Apply(JoinedEvent{.rank = rank, .iteration = 0, .host = "h"});
    }
    for (Rank rank = 0; rank < workers; ++rank) Compute(rank);
  }

  // Goes on until the engine has formed a group or more, and returns them.
  std::vector<GroupFormed> Next() {
    while (true) {
      const std::optional<Instant> deadline = engine_->NextDeadline();
      if (deadline && (computing_.empty() || deadline->ns < std::get<0>(computing_.top()))) {
        now_.ns = std::max(now_.ns, deadline->ns);
        Apply(DeadlineEvent{});
      } else {
        if (computing_.empty()) throw std::runtime_error("deadlock: nobody computes");
        const auto [at, order, rank] = computing_.top();
        computing_.pop();
        now_.ns = at;
        auto& iteration = iterations_[static_cast<std::size_t>(rank)];
        Apply(ReadyEvent{.rank = rank, .ready = {.iteration = ++iteration, .samples = 1}});
      }
      if (effects_.empty()) continue;
      const std::vector<GroupFormed> formed = GroupsOf(effects_);
      effects_.clear();
      for (const GroupFormed& group : formed) Release(group);
      return formed;
    }
  }

  Instant now() const { return now_; }

 private:
  void Apply(const Event& event) { engine_->Step(now_, event, &next_group_, &effects_); }

  void Release(const GroupFormed& group) {
    for (const GroupShare& member : group.members) {
      Apply(FinishedEvent{.rank = member.rank, .group = group.id, .ok = true});
      iterations_[static_cast<std::size_t>(member.rank)] = group.iteration;
      Compute(member.rank);
    }
    Apply(EndedEvent{.group = group.id, .ok = true});
  }

  void Compute(Rank rank) {
    const Instant ready = now_ + steps_.Next(static_cast<std::size_t>(rank));
    computing_.emplace(ready.ns, releases_++, rank);
  }

  using Computing = std::tuple<std::int64_t, std::int64_t, Rank>;
  Engine* const engine_;
  StepSource steps_;
  Instant now_;
  std::int64_t releases_ = 0;
  GroupId next_group_ = 1;
  Effects effects_;
  std::vector<Iteration> iterations_;
  std::priority_queue<Computing, std::vector<Computing>, std::greater<>> computing_;
};

}  // namespace

bool Connected(const std::vector<std::vector<Rank>>& groups) {
  if (groups.empty()) return true;
  std::set<Rank> reached(groups[0].begin(), groups[0].end());
  std::vector<bool> used(groups.size());
  for (bool grown = true; grown;) {
    grown = false;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (used[i]) continue;
      for (const Rank rank : groups[i]) used[i] = used[i] || reached.contains(rank);
      if (!used[i]) continue;
      reached.insert(groups[i].begin(), groups[i].end());
      grown = true;
    }
  }
  for (const bool one : used) {
    if (!one) return false;
  }
  return true;
}

namespace {

// True if the links of both connect all workers that are in a group of the first.
bool Joined(const std::vector<std::vector<Rank>>& first, std::vector<std::vector<Rank>> second) {
  std::set<Rank> there;
  for (const auto& group : first) there.insert(group.begin(), group.end());
  for (auto& group : second) std::erase_if(group, [&](Rank rank) { return !there.contains(rank); });
  std::erase_if(second, [](const auto& group) { return group.empty(); });
  second.insert(second.begin(), first.begin(), first.end());
  return Connected(second);
}

}  // namespace

VirtualRun RunEngine(Engine* engine, const StepTimes& times, std::int64_t updates,
                     std::int64_t window,
                     const std::function<void(Instant, const GroupFormed&)>& seen) {
  Runner runner(engine, times);
  VirtualRun run;
  Instant settled;
  std::vector<std::vector<Rank>> last;
  std::vector<std::vector<Rank>> recent;
  bool split = false;
  for (std::int64_t formed = 0; formed < 2 * updates;) {
    for (const GroupFormed& group : runner.Next()) {
      if (++formed == updates) settled = runner.now();
      if (seen) seen(runner.now(), group);
      if (formed <= updates) continue;
      if (group.reason.starts_with("bridged")) ++run.bridges;
      auto& ranks = recent.emplace_back();
      for (const GroupShare& member : group.members) ranks.push_back(member.rank);
      if (static_cast<std::int64_t>(recent.size()) < window) continue;
      ++run.windows;
      run.split_windows += Connected(recent) ? 0 : 1;
      if (split && !Joined(last, recent)) ++run.left_split;
      split = !Connected(recent);
      last = std::move(recent);
      recent.clear();
    }
  }
  const double seconds = static_cast<double>(runner.now() - settled) / kSecond;
  run.updates_per_s = static_cast<double>(updates) / seconds;
  return run;
}

}  // namespace prd
