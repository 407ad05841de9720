#include "tools/sim/cluster.h"

#include <algorithm>
#include <utility>

#include "engines/event.h"
#include "engines/violation.h"
#include "tools/sim/cluster_run.h"

namespace prd::sim {
namespace {

Plan PlanOf(const Workload& workload) { return MakeEngine(workload.job.engine)->plan(); }

bool Switches(const Workload& workload) {
  return workload.faults.switches_per_s > 0 || workload.faults.switch_at_ms > 0;
}

// What is trained; where models are averaged in ways that could lose something, at least a toy.
std::unique_ptr<Objective> Trained(const Workload& workload, std::uint64_t seed, bool real) {
  auto objective = MakeObjective(workload.training, workload.cluster.workers, seed);
  if (objective != nullptr) return objective;
  if (real || Switches(workload)) return MakeToy(12);
  const Plan plan = PlanOf(workload);
  if (HasStore(plan)) return MakeToy(12);
  return DecouplesSteps(plan) || HasNeighbours(plan) ? MakeToy() : nullptr;
}

// How many steps of others a worker may have to wait for, one after another. A worker that is ahead
// waits until those behind are within the staleness or the gap that the engine allows.
int StepsOfOthers(const Workload& workload) {
  const Plan plan = PlanOf(workload);
  if (Switches(workload)) return 16;
  return FollowsSchedule(plan) || HasNeighbours(plan) || HasStore(plan) ? 16 : 4;
}

// An operator has removed it.
bool Dismisses(const WorkerLeft& left) {
  return !StaysInJob(left.why) &&
         (left.reason.starts_with("evicted by ") || left.reason.starts_with("drained by "));
}

}  // namespace

Cluster::Cluster(const Workload& workload, const RunOptions& options)
    : workload_(workload),
      options_(options),
      world_(workload, options.seed),
      stats_(workload.cluster.workers, options.keep_slices, options.slice_limit,
             DrawnAhead(PlanOf(workload)), !TrainsInGroups(PlanOf(workload))),
      objective_(Trained(workload, options.seed, options.plane != nullptr)),
      times_(workload, options.seed),
      devices_(workload),
      doors_(static_cast<std::size_t>(workload.cluster.workers), options.mutation),
      controller_(
          &world_, options.mutation, [this](const Record& record) { Seen(record); },
          [this] { Forgot(); }),
      runs_(&world_),
      replicas_(&world_),
      batches_(&world_, &times_),
      operator_(&world_, &controller_),
      workers_(static_cast<std::size_t>(workload.cluster.workers)),
      loss_(&world_, objective_.get(), &workers_),
      hangs_(2 * world_.LeaseNs() + 5 * kSecond, StepsOfOthers(workload)) {
  world_.runs.SetFirstPlan(PlanOf(workload));
  if (options.plane) {
    plane_ = options.plane(&world_, &workers_, options.trace);
  } else {
    plane_ = std::make_unique<ModelPlane>(&world_, &workers_, &doors_, &stats_,
                                          world_.runs.first_plan(), options.mutation,
                                          [this](const Group& group) { Unreported(group); });
  }
  parts_ = {.world = &world_,
            .plane = plane_.get(),
            .doors = &doors_,
            .runs = &runs_,
            .replicas = &replicas_,
            .batches = &batches_,
            .times = &times_,
            .devices = &devices_,
            .objective = objective_.get(),
            .stats = &stats_,
            .draws = {},
            .spare = {},
            .changed = {},
            .mutation = options.mutation};
  for (std::uint32_t i = 0; i < workers_.size(); ++i) {
    workers_[i].Init(&parts_, i);
    parts_.draws.emplace_back(Prng(options.seed ^ (0x67u + i)).Next());
  }
}

void Cluster::Seen(const Record& record) {
  if (const auto* started = std::get_if<RunStarted>(&record.body)) {
    const std::unique_ptr<Engine> engine = MakeEngine(controller_.SpecOf(started->spec).engine);
    const Plan plan = engine->plan();
    batches_.Begins(world_.runs.Begins(record.run, *started, plan), engine->batches());
    stats_.Begins(plan);
  }
  const auto* left = std::get_if<WorkerLeft>(&record.body);
  if (left != nullptr && !StaysInJob(left->why) && world_.Lives(left->incarnation)) {
    world_.replicas[WorkerOf(left->incarnation)].removed = true;
  }
  if (left != nullptr && Dismisses(*left)) world_.dismissed.insert(left->incarnation);
  const auto* through = std::get_if<GroupEnded>(&record.body);
  // A worker with notice leaves at once if the job has not begun for it, perhaps out of its start.
  const bool leaves =
      through != nullptr && (through->reason.find(": drained by ") != std::string::npos ||
                             (through->reason.ends_with(std::string(": ") + SimWorker::kNotice) &&
                              !starts_.contains({record.run, through->id})));
  if (leaves) {
    throw Violation("drained", GroupName(through->id) + ": " + through->reason);
  }
  const auto* ended = std::get_if<RunEnded>(&record.body);
  if (ended != nullptr && ended->finished) world_.runs.Finish(record.run);
  if (left != nullptr && left->why == LeftReason::kLost) lost_.insert(left->incarnation);
  if (const auto* formed = std::get_if<GroupFormed>(&record.body)) {
    starts_.erase({record.run, formed->id});  // of a history that was forgotten
    if (formed->kind == GroupKind::kInitial) starts_.insert({record.run, formed->id});
  }
  const RunId run = world_.runs.NumberOf(record.run);
  runs_.Seen(run, record);
  replicas_.Seen(run, record);
  batches_.Seen(run, record);
  plane_->Seen(run, record);
  stats_.Seen(record);
  if (options_.trace) options_.trace(Describe(record));
  if (options_.on_record) options_.on_record(record);
}

void Cluster::Forgot() {
  std::set<RunId> finished;
  for (const auto& [id, run] : controller_.store().runs()) {
    const RunId number = world_.runs.NumberOf(id);
    plane_->Forgot(number, run.records);
    batches_.Forgot(number, run.records);
    const auto* ended =
        run.records.empty() ? nullptr : std::get_if<RunEnded>(&run.records.back().body);
    if (ended != nullptr && ended->finished) finished.insert(number);
  }
  runs_.Forgot(std::move(finished));
  operator_.Forgot();
}

// A group that its members drew themselves, as the history would tell of it.
void Cluster::Unreported(const Group& group) {
  GroupFormed formed{.id = group.id, .members = {}};
  for (const GroupMember& member : group.members) {
    const Iteration iteration = world_.replicas[WorkerOf(member.incarnation)].iteration;
    formed.members.push_back(
        {.rank = member.rank, .weight = member.weight, .iteration = iteration});
  }
  stats_.Unreported(world_.now, formed);
}

void Cluster::Begin() {
  controller_.Start();
  for (std::uint32_t i = 0; i < workers_.size(); ++i) {
    double ms = workload_.cluster.start_spread_ms * world_.prng.Unit();
    if (world_.Fault(workload_.faults.late)) ms += workload_.faults.late_ms * world_.prng.Unit();
    world_.queue.Push(world_.now + FromMs(ms), EventKind::kWorkerStarts, i);
  }
  if (workload_.faults.until_ms > 0) {
    world_.queue.Push(world_.now + kFaultPeriod, EventKind::kFault);
  }
  if (workload_.training.objective != TrainingPart::Objective::kNone) {
    world_.queue.Push(world_.now, EventKind::kEvaluate);
  }
}

void Cluster::Loop() {
  const Instant end{FromMs(workload_.cluster.seconds * 1000)};
  while (!stop_ && !world_.queue.empty()) {
    if (plane_->RunNext(world_.queue.at())) continue;
    const SimEvent event = world_.queue.Pop();
    if (event.at > end) {
      world_.now = end;
      break;
    }
    if (workload_.faults.until_ms > 0) LookForHangs(event.at);
    world_.now = event.at;
    if (IsFor(event) && world_.Frozen(event.who)) {  // it takes them in order, later
      world_.queue.Push(world_.frozen_until[event.who], event.kind, event.who, event.what);
      continue;
    }
    Handle(event);
    if (options_.trace) options_.trace(traces_.Line());
    if (options_.max_events != 0 && traces_.events() >= options_.max_events) break;
  }
}

void Cluster::Handle(const SimEvent& event) {
  traces_.Begin(event);
  Traces::Trace& trace = traces_.newest();
  switch (event.kind) {
    case EventKind::kToController: {
      Mailed mailed = world_.control.TakeToController(event.what);
      trace.word = WordOf(mailed.envelope.body);
      trace.id = mailed.envelope.seq;
      if (!world_.control.IsCut(event.who)) controller_.Receive(std::move(mailed));
      break;
    }
    case EventKind::kToWorker: {
      const ControllerEnvelope envelope = world_.control.TakeToWorker(event.what);
      trace.word = WordOf(envelope.body);
      trace.id = envelope.seq;
      if (!world_.control.IsCut(event.who)) workers_[event.who].OnEnvelope(envelope);
      // What a worker's end, or its coming too late, begins with.
      stop_ = stop_ || ((std::holds_alternative<Released>(envelope.body) ||
                         std::holds_alternative<Refused>(envelope.body) ||
                         std::holds_alternative<Welcome>(envelope.body)) &&
                        Finished());
      break;
    }
    case EventKind::kTurn:
      controller_.Turn();
      break;
    case EventKind::kControllerStarts:
      controller_.Start();
      for (std::uint32_t i = 0; i < workers_.size(); ++i) {
        if (!world_.control.tells_ends() || workers_[i].phase() == SimWorker::Phase::kAway)
          continue;
        world_.control.EndConnection(i, world_.now + FromMs(10 * world_.dice.Unit()), false);
      }
      break;
    case EventKind::kFault:
      Faults();
      break;
    case EventKind::kWorkerWakes:
      workers_[event.who].OnWake(Instant{static_cast<std::int64_t>(event.what)});
      break;
    case EventKind::kStepDone:
      workers_[event.who].OnStepDone(event.what);
      break;
    case EventKind::kPoll:
      workers_[event.who].OnPoll(event.what);
      break;
    case EventKind::kStops:
      workers_[event.who].OnStops(event.what);
      break;
    case EventKind::kNotice:
      workers_[event.who].OnNotice(event.what);
      break;
    case EventKind::kResumes:
      workers_[event.who].OnResumes(event.what);
      break;
    case EventKind::kWorkerStarts:
      workers_[event.who].Start();
      break;
    case EventKind::kConnectionEnds:
      trace.id = event.what;
      controller_.OnConnectionEnds(event.who, event.what);
      break;
    case EventKind::kConnected:
      trace.id = event.what;
      workers_[event.who].OnConnected(event.what);
      break;
    case EventKind::kEvaluate:
      if (loss_.Evaluate(stats_.throughput.updates())) stop_ = stop_ || options_.stop_at_target;
      break;
    case EventKind::kCopied:
    case EventKind::kReduced:
    case EventKind::kReduceFails:
    case EventKind::kProbe:
    case EventKind::kSilent:
    case EventKind::kFetched:
    case EventKind::kNote:
    case EventKind::kRequest:
    case EventKind::kPulled:
    case EventKind::kUnheard:
      plane_->OnEvent(event, &trace);
      break;
  }
}

bool Cluster::IsFor(const SimEvent& event) {
  switch (event.kind) {
    case EventKind::kToWorker:
    case EventKind::kWorkerWakes:
    case EventKind::kStepDone:
    case EventKind::kPoll:
    case EventKind::kStops:
    case EventKind::kNotice:
    case EventKind::kReduceFails:
    case EventKind::kFetched:
    case EventKind::kNote:
    case EventKind::kRequest:
    case EventKind::kPulled:
    case EventKind::kUnheard:
    case EventKind::kProbe:
    case EventKind::kSilent:
    case EventKind::kResumes:
    case EventKind::kCopied:
    case EventKind::kConnected:
      return true;
    default:
      return false;
  }
}

// ---- the end ----

void Cluster::Fill(RunResult* result) {
  result->all_finished = Finished();
  result->unfinished = std::count_if(workers_.begin(), workers_.end(), [](const SimWorker& worker) {
    return worker.phase() != SimWorker::Phase::kDone;
  });
  result->seconds = static_cast<double>(world_.now.ns) / 1e9;
  result->events = traces_.events();
  result->messages = world_.messages;
  result->records = controller_.store().records();
  result->restarts = controller_.restarts();
  result->bytes = plane_->bytes();
  result->hash = controller_.store().hash();
  for (const SimWorker& worker : workers_) {
    result->hash = Prng(result->hash ^ worker.Mark()).Next();
  }
  result->updates_per_s = stats_.throughput.PerSecond();
  double steps_per_s = 0;
  for (std::uint32_t i = 0; i < workers_.size(); ++i) steps_per_s += 1e9 / times_.MeanNs(i);
  const Throughput& throughput = stats_.throughput;
  if (throughput.measured() > 0) {
    result->bound_updates_per_s = steps_per_s * static_cast<double>(throughput.measured()) /
                                  static_cast<double>(throughput.members());
  }
  result->curve = loss_.curve();
  result->target = loss_.target();
  result->stats = std::move(stats_);
  result->rho = result->stats.Rho();
}

RunResult Cluster::Run() {
  RunResult result;
  try {
    Begin();
    Loop();
    CheckEnd();
  } catch (const Violation& violation) {
    result.invariant = violation.invariant();
    result.violation = violation.what();
    result.last_events = traces_.LastLines();
  }
  Fill(&result);
  return result;
}

RunResult Simulate(const Workload& workload, const RunOptions& options) {
  return Cluster(workload, options).Run();
}

}  // namespace prd::sim
