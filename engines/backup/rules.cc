// The invariants of engine backup (Chen et al., 2016), beside a reference that looks at every
// worker at every event and decides for itself what the event must lead to.
//
// quorum: a round has N - b members or more of the N that have joined: all that wait, each once.
// One round runs at a time, and a round forms as soon as so many wait.
//
// weights: by the members' samples where all have told some, else equal.
//
// iterations: a round's members offer gradients for its iteration, which follows the newest that is
// known to be committed.
//
// dropped: what is computed on a replica older than the newest is dropped, at once, and before a
// round forms; and nothing else is.
//
// explained: a worker has a reason to wait while it waits, and only then (in jobs of up to
// kMaxWatched workers).
#include "engines/rules.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "engines/backup/options.h"

namespace prd {
namespace {

class BackupRules final : public EngineRules {
 public:
  explicit BackupRules(const BackupOptions& options) : options_(options) {}
  void Check(const Decision& of) override;
  void Archive(StateArchive& ar) override {
    ar(replicas_, joined_, waiting_, samples_, failed_, newest_, round_, running_);
  }

 private:
  void Follow(const Event& event);
  void OnEnded(bool ok);
  void Drop(Rank rank);
  void DropOlder();
  void CheckDropped(std::span<const Effect> effects);
  void CheckRound(const FormGroup& group);

  const BackupOptions options_;
  std::map<Rank, Iteration> replicas_;  // of the workers whose iteration is known
  std::set<Rank> joined_;
  std::set<Rank> waiting_;
  std::map<Rank, std::int64_t> samples_;  // of the newest signal of each that has joined
  std::set<Rank> failed_;                 // members of the round that runs for whom it has failed
  Iteration newest_ = 0;
  Iteration round_ = 0;  // that runs
  GroupId running_ = kNoGroup;
  std::set<Rank> due_;  // to be dropped, on the event at hand
};

void BackupRules::Drop(Rank rank) {
  due_.insert(rank);
  replicas_.erase(rank);
  waiting_.erase(rank);
}

void BackupRules::DropOlder() {
  for (const auto& [rank, iteration] : replicas_) newest_ = std::max(newest_, iteration);
  for (const Rank rank : joined_) {
    const auto replica = replicas_.find(rank);
    if (replica == replicas_.end() || replica->second >= newest_ || failed_.contains(rank))
      continue;
    Drop(rank);
  }
}

void BackupRules::OnEnded(bool ok) {
  running_ = kNoGroup;
  if (ok) {
    for (const Rank rank : failed_) replicas_.erase(rank);
    newest_ = round_;
  } else if (!replicas_.empty()) {
    newest_ = 0;
  }
  DropOlder();
  failed_.clear();
}

void BackupRules::Follow(const Event& event) {
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    const bool there = std::any_of(replicas_.begin(), replicas_.end(),
                                   [this](const auto& of) { return of.second == newest_; });
    if (joined_.empty()) newest_ = joined->iteration;
    joined_.insert(joined->rank);
    replicas_[joined->rank] = joined->iteration;
    if (running_ == kNoGroup && joined->iteration < newest_ && !there) newest_ = 0;
    if (running_ == kNoGroup && joined->iteration > newest_) DropOlder();
  } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    const Iteration replica = ready->ready.iteration - 1;
    replicas_[ready->rank] = replica;
    samples_[ready->rank] = ready->ready.samples;
    waiting_.insert(ready->rank);
    if (replica < newest_) {
      Drop(ready->rank);
    } else if (running_ == kNoGroup && replica > newest_) {
      DropOlder();
    }
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    if (finished->ok) {
      replicas_[finished->rank] = round_;
    } else {
      failed_.insert(finished->rank);
    }
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    OnEnded(ended->ok);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    joined_.erase(left->rank);
    replicas_.erase(left->rank);
    waiting_.erase(left->rank);
    samples_.erase(left->rank);
    failed_.erase(left->rank);
  }
}

