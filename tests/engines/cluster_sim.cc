#include "tests/engines/cluster_sim.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <set>
#include <utility>

namespace prd::sim {
namespace {

class World;

// Speaks the worker's side of the protocol. Its "model" is a number: equal models, equal numbers.
class DumbWorker {
 public:
  DumbWorker(World* world, int id)
      : world_(world), id_(id), model_(1000u + static_cast<unsigned>(id)) {}

  void Begin();  // says Hello as a new incarnation
  void Die();
  void Receive(const ControllerEnvelope& envelope);
  void Retry();  // resends and heartbeats, periodically

  int id() const { return id_; }
  bool alive() const { return alive_; }
  bool done() const { return done_; }
  std::uint64_t model() const { return model_; }
  Iteration iteration() const { return iteration_; }
  Incarnation incarnation() const { return incarnation_; }
  std::string Where() const;
  RunId run() const { return run_; }
  Rank rank() const { return rank_; }

 private:
  void Push(WorkerBody body);
  void SendEntry(const LinkEnd<WorkerBody>::Entry& entry);
  void Deliver(const ControllerBody& body);
  void Compute();
  void Signal();
  void OnGroup(const Group& group);
  void EndGroup(Outcome outcome);
  void OnAdopt(const Adopt& adopt);

  World* world_;
  const int id_;
  std::uint64_t model_;
  bool alive_ = false;
  bool done_ = false;
  bool had_final_ = false;
  bool trained_ = false;  // has been part of the job with its present model
  Incarnation incarnation_ = 0;
  RunId run_ = kNoRun;
  Rank rank_ = kNoRank;
  bool rounds_ = false;
  Iteration iteration_ = 0;
  int steps_ = 0;
  LinkEnd<WorkerBody> link_;
  std::optional<Group> group_;
  bool signalled_ = false;
  bool stepping_ = false;  // between a step's begin and its end
  bool finishing_ = false;
  std::uint64_t epoch_ = 0;  // invalidates timers of an earlier phase
};

class World : public Transport, public History {
 public:
  explicit World(const Scenario& what) : scenario(what), prng_(what.seed) {
    for (int i = 0; i < scenario.workers; ++i) {
      workers.push_back(std::make_unique<DumbWorker>(this, i));
    }
  }

  Verdict Run();

  // History.
  Status Append(std::span<const Record> batch) override {
    if (FaultsOn() && Chance(scenario.faults.append_fails)) {
      return Status(Code::kResourceExhausted, "no space left on device");
    }
    for (const Record& record : batch) {
      if (record.index != records[record.run].size()) Violation("history has a hole");
      records[record.run].push_back(record);
      if (const auto* formed = std::get_if<GroupFormed>(&record.body))
        CheckGroup(record.run, *formed);
      if (const auto* ended = std::get_if<GroupEnded>(&record.body)) {
        verdict.failed_groups += ended->ok ? 0 : 1;
      }
      if (std::holds_alternative<AdoptOrdered>(record.body)) ++verdict.adoptions;
    }
    return Status::Ok();
  }
  Status SaveSnapshot(RunId run, std::uint64_t index, std::string_view state) override {
    snapshots[run] = {index, std::string(state)};
    return Status::Ok();
  }

  // Transport.
  void Send(const ControllerEnvelope& envelope) override {
    if (const auto* group = std::get_if<Group>(&envelope.body)) {
      if (!recorded_groups.contains(group->id))
        Violation("a group was announced before it was recorded");
    }
    for (auto& worker : workers) {
      if (worker->incarnation() != envelope.incarnation) continue;
      DumbWorker* to = worker.get();
      Post([to, envelope] {
        if (to->alive() && to->incarnation() == envelope.incarnation) to->Receive(envelope);
      });
    }
  }

  void ToController(const WorkerEnvelope& envelope) {
    Post([this, envelope] {
      if (pump == nullptr || stalled || Swallows(scenario.mutation, envelope)) return;
      pump->Receive(now, 0, envelope);
      Pumped();
    });
  }

