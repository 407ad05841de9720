#include "tests/engines/backup_model.h"

#include <algorithm>
#include <cmath>

namespace prd {

// Whoever computes on a replica older than the newest is dropped.
void BackupModel::DropOlder() {
  for (const auto& [rank, iteration] : replicas_) newest_ = std::max(newest_, iteration);
  for (const Rank rank : joined_) {
    if (!replicas_.contains(rank) || replicas_[rank] >= newest_ || failed_.contains(rank)) continue;
    due_.insert(rank);
    replicas_.erase(rank);
    waiting_.erase(rank);
  }
}

void BackupModel::Follow(const Event& event) {
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    const bool there = std::any_of(replicas_.begin(), replicas_.end(),
                                   [this](const auto& of) { return of.second == newest_; });
    if (joined_.empty()) newest_ = joined->iteration;
    joined_.insert(joined->rank);
    replicas_[joined->rank] = joined->iteration;
    if (running_ == kNoGroup && joined->iteration < newest_ && !there) newest_ = 0;
    if (running_ == kNoGroup && joined->iteration > newest_) DropOlder();
  } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    replicas_[ready->rank] = ready->ready.iteration - 1;
    waiting_.insert(ready->rank);
    if (replicas_[ready->rank] < newest_) {
      due_.insert(ready->rank);
      replicas_.erase(ready->rank);
      waiting_.erase(ready->rank);
    } else if (running_ == kNoGroup && replicas_[ready->rank] > newest_) {
      DropOlder();
    }
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    if (finished->ok) {
      replicas_[finished->rank] = round_;
    } else {
      failed_.insert(finished->rank);
    }
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    running_ = kNoGroup;
    members_.clear();
    if (ended->ok) {
      for (const Rank rank : failed_) replicas_.erase(rank);
      newest_ = round_;
    } else if (!replicas_.empty()) {
      newest_ = 0;
    }
    DropOlder();
    failed_.clear();
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    joined_.erase(left->rank);
    replicas_.erase(left->rank);
    waiting_.erase(left->rank);
    members_.erase(left->rank);
    failed_.erase(left->rank);
  }
}

std::string BackupModel::Check(const Applied& applied) {
  due_.clear();
  Follow(applied.event);
  std::set<Rank> caught_up;
  const FormGroup* formed = nullptr;
  for (const Effect& effect : applied.effects) {
    if (const auto* late = std::get_if<CatchUp>(&effect)) {
      if (formed != nullptr || !caught_up.insert(late->rank).second) return "dropped out of order";
    } else if (const auto* group = std::get_if<FormGroup>(&effect)) {
      if (formed != nullptr) return "two rounds at once";
      formed = group;
    } else {
      return "an answer";
    }
  }
  if (caught_up != due_) return "others than those that are behind are dropped";
  dropped_ += static_cast<int>(due_.size());
  const auto needed = std::max<std::ptrdiff_t>(1, std::ssize(joined_) - options_.backups);
  const bool due = running_ == kNoGroup && std::ssize(waiting_) >= needed;
  if (due != (formed != nullptr)) return due ? "a round is missing" : "a round too many";
  if (due) {
    if (auto wrong = CheckRound(*formed); !wrong.empty()) return wrong;
  }
  for (const Rank rank : joined_) {
    const bool explained = !engine_->Explain(applied.now, rank).empty();
    if (explained != waiting_.contains(rank)) return "explains who does not wait, or not who does";
  }
  return "";
}

std::string BackupModel::CheckRound(const FormGroup& group) {
  std::set<Rank> members;
  for (const GroupShare& member : group.members) {
    members.insert(member.rank);
    if (std::abs(member.weight * static_cast<double>(waiting_.size()) - 1) > 1e-12) {
      return "unequal weights";
    }
    if (member.iteration != newest_ + 1) return "a member of another iteration";
  }
  if (members != waiting_ || members.size() != group.members.size()) {
    return "not all that wait are members, once";
  }
  if (group.iteration != newest_ + 1 || group.kind != GroupKind::kTrain) return "another round";
  members_.swap(waiting_);
  waiting_.clear();
  running_ = group.id;
  round_ = group.iteration;
  ++rounds_;
  return "";
}

}  // namespace prd
