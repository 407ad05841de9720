#include "tools/sim/eager_rules.h"

#include <algorithm>
#include <string>

#include "common/base/prng.h"
#include "tools/sim/violation.h"

namespace prd::sim {
namespace {

std::string Name(const FormGroup& group) {
  return "round " + std::to_string(group.iteration) + " (group " + std::to_string(group.id) + ", " +
         group.reason + ")";
}

}  // namespace

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

void EagerRules::Apply(const Event& event, std::int64_t joined_now) {
  const auto at = [this](Rank rank) -> Worker& {
    const auto index = static_cast<std::size_t>(rank);
    if (index >= workers_.size()) workers_.resize(index + 1);
    return workers_[index];
  };
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    at(joined->rank) = {
        .joined = true, .iteration = joined->iteration, .host = hosts_.Add(joined->host)};
    if (joined_now == 1) last_sync_ = round_ = joined->iteration;
    if (running_ == kNoGroup) round_ = std::max(round_, joined->iteration);
  } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    Worker& worker = at(ready->rank);
    worker.waiting = ready->ready.waiting;
    worker.iteration = ready->ready.iteration;
    worker.owed = ready->owed;
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    if (!averaging_) at(finished->rank).owed = finished->owed;
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    hosts_.Remove(at(left->rank).host);
    at(left->rank) = {};
    if (drawn_ == left->rank) drawn_ = kNoRank;
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    OnEnded(ended->ok);
  }
}

void EagerRules::OnEnded(bool ok) {
  running_ = kNoGroup;
  if (averaging_) {
    averaging_ = false;
    if (ok) last_sync_ = round_;
    return;
  }
  if (ok) ++round_;
  for (Worker& worker : workers_) {
    if (ok && worker.joined) worker.passed = worker.in_round ? 0 : worker.passed + 1;
    worker.in_round = false;
    if (options_.max_stale_rounds > 0 && worker.passed > options_.max_stale_rounds) {
      throw Violation("max-stale", "rank " + std::to_string(&worker - workers_.data()) +
                                       " has been passed over in " + std::to_string(worker.passed) +
                                       " rounds, allowed are " +
                                       std::to_string(options_.max_stale_rounds));
    }
  }
}

bool EagerRules::Overdue(const Worker& worker) const {
  return options_.max_stale_rounds > 0 && worker.joined && worker.owed == 0 && !Arrived(worker) &&
         worker.passed >= options_.max_stale_rounds;
}

void EagerRules::DrawInitiator(std::int64_t joined) {
  if (options_.quorum != EagerOptions::kMajority || drawn_ != kNoRank) return;
  if (running_ != kNoGroup || Arrived() == 0 || SyncDue(joined)) return;
  std::vector<std::pair<std::int32_t, Rank>> there;  // by host, then rank
  bool owing = false;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (Overdue(workers_[i])) return;
    owing = owing || workers_[i].owed > 0;
    if (workers_[i].joined) there.emplace_back(workers_[i].host, static_cast<Rank>(i));
  }
  if (!owing && Arrived() < joined) return;
  std::sort(there.begin(), there.end());
  const std::uint64_t start = Prng(static_cast<std::uint64_t>(options_.seed)).Next();
  Prng draw(start + static_cast<std::uint64_t>(round_ + 1));
  drawn_ = there[draw.Below(there.size())].second;
}

void EagerRules::CheckInitiator(const FormGroup& group) const {
  if (options_.quorum != EagerOptions::kMajority) return;
  if (drawn_ != kNoRank && Arrived(workers_[static_cast<std::size_t>(drawn_)])) return;
  throw Violation("initiator", Name(group) + " starts without rank " + std::to_string(drawn_) +
                                   ", which is drawn for it");
}

void EagerRules::Check(Instant, const Event& event, std::span<const Effect> effects,
                       std::int64_t joined) {
  Apply(event, joined);
  if (!std::holds_alternative<FinishedEvent>(event)) DrawInitiator(joined);
  for (const FormGroup& group : GroupsOf(effects)) {
    if (running_ != kNoGroup) throw Violation("quorum", Name(group) + " starts while one runs");
    if (group.kind == GroupKind::kAverage) {
      CheckAverage(group, joined);
    } else {
      CheckRound(group, joined);
    }
    running_ = group.id;
  }
  if (!std::holds_alternative<FinishedEvent>(event)) CheckIdle(joined);
}

void EagerRules::CheckRound(const FormGroup& group, std::int64_t joined) {
  if (Arrived() < Needed(joined)) {
    throw Violation("quorum", Name(group) + " starts with " + std::to_string(Arrived()) +
                                  " arrived, where " + std::to_string(Needed(joined)) +
                                  " are needed");
  }
  if (SyncDue(joined)) {
    throw Violation("sync-every", Name(group) + " starts where an average is due");
  }
  CheckInitiator(group);
  drawn_ = kNoRank;
  for (const GroupShare& share : group.members) {
    Worker& worker = workers_[static_cast<std::size_t>(share.rank)];
    if ((share.weight > 0) != (worker.owed > 0)) {
      throw Violation("contributors", "rank " + std::to_string(share.rank) + " owes " +
                                          std::to_string(worker.owed) + " gradients and has " +
                                          std::to_string(share.weight) + " in " + Name(group));
    }
    worker.in_round = worker.owed > 0 || Arrived(worker);
  }
}

void EagerRules::CheckAverage(const FormGroup& group, std::int64_t joined) {
  if (!SyncDue(joined) || Arrived() != joined) {
    throw Violation("sync-every", "models are averaged (" + group.reason + ") with " +
                                      std::to_string(Arrived()) + " of " + std::to_string(joined) +
                                      " arrived, " + std::to_string(round_ - last_sync_) +
                                      " rounds after the last time");
  }
  averaging_ = true;
}

void EagerRules::CheckIdle(std::int64_t joined) const {
  if (running_ != kNoGroup || Arrived() == 0) return;
  const bool all = Arrived() == joined;
  const bool drawn_there = drawn_ != kNoRank && Arrived(workers_[static_cast<std::size_t>(drawn_)]);
  const bool enough =
      options_.quorum == EagerOptions::kMajority ? drawn_there : Arrived() >= Needed(joined);
  bool owing = false;
  for (const Worker& worker : workers_) {
    owing = owing || worker.owed > 0;
    if (!all && Overdue(worker)) return;
  }
  if (!all && (!enough || !owing || SyncDue(joined))) return;
  throw Violation("quorum", std::to_string(Arrived()) + " of " + std::to_string(joined) +
                                " have arrived at round " + std::to_string(round_ + 1) +
                                ", and nothing starts");
}

void EagerRules::Archive(StateArchive& ar) {
  ar(workers_, round_, last_sync_, running_, averaging_, hosts_, drawn_);
}

}  // namespace prd::sim
