// The invariants of engine eager (Li et al., PPoPP 2020), beside a reference of its controller that
// looks at every worker at every event.
//
// quorum: a round starts with as many arrived as `quorum` says, of those that have joined
// (majority: one at least). None starts while one runs, and one starts as soon as it may.
//
// initiator: a round of a majority is started by the worker that the seed says (section 4.2), drawn
// here anew among those there, by host and rank, when the round first could start. Who waits for
// that worker is told its rank.
//
// max-stale: no worker is passed over in more than max_stale_rounds rounds in a row that succeed:
// neither contributing nor having arrived.
//
// contributors: who owes gradients contributes with its share, nobody else has a weight. Shares are
// by the samples of the workers' newest gradients where all have told some, else equal. Those have
// one who have joined, and those who have finished, for max_stale_rounds rounds.
//
// sync-every: of sync_every rounds the last is followed by an average with equal weights, once all
// have arrived. The average changes no iteration.
//
// everybody: a group has all who have joined, each once, and the workers of a host one after
// another. It is the only decision on its event, and has a reason. Rounds are numbered one by one.
//
// explained: a worker that has arrived, and waits, has a reason (up to kMaxWatched workers).
#include "engines/rules.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/prng.h"
#include "engines/eager/options.h"
#include "engines/ring_order.h"

namespace prd {
namespace {

std::string Name(const GroupFormed& group) {
  return "round " + std::to_string(group.iteration) + " (group " + std::to_string(group.id) + ", " +
         group.reason + ")";
}

class EagerRules final : public EngineRules {
 public:
  explicit EagerRules(const EagerOptions& options) : options_(options) {}
  void Check(const Decision& of) override;
  void Archive(StateArchive& ar) override {
    ar(workers_, finished_, round_, last_sync_, running_, averaging_, hosts_, drawn_);
  }

 private:
  struct Worker {
    bool joined = false;
    bool waiting = false;
    bool in_round = false;    // which runs
    Iteration iteration = 0;  // of its signal
    std::uint32_t owed = 0;
    std::int64_t samples = 0;  // of its newest gradient
    std::int64_t passed = 0;   // rounds that succeeded without it, in a row
    std::int32_t host = 0;
    void Archive(StateArchive& ar) {
      ar(joined, waiting, in_round, iteration, owed, samples, passed, host);
    }
  };
  struct Finished {
    std::int64_t samples = 0;
    std::int64_t rounds = 0;  // that succeeded since
    void Archive(StateArchive& ar) { ar(samples, rounds); }
  };
  Worker& At(Rank rank);
  bool Arrived(const Worker& worker) const {
    return worker.joined && worker.waiting && worker.iteration == round_ + 1;
  }
  bool Arrived(Rank rank) const { return Arrived(workers_[static_cast<std::size_t>(rank)]); }
  std::int64_t Arrived() const;
  bool SyncDue(std::int64_t joined) const;
  bool Overdue(const Worker& worker) const;
  bool AnyOverdue() const;
  bool AnyOwed() const;
  std::int64_t Needed(std::int64_t joined) const;

  void Follow(const Decision& of);
  void OnEnded(bool ok);
  void DrawInitiator(std::int64_t joined);
  void CheckMembers(const GroupFormed& group, std::int64_t joined) const;
  void CheckInitiator(const GroupFormed& group) const;
  // The samples of all who have a share.
  std::vector<std::int64_t> Samples() const;
  void CheckRound(const GroupFormed& group, std::int64_t joined);
  void CheckAverage(const GroupFormed& group, std::int64_t joined);
  void CheckIdle(const Decision& of);
  void CheckExplained(const Decision& of);

