// The invariants of engine backup (Chen et al., 2016), beside a reference that looks at every
// worker at every event and decides for itself what the event must lead to.
//
// quorum: a round has N - b members or more of the N that have joined: all that wait, each once.
// One round runs at a time, and a round forms as soon as so many wait, and none of those is awaited
// any more that had to copy a replica since the last round formed. A worker is awaited if, going by
// the last time that it copied, it is due within an eighth of what it took then, from when so many
// first wait; and for no longer.
//
// weights: by the members' samples where all have told some, else equal.
//
// iterations: a round's members offer gradients for its iteration, which follows the newest that is
// known to be committed.
//
// dropped: what is computed on a replica older than the newest is dropped, and before a round
// forms; and nothing else is. At once; or, if its worker would be late for the next round, too, but
// would be in time for one with which it begins, when the next round has ended, or is an eighth
// later than the last one was.
//
// patience: no worker waits for a round with others for longer than its own turn takes.
//
// explained: a worker has a reason to wait while it waits, and only then (in jobs of up to
// kMaxWatched workers).
#include "engines/rules.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "engines/backup/options.h"

namespace prd {
namespace {

class BackupRules final : public EngineRules {
 public:
  explicit BackupRules(const BackupOptions& options) : options_(options) {}
  void Check(const Decision& of) override;
  void Archive(StateArchive& ar) override {
    ar(replicas_, waiting_, samples_, failed_, newest_, round_, running_, copying_, took_,
       candidates_, enough_, awaited_, until_, outdated_, formed_at_, period_);
  }

 private:
  void Follow(Instant now, const Event& event);
  void OnReady(Instant now, const ReadyEvent& event);
  void OnEnded(Instant now, bool ok);
  void Drop(Instant now, Rank rank);
  void DropOlder(Instant now);
  // A round may form now, as far as those are concerned who had to copy.
  bool NobodyIsAwaited(Instant now);
  bool BeginsWithTheOthers(Instant now, Rank rank) const;
  Instant Expected() const { return *formed_at_ + period_ + period_ / 8; }
  void CheckPatience(Instant now);
  std::ptrdiff_t Needed() const {
    return std::max<std::ptrdiff_t>(1, std::ssize(present()) - options_.backups);
  }
  // Workers that could be in a round.
  std::ptrdiff_t UpToDate() const {
    return std::ssize(present()) - std::ssize(copying_) - std::ssize(outdated_);
  }
  void CheckDropped(std::span<const Effect> effects);
  void CheckRound(const GroupFormed& group);

  const BackupOptions options_;
  std::map<Rank, Iteration> replicas_;  // of the workers whose iteration is known
  std::set<Rank> waiting_;
  std::map<Rank, std::int64_t> samples_;  // of the newest signal of each that has joined
  std::set<Rank> failed_;                 // members of the round that runs for whom it has failed
  Iteration newest_ = 0;
  Iteration round_ = 0;  // that runs
  GroupId running_ = kNoGroup;
  std::set<Rank> due_;               // to be dropped, on the event at hand
  std::map<Rank, Instant> copying_;  // since when; nothing has been heard of them yet
  std::map<Rank, DurationNs> took_;  // to the next signal, the last time that it copied
  std::set<Rank> candidates_;        // who had to copy since the last round formed
  std::optional<Instant> enough_;    // when enough waited
  std::set<Rank> awaited_;
  Instant until_;
  std::map<Rank, Instant> outdated_;  // since when those have signalled who are dropped later
  std::optional<Instant> formed_at_;  // the last round
  DurationNs period_ = 0;             // between the last two
};

void BackupRules::Drop(Instant now, Rank rank) {
  due_.insert(rank);
  outdated_.erase(rank);
  copying_[rank] = now;
  candidates_.insert(rank);
  replicas_.erase(rank);
  waiting_.erase(rank);
}

void BackupRules::DropOlder(Instant now) {
  for (const auto& [rank, iteration] : replicas_) newest_ = std::max(newest_, iteration);
  for (const Rank rank : present()) {
    const auto replica = replicas_.find(rank);
    if (replica == replicas_.end() || replica->second >= newest_ || failed_.contains(rank))
      continue;
    Drop(now, rank);
  }
  for (const auto& [rank, since] : std::exchange(outdated_, {})) {
    waiting_.insert(rank);  // nobody has anything newer any more
  }
}

void BackupRules::OnEnded(Instant now, bool ok) {
  running_ = kNoGroup;
  if (ok) {
    for (const Rank rank : failed_) {
      replicas_.erase(rank);
      copying_[rank] = now;
      candidates_.insert(rank);
    }
    newest_ = round_;
  } else if (!replicas_.empty()) {
    newest_ = 0;
  }
  DropOlder(now);
  failed_.clear();
}

void BackupRules::OnReady(Instant now, const ReadyEvent& event) {
  const Iteration replica = event.ready.iteration - 1;
  replicas_[event.rank] = replica;
  samples_[event.rank] = event.ready.samples;
  waiting_.insert(event.rank);
  awaited_.erase(event.rank);
  if (const auto copying = copying_.extract(event.rank)) {
    took_[event.rank] = std::max<DurationNs>(1, now - copying.mapped());
  }
  if (replica < newest_ && BeginsWithTheOthers(now, event.rank)) {
    Count("begins");
    waiting_.erase(event.rank);
    outdated_[event.rank] = now;
  } else if (replica < newest_) {
    Drop(now, event.rank);
  } else if (running_ == kNoGroup && replica > newest_) {
    DropOlder(now);
  }
}

bool BackupRules::BeginsWithTheOthers(Instant now, Rank rank) const {
  const auto took = took_.find(rank);
  if (took == took_.end() || period_ == 0 || UpToDate() - 1 < Needed()) return false;
  const Instant next = Expected();
  return *formed_at_ + took->second <= next && now < next && now + took->second > next;
}

bool BackupRules::NobodyIsAwaited(Instant now) {
  if (!enough_) {
    enough_ = until_ = now;
    for (const Rank rank : candidates_) {
      if (!copying_.contains(rank) || !took_.contains(rank)) continue;
      const DurationNs eighth = took_[rank] / 8;
      if (copying_[rank] + took_[rank] > now + eighth) continue;
      awaited_.insert(rank);
      until_ = std::max(until_, now + eighth);
    }
  }
  if (!awaited_.empty() && now < until_) return false;
  Count("came", now > *enough_ && awaited_.empty() ? 1 : 0);
  Count("in_vain", awaited_.empty() ? 0 : 1);
  return true;
}

void BackupRules::Follow(Instant now, const Event& event) {
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    const bool there = joined->newest >= newest_ ||
                       std::any_of(replicas_.begin(), replicas_.end(),
                                   [this](const auto& of) { return of.second == newest_; });
    if (present().size() == 1) newest_ = joined->iteration;
    replicas_[joined->rank] = joined->iteration;
    if (running_ == kNoGroup && joined->iteration < newest_ && !there) newest_ = 0;
    if (running_ == kNoGroup && joined->iteration > newest_) DropOlder(now);
  } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    OnReady(now, *ready);
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    if (finished->ok) {
      replicas_[finished->rank] = round_;
    } else {
      failed_.insert(finished->rank);
    }
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    OnEnded(now, ended->ok);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    replicas_.erase(left->rank);
    waiting_.erase(left->rank);
    samples_.erase(left->rank);
    failed_.erase(left->rank);
    copying_.erase(left->rank);
    took_.erase(left->rank);
    outdated_.erase(left->rank);
    awaited_.erase(left->rank);
  }
}