  // A message on the network.
  void Post(std::function<void()> deliver) {
    const int copies = FaultsOn() && Chance(scenario.faults.loss)        ? 0
                       : FaultsOn() && Chance(scenario.faults.duplicate) ? 2
                                                                         : 1;
    for (int i = 0; i < copies; ++i) {
      After(static_cast<DurationNs>(50'000 + prng_.Below(2 * kMillisecond)), deliver);
    }
  }
  void After(DurationNs delay, std::function<void()> what) {
    queue_.push({now + delay, order_++, std::move(what)});
  }

  bool FaultsOn() const { return now.ns < scenario.faults_until; }
  bool Chance(double p) { return p > 0 && prng_.Unit() < p; }
  std::uint64_t Random() { return prng_.Next() | 1; }
  double Unit() { return prng_.Unit(); }
  void Violation(const std::string& what) {
    verdict.violations.push_back("t=" + std::to_string(static_cast<double>(now.ns) / 1e9) +
                                 " s: " + what);
  }
  DumbWorker* Find(Incarnation incarnation) {
    for (auto& worker : workers) {
      if (worker->alive() && worker->incarnation() == incarnation) return worker.get();
    }
    return nullptr;
  }
  void Pumped() {
    const Status status = pump->Flush();
    stalled = !status.ok();
    if (stalled)
      After(10 * kMillisecond, [this] {
        if (pump != nullptr && stalled) Pumped();
      });
    if (!stalled) Remember();
  }

  const Scenario scenario;
  Instant now;
  std::vector<std::unique_ptr<DumbWorker>> workers;
  std::unique_ptr<Pump> pump;
  bool stalled = false;
  std::map<RunId, std::vector<Record>> records;
  std::map<RunId, std::pair<std::uint64_t, std::string>> snapshots;
  std::set<GroupId> recorded_groups;
  std::map<RunId, std::uint64_t> hashes;  // of the states that the history holds
  Verdict verdict;

 private:
  struct Event {
    Instant at;
    std::uint64_t order;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return std::pair(other.at, other.order) < std::pair(at, order);
    }
  };

  void CheckGroup(RunId, const GroupFormed& formed) {
    recorded_groups.insert(formed.id);
    if (formed.kind == GroupKind::kTrain) ++verdict.groups;
    double sum = formed.initial_weight;
    std::set<Rank> ranks;
    for (const GroupShare& share : formed.members) {
      sum += share.weight;
      if (!(share.weight >= 0)) Violation("a weight below 0");
      ranks.insert(share.rank);
    }
    if (std::abs(sum - 1) > 1e-9) Violation("weights sum to " + std::to_string(sum));
    if (ranks.size() != formed.members.size()) Violation("a group with a member twice");
  }

  JobSpec Spec(const std::string& name) const {
    JobSpec spec;
    spec.name = name;
    spec.engine = scenario.engine;
    spec.workers = scenario.workers;
    spec.lease_ms = 400;
    spec.heartbeat_ms = 100;
    spec.text = "spec";
    spec.make_engine = [this](const EngineOptions& options) {
      return MakeMutant(options, scenario.mutation, scenario.workers);
    };
    return spec;
  }

  void Remember() {
    hashes.clear();
    for (const auto& [run, job] : pump->jobs()) hashes[run] = job->StateHash();
  }

  void StartController() {
    front_ = MakeMutantHistory(scenario.mutation, this);
    RunId first = 1;
    for (const auto& [run, list] : records) first = std::max(first, run + 1);
    pump = std::make_unique<Pump>(
        Pump::Options{.first_run = first, .snapshot_every = 97},
        [this](const std::string& name) -> Result<JobSpec> { return Spec(name); },
        front_ != nullptr ? front_.get() : static_cast<History*>(this), this);
    stalled = false;
    for (const auto& [run, list] : records) {
      std::uint64_t from = 0;
      std::string state;
      // Every other time from the beginning, so that both ways are taken.
      if (snapshots.contains(run) && verdict.restarts % 2 == 0)
        std::tie(from, state) = snapshots[run];
      const Status status =
          pump->Restore(now, run, Spec("sim"), state, from, std::span(list).subspan(from));
      if (!status.ok()) Violation("restore: " + status.ToString());
    }
    for (const auto& [run, job] : pump->jobs()) {
      if (hashes.contains(run) && hashes[run] != job->StateHash()) {
        Violation("the replayed state differs from the one before the crash");
      }
    }
    Pumped();
  }

  void Beat() {  // ticks, restarts, deaths
    if (pump != nullptr && !stalled) {
      pump->Tick(now);
      Pumped();
    }
    if (now.ns % (50 * kMillisecond) == 0 && FaultsOn() && pump != nullptr &&
        Chance(scenario.faults.controller_dies)) {
      verdict.expired += pump->counters().leases_expired;
      pump.reset();  // whatever was not flushed is gone
      ++verdict.restarts;
      After(static_cast<DurationNs>(10 + prng_.Below(300)) * kMillisecond,
            [this] { StartController(); });
    }
    After(5 * kMillisecond, [this] { Beat(); });
  }

  std::priority_queue<Event> queue_;
  std::uint64_t order_ = 0;
  Prng prng_;
  std::unique_ptr<History> front_;  // between the pump and the records, with a bug
};

// ---- the worker ----

void DumbWorker::Begin() {
  alive_ = true;
  incarnation_ = world_->Random();
  link_ = {};
  run_ = kNoRun;
  group_.reset();
  signalled_ = stepping_ = finishing_ = had_final_ = false;
  ++epoch_;
  Push(Hello{.job = "sim",
             .rank = id_,
             .host = "host" + std::to_string(id_ / 2),
             .host_name = "host",
             .endpoints = {"tcp://127.0.0.1:1"},
             .model_bytes = 8,
             .model_hash = 7,
             .iteration = trained_ ? iteration_ : 0});
}

void DumbWorker::Die() {
  alive_ = false;
  ++epoch_;
  model_ = world_->Random();  // a new process has a fresh model
  iteration_ = 0;
  trained_ = false;
  steps_ = 0;
  world_->After(static_cast<DurationNs>(world_->Random() % 2000) * kMillisecond,
                [this] { Begin(); });
}

void DumbWorker::Push(WorkerBody body) { SendEntry(link_.Push(std::move(body))); }

void DumbWorker::SendEntry(const LinkEnd<WorkerBody>::Entry& entry) {
  world_->ToController({.run = run_,
                        .rank = run_ == kNoRun ? kNoRank : rank_,
                        .incarnation = incarnation_,
                        .seq = entry.first,
                        .ack = link_.last_in(),
                        .body = entry.second});
}

void DumbWorker::Retry() {
  if (alive_ && !done_) {
    for (const auto& entry : link_.unacked()) SendEntry(entry);
    if (run_ != kNoRun) {
      world_->ToController({.run = run_,
                            .rank = rank_,
                            .incarnation = incarnation_,
                            .seq = 0,
                            .ack = link_.last_in(),
                            .body = Heartbeat{}});
    }
  }
  world_->After(100 * kMillisecond, [this] { Retry(); });
}

void DumbWorker::Receive(const ControllerEnvelope& envelope) {
  if (done_) return;
  // Until Welcome has come, Hello must go out again whatever else is heard.
  if (run_ == kNoRun && !std::holds_alternative<Welcome>(envelope.body) &&
      !std::holds_alternative<Refused>(envelope.body)) {
    return;
  }
  link_.OnAck(envelope.ack);
  if (const auto* refused = std::get_if<Refused>(&envelope.body)) {
    if (had_final_) {
      done_ = true;
    } else if (refused->code == Code::kAborted) {
      Begin();
    } else if (refused->code != Code::kUnavailable) {
      world_->Violation("refused: " + refused->reason);
    }
    return;
  }
  if (envelope.seq == 0) return;
  if (link_.OnReceive(envelope.seq) == LinkEnd<WorkerBody>::Verdict::kDeliver)
    Deliver(envelope.body);
}

void DumbWorker::Deliver(const ControllerBody& body) {
  if (const auto* welcome = std::get_if<Welcome>(&body)) {
    run_ = welcome->run;
    rank_ = welcome->rank;
    rounds_ = NeedsGradients(welcome->plan);
  }
  if (const auto* group = std::get_if<Group>(&body)) OnGroup(*group);
  if (const auto* abort = std::get_if<Abort>(&body)) {
    if (group_ && group_->id == abort->group) EndGroup(Outcome::kAborted);
  }
  if (const auto* adopt = std::get_if<Adopt>(&body)) OnAdopt(*adopt);
  if (std::holds_alternative<Released>(body)) done_ = true;
}

void DumbWorker::OnGroup(const Group& group) {
  if (group_) world_->Violation("worker " + std::to_string(id_) + " is put into a second group");
  if (group.kind == GroupKind::kTrain && !signalled_) {
    world_->Violation("worker " + std::to_string(id_) + " is put into a group without a signal");
  }
  group_ = group;
  signalled_ = false;
  const std::uint64_t epoch = ++epoch_;
  const bool fails = world_->FaultsOn() && world_->Chance(world_->scenario.faults.reduce_fails);
  world_->After(static_cast<DurationNs>(world_->Random() % (3 * kMillisecond)),
                [this, epoch, fails] {
                  if (epoch != epoch_ || !alive_) return;
                  bool all_there = true;
                  for (const GroupMember& member : group_->members) {
                    all_there = all_there && world_->Find(member.incarnation) != nullptr;
                  }
                  EndGroup(all_there && !fails ? Outcome::kOk : Outcome::kFailed);
                });
}

void DumbWorker::EndGroup(Outcome outcome) {
  const Group group = std::move(*group_);
  group_.reset();
  ++epoch_;
  if (outcome == Outcome::kOk) {
    if (group.kind == GroupKind::kInitial) {
      for (const GroupMember& member : group.members) {
        if (member.weight == 1) model_ = world_->Find(member.incarnation)->model();
      }
    } else if (rounds_ && group.kind == GroupKind::kTrain) {
      model_ = Prng(model_ ^ group.id).Next();  // everyone applies the same mean gradient
    } else if (group.kind == GroupKind::kFinal) {
      model_ = group.id;
      had_final_ = true;
    }
    if (group.iteration < iteration_ && trained_) world_->Violation("an iteration went back");
    iteration_ = group.iteration;
    trained_ = true;
  }
  Push(Finished{.group = group.id, .outcome = outcome, .detail = "simulated"});
  if (group.kind == GroupKind::kFinal) return;
  if (outcome != Outcome::kOk) {
    if (group.kind == GroupKind::kTrain) Signal();
    return;
  }
  if (group.kind == GroupKind::kTrain) {
    ++steps_;
    stepping_ = false;
  }
  Compute();
}

void DumbWorker::Compute() {
  if (steps_ >= world_->scenario.steps) {
    finishing_ = true;
    Push(Finish{});
    return;
  }
  stepping_ = true;
  const double factor =
      (id_ == 0 ? world_->scenario.slow_factor : 1) * (0.9 + 0.2 * world_->Unit());
  const std::uint64_t epoch = ++epoch_;
  world_->After(static_cast<DurationNs>(static_cast<double>(world_->scenario.step_ns) * factor),
                [this, epoch] {
                  if (epoch != epoch_ || !alive_) return;
                  if (world_->FaultsOn() && world_->Chance(world_->scenario.faults.worker_dies)) {
                    Die();
                    return;
                  }
                  Signal();
                });
}

void DumbWorker::Signal() {
  signalled_ = true;
  Push(Ready{.iteration = iteration_ + 1, .step_ns = world_->scenario.step_ns, .samples = 32});
}

void DumbWorker::OnAdopt(const Adopt& adopt) {
  signalled_ = false;
  const std::uint64_t epoch = ++epoch_;
  const Incarnation source = adopt.source.incarnation;
  world_->After(static_cast<DurationNs>(world_->Random() % (20 * kMillisecond)),
                [this, epoch, source] {
                  if (epoch != epoch_ || !alive_) return;
                  const DumbWorker* from = world_->Find(source);
                  if (from == nullptr ||
                      (world_->FaultsOn() && world_->Chance(world_->scenario.faults.fetch_fails))) {
                    Push(Adopted{.ok = false, .detail = "simulated"});
                    // Voids nothing: what waited waits on.
                    if (stepping_ && trained_) {
                      Signal();
                    }
                    return;
                  }
                  model_ = from->model();
                  iteration_ = from->iteration();
                  trained_ = true;
                  const bool final = from->had_final_;
                  Push(Adopted{.ok = true, .iteration = iteration_});
                  if (final && finishing_) {
                    had_final_ = true;
                  } else if (!finishing_) {  // said before the order got here: it counts
                    Compute();
                  }
                });
}

std::string DumbWorker::Where() const {
  return std::to_string(id_) + ": alive " + std::to_string(alive_) + " done " +
         std::to_string(done_) + " run " + std::to_string(run_) + " signalled " +
         std::to_string(signalled_) + " finishing " + std::to_string(finishing_) + " unacked " +
         std::to_string(link_.unacked().size());
}

// ---- the run ----

Verdict World::Run() {
  StartController();
  for (auto& worker : workers) {
    DumbWorker* w = worker.get();
    const DurationNs late =
        Chance(scenario.faults.late) ? static_cast<DurationNs>(prng_.Below(2 * kSecond)) : 0;
    After(late, [w] { w->Begin(); });
    After(static_cast<DurationNs>(prng_.Below(100 * kMillisecond)), [w] { w->Retry(); });
  }
  Beat();
  // A worker that comes (back) after the others are done is in a run of its own, and waits there
  // for a common start: nothing is wrong with that.
  const auto missed = [this](const DumbWorker& worker) {
    return std::any_of(workers.begin(), workers.end(), [&](const auto& other) {
      return other->done() && worker.run() > other->run();
    });
  };
  const auto finished = [&, this] {
    return std::all_of(workers.begin(), workers.end(),
                       [&](const auto& w) { return w->done() || missed(*w); });
  };
  while (!finished() && now.ns < scenario.give_up && verdict.violations.size() < 5) {
    Event event = queue_.top();
    queue_.pop();
    now = event.at;
    event.what();
  }
  verdict.all_finished = finished();
  for (auto& worker : workers) {
    if (worker->done()) verdict.final_models.push_back(worker->model());
  }
  if (!verdict.all_finished && pump != nullptr) {
    for (auto& worker : workers) {
      verdict.stuck += worker->Where();
      const auto job = pump->jobs().find(worker->run());
      if (job != pump->jobs().end())
        verdict.stuck += " | " + job->second->Explain(now, worker->rank());
      verdict.stuck += "\n";
    }
  }
  if (pump != nullptr) verdict.expired += pump->counters().leases_expired;
  for (const auto& [run, list] : records) {
    for (const Record& record : list) {
      std::uint64_t mixed = record.index ^ static_cast<std::uint64_t>(record.now.ns) ^
                            (static_cast<std::uint64_t>(record.body.index()) << 56);
      verdict.hash = Prng(verdict.hash ^ mixed).Next();
    }
  }
  return std::move(verdict);
}

}  // namespace

Verdict RunCluster(const Scenario& scenario) { return World(scenario).Run(); }

}  // namespace prd::sim
