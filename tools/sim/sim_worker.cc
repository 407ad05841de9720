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
  const ClusterPart& cluster = parts->world->workload.cluster;
  Prng own(Prng(parts->world->seed ^ (0xba7c4u + number)).Next());
  max_share_ = own.Unit() < cluster.limited ? cluster.max_share : 0;
  accumulates_ = own.Unit() < cluster.accumulates;
  lead_ = static_cast<std::uint32_t>(own.Below(static_cast<std::uint64_t>(cluster.lead) + 1));
}

void SimWorker::Start() {
  World* world = parts_->world;
  ++lives_;
  core_ = SessionCore();
  core_.GiveIncarnation(world->NewIncarnation(number_));
  phase_ = Phase::kAttaching;
  wake_.reset();
  interrupted_ = noticed_ = false;
  last_result_ = {};
  passes_.clear();
  drawn_.clear();
  uncounted_ = 0;
  counted_ = false;
  signal_ = said_ = heard_ = 0;
  launch_ = world->launch;
  plan_ = world->first_plan;
  own_ = {};
  done_ = false;
  Replica& own = replica();
  own = Replica();
  own.tag = Mixed(world->prng.Next());
  if (parts_->objective != nullptr) own.x = parts_->objective->Start();
  const std::string host = "h" + std::to_string(world->HostOf(number_));
  SessionCore::Options options;
  options.hello.job = "sim";
  options.hello.rank = static_cast<Rank>(number_);
  options.hello.host = host;
  options.hello.host_name = host;
  parts_->plane->Start(number_, core_.incarnation(), accumulates_);
  options.hello.endpoints = parts_->plane->Endpoints(number_);
  options.hello.model_bytes = static_cast<std::uint64_t>(world->workload.reduce.bytes);
  options.hello.model_hash = 1;
  options.hello.mesh_key = parts_->plane->Key(number_);
  options.hello.returns_at_once = world->tells_ends();
  options.hello.batch = world->workload.cluster.batch;
  options.hello.max_share = max_share_;
  options.hello.accumulates = accumulates_;
  options.hello.takes_shares = true;
  if (world->tells_ends() && world->connections[number_].number == 0) {
    world->EndConnection(number_, world->now);  // there was none: it gets the first
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
  replica().incarnation = 0;
}

void SimWorker::Away(double within_ms, bool killed) {
  World* world = parts_->world;
  Gone(killed);
  phase_ = Phase::kAway;
  wake_.reset();
  world->EndConnection(number_, world->now);
  world->queue.Push(world->now + FromMs(within_ms * world->prng.Unit()), EventKind::kWorkerStarts,
                    number_);
}

void SimWorker::Die() {
  core_ = SessionCore();
  Away(parts_->world->workload.faults.return_ms, true);
}

void SimWorker::Kill() {
  if (phase_ == Phase::kComputing) {
    EndCompute();
    Sliced(Slice::Kind::kCompute);
  }
  parts_->world->frozen_until[number_] = parts_->world->now;
  Die();
}

void SimWorker::SlicedUntil(Slice::Kind kind, Instant end) {
  parts_->stats->AddSlice(number_, kind, begun_, end);
  begun_ = end;
}

// ---- the training loop ----

// What the training loop does after a step, a pause or an average.
bool SimWorker::Draw(double probability) const {
  return probability > 0 && parts_->world->dice.Unit() < probability;
}

void SimWorker::GoOn() {
  const ClusterPart& cluster = parts_->world->workload.cluster;
  const Phase was = phase_;
  const bool asks = was == Phase::kStepping || was == Phase::kPausing;
  if (asks && Draw(cluster.averages)) return BeginAverage();
  if (core_.paused()) {
    phase_ = Phase::kPaused;
    return;
  }
  if (was == Phase::kStepping && Draw(cluster.pauses)) return BeginPause();
  BeginStep();
}

void SimWorker::BeginPause() {
  World* world = parts_->world;
  phase_ = Phase::kPausing;
  drawn_.clear();  // others share those steps meanwhile
  ++step_;
  Call(PlaneCall::kOther, [&](Actions* out) { core_.Pause(world->now, out); });
}

void SimWorker::OnConnected(std::uint64_t connection) {
  if (parts_->world->connections[number_].number != connection || phase_ == Phase::kAway) return;
  Tell([&](Actions* out) { core_.OnConnected(parts_->world->now, out); });
}

void SimWorker::OnResumes(std::uint64_t pause) {
  if (pause != step_) return;
  World* world = parts_->world;
  if (phase_ == Phase::kAveraging) {  // it ends first
    world->queue.Push(world->now + kMillisecond, EventKind::kResumes, number_, pause);
  }
  if (phase_ != Phase::kPaused) return;
  if (world->Fault(world->workload.faults.worker_dies)) return Die();
  phase_ = Phase::kResuming;
  Call(PlaneCall::kOther, [&](Actions* out) { core_.Resume(world->now, out); });
}

void SimWorker::BeginAverage() {
  phase_ = Phase::kAveraging;
  Call(PlaneCall::kAverage, [&](Actions* out) { core_.Average(parts_->world->now, false, out); });
}

// The fault that changes a replica by itself, in what the next group is applied to.
void SimWorker::Flip() {
  if (!AllOrNone(plan_)) return;
  World* world = parts_->world;
  if (!world->Rolled(world->workload.faults.flips)) return;
  parts_->replicas->Flipped();
  parts_->plane->Flip(number_);
}

void SimWorker::BeginStep() {
  if (done_ || (Limit() > 0 && steps_ >= Limit())) {
    phase_ = Phase::kFinishing;
    Call(PlaneCall::kOther, [&](Actions* out) { core_.Finish(parts_->world->now, out); });
    return;
  }
  passes_.clear();
  if (!core_.shares().partial()) {  // else it was whole before, and a pass of it was discarded
    uncounted_ = 0;
    counted_ = false;
  }
  BeginPass();
}

void SimWorker::BeginPass() {
  phase_ = Phase::kComputing;
  World* world = parts_->world;
  begun_ = step_begun_ = world->now;
  ++step_;
  piece_ = core_.shares().Next(core_.iteration());
  if (max_share_ > 0 && piece_.samples > max_share_) {
    throw Violation("share-limit", WorkerName(number_) + " computes " +
                                       std::to_string(piece_.samples) + " samples at once");
  }
  if (piece_.samples > 0) DrawAhead();
  DurationNs work = parts_->times->Next(number_, world->now);
  if (piece_.samples > 0) work = parts_->times->Of(work, piece_.samples);
  parts_->changed.clear();
  parts_->devices->Begin(world->now, number_, work, &parts_->changed);
  for (const Devices::Finish& finish : parts_->changed) {
    world->queue.Push(finish.at, EventKind::kStepDone, finish.worker, finish.ticket);
  }
  if (interrupted_) PollSoon();
}

// The loader draws the samples of steps to come.
void SimWorker::DrawAhead() {
  if (lead_ == 0 || !parts_->batches->whole(run_number())) return;
  const auto drawn = drawn_.find(piece_.step);
  const bool differs = drawn != drawn_.end() && drawn->second.first != piece_.first;
  if (differs && passes_.empty() &&
      !parts_->batches->WentElsewhere(run_number(), piece_.step, lead_)) {
    throw Violation("share-ahead", WorkerName(number_) + " has drawn samples from " +
                                       std::to_string(drawn->second.first) + " on for step " +
                                       std::to_string(piece_.step) + ", and computes from " +
                                       std::to_string(piece_.first) + " on");
  }
  drawn_.erase(drawn_.begin(), drawn_.upper_bound(piece_.step));
  for (int ahead = 1; ahead <= static_cast<int>(lead_); ++ahead) {
    const StepShares::Piece piece = core_.shares().Ahead(core_.iteration(), ahead);
    drawn_.try_emplace(piece.step, piece);
  }
}

void SimWorker::EndCompute() {
  World* world = parts_->world;
  if (world->frozen_until[number_] <= step_begun_) {
    computed_ = (passes_.empty() ? 0 : computed_) + (world->now - step_begun_);
    world->longest_step = std::max(world->longest_step, computed_);
  }
  parts_->changed.clear();
  parts_->devices->End(world->now, number_, &parts_->changed);
  for (const Devices::Finish& finish : parts_->changed) {
    world->queue.Push(finish.at, EventKind::kStepDone, finish.worker, finish.ticket);
  }
}

// Schedules the next time that the step in progress looks at Session::Interrupted.
void SimWorker::PollSoon() {
  World* world = parts_->world;
  const DurationNs every = FromMs(world->workload.compute.poll_ms);
  if (every <= 0 || phase_ != Phase::kComputing) return;
  const DurationNs polls = (world->now - step_begun_) / every + 1;
  world->queue.Push(step_begun_ + polls * every, EventKind::kPoll, number_, step_);
}

void SimWorker::OnPoll(std::uint64_t step) {
  if (step != step_ || phase_ != Phase::kComputing || !interrupted_) return;
  EndCompute();
  Sliced(Slice::Kind::kCompute);
  EndStep(true);
}

void SimWorker::OnStepDone(std::uint64_t ticket) {
  if (!parts_->devices->Valid(number_, ticket)) return;
  EndCompute();
  if (phase_ != Phase::kComputing) return;
  World* world = parts_->world;
  Sliced(Slice::Kind::kCompute);
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
  if (step != step_ || phase_ != Phase::kStepping) return;
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
  Replica& own = replica();
  ++step_;
  own.averaged = kNoRun;
  Flip();
  // The job has a batch since the step began, in another run.
  discard = discard || (piece_.samples == 0 && core_.shares().batch() > 0);
  AddPass(discard);
  parts_->plane->Enter(number_, PlaneCall::kStep);
  StepProcedure local(plan_, discard);
  Run(&local, false, [&] { own.tag = Mixed(own.tag ^ number_); });
  if (!discard) {
    ++since_signal_;
    if (piece_.samples == 0) {
      ++own_.steps;
      own_.samples += world->workload.cluster.samples;
      parts_->runs->Trained(world->workload.cluster.samples);
    }
  }
  phase_ = Phase::kStepping;
  Ready ready = local.ReadyAt(own.iteration);
  ready.step_ns = world->now - step_begun_;
  ready.samples = piece_.samples > 0 ? piece_.samples : world->workload.cluster.samples;
  ready.lead = lead_;
  if (parts_->mutation == Mutation::kWaitingComputes) ready.step_ns = world->now - ready_at_;
  ready_at_ = world->now;
  if (world->Fault(world->workload.faults.worker_stops)) {
    world->queue.Push(world->now + FromMs(kStopsWithinMs * world->prng.Unit()), EventKind::kStops,
                      number_, step_);
  }
  if (world->Fault(world->workload.faults.notices)) {
    world->queue.Push(world->now + FromMs(kStopsWithinMs * world->prng.Unit()), EventKind::kNotice,
                      number_, lives_);
  }
  const std::uint64_t calls = calls_;
  parts_->plane->Ask(number_);
  Tell([&](Actions* out) { core_.Step(world->now, ready, discard, local.rounds(), out); });
  // A worker that is to leave has what it owes reduced first, also after a pass.
  const bool whole = calls_ == calls && !core_.shares().partial();
  if (whole && piece_.samples > 0) Count();
}

// The gradient is the mean over all samples of the step so far.
void SimWorker::AddPass(bool discard) {
  if (discard) {
    // What a step had when it was whole before has been counted.
    if (counted_) {
      for (const BatchBook::Range& range : passes_) uncounted_ -= range.samples;
    } else {
      uncounted_ = 0;
    }
    passes_.clear();
    return;
  }
  std::int64_t before = 0;
  for (const BatchBook::Range& range : passes_) before += range.samples;
  passes_.push_back({.step = piece_.step, .first = piece_.first, .samples = piece_.samples});
  uncounted_ += piece_.samples;
  if (parts_->objective == nullptr) return;
  Replica& own = replica();
  const std::vector<double> mean = before > 0 ? own.gradient : std::vector<double>();
  own.gradient.resize(own.x.size());
  parts_->objective->Gradient(number_, own.x, &parts_->draws[number_], &own.gradient);
  if (mean.size() != own.gradient.size()) return;
  const auto had = static_cast<double>(before);
  const auto has = static_cast<double>(before + piece_.samples);
  for (std::size_t j = 0; j < mean.size(); ++j) {
    own.gradient[j] = (mean[j] * had + own.gradient[j] * (has - had)) / has;
  }
}

// The samples that the step has had since it was counted before.
void SimWorker::Count() {
  if (uncounted_ <= 0) return;
  const std::int64_t samples = std::exchange(uncounted_, 0);
  const bool first = !std::exchange(counted_, true);
  own_.steps += first ? 1 : 0;
  own_.samples += samples;
  parts_->runs->Trained(samples, first);
}

// `tag`: what `apply` makes of the tags, which stand for the parameters.
template <typename F>
void SimWorker::Run(StepProcedure* procedure, bool group, F&& tag) {
  Replica& own = replica();
  Plane* plane = parts_->plane;
  StepReplica* lent = plane->Lent(number_);
  if (const std::optional<Iteration> at = procedure->Begin(lent)) {
    plane->BeforeApply(number_);
    const double rate = parts_->world->workload.training.learning_rate;
    for (std::size_t j = 0; j < own.x.size(); ++j) own.x[j] -= rate * own.gradient[j];
    tag();
    own.iteration = *at;
    plane->AfterApply(number_, *at, group);
  }
  procedure->End(lent);
  own.iteration = lent->iteration();
}

void SimWorker::OnApplyNow(const ApplyNow& apply) {
  Replica& own = replica();
  const bool gradients = apply.what == ApplyNow::What::kGradients;
  const bool group = gradients && TrainsInGroups(plan_);
  StepProcedure duty(apply);
  Run(&duty, group, [&] {
    if (group) own.state = Mixed(own.state ^ group_);
    if (gradients) own.tag = Mixed(own.tag ^ (group ? own.state : group_));
  });
  if (group) parts_->replicas->Applied(run_number(), group_, Mark());
  if (group) parts_->plane->Agree(number_, run_number(), group_, true);
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
  const auto finished = [this](RunId run) {  // or one after it: it is over
    return run != kNoRun && run <= parts_->world->finished;
  };
  const bool remains = launch_ != parts_->world->launch;
  // A controller that has forgotten which launch came later may take the one before.
  const bool mixed_up = parts_->world->forgot && parts_->world->launch > 1;
  const bool over = done.status.code() == Code::kAborted &&
                    (remains || mixed_up || finished(run_number()) || finished(former_));
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
    Sliced(Slice::Kind::kWait);
    return BeginPass();
  }
  if (phase_ == Phase::kStepping) {
    if (piece_.samples > 0) Count();
    if (done.step.adopted) drawn_.clear();
    CheckRunAhead();
    const bool waited = done.step.adopted || Ahead() || Overlaps() || !TrainsInGroups(plan_);
    Sliced(waited ? Slice::Kind::kWait : Slice::Kind::kReduce);
    ++steps_;
    ++parts_->stats->workers[number_].steps;
    done_ = done.step.done;
    // Where steps end with one group for all, it says so.
    if (!AllOrNone(plan_) || done.step.rounds > 0) {
      parts_->runs->Stepped(number_, run_number(), step_begun_, done_, core_.progress().trained);
    }
  }
  World* world = parts_->world;
  replica().paused = core_.paused();
  if (phase_ == Phase::kPausing) {
    const double ms = world->workload.cluster.pause_ms * world->dice.Unit();
    world->queue.Push(world->now + FromMs(ms), EventKind::kResumes, number_, step_);
  }
  GoOn();
}