  const EagerOptions options_;
  std::vector<Worker> workers_;     // by rank
  std::vector<Finished> finished_;  // since the last worker joined an empty job
  Iteration round_ = 0;             // the last one that succeeded
  Iteration last_sync_ = 0;
  GroupId running_ = kNoGroup;
  bool averaging_ = false;
  HostTable hosts_;
  Rank drawn_ = kNoRank;  // for the next round
};

EagerRules::Worker& EagerRules::At(Rank rank) {
  const auto index = static_cast<std::size_t>(rank);
  if (index >= workers_.size()) workers_.resize(index + 1);
  return workers_[index];
}

std::int64_t EagerRules::Arrived() const {
  return std::count_if(workers_.begin(), workers_.end(),
                       [this](const Worker& worker) { return Arrived(worker); });
}

// A majority is half of the workers on average, which one round cannot tell.
std::int64_t EagerRules::Needed(std::int64_t joined) const {
  return options_.quorum == EagerOptions::kMajority ? 1 : std::min(options_.quorum, joined);
}

bool EagerRules::SyncDue(std::int64_t joined) const {
  return options_.sync_every > 0 && joined > 1 && round_ - last_sync_ >= options_.sync_every;
}

bool EagerRules::Overdue(const Worker& worker) const {
  return options_.max_stale_rounds > 0 && worker.joined && worker.owed == 0 && !Arrived(worker) &&
         worker.passed >= options_.max_stale_rounds;
}

bool EagerRules::AnyOverdue() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [this](const Worker& worker) { return Overdue(worker); });
}

bool EagerRules::AnyOwed() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) { return worker.owed > 0; });
}

void EagerRules::Follow(const Decision& of) {
  if (const auto* joined = std::get_if<JoinedEvent>(&of.event)) {
    At(joined->rank) = {
        .joined = true, .iteration = joined->iteration, .host = hosts_.Add(joined->host)};
    if (of.joined == 1) last_sync_ = round_ = joined->iteration;
    if (of.joined == 1) finished_.clear();
    if (running_ == kNoGroup) round_ = std::max(round_, joined->iteration);
  } else if (const auto* ready = std::get_if<ReadyEvent>(&of.event)) {
    Worker& worker = At(ready->rank);
    worker.waiting = ready->ready.waiting;
    worker.iteration = ready->ready.iteration;
    worker.owed = ready->owed;
    if (ready->ready.gradients > 0) worker.samples = ready->ready.samples;
  } else if (const auto* finished = std::get_if<FinishedEvent>(&of.event)) {
    if (!averaging_) At(finished->rank).owed = finished->owed;
  } else if (const auto* left = std::get_if<LeftEvent>(&of.event)) {
    hosts_.Remove(At(left->rank).host);
    const std::int64_t started = running_ != kNoGroup && !averaging_ ? -1 : 0;
    if (left->why == LeftReason::kFinished) finished_.push_back({At(left->rank).samples, started});
    At(left->rank) = {};
    if (drawn_ == left->rank) drawn_ = kNoRank;
  } else if (const auto* ended = std::get_if<EndedEvent>(&of.event)) {
    OnEnded(ended->ok);
  }
}

void EagerRules::OnEnded(bool ok) {
  running_ = kNoGroup;
  Count("failures", ok ? 0 : 1);
  if (std::exchange(averaging_, false)) {
    if (ok) last_sync_ = round_;
    return;
  }
  if (ok) ++round_;
  for (Finished& finished : finished_) finished.rounds += ok ? 1 : 0;
  for (Worker& worker : workers_) {
    if (ok && worker.joined) worker.passed = worker.in_round ? 0 : worker.passed + 1;
    if (ok && worker.joined && worker.passed == options_.max_stale_rounds) Count("bounds");
    worker.in_round = false;
    if (options_.max_stale_rounds > 0 && worker.passed > options_.max_stale_rounds) {
      throw Violation("max-stale", RankName(&worker - workers_.data()) +
                                       " has been passed over in " + std::to_string(worker.passed) +
                                       " rounds, allowed are " +
                                       std::to_string(options_.max_stale_rounds));
    }
  }
}

