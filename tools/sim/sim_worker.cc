#include "tools/sim/sim_worker.h"

#include <utility>

namespace prd::sim {
namespace {

std::uint64_t Mix(std::uint64_t value) { return Prng(value).Next(); }

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

}  // namespace

template <typename F>
void SimWorker::Tell(F&& input) {
  Actions actions = std::move(parts_->spare);
  actions.clear();
  input(&actions);
  for (Action& action : actions) Perform(&action);
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
  parts_->world->queue.Push(*wake_, EventKind::kWorkerWakes, number_);
}

// ---- life ----

void SimWorker::Start() {
  World* world = parts_->world;
  core_ = SessionCore();
  core_.GiveIncarnation(world->NewIncarnation(number_));
  phase_ = Phase::kAttaching;
  wake_.reset();
  Replica& own = replica();
  own = Replica();
  own.tag = Mix(world->prng.Next());
  if (parts_->objective != nullptr) own.x = parts_->objective->Start();
  const std::string host = "h" + std::to_string(world->HostOf(number_));
  SessionCore::Options options;
  options.hello.job = "sim";
  options.hello.rank = static_cast<Rank>(number_);
  options.hello.host = host;
  options.hello.host_name = host;
  options.hello.endpoints = {"sim"};
  options.hello.model_bytes = static_cast<std::uint64_t>(world->workload.reduce.bytes);
  options.hello.model_hash = 1;
  options.max_members = static_cast<std::size_t>(world->workload.cluster.workers);
  Tell([&](Actions* out) { core_.Attach(world->now, std::move(options), out); });
}

void SimWorker::Away(double within_ms) {
  World* world = parts_->world;
  parts_->data->Gone(number_);
  replica().incarnation = 0;
  phase_ = Phase::kAway;
  wake_.reset();
  world->queue.Push(world->now + FromMs(within_ms * world->prng.Unit()), EventKind::kWorkerStarts,
                    number_);
}

void SimWorker::Die() {
  core_ = SessionCore();
  Away(parts_->world->workload.faults.return_ms);
}

void SimWorker::Sliced(Slice::Kind kind) {
  const Instant now = parts_->world->now;
  parts_->stats->AddSlice(number_, kind, begun_, now);
  begun_ = now;
}

// ---- the training loop ----

void SimWorker::BeginStep() {
  if (Limit() > 0 && steps_ >= Limit()) {
    phase_ = Phase::kFinishing;
    Tell([&](Actions* out) { core_.Finish(parts_->world->now, out); });
    return;
  }
  phase_ = Phase::kComputing;
  World* world = parts_->world;
  begun_ = world->now;
  parts_->changed.clear();
  parts_->devices->Begin(world->now, number_, parts_->times->Next(number_), &parts_->changed);
  for (const Devices::Finish& finish : parts_->changed) {
    world->queue.Push(finish.at, EventKind::kStepDone, finish.worker, finish.ticket);
  }
}

void SimWorker::OnStepDone(std::uint64_t ticket) {
  if (!parts_->devices->Valid(number_, ticket)) return;
  World* world = parts_->world;
  parts_->changed.clear();
  parts_->devices->End(world->now, number_, &parts_->changed);
  for (const Devices::Finish& finish : parts_->changed) {
    world->queue.Push(finish.at, EventKind::kStepDone, finish.worker, finish.ticket);
  }
  if (phase_ != Phase::kComputing) return;
  const Instant begun = begun_;
  Sliced(Slice::Kind::kCompute);
  if (world->Fault(world->workload.faults.worker_dies)) return Die();
  if (world->Fault(world->workload.faults.worker_leaves)) {
    phase_ = Phase::kLeaving;
    return Tell([&](Actions* out) { core_.Leave(world->now, "simulated", out); });
  }
  Replica& own = replica();
  if (parts_->objective != nullptr) {
    own.gradient.resize(own.x.size());
    parts_->objective->Gradient(number_, own.x, &parts_->draws[number_], &own.gradient);
  }
  if (core_.welcome().plan.strategy == Strategy::kAverageModels) {
    Apply(own.iteration);
    own.tag = Mix(own.tag ^ number_);
  }
  phase_ = Phase::kStepping;
  const Ready ready{.iteration = core_.iteration() + 1,
                    .step_ns = world->now - begun,
                    .samples = world->workload.cluster.samples};
  Tell([&](Actions* out) { core_.Step(world->now, ready, false, out); });
}

void SimWorker::Apply(Iteration iteration) {
  Replica& own = replica();
  const double rate = parts_->world->workload.training.learning_rate;
  for (std::size_t j = 0; j < own.x.size(); ++j) own.x[j] -= rate * own.gradient[j];
  own.iteration = iteration;
}

void SimWorker::OnCallDone(const CallDone& done) {
  if (phase_ == Phase::kLeaving) return Away(parts_->world->workload.faults.return_ms);
  if (!done.status.ok()) {
    error_ = done.status.ToString();
    phase_ = Phase::kFailed;
    parts_->data->Gone(number_);
    replica().incarnation = 0;
    return;
  }
  if (phase_ == Phase::kFinishing) {
    phase_ = Phase::kDone;
    replica().incarnation = 0;
    return;
  }
  if (phase_ == Phase::kStepping) {
    Sliced(done.step.adopted ? Slice::Kind::kWait : Slice::Kind::kReduce);
    ++steps_;
    ++parts_->stats->workers[number_].steps;
  }
  BeginStep();
}

// ---- events ----

void SimWorker::OnEnvelope(const ControllerEnvelope& envelope) {
  if (phase_ == Phase::kAway) return;
  Tell([&](Actions* out) { core_.OnEnvelope(parts_->world->now, envelope, out); });
}

void SimWorker::OnWake(Instant at) {
  if (!wake_ || *wake_ != at || phase_ == Phase::kAway) return;
  wake_.reset();
  Tell([&](Actions* out) { core_.OnTime(parts_->world->now, out); });
}

void SimWorker::OnReduced(const DataPlane::Result& result) {
  const Status status =
      result.ok ? Status::Ok() : Status(Code::kUnavailable, "a member has vanished");
  if (phase_ == Phase::kStepping && !result.ok) Sliced(Slice::Kind::kReduce);
  Tell([&](Actions* out) {
    core_.OnReduced(parts_->world->now, result.group, status, result.bytes, out);
  });
}

void SimWorker::OnFetched(bool ok) {
  const Status status = ok ? Status::Ok() : Status(Code::kUnavailable, "the source is gone");
  const Iteration iteration = replica().iteration;
  Tell([&](Actions* out) { core_.OnFetched(parts_->world->now, status, iteration, out); });
}

void SimWorker::Perform(Action* action) {
  World* world = parts_->world;
  if (auto* send = std::get_if<SendToController>(action)) {
    world->SendToController(number_, send->envelope);
  } else if (const auto* become = std::get_if<BecomeIncarnation>(action)) {
    parts_->data->Gone(number_);
    replica().incarnation = become->incarnation;
  } else if (const auto* start = std::get_if<StartReduce>(action)) {
    if (phase_ == Phase::kStepping) Sliced(Slice::Kind::kWait);
    group_ = start->group.id;
    const bool gradients = core_.welcome().plan.strategy == Strategy::kReduceGradients;
    parts_->data->Begin(number_, core_.welcome().run, start->group, gradients);
  } else if (std::holds_alternative<CancelReduce>(*action)) {
    if (phase_ == Phase::kStepping) Sliced(Slice::Kind::kReduce);
    parts_->data->Cancel(number_);
  } else if (const auto* fetch = std::get_if<StartFetch>(action)) {
    parts_->data->Fetch(number_, fetch->source.incarnation);
  } else if (std::holds_alternative<CancelFetch>(*action)) {
    parts_->data->CancelFetch(number_);
  } else if (const auto* apply = std::get_if<ApplyNow>(action)) {
    const Iteration iteration = apply->iteration;
    Apply(iteration);
    replica().tag = Mix(replica().tag ^ group_);
    Tell([&](Actions* out) { core_.Applied(world->now, iteration, 1, out); });
  } else if (const auto* done = std::get_if<CallDone>(action)) {
    OnCallDone(*done);
  }
}

std::string SimWorker::Where() const {
  return "worker " + std::to_string(number_) + " (run " + std::to_string(run()) +
         "): " + PhaseName(phase_) + ", " + std::to_string(steps_) + " steps" +
         (error_.empty() ? "" : ", " + error_);
}

}  // namespace prd::sim