// ---- events ----

void SimWorker::OnEnvelope(const ControllerEnvelope& envelope) {
  if (phase_ == Phase::kAway) return;
  if (std::holds_alternative<QueryReply>(envelope.body)) signal_ = 0;
  if (envelope.incarnation == core_.incarnation() && envelope.seq == heard_ + 1) {
    ++heard_;
    // A worker that leaves changes nothing any more.
    if (phase_ != Phase::kLeaving) parts_->plane->Told(number_, envelope.body);
  }
  Tell([&](Actions* out) { core_.OnEnvelope(parts_->world->now, envelope, out); });
}

void SimWorker::OnWake(Instant at) {
  if (!wake_ || *wake_ != at || phase_ == Phase::kAway) return;
  wake_.reset();
  Tell([&](Actions* out) { core_.OnTime(parts_->world->now, out); });
}

void SimWorker::OnReduced(const PlaneResult& result, const Status& status) {
  if (phase_ == Phase::kStepping && !Overlaps() && (Ahead() || !result.ok)) {
    if (Ahead()) SlicedUntil(Slice::Kind::kWait, parts_->world->now - result.took);
    Sliced(Slice::Kind::kReduce);
  }
  last_result_ = result;
  if (result.ok && ReducedInTraining(plan_).landing == Landing::kBase) {
    parts_->replicas->Applied(run_number(), result.group, Mark());
    parts_->plane->Agree(number_, run_number(), result.group, false);
  }
  if (result.ok && !Passive(result.group)) signal_ = 0;
  Tell([&](Actions* out) {
    core_.OnReduced(parts_->world->now, result.group, status, result.bytes, out, result.unreachable,
                    result.digest);
  });
}

