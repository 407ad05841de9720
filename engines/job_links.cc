// Job: links between its workers that are broken, and groups that are held back because of them.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "engines/job.h"
#include "engines/job_limits.h"
#include "engines/words.h"

namespace prd {

// ---- which links are broken ----

// Where no group trains that is reported, a report on no group names workers with which this one
// exchanges, or draws groups itself, and that it does not reach. They may have gone since.
std::string Job::OnLinkReport(Rank rank, const Finished& finished) {
  const bool unreported = !TrainsInGroups(plan_) || FollowsSchedule(plan_);
  if (!unreported || finished.outcome != Outcome::kFailed || finished.unreachable.empty() ||
      finished.unreachable.size() > workers_.size()) {
    return "a report on group 0 while " + Explain(now_, rank);
  }
  for (const Rank other : finished.unreachable) {
    if (other < 0 || Index(other) >= workers_.size() || other == rank) {
      return "a report that rank " + std::to_string(other) + " is unreachable";
    }
  }
  BreakLinks(rank, finished.unreachable, "");
  return {};
}

std::string Job::NoteUnreachable(Rank rank, const Finished& finished) {
  if (finished.unreachable.empty()) return {};
  const auto id = std::to_string(finished.group);
  std::vector<Rank> members;
  for (const GroupShare& share : groups_.at(finished.group).members) members.push_back(share.rank);
  std::sort(members.begin(), members.end());
  const bool others =
      std::all_of(finished.unreachable.begin(), finished.unreachable.end(), [&](Rank other) {
        return other != rank && std::binary_search(members.begin(), members.end(), other);
      });
  if (!others || finished.unreachable.size() >= members.size() ||
      finished.outcome == Outcome::kOk) {
    return "a report on group " + id + " that " + words::Ranks(finished.unreachable) +
           (finished.unreachable.size() == 1 ? " is" : " are") + " unreachable";
  }
  if (finished.outcome != Outcome::kFailed) return {};  // called off before it could be known
  std::vector<Rank> same = finished.unreachable;  // who has come back since was not in that group
  std::erase_if(same, [&](Rank other) { return At(other).first_group > finished.group; });
  BreakLinks(rank, same, " in group " + id);
  return {};
}

void Job::BreakLinks(Rank asks, const std::vector<Rank>& others, const std::string& where) {
  bool changed = false;
  for (const Rank other : others) {
    if (!Present(other) || links_.broken().Has(asks, other)) continue;
    changed = true;
    if (const auto oldest = links_.OldestInExcess(asks)) {
      MendLink(asks, *oldest, "taken for whole: " + RankName(asks) + " has newer broken ones");
    }
    const std::string reason = RankName(asks) + " did not reach " + RankName(other) + where;
    links_.Break(asks, other, now_, reason);
    const auto [a, b] = std::minmax(asks, other);
    Write(LinkChanged{.a = a, .b = b, .works = false, .reason = reason});
    Introduce(asks, other, false);
    LinkToEngine(a, b, false);
  }
  if (changed) SendProbe(asks);
}

void Job::MendLink(Rank one, Rank other, const std::string& reason) {
  links_.Mend(one, other);
  const auto [a, b] = std::minmax(one, other);
  Write(LinkChanged{.a = a, .b = b, .works = true, .reason = reason});
  LinkToEngine(a, b, true);
}

// The worker has gone, and nobody need ask for it any more.
void Job::ForgetLinks(Rank rank) {
  for (const Rank other : links_.Forget(rank)) SendProbe(other);
}

std::string Job::OnProbed(Rank rank, const Probed& probed) {
  if (probed.rank < 0 || probed.rank >= spec_.max_workers || probed.rank == rank) {
    return "a probe of rank " + std::to_string(probed.rank) + " that was not asked for";
  }
  // The answer may have crossed a newer Probe.
  if (!links_.Probes(rank, probed.rank) || At(probed.rank).incarnation != probed.incarnation) {
    return {};
  }
  MendLink(rank, probed.rank, RankName(rank) + " reaches " + RankName(probed.rank) + " again");
  SendProbe(rank);
  return {};
}

void Job::SendProbe(Rank rank) {
  Probe probe;
  for (const Rank other : links_.ProbedBy(rank)) probe.targets.push_back(Describe(other));
  Send(rank, std::move(probe));
}

void Job::LinkToEngine(Rank a, Rank b, bool works) {
  look_at_held_ = true;
  if (At(a).state != State::kActive || At(b).state != State::kActive) return;
  ToEngine(LinkEvent{.a = std::min(a, b), .b = std::max(a, b), .works = works});
}

// The engine takes the links of a worker that joins for whole.
void Job::TellLinks(Rank rank) {
  look_at_held_ = true;
  for (const Rank other : links_.broken().Of(rank)) LinkToEngine(rank, other, false);
}

// ---- groups around them ----

// A group of all workers in this state could work.
bool Job::CanMeet(State from) const {
  if (links_.broken().empty()) return true;
  std::vector<Rank> ranks;
  for (Rank rank = 0; Index(rank) < workers_.size(); ++rank) {
    if (workers_[Index(rank)].state == from) ranks.push_back(rank);
  }
  return ranks.size() < 2 || !RingAround(std::move(ranks), links_.broken()).empty();
}

// Engines that draw groups ahead choose their members.
bool Job::CanHold(GroupKind kind) const {
  return OfEngine(kind) && !(DrawnAhead(plan_) && kind == GroupKind::kTrain);
}

bool Job::CanBegin(const GroupFormed& form) const {
  return std::all_of(form.members.begin(), form.members.end(), [&](const GroupShare& share) {
    const Worker& worker = workers_[Index(share.rank)];
    const bool waits = worker.signal && worker.signal->waiting;
    return worker.state == State::kActive && worker.group == kNoGroup && worker.source == kNoRank &&
           !worker.signal_held && (waits || form.kind == GroupKind::kRound);
  });
}

// With workers that are not in it the group could work.
bool Job::OthersWouldHelp(const GroupFormed& form) const {
  if (joining_ == Engine::Joining::kBarrier && started_ && Count(State::kJoining) > 0) return true;
  if (!look_at_held_) return false;
  std::vector<Rank> ranks = RanksOf(form);
  for (Rank rank = 0; Index(rank) < workers_.size(); ++rank) {
    const bool member = std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    if (!member && workers_[Index(rank)].state == State::kActive) ranks.push_back(rank);
  }
  return ranks.size() > form.members.size() &&
         !RingAround(std::move(ranks), links_.broken()).empty();
}

void Job::LookAtHeld() {
  std::vector<GroupFormed> held;
  held.swap(held_);
  for (GroupFormed& form : held) {
    if (!CanBegin(form) || OthersWouldHelp(form)) {
      DropHeld(form);
    } else if (look_at_held_) {
      Announce(std::move(form));  // it may be held back again
    } else {
      held_.push_back(std::move(form));
    }
  }
}

// To the engine it has failed, and who waits signals again.
void Job::DropHeld(const GroupFormed& form) {
  for (const GroupShare& share : form.members) {
    const Worker& worker = At(share.rank);
    if (worker.state != State::kActive) continue;
    ToEngine(FinishedEvent{.rank = share.rank, .group = form.id, .ok = false, .owed = worker.owed});
  }
  ToEngine(EndedEvent{.group = form.id, .ok = false});
  // Where a joiner is part of the barrier, before that is complete again.
  if (joining_ == Engine::Joining::kBarrier && started_ && Count(State::kJoining) > 0) {
    AdmitJoiners();
  }
  if (form.kind != GroupKind::kTrain) return;  // signals stand
  for (const GroupShare& share : form.members) {
    if (At(share.rank).state == State::kActive && !At(share.rank).signal_held) {
      HandSignal(share.rank);
    }
  }
}

// ---- in words ----

std::string Job::ExplainLinks(Instant now, Rank rank) const {
  if (links_.broken().empty()) return {};
  std::string text = links_.WordsOf(now, rank);
  const State state = workers_[Index(rank)].state;
  const bool meets = (state == State::kJoining && !started_) || state == State::kFinishing;
  if (!meets || CanMeet(state)) return text;
  if (!links_.broken().HasAny(rank)) {
    const auto [a, b] = links_.all().begin()->first;
    text += "; " + links_.Words(now, a, b);
  }
  return text + "; no ring of all workers goes around that";
}

std::string Job::ExplainHeld(Instant now, Rank rank) const {
  for (const GroupFormed& form : held_) {
    const std::vector<Rank> ranks = RanksOf(form);
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
    const auto pair = links_.broken().Among(ranks);
    std::string text =
        GroupName(form.id) + " of " + words::Ranks(ranks) + " is held back until it can work";
    if (pair && !links_.broken().HasAny(rank))
      text += ": " + links_.Words(now, pair->first, pair->second);
    return text;
  }
  return {};
}

}  // namespace prd
