#include "tools/prdbench/decide.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <utility>

#include "common/base/prng.h"
#include "engines/prague/options.h"
#include "tools/prdbench/progress.h"

namespace prd::bench {

namespace {

constexpr DurationNs kStep = 100 * kMillisecond;
constexpr DurationNs kReduce = 2 * kMillisecond;

// An event to come, small enough that reading a list of them costs nothing beside the engine.
struct Stimulus {
  enum class Kind : std::uint8_t { kReady, kFinished, kEnded };
  Instant now;
  GroupId group = kNoGroup;
  Iteration iteration = 0;
  Rank rank = kNoRank;
  Kind kind = Kind::kReady;
  bool waiting = true;
  std::uint32_t owed = 0;
  std::uint32_t local_steps = 1;
  std::uint32_t turn = 0;  // kReady: of its worker; an older one than the last is void
  bool passive = false;    // kFinished: of a group that answers no signal of it
};

Event ToEvent(const Stimulus& stimulus) {
  switch (stimulus.kind) {
    case Stimulus::Kind::kFinished:
      return FinishedEvent{
          .rank = stimulus.rank, .group = stimulus.group, .ok = true, .owed = stimulus.owed};
    case Stimulus::Kind::kEnded:
      return EndedEvent{.group = stimulus.group, .ok = true};
    default:
      return ReadyEvent{.rank = stimulus.rank,
                        .ready = {.iteration = stimulus.iteration,
                                  .step_ns = kStep,
                                  .samples = 1,
                                  .waiting = stimulus.waiting,
                                  .gradients = 1,
                                  .local_steps = stimulus.local_steps},
                        .owed = stimulus.owed};
  }
}

// An engine with its workers. Engines are deterministic: one copy answers the workers, whose events
// are kept, the other is then given the same events and timed.
class Loop {
 public:
  Loop(const EngineOptions& options, std::int64_t workers)
      : guide_(MakeEngine(options)),
        timed_(MakeEngine(options)),
        random_(1),
        in_rounds_(TrainsInRounds(guide_->plan()) ? static_cast<std::size_t>(workers) : 0),
        ahead_(DrawnAhead(guide_->plan()) ? static_cast<std::size_t>(workers) : 0),
        exchanges_(!TrainsInGroups(guide_->plan())),
        turns_(static_cast<std::size_t>(workers)) {
    const auto end = static_cast<Rank>(workers);
    for (Rank rank = 0; rank < end; ++rank) {
      const Event joined = JoinedEvent{.rank = rank, .host = "host" + std::to_string(rank / 8)};
      guide_->Step({}, joined, &next_guide_, &effects_);
      timed_->Step({}, joined, &next_timed_, &effects_);
      Later({}, kStep, {.iteration = 1, .rank = rank});
    }
  }

  // Lets the workers send so many signals and keeps the events.
  void Prepare(std::int64_t signals) {
    script_.clear();
    while (signals > 0) {
      const std::optional<Instant> deadline = guide_->NextDeadline();
      if (deadline && *deadline < coming_.top().now) {
        deadlines_.emplace_back(script_.size(), *deadline);
        Guide(*deadline, DeadlineEvent{}, {});
        continue;
      }
      Stimulus next = coming_.top();
      coming_.pop();
      if (next.kind == Stimulus::Kind::kReady && next.turn != Turn(next.rank)) continue;
      if (!in_rounds_.empty()) TakeTurn(&next);
      script_.push_back(next);
      if (next.kind == Stimulus::Kind::kReady) --signals;
      if (!ahead_.empty()) {
        GuideAhead(next);
        continue;
      }
      Guide(next.now, ToEvent(next), next);
      if (next.kind == Stimulus::Kind::kFinished && in_rounds_.empty()) {
        Later(next.now, kStep, {.iteration = next.iteration + 1, .rank = next.rank});
      }
    }
  }

  // Gives the prepared events to the engine; the time this takes, in ns.
  double Run() {
    std::size_t next_deadline = 0;
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < script_.size(); ++i) {
      for (; next_deadline < deadlines_.size() && deadlines_[next_deadline].first == i;
           ++next_deadline) {
        timed_->Step(deadlines_[next_deadline].second, DeadlineEvent{}, &next_timed_, &effects_);
      }
      timed_->Step(script_[i].now, ToEvent(script_[i]), &next_timed_, &effects_);
      effects_.clear();
    }
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
    deadlines_.clear();
    return taken.count();
  }

 private:
  // A worker that takes part in rounds while it computes (TrainsInRounds).
  struct InRounds {
    Iteration step = 0;      // the newest round in its replica
    Iteration received = 0;  // the newest round of which it has the result
    std::uint32_t owed = 0;
    bool waiting = false;
  };

