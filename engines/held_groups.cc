#include "engines/held_groups.h"

#include <algorithm>
#include <utility>

#include "engines/words.h"

namespace prd {

void HeldGroups::Announce(GroupFormed form) {
  bool ring_only = false;
  if (links_.broken().empty()) {
    tried_since_.reset();
  } else {
    const bool holds = CanHold(form.kind);
    if (holds && links_.broken().Among(RanksOf(form))) {
      if (!tried_since_) tried_since_ = run_.now();
      survey_ = survey_ || std::exchange(doubt_, false);
      if (survey_ || run_.now() >= GivesUpAt()) return Hold(std::move(form));
    }
    if (!ArrangeAsRing(links_.broken(), &form, &ring_only) && holds) {
      return Hold(std::move(form));
    }
  }
  groups_.Announce(std::move(form), ring_only);
}

void HeldGroups::Hold(GroupFormed form) {
  judge_at_ = std::max(GivesUpAt(), run_.now() + 1);
  held_.push_back(std::move(form));
}

Instant HeldGroups::GivesUpAt() const {
  return std::max(tried_since_.value_or(run_.now()), groups_.worked_at()) +
         run_.spec.lease_ms * kMillisecond;
}

bool HeldGroups::LeaveFewBehind(const std::vector<Rank>& ranks) {
  if (run_.now() < GivesUpAt()) return false;
  tried_since_ = run_.now();
  std::vector<std::string> hosts;
  for (const Rank rank : ranks) hosts.push_back(run_.roster[rank].host);
  const std::vector<Rank> few = FewInTheWay(ranks, hosts, links_.broken());
  for (const Rank rank : few) {
    links_.LeaveApart(rank);
    run_.LeaveBehind(rank, "most others do not reach it, and no group has worked for " +
                               std::to_string(run_.spec.lease_ms) + " ms (lease_ms)");
  }
  return !few.empty();
}

bool HeldGroups::GivesUp(const std::vector<Rank>& ranks) {
  if (!tried_since_) tried_since_ = run_.now();
  Instant at = GivesUpAt();
  for (const Rank rank : ranks) {
    at = std::max(at, run_.roster[rank].since + run_.spec.lease_ms * kMillisecond);
  }
  if (run_.now() >= at) return true;
  judge_at_ = at;
  return false;
}

bool HeldGroups::MeetWithoutFew(WorkerState state) {
  const std::vector<Rank> ranks = run_.roster.RanksIn(state);
  return GivesUp(ranks) && LeaveFewBehind(ranks);
}

void HeldGroups::Clear() {
  held_.clear();
  tried_since_.reset();
  judge_at_.reset();
  doubt_ = survey_ = false;
}

// Engines that draw groups ahead choose their members.
bool HeldGroups::CanHold(GroupKind kind) const {
  return OfEngine(kind) && !(DrawnAhead(run_.plan) && kind == GroupKind::kTrain);
}

bool HeldGroups::CanBegin(const GroupFormed& form) const {
  return std::all_of(form.members.begin(), form.members.end(), [&](const GroupShare& share) {
    const RunWorker& worker = run_.roster[share.rank];
    return worker.state == WorkerState::kActive && worker.group == kNoGroup &&
           worker.source == kNoRank && !worker.Held(ReadySlot::kForReplica) &&
           (worker.Waits() || form.kind == GroupKind::kRound);
  });
}

// Joiners would be part of the barrier.
bool HeldGroups::JoinersWait() const {
  return run_.joining == Engine::Joining::kBarrier && start_.made() &&
         run_.roster.Count(WorkerState::kJoining) > 0;
}

// With workers that are not in it the group could work.
bool HeldGroups::OthersWouldHelp(const GroupFormed& form) const {
  if (JoinersWait()) return true;
  if (!changed_) return false;
  std::vector<Rank> ranks = RanksOf(form);
  for (Rank rank = 0; rank < run_.roster.size(); ++rank) {
    const bool member = std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    if (!member && run_.roster[rank].state == WorkerState::kActive) ranks.push_back(rank);
  }
  return ranks.size() > form.members.size() &&
         !RingAround(std::move(ranks), links_.broken()).empty();
}

void HeldGroups::Look() {
  const bool judges = judge_at_ && run_.now() >= *judge_at_;
  if (judges) judge_at_.reset();
  std::vector<GroupFormed> held;
  held.swap(held_);
  for (GroupFormed& form : held) {
    if (judges && CanBegin(form)) LeaveFewBehind(RanksOf(form));
    if (!CanBegin(form) || OthersWouldHelp(form)) {
      Drop(form);
    } else if (changed_ || judges) {
      Announce(std::move(form));  // it may be held back again
    } else {
      held_.push_back(std::move(form));
    }
  }
}

// For the engine the group has failed, and workers that wait signal again.
void HeldGroups::Drop(const GroupFormed& form) {
  for (const GroupShare& share : form.members) {
    const RunWorker& worker = run_.roster[share.rank];
    if (worker.state != WorkerState::kActive) continue;
    run_.run.ToEngine(
        FinishedEvent{.rank = share.rank, .group = form.id, .ok = false, .owed = worker.owed});
  }
  run_.run.ToEngine(EndedEvent{.group = form.id, .ok = false});
  // Joiners become part of the barrier before it is complete again.
  if (JoinersWait()) run_.run.AdmitJoiners();
  if (form.kind != GroupKind::kTrain) return;  // signals stand
  for (const GroupShare& share : form.members) {
    if (!run_.roster[share.rank].Held(ReadySlot::kForReplica)) run_.run.DeliverReady(share.rank);
  }
}

bool HeldGroups::CanMeet(WorkerState state) const {
  if (links_.broken().empty()) return true;
  std::vector<Rank> ranks = run_.roster.RanksIn(state);
  return ranks.size() < 2 || !RingAround(std::move(ranks), links_.broken()).empty();
}

std::string HeldGroups::Words(Instant now, Rank rank) const {
  for (const GroupFormed& form : held_) {
    const std::vector<Rank> ranks = RanksOf(form);
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
    const auto pair = links_.broken().Among(ranks);
    std::string text =
        GroupName(form.id) + " of " + words::Ranks(ranks) + " is held back until it can work";
    if (pair && !links_.broken().HasAny(rank)) {
      text += ": " + links_.Words(now, pair->first, pair->second);
    }
    return text;
  }
  return {};
}

bool HeldGroups::Restore() const {
  for (const GroupFormed& form : held_) {
    for (const GroupShare& share : form.members) {
      if (!run_.roster.Present(share.rank)) return false;
    }
  }
  return true;
}

}  // namespace prd
