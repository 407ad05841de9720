#include "tools/sim/mesh_run.h"

#include <algorithm>

#include "common/base/check.h"
#include "engines/violation.h"
#include "tools/sim/mesh_copies.h"
#include "tools/sim/mesh_faults.h"
#include "tools/sim/mesh_group_laws.h"
#include "tools/sim/mesh_groups.h"
#include "tools/sim/mesh_pulls.h"
#include "tools/sim/mesh_questions.h"
#include "tools/sim/mesh_world.h"

namespace prd::sim::mesh {
namespace {

constexpr DurationNs kSettles = 12 * kSecond;  // after the faults
constexpr RunId kRun = 7;

// One run: workers and their processes, and what they are to do. Everything that a worker's mesh
// says comes to the run's parts, which do what a controller, a training loop and faults would do.
class MeshRun {
 public:
  explicit MeshRun(const MeshRunOptions& options)
      : world_(options),
        faults_(&world_, [this](Worker* worker) { Kill(worker); }),
        laws_(&world_),
        groups_(&world_, &faults_, &laws_, &copies_, &pulls_),
        copies_(&world_, &groups_, &pulls_),
        pulls_(&world_, &copies_),
        questions_(&world_) {
    world_.serve = [this](Worker* worker) { Serve(worker); };
    world_.apply = [this](Worker* worker) { BeginApply(worker); };
  }
  MeshRunResult Run();

 private:
  struct Listener;

  void Go();
  void Start(Worker* worker);
  void Serve(Worker* worker);
  // The controller's word, which takes its time.
  void Tell(Worker* to, const GroupMember& member);
  void Kill(Worker* worker);
  void EndSoon(Worker* worker);
  // All are neighbours.
  void Meet(Worker* worker);
  void Tally(const Worker& worker);
  // A common start, and what is done about a replica that nobody can want.
  void StartAll();
  void Act();
  void DoSomething();
  void BeginApply(Worker* worker);
  void CheckAllOver() const;

  MeshWorld world_;
  MeshFaults faults_;
  MeshGroupLaws laws_;
  MeshGroups groups_;
  MeshCopies copies_;
  MeshPulls pulls_;
  MeshQuestions questions_;
  Incarnation incarnations_ = 0;
};

// What one worker's mesh says.
struct MeshRun::Listener final : public MeshEvents {
  Listener(MeshRun* the_run, Worker* of) : run(the_run), worker(of) {}

  void OnReduced(GroupId group, const Status& status, std::uint64_t,
                 const std::vector<Rank>& unreachable, std::uint64_t) override {
    run->groups_.OnReduced(worker, group, status, unreachable);
  }
  void OnFetched(const Status& status, Iteration iteration) override {
    run->copies_.OnFetched(worker, status, iteration);
  }
  void OnSampled(const Status& status, const std::shared_ptr<Buffer>& row) override {
    run->copies_.OnSampled(*worker, status, row);
  }
  void OnProbed(Rank rank, Incarnation of) override { run->questions_.OnProbed(*worker, rank, of); }
  void OnRequest(Incarnation, Request request, const PeerItem& parcel) override {
    run->pulls_.OnRequest(worker, request, parcel);
  }
  void OnPulled(Ticket ticket, const Status& status, const ShardHeader& header) override {
    run->pulls_.OnPulled(worker, ticket, status, header);
  }
  void OnIntruder(const std::string& what) override {
    run->world_.Say(WorkerName(worker->number) + " is told: " + what);
  }