void SimWorker::OnFetched(const PlaneResult& result) {
  const Status status = result.ok ? Status::Ok() : Status(Code::kUnavailable, "the source is gone");
  const bool rounds = TrainsInRounds(plan_);
  const Iteration iteration = rounds ? replica().newest : replica().iteration;
  const Iteration in_inbox = iteration - replica().iteration;
  last_result_ = result;
  Tell(
      [&](Actions* out) { core_.OnFetched(parts_->world->now, status, iteration, out, in_inbox); });
}

// What the core tells of its own gradients is what the plane knows.
void SimWorker::CheckIncluded(const WorkerBody& body) const {
  if (!last_result_.included) return;
  const auto* finished = std::get_if<Finished>(&body);
  const auto* adopted = std::get_if<Adopted>(&body);
  std::uint32_t told = 0;
  if (finished != nullptr && finished->group == last_result_.group) {
    told = finished->included;
  } else if (adopted != nullptr && adopted->ok && last_result_.group != kNoGroup) {
    told = adopted->included;
  } else {
    return;
  }
  if (told == *last_result_.included) return;
  throw Violation("gradients-once", WorkerName(number_) + " tells of " + std::to_string(told) +
                                        " gradients in group " +
                                        std::to_string(last_result_.group) + ", where " +
                                        std::to_string(*last_result_.included) + " are");
}

