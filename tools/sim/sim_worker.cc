#include "tools/sim/sim_worker.h"

#include <algorithm>
#include <utility>

#include "engines/violation.h"
#include "tools/sim/names.h"

namespace prd::sim {
namespace {

constexpr double kStopsWithinMs = 100;  // of the call of its step; a notice comes within the same
constexpr double kGraceMs = 200;

const char* PhaseName(SimWorker::Phase phase) {
  switch (phase) {
    case SimWorker::Phase::kAway:
      return "away";
    case SimWorker::Phase::kAttaching:
      return "attaching";
    case SimWorker::Phase::kComputing:
      return "computing";
    case SimWorker::Phase::kStepping:
      return "in a step";
    case SimWorker::Phase::kPausing:
      return "about to pause";
    case SimWorker::Phase::kPaused:
      return "pausing";
    case SimWorker::Phase::kResuming:
      return "resuming";
    case SimWorker::Phase::kAveraging:
      return "averaging all replicas";
    case SimWorker::Phase::kFinishing:
      return "finishing";
    case SimWorker::Phase::kLeaving:
      return "leaving";
    case SimWorker::Phase::kDone:
      return "done";
    case SimWorker::Phase::kFailed:
      return "failed";
  }
  return "?";
}

// The training loop acts on it, and may call the session at once.
bool IsAnswer(const Action& action) {
  return std::holds_alternative<ApplyNow>(action) || std::holds_alternative<CallDone>(action);
}

bool Draws(World* world, double probability) {
  return probability > 0 && world->dice.Unit() < probability;
}

}  // namespace

// The loop is another thread: what it does next comes after all that the core asked for at once.
template <typename F>
void SimWorker::Tell(F&& input) {
  Actions actions = std::move(parts_->spare);
  actions.clear();
  input(&actions);
  for (Action& action : actions) {
    if (!IsAnswer(action)) Perform(&action);
  }
  for (Action& action : actions) {
    if (IsAnswer(action)) Perform(&action);
  }
  parts_->spare = std::move(actions);
  Schedule();
}

void SimWorker::Schedule() {
  if (core_.wants_incarnation()) {
    core_.GiveIncarnation(parts_->world->NewIncarnation(number_));
  }
  const std::optional<Instant> next = core_.NextDeadline();
  if (!next || phase_ == Phase::kAway || (wake_ && *wake_ <= *next)) return;
  wake_ = std::max(*next, parts_->world->now);
  parts_->world->queue.Push(*wake_, EventKind::kWorkerWakes, number_,
                            static_cast<std::uint64_t>(wake_->ns));
}

template <typename F>
void SimWorker::Call(PlaneCall call, F&& input) {
  parts_->plane->Enter(number_, call);
  parts_->plane->Ask(number_);
  Tell(input);
}

void SimWorker::Hear(const std::function<void(SessionCore*, Instant, Actions*)>& input) {
  if (phase_ == Phase::kAway) return;
  Tell([&](Actions* out) { input(&core_, parts_->world->now, out); });
}

// ---- life ----

void SimWorker::Init(WorkerParts* parts, std::uint32_t number) {
  parts_ = parts;
  number_ = number;
  loader_.Init(*parts, number);
  own_.Init(parts, number);
  clock_.Init(parts, number);
  dialogue_.Init(parts->world, number);
}

void SimWorker::Start() {
  World* world = parts_->world;
  ++lives_;
  core_ = SessionCore();
  core_.GiveIncarnation(world->NewIncarnation(number_));
  phase_ = Phase::kAttaching;
  wake_.reset();
  interrupted_ = noticed_ = false;
  loader_.Start();
  launch_ = world->launch;
  plan_ = world->runs.first_plan();
  done_ = false;
  Replica& own = *own_;
  own = Replica();
  own.tag = Mixed(world->prng.Next());
  if (parts_->objective != nullptr) own.x = parts_->objective->Start();
  const std::string host = "h" + std::to_string(world->HostOf(number_));
  SessionCore::Options options;
  options.hello.job = "sim";
  options.hello.rank = static_cast<Rank>(number_);
  options.hello.host = host;
  options.hello.host_name = host;
  parts_->plane->Start(number_, core_.incarnation(), loader_.accumulates());
  options.hello.endpoints = parts_->plane->Endpoints(number_);
  options.hello.model_bytes = static_cast<std::uint64_t>(world->workload.reduce.bytes);
  options.hello.model_hash = 1;
  options.hello.mesh_key = parts_->plane->Key(number_);
  options.hello.returns_at_once = world->control.tells_ends();
  options.hello.batch = world->workload.cluster.batch;
  options.hello.max_share = loader_.max_share();
  options.hello.accumulates = loader_.accumulates();
  options.hello.takes_shares = true;
  if (world->control.tells_ends() && world->control.ConnectionOf(number_) == 0) {
    world->control.EndConnection(number_, world->now);  // there was none: it gets the first
  }
  if (world->workload.faults.launcher_restarts_per_s > 0) {
    options.hello.launch = "launch " + std::to_string(launch_);
  }
  options.token = {Mixed(own.tag), number_};
  options.max_members = static_cast<std::size_t>(world->workload.cluster.workers);
  parts_->plane->Ask(number_);
  Tell([&](Actions* out) { core_.Attach(world->now, std::move(options), out); });
}

// Its peers do not find it any more.
void SimWorker::Gone(bool killed) {
  parts_->plane->End(number_, killed);
  own_->incarnation = 0;
}

void SimWorker::Away(double within_ms, bool killed) {
  World* world = parts_->world;
  Gone(killed);
  phase_ = Phase::kAway;
  wake_.reset();
  world->control.EndConnection(number_, world->now);
  world->queue.Push(world->now + FromMs(within_ms * world->prng.Unit()), EventKind::kWorkerStarts,
                    number_);
}

void SimWorker::Die() {
  core_ = SessionCore();
  Away(parts_->world->workload.faults.return_ms, true);
}

void SimWorker::Kill() {
  if (phase_ == Phase::kComputing) EndPass();
  parts_->world->frozen_until[number_] = parts_->world->now;
  Die();
}

// ---- the training loop ----

// What the training loop does after a step, a pause or an average.
void SimWorker::GoOn() {
  World* world = parts_->world;
  const ClusterPart& cluster = world->workload.cluster;
  const Phase was = phase_;
  const bool asks = was == Phase::kStepping || was == Phase::kPausing;
  if (asks && Draws(world, cluster.averages)) {
    phase_ = Phase::kAveraging;
    return Call(PlaneCall::kAverage, [&](Actions* out) { core_.Average(world->now, false, out); });
  }
  if (core_.paused()) {
    phase_ = Phase::kPaused;
    return;
  }
  if (was == Phase::kStepping && Draws(world, cluster.pauses)) return BeginPause();
  BeginStep();
}

void SimWorker::BeginPause() {
  World* world = parts_->world;
  phase_ = Phase::kPausing;
  loader_.ForgetDrawn();  // others share those steps meanwhile
  clock_.Turn();
  Call(PlaneCall::kOther, [&](Actions* out) { core_.Pause(world->now, out); });
}

void SimWorker::OnConnected(std::uint64_t connection) {
  if (parts_->world->control.ConnectionOf(number_) != connection || phase_ == Phase::kAway) return;
  Tell([&](Actions* out) { core_.OnConnected(parts_->world->now, out); });
}

void SimWorker::OnResumes(std::uint64_t pause) {
  if (pause != clock_.turn()) return;
  World* world = parts_->world;
  if (phase_ == Phase::kAveraging) {  // it ends first
    world->queue.Push(world->now + kMillisecond, EventKind::kResumes, number_, pause);
  }
  if (phase_ != Phase::kPaused) return;
  if (world->Fault(world->workload.faults.worker_dies)) return Die();
  phase_ = Phase::kResuming;
  Call(PlaneCall::kOther, [&](Actions* out) { core_.Resume(world->now, out); });
}

void SimWorker::BeginStep() {
  const std::int64_t limit = parts_->world->workload.cluster.steps;
  if (done_ || (limit > 0 && steps_ >= limit)) {
    phase_ = Phase::kFinishing;
    Call(PlaneCall::kOther, [&](Actions* out) { core_.Finish(parts_->world->now, out); });
    return;
  }
  loader_.BeginStep(core_.shares().partial());
  BeginPass();
}

void SimWorker::BeginPass() {
  phase_ = Phase::kComputing;
  loader_.BeginPass(core_, run_number());
  clock_.BeginPass(loader_.samples());
  if (interrupted_) clock_.PollSoon();
}

void SimWorker::EndPass() {
  clock_.EndPass(loader_.passes().empty());
  clock_.Sliced(Slice::Kind::kCompute);
}

void SimWorker::OnPoll(std::uint64_t step) {
  if (step != clock_.turn() || phase_ != Phase::kComputing || !interrupted_) return;
  EndPass();
  EndStep(true);
}

void SimWorker::OnStepDone(std::uint64_t ticket) {
  if (!parts_->devices->Valid(number_, ticket)) return;
  clock_.EndPass(loader_.passes().empty());
  if (phase_ != Phase::kComputing) return;
  World* world = parts_->world;
  clock_.Sliced(Slice::Kind::kCompute);
  if (world->Fault(world->workload.faults.worker_dies)) return Die();
  if (world->Fault(world->workload.faults.worker_leaves)) return SayLeave();
  EndStep(false);
}

void SimWorker::SayLeave() {
  phase_ = Phase::kLeaving;
  Call(PlaneCall::kOther,
       [&](Actions* out) { core_.Leave(parts_->world->now, {.reason = "simulated"}, out); });
}

void SimWorker::OnStops(std::uint64_t step) {
  if (step != clock_.turn() || phase_ != Phase::kStepping) return;
  Tell([&](Actions* out) { core_.Cancel(parts_->world->now, out); });
}

void SimWorker::OnNotice(std::uint64_t life) {
  const bool there = phase_ != Phase::kAway && phase_ != Phase::kLeaving &&
                     phase_ != Phase::kDone && phase_ != Phase::kFailed;
  if (life != lives_ || !there) return;
  noticed_ = true;
  World* world = parts_->world;
  const bool hurries = world->dice.Unit() < 0.5;
  const DurationNs grace = hurries ? FromMs(kGraceMs * world->dice.Unit()) + 1 : 0;
  Tell([&](Actions* out) { core_.LeaveSoon(world->now, kNotice, grace, out); });
}

void SimWorker::EndStep(bool discard) {
  World* world = parts_->world;
  Replica& own = *own_;
  clock_.Turn();
  own.averaged = kNoRun;
  own_.Flip(plan_);
  const std::int64_t samples = loader_.samples();
  // The job has a batch since the step began, in another run.
  discard = discard || (samples == 0 && core_.shares().batch() > 0);
  if (discard) {
    loader_.Discard();
  } else {
    own_.AddPass(&loader_);
  }
  parts_->plane->Enter(number_, PlaneCall::kStep);
  StepProcedure local(plan_, discard);
  own_.Run(&local, false, [&] { own.tag = Mixed(own.tag ^ number_); });
  const std::int64_t whole_step = world->workload.cluster.samples;
  if (!discard) {
    dialogue_.Stepped();
    if (samples == 0) loader_.CountStep(whole_step);
  }
  phase_ = Phase::kStepping;
  Ready ready = local.ReadyAt(own.iteration);
  ready.step_ns = clock_.Ready();
  ready.samples = samples > 0 ? samples : whole_step;
  ready.lead = loader_.lead();
  if (world->Fault(world->workload.faults.worker_stops)) {
    world->queue.Push(world->now + FromMs(kStopsWithinMs * world->prng.Unit()), EventKind::kStops,
                      number_, clock_.turn());
  }
  if (world->Fault(world->workload.faults.notices)) {
    world->queue.Push(world->now + FromMs(kStopsWithinMs * world->prng.Unit()), EventKind::kNotice,
                      number_, lives_);
  }
  const std::uint64_t calls = calls_;
  parts_->plane->Ask(number_);
  Tell([&](Actions* out) { core_.Step(world->now, ready, discard, local.rounds(), out); });
  // A worker that is to leave has what it owes reduced first, also after a pass.
  if (calls_ == calls && !core_.shares().partial()) loader_.Count();
}

void SimWorker::OnApplyNow(const ApplyNow& apply) {
  Replica& own = *own_;
  const bool gradients = apply.what == ApplyNow::What::kGradients;
  const bool group = gradients && TrainsInGroups(plan_);
  StepProcedure duty(apply);
  own_.Run(&duty, group, [&] {
    if (group) own.state = Mixed(own.state ^ group_.id());
    if (gradients) own.tag = Mixed(own.tag ^ (group ? own.state : group_.id()));
  });
  if (group) parts_->replicas->Applied(run_number(), group_.id(), Mark());
  if (group) parts_->plane->Agree(number_, run_number(), group_.id(), true);
  parts_->plane->Ask(number_);
  Tell([&](Actions* out) {
    core_.Applied(parts_->world->now, own.iteration, duty.rounds(), out, duty.digest());
  });
}

void SimWorker::OnCallDone(const CallDone& done) {
  ++calls_;
  parts_->plane->Leave(number_, phase_ == Phase::kPausing);
  if (phase_ == Phase::kLeaving) return Away(parts_->world->workload.faults.return_ms);
  if (done.status.code() == Code::kCancelled) return SayLeave();
  const RunTable& runs = parts_->world->runs;
  const bool remains = launch_ != parts_->world->launch;
  // A controller that has forgotten which launch came later may take the one before.
  const bool mixed_up = parts_->world->forgot && parts_->world->launch > 1;
  const bool over =
      done.status.code() == Code::kAborted &&
      (remains || mixed_up || runs.Finished(run_number()) || runs.Finished(dialogue_.former()));
  // A worker that is removed before it has received its Welcome is refused.
  const bool dismissed =
      !done.status.ok() && parts_->world->dismissed.contains(core_.incarnation());
  const bool left = noticed_ && done.status.code() == Code::kAborted;
  // Its user loads the model again, and attaches anew.
  const bool torn = done.status.code() == Code::kDataLoss && parts_->plane->Torn(number_);
  if (over || dismissed || left || torn) return Away(parts_->world->workload.faults.return_ms);
  // The job has lost it: it joins again with its next step.
  if (phase_ == Phase::kAveraging && done.status.code() == Code::kUnavailable) return GoOn();
  if (!done.status.ok()) {
    error_ = done.status.ToString();
    phase_ = Phase::kFailed;
    Gone(false);
    return;
  }
  if (phase_ == Phase::kFinishing && remains) {
    return Away(parts_->world->workload.faults.return_ms);
  }
  if (phase_ == Phase::kFinishing) {
    phase_ = Phase::kDone;
    return Gone(false);
  }
  if (phase_ == Phase::kStepping && done.step.partial) {
    clock_.Sliced(Slice::Kind::kWait);
    return BeginPass();
  }
  if (phase_ == Phase::kStepping) {
    loader_.Count();
    if (done.step.adopted) loader_.ForgetDrawn();
    dialogue_.CheckRunAhead(plan_);
    const bool waited = done.step.adopted || DrawnAhead(welcome().plan) ||
                        AveragesInBackground(welcome().plan) || !TrainsInGroups(plan_);
    clock_.Sliced(waited ? Slice::Kind::kWait : Slice::Kind::kReduce);
    ++steps_;
    ++parts_->stats->workers[number_].steps;
    done_ = done.step.done;
    // Where steps end with one group for all, it says so.
    if (!AllOrNone(plan_) || done.step.rounds > 0) {
      parts_->runs->Stepped(number_, run_number(), clock_.pass_begun(), done_,
                            core_.progress().trained);
    }
  }
  World* world = parts_->world;
  own_->paused = core_.paused();
  if (phase_ == Phase::kPausing) {
    const double ms = world->workload.cluster.pause_ms * world->dice.Unit();
    world->queue.Push(world->now + FromMs(ms), EventKind::kResumes, number_, clock_.turn());
  }
  GoOn();
}

// ---- events ----

void SimWorker::OnEnvelope(const ControllerEnvelope& envelope) {
  if (phase_ == Phase::kAway) return;
  // A worker that leaves changes nothing any more.
  if (dialogue_.Hears(envelope, core_.incarnation()) && phase_ != Phase::kLeaving) {
    parts_->plane->Told(number_, envelope.body);
  }
  Tell([&](Actions* out) { core_.OnEnvelope(parts_->world->now, envelope, out); });
}

void SimWorker::OnWake(Instant at) {
  if (!wake_ || *wake_ != at || phase_ == Phase::kAway) return;
  wake_.reset();
  Tell([&](Actions* out) { core_.OnTime(parts_->world->now, out); });
}

void SimWorker::OnReduced(const PlaneResult& result, const Status& status) {
  if (phase_ == Phase::kStepping && !AveragesInBackground(welcome().plan) &&
      (DrawnAhead(welcome().plan) || !result.ok)) {
    if (DrawnAhead(welcome().plan))
      clock_.SlicedUntil(Slice::Kind::kWait, parts_->world->now - result.took);
    clock_.Sliced(Slice::Kind::kReduce);
  }
  group_.Ends(result);
  if (result.ok && ReducedInTraining(plan_).landing == Landing::kBase) {
    parts_->replicas->Applied(run_number(), result.group, Mark());
    parts_->plane->Agree(number_, run_number(), result.group, false);
  }
  const bool passive = DrawnAhead(welcome().plan) && group_.Passive(number_, result.group);
  if (result.ok && !passive) dialogue_.Answered();
  Tell([&](Actions* out) {
    core_.OnReduced(parts_->world->now, result.group, status, result.bytes, out, result.unreachable,
                    result.digest);
  });
}

void SimWorker::OnFetched(const PlaneResult& result) {
  const Status status = result.ok ? Status::Ok() : Status(Code::kUnavailable, "the source is gone");
  const bool rounds = TrainsInRounds(plan_);
  const Iteration iteration = rounds ? own_->newest : own_->iteration;
  const Iteration in_inbox = iteration - own_->iteration;
  group_.Ends(result);
  Tell(
      [&](Actions* out) { core_.OnFetched(parts_->world->now, status, iteration, out, in_inbox); });
}

bool SimWorker::lends() const {
  switch (phase_) {
    case Phase::kAttaching:
    case Phase::kStepping:
    case Phase::kPausing:
    case Phase::kResuming:
    case Phase::kFinishing:
      return true;
    default:
      return false;
  }
}

void SimWorker::OnSent(const WorkerEnvelope& envelope) {
  group_.CheckSays(number_, envelope.body);
  const bool signals = dialogue_.Says(envelope);
  if (std::holds_alternative<Pause>(envelope.body) ||
      std::holds_alternative<Finish>(envelope.body)) {
    parts_->runs->Stops(envelope.incarnation, envelope.seq, loader_.own());
  }
  if (signals) parts_->plane->Says(number_, envelope.body);
}

void SimWorker::Perform(Action* action) {
  World* world = parts_->world;
  if (auto* send = std::get_if<SendToController>(action)) {
    OnSent(send->envelope);
    world->control.SendToController(number_, send->envelope);
  } else if (const auto* become = std::get_if<BecomeIncarnation>(action)) {
    parts_->plane->Perform(number_, *action);  // of the old one
    return OnBecome(become->incarnation);
  } else if (const auto* join = std::get_if<JoinRun>(action)) {
    const RunId run = world->runs.NumberOf(join->welcome.identity);
    plan_ = world->runs.PlanOf(run);
    loader_.Continues(join->welcome.own);
    parts_->runs->Enters(number_, run, dialogue_.former(), launch_);
    parts_->doors->Join(number_);
  } else if (const auto* announced = std::get_if<AnnouncedMembers>(action)) {
    parts_->doors->Hear(number_, announced->members);
  } else if (const auto* gone = std::get_if<ForgetMembers>(action)) {
    parts_->doors->Forget(number_, gone->incarnations);
  } else if (const auto* start = std::get_if<StartReduce>(action)) {
    OnStartReduce(start->group);
  } else if (std::holds_alternative<CancelReduce>(*action)) {
    if (phase_ == Phase::kStepping && !AveragesInBackground(welcome().plan)) {
      clock_.Sliced(DrawnAhead(welcome().plan) ? Slice::Kind::kWait : Slice::Kind::kReduce);
    }
  } else if (const auto* fetch = std::get_if<StartFetch>(action)) {
    dialogue_.Answered();
    parts_->doors->TurnsTo(number_, fetch->source);
  } else if (const auto* copy = std::get_if<CopyForAverage>(action)) {
    parts_->doors->TurnsTo(number_, copy->source);
  } else if (const auto* probe = std::get_if<ProbePeers>(action)) {
    parts_->doors->TurnsToAll(number_, probe->targets);
  } else if (const auto* interrupt = std::get_if<Interrupt>(action)) {
    interrupted_ = interrupt->on;
    if (interrupted_ && phase_ == Phase::kComputing) clock_.PollSoon();
  } else if (const auto* apply = std::get_if<ApplyNow>(action)) {
    return OnApplyNow(*apply);
  } else if (const auto* done = std::get_if<CallDone>(action)) {
    return OnCallDone(*done);
  }
  parts_->plane->Perform(number_, *action);
}

void SimWorker::OnBecome(Incarnation incarnation) {
  World* world = parts_->world;
  if (world->dismissed.contains(own_->incarnation) && !world->forgot) {
    throw Violation("dismissed",
                    WorkerName(number_) + " comes back, and an operator has removed it");
  }
  own_->incarnation = incarnation;
  parts_->doors->Become(number_, incarnation, parts_->plane->Key(number_));
  loader_.ForgetDrawn();
  if (phase_ == Phase::kComputing) loader_.BeginAgain();
  dialogue_.Anew();
  group_.Anew();
}

void SimWorker::OnStartReduce(const Group& group) {
  const bool overlaps = AveragesInBackground(welcome().plan);
  const bool any_time =
      group.kind == GroupKind::kRound || (group.kind == GroupKind::kTrain && overlaps);
  if (!any_time && !lends()) {
    throw Violation("lent", WorkerName(number_) + " begins group " + std::to_string(group.id) +
                                " while it is " + PhaseName(phase_));
  }
  parts_->doors->TurnsToAll(number_, group.members);
  if (phase_ == Phase::kStepping && !overlaps) clock_.Sliced(Slice::Kind::kWait);
  group_.Begins(group);
  if (group.kind == GroupKind::kTrain && parts_->batches->whole(run_number())) {
    parts_->batches->Reduces(number_, run_number(), group.id, loader_.passes());
  }
}

std::string SimWorker::Where() const {
  return WorkerName(number_) + " (run " + std::to_string(welcome().run) +
         "): " + PhaseName(phase_) + ", " + std::to_string(steps_) + " steps" +
         (error_.empty() ? "" : ", " + error_);
}

}  // namespace prd::sim
