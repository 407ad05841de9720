#include "engines/job.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "engines/job_limits.h"

namespace prd {

Job::Job(RunId run, JobSpec spec)
    : run_(run),
      spec_(std::move(spec)),
      engine_(spec_.make_engine(spec_.engine)),
      plan_(engine_->plan()),
      joining_(engine_->joining()),
      clock_(spec_.goal),
      divergence_(plan_, spec_.check_replicas_ms) {}

void Job::Start(Instant now, std::int64_t wall_ns, RunIdentity identity, const FormerRun& former,
                JobOutput* out) {
  PRD_CHECK(next_index_ == 0);
  now_ = started_at_ = now;
  wall_ns_ = wall_ns;
  identity_ = identity;
  if (former.known()) TakeOver(former);
  out_ = out;
  Write(RunStarted{.job = spec_.name,
                   .engine = std::string(EngineName(spec_.engine)),
                   .spec = spec_.text,
                   .wall_ns = wall_ns,
                   .identity = identity,
                   .former = former});
  out_ = nullptr;
}

std::optional<Instant> Job::NextDeadline() const {
  std::optional<Instant> next = engine_->NextDeadline();
  const std::optional<Instant> awaits =
      switch_.former().known() && !begun_ ? std::optional(switch_.awaits_until()) : std::nullopt;
  for (const std::optional<Instant>& own : {grace_ends_, copies_again_, awaits}) {
    if (own && now_ < *own && (!next || *own < *next)) next = own;
  }
  return next;
}

// ---- one input ----

void Job::Step(Instant now, const Input& input, JobOutput* out) {
  PRD_CHECK(now >= now_ && !ended_);
  now_ = now;
  out_ = out;
  if (const auto* from = std::get_if<FromWorker>(&input)) {
    const WorkerEnvelope& envelope = from->envelope;
    Write(*from);
    if (std::holds_alternative<Hello>(envelope.body)) {
      OnHello(envelope);
    } else {
      const Rank rank = envelope.rank;
      At(rank).link.OnReceive(envelope.seq);
      At(rank).link.OnAck(envelope.ack);
      std::string wrong;
      if (const auto* ready = std::get_if<Ready>(&envelope.body)) wrong = OnReady(rank, *ready);
      if (const auto* done = std::get_if<Finished>(&envelope.body)) wrong = OnFinished(rank, *done);
      if (const auto* adopted = std::get_if<Adopted>(&envelope.body))
        wrong = OnAdopted(rank, *adopted);
      if (const auto* told = std::get_if<Progressed>(&envelope.body))
        wrong = CountReport(rank, told->own, told->nonfinite);
      if (const auto* placed = std::get_if<Placed>(&envelope.body)) wrong = OnPlaced(rank, *placed);
      if (const auto* probed = std::get_if<Probed>(&envelope.body)) wrong = OnProbed(rank, *probed);
      if (wrong.empty() && std::holds_alternative<Adopted>(envelope.body) && Present(rank) &&
          At(rank).state == State::kActive && At(rank).stop_held != Stop::kNone) {
        wrong = OnStop(rank, At(rank).stop_held);
      }
      if (std::holds_alternative<Finish>(envelope.body)) wrong = OnStop(rank, Stop::kFinish);
      if (std::holds_alternative<Pause>(envelope.body)) wrong = OnStop(rank, Stop::kPause);
      if (std::holds_alternative<Resume>(envelope.body)) wrong = OnResume(rank);
      if (std::holds_alternative<AskMembers>(envelope.body)) wrong = OnAskMembers(rank);
      if (const auto* stop = std::get_if<StopJob>(&envelope.body)) {
        clock_.Stop(rank, stop->reason);
        LookForGoal();
      }
      if (const auto* numbers = std::get_if<GiveNumbers>(&envelope.body))
        wrong = OnGiveNumbers(rank, *numbers);
      if (const auto* leave = std::get_if<Leave>(&envelope.body)) wrong = OnLeave(rank, *leave);
      if (!wrong.empty()) {
        out_->sends.push_back({rank,
                               {.incarnation = envelope.incarnation,
                                .body = Refused{.code = Code::kInvalidArgument, .reason = wrong}}});
        Remove(rank, LeftReason::kEvicted, wrong);
      }
    }
  } else if (const auto* expired = std::get_if<LeaseExpired>(&input)) {
    Write(*expired);
    Remove(expired->rank, LeftReason::kLost,
           "its lease of " + std::to_string(spec_.lease_ms) + " ms ran out");
  } else if (const auto* ended = std::get_if<ProcessEnded>(&input)) {
    Write(*ended);
    Remove(ended->rank, LeftReason::kLost,
           "its process ended: its connection closed, and it was not back within " +
               std::to_string(spec_.death_grace_ms) + " ms");
  } else if (const auto* lost = std::get_if<HistoryLost>(&input)) {
    Write(*lost);
    EndLost(*lost);
  } else if (const auto* refused = std::get_if<HelloRefused>(&input)) {
    Write(*refused);
    admissions_.Refuse(now, *refused);
  } else if (const auto* act = std::get_if<OperatorActed>(&input)) {
    PRD_CHECK(CheckAct(*act).ok());
    Write(*act);
    OnAct(*act);
  } else {
    Write(DeadlineReached{});
    const std::optional<Instant> engine = engine_->NextDeadline();
    const auto due = [now](const std::optional<Instant>& at) { return at && *at <= now; };
    const bool awaited = switch_.former().known() && !begun_ && due(switch_.awaits_until());
    if (due(engine) || !(due(grace_ends_) || due(copies_again_) || awaited)) {
      ToEngine(DeadlineEvent{});
    }
  }
  Progress();
  EndNumberRound();
  TellGone();
  look_at_held_ = false;
  out_ = nullptr;
}

Record& Job::Write(RecordBody body) {
  return out_->records.emplace_back(
      Record{.run = run_, .index = next_index_++, .now = now_, .body = std::move(body)});
}

void Job::Send(Rank rank, ControllerBody body) {
  Worker& worker = At(rank);
  const auto& [seq, kept] = worker.link.Push(std::move(body));
  out_->sends.push_back({rank,
                         {.incarnation = worker.incarnation,
                          .seq = seq,
                          .ack = worker.link.last_in(),
                          .body = kept}});
}

void Job::SetState(Rank rank, State state) {
  Worker& worker = At(rank);
  --counts_[static_cast<std::size_t>(worker.state)];
  worker.state = state;
  ++counts_[static_cast<std::size_t>(state)];
  worker.since = now_;
}

void Job::OnHello(const WorkerEnvelope& envelope) {
  const Hello& hello = std::get<Hello>(envelope.body);
  Rank rank = hello.rank;
  if (rank == kNoRank) {
    rank = 0;
    while (Present(rank)) ++rank;
  }
  if (Index(rank) >= workers_.size()) {
    workers_.resize(Index(rank) + 1);
    clock_.Grow(workers_.size());
  }
  Worker& worker = At(rank);
  worker = Worker{};
  worker.incarnation = envelope.incarnation;
  worker.host = hello.host;
  worker.host_name = hello.host_name;
  worker.pid = hello.pid;
  worker.endpoints = hello.endpoints;
  worker.mesh_key = hello.mesh_key;
  worker.gradients = hello.gradients;
  worker.identity = hello.identity;
  worker.version = hello.version;
  worker.returns_at_once = hello.returns_at_once;
  worker.token = envelope.token;
  worker.returns = hello.former.known();
  worker.continues = switch_.former().known() && hello.former.high == switch_.former().identity;
  worker.job_trained = clock_.BeforeRun(hello.job_trained);
  worker.brought = worker.iteration = hello.iteration;
  worker.first_group = next_group_;
  worker.link.OnReceive(envelope.seq);
  SetState(rank, State::kJoining);
  by_incarnation_[envelope.incarnation] = rank;
  ++live_;
  if (!clock_.goal().known() && !begun_) clock_.SetGoal(hello.goal);
  admissions_.Admit(rank, hello);
  switch_.Arrive(rank);
  if (start_workers_ == 0) {
    start_workers_ = spec_.workers > 0 ? spec_.workers : std::max(1, hello.world_size);
  }
  Send(rank, Welcome{.run = run_,
                     .identity = identity_,
                     .rank = rank,
                     .job = spec_.name,
                     .engine = std::string(EngineName(spec_.engine)),
                     .plan = plan_,
                     .workers = start_workers_,
                     .lease_ms = spec_.lease_ms,
                     .heartbeat_ms = spec_.heartbeat_ms,
                     .own = CountHello(rank, hello),
                     .goal = clock_.goal(),
                     .on_nonfinite = spec_.on_nonfinite,
                     .mesh_security = spec_.mesh_security,
                     .device_network_trusted = spec_.device_network_trusted,
                     .job_calls = true});
}

std::string Job::OnReady(Rank rank, const Ready& ready) {
  Worker& worker = At(rank);
  if (std::string wrong = CountReport(rank, ready.own, ready.nonfinite); !wrong.empty())
    return wrong;
  if (worker.outdated) {
    Write(UpdateDropped{.rank = rank,
                        .iteration = worker.iteration,
                        .reason = "the model that it joined with was outdated"});
    return {};
  }
  // After the common start a worker may be quicker with its first step than others with their
  // report.
  const bool early = worker.state == State::kStarting && worker.group == kNoGroup;
  // Rounds, and groups that form ahead, are announced while workers compute and signal.
  const bool busy = !TrainsInRounds(plan_) && ((worker.group != kNoGroup && !DrawnAhead(plan_)) ||
                                               (worker.signal && worker.signal->waiting));
  const bool drains = orders_.Drains(rank) && worker.state == State::kPaused;
  if ((worker.state != State::kActive && !early && !drains) || busy ||
      worker.stop_held != Stop::kNone || worker.resumes) {
    return "a ready signal while " + Explain(now_, rank);
  }
  // A worker arrives at the round after the newest in its replica, which it may not have told yet.
  const Iteration lowest =
      TrainsInRounds(plan_) ? worker.signalled : worker.iteration + (TrainsInGroups(plan_) ? 0 : 1);
  const bool one = !CountsLocalSteps(plan_);
  const Iteration highest = TrainsInRounds(plan_) && worker.group != kNoGroup
                                ? groups_.at(worker.group).iteration + 1
                                : worker.iteration + (one ? 1 : kMaxJump);
  if (ready.iteration < lowest || ready.iteration > std::min(highest, kMaxIteration)) {
    return "a ready signal for iteration " + std::to_string(ready.iteration) +
           ", after iteration " + std::to_string(worker.iteration);
  }
  if (!ready.waiting && !TrainsInRounds(plan_) && !AcknowledgesLate(plan_)) {
    return "a ready signal that waits for nothing, under an engine that answers each";
  }
  if (FollowsSchedule(plan_)) return "a ready signal, under a schedule that needs none";
  if (ready.gradients > (TrainsInRounds(plan_) ? 1u : 0u) || worker.owed >= kMaxOwed ||
      ready.local_steps > kMaxJump) {
    return "a ready signal with " + std::to_string(ready.gradients) + " gradients and " +
           std::to_string(ready.local_steps) + " local steps, owing " +
           std::to_string(worker.owed) + " gradients";
  }
  if (ready.step_ns < 0 || ready.rtt_ns < 0 || ready.samples < 0 || ready.samples > kMaxSamples) {
    return "a ready signal with a step time of " + std::to_string(ready.step_ns) +
           " ns, a round trip of " + std::to_string(ready.rtt_ns) + " ns and " +
           std::to_string(ready.samples) + " samples";
  }
  worker.signal = ready;
  worker.signalled = ready.iteration;
  if (DrawnAhead(plan_)) worker.iteration = ready.iteration;
  worker.owed += ready.gradients;
  worker.since = now_;
  if (!worker.signal_held) HandSignal(rank);
  return {};
}

std::string Job::OnFinished(Rank rank, const Finished& finished) {
  if (finished.group == kNoGroup) return OnLinkReport(rank, finished);
  Worker& worker = At(rank);
  if (worker.group != finished.group || worker.source != kNoRank) {
    return "a report on group " + std::to_string(finished.group) + " while " + Explain(now_, rank);
  }
  const GroupId id = finished.group;
  Running& group = groups_.at(id);
  const bool ok = finished.outcome == Outcome::kOk;
  const bool round = group.kind == GroupKind::kRound;
  if (finished.included > (round && ok ? worker.owed : 0)) {
    return "a report on group " + std::to_string(id) + " with " +
           std::to_string(finished.included) + " gradients, owing " + std::to_string(worker.owed);
  }
  if (std::string wrong = NoteUnreachable(rank, finished); !wrong.empty()) return wrong;
  worker.owed -= finished.included;
  std::erase(group.pending, rank);
  (ok ? group.ok : group.failed).push_back(rank);
  worker.group = kNoGroup;
  worker.last_group = id;
  worker.last_ok = ok;
  worker.since = now_;
  if (ok) {
    if (AnsweredByEnd(group, rank)) worker.signal.reset();
    if (!DrawnAhead(plan_) || group.kind != GroupKind::kTrain) worker.iteration = group.iteration;
    worker.no_replica = worker.outdated = false;
    if (group.compares && finished.digest != 0) {
      group.digests.push_back({.rank = rank, .value = finished.digest});
      worker.compared = spec_.on_divergence == JobSpec::OnDivergence::kRepair;
    }
    if (round && worker.signal && worker.signal->iteration <= group.iteration)
      worker.signal.reset();
  }
  // Until the last member has reported, it is open whether those who failed go on from where they
  // are or from the others' result; and nobody trains before the common start is made.
  if (group.kind == GroupKind::kInitial || (!ok && AllOrNone(group.kind)))
    worker.signal_held = true;
  // A worker that has said Finish may be in a round that was announced before.
  if (OfEngine(group.kind) && worker.state == State::kActive) {
    ToEngine(FinishedEvent{.rank = rank, .group = id, .ok = ok, .owed = worker.owed});
  }
  if (!ok) FailGroup(id, "it failed on rank " + std::to_string(rank) + ": " + finished.detail);
  EndIfDone(id);
  return {};
}

std::string Job::OnAdopted(Rank rank, const Adopted& adopted) {
  Worker& worker = At(rank);
  if (worker.source == kNoRank) return "an answer to no order to adopt";
  if (adopted.ok && (adopted.iteration < 0 || adopted.iteration > kMaxIteration)) {
    return "adopted a model of iteration " + std::to_string(adopted.iteration);
  }
  if (worker.group != kNoGroup) return OnResult(rank, adopted);
  const Rank source = worker.source;
  worker.source = kNoRank;
  worker.since = now_;
  worker.signal.reset();  // sent before the order arrived; after a failure the worker signals again
  if (!adopted.ok) {
    CopyFailed(rank, source);
    return {};
  }
  const bool forked = Forked(rank, adopted.iteration);
  worker.failed_source = kNoRank;
  worker.iteration = adopted.iteration;
  worker.signal_held = false;
  worker.no_replica = false;
  if (worker.state != State::kAdopting) {
    if (forked) {
      OrderAdopt(rank, SourceFor(rank, kNoRank),
                 "others have gone on without rank " + std::to_string(source));
    } else {
      LeaveOlderBehind();
    }
    return {};
  }
  if (worker.owed > 0) {
    Write(UpdateDropped{.rank = rank,
                        .iteration = worker.iteration,
                        .reason = std::to_string(worker.owed) +
                                  " of its gradients were in no round when it copied a model"});
    worker.owed = 0;
  }
  // A round may have formed although signals were held back: somebody left. Who joins at any time
  // catches up with those who train; but not with one that has stopped with a newer replica.
  const bool late = joining_ == Engine::Joining::kAnytime
                        ? AllOrNone(GroupKind::kTrain) && adopted.iteration < NewestThatStands()
                        : !NothingRuns() || adopted.iteration < Newest();
  if (late || forked) {
    worker.no_replica = worker.outdated = !worker.resumes;
    worker.returns = true;  // a common start may take this copy, if nobody has a better one
    SetState(rank, State::kJoining);
  } else {
    worker.outdated = false;
    Activate(rank, adopted.iteration, "adopted the model of rank " + std::to_string(source));
    LeaveOlderBehind();
  }
  return {};
}

std::string Job::OnPlaced(Rank rank, const Placed& placed) {
  const State state = At(rank).state;
  const bool holds = state == State::kActive || state == State::kPaused || At(rank).resumes ||
                     state == State::kFinishing || state == State::kFinal;
  if (!HasStore(plan_) || !holds) return "shards placed while " + Explain(now_, rank);
  ToEngine(PlacedEvent{.rank = rank, .epoch = placed.epoch});
  return {};
}

// What became of an order to fetch a round's result.
std::string Job::OnResult(Rank rank, const Adopted& adopted) {
  Worker& worker = At(rank);
  const GroupId id = worker.group;
  Running& group = groups_.at(id);
  if (adopted.included > (adopted.ok ? worker.owed : 0)) {
    return "the result of round " + std::to_string(id) + " with " +
           std::to_string(adopted.included) + " gradients, owing " + std::to_string(worker.owed);
  }
  worker.owed -= adopted.included;
  worker.source = kNoRank;
  worker.group = kNoGroup;
  worker.since = now_;
  std::erase(group.pending, rank);
  if (adopted.ok) {
    worker.iteration = group.iteration;
    worker.fetches = 0;
    if (worker.signal && worker.signal->iteration <= group.iteration) worker.signal.reset();
    group.ok.push_back(rank);
    if (worker.state == State::kActive) {
      ToEngine(FinishedEvent{.rank = rank, .group = id, .ok = true, .owed = worker.owed});
    }
  } else {
    group.failed.push_back(rank);
    if (++worker.fetches >= kMaxFetches) {
      LeaveBehind(
          rank, "could not get the result of round " + std::to_string(id) + ": " + adopted.detail);
    }
  }
  EndIfDone(id);
  return {};
}

// A stopped worker leaves like a drained one: it first finishes the groups it is in.
std::string Job::OnLeave(Rank rank, const Leave& leave) {
  const Worker& worker = At(rank);
  const bool stopped = worker.state == State::kPaused || worker.state == State::kFinishing ||
                       worker.state == State::kFinal;
  if (stopped || worker.stop_held != Stop::kNone) {
    orders_.Drain(rank, leave.reason);
    return {};
  }
  Send(rank, Released{.reason = "left: " + leave.reason});
  Remove(rank, LeftReason::kLeft, leave.reason);
  return {};
}

// ---- what is trained ----

// Members of a group that all stop after it learn that the job is done from the group. Workers that
// copy its result must not hear it before the result exists: with an older one they would stop too
// early.
JobProgress Job::progress() const {
  const bool by_groups = prd::AllOrNone(plan_) && !TrainsInRounds(plan_);
  return {.trained = clock_.trained(),
          .workers = live_,
          .done = clock_.done() && (clock_.last_result() || !by_groups)};
}

Trained Job::CountHello(Rank rank, const Hello& hello) {
  const Trained own = clock_.CountHello(rank, hello.own);
  LookForGoal();
  return own;
}

std::string Job::CountReport(Rank rank, const Trained& own, std::uint32_t nonfinite) {
  std::string wrong = clock_.CountReport(now_, rank, own, nonfinite);
  if (wrong.empty()) LookForGoal();
  return wrong;
}

void Job::LookForGoal() {
  if (begun_ && clock_.ReachGoal()) Write(GoalReached{clock_.trained()});
}

// Until the common start has been made, its workers say what was trained before. What they say
// counts also if the start fails and they are gone later: other workers have heard of it.
void Job::TakeStart(const GroupFormed& start) {
  if (begun_) return;
  for (const GroupShare& share : start.members) clock_.Bring(At(share.rank).job_trained);
}

// ---- workers ----

void Job::Remove(Rank rank, LeftReason why, const std::string& reason) {
  const Worker gone = At(rank);
  if (Stranded(rank)) --stranded_;
  if (gone.resumes) --resuming_;
  if (!gone.untold.empty()) --untold_;
  SetWithheld(rank, false);
  by_incarnation_.erase(gone.incarnation);
  SetState(rank, State::kAbsent);
  At(rank) = Worker{};
  --live_;
  orders_.Forget(rank);
  ForgetLinks(rank);
  std::optional<ReplicasDiffer> differ = divergence_.Forget(rank);
  // A worker with the final average differs no more.
  if (differ && gone.state != State::kFinal) Write(*std::move(differ));
  numbers_.Forget(rank);
  NoteGone(rank, gone, why);
  clock_.NoteGone(rank, gone.incarnation);
  if (ReplicasAreEqual(plan_) && gone.state != State::kFinal) SourceGone(rank);
  Write(WorkerLeft{.rank = rank,
                   .incarnation = gone.incarnation,
                   .why = why,
                   .reason = reason,
                   .gradients = gone.owed});
  const bool stopped = gone.state == State::kPaused || gone.state == State::kFinishing ||
                       gone.state == State::kFinal || gone.resumes;
  const bool held_shards = HasStore(plan_) && stopped;
  if (gone.state == State::kActive || held_shards) ToEngine(LeftEvent{.rank = rank, .why = why});
  if (gone.group == kNoGroup) return;
  std::erase(groups_.at(gone.group).pending, rank);
  FailGroup(gone.group, RankName(rank) + " is gone: " + reason);
  EndIfDone(gone.group);
}

// The controller does not know what it has told its workers, or heard from them. They come back to
// a new run, with the replicas that they have.
void Job::EndLost(const HistoryLost& lost) {
  const std::string why = "the history of run " + std::to_string(run_) +
                          " has lost its end: rank " + std::to_string(lost.rank) +
                          " knows of messages that it does not have";
  SendAway(LeftReason::kLost, why);
  Write(RunEnded{.reason = why});
}

// The run is over, and all who are there say Hello anew.
void Job::SendAway(LeftReason why, const std::string& reason) {
  for (const auto& [id, group] : groups_) {
    Write(GroupEnded{.id = id, .ok = false, .reason = "the run ends"});
  }
  groups_.clear();
  held_.clear();
  orders_.ForgetAll();
  links_.Clear();
  divergence_.Clear();
  for (Rank rank = 0; Index(rank) < workers_.size(); ++rank) {
    if (!Present(rank)) continue;
    const Worker gone = At(rank);
    out_->sends.push_back({rank,
                           {.incarnation = gone.incarnation,
                            .body = Refused{.code = Code::kAborted, .reason = reason}}});
    SetState(rank, State::kAbsent);
    At(rank) = Worker{};
    Write(WorkerLeft{.rank = rank,
                     .incarnation = gone.incarnation,
                     .why = why,
                     .reason = reason,
                     .gradients = gone.owed});
  }
  by_incarnation_.clear();
  live_ = stranded_ = withheld_ = resuming_ = untold_ = 0;
  gone_.clear();
  ended_ = true;
}

void Job::Activate(Rank rank, Iteration iteration, const std::string& reason) {
  Worker& worker = At(rank);
  SetState(rank, State::kActive);
  worker.iteration = iteration;
  Write(WorkerJoined{.rank = rank,
                     .incarnation = worker.incarnation,
                     .host_name = worker.host_name,
                     .pid = worker.pid,
                     .iteration = iteration,
                     .reason = reason});
  ToEngine(JoinedEvent{.rank = rank, .iteration = iteration, .host = worker.host});
  TellLinks(rank);
}

void Job::HandSignal(Rank rank) {
  const Worker& worker = At(rank);
  if (worker.state != State::kActive || !worker.signal || worker.compared) return;
  const bool copies = joining_ != Engine::Joining::kAnytime && Count(State::kAdopting) > 0;
  if (copies || orders_.paused() || orders_.Drains(rank)) {
    SetWithheld(rank, true);
    return;
  }
  ToEngine(ReadyEvent{.rank = rank, .ready = *worker.signal, .owed = worker.owed});
}

void Job::SetWithheld(Rank rank, bool withheld) {
  withheld_ += int{withheld} - int{At(rank).signal_withheld};
  At(rank).signal_withheld = withheld;
}

// Nobody copies a replica any more, or the run goes on after a pause.
void Job::HandWithheld() {
  for (Rank rank = 0; Index(rank) < workers_.size() && withheld_ > 0; ++rank) {
    if (!At(rank).signal_withheld) continue;
    SetWithheld(rank, false);
    HandSignal(rank);
  }
}

}  // namespace prd
