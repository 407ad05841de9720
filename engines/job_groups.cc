// Job: the life of its groups, and what becomes of the job as a whole.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "engines/final_average.h"
#include "engines/job.h"
#include "engines/run_end.h"

namespace prd {

// ---- groups ----

bool Job::AllOrNone(GroupKind kind) const {
  if (kind == GroupKind::kRound || kind == GroupKind::kAverage) return false;
  return kind != GroupKind::kTrain || prd::AllOrNone(plan_);
}

bool Job::AnsweredByEnd(const Running& group, Rank rank) const {
  if (!DrawnAhead(plan_) || group.kind != GroupKind::kTrain) return false;
  for (const GroupShare& share : group.members) {
    if (share.rank == rank) return !share.passive;
  }
  return false;
}

void Job::ToEngine(const Event& event) {
  effects_.clear();
  engine_->Step(now_, event, &next_group_, &effects_);
  for (Effect& effect : effects_) Carry(std::move(effect));
}

void Job::Carry(Effect effect) {
  std::visit([this](auto& decided) { Announce(std::move(decided)); }, effect);
}

void Job::Announce(QueryAnswered answer) {
  Worker& worker = At(answer.rank);
  PRD_CHECK(worker.state == State::kActive && worker.signal);
  answer.iteration = worker.signal->iteration;
  answer.local_steps = worker.signal->local_steps;
  if (!answer.ready || !worker.signal->waiting) worker.signal.reset();
  if (!TrainsInGroups(plan_)) {
    worker.iteration = answer.next;
    worker.since = now_;
  }
  const QueryReply reply{.iteration = answer.iteration,
                         .local_steps = answer.local_steps,
                         .ready = answer.ready,
                         .next = answer.next,
                         .workers = std::exchange(answer.workers, 0)};
  const Rank rank = answer.rank;
  Write(std::move(answer));
  Send(rank, reply);
}

void Job::Announce(UpdateDropped late) {
  const Rank rank = late.rank;
  PRD_CHECK(At(rank).state == State::kActive && At(rank).group == kNoGroup);
  Write(std::move(late));
  // A worker that is already copying, to repair its replica, will signal with the copied iteration.
  if (At(rank).source == kNoRank) CatchUpOrRejoin(rank);
}

GroupMember Job::Describe(Rank rank) const {
  const Worker& worker = workers_[Index(rank)];
  return {.rank = rank,
          .incarnation = worker.incarnation,
          .weight = 0,
          .host = worker.host,
          .endpoints = worker.endpoints,
          .passive = false,
          .mesh_key = worker.mesh_key};
}

void Job::Announce(ScheduleSet set) {
  Schedule schedule{.first = set.first, .members = {}, .hosts = set.hosts, .reason = set.reason};
  for (const Rank rank : set.members) schedule.members.push_back(Describe(rank));
  for (const Rank rank : set.members) Send(rank, schedule);
  Write(std::move(set));
}

void Job::Announce(NeighboursSet set) {
  Worker& worker = At(set.rank);
  PRD_CHECK(worker.state == State::kActive && set.at >= worker.iteration);
  worker.iteration = set.at;
  Neighbourhood hood{.in = {},
                     .from = {},
                     .out = {},
                     .own_weight = set.own_weight,
                     .slots = set.slots,
                     .at = set.at,
                     .reason = set.reason};
  for (const InEdge& edge : set.in) {
    GroupMember member = Describe(edge.rank);
    member.weight = edge.weight;
    hood.in.push_back(std::move(member));
    hood.from.push_back(edge.from);
  }
  for (const Rank rank : set.out) hood.out.push_back(Describe(rank));
  const Rank rank = set.rank;
  Write(std::move(set));
  Send(rank, std::move(hood));
}

void Job::Announce(PlacementSet set) {
  Placement placement{
      .epoch = set.epoch, .members = {}, .shards = set.shards, .at = 0, .reason = set.reason};
  for (const Rank rank : set.members) placement.members.push_back(Describe(rank));
  for (std::size_t i = 0; i < set.members.size(); ++i) {
    Worker& worker = At(set.members[i]);
    PRD_CHECK(worker.state != State::kAbsent);
    placement.at = set.at[i];
    if (worker.state == State::kActive) {  // else it has the final average's iteration, maybe
      PRD_CHECK(set.at[i] >= worker.iteration);
      worker.iteration = set.at[i];
    }
    Send(set.members[i], placement);
  }
  Write(std::move(set));
}

void Job::Announce(PlacementOpened opened) {
  for (const Rank rank : opened.members) Send(rank, Opened{.epoch = opened.epoch});
  Write(std::move(opened));
}

void Job::Announce(GroupFormed form) {
  const GroupKind kind = form.kind;
  // The engine has not seen signals that are held back or already answered.
  for (GroupShare& share : form.members) {
    if (DrawnAhead(plan_)) share.iteration = std::max(share.iteration, At(share.rank).iteration);
  }
  bool ring_only = false;
  if (!links_.broken().empty() && !ArrangeAsRing(links_.broken(), &form, &ring_only) &&
      CanHold(kind)) {
    held_.push_back(std::move(form));
    return;
  }
  Group group{.id = form.id,
              .kind = kind,
              .members = {},
              .iteration = form.iteration,
              .initial_weight = form.initial_weight,
              .ring_only = ring_only,
              .digest = divergence_.Begin(now_, kind, form.members.size()),
              .last = clock_.done() && OfEngine(kind),
              .reason = form.reason};
  Running running{.kind = kind,
                  .members = form.members,
                  .pending = {},
                  .ok = {},
                  .failed = {},
                  .iteration = form.iteration,
                  .compares = group.digest,
                  .last = group.last,
                  .digests = {},
                  .failure = {},
                  .since = now_};
  for (const GroupShare& share : form.members) {
    Worker& worker = At(share.rank);
    PRD_CHECK(worker.state != State::kAbsent && worker.group == kNoGroup);
    const bool waits = worker.signal && worker.signal->waiting;
    PRD_CHECK(!OfEngine(kind) || (worker.state == State::kActive && !worker.signal_held));
    const bool ahead = kind == GroupKind::kTrain && DrawnAhead(plan_);
    PRD_CHECK(waits || ahead || (kind != GroupKind::kTrain && kind != GroupKind::kAverage));
    worker.group = form.id;
    // A round, and a group formed ahead, answers those who wait once they have its result; an
    // average answers nobody.
    if (kind != GroupKind::kRound && kind != GroupKind::kAverage && !ahead) worker.signal.reset();
    worker.since = now_;
    running.pending.push_back(share.rank);
    GroupMember member = Describe(share.rank);
    member.weight = share.weight;
    member.passive = share.passive;
    group.members.push_back(std::move(member));
  }
  groups_.emplace_hint(groups_.end(), form.id, std::move(running));
  for (const GroupMember& member : group.members) Send(member.rank, group);
  Write(std::move(form));
}

void Job::FailGroup(GroupId id, const std::string& why) {
  Running& group = groups_.at(id);
  if (group.aborted) return;
  group.aborted = true;
  group.failure = why;
  for (const Rank rank : group.pending) Send(rank, Abort{.group = id, .reason = why});
}

void Job::EndIfDone(GroupId id) {
  const auto it = groups_.find(id);
  if (!it->second.pending.empty() || Repair(id)) return;
  const Running group = std::move(it->second);
  groups_.erase(it);
  // A worker that reported and then left, or came back as another incarnation, is neither.
  const auto still = [&](const std::vector<Rank>& ranks) {
    std::vector<Rank> present;
    for (const Rank rank : ranks) {
      if (Present(rank) && At(rank).last_group == id) present.push_back(rank);
    }
    return present;
  };
  std::vector<Rank> have = still(group.ok);
  const std::vector<Rank> lack = still(group.failed);
  const bool ok = group.ok.size() == group.members.size();
  if (group.last && !group.ok.empty()) clock_.NoteLastResult();
  Write(GroupEnded{.id = id, .ok = ok, .reason = ok ? std::string() : group.failure});
  if (group.kind == GroupKind::kRound) {
    for (const Rank rank : lack) {
      Send(rank, Abort{.group = id, .reason = "nobody has its result", .undone = true});
    }
  }
  const std::vector<Rank> differ = Compare(id, group);
  // The worker from which others that lack the result copy it.
  std::stable_partition(have.begin(), have.end(), [&differ](Rank rank) {
    return !std::binary_search(differ.begin(), differ.end(), rank);
  });
  if (OfEngine(group.kind)) {
    const bool shared = AllOrNone(group.kind) || group.kind == GroupKind::kRound;
    ToEngine(EndedEvent{.group = id, .ok = shared ? !have.empty() : ok});
  }
  if (AllOrNone(group.kind)) Settle(group, have, lack);
  EndComparison(group, have);
}

// Lets those members for whom a round failed fetch its result from those who have it. False when
// there is nothing to repair.
bool Job::Repair(GroupId id) {
  Running& group = groups_.at(id);
  if (group.kind != GroupKind::kRound) return false;
  const auto here = [&](Rank rank) { return Present(rank) && At(rank).last_group == id; };
  // A worker that has fetched the result itself cannot pass it on.
  std::vector<Rank> sources;
  bool known = false;  // somebody has it
  for (const Rank rank : group.ok) {
    known = known || here(rank);
    if (here(rank) && At(rank).last_ok) sources.push_back(rank);
  }
  if (!known) return false;
  std::vector<Rank> lack;
  lack.swap(group.failed);
  for (const Rank rank : lack) {
    if (!here(rank)) continue;
    if (sources.empty()) {
      LeaveBehind(rank, "nobody is left to give the result of round " + std::to_string(id));
      continue;
    }
    const auto tried = static_cast<std::size_t>(At(rank).fetches);
    OrderResult(rank, sources[(Index(rank) + tried) % sources.size()], id);
    group.pending.push_back(rank);
  }
  return !group.pending.empty();
}

void Job::OrderResult(Rank rank, Rank source, GroupId group) {
  Worker& worker = At(rank);
  const std::string reason = RankName(source) + " has the result of round " +
                             std::to_string(group) + ", which failed here";
  worker.source = source;
  worker.group = group;
  worker.since = now_;
  Write(AdoptOrdered{.rank = rank, .source = source, .reason = reason, .result = group});
  Send(rank, Adopt{.source = Describe(source), .reason = reason, .result = group});
}

// An all-or-none group has ended: those who have its result are the truth.
void Job::Settle(const Running& group, const std::vector<Rank>& ok,
                 const std::vector<Rank>& failed) {
  if (group.kind == GroupKind::kInitial) {
    started_ = started_ || !ok.empty();
    begun_ = begun_ || started_;
    LookForGoal();
    for (const Rank rank : ok) {
      At(rank).signal_held = false;
      Activate(rank, group.iteration, "common start");
    }
    for (const Rank rank : ok) {  // once the engine knows all of them
      HandSignal(rank);
      if (At(rank).stop_held != Stop::kNone) PRD_CHECK(OnStop(rank, At(rank).stop_held).empty());
    }
    for (const Rank rank : failed) {
      At(rank).signal.reset();
      At(rank).signal_held = false;
      SetState(rank, State::kJoining);
    }
    return;
  }
  for (const Rank rank : failed) {
    if (!ok.empty()) {
      OrderAdopt(rank, ok.front(), "others have the result of the group that failed here");
    } else if (group.kind == GroupKind::kFinal) {
      At(rank).signal_held = false;
      SetState(rank, State::kFinishing);
    } else {
      At(rank).signal_held = false;
      HandSignal(rank);
    }
  }
}

// ---- replicas that are to be equal ----

// Gives those of the members that differ from most. Members that have gone do not count.
std::vector<Rank> Job::Compare(GroupId id, const Running& group) {
  std::vector<Digest> digests = group.digests;
  std::erase_if(digests, [&](const Digest& digest) {
    return !Present(digest.rank) || At(digest.rank).last_group != id;
  });
  DivergenceCheck::Result result = divergence_.Compare(now_, id, group.iteration, digests);
  if (result.change) Write(*std::move(result.change));
  return std::move(result.differ);
}

// Signals that were held back for the comparison go on to the engine. To repair, a worker that
// differs copies a replica of one that does not.
void Job::EndComparison(const Running& group, const std::vector<Rank>& have) {
  if (!group.compares || spec_.on_divergence != JobSpec::OnDivergence::kRepair) return;
  const auto usable = [this](Rank rank) {
    return Present(rank) && At(rank).state == State::kActive && At(rank).source == kNoRank &&
           !At(rank).signal_held;
  };
  Rank source = kNoRank;
  for (const Rank rank : have) {
    if (source == kNoRank && usable(rank) && !divergence_.Differs(rank)) source = rank;
  }
  for (const Rank rank : have) {
    if (!Present(rank)) continue;
    At(rank).compared = false;
    if (!usable(rank) || !divergence_.Differs(rank) || source == kNoRank) {
      if (!At(rank).signal_held) HandSignal(rank);
    } else if (TrainsInRounds(plan_)) {
      LeaveBehind(rank, "its replica differs from those of most members");
    } else {
      OrderAdopt(rank, source, "its replica differs from those of most members");
    }
  }
}

// ---- the job as a whole ----

void Job::FinalWeights(GroupFormed* form) const {
  std::vector<std::int64_t> stopped_at;
  for (const GroupShare& share : form->members) {
    stopped_at.push_back(workers_[Index(share.rank)].stopped_at);
  }
  WeighFinalAverage(plan_, clock_.gained().steps, stopped_at, form);
}

// A group of all workers in `from`: the common start or the final average.
void Job::Collective(GroupKind kind, State from, State to) {
  GroupFormed form{.id = next_group_++, .kind = kind, .members = {}, .iteration = 0, .reason = {}};
  for (Rank rank = 0; Index(rank) < workers_.size(); ++rank) {
    if (At(rank).state != from) continue;
    form.members.push_back({.rank = rank, .weight = 0, .iteration = At(rank).iteration});
    SetState(rank, to);
    At(rank).copies_after.reset();
  }
  if (kind == GroupKind::kInitial) {
    TakeStart(form);
    StartWeights(&form);
  } else {
    FinalWeights(&form);
  }
  std::sort(form.members.begin(), form.members.end(), [this](const auto& a, const auto& b) {
    return std::pair(At(a.rank).host, a.rank) < std::pair(At(b.rank).host, b.rank);
  });
  Announce(std::move(form));
}

// The common start takes the lowest rank's parameters, if all are new. Workers that have
// trained before start from what they have learned.
void Job::StartWeights(GroupFormed* form) const {
  std::vector<GroupShare*> returning;
  for (GroupShare& share : form->members) {
    if (workers_[Index(share.rank)].returns) returning.push_back(&share);
  }
  const auto equal = [this](const GroupShare* share) { return HasFormerModel(share->rank); };
  const bool switched = std::any_of(returning.begin(), returning.end(), equal);
  if (switched) std::erase_if(returning, [&](const GroupShare* share) { return !equal(share); });
  const std::string start =
      "common start: " + std::to_string(form->members.size()) + " workers take ";
  if (returning.size() > 1 && !ReplicasAreEqual(plan_) && !switched) {
    for (GroupShare* share : returning) {
      share->weight = 1.0 / static_cast<double>(returning.size());
      form->iteration = std::max(form->iteration, share->iteration);
    }
    form->reason = start + "the average of the " + std::to_string(returning.size()) +
                   " that have trained before";
    return;
  }
  GroupShare* source = &form->members.front();
  if (!returning.empty()) {
    source =
        *std::max_element(returning.begin(), returning.end(),
                          [](const auto* a, const auto* b) { return a->iteration < b->iteration; });
  }
  source->weight = 1;
  form->iteration = source->iteration;
  form->reason = start + "the parameters of rank " + std::to_string(source->rank);
  if (switched) {
    form->reason += ", which are the final average of run " + std::to_string(switch_.former().run);
  } else if (!returning.empty()) {
    form->reason += ", the newest of those that have trained before";
  }
}

// How many workers must be here for a common start. A restart proceeds without missing workers
// after start_grace_ms: they may never come back.
int Job::NeededForStart() {
  if (switch_.former().known() && !begun_) {
    grace_ends_.reset();
    if (Awaits()) return std::numeric_limits<int>::max();
    return now_ < switch_.awaits_until() ? 1 : std::min(start_workers_, spec_.min_workers);
  }
  bool returns = false;
  for (const Worker& worker : workers_) {
    returns = returns || (worker.state == State::kJoining && (begun_ || worker.returns));
  }
  if (!returns) {
    grace_ends_.reset();
    return start_workers_;
  }
  if (!grace_ends_) grace_ends_ = now_ + spec_.start_grace_ms * kMillisecond;
  return now_ < *grace_ends_ ? start_workers_ : std::min(start_workers_, spec_.min_workers);
}

// Lets late workers copy a running one's replica.
void Job::AdmitJoiners() {
  // Where all share every round, replicas stand still while none runs. Either the joiner is part of
  // the barrier from now on, so that none begins before it has caught up; or signals are held back.
  if (joining_ != Engine::Joining::kAnytime && !NothingRuns()) return;
  bool source_found = true;
  int left = Count(State::kJoining);
  for (Rank rank = 0; Index(rank) < workers_.size() && source_found && left > 0; ++rank) {
    if (At(rank).state != State::kJoining) continue;
    --left;
    const bool resumes = At(rank).resumes;
    if (resumes && At(rank).group != kNoGroup) continue;
    const Rank source = SourceFor(rank, At(rank).failed_source);
    if (source == kNoRank && resumes) continue;  // its own replica may be the newest
    source_found = source != kNoRank;
    if (!source_found) break;
    if (CopyPauses(rank)) continue;
    const std::string reason = JoinReason(rank);
    if (joining_ == Engine::Joining::kBarrier && !resumes) {
      Activate(rank, At(source).iteration, reason);
    } else {
      SetState(rank, State::kAdopting);
    }
    OrderAdopt(rank, source, reason);
  }
  // Nobody has a trained replica any more: those who are there make a new common start.
  if (!source_found && Count(State::kJoining) == live_ && resuming_ == 0) started_ = false;
}

bool Job::Stranded(Rank rank) const {
  const Worker& worker = workers_[Index(rank)];
  return worker.state == State::kActive && worker.no_replica && worker.source == kNoRank;
}

// Workers of the barrier that have nothing to train yet: copies of whoever has a replica now, or
// back to the common start when nobody is left who might get one.
void Job::HelpStranded() {
  const bool hopeless = stranded_ + Count(State::kJoining) == live_;
  for (Rank rank = 0; Index(rank) < workers_.size() && stranded_ > 0; ++rank) {
    if (!Stranded(rank)) continue;
    const Rank source = SourceFor(rank, At(rank).failed_source);
    if (source == kNoRank && !hopeless) return;
    if (source != kNoRank && CopyPauses(rank)) continue;
    --stranded_;
    if (source != kNoRank) {
      OrderAdopt(rank, source, JoinReason(rank));
      continue;
    }
    SetState(rank, State::kJoining);
    At(rank).iteration = At(rank).brought;  // it has no other replica
    At(rank).signal_held = false;
    Write(WorkerLeft{.rank = rank,
                     .incarnation = At(rank).incarnation,
                     .why = LeftReason::kLeft,
                     .reason = "nobody has a model to copy: waits for a common start"});
    ToEngine(LeftEvent{.rank = rank, .why = LeftReason::kLeft});
  }
}

// Workers ordered to catch up while nobody had a newer replica. The engine has had no event of them
// since.
void Job::Rejoin() {
  std::vector<Rank> behind;
  behind.swap(behind_);
  for (const Rank rank : behind) {
    if (!Present(rank) || At(rank).state != State::kActive || At(rank).group != kNoGroup ||
        At(rank).source != kNoRank) {
      continue;
    }
    Write(WorkerLeft{.rank = rank,
                     .incarnation = At(rank).incarnation,
                     .why = LeftReason::kLeft,
                     .reason = "nobody has a newer model: joins anew with its own"});
    ToEngine(LeftEvent{.rank = rank, .why = LeftReason::kLeft});
    Activate(rank, At(rank).iteration, "goes on with its own model");
    if (!At(rank).signal_held) HandSignal(rank);
  }
}

void Job::Progress() {
  if (!orders_.draining().empty()) LetDrainingGo();
  if (resuming_ > 0) AdmitResuming();  // first: one may have the newest replica
  RetryCopies();                       // may find that somebody is behind
  if (!behind_.empty()) Rejoin();
  if (!held_.empty()) LookAtHeld();
  const bool copies = joining_ != Engine::Joining::kAnytime && Count(State::kAdopting) > 0;
  if (withheld_ > 0 && !copies && !orders_.paused()) HandWithheld();
  if (!behind_.empty()) Rejoin();  // a withheld signal may be late
  if (stranded_ > 0) HelpStranded();
  if (Count(State::kJoining) > 0 && started_ && !switching()) AdmitJoiners();
  if (!started_ && Count(State::kStarting) == 0 && Count(State::kJoining) > 0) {
    if (Count(State::kJoining) >= NeededForStart() && CanMeet(State::kJoining)) {
      grace_ends_.reset();
      Collective(GroupKind::kInitial, State::kJoining, State::kStarting);
    }
  } else {
    grace_ends_.reset();
  }
  const bool stopped = switching() ? AtBoundary() && Count(State::kFinishing) > 0
                                   : Count(State::kFinishing) == live_;
  if (live_ > 0 && stopped && groups_.empty() && CanMeet(State::kFinishing)) {
    Collective(GroupKind::kFinal, State::kFinishing, State::kFinal);
  }
  if (Count(State::kFinal) > 0 && groups_.empty()) {
    bool copying = false;
    for (const Worker& worker : workers_) {
      copying = copying || (worker.state == State::kFinal &&
                            (worker.source != kNoRank || worker.copies_after));
    }
    if (switching() && !copying) return EndForNext();
    for (Rank rank = 0; Index(rank) < workers_.size() && !copying; ++rank) {
      if (At(rank).state != State::kFinal) continue;
      Send(rank, Released{.reason = kJobIsDone});
      Remove(rank, LeftReason::kLeft, kJobIsDone);
    }
  }
  const bool none_left = switching() && AtBoundary() && Count(State::kFinal) == 0 &&
                         Count(State::kFinishing) == 0 && Count(State::kJoining) > 0;
  if (none_left && groups_.empty()) return EndForNext();
  if (live_ == 0 && !ended_ && start_workers_ > 0 && !Awaits()) End();
}

// The last worker has gone: by itself, or not.
void Job::End() {
  WorkerLeft last;
  for (const Record& record : out_->records) {
    if (const auto* left = std::get_if<WorkerLeft>(&record.body)) last = *left;
  }
  ended_ = true;
  if (last.rank == kNoRank) {
    Write(RunEnded{.reason = "none of the workers of run " + std::to_string(switch_.former().run) +
                             " is here"});
    return;
  }
  const bool evicted = !dismissed().empty() && dismissed().back().incarnation == last.incarnation;
  finished_ = begun_ && (last.why == LeftReason::kLeft || evicted);
  Write(RunEnded{.reason = std::string("the last worker has gone") +
                           (begun_ ? "" : " before the start") + ", rank " +
                           std::to_string(last.rank) + ": " + last.reason + clock_.TrainedWords(),
                 .finished = finished_});
}

}  // namespace prd