void BackupRules::CheckDropped(std::span<const Effect> effects) {
  std::set<Rank> dropped;
  for (const Effect& effect : effects) {
    const auto* late = std::get_if<CatchUp>(&effect);
    if (late == nullptr) continue;
    if (!dropped.insert(late->rank).second) {
      throw Violation("dropped", NameOf(late->rank) + " is dropped twice");
    }
    if (due_.contains(late->rank)) continue;
    throw Violation("dropped", NameOf(late->rank) + " at iteration " +
                                   std::to_string(late->iteration) +
                                   " loses its update, and nobody is further: " + late->reason);
  }
  if (dropped.size() != due_.size()) {
    throw Violation("dropped", std::to_string(due_.size()) + " updates are late, and " +
                                   std::to_string(dropped.size()) + " are dropped");
  }
  Count("dropped", std::ssize(dropped));
}

void BackupRules::Check(const Decision& of) {
  due_.clear();
  Follow(of.event);
  CheckDropped(of.effects);
  const FormGroup* formed = nullptr;
  for (const Effect& effect : of.effects) {
    if (const auto* group = std::get_if<FormGroup>(&effect); group != nullptr && !formed) {
      formed = group;
    } else if (formed != nullptr || !std::holds_alternative<CatchUp>(effect)) {
      throw Violation("quorum", "a decision beside a round, and after it");
    }
  }
  const auto needed = std::max<std::ptrdiff_t>(1, std::ssize(joined_) - options_.backups);
  const bool due = running_ == kNoGroup && std::ssize(waiting_) >= needed;
  if (due != (formed != nullptr)) {
    throw Violation("quorum", std::to_string(waiting_.size()) + " of " +
                                  std::to_string(joined_.size()) + " wait, " +
                                  std::to_string(needed) + " are needed, and " +
                                  (due ? "no round forms" : NameOf(*formed) + " forms") +
                                  (running_ != kNoGroup ? "; a round runs" : ""));
  }
  if (due) CheckRound(*formed);
  if (of.joined > kMaxWatched) return;
  for (const Rank rank : joined_) {
    const bool explained = !of.engine.Explain(of.now, rank).empty();
    if (explained == waiting_.contains(rank)) continue;
    throw Violation("explained", NameOf(rank) + " waits without a reason, or has one");
  }
}

void BackupRules::CheckRound(const FormGroup& group) {
  bool by_samples = options_.weights == BackupOptions::Weights::kSamples;
  double total = 0;
  for (const Rank rank : waiting_) {
    by_samples = by_samples && samples_[rank] > 0;
    total += static_cast<double>(samples_[rank]);
  }
  std::set<Rank> members;
  for (const GroupShare& member : group.members) {
    members.insert(member.rank);
    const double due = by_samples ? static_cast<double>(samples_[member.rank]) / total
                                  : 1 / static_cast<double>(waiting_.size());
    if (std::abs(member.weight - due) > 1e-12) {
      throw Violation("weights", NameOf(member.rank) + " has " + std::to_string(member.weight) +
                                     " in " + NameOf(group) + ", due is " + std::to_string(due));
    }
    if (member.iteration == newest_ + 1) continue;
    throw Violation("iterations", NameOf(member.rank) + " offers a gradient for iteration " +
                                      std::to_string(member.iteration) + " in " + NameOf(group) +
                                      ", due is " + std::to_string(newest_ + 1));
  }
  if (members != waiting_ || members.size() != group.members.size()) {
    throw Violation("quorum", NameOf(group) + " has not all that wait, once");
  }
  if (group.iteration != newest_ + 1 || group.kind != GroupKind::kTrain) {
    throw Violation("iterations", NameOf(group) + " is of iteration " +
                                      std::to_string(group.iteration) + ", due is " +
                                      std::to_string(newest_ + 1));
  }
  waiting_.clear();
  running_ = group.id;
  round_ = group.iteration;
  Count("rounds");
}

}  // namespace

// Counts rounds, dropped.
std::unique_ptr<EngineRules> BackupOptions::Rules() const {
  return std::make_unique<BackupRules>(*this);
}

}  // namespace prd