  MeshRun* run;
  Worker* worker;
};

// ---- the run ----

MeshRunResult MeshRun::Run() {
  MeshRunResult& result = world_.result;
  try {
    Go();
  } catch (const Violation& violation) {
    result.invariant = violation.invariant();
    result.what = violation.what();
  }
  for (const Worker& worker : world_.workers) Tally(worker);
  result.attacks = world_.network.attacks();
  result.frames = world_.network.frames();
  result.setting = Text(world_.setting);
  for (const Worker& worker : world_.workers) {
    if (worker.mesh == nullptr) continue;
    worker.replica.Settle();
    world_.Hash(Read(worker.replica.store()->parameters));
  }
  return result;
}

void MeshRun::Go() {
  world_.workers = std::vector<Worker>(world_.setting.workers);
  for (std::uint32_t i = 0; i < world_.workers.size(); ++i) {
    Worker* worker = &world_.workers[i];
    worker->number = i;
    worker->events = std::make_unique<Listener>(this, worker);
    worker->deadline.emplace(&world_.network, [this, worker] { world_.Wake(worker); });
    worker->host = i % world_.setting.hosts;
    Start(worker);
  }
  StartAll();
  faults_.Schedule();
  Act();
  while (world_.network.RunNext(faults_.end())) {
  }
  // From here on nothing goes wrong, but what has been begun goes on.
  world_.network.StopAttacks();
  for (const Worker& worker : world_.workers) worker.replica.FailAt(0);
  while (world_.network.RunNext(faults_.end() + kSettles)) {
  }
  CheckAllOver();
  for (Worker& worker : world_.workers) {
    if (worker.mesh == nullptr) Start(&worker);
    world_.EndApply(&worker);
  }
  world_.last = true;
  StartAll();
  const Instant until = world_.now() + kSettles;
  while (!groups_.LastIsOver() && world_.network.RunNext(until)) {
  }
  groups_.CheckLast();
  CheckAllOver();
}

void MeshRun::CheckAllOver() const {
  for (const Worker& worker : world_.workers) {
    if (worker.mesh == nullptr) continue;
    groups_.CheckOver(worker);
    copies_.CheckOver(worker);
    pulls_.CheckOver(worker);
    questions_.CheckOver(worker);
  }
}

// ---- processes ----

void MeshRun::Start(Worker* worker) {
  const Setting& setting = world_.setting;
  const std::uint64_t life = ++worker->life;
  const auto wake = [this, worker, life] {
    if (worker->life == life) world_.Wake(worker);
  };
  worker->woken = worker->ends = false;
  worker->deadline->Set(std::nullopt);
  worker->incarnation = (++incarnations_ << 8) | worker->number;
  worker->replica.Make(
      setting,
      {.after = [this](DurationNs delay,
                       std::function<void()> what) { world_.After(delay, std::move(what)); },
       .wake =
           [worker, wake] {
             if (worker->mesh != nullptr) wake();
           }},
      &world_.prng);
  auto transport = world_.network.Start(worker->host, wake);
  worker->process = world_.network.newest();
  Mesh::Options options{.incarnation = worker->incarnation,
                        .host = "h" + std::to_string(worker->host),
                        .keys = KeyPair(worker->number + 16 * (worker->life % 8)),
                        .secret_of = KnownSecret,
                        .chunk_bytes = setting.chunk_bytes,
                        .direct_bytes = setting.direct_bytes,
                        .probe_bytes = 8 * setting.chunk_bytes,
                        .early_bytes = setting.early_bytes};
  Result<std::unique_ptr<Mesh>> mesh =
      Mesh::Create(std::move(transport), options, worker->replica.store(), worker->events.get());
  PRD_CHECK(mesh.ok());
  worker->mesh = std::move(*mesh);
  worker->mesh->JoinRun(kRun, setting.plan, kLease, {.security = setting.security});
  world_.SetVersion(worker);
  world_.Wake(worker);
  for (Worker& other : world_.workers) {
    if (other.mesh == nullptr || &other == worker) continue;
    Tell(&other, world_.MemberOf(*worker));
    Tell(worker, world_.MemberOf(other));
  }
}

void MeshRun::Tell(Worker* to, const GroupMember& member) {
  world_.After(world_.DelayNs(3e6), [this, to, life = to->life, member] {
    if (!to->Is(life) || !world_.Lives(member)) return;
    to->mesh->Announce(world_.now(), {member});
    Meet(to);
  });
}

void MeshRun::Meet(Worker* worker) {
  SetPeers peers;
  for (const Worker& other : world_.workers) {
    if (other.mesh != nullptr && &other != worker) peers.peers.push_back(world_.MemberOf(other));
  }
  if (HasNeighbours(world_.setting.plan)) worker->mesh->Do(world_.now(), peers);
  world_.Wake(worker);
}

void MeshRun::Serve(Worker* worker) {
  worker->woken = false;
  if (worker->mesh == nullptr || worker->ends) return;
  if (worker->frozen_until > world_.now()) {
    return world_.network.At(worker->frozen_until, [this, worker] { world_.Wake(worker); });
  }
  const MeshReplica& replica = worker->replica;
  groups_.NoteVirtual(*worker);
  replica.MayFail(true);
  worker->mesh->Service(world_.now());
  replica.MayFail(false);
  if (replica.Failed()) return EndSoon(worker);
  if (world_.network.intruders() != 0) {
    throw Violation("let-in", "somebody without a key is let in");
  }
  const std::uint64_t forged = worker->mesh->counters().forged;
  const std::uint64_t tampered = world_.network.tampered(worker->process);
  if (forged != tampered) {
    throw Violation("let-in", WorkerName(worker->number) + " has counted " +
                                  std::to_string(forged) + " forged frames where " +
                                  std::to_string(tampered) + " are");
  }
  const std::size_t kept = worker->mesh->counters().early_bytes;
  if (kept > std::max(world_.setting.early_bytes, 2 * replica.store()->LongestRow())) {
    throw Violation("bounded", WorkerName(worker->number) + " keeps " + std::to_string(kept) +
                                   " bytes of frames that came early");
  }
  worker->deadline->Set(worker->mesh->NextDeadline());
}

void MeshRun::Tally(const Worker& worker) {
  if (worker.mesh == nullptr) return;
  world_.result.resumed += worker.mesh->counters().resumed;
  world_.result.forged += worker.mesh->counters().forged;
}

void MeshRun::Kill(Worker* worker) {
  ++world_.result.kills;
  world_.Say(WorkerName(worker->number) + " is killed");
  worker->replica.Unlock();
  Tally(*worker);
  const bool silent = world_.prng.Below(3) == 0;
  world_.network.Kill(worker->process, silent);
  if (!silent && faults_.KillsAlone()) groups_.WatchPrompt(*worker);
  worker->mesh.reset();
  worker->replica.Drop();
  worker->started = false;
  laws_.EmptyInbox(*worker);
  groups_.Ended(*worker);
  copies_.Ended(*worker);
  pulls_.Ended(*worker);
  questions_.Ended(*worker);
  faults_.Disturb(worker->number, 2 * kLease);
  for (Worker& other : world_.workers) {
    if (other.mesh == nullptr) continue;
    world_.After(world_.DelayNs(6e8), [this, &other, life = other.life, out = worker->incarnation] {
      if (!other.Is(life)) return;
      other.mesh->ForgetMembers(world_.now(), {out});
      Meet(&other);
    });
  }
  world_.After(world_.DelayNs(1.5e9), [this, worker] {
    if (worker->mesh == nullptr) Start(worker);
  });
}

// Its device has failed, which its session is about to see. What it has said meanwhile is sent.
void MeshRun::EndSoon(Worker* worker) {
  ++world_.result.failed_devices;
  world_.Say("the device of " + WorkerName(worker->number) + " has failed");
  worker->ends = true;
  world_.After(world_.DelayNs(2e7), [this, worker, life = worker->life] {
    if (worker->life == life) Kill(worker);
  });
}

// ---- what is done ----

void MeshRun::StartAll() {
  if (Worker* torn = groups_.MakeInitial()) Kill(torn);
}

void MeshRun::Act() {
  world_.After(world_.DelayNs(2e7), [this] {
    if (!faults_.On()) return;
    DoSomething();
    Act();
  });
}

void MeshRun::DoSomething() {
  if (world_.setting.intrudes && world_.prng.Below(20) == 0) {
    if (const Worker* at = world_.Any()) world_.network.Intrude(at->process);
  }
  Worker* worker = world_.Any();
  if (worker == nullptr) return;
  if (!worker->started) {
    const bool any =
        std::any_of(world_.workers.begin(), world_.workers.end(),
                    [](const Worker& each) { return each.mesh != nullptr && each.started; });
    return any ? copies_.Fetch(worker) : StartAll();
  }
  switch (world_.prng.Below(8)) {
    case 0:
    case 1:
    case 2:
      return TrainsInGroups(world_.setting.plan) ? groups_.MakeGroup() : pulls_.Exchange(worker);
    case 3:
      return copies_.Sample(worker);
    case 4:
      return questions_.Ask(worker);
    case 5:
      return copies_.Fetch(worker);
    default:
      return BeginApply(worker);
  }
}

// The caller's `apply`, which takes a while.
void MeshRun::BeginApply(Worker* worker) {
  MeshReplica& replica = worker->replica;
  if (replica.applying() || replica.Failed() || groups_.KeepsFromApply(*worker) ||
      copies_.CopiesInPlace(*worker)) {
    return;
  }
  replica.Lock();
  replica.store()->BeforeApply();
  groups_.ForgetChanges(*worker);
  if (AveragesInBackground(world_.setting.plan)) {
    if (replica.store()->AddInbox()) laws_.EmptyInbox(*worker);
  }
  replica.ApplyHalf(&world_.prng);
  world_.After(world_.DelayNs(5e6), [this, worker, life = worker->life] {
    if (worker->life == life) world_.EndApply(worker);
  });
}

}  // namespace
}  // namespace prd::sim::mesh

namespace prd::sim {

MeshRunResult RunMeshes(const MeshRunOptions& options) { return mesh::MeshRun(options).Run(); }

}  // namespace prd::sim
