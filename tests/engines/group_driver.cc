#include "tests/engines/group_driver.h"

#include <algorithm>
#include <utility>

namespace prd {

std::vector<Rank> GroupDriver::In(State state) const {
  std::vector<Rank> ranks;
  for (const auto& [rank, worker] : workers_) {
    if (worker.state == state) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<Rank> GroupDriver::Present() const {
  std::vector<Rank> ranks;
  for (const auto& [rank, worker] : workers_) ranks.push_back(rank);
  return ranks;
}

std::string GroupDriver::Heed(const Effect& effect, const Event& cause) {
  if (const auto* form = std::get_if<GroupFormed>(&effect)) return Form(*form);
  if (const auto* answer = std::get_if<QueryAnswered>(&effect)) {
    if (Ahead()) return AnswerAhead(*answer);
    const auto* ready = std::get_if<ReadyEvent>(&cause);
    if (ready == nullptr || ready->rank != answer->rank) return "an answer to nothing";
    Worker& worker = workers_[answer->rank];
    worker.told_ready = answer->ready;
    if (!answer->ready) worker.state = State::kComputing;
    return answer->reason.empty() ? "an answer without a reason" : "";
  }
  if (!std::holds_alternative<UpdateDropped>(effect)) return "another effect";
  const auto& late = std::get<UpdateDropped>(effect);
  const auto found = workers_.find(late.rank);
  if (found == workers_.end()) return "nobody is to catch up";
  Worker& worker = found->second;
  if (worker.group != kNoGroup || worker.state == State::kCopying) {
    return "rank " + std::to_string(late.rank) + " is to catch up and cannot";
  }
  if (worker.state == State::kFailed || late.reason.empty()) return "a bad order to catch up";
  worker.source = NewestReplica();
  if (worker.source > worker.iteration) {
    worker.state = State::kCopying;
  } else {
    behind_.push_back(late.rank);
  }
  return "";
}

std::string GroupDriver::Form(const GroupFormed& group) {
  if (Ahead()) return FormAhead(group);
  const std::string name = "group " + std::to_string(group.id);
  Running& running = groups_[group.id];
  running.kind = group.kind;
  running.iteration = group.iteration;
  if (group.kind != GroupKind::kTrain) {
    if (groups_.size() > 1) return name + " is formed while another one runs";
    if (group.members.size() != workers_.size()) return name + " is not one of all";
  }
  for (const GroupShare& member : group.members) {
    const auto found = workers_.find(member.rank);
    if (found == workers_.end()) return name + " has a member that is not there";
    Worker& worker = found->second;
    if (group.kind != GroupKind::kRound && worker.state != State::kWaiting) {
      return name + " has a member without a signal";
    }
    if (worker.group != kNoGroup) return name + " has a member twice";
    worker.group = group.id;
    running.pending.push_back(member.rank);
    if (group.kind == GroupKind::kTrain) worker.state = State::kReducing;
    if (group.kind == GroupKind::kRound && member.weight > 0) {
      worker.given = std::exchange(worker.owed, 0);
    }
  }
  return "";
}

std::string GroupDriver::JoinOne() {
  const Rank rank = FreeRank();
  if (Finishing(rank)) return "";
  Worker worker;
  if (workers_.empty()) {
    newest_ = 0;
    finished_ = -1;
  } else if (Shares()) {  // with a replica that may be outdated by now
    worker.iteration = NewestReplica() - static_cast<Iteration>(random_.Below(2));
    if (worker.iteration < 0) return "";
  } else {
    worker.iteration = Rounds() ? newest_ : workers_.begin()->second.iteration;
  }
  worker.received = worker.iteration;
  workers_[rank] = worker;
  return Apply(JoinedEvent{.rank = rank,
                           .iteration = worker.iteration,
                           .host = "host" + std::to_string(random_.Below(3))});
}

// -1: who has one copies another.
Iteration GroupDriver::NewestReplica() const {
  Iteration newest = finished_;
  for (const auto& [rank, worker] : workers_) {
    if (worker.state != State::kCopying) newest = std::max(newest, worker.iteration);
  }
  return newest;
}

std::int64_t GroupDriver::Samples(Rank rank) const {
  const Worker& worker = workers_.at(rank);
  const auto turn = rank + worker.iteration + worker.local_steps;
  return turn % 13 == 0 ? 0 : 16 * (1 + turn % 4);
}

std::string GroupDriver::BeReadyToShare(Rank rank) {
  Worker& worker = workers_[rank];
  const Plan plan = engine_->plan();
  Ready ready{.iteration = worker.iteration + 1, .samples = Samples(rank)};
  if (AsksBeforeGroups(plan)) {
    const bool stands = worker.again || (worker.told_ready && random_.Below(4) > 0);
    ready.waiting = !AcknowledgesLate(plan) || stands;
    worker.local_steps += stands ? 0 : 1;
    ready.local_steps = worker.local_steps;
    ready.step_ns = static_cast<DurationNs>(random_.Below(kSecond));
    ready.rtt_ns = static_cast<DurationNs>(random_.Below(kMillisecond));
  }
  worker.again = false;
  if (ready.waiting) worker.state = State::kWaiting;
  return Apply(ReadyEvent{.rank = rank, .ready = ready});
}

std::string GroupDriver::BeReady(Rank rank) {
  if (Shares()) return BeReadyToShare(rank);
  Worker& worker = workers_[rank];
  if (Rounds()) {
    // It has a gradient, unless its step was cut short, and waits, unless there is a result.
    Ready ready{.iteration = worker.iteration + 1,
                .samples = Samples(rank),
                .gradients = random_.Below(20) > 0 ? 1u : 0u};
    worker.owed += ready.gradients;
    ready.waiting = worker.received == worker.iteration;
    if (ready.waiting) {
      worker.state = State::kWaiting;
    } else {
      worker.iteration = worker.received;
      ++worker.steps;
    }
    return Apply(ReadyEvent{.rank = rank, .ready = ready, .owed = worker.owed});
  }
  worker.state = State::kWaiting;
  ++worker.iteration;
  const auto samples = static_cast<std::int64_t>(random_.Below(4) * 16);
  return Apply(
      ReadyEvent{.rank = rank, .ready = {.iteration = worker.iteration, .samples = samples}});
}

// One member's report; the last one ends the group.
std::string GroupDriver::Report(GroupId id, bool ok) {
  if (Ahead()) return ReportAhead(id, ok);
  Running& group = groups_[id];
  ok = ok && !group.failed;
  if (group.kind == GroupKind::kRound) return ReportRound(id, ok);
  if (Shares()) return ReportShared(id, ok);
  const std::size_t index = random_.Below(group.pending.size());
  const Rank rank = group.pending[index];
  group.pending.erase(group.pending.begin() + static_cast<std::ptrdiff_t>(index));
  group.failed = group.failed || !ok;
  Worker& worker = workers_[rank];
  worker.group = kNoGroup;
  if (group.kind == GroupKind::kTrain) {
    worker.state = State::kComputing;
    worker.iteration = ok ? group.iteration : worker.iteration - 1;
    worker.steps += ok ? 1 : 0;
  }
  if (auto wrong = Apply(FinishedEvent{.rank = rank, .group = id, .ok = ok}); !wrong.empty()) {
    return wrong;
  }
  if (!groups_[id].pending.empty()) return "";
  const bool all_ok = !groups_[id].failed;
  groups_.erase(id);
  return Apply(EndedEvent{.group = id, .ok = all_ok});
}

std::string GroupDriver::ReportShared(GroupId id, bool ok) {
  Running& group = groups_[id];
  const std::size_t index = random_.Below(group.pending.size());
  const Rank rank = group.pending[index];
  group.pending.erase(group.pending.begin() + static_cast<std::ptrdiff_t>(index));
  group.failed = group.failed || !ok;
  (ok ? group.with_result : group.without_result).push_back(rank);
  Worker& worker = workers_[rank];
  worker.group = kNoGroup;
  worker.state = ok ? State::kComputing : State::kFailed;
  if (ok) {
    worker.iteration = group.iteration;
    worker.local_steps = 0;
    worker.told_ready = false;
    ++worker.steps;
  }
  if (auto wrong = Apply(FinishedEvent{.rank = rank, .group = id, .ok = ok}); !wrong.empty()) {
    return wrong;
  }
  return groups_[id].pending.empty() ? EndShared(id) : "";
}

// Those for whom it failed copy the replica of those who have the result; if nobody has it, they
// signal again.
std::string GroupDriver::EndShared(GroupId id) {
  const Running group = groups_[id];
  groups_.erase(id);
  const bool ok = !group.with_result.empty();
  if (auto wrong = Apply(EndedEvent{.group = id, .ok = ok}); !wrong.empty()) return wrong;
  for (const Rank rank : group.without_result) {
    Worker& worker = workers_[rank];
    worker.state = ok ? State::kCopying : State::kComputing;
    worker.source = group.iteration;
    worker.again = !ok;
  }
  return "";
}

// The copy is there: of the replica as it was when that was ordered, or as it is now.
std::string GroupDriver::Copy(Rank rank) {
  Worker& worker = workers_[rank];
  const Iteration now = NewestReplica();
  const Iteration copied = random_.Below(3) > 0 ? now : worker.source;
  worker.state = State::kComputing;
  if (copied <= worker.iteration) {  // nobody has anything newer any more
    worker.again = false;
    return "";
  }
  worker.iteration = copied;
  worker.local_steps = 0;
  worker.told_ready = false;
  worker.again = false;
  return "";
}

std::string GroupDriver::Rejoin() {
  for (const Rank rank : std::exchange(behind_, {})) {
    const auto found = workers_.find(rank);
    if (found == workers_.end() || found->second.group != kNoGroup) continue;
    const bool waits = found->second.state == State::kWaiting;
    const Iteration iteration = found->second.iteration;
    found->second.state = State::kComputing;
    if (auto wrong = Apply(LeftEvent{.rank = rank}); !wrong.empty()) return wrong;
    const JoinedEvent joined{.rank = rank, .iteration = iteration, .host = "host"};
    if (auto wrong = Apply(joined); !wrong.empty()) return wrong;
    workers_[rank].again = waits;
  }
  return "";
}

// A failure is told at the end: others may have the result, and it gets it from them.
std::string GroupDriver::ReportRound(GroupId id, bool ok) {
  Running& group = groups_[id];
  const std::size_t index = random_.Below(group.pending.size());
  const Rank rank = group.pending[index];
  group.pending.erase(group.pending.begin() + static_cast<std::ptrdiff_t>(index));
  if (!ok) {
    group.failed = true;
    group.without_result.push_back(rank);
    return group.pending.empty() ? EndRound(id) : "";
  }
  group.with_result.push_back(rank);
  Worker& worker = workers_[rank];
  Receive(&worker, group.iteration);
  const FinishedEvent finished{.rank = rank, .group = id, .ok = true, .owed = worker.owed};
  if (auto wrong = Apply(finished); !wrong.empty()) return wrong;
  return groups_[id].pending.empty() ? EndRound(id) : "";
}

// The result of a round ends the step that waits for it.
void GroupDriver::Receive(Worker* worker, Iteration round) {
  worker->group = kNoGroup;
  worker->given = 0;
  worker->received = round;
  newest_ = std::max(newest_, round);
  if (worker->state != State::kWaiting || worker->iteration >= round) return;
  worker->state = State::kComputing;
  worker->iteration = round;
  ++worker->steps;
}

std::string GroupDriver::EndRound(GroupId id) {
  const Running group = groups_[id];
  groups_.erase(id);
  const bool ok = !group.with_result.empty();
  for (const Rank rank : group.without_result) {
    Worker& worker = workers_[rank];
    if (ok) {
      Receive(&worker, group.iteration);
    } else {
      worker.group = kNoGroup;
      worker.owed += std::exchange(worker.given, 0);
    }
    const FinishedEvent finished{.rank = rank, .group = id, .ok = ok, .owed = worker.owed};
    if (auto wrong = Apply(finished); !wrong.empty()) return wrong;
  }
  if (!ok) newest_ = group.iteration - 1;
  return Apply(EndedEvent{.group = id, .ok = ok});
}

std::string GroupDriver::LeaveOne(Rank rank) {
  if (Ahead()) return LeaveAhead(rank);
  GroupId id = workers_[rank].group;
  const bool may_finish =
      Shares() ? !workers_[rank].again : Rounds() && groups_.empty() && workers_[rank].owed == 0;
  const bool finishes =
      may_finish && workers_[rank].state == State::kComputing && random_.Below(2) == 0;
  if (finishes) finished_ = std::max(finished_, workers_[rank].iteration);
  workers_.erase(rank);
  for (auto& [other, group] : groups_) {
    if (!Shares() || finishes) break;
    std::erase(group.with_result, rank);
    std::erase(group.without_result, rank);
  }
  if (id == kNoGroup && Rounds() && !groups_.empty()) id = groups_.begin()->first;  // has reported
  const LeftReason why = finishes ? LeftReason::kFinished : LeftReason::kLost;
  if (auto wrong = Apply(LeftEvent{.rank = rank, .why = why}); !wrong.empty()) {
    return wrong;
  }
  if (id == kNoGroup) return "";
  Running& group = groups_[id];
  group.failed = true;
  std::erase(group.pending, rank);
  std::erase(group.with_result, rank);
  std::erase(group.without_result, rank);
  if (!group.pending.empty()) return "";
  if (group.kind == GroupKind::kRound) return EndRound(id);
  if (Shares()) return EndShared(id);
  groups_.erase(id);
  return Apply(EndedEvent{.group = id, .ok = false});
}

bool GroupDriver::Urgent(std::string* wrong) {
  if (behind_.empty()) return false;
  *wrong = Rejoin();
  return true;
}

bool GroupDriver::Act(bool storms, std::uint64_t dice, std::string* wrong) {
  const std::vector<Rank> computing = In(State::kComputing);
  const std::vector<Rank> copying = In(State::kCopying);
  const bool nothing_else = computing.empty() && groups_.empty();
  if (!copying.empty() && (random_.Below(storms ? 4 : 2) == 0 || nothing_else)) {
    *wrong = Copy(Pick(copying));
  } else if (!groups_.empty() && (dice < 60 || computing.empty())) {
    auto group = groups_.begin();
    if (storms) std::advance(group, static_cast<std::ptrdiff_t>(random_.Below(groups_.size())));
    *wrong = Report(group->first, !storms || random_.Below(30) > 0);
  } else if (!computing.empty()) {
    *wrong = BeReady(Pick(computing));
  } else {
    return false;
  }
  return true;
}

void GroupDriver::ForgetSteps() {
  for (auto& [rank, worker] : workers_) worker.steps = 0;
}

bool GroupDriver::AllHave(int steps) const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [&](const auto& entry) { return entry.second.steps >= steps; });
}

}  // namespace prd