// What it brings is its parameters: whatever else there was is given up. From a store it tells the
// clock that it was let to, whose shards it may not have read.
void SimWorker::CheckTold(const Hello& hello) {
  const World& world = *parts_->world;
  const bool store = HasStore(world.PlanOf(world.NumberOf({.high = hello.former.high})));
  const bool tells = replica().trained && !store;
  if (!tells || hello.iteration == replica().iteration) return;
  throw Violation("told", WorkerName(number_) + " says Hello with iteration " +
                              std::to_string(hello.iteration) + ", and its parameters are of " +
                              std::to_string(replica().iteration));
}

bool SimWorker::Passive(GroupId group) const {
  if (begun_group_.id != group || !Ahead()) return false;
  for (const GroupMember& member : begun_group_.members) {
    if (WorkerOf(member.incarnation) == number_) return member.passive;
  }
  return false;
}

void SimWorker::CheckRunAhead() const {
  const Plan& plan = plan_;
  if (!AveragesInBackground(plan) || FollowsSchedule(plan) || signal_ == 0) return;
  const auto length = static_cast<std::int64_t>(StepsPerSignal(plan));
  const std::int64_t due = 1 + (since_signal_ - 1) / length;
  if (due <= static_cast<std::int64_t>(RunAhead(plan))) return;
  throw Violation("run-ahead", WorkerName(number_) + " goes on with step " + std::to_string(due) +
                                   " of a signal that stands, where " +
                                   std::to_string(RunAhead(plan)) + " are allowed");
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

void SimWorker::CheckLent(const Group& group) const {
  const bool any_time =
      group.kind == GroupKind::kRound || (group.kind == GroupKind::kTrain && Overlaps());
  if (any_time || lends()) return;
  throw Violation("lent", WorkerName(number_) + " begins group " + std::to_string(group.id) +
                              " while it is " + PhaseName(phase_));
}

void SimWorker::OnSent(const WorkerEnvelope& envelope) {
  World* world = parts_->world;
  CheckIncluded(envelope.body);
  const auto* hello = std::get_if<Hello>(&envelope.body);
  if (hello != nullptr) {
    if (!std::exchange(greeted_, true)) CheckTold(*hello);
    former_ = world->NumberOf({.high = hello->former.high});
    replica().told = hello->iteration;
  }
  const auto* adopted = std::get_if<Adopted>(&envelope.body);
  if (adopted != nullptr && adopted->ok) replica().told = adopted->iteration;
  if (std::holds_alternative<Pause>(envelope.body) ||
      std::holds_alternative<Finish>(envelope.body)) {
    parts_->runs->Stops(envelope.incarnation, envelope.seq, own_);
  }
  if (!std::holds_alternative<Ready>(envelope.body) || envelope.seq <= said_) return;
  parts_->plane->Says(number_, envelope.body);
  if (signal_ == 0) since_signal_ = 1;
  signal_ = said_ = envelope.seq;
}

void SimWorker::Perform(Action* action) {
  World* world = parts_->world;
  if (auto* send = std::get_if<SendToController>(action)) {
    OnSent(send->envelope);
    world->SendToController(number_, send->envelope);
  } else if (const auto* become = std::get_if<BecomeIncarnation>(action)) {
    parts_->plane->Perform(number_, *action);  // of the old one
    return OnBecome(become->incarnation);
  } else if (const auto* join = std::get_if<JoinRun>(action)) {
    plan_ = world->PlanOf(world->NumberOf(join->welcome.identity));
    own_.steps = std::max(own_.steps, join->welcome.own.steps);
    own_.samples = std::max(own_.samples, join->welcome.own.samples);
    parts_->runs->Enters(number_, world->NumberOf(join->welcome.identity), former_, launch_);
    parts_->doors->Join(number_);
  } else if (const auto* announced = std::get_if<AnnouncedMembers>(action)) {
    parts_->doors->Hear(number_, announced->members);
  } else if (const auto* gone = std::get_if<ForgetMembers>(action)) {
    parts_->doors->Forget(number_, gone->incarnations);
  } else if (const auto* start = std::get_if<StartReduce>(action)) {
    OnStartReduce(start->group);
  } else if (std::holds_alternative<CancelReduce>(*action)) {
    if (phase_ == Phase::kStepping && !Overlaps()) {
      Sliced(Ahead() ? Slice::Kind::kWait : Slice::Kind::kReduce);
    }
  } else if (const auto* fetch = std::get_if<StartFetch>(action)) {
    signal_ = 0;
    parts_->doors->TurnsTo(number_, fetch->source);
  } else if (const auto* copy = std::get_if<CopyForAverage>(action)) {
    parts_->doors->TurnsTo(number_, copy->source);
  } else if (const auto* probe = std::get_if<ProbePeers>(action)) {
    parts_->doors->TurnsToAll(number_, probe->targets);
  } else if (const auto* interrupt = std::get_if<Interrupt>(action)) {
    interrupted_ = interrupt->on;
    if (interrupted_) PollSoon();
  } else if (const auto* apply = std::get_if<ApplyNow>(action)) {
    return OnApplyNow(*apply);
  } else if (const auto* done = std::get_if<CallDone>(action)) {
    return OnCallDone(*done);
  }
  parts_->plane->Perform(number_, *action);
}

void SimWorker::OnBecome(Incarnation incarnation) {
  World* world = parts_->world;
  if (world->dismissed.contains(replica().incarnation) && !world->forgot) {
    throw Violation("dismissed",
                    WorkerName(number_) + " comes back, and an operator has removed it");
  }
  replica().incarnation = incarnation;
  parts_->doors->Become(number_, incarnation, parts_->plane->Key(number_));
  greeted_ = false;
  drawn_.clear();
  if (phase_ == Phase::kComputing) {  // what it computes is another attempt at the step
    uncounted_ = 0;
    counted_ = false;
  }
  signal_ = said_ = heard_ = 0;
  last_result_ = {};
}

void SimWorker::OnStartReduce(const Group& group) {
  CheckLent(group);
  parts_->doors->TurnsToAll(number_, group.members);
  if (phase_ == Phase::kStepping && !Overlaps()) Sliced(Slice::Kind::kWait);
  group_ = group.id;
  begun_group_ = group;
  if (group.kind == GroupKind::kTrain && parts_->batches->whole(run_number())) {
    parts_->batches->Reduces(number_, run_number(), group_, passes_);
  }
}

std::string SimWorker::Where() const {
  return WorkerName(number_) + " (run " + std::to_string(run()) + "): " + PhaseName(phase_) + ", " +
         std::to_string(steps_) + " steps" + (error_.empty() ? "" : ", " + error_);
}

}  // namespace prd::sim