void EagerRules::DrawInitiator(std::int64_t joined) {
  if (options_.quorum != EagerOptions::kMajority || drawn_ != kNoRank) return;
  if (running_ != kNoGroup || Arrived() == 0 || SyncDue(joined) || AnyOverdue()) return;
  if (!AnyOwed() && Arrived() < joined) return;
  std::vector<std::pair<std::int32_t, Rank>> there;  // by host, then rank
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].joined) there.emplace_back(workers_[i].host, static_cast<Rank>(i));
  }
  std::sort(there.begin(), there.end());
  const std::uint64_t start = Prng(static_cast<std::uint64_t>(options_.seed)).Next();
  Prng draw(start + static_cast<std::uint64_t>(round_ + 1));
  drawn_ = there[draw.Below(there.size())].second;
}

void EagerRules::Check(const Decision& of) {
  Follow(of);
  const bool reported = std::holds_alternative<FinishedEvent>(of.event);
  if (!reported) DrawInitiator(of.joined);
  if (of.effects.size() > 1) throw Violation("everybody", "more than one decision on an event");
  for (const Effect& effect : of.effects) {
    const auto* group = std::get_if<GroupFormed>(&effect);
    if (group == nullptr) throw Violation("everybody", "a decision that is no group");
    if (running_ != kNoGroup) throw Violation("quorum", Name(*group) + " starts while one runs");
    CheckMembers(*group, of.joined);
    if (group->kind == GroupKind::kAverage) {
      CheckAverage(*group, of.joined);
    } else {
      CheckRound(*group, of.joined);
    }
    running_ = group->id;
  }
  if (!reported) CheckIdle(of);
}

void EagerRules::CheckMembers(const GroupFormed& group, std::int64_t joined) const {
  std::set<Rank> members;
  std::vector<std::int32_t> hosts;
  for (const GroupShare& member : group.members) {
    const Worker& worker = workers_[static_cast<std::size_t>(member.rank)];
    members.insert(member.rank);
    if (hosts.empty() || hosts.back() != worker.host) hosts.push_back(worker.host);
  }
  if (std::ssize(members) != joined || members.size() != group.members.size()) {
    throw Violation("everybody", Name(group) + " has not all who have joined, once");
  }
  std::sort(hosts.begin(), hosts.end());
  if (group.reason.empty() || std::unique(hosts.begin(), hosts.end()) != hosts.end()) {
    throw Violation("everybody", Name(group) + " has a host in two pieces, or no reason");
  }
}

void EagerRules::CheckInitiator(const GroupFormed& group) const {
  if (options_.quorum != EagerOptions::kMajority) return;
  if (drawn_ != kNoRank && Arrived(drawn_)) return;
  throw Violation("initiator", Name(group) + " starts without rank " + std::to_string(drawn_) +
                                   ", which is drawn for it");
}

std::vector<std::int64_t> EagerRules::Samples() const {
  std::vector<std::int64_t> all;
  for (const Worker& worker : workers_) {
    if (worker.joined) all.push_back(worker.samples);
  }
  for (const Finished& finished : finished_) {
    const std::int64_t bound = options_.max_stale_rounds;
    if (bound == 0 || finished.rounds < bound) all.push_back(finished.samples);
  }
  return all;
}