  // A worker whose groups may be there before it is ready (DrawnAhead).
  struct Ahead {
    Iteration iteration = 1;   // of its next signal
    GroupId group = kNoGroup;  // that it is in
    bool waiting = false;
  };
  struct Held {
    std::vector<GroupShare> members;
    std::size_t computing = 0;  // members that it waits for
  };

  void GuideAhead(const Stimulus& next) {
    if (next.kind == Stimulus::Kind::kEnded) return Guide(next.now, ToEvent(next), next);
    Ahead& worker = ahead_[static_cast<std::size_t>(next.rank)];
    const GroupId group = worker.group;
    if (next.kind == Stimulus::Kind::kFinished) {
      worker.group = kNoGroup;
      if (worker.waiting && !next.passive) Release(next.now, next.rank);
      return Guide(next.now, ToEvent(next), next);
    }
    worker.waiting = true;
    Guide(next.now, ToEvent(next), next);
    const auto held = held_.find(group);
    if (held != held_.end() && --held->second.computing == 0) Begin(next.now, group);
  }

  void Release(Instant now, Rank rank) {
    Ahead& worker = ahead_[static_cast<std::size_t>(rank)];
    worker.waiting = false;
    Later(now, kStep, {.iteration = ++worker.iteration, .rank = rank});
  }

  // Held until all members wait, unless they take part in the background.
  void HoldAhead(Instant now, const GroupFormed& group) {
    Held& held = held_[group.id];
    held.members = group.members;
    for (const GroupShare& member : group.members) {
      Ahead& worker = ahead_[static_cast<std::size_t>(member.rank)];
      worker.group = group.id;
      held.computing += worker.waiting ? 0 : 1;
    }
    if (held.computing == 0 || AveragesInBackground(guide_->plan())) Begin(now, group.id);
  }

  void Begin(Instant now, GroupId id) {
    const Held held = std::move(held_.at(id));
    held_.erase(id);
    Instant last = now;
    for (const GroupShare& member : held.members) {
      const Stimulus finished{.group = id,
                              .rank = member.rank,
                              .kind = Stimulus::Kind::kFinished,
                              .passive = member.passive};
      last = std::max(last, Later(now, kReduce, finished));
    }
    Later(last, 0, {.group = id, .kind = Stimulus::Kind::kEnded});
  }

  // What such a worker says, and when it says something next.
  void TakeTurn(Stimulus* stimulus) {
    if (stimulus->kind == Stimulus::Kind::kEnded) return;
    InRounds& worker = in_rounds_[static_cast<std::size_t>(stimulus->rank)];
    if (stimulus->kind == Stimulus::Kind::kReady) {
      stimulus->iteration = worker.step + 1;
      stimulus->waiting = worker.waiting = worker.received == worker.step;
      stimulus->owed = ++worker.owed;
    } else {
      stimulus->owed = worker.owed;
      worker.received = stimulus->iteration;
      if (!worker.waiting || worker.step == worker.received) return;
      worker.waiting = false;
    }
    worker.step = worker.received;
    if (!worker.waiting) Later(stimulus->now, kStep, {.rank = stimulus->rank});
  }

  std::uint32_t& Turn(Rank rank) { return turns_[static_cast<std::size_t>(rank)]; }

  void Guide(Instant now, const Event& event, const Stimulus& cause) {
    Effects effects;
    guide_->Step(now, event, &next_guide_, &effects);
    for (const Effect& effect : effects) {
      if (const auto* answer = std::get_if<QueryAnswered>(&effect)) {
        if (answer->ready) continue;
        if (!ahead_.empty()) {
          Release(now, answer->rank);
          continue;
        }
        if (exchanges_) {
          Later(now, kStep, {.iteration = answer->next + 1, .rank = answer->rank});
          continue;
        }
        Stimulus next = cause;
        ++next.local_steps;
        Later(now, kStep, next);
      } else if (const auto* late = std::get_if<UpdateDropped>(&effect)) {
        Later(now, kStep, {.iteration = newest_ + 1, .rank = late->rank});
      }
    }
    for (const GroupFormed& group : GroupsOf(effects)) {
      if (!ahead_.empty()) {
        HoldAhead(now, group);
        continue;
      }
      newest_ = group.iteration;  // by the time of any copy: reductions are short beside steps
      Instant last = now;
      for (const GroupShare& member : group.members) {
        if (group.kind == GroupKind::kRound && member.weight > 0) {
          in_rounds_[static_cast<std::size_t>(member.rank)].owed = 0;
        }
        const Stimulus finished{.group = group.id,
                                .iteration = group.iteration,
                                .rank = member.rank,
                                .kind = Stimulus::Kind::kFinished};
        last = std::max(last, Later(now, kReduce, finished));
      }
      Later(last, 0, {.group = group.id, .kind = Stimulus::Kind::kEnded});
    }
  }

