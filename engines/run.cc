#include "engines/run.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "engines/final_average.h"
#include "engines/run_end.h"
#include "engines/run_limits.h"

namespace prd {

Run::Run(RunId run, JobSpec spec)
    : RunState(run, std::move(spec), this),
      stops_(context_, &ready_, &clock_, &orders_),
      joiners_(context_, &ready_, &copies_, &start_, &groups_, &held_, &shares_),
      link_reports_(context_, &links_, &held_, &groups_),
      drains_(context_, &orders_, &stops_, &copies_, &groups_, engine_.get()),
      announcer_(context_, &ready_, &copies_, &held_) {}

void Run::Start(Instant now, std::int64_t wall_ns, RunIdentity identity, const FormerRun& former,
                RunOutput* out) {
  PRD_CHECK(next_index() == 0);
  log_.Begin(now, out);
  started_at_ = now;
  wall_ns_ = wall_ns;
  identity_ = identity;
  if (former.known()) {
    const std::int64_t wait_ms = std::int64_t{spec_.lease_ms} + spec_.start_grace_ms;
    switch_.TakeOver(former, now + wait_ms * kMillisecond);
    clock_.TakeOver(former);
    admissions_.TakeOver(former);
    orders_.TakeOver(former.dismissed);
    numbers_.TakeOver(former);
    start_.Expect(spec_.workers > 0 ? spec_.workers : std::max(1, former.workers));
    roster_.Grow(static_cast<Rank>(tallies().size()));
  }
  log_.Write(RunStarted{.job = spec_.name,
                        .engine = std::string(EngineName(spec_.engine)),
                        .spec = spec_.text,
                        .wall_ns = wall_ns,
                        .identity = identity,
                        .former = former});
  log_.End();
}

std::optional<Instant> Run::NextDeadline() const {
  std::optional<Instant> next = engine_->NextDeadline();
  for (const std::optional<Instant>& own : OwnDeadlines()) {
    if (own && last_now() < *own && (!next || *own < *next)) next = own;
  }
  return next;
}

std::array<std::optional<Instant>, 5> Run::OwnDeadlines() const {
  std::optional<Instant> awaits, doubted;
  if (switch_.former().known() && !start_.begun()) awaits = switch_.awaits_until();
  if (start_.doubted()) doubted = start_.doubted()->until;
  return {start_.grace_ends(), doubted, copies_.again(), held_.judge_at(), awaits};
}

Status Run::Load(std::string_view state) {
  if (const std::string other = OtherVersion(state); !other.empty()) {
    return Status(Code::kFailedPrecondition, other);
  }
  StateArchive ar = StateArchive::Loader(state);
  Archive(ar);
  if (ar.ok() && ar.AtEnd() && Restore()) return Status::Ok();
  return Status(Code::kDataLoss, "the snapshot of run " + std::to_string(id()) + " is damaged");
}

std::uint64_t Run::StateHash() const {
  StateArchive ar = StateArchive::Hasher();
  const_cast<Run*>(this)->Archive(ar);  // a Hasher only reads
  return HashBytes(ar.bytes());
}

// ---- one input ----

void Run::Step(Instant now, const Input& input, RunOutput* out) {
  PRD_CHECK(now >= last_now() && !ended());
  const auto* act = std::get_if<OperatorActed>(&input);
  log_.Begin(now, out);
  PRD_CHECK(act == nullptr || CheckAct(*act).ok());
  std::visit([this](const auto& body) { log_.Write(body); }, input);
  if (const auto* from = std::get_if<FromWorker>(&input)) {
    OnWorker(from->envelope);
  } else if (const auto* expired = std::get_if<LeaseExpired>(&input)) {
    Remove(expired->rank, LeftReason::kLost,
           "its lease of " + std::to_string(spec_.lease_ms) + " ms ran out");
  } else if (const auto* gone = std::get_if<ProcessEnded>(&input)) {
    Remove(gone->rank, LeftReason::kLost,
           "its process ended: its connection closed, and it was not back within " +
               std::to_string(spec_.death_grace_ms) + " ms");
  } else if (const auto* lost = std::get_if<HistoryLost>(&input)) {
    // The controller does not know what it has told its workers, or heard from them. They come back
    // to a new run, with the replicas that they have.
    const std::string why = "the history of run " + std::to_string(id()) +
                            " has lost its end: rank " + std::to_string(lost->rank) +
                            " knows of messages that it does not have";
    SendAway(LeftReason::kLost, why);
    log_.Write(RunEnded{.reason = why});
  } else if (const auto* refused = std::get_if<HelloRefused>(&input)) {
    admissions_.Refuse(now, *refused);
  } else if (act != nullptr) {
    OnAct(*act);
  } else {
    OnDeadline();
  }
  Progress();
  if (start_.made() && !ended()) numbers_.EndRound();
  gone_.Send();
  held_.EndInput();
  log_.End();
}

// The engine hears of a deadline unless only the run's own are due.
void Run::OnDeadline() {
  const auto due = [this](const std::optional<Instant>& at) { return at && *at <= last_now(); };
  const auto all = OwnDeadlines();
  const bool own = std::any_of(all.begin(), all.end(), due);
  if (due(engine_->NextDeadline()) || !own) ToEngine(DeadlineEvent{});
}

void Run::OnAct(const OperatorActed& act) {
  const std::string by = act.by + (act.reason.empty() ? "" : ": " + act.reason);
  switch (act.verb) {
    case OperatorVerb::kEvict:
      drains_.Dismiss(act.rank, LeftReason::kEvicted, "evicted by " + by);
      break;
    case OperatorVerb::kDrain:
      for (Rank rank = 0; rank < roster_.size(); ++rank) {
        if (OnHost(roster_[rank], act.host)) orders_.Drain(rank, "drained by " + by);
      }
      break;
    case OperatorVerb::kEnd:
      orders_.Resume();
      clock_.End();
      log_.Write(GoalReached{clock_.trained()});
      break;
    case OperatorVerb::kPause:
      orders_.Pause({.by = act.by, .reason = act.reason, .since = last_now()});
      break;
    case OperatorVerb::kResume:
      orders_.Resume();
      break;
    case OperatorVerb::kSwitch:
      switch_.Begin({.spec = act.spec, .next = act.next, .by = by, .since = last_now()});
      for (Rank rank = 0; rank < roster_.size(); ++rank) {
        if (!roster_.Present(rank)) continue;
        roster_.Send(rank, EndRun{.reason = switch_.Words(last_now())});
      }
      break;
  }
}

// ---- messages ----

void Run::OnWorker(const WorkerEnvelope& envelope) {
  if (std::holds_alternative<Hello>(envelope.body)) return OnHello(envelope);
  const Rank rank = envelope.rank;
  roster_.Receive(rank, envelope.seq, envelope.ack);
  const std::string wrong = OnMessage(rank, envelope.body);
  if (wrong.empty()) return;
  roster_.Refuse(rank, Code::kInvalidArgument, wrong);
  Remove(rank, LeftReason::kEvicted, wrong);
}

void Run::OnHello(const WorkerEnvelope& envelope) {
  const Hello& hello = std::get<Hello>(envelope.body);
  const Rank rank = hello.rank == kNoRank ? roster_.Free() : hello.rank;
  if (rank >= roster_.size()) {
    roster_.Grow(rank + 1);
    clock_.Grow(workers().size());
  }
  const FormerRun& former = switch_.former();
  roster_.Enter(rank, envelope, former.known() && hello.former.high == former.identity,
                clock_.BeforeRun(hello.job_trained));
  roster_.NoteTold(rank, last_now(), 0);
  groups_.Enter(rank);
  if (!clock_.goal().known() && !start_.begun()) clock_.SetGoal(hello.goal);
  admissions_.Admit(rank, hello);
  switch_.Arrive(rank);
  start_.Expect(spec_.workers > 0 ? spec_.workers : std::max(1, hello.world_size));
  const Trained own = clock_.CountHello(rank, hello.own);
  shares_.Enter(rank, hello);
  LookForGoal();
  roster_.Send(rank, Welcome{.run = id(),
                             .identity = identity_,
                             .rank = rank,
                             .job = spec_.name,
                             .engine = std::string(EngineName(spec_.engine)),
                             .plan = plan_,
                             .workers = start_workers(),
                             .lease_ms = spec_.lease_ms,
                             .heartbeat_ms = spec_.heartbeat_ms,
                             .own = own,
                             .goal = clock_.goal(),
                             .on_nonfinite = spec_.on_nonfinite,
                             .mesh_security = spec_.mesh_security,
                             .device_network_trusted = spec_.device_network_trusted,
                             .job_calls = true,
                             .batch = shares_.batch()});
  link_reports_.Meet(rank);
}

std::string Run::OnMessage(Rank rank, const WorkerBody& body) {
  if (const auto* ready = std::get_if<Ready>(&body)) return OnReady(rank, *ready);
  if (const auto* done = std::get_if<Finished>(&body)) return OnFinished(rank, *done);
  if (const auto* adopted = std::get_if<Adopted>(&body)) return OnAdopted(rank, *adopted);
  if (const auto* told = std::get_if<Progressed>(&body)) {
    clock_.NoteMemory(rank, told->memory);
    return CountReport(rank, told->own, told->nonfinite);
  }
  if (const auto* placed = std::get_if<Placed>(&body)) return OnPlaced(rank, *placed);
  if (const auto* probed = std::get_if<Probed>(&body)) return link_reports_.OnProbed(rank, *probed);
  if (std::holds_alternative<Finish>(body)) return stops_.OnStop(rank, StopReason::kFinish);
  if (std::holds_alternative<Pause>(body)) return stops_.OnStop(rank, StopReason::kPause);
  if (std::holds_alternative<Resume>(body)) return stops_.OnResume(rank);
  if (const auto* numbers = std::get_if<GiveNumbers>(&body)) return numbers_.Give(rank, *numbers);
  if (std::holds_alternative<AskMembers>(body)) OnAskMembers(rank);
  if (const auto* leave = std::get_if<Leave>(&body)) OnLeave(rank, *leave);
  if (const auto* stop = std::get_if<StopJob>(&body)) {
    clock_.Stop(rank, stop->reason);
    LookForGoal();
  }
  return {};
}

std::string Run::OnReady(Rank rank, const Ready& ready) {
  if (std::string wrong = CountReport(rank, ready.own, ready.nonfinite); !wrong.empty()) {
    return wrong;
  }
  const Worker& worker = roster_[rank];
  if (worker.outdated) {
    log_.Write(UpdateDropped{.rank = rank,
                             .iteration = worker.iteration,
                             .reason = "the model that it joined with was outdated"});
    return {};
  }
  if (std::string wrong = CheckReady(*this, rank, ready); !wrong.empty()) return wrong;
  ready_.Add(rank, ready);
  if (!shares_.Take(rank, ready)) {
    ready_.Drop(rank);
    return {};
  }
  if (DrawnAhead(plan_)) roster_.SetIteration(rank, ready.iteration);
  roster_.Touch(rank);
  if (!worker.Held(ReadySlot::kForReplica)) DeliverReady(rank);
  return {};
}

std::string Run::OnFinished(Rank rank, const Finished& finished) {
  if (finished.group == kNoGroup) return link_reports_.OnNoGroup(rank, finished);
  const Worker& worker = roster_[rank];
  if (worker.group != finished.group || worker.source != kNoRank) {
    return "a report on group " + std::to_string(finished.group) + " while " +
           Explain(last_now(), rank);
  }
  const bool counts =
      finished.outcome == Outcome::kOk && groups_.At(finished.group).kind == GroupKind::kRound;
  if (finished.included > (counts ? worker.owed : 0)) {
    return "a report on group " + std::to_string(finished.group) + " with " +
           std::to_string(finished.included) + " gradients, owing " + std::to_string(worker.owed);
  }
  if (std::string wrong = link_reports_.OnGroup(rank, finished); !wrong.empty()) return wrong;
  groups_.Report(rank, finished);
  return {};
}

std::string Run::OnAdopted(Rank rank, const Adopted& adopted) {
  const Worker& worker = roster_[rank];
  if (worker.source == kNoRank) return "an answer to no order to adopt";
  if (adopted.ok && (adopted.iteration < 0 || adopted.iteration > kMaxIteration)) {
    return "adopted a model of iteration " + std::to_string(adopted.iteration);
  }
  if (worker.group != kNoGroup) {
    const std::string wrong = groups_.ReportResult(rank, adopted);
    if (!wrong.empty()) return wrong;
  } else {
    if (!adopted.ok && adopted.unreachable) link_reports_.OnCopy(rank, worker.source);
    joiners_.EndCopy(rank, adopted);
  }
  return worker.state == State::kActive ? stops_.TakeHeld(rank) : std::string();
}

std::string Run::OnPlaced(Rank rank, const Placed& placed) {
  const State state = roster_[rank].state;
  const bool holds = state == State::kActive || state == State::kPaused || roster_[rank].resumes ||
                     state == State::kFinishing || state == State::kFinal;
  if (!HasStore(plan_) || !holds) return "shards placed while " + Explain(last_now(), rank);
  ToEngine(PlacedEvent{.rank = rank, .epoch = placed.epoch});
  return {};
}

// Names the workers with a replica that is of use to others: not those that copy one themselves.
void Run::OnAskMembers(Rank rank) {
  Members members;
  for (Rank r = 0; r < roster_.size(); ++r) {
    const Worker& worker = roster_[r];
    const bool has_replica = worker.state == State::kJoining ? worker.resumes : !worker.no_replica;
    const bool copies = worker.source != kNoRank && worker.group == kNoGroup;
    if (!roster_.Present(r) || !has_replica || copies || worker.outdated) continue;
    members.members.push_back(roster_.Describe(r));
    if (r != rank) roster_.Introduce(rank, r, true);
  }
  roster_.Send(rank, std::move(members));
}

// A stopped worker leaves like a drained one: it first finishes the groups it is in. One that has
// failed cannot.
void Run::OnLeave(Rank rank, const Leave& leave) {
  const Worker& worker = roster_[rank];
  const bool stopped = worker.state == State::kPaused || worker.state == State::kFinishing ||
                       worker.state == State::kFinal;
  const bool waits = stopped || worker.stop_held != StopReason::kNone;
  if (waits && !leave.failed) return orders_.Drain(rank, leave.reason);
  roster_.Send(rank, Released{.reason = "left: " + leave.reason});
  Remove(rank, leave.failed ? LeftReason::kFailed : LeftReason::kLeft, leave.reason);
}

std::string Run::CountReport(Rank rank, const Trained& own, std::uint32_t nonfinite) {
  const std::int64_t before = clock_.gained().steps;
  std::string wrong = clock_.CountReport(last_now(), rank, own, nonfinite);
  if (!wrong.empty()) return wrong;
  roster_.NoteTold(rank, last_now(), clock_.gained().steps - before);
  LookForGoal();
  return wrong;
}

// A job that has not begun in this run is done once it has.
void Run::LookForGoal() {
  if (start_.begun() && clock_.ReachGoal()) log_.Write(GoalReached{clock_.trained()});
}

// ---- acts that concern more than one part ----

void Run::ToEngine(const Event& event) {
  effects_.clear();
  shares_.Note(event);
  engine_->Step(last_now(), event, groups_.next(), &effects_);
  for (Effect& effect : effects_) {
    // Members hear of their next shares before the group ends their step.
    if (const auto* formed = std::get_if<GroupFormed>(&effect)) shares_.OnGroup(*formed);
    announcer_.Announce(std::move(effect));
  }
}

void Run::DeliverReady(Rank rank) {
  if (roster_[rank].state != State::kActive) return;
  const bool copies =
      context_.joining != Engine::Joining::kAnytime && roster_.Count(State::kAdopting) > 0;
  const bool withhold = copies || paused() || orders_.Drains(rank);
  const auto event = ready_.Deliver(rank, withhold);
  if (event && !shares_.Collect(rank)) ToEngine(*event);
}

void Run::Activate(Rank rank, Iteration iteration, const std::string& reason) {
  roster_.SetState(rank, State::kActive);
  roster_.SetIteration(rank, iteration);
  Join(rank, copies_.NewestActive(), reason);
}

void Run::Join(Rank rank, Iteration newest, const std::string& reason) {
  const Worker& worker = roster_[rank];
  log_.Write(WorkerJoined{.rank = rank,
                          .incarnation = worker.incarnation,
                          .host_name = worker.host_name,
                          .pid = worker.pid,
                          .iteration = worker.iteration,
                          .reason = reason});
  ToEngine(JoinedEvent{
      .rank = rank, .iteration = worker.iteration, .host = worker.host, .newest = newest});
  link_reports_.Tell(rank);
}

void Run::Remove(Rank rank, LeftReason why, const std::string& reason) {
  copies_.Forget(rank);
  ready_.Clear(rank);
  const Worker gone = roster_.Leave(rank);
  orders_.Forget(rank);
  link_reports_.Forget(rank);
  std::optional<ReplicasDiffer> differ = divergence_.Forget(rank);
  // A worker with the final average differs no more.
  if (differ && gone.state != State::kFinal) log_.Write(*std::move(differ));
  numbers_.Forget(rank);
  gone_.Note(rank, gone, why, groups());
  clock_.NoteGone(rank, gone.incarnation);
  if (ReplicasAreEqual(plan_) && gone.state != State::kFinal) copies_.SourceGone(rank);
  log_.Write(WorkerLeft{.rank = rank,
                        .incarnation = gone.incarnation,
                        .why = why,
                        .reason = reason,
                        .gradients = gone.owed});
  const bool stopped = gone.state == State::kPaused || gone.state == State::kFinishing ||
                       gone.state == State::kFinal || gone.resumes;
  const bool held_shards = HasStore(plan_) && stopped;
  if (gone.state == State::kActive || held_shards) ToEngine(LeftEvent{.rank = rank, .why = why});
  groups_.Leave(rank, gone, reason);
}

void Run::TakeHeldStop(Rank rank) { PRD_CHECK(stops_.TakeHeld(rank).empty()); }

bool Run::StartsApart(const std::vector<Rank>& ok, const std::vector<Rank>& failed) const {
  if (start_.begun() || ok.empty() || ok.size() > failed.size()) return false;
  return std::any_of(failed.begin(), failed.end(), [&](Rank rank) {
    return std::any_of(ok.begin(), ok.end(),
                       [&](Rank other) { return links_.broken().Has(rank, other); });
  });
}

void Run::EndCommonStart(Iteration iteration, const std::vector<Rank>& ok,
                         const std::vector<Rank>& failed) {
  for (const Rank rank : failed) {
    ready_.Drop(rank);
    ready_.Release(rank, ReadySlot::kForReplica);
    roster_.SetState(rank, State::kJoining);
  }
  if (StartsApart(ok, failed)) {
    start_.Doubt({.iteration = iteration, .until = last_now() + spec_.lease_ms * kMillisecond});
    return;
  }
  if (!ok.empty()) start_.Make();
  LookForGoal();
  const Iteration newest = std::max(iteration, copies_.NewestActive());
  for (const Rank rank : ok) {
    ready_.Release(rank, ReadySlot::kForReplica);
    roster_.SetState(rank, State::kActive);
    roster_.SetIteration(rank, iteration);
    Join(rank, newest, "common start");
  }
  for (const Rank rank : ok) {  // once the engine knows all of them
    DeliverReady(rank);
    TakeHeldStop(rank);
  }
}

// Those that have a doubted start train once the others reach them; else they come back, and the
// start is made again.
void Run::LookAtDoubtedStart() {
  std::vector<Rank> ok, failed;
  for (Rank rank = 0; rank < roster_.size(); ++rank) {
    if (roster_[rank].state == State::kStarting) ok.push_back(rank);
    if (roster_[rank].state == State::kJoining) failed.push_back(rank);
  }
  const DoubtedStart start = *start_.doubted();
  const bool apart = StartsApart(ok, failed);
  if (apart && last_now() < start.until) return;
  start_.EndDoubt();
  if (!apart) return EndCommonStart(start.iteration, ok, {});
  for (const Rank rank : ok) {
    links_.LeaveApart(rank);
    context_.LeaveBehind(rank, "most workers have not got the common start, and do not reach it");
  }
}

// ---- the run as a whole ----

Run::Phase Run::phase() const {
  if (ended()) return Phase::kEnded;
  if (roster_.Count(State::kFinal) > 0) return Phase::kAveraging;
  if (!start_.made() && roster_.Count(State::kStarting) == 0 &&
      roster_.Count(State::kJoining) > 0) {
    return Phase::kForming;
  }
  if (switching()) return Phase::kSwitching;
  return live() > 0 && roster_.Count(State::kFinishing) == live() ? Phase::kFinishing
                                                                  : Phase::kTraining;
}

void Run::Progress() {
  if (start_.doubted()) LookAtDoubtedStart();
  MoveWorkersOn();
  EndWithoutCutOff();
  const Phase now = phase();
  if (now != Phase::kForming) start_.EndGrace();
  switch (now) {
    case Phase::kForming:
      MakeStart();
      break;
    case Phase::kTraining:
    case Phase::kEnded:
      break;
    case Phase::kFinishing:
      if (groups().empty()) Gather(GroupKind::kFinal, State::kFinishing, State::kFinal);
      break;
    case Phase::kSwitching: {
      // Paused and not yet joined workers enter the next run unchanged.
      const int still = roster_.Count(State::kFinishing) + roster_.Count(State::kPaused) +
                        roster_.Count(State::kJoining);
      if (still < live() || !groups().empty()) break;
      if (roster_.Count(State::kFinishing) > 0) {
        Gather(GroupKind::kFinal, State::kFinishing, State::kFinal);
      } else if (roster_.Count(State::kJoining) > 0) {
        EndForNext();
      }
      break;
    }
    case Phase::kAveraging:
      if (groups().empty()) EndAverage();
      break;
  }
  if (live() == 0 && !ended() && start_workers() > 0 && !Awaits(last_now())) EndWithoutWorkers();
}

// All others have finished, and wait for workers that are to copy a model and reach nobody who has
// one.
void Run::EndWithoutCutOff() {
  const int joining = roster_.Count(State::kJoining), finishing = roster_.Count(State::kFinishing);
  if (joining == 0 || finishing == 0 || joining + finishing != live() || switching()) return;
  const std::vector<Rank> behind = roster_.RanksIn(State::kJoining);
  std::vector<Rank> all = roster_.RanksIn(State::kFinishing);
  all.insert(all.end(), behind.begin(), behind.end());
  const auto cut_off = [this](Rank rank) { return copies_.CutOff(rank); };
  if (!std::all_of(behind.begin(), behind.end(), cut_off) || !held_.GivesUp(all)) return;
  for (const Rank rank : behind) {
    context_.LeaveBehind(rank, "the others have finished, and do not reach it");
  }
}

// Lets workers leave, go on, copy and join as far as they can.
void Run::MoveWorkersOn() {
  if (!draining().empty()) drains_.LetGo();
  if (start_.made() && !switching()) shares_.ServeIdle();
  const auto admit_resuming = [this] {
    if (roster_.resuming() > 0) joiners_.AdmitResuming(switching().has_value());
  };
  admit_resuming();        // first: one may have the newest replica
  joiners_.RetryCopies();  // may find that a worker is behind, or need not copy
  admit_resuming();
  if (copies_.any_behind()) joiners_.Rejoin();
  if (!held_.empty()) held_.Look();
  const bool copies =
      context_.joining != Engine::Joining::kAnytime && roster_.Count(State::kAdopting) > 0;
  if (ready_.withheld() > 0 && !copies && !paused()) {
    for (Rank rank = ready_.NextWithheld(0); rank != kNoRank;
         rank = ready_.NextWithheld(rank + 1)) {
      DeliverReady(rank);
    }
  }
  if (copies_.any_behind()) joiners_.Rejoin();  // a withheld signal may be late
  if (copies_.stranded() > 0) joiners_.HelpStranded();
  if (roster_.Count(State::kJoining) > 0 && start_.made() && !switching()) joiners_.Admit();
  for (const Rank rank : shares_.Look()) ToEngine(*ready_.Deliver(rank, false));
  if (held_.TakeSurvey()) {
    link_reports_.Survey();
    held_.NoteChange();
    held_.Look();
  }
}

void Run::MakeStart() {
  int needed = 0;
  if (switch_.former().known() && !start_.begun()) {
    needed =
        start_.NeededAfterSwitch(last_now(), spec_, Awaits(last_now()), switch_.awaits_until());
  } else {
    const bool returns =
        std::any_of(workers().begin(), workers().end(), [this](const Worker& worker) {
          return worker.state == State::kJoining && (start_.begun() || worker.returns);
        });
    needed = start_.Needed(last_now(), spec_, returns);
  }
  if (roster_.Count(State::kJoining) < needed || !held_.CanMeet(State::kJoining)) return;
  start_.EndGrace();
  Gather(GroupKind::kInitial, State::kJoining, State::kStarting);
}

// Forms a group of all workers in `from`, if they can meet: the common start or the final average.
void Run::Gather(GroupKind kind, State from, State to) {
  if (!held_.CanMeet(from) && (kind != GroupKind::kFinal || !held_.MeetWithoutFew(from))) return;
  GroupFormed form{
      .id = (*groups_.next())++, .kind = kind, .members = {}, .iteration = 0, .reason = {}};
  std::vector<Rank> ranks;
  std::vector<Starter> starters;
  std::vector<std::int64_t> stopped_at;
  for (Rank rank = 0; rank < roster_.size(); ++rank) {
    const Worker& worker = roster_[rank];
    if (worker.state != from) continue;
    form.members.push_back({.rank = rank, .weight = 0, .iteration = worker.iteration});
    ranks.push_back(rank);
    const bool former_model = !start_.begun() && worker.continues && switch_.HadModel(rank);
    starters.push_back({.returns = worker.returns, .former_model = former_model});
    stopped_at.push_back(worker.stopped_at);
    // Until the common start has been made, its members say what was trained before. That counts
    // also if the start fails and they are gone later: other workers have heard of it.
    if (kind == GroupKind::kInitial && !start_.begun()) clock_.Bring(worker.job_trained);
    roster_.SetState(rank, to);
    copies_.EndWait(rank);
  }
  if (kind == GroupKind::kInitial) {
    WeighCommonStart(plan_, starters, switch_.former().run, &form);
  } else {
    WeighFinalAverage(plan_, clock_.gained().steps, stopped_at, &form);
  }
  std::sort(form.members.begin(), form.members.end(), [this](const auto& a, const auto& b) {
    return std::pair(roster_[a.rank].host, a.rank) < std::pair(roster_[b.rank].host, b.rank);
  });
  if (kind == GroupKind::kInitial) shares_.Begin(form.iteration, ranks);
  held_.Announce(std::move(form));
}

// Workers have the final average. Once none copies it any more, they are released, or the next run
// begins.
void Run::EndAverage() {
  for (const Worker& worker : workers()) {
    const bool copies = worker.source != kNoRank || worker.copies_after;
    if (worker.state == State::kFinal && copies) return;
  }
  if (switching()) return EndForNext();
  for (Rank rank = 0; rank < roster_.size(); ++rank) {
    if (roster_[rank].state != State::kFinal) continue;
    roster_.Send(rank, Released{.reason = kJobIsDone});
    Remove(rank, LeftReason::kLeft, kJobIsDone);
  }
}

// The last worker has gone: by itself, or not.
void Run::EndWithoutWorkers() {
  WorkerLeft last;
  for (const Record& record : log_.records()) {
    if (const auto* left = std::get_if<WorkerLeft>(&record.body)) last = *left;
  }
  end_ = End::kEnded;
  if (last.rank == kNoRank) {
    log_.Write(RunEnded{.reason = "none of the workers of run " +
                                  std::to_string(switch_.former().run) + " is here"});
    return;
  }
  const bool evicted = !dismissed().empty() && dismissed().back().incarnation == last.incarnation;
  if (start_.begun() && (last.why == LeftReason::kLeft || evicted)) end_ = End::kFinished;
  log_.Write(RunEnded{.reason = std::string("the last worker has gone") +
                                (start_.begun() ? "" : " before the start") + ", rank " +
                                std::to_string(last.rank) + ": " + last.reason +
                                clock_.TrainedWords(),
                      .finished = finished()});
}

void Run::EndForNext() {
  drains_.LetAllGo();  // they would leave at their next boundary, which is here
  FormerRun next{.run = id(),
                 .identity = identity_.high,
                 .trained = clock_.trained(),
                 .goal = clock_.goal(),
                 .workers = start_workers(),
                 .launch = admissions_.launch(),
                 .model_hash = admissions_.model_hash(),
                 .ranks = {},
                 .dismissed = dismissed(),
                 .stopped = stopped_by(),
                 .numbers = {.given = numbers().given(), .averaged = numbers().last()}};
  for (Rank rank = 0; rank < roster_.size(); ++rank) {
    const Worker& worker = roster_[rank];
    const RankTally& tally = tallies()[RankIndex(rank)];
    if (!tally.known) continue;
    const bool averaged = worker.state == State::kFinal;
    // Where the average failed, the worker has copied it, unless nobody was left to copy it from.
    const bool has_model = averaged && (worker.last_ok || worker.failed_source == kNoRank);
    next.ranks.push_back({.rank = rank,
                          .own = tally.last,
                          .awaited = averaged || worker.state == State::kJoining,
                          .has_model = has_model});
  }
  if (live() == 0) return EndWithoutWorkers();
  const std::string why = "the job goes on in run " + std::to_string(switching()->next) + ", by " +
                          switching()->by + clock_.TrainedWords();
  SendAway(LeftReason::kLeft, why);
  switch_.End(std::move(next));
  log_.Write(RunEnded{.reason = why, .next = switching()->next});
}

// The run is over, and all workers that are there say Hello anew.
void Run::SendAway(LeftReason why, const std::string& reason) {
  groups_.EndAll();
  held_.Clear();
  orders_.ForgetAll();
  links_.Clear();
  divergence_.Clear();
  for (Rank rank = 0; rank < roster_.size(); ++rank) {
    if (!roster_.Present(rank)) continue;
    roster_.Refuse(rank, Code::kAborted, reason);
    copies_.Forget(rank);
    ready_.Clear(rank);
    const Worker gone = roster_.Leave(rank);
    log_.Write(WorkerLeft{.rank = rank,
                          .incarnation = gone.incarnation,
                          .why = why,
                          .reason = reason,
                          .gradients = gone.owed});
  }
  gone_.Clear();
  end_ = End::kEnded;
}

}  // namespace prd