void EagerRules::CheckRound(const GroupFormed& group, std::int64_t joined) {
  if (Arrived() < Needed(joined)) {
    throw Violation("quorum", Name(group) + " starts with " + std::to_string(Arrived()) +
                                  " arrived, where " + std::to_string(Needed(joined)) +
                                  " are needed");
  }
  if (SyncDue(joined)) {
    throw Violation("sync-every", Name(group) + " starts where an average is due");
  }
  if (AnyOverdue()) {
    throw Violation("max-stale", Name(group) + " starts without one that is passed over too often");
  }
  CheckInitiator(group);
  drawn_ = kNoRank;
  if (group.kind != GroupKind::kRound || group.iteration != round_ + 1) {
    throw Violation("everybody",
                    Name(group) + " starts where round " + std::to_string(round_ + 1) + " is due");
  }
  const std::vector<std::int64_t> samples = Samples();
  const bool by_samples = options_.weights == EagerOptions::Weights::kSamples &&
                          std::find(samples.begin(), samples.end(), 0) == samples.end();
  const double total = std::accumulate(samples.begin(), samples.end(), 0.0);
  Count("by_samples", by_samples ? 1 : 0);
  Count("finished", std::ssize(samples) > joined ? 1 : 0);
  for (const GroupShare& share : group.members) {
    Worker& worker = At(share.rank);
    double due = by_samples ? static_cast<double>(worker.samples) / total
                            : 1 / static_cast<double>(samples.size());
    if (worker.owed == 0) due = 0;
    if (std::abs(share.weight - due) > 1e-12) {
      throw Violation("contributors", RankName(share.rank) + " owes " +
                                          std::to_string(worker.owed) + " gradients and has " +
                                          std::to_string(share.weight) + " in " + Name(group));
    }
    worker.in_round = worker.owed > 0 || Arrived(worker);
  }
}

void EagerRules::CheckAverage(const GroupFormed& group, std::int64_t joined) {
  if (!SyncDue(joined) || Arrived() != joined || group.iteration != round_) {
    throw Violation("sync-every", "models are averaged (" + group.reason + ") with " +
                                      std::to_string(Arrived()) + " of " + std::to_string(joined) +
                                      " arrived, " + std::to_string(round_ - last_sync_) +
                                      " rounds after the last time");
  }
  for (const GroupShare& share : group.members) {
    if (share.weight == 1.0 / static_cast<double>(joined)) continue;
    throw Violation("sync-every", RankName(share.rank) + " has another weight in an average");
  }
  averaging_ = true;
  Count("averages");
}

void EagerRules::CheckIdle(const Decision& of) {
  if (running_ != kNoGroup || Arrived() == 0) return;
  const bool all = Arrived() == of.joined;
  const bool drawn_there = drawn_ != kNoRank && Arrived(drawn_);
  const bool enough =
      options_.quorum == EagerOptions::kMajority ? drawn_there : Arrived() >= Needed(of.joined);
  const bool may = all || (!AnyOverdue() && enough && AnyOwed() && !SyncDue(of.joined));
  if (!may) return CheckExplained(of);
  throw Violation("quorum", std::to_string(Arrived()) + " of " + std::to_string(of.joined) +
                                " have arrived at round " + std::to_string(round_ + 1) +
                                ", and nothing starts");
}

// Why those who have arrived wait: for an average, for one that is overdue, or for the initiator.
void EagerRules::CheckExplained(const Decision& of) {
  if (of.joined > kMaxWatched) return;
  const auto first = std::find_if(workers_.begin(), workers_.end(),
                                  [this](const Worker& worker) { return Arrived(worker); });
  const std::string why = of.engine.Explain(of.now, static_cast<Rank>(first - workers_.begin()));
  if (why.empty()) throw Violation("explained", "a worker has arrived and waits without a reason");
  if (SyncDue(of.joined)) return;
  if (AnyOverdue()) {
    Count("holds");
    if (why.starts_with("waits for rank")) return;
    throw Violation("max-stale", "a worker is awaited that is overdue, and the reason is: " + why);
  }
  if (!AnyOwed()) {  // also where the initiator has arrived: its step was cut short
    if (why.starts_with("waiting: nobody has a gradient")) return;
    throw Violation("explained", "nobody owes a gradient, and the reason is: " + why);
  }
  if (drawn_ == kNoRank || why.starts_with("waits for rank " + std::to_string(drawn_) + ","))
    return;
  throw Violation("initiator", RankName(drawn_) + " is awaited, not: " + why);
}

}  // namespace

// Counts bounds (workers passed over as often as they may be), holds (rounds that wait for one),
// averages, failures, by_samples (rounds with such weights), finished (rounds in which workers have
// a share that have finished).
std::unique_ptr<EngineRules> EagerOptions::Rules() const {
  return std::make_unique<EagerRules>(*this);
}

}  // namespace prd
