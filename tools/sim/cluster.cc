#include "tools/sim/cluster.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "engines/draw.h"
#include "engines/event.h"
#include "engines/violation.h"
#include "tools/sim/controller.h"
#include "tools/sim/replica_book.h"
#include "tools/sim/run_book.h"
#include "tools/sim/sim_worker.h"
#include "tools/sim/trace.h"

namespace prd::sim {
namespace {

constexpr DurationNs kFaultPeriod = 50 * kMillisecond;

Plan PlanOf(const Workload& workload) { return MakeEngine(workload.job.engine)->plan(); }

bool Switches(const Workload& workload) {
  return workload.faults.switches_per_s > 0 || workload.faults.switch_at_ms > 0;
}

// What is trained; where models are averaged in ways that could lose something, at least a toy.
std::unique_ptr<Objective> Trained(const Workload& workload, std::uint64_t seed) {
  auto objective = MakeObjective(workload.training, workload.cluster.workers, seed);
  if (objective != nullptr) return objective;
  if (Switches(workload)) return MakeToy(12);
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

class Cluster {
 public:
  Cluster(const Workload& workload, const RunOptions& options)
      : workload_(workload),
        options_(options),
        world_(workload, options.seed),
        stats_(workload.cluster.workers, options.keep_slices, options.slice_limit,
               DrawnAhead(PlanOf(workload)), !TrainsInGroups(PlanOf(workload))),
        objective_(Trained(workload, options.seed)),
        times_(workload, options.seed),
        devices_(workload),
        data_(&world_, options.mutation, [this](const Group& group) { Unreported(group); }),
        exchange_(&world_, MakeEngine(workload.job.engine)->plan(), &stats_, options.mutation),
        doors_(static_cast<std::size_t>(workload.cluster.workers), options.mutation),
        controller_(
            &world_, options.mutation, [this](const Record& record) { Seen(record); },
            [this] { Forgot(); }),
        runs_(&world_),
        replicas_(&world_),
        workers_(static_cast<std::size_t>(workload.cluster.workers)),
        hangs_(2 * world_.LeaseNs() + 5 * kSecond, StepsOfOthers(workload)) {
    world_.first_plan = PlanOf(workload);
    parts_ = {.world = &world_,
              .data = &data_,
              .exchange = &exchange_,
              .doors = &doors_,
              .runs = &runs_,
              .replicas = &replicas_,
              .times = &times_,
              .devices = &devices_,
              .objective = objective_.get(),
              .stats = &stats_,
              .draws = {},
              .spare = {},
              .changed = {}};
    for (std::uint32_t i = 0; i < workers_.size(); ++i) {
      workers_[i].Init(&parts_, i);
      parts_.draws.emplace_back(Prng(options.seed ^ (0x67u + i)).Next());
    }
  }

  RunResult Run();

 private:
  void Seen(const Record& record);
  void Forgot();
  void Unreported(const Group& group);
  void Begin();
  void Loop();
  void Handle(const SimEvent& event);
  void Exchanged(const SimEvent& event);
  void Reduced(const std::vector<DataPlane::Result>& results);
  void Faults();
  void LinkFaults(std::uint32_t worker, double share);
  void Relaunch();
  void Operate(double share);
  bool Switch(const std::string& engine);
  void Forge(std::uint32_t worker);
  void LookForHangs(Instant until);
  std::vector<HangWatch::Worker> Doings() const;
  // It is for a worker's process.
  static bool IsFor(const SimEvent& event);
  void Evaluate();
  RunId FirstDone() const;
  bool TooLate(const SimWorker& worker) const;
  bool Finished() const;
  bool Joining(const SimWorker& worker) const;  // waits for a common start
  std::set<Incarnation> Known() const;
  void CheckEnd();
  std::string Stuck() const;
  void Fill(RunResult* result);

  const Workload& workload_;
  const RunOptions options_;
  World world_;
  Stats stats_;
  std::unique_ptr<Objective> objective_;
  StepTimes times_;
  Devices devices_;
  DataPlane data_;
  Exchange exchange_;
  MeshDoors doors_;
  Controller controller_;
  RunBook runs_;
  ReplicaBook replicas_;
  WorkerParts parts_;
  std::vector<SimWorker> workers_;
  std::size_t settled_ = 0;  // workers that are through, for a quick look
  bool stop_ = false;
  Traces traces_;
  std::vector<LossPoint> curve_;
  std::optional<LossPoint> target_;
  std::set<Incarnation> lost_;      // whose leases ran out
  Instant resumes_at_;              // the operator, what is paused
  bool switched_ = false;           // at switch_at_ms
  std::map<RunId, RunId> numbers_;  // World::NumberOf the newest run with each id
  HangWatch hangs_;
};

void Cluster::Seen(const Record& record) {
  if (const auto* started = std::get_if<RunStarted>(&record.body)) {
    const RunId number = world_.runs.size() + 1;
    world_.runs.emplace(started->identity.high, number);
    numbers_[record.run] = number;
    const Plan plan = MakeEngine(controller_.SpecOf(started->spec).engine)->plan();
    if (!(plan == world_.first_plan)) world_.plans[number] = plan;
    const auto former = numbers_.find(started->former.run);
    if (former != numbers_.end()) {
      World::Former& of = world_.former[number];
      of.run = former->second;
      for (const FormerRank& rank : started->former.ranks) {
        if (rank.has_model) of.with_model.insert(rank.rank);
      }
    }
    stats_.Begins(plan);
  }
  const auto* left = std::get_if<WorkerLeft>(&record.body);
  if (left != nullptr && !StaysInJob(left->why) && world_.Lives(left->incarnation)) {
    world_.replicas[WorkerOf(left->incarnation)].removed = true;
  }
  if (left != nullptr && Dismisses(*left)) world_.dismissed.insert(left->incarnation);
  const auto* through = std::get_if<GroupEnded>(&record.body);
  if (through != nullptr && through->reason.find(": drained by ") != std::string::npos) {
    throw Violation("drained", "group " + std::to_string(through->id) + ": " + through->reason);
  }
  const auto* ended = std::get_if<RunEnded>(&record.body);
  if (ended != nullptr && ended->finished) world_.finished.insert(numbers_[record.run]);
  if (left != nullptr && left->why == LeftReason::kLost) lost_.insert(left->incarnation);
  if (const auto* set = std::get_if<ScheduleSet>(&record.body))
    data_.Seen(numbers_[record.run], *set);
  if (const auto* formed = std::get_if<GroupFormed>(&record.body))
    data_.Seen(numbers_[record.run], *formed);
  runs_.Seen(numbers_[record.run], record);
  replicas_.Seen(numbers_[record.run], record);
  exchange_.Seen(numbers_[record.run], record);
  stats_.Seen(record);
  if (options_.trace) options_.trace(Describe(record));
  if (options_.on_record) options_.on_record(record);
}

void Cluster::Forgot() {
  std::set<RunId> finished;
  for (const auto& [id, run] : controller_.store().runs()) {
    exchange_.Forgot(numbers_[id], run.records);
    const auto* ended =
        run.records.empty() ? nullptr : std::get_if<RunEnded>(&run.records.back().body);
    if (ended != nullptr && ended->finished) finished.insert(numbers_[id]);
  }
  runs_.Forgot(std::move(finished));
  // That the operator had a paused job go on may be forgotten, and what is paused is seen.
  const bool pauses = workload_.faults.operator_pauses_per_s > 0;
  if (pauses && resumes_at_.ns == 0) resumes_at_ = world_.now;
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
      WorkerEnvelope envelope = world_.to_controller.Take(event.what);
      trace.word = WordOf(envelope.body);
      trace.id = envelope.seq;
      if (world_.now >= world_.cut_until[event.who]) controller_.Receive(std::move(envelope));
      break;
    }
    case EventKind::kToWorker: {
      const ControllerEnvelope envelope = world_.to_worker.Take(event.what);
      trace.word = WordOf(envelope.body);
      trace.id = envelope.seq;
      if (world_.now >= world_.cut_until[event.who]) workers_[event.who].OnEnvelope(envelope);
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
    case EventKind::kResumes:
      workers_[event.who].OnResumes(event.what);
      break;
    case EventKind::kCopied:
      if (const auto ok = data_.OnCopied(event.who, event.what)) workers_[event.who].OnCopied(*ok);
      break;
    case EventKind::kReduced:
      Reduced(data_.OnReduced(event.what));
      break;
    case EventKind::kReduceFails:
      Reduced(data_.OnFails(event.who, event.what));
      break;
    case EventKind::kProbe:
      workers_[event.who].OnProbed(data_.OnProbe(event.who, event.what));
      break;
    case EventKind::kSilent:
      Reduced(data_.OnSilent(event.who, event.what));
      break;
    case EventKind::kFetched: {
      const std::optional<DataPlane::Result> result = data_.OnFetched(event.who, event.what);
      if (result) workers_[event.who].OnFetched(*result);
      break;
    }
    case EventKind::kWorkerStarts:
      workers_[event.who].Start();
      break;
    case EventKind::kEvaluate:
      Evaluate();
      break;
    case EventKind::kNote:
    case EventKind::kRequest:
    case EventKind::kPulled:
    case EventKind::kUnheard:
      Exchanged(event);
      break;
  }
}

void Cluster::Exchanged(const SimEvent& event) {
  SimWorker& worker = workers_[event.who];
  Traces::Trace& trace = traces_.newest();
  const auto tell = [&](Incarnation from, const char* word, std::int64_t stamp) {
    trace.peer = WorkerOf(from);
    trace.word = word;
    trace.id = static_cast<std::uint64_t>(stamp);
  };
  if (event.kind == EventKind::kNote) {
    const std::optional<Exchange::Noted> noted = exchange_.OnNote(event.who, event.what);
    if (!noted) return;
    const PeerMessage& note = noted->note;
    tell(noted->from, WordOf(note.kind), note.parcel.stamp);
    worker.OnNote(*noted);
  } else if (event.kind == EventKind::kRequest) {
    const std::optional<Exchange::Requested> asked = exchange_.OnRequest(event.who, event.what);
    if (!asked) return;
    const PeerItem& parcel = asked->parcel;
    tell(asked->from, WordOf(parcel.kind), parcel.stamp);
    worker.OnRequest(*asked);
  } else if (event.kind == EventKind::kUnheard) {
    const std::optional<Rank> peer = exchange_.OnUnheard(event.who, event.what);
    if (!peer) return;
    trace.peer = static_cast<std::uint32_t>(*peer);
    worker.OnOutOfReach(*peer);
  } else {
    const std::optional<Exchange::Pulled> pulled = exchange_.OnPulled(event.who, event.what);
    if (!pulled) return;
    const PeerItem& parcel = pulled->parcel;
    tell(pulled->from, pulled->ok ? WordOf(parcel.kind) : "nothing, for", parcel.stamp);
    worker.OnPulled(*pulled);
  }
}

void Cluster::Reduced(const std::vector<DataPlane::Result>& results) {
  for (const DataPlane::Result& result : results) workers_[result.worker].OnReduced(result);
}

void Cluster::Faults() {
  controller_.MayDie(kFaultPeriod);
  const FaultsPart& faults = workload_.faults;
  const double share = static_cast<double>(kFaultPeriod) / kSecond;
  for (Instant& until : world_.cut_until) {
    if (world_.Fault(faults.partitions_per_s * share)) {
      until = world_.now + FromMs(faults.partition_ms * world_.prng.Unit());
      world_.Disturbed(until);
    }
  }
  controller_.MayFreeze(kFaultPeriod);
  if (world_.links.on()) {
    for (std::uint32_t i = 0; i < workers_.size(); ++i) LinkFaults(i, share);
  }
  if (world_.Rolled(faults.launcher_restarts_per_s * share)) Relaunch();
  for (std::uint32_t i = 0; i < workers_.size(); ++i) {
    if (world_.Rolled(faults.forgeries_per_s * share)) Forge(i);
  }
  Operate(share);
  // What is paused is resumed, whatever goes wrong.
  if (world_.FaultsOn() || resumes_at_.ns > 0) {
    world_.queue.Push(world_.now + kFaultPeriod, EventKind::kFault);
  }
}

// Whatever an operator does, while the job is in any state: much of it is refused.
void Cluster::Operate(double share) {
  const FaultsPart& faults = workload_.faults;
  const auto any = [&] { return static_cast<std::uint32_t>(world_.dice.Below(workers_.size())); };
  OperatorActed act{.by = "user 0"};
  if (world_.Rolled(faults.evictions_per_s * share)) {
    act.verb = OperatorVerb::kEvict;
    act.rank = static_cast<Rank>(any());
    (void)controller_.Act(act).ok();
    act.rank = kNoRank;
  }
  if (world_.Rolled(faults.drains_per_s * share)) {
    act.verb = OperatorVerb::kDrain;
    act.host = "h" + std::to_string(world_.HostOf(any()));
    (void)controller_.Act(act).ok();
    act.host.clear();
  }
  if (world_.Rolled(faults.operator_ends_per_s * share)) {
    act.verb = OperatorVerb::kEnd;
    (void)controller_.Act(act).ok();
  }
  if (world_.Rolled(faults.operator_pauses_per_s * share)) {
    act.verb = OperatorVerb::kPause;
    const Code code = controller_.Act(act).code();
    if (code == Code::kOk || code == Code::kUnavailable) {  // it may be recorded all the same
      resumes_at_ = world_.now + FromMs(faults.operator_pause_ms * world_.dice.Unit());
      world_.Disturbed(resumes_at_);
    }
  }
  if (world_.Rolled(faults.switches_per_s * share)) {
    const std::vector<EngineOptions> all = AllEngines();
    Switch(EngineText(Draw(all[world_.dice.Below(all.size())], &world_.dice,
                           static_cast<int>(workers_.size()), workload_.job.workers)));
  }
  if (faults.switch_at_ms > 0 && world_.now.ns >= FromMs(faults.switch_at_ms) && !switched_) {
    switched_ = Switch(faults.switch_to);
  }
  if (resumes_at_.ns == 0 || world_.now < resumes_at_) return;
  act.verb = OperatorVerb::kResume;
  world_.Disturbed(world_.now);
  // Another run, or one that has been ended, is not paused.
  if (controller_.Act(act).code() != Code::kUnavailable) resumes_at_ = {};
}

bool Cluster::Switch(const std::string& engine) {
  const OperatorActed act{.verb = OperatorVerb::kSwitch, .by = "user 0", .spec = engine};
  return controller_.Act(act).ok();
}

// Of links, and of a worker that stands still.
void Cluster::LinkFaults(std::uint32_t worker, double share) {
  const FaultsPart& faults = workload_.faults;
  const auto other = [&] {
    const auto drawn = static_cast<std::uint32_t>(world_.dice.Below(workers_.size() - 1));
    return drawn + (drawn >= worker ? 1 : 0);
  };
  if (workers_.size() > 1 && world_.Rolled(faults.link_cuts_per_s * share)) {
    const std::uint32_t to = other();
    const Instant until = world_.now + FromMs(faults.link_cut_ms * world_.dice.Unit());
    world_.links.Cut(worker, to, until);
    if (!world_.Rolled(faults.one_way)) world_.links.Cut(to, worker, until);
    world_.Disturbed(until);
  }
  if (workers_.size() > 1 && world_.Rolled(faults.slow_links_per_s * share)) {
    const std::uint32_t to = other();
    const Instant until = world_.now + FromMs(faults.slow_link_ms * world_.dice.Unit());
    world_.links.Slow(worker, to, until, FromMs(faults.slow_link_ms * world_.dice.Unit()));
    world_.Disturbed(until);
  }
  if (world_.Rolled(faults.worker_freezes_per_s * share) && !world_.Frozen(worker) &&
      workers_[worker].phase() != SimWorker::Phase::kAway) {
    const Instant until = world_.now + world_.FreezeNs();
    exchange_.Frozen(worker);
    world_.frozen_until[worker] = until;
    world_.Disturbed(until);
  }
}

// The launcher starts its workers anew. Some of those before survive: they have trained, and know
// nothing of it.
void Cluster::Relaunch() {
  if (FirstDone() != kNoRun) return;
  ++world_.launch;
  for (SimWorker& worker : workers_) {
    if (worker.phase() == SimWorker::Phase::kAway) continue;
    if (worker.has_trained() && world_.Rolled(workload_.faults.remains)) continue;
    worker.Kill();
  }
}

// Somebody who knows all that peers know of the worker, and what the controller expects of it next,
// sends a message in its name. Its token is not to be known.
void Cluster::Forge(std::uint32_t worker) {
  const SimWorker& victim = workers_[worker];
  const Pump* pump = controller_.pump();
  if (pump == nullptr || workers_.size() < 2) return;
  const auto job = pump->jobs().find(victim.run());
  const auto rank = static_cast<std::size_t>(victim.rank());
  if (job == pump->jobs().end() || rank >= job->second->workers().size()) return;
  const Job::Worker& known = job->second->workers()[rank];
  if (known.incarnation == 0 || known.incarnation != victim.incarnation()) return;
  Prng& dice = world_.dice;
  WorkerEnvelope forged{.run = victim.run(),
                        .identity = victim.identity(),
                        .rank = victim.rank(),
                        .incarnation = known.incarnation,
                        .seq = known.link.last_in() + 1,
                        .ack = known.link.last_out() + dice.Below(3),
                        .oldest = 1 + dice.Below(4),
                        .token = {dice.Next(), dice.Next()},
                        .body = Heartbeat{}};
  switch (dice.Below(12)) {
    case 0:
      forged.body = Leave{.reason = "forged"};
      break;
    case 1:
      forged.body = Finish{};
      break;
    case 2:
      forged.body = Pause{};
      break;
    case 3:
      forged.body = Resume{};
      break;
    case 4:
      forged.body = Ready{.iteration = known.iteration + 1};
      break;
    case 5:
      forged.body = prd::Finished{.group = known.group};
      break;
    case 6:
      forged.body = Adopted{.ok = true, .iteration = known.iteration};
      break;
    case 7:
      forged.body = Progressed{.own = {.steps = 1'000'000, .samples = 1}};
      break;
    case 8:  // as if it had come from another place
      forged.run += 1 + dice.Below(2);
      forged.body = Leave{};
      break;
    case 9:
      forged.rank = static_cast<Rank>((rank + 1) % workers_.size());
      forged.body = Leave{};
      break;
    case 10:
      forged.run = kNoRun;
      forged.rank = kNoRank;
      forged.seq = 1;
      forged.body = Hello{.job = "sim",
                          .rank = victim.rank(),
                          .endpoints = {"forged"},
                          .mesh_key = MeshDoors::ForgedKey()};
      break;
    default:
      forged.seq = 0;
      break;
  }
  const auto from = static_cast<std::uint32_t>((worker + 1) % workers_.size());
  world_.SendToController(from, forged);
  // At the meshes of all, in its name, in that of another, and in one of its own.
  doors_.Knock(known.incarnation, MeshDoors::ForgedKey());
  doors_.Knock(workers_[from].incarnation(), MeshDoors::ForgedKey());
  doors_.Knock(dice.Next(), MeshDoors::ForgedKey());
}

bool Cluster::IsFor(const SimEvent& event) {
  switch (event.kind) {
    case EventKind::kToWorker:
    case EventKind::kWorkerWakes:
    case EventKind::kStepDone:
    case EventKind::kPoll:
    case EventKind::kStops:
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
      return true;
    default:
      return false;
  }
}

// What everybody does from the last event on, until the one at hand.
void Cluster::LookForHangs(Instant until) {
  if (until.ns < FromMs(workload_.faults.until_ms)) return;
  hangs_.Disturbed(std::max(world_.disturbed_until, Instant{FromMs(workload_.faults.until_ms)}));
  hangs_.Computed(world_.longest_step);
  while (hangs_.due() <= until) {
    world_.now = hangs_.due();
    if (!hangs_.Hangs(Doings())) continue;
    throw Violation(
        "no-hang",
        "2 leases, 5 s and some steps without faults, and some have got nowhere:" + Stuck());
  }
}

std::vector<HangWatch::Worker> Cluster::Doings() const {
  // A job's first start, and that of workers that all come anew, waits for those who are missing.
  const bool away = std::any_of(workers_.begin(), workers_.end(), [](const SimWorker& worker) {
    return worker.phase() == SimWorker::Phase::kAway || worker.phase() == SimWorker::Phase::kPaused;
  });
  // What a launch begins waits until nobody of the launch before is left.
  const bool remains = std::any_of(workers_.begin(), workers_.end(), [&](const SimWorker& worker) {
    return worker.phase() != SimWorker::Phase::kAway && worker.launch() != world_.launch;
  });
  std::vector<HangWatch::Worker> seen;
  for (const SimWorker& worker : workers_) {
    HangWatch::Worker& of = seen.emplace_back();
    of.progress = static_cast<std::uint64_t>(worker.steps()) + worker.lives();
    of.step = worker.computed();
    switch (worker.phase()) {
      case SimWorker::Phase::kComputing:
        of.doing = HangWatch::Doing::kComputes;
        break;
      case SimWorker::Phase::kAttaching:
      case SimWorker::Phase::kStepping:
      case SimWorker::Phase::kPausing:
      case SimWorker::Phase::kResuming:
      case SimWorker::Phase::kAveraging:
      case SimWorker::Phase::kLeaving:
        of.doing = HangWatch::Doing::kWaits;
        break;
      case SimWorker::Phase::kPaused:
        of.doing = HangWatch::Doing::kPauses;
        break;
      case SimWorker::Phase::kFinishing:
        of.doing = HangWatch::Doing::kFinishes;
        break;
      case SimWorker::Phase::kAway:
      case SimWorker::Phase::kDone:
      case SimWorker::Phase::kFailed:
        of.doing = HangWatch::Doing::kThrough;
        break;
    }
    const bool attaches = worker.phase() == SimWorker::Phase::kAttaching;
    const bool lacks = attaches && away && Joining(worker);
    const bool follows = attaches && remains && worker.launch() == world_.launch;
    if (lacks || follows || TooLate(worker)) of.doing = HangWatch::Doing::kThrough;
  }
  return seen;
}

// The loss of the mean of all live replicas.
void Cluster::Evaluate() {
  std::vector<double> mean;
  double live = 0;
  for (std::uint32_t i = 0; i < workers_.size(); ++i) {
    const Replica& replica = world_.replicas[i];
    const SimWorker::Phase phase = workers_[i].phase();
    const bool there = phase == SimWorker::Phase::kComputing ||
                       phase == SimWorker::Phase::kStepping || phase == SimWorker::Phase::kPaused ||
                       phase == SimWorker::Phase::kFinishing || phase == SimWorker::Phase::kDone;
    if (!there || replica.x.empty()) continue;
    mean.resize(replica.x.size(), 0.0);
    for (std::size_t j = 0; j < mean.size(); ++j) mean[j] += replica.x[j];
    ++live;
  }
  if (live > 0) {
    for (double& value : mean) value /= live;
    const LossPoint point{
        .at = world_.now, .updates = stats_.updates, .loss = objective_->Loss(mean)};
    curve_.push_back(point);
    if (!target_ && workload_.training.target_loss > 0 &&
        point.loss <= workload_.training.target_loss) {
      target_ = point;
      stop_ = stop_ || options_.stop_at_target;
    }
  }
  world_.queue.Push(world_.now + FromMs(workload_.training.evaluate_ms), EventKind::kEvaluate);
}

// ---- the end ----

bool Cluster::Joining(const SimWorker& worker) const {
  const Pump* pump = controller_.pump();
  if (pump == nullptr) return false;
  const auto job = pump->jobs().find(worker.run());
  if (job == pump->jobs().end()) return false;
  const auto rank = static_cast<std::size_t>(worker.rank());
  return rank < job->second->workers().size() &&
         job->second->workers()[rank].state == Job::State::kJoining;
}

// The first run that somebody has finished; kNoRun: none.
RunId Cluster::FirstDone() const {
  RunId first = kNoRun;
  for (const SimWorker& worker : workers_) {
    if (worker.phase() != SimWorker::Phase::kDone) continue;
    const RunId run = worker.run_number();
    first = first == 0 ? run : std::min(first, run);
  }
  return first;
}

// Who comes (back) after others are done is in a run of its own, and waits there for a common
// start: nothing is wrong with that.
bool Cluster::TooLate(const SimWorker& worker) const {
  const RunId first = FirstDone();
  return first > 0 && worker.run_number() > first && Joining(worker);
}

bool Cluster::Finished() const {
  return FirstDone() > 0 &&
         std::all_of(workers_.begin(), workers_.end(), [&](const SimWorker& worker) {
           return worker.phase() == SimWorker::Phase::kDone || TooLate(worker);
         });
}

std::string Cluster::Stuck() const {
  std::string text;
  for (const SimWorker& worker : workers_) {
    if (worker.phase() == SimWorker::Phase::kDone) continue;
    text += "\n  " + worker.Where();
    const Pump* pump = controller_.pump();
    if (pump == nullptr) continue;
    const auto job = pump->jobs().find(worker.run());
    if (job != pump->jobs().end()) {
      text += "; the controller says: " + job->second->Explain(world_.now, worker.rank());
    }
    if (text.size() > 4000) return text + "\n  ...";
  }
  return text;
}

// Whose Hello the controller has not forgotten.
std::set<Incarnation> Cluster::Known() const {
  std::set<Incarnation> known;
  for (const auto& [id, run] : controller_.store().runs()) {
    for (const Record& record : run.records) {
      const auto* from = std::get_if<FromWorker>(&record.body);
      if (from != nullptr && std::holds_alternative<Hello>(from->envelope.body)) {
        known.insert(from->envelope.incarnation);
      }
    }
  }
  return known;
}

void Cluster::CheckEnd() {
  for (const SimWorker& worker : workers_) {
    if (worker.phase() == SimWorker::Phase::kFailed) {
      throw Violation("live", "a call of the library fails:\n  " + worker.Where());
    }
  }
  if (workload_.cluster.steps > 0 && !stop_ && !Finished()) {
    throw Violation("no-hang", "faults have stopped, and some do not finish by " +
                                   std::to_string(workload_.cluster.seconds) + " s:" + Stuck());
  }
  std::map<RunId, std::uint64_t> tags;
  const std::set<Incarnation> known = Known();
  for (std::uint32_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].phase() != SimWorker::Phase::kDone) continue;
    if (lost_.contains(workers_[i].incarnation())) continue;
    if (world_.forgot && !known.contains(workers_[i].incarnation())) continue;
    const std::uint64_t tag = world_.replicas[i].tag;
    if (tags.try_emplace(workers_[i].run_number(), tag).first->second != tag) {
      throw Violation("replicas-agree",
                      "worker " + std::to_string(i) + " ends with another replica than others");
    }
  }
  data_.book().CheckEnd();
  controller_.CheckReplay();
}

void Cluster::Fill(RunResult* result) {
  result->all_finished = Finished();
  result->seconds = static_cast<double>(world_.now.ns) / 1e9;
  result->events = traces_.events();
  result->messages = world_.messages;
  result->records = controller_.store().records();
  result->restarts = controller_.restarts();
  result->bytes = data_.bytes() + exchange_.bytes();
  result->hash = controller_.store().hash();
  for (const Replica& replica : world_.replicas) {
    result->hash = Prng(result->hash ^ replica.tag).Next();
  }
  result->updates_per_s = stats_.UpdatesPerSecond();
  double steps_per_s = 0;
  for (std::uint32_t i = 0; i < workers_.size(); ++i) steps_per_s += 1e9 / times_.MeanNs(i);
  if (stats_.measured_updates > 0) {
    result->bound_updates_per_s = steps_per_s * static_cast<double>(stats_.measured_updates) /
                                  static_cast<double>(stats_.measured_members);
  }
  result->curve = std::move(curve_);
  result->target = target_;
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

}  // namespace

RunResult Simulate(const Workload& workload, const RunOptions& options) {
  return Cluster(workload, options).Run();
}

}  // namespace prd::sim
