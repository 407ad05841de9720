// Job: what operators do to it from outside.
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "engines/job.h"
#include "engines/job_limits.h"
#include "engines/words.h"

namespace prd {
namespace {

constexpr std::size_t kMaxHosts = 8;  // in an error

std::string By(const OperatorActed& act) {
  return act.by + (act.reason.empty() ? "" : ": " + act.reason);
}

}  // namespace

bool Job::OnHost(Rank rank, const std::string& host) const {
  const Worker& worker = workers_[Index(rank)];
  return Present(rank) && (worker.host_name == host || worker.host == host);
}

Status Job::CheckAct(const OperatorActed& act) const {
  const auto no = [&](const std::string& why, Code code = Code::kFailedPrecondition) {
    return Status(code, "job " + spec_.name + why);
  };
  if (act.reason.size() > kMaxName || act.by.size() > kMaxName || act.host.size() > kMaxName) {
    return Status(Code::kInvalidArgument,
                  "a reason, and a host, have " + std::to_string(kMaxName) + " bytes at most");
  }
  switch (act.verb) {
    case OperatorVerb::kEvict:
      if (Present(act.rank)) return Status::Ok();
      return no(": no worker holds rank " + std::to_string(act.rank), Code::kNotFound);
    case OperatorVerb::kDrain: {
      std::set<std::string> hosts;
      bool found = false;
      bool fresh = false;
      for (Rank rank = 0; Index(rank) < workers_.size(); ++rank) {
        if (!Present(rank)) continue;
        hosts.insert(workers_[Index(rank)].host_name);
        if (!OnHost(rank, act.host)) continue;
        found = true;
        fresh = fresh || !orders_.Drains(rank);
        if (engine_->leaving(rank) != Engine::Leaving::kNever) continue;
        return no(": rank " + std::to_string(rank) +
                  " has what no other worker has a copy of, and it would be lost (replicas = 0 of "
                  "the engine); evict it if it may be");
      }
      if (!found) {
        std::string all;
        std::size_t shown = 0;
        for (const std::string& host : hosts) {
          if (++shown > kMaxHosts) break;
          all += (all.empty() ? "" : ", ") + host;
        }
        return no(" has no worker on host " + act.host + "; its hosts are " + all +
                      (hosts.size() > kMaxHosts
                           ? " and " + std::to_string(hosts.size() - kMaxHosts) + " more"
                           : ""),
                  Code::kNotFound);
      }
      return fresh ? Status::Ok() : no(": host " + act.host + " is drained already");
    }
    case OperatorVerb::kEnd:
      if (switching()) return no(" is about to go on in another run; try again then");
      if (clock_.done()) return no(" is done already: its workers stop by themselves");
      if (begun_) return Status::Ok();
      return no(" has not begun: there is nothing to end. Its workers can be evicted");
    case OperatorVerb::kPause:
      if (switching()) return no(" is about to go on in another run; try again then");
      if (paused()) return no(" is paused already, by " + paused()->by);
      if (clock_.done()) return no(" is done: its workers stop by themselves");
      if (!FollowsSchedule(plan_)) return Status::Ok();
      return no(
          " cannot be paused: its workers follow a schedule, and ask the controller for "
          "nothing");
    case OperatorVerb::kResume:
      return paused() ? Status::Ok() : no(" is not paused");
    case OperatorVerb::kSwitch:
      return CheckSwitch(act);
  }
  return no(": an operator does nothing of the kind", Code::kInvalidArgument);
}

void Job::OnAct(const OperatorActed& act) {
  switch (act.verb) {
    case OperatorVerb::kEvict:
      Dismiss(act.rank, LeftReason::kEvicted, "evicted by " + By(act));
      break;
    case OperatorVerb::kDrain:
      for (Rank rank = 0; Index(rank) < workers_.size(); ++rank) {
        if (OnHost(rank, act.host)) orders_.Drain(rank, "drained by " + By(act));
      }
      break;
    case OperatorVerb::kEnd:
      orders_.Resume();
      clock_.End();
      Write(GoalReached{progress().trained});
      break;
    case OperatorVerb::kPause:
      orders_.Pause({.by = act.by, .reason = act.reason, .since = now_});
      break;
    case OperatorVerb::kResume:
      orders_.Resume();
      break;
    case OperatorVerb::kSwitch:
      OnSwitch(act);
      break;
  }
}

// Groups of the plan take workers without a signal of theirs: one that only holds its signals back
// would be in group after group.
bool Job::StopsInGroups(Rank rank) const {
  const bool unasked = TrainsInRounds(plan_) || (DrawnAhead(plan_) && !FollowsSchedule(plan_));
  return unasked && workers_[Index(rank)].state == State::kActive;
}

// It is in no group, and nobody needs anything of it.
bool Job::MayGo(Rank rank) const {
  const Worker& worker = workers_[Index(rank)];
  // Another member may still read what this one has sent, also in a group before its newest.
  for (const auto& [id, group] : groups_) {
    for (const GroupShare& member : group.members) {
      if (member.rank == rank) return false;
    }
  }
  if (worker.state == State::kFinal) return false;  // it goes with the others
  for (const Worker& other : workers_) {
    if (other.state != State::kAbsent && other.source == rank) return false;
  }
  // The step that its signal ends is to count.
  const bool asked = worker.state == State::kActive && worker.signal && worker.signal->waiting &&
                     !worker.signal_withheld && !worker.signal_held && !worker.compared;
  return (!asked || paused()) && engine_->leaving(rank) != Engine::Leaving::kLater;
}

// A draining worker gets into no more groups, and goes when it is in none. The others hear of it as
// if it had left then.
void Job::LetDrainingGo() {
  std::vector<Rank> ranks;
  for (const auto& [rank, why] : draining()) ranks.push_back(rank);
  for (const Rank rank : ranks) {
    if (!orders_.Drains(rank)) continue;
    if (StopsInGroups(rank)) {
      Worker& worker = At(rank);
      worker.signal.reset();
      SetWithheld(rank, false);
      worker.stopped_at = clock_.gained().steps;
      SetState(rank, State::kPaused);
      Write(WorkerLeft{.rank = rank,
                       .incarnation = worker.incarnation,
                       .why = LeftReason::kPaused,
                       .reason = draining().at(rank),
                       .gradients = worker.owed});
      ToEngine(LeftEvent{.rank = rank, .why = LeftReason::kPaused});
    }
    if (MayGo(rank)) Dismiss(rank, LeftReason::kLeft, std::string(draining().at(rank)));
  }
}

void Job::Dismiss(Rank rank, LeftReason why, const std::string& reason) {
  orders_.Dismiss(At(rank).incarnation, reason);
  Send(rank, Released{.reason = reason});
  Remove(rank, why, reason);
}

std::string Job::LeavesWords(Rank rank) const {
  const Worker& worker = workers_[Index(rank)];
  const std::string until = worker.group != kNoGroup ? GroupName(worker.group) + " is through"
                                                     : "the others need nothing of it any more";
  return draining().at(rank) + "; leaves once " + until;
}

}  // namespace prd