  // At 50% to 150% of `after` from now.
  Instant Later(Instant now, DurationNs after, Stimulus stimulus) {
    const double share = 0.5 + random_.Unit();
    stimulus.now = now + static_cast<DurationNs>(share * static_cast<double>(after));
    if (stimulus.kind == Stimulus::Kind::kReady) stimulus.turn = ++Turn(stimulus.rank);
    coming_.push(stimulus);
    return stimulus.now;
  }

  struct IsLater {
    bool operator()(const Stimulus& a, const Stimulus& b) const {
      if (a.now != b.now) return a.now > b.now;
      return a.kind != b.kind ? a.kind > b.kind : a.rank > b.rank;
    }
  };

  std::unique_ptr<Engine> guide_;
  std::unique_ptr<Engine> timed_;
  Prng random_;
  GroupId next_guide_ = 1;
  GroupId next_timed_ = 1;
  Effects effects_;
  std::vector<InRounds> in_rounds_;   // by rank; empty under other plans
  std::vector<Ahead> ahead_;          // by rank; empty unless DrawnAhead
  bool exchanges_;                    // each signal has an answer of its own
  std::map<GroupId, Held> held_;      // formed, and not begun
  std::vector<std::uint32_t> turns_;  // by rank: signals that it was to send
  Iteration newest_ = 0;              // that a group was formed for
  std::priority_queue<Stimulus, std::vector<Stimulus>, IsLater> coming_;
  std::vector<Stimulus> script_;
  std::vector<std::pair<std::size_t, Instant>> deadlines_;  // before script_[first]
};

// By name.
std::vector<std::pair<std::string, EngineOptions>> Measurable() {
  std::vector<std::pair<std::string, EngineOptions>> engines;
  for (const EngineOptions& options : AllEngines()) {
    engines.emplace_back(EngineName(options), options);
  }
  engines.emplace_back("prague/random",
                       PragueOptions{.generator = PragueOptions::Generator::kRandom});
  return engines;
}

}  // namespace

std::vector<DecideCost> MeasureDecide(const EngineOptions& options,
                                      const std::vector<std::int64_t>& workers,
                                      std::int64_t signals_per_round, int rounds) {
  std::vector<std::unique_ptr<Loop>> loops;
  std::vector<std::vector<double>> costs(workers.size());
  for (const std::int64_t count : workers) loops.push_back(std::make_unique<Loop>(options, count));
  for (int round = -1; round < rounds; ++round) {  // the first warms up
    for (std::size_t i = 0; i < workers.size(); ++i) {
      // Whole rounds of all workers: an engine may decide once for all of them.
      const std::int64_t turns = std::max<std::int64_t>(1, signals_per_round / workers[i]);
      loops[i]->Prepare(turns * workers[i]);
      const double ns = loops[i]->Run();
      if (round >= 0) costs[i].push_back(ns / static_cast<double>(turns * workers[i]));
    }
  }
  std::vector<DecideCost> results;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    std::sort(costs[i].begin(), costs[i].end());
    results.push_back({workers[i], costs[i][costs[i].size() / 2]});
  }
  return results;
}

std::vector<std::string> DecideEngines() {
  std::vector<std::string> names;
  for (const auto& [name, options] : Measurable()) names.push_back(name);
  return names;
}

int BenchDecide(const DecideOptions& decide) {
  const auto& [chosen, json] = decide;
  if (!json) std::printf("%-13s %10s %15s\n", "engine", "workers", "ns per signal");
  Progress progress;
  for (const auto& [name, options] : Measurable()) {
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), name) == chosen.end()) continue;
    progress.Show("prdbench: decide: " + name);
    const std::vector<DecideCost> costs =
        MeasureDecide(options, {8, 100, 10'000, 100'000}, 200'000, 9);
    progress.Show("");
    for (const DecideCost& cost : costs) {
      const auto workers = static_cast<long long>(cost.workers);
      if (json) {
        std::printf(
            "{\"bench\":\"decide\",\"engine\":\"%s\",\"workers\":%lld,"
            "\"ns_per_signal\":%.1f}\n",
            name.c_str(), workers, cost.ns_per_signal);
      } else {
        std::printf("%-13s %10lld %15.1f\n", name.c_str(), workers, cost.ns_per_signal);
      }
    }
    std::fflush(stdout);  // kept where somebody ends it
  }
  return 0;
}

}  // namespace prd::bench