void BackupRules::CheckDropped(std::span<const Effect> effects) {
  std::set<Rank> dropped;
  for (const Effect& effect : effects) {
    const auto* late = std::get_if<UpdateDropped>(&effect);
    if (late == nullptr) continue;
    if (!dropped.insert(late->rank).second) {
      throw Violation("dropped", RankName(late->rank) + " is dropped twice");
    }
    if (due_.contains(late->rank)) continue;
    throw Violation("dropped", RankName(late->rank) + " at iteration " +
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
  Follow(of.now, of.event);
  const bool looks = !std::holds_alternative<FinishedEvent>(of.event) &&
                     !std::holds_alternative<LinkEvent>(of.event);
  if (looks && !outdated_.empty() && of.now >= Expected()) {
    Count("let_go", std::ssize(outdated_));
    for (const auto& [rank, since] : std::map(outdated_)) Drop(of.now, rank);
  }
  CheckDropped(of.effects);
  const GroupFormed* formed = nullptr;
  for (const Effect& effect : of.effects) {
    if (const auto* group = std::get_if<GroupFormed>(&effect); group != nullptr && !formed) {
      formed = group;
    } else if (formed != nullptr || !std::holds_alternative<UpdateDropped>(effect)) {
      throw Violation("quorum", "a decision beside a round, and after it");
    }
  }
  const auto needed = Needed();
  const bool enough = running_ == kNoGroup && !waiting_.empty() && std::ssize(waiting_) >= needed;
  const bool due = enough && looks && NobodyIsAwaited(of.now);
  if (due != (formed != nullptr)) {
    throw Violation("quorum", std::to_string(waiting_.size()) + " of " +
                                  std::to_string(present().size()) + " wait, " +
                                  std::to_string(needed) + " are needed, and " +
                                  (due ? "no round forms" : NameOf(*formed) + " forms") +
                                  (running_ != kNoGroup ? "; a round runs" : ""));
  }
  if (due) {
    CheckRound(*formed);
    period_ = formed_at_ ? of.now - *formed_at_ : 0;
    formed_at_ = of.now;
  }
  auto deadline = enough && !due ? std::optional(until_) : std::nullopt;
  if (!outdated_.empty()) deadline = std::min(deadline.value_or(Expected()), Expected());
  if (of.engine.NextDeadline() != deadline) {
    throw Violation("quorum", "the engine's deadline is not when nobody is awaited any more");
  }
  if (looks) CheckPatience(of.now);
  if (of.joined > kMaxWatched) return;
  for (const Rank rank : present()) {
    const bool explained = !of.engine.Explain(of.now, rank).empty();
    if (explained == (waiting_.contains(rank) || outdated_.contains(rank))) continue;
    throw Violation("explained", RankName(rank) + " waits without a reason, or has one");
  }
}

void BackupRules::CheckPatience(Instant now) {
  if (running_ != kNoGroup) return;
  for (const auto& [rank, since] : outdated_) {
    if (now - since <= took_[rank]) continue;
    throw Violation("patience", RankName(rank) + " waits for longer than its own turn takes");
  }
}

void BackupRules::CheckRound(const GroupFormed& group) {
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
      throw Violation("weights", RankName(member.rank) + " has " + std::to_string(member.weight) +
                                     " in " + NameOf(group) + ", due is " + std::to_string(due));
    }
    if (member.iteration == newest_ + 1) continue;
    throw Violation("iterations", RankName(member.rank) + " offers a gradient for iteration " +
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
  candidates_.clear();
  awaited_.clear();
  enough_.reset();
  running_ = group.id;
  round_ = group.iteration;
  Count("rounds");
}

}  // namespace

// Counts rounds, dropped, came and in_vain (rounds that waited for who had to copy), begins
// (outdated workers that are dropped later), let_go (of those, when no round came).
std::unique_ptr<EngineRules> BackupOptions::Rules() const {
  return std::make_unique<BackupRules>(*this);
}

}  // namespace prd
