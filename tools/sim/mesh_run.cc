#include "tools/sim/mesh_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "common/base/check.h"
#include "engines/violation.h"
#include "tools/reference/numbers.h"
#include "tools/sim/mesh_world.h"

namespace prd::sim::mesh {

// ---- workers ----

MeshRunResult MeshRun::Run() {
  try {
    Go();
  } catch (const Violation& violation) {
    result_.invariant = violation.invariant();
    result_.what = violation.what();
  }
  for (Worker& worker : workers_) Tally(&worker);
  result_.attacks = network_.attacks();
  result_.frames = network_.frames();
  result_.setting = Text(setting_);
  for (const Worker& worker : workers_) {
    if (worker.mesh == nullptr) continue;
    Settle(worker);
    Hash(Read(worker.store->parameters));
  }
  return result_;
}

void MeshRun::Go() {
  workers_ = std::vector<Worker>(setting_.workers);
  for (std::size_t i = 0; i < setting_.workers; ++i) {
    workers_[i].run = this;
    workers_[i].number = i;
    workers_[i].deadline.emplace(&network_, [this, i] { Wake(&workers_[i]); });
    workers_[i].host = i % setting_.hosts;
    Start(&workers_[i]);
  }
  ScheduleActions();
  while (network_.RunNext(end_of_faults_)) {
  }
  // From here on nothing goes wrong, but what has been begun goes on.
  network_.StopAttacks();
  for (Worker& worker : workers_) {
    if (worker.device != nullptr) worker.device->FailAt(0);
  }
  while (network_.RunNext(end_of_faults_ + kSettles)) {
  }
  CheckAllOver();
  for (Worker& worker : workers_) {
    if (worker.mesh == nullptr) Start(&worker);
    EndApply(&worker);
  }
  last_ = true;
  MakeInitial();
  const auto over = [](const Taking& member) { return member.over; };
  const auto& members = FormedOf(last_group_).members;
  const Instant until = network_.now() + kSettles;
  while (!std::all_of(members.begin(), members.end(), over) && network_.RunNext(until)) {
  }
  for (const Taking& member : FormedOf(last_group_).members) {
    if (member.ok || setting_.early_bytes == 0) continue;  // too little may be kept
    throw Violation("recovers", Name(member.worker) + " has no result of the last group, " +
                                    std::to_string(last_group_));
  }
  CheckAllOver();
}

void MeshRun::Start(Worker* worker) {
  ++worker->life;
  worker->woken = worker->ends = false;
  worker->deadline->Set(std::nullopt);
  worker->incarnation = (++incarnations_ << 8) | worker->number;
  worker->parameters = worker->gradients = worker->kept = {};
  worker->parameters.Make(setting_.shapes);
  worker->gradients.Make(setting_.shapes);
  worker->kept.Make(setting_.kept);
  worker->store = std::make_unique<ReplicaStore>();
  const std::uint64_t life = worker->life;
  worker->device = nullptr;
  if (prng_.Unit() < setting_.devices) UseDevice(worker);
  std::vector<StateTensor> state;
  for (const Tensor& tensor : worker->kept.views) {
    state.push_back({tensor.data, tensor.count, tensor.dtype});
  }
  worker->store->SetTensors(worker->parameters.views, worker->gradients.views, state);
  worker->store->lent = true;
  Refill(&worker->parameters);
  Refill(&worker->kept);
  auto transport = network_.Start(worker->host, [this, worker, life] {
    if (worker->life == life) Wake(worker);
  });
  worker->process = network_.newest();
  Mesh::Options options{.incarnation = worker->incarnation,
                        .host = "h" + std::to_string(worker->host),
                        .keys = KeyPair(worker->number + 16 * (worker->life % 8)),
                        .secret_of = KnownSecret,
                        .chunk_bytes = setting_.chunk_bytes,
                        .direct_bytes = setting_.direct_bytes,
                        .early_bytes = setting_.early_bytes};
  Result<std::unique_ptr<Mesh>> mesh =
      Mesh::Create(std::move(transport), options, worker->store.get(), worker);
  PRD_CHECK(mesh.ok());
  worker->mesh = std::move(*mesh);
  worker->mesh->JoinRun(kRun, setting_.plan, kLease, {.security = setting_.security});
  worker->versions.clear();
  SetVersion(worker);
  Wake(worker);
  for (Worker& other : workers_) {
    if (other.mesh == nullptr || &other == worker) continue;
    Tell(&other, MemberOf(*worker));
    Tell(worker, MemberOf(other));
  }
}

void MeshRun::UseDevice(Worker* worker) {
  const std::uint64_t life = worker->life;
  auto device = std::make_unique<SimDevice>(
      prng_.Next(), SimDevice::Clock{.after =
                                         [this](DurationNs delay, std::function<void()> what) {
                                           After(delay, std::move(what));
                                         },
                                     .wake =
                                         [this, worker, life] {
                                           if (worker->life == life && worker->mesh != nullptr)
                                             Wake(worker);
                                         }});
  worker->device = device.get();
  worker->store->UseMemory(std::move(device));
}

void MeshRun::Tell(Worker* to, const GroupMember& member) {
  const std::uint64_t life = to->life;
  After(DelayNs(3e6), [this, to, life, member] {
    if (to->mesh == nullptr || to->life != life || !Lives(member)) return;
    to->mesh->Announce(network_.now(), {member});
    Meet(to);
  });
}

void MeshRun::Kill(Worker* worker) {
  ++result_.kills;
  Say(Name(worker->number) + " is killed");
  Unlock(worker);
  Tally(worker);
  const bool silent = prng_.Below(3) == 0;
  network_.Kill(worker->process, silent);
  const bool alone =
      setting_.breaks + setting_.cuts + setting_.freezes == 0 && setting_.network.attacks == 0;
  if (worker->reserved && alone && !silent) WatchPrompt(*worker->reserved, worker->number);
  worker->mesh.reset();
  worker->store.reset();
  worker->device = nullptr;
  EndMember(worker);
  worker->reserved.reset();
  worker->reducing = worker->started = worker->applying = false;
  worker->copying.reset();
  worker->sampling.reset();
  worker->pulls.clear();
  worker->published.clear();
  worker->probing.clear();
  worker->inbox.clear();
  Disturb(worker->number, 2 * kLease);
  const Incarnation out = worker->incarnation;
  killed_[out] = network_.now();
  for (Worker& other : workers_) {
    const std::uint64_t life = other.life;
    if (other.mesh == nullptr) continue;
    After(DelayNs(6e8), [this, &other, life, out] {
      if (other.mesh == nullptr || other.life != life) return;
      other.mesh->ForgetMembers(network_.now(), {out});
      Meet(&other);
    });
  }
  After(DelayNs(1.5e9), [this, worker] {
    if (worker->mesh == nullptr) Start(worker);
  });
}

// Its device has failed, which its session is about to see. What it has said meanwhile is sent.
void MeshRun::EndSoon(Worker* worker) {
  ++result_.failed_devices;
  Say("the device of " + Name(worker->number) + " has failed");
  worker->ends = true;
  const std::uint64_t life = worker->life;
  After(DelayNs(2e7), [this, worker, life] {
    if (worker->life == life) Kill(worker);
  });
}

void MeshRun::WatchPrompt(GroupId id, std::size_t killed) {
  const Formed& formed = FormedOf(id);
  // A member that gave up in silence keeps the others waiting, whoever dies.
  const bool all =
      std::all_of(formed.members.begin(), formed.members.end(),
                  [](const Taking& each) { return each.begun && (each.ok || !each.over); });
  if (!all || (AveragesInBackground(setting_.plan) && formed.group.kind == GroupKind::kTrain)) {
    return;
  }
  After(kLease / 2, [this, id, killed] {
    for (const Taking& member : FormedOf(id).members) {
      const Worker& other = workers_[member.worker];
      if (member.over || other.life != member.life || member.worker == killed) continue;
      throw Violation("prompt", Name(member.worker) + " is in group " + std::to_string(id) +
                                    " half a lease after the end of " + Name(killed));
    }
  });
}

void MeshRun::Meet(Worker* worker) {
  SetPeers peers;
  for (const Worker& other : workers_) {
    if (other.mesh != nullptr && &other != worker) peers.peers.push_back(MemberOf(other));
  }
  if (HasNeighbours(setting_.plan)) worker->mesh->Do(network_.now(), peers);
  Wake(worker);
}

void MeshRun::Tally(Worker* worker) {
  if (worker->mesh == nullptr) return;
  result_.resumed += worker->mesh->resumed();
  const std::uint64_t forged = worker->mesh->counters().forged;
  result_.forged += forged;
}

GroupMember MeshRun::MemberOf(const Worker& worker) const {
  return {.rank = static_cast<Rank>(worker.number),
          .incarnation = worker.incarnation,
          .weight = 0,
          .host = "h" + std::to_string(worker.host),
          .endpoints = worker.mesh->endpoints(),
          .mesh_key = worker.mesh->key()};
}

bool MeshRun::Lives(const GroupMember& member) const {
  const Worker& worker = workers_[static_cast<std::size_t>(member.rank)];
  return worker.mesh != nullptr && worker.incarnation == member.incarnation;
}

Worker* MeshRun::Find(Incarnation incarnation) {
  Worker& worker = workers_[incarnation & 0xff];
  return worker.mesh != nullptr && worker.incarnation == incarnation ? &worker : nullptr;
}

// ---- time ----

void MeshRun::Wake(Worker* worker) {
  if (std::exchange(worker->woken, true)) return;
  const std::uint64_t life = worker->life;
  After(1 + DelayNs(2e4), [this, worker, life] {
    if (worker->life == life) Serve(worker);
  });
}

void MeshRun::Serve(Worker* worker) {
  worker->woken = false;
  if (worker->mesh == nullptr || worker->ends) return;
  if (worker->frozen_until > network_.now()) {
    return network_.At(worker->frozen_until, [this, worker] { Wake(worker); });
  }
  NoteVirtual(worker);
  MayFail(*worker, true);
  worker->mesh->Service(network_.now());
  MayFail(*worker, false);
  if (Failed(*worker)) return EndSoon(worker);
  if (network_.intruders() != 0) throw Violation("let-in", "somebody without a key is let in");
  const std::uint64_t forged = worker->mesh->counters().forged;
  if (forged != network_.tampered(worker->process)) {
    throw Violation("let-in", Name(worker->number) + " has counted " + std::to_string(forged) +
                                  " forged frames where " +
                                  std::to_string(network_.tampered(worker->process)) + " are");
  }
  const std::size_t kept = worker->mesh->early_bytes();
  if (kept > std::max(setting_.early_bytes, 2 * worker->store->LongestRow())) {
    throw Violation("bounded", Name(worker->number) + " keeps " + std::to_string(kept) +
                                   " bytes of frames that came early");
  }
  worker->deadline->Set(worker->mesh->NextDeadline());
}

// ---- what goes wrong ----

void MeshRun::Disturb(std::size_t a, std::size_t b, DurationNs time) {
  Instant& until = disturbed_[std::minmax(a, b)];
  until = std::max(until, network_.now() + time + 2 * kLease);
}

Worker* MeshRun::Any() {
  Worker& worker = workers_[prng_.Below(workers_.size())];
  return worker.mesh != nullptr && !Failed(worker) ? &worker : nullptr;
}

void MeshRun::DoFault() {
  const double all = setting_.breaks + setting_.cuts + setting_.kills + setting_.freezes;
  double drawn = prng_.Unit() * all;
  Worker* a = Any();
  Worker* b = Any();
  if (a == nullptr || b == nullptr || a == b) return;
  if ((drawn -= setting_.breaks) < 0) {
    ++result_.breaks;
    Say("the links from " + Name(a->number) + " to " + Name(b->number) + " break");
    Disturb(a->number, b->number, 0);
    return network_.Break(a->process, b->process);
  }
  if ((drawn -= setting_.cuts) < 0) {
    ++result_.cuts;
    const DurationNs time = DelayNs(prng_.Below(3) == 0 ? 3e9 : 2e8);
    Say("nothing gets from " + Name(a->number) + " to " + Name(b->number) + " for " +
        std::to_string(time / kMillisecond) + " ms");
    Disturb(a->number, b->number, time);
    network_.Cut(a->process, b->process, time);
    if (prng_.Below(2) == 0) network_.Cut(b->process, a->process, time);
    return;
  }
  if ((drawn -= setting_.kills) < 0) {
    if (a->device != nullptr && prng_.Below(2) == 0) return a->device->FailAt(1 + prng_.Below(12));
    return Kill(a);
  }
  const DurationNs time = DelayNs(2e9);
  Say(Name(a->number) + " stands still for " + std::to_string(time / kMillisecond) + " ms");
  Disturb(a->number, time);
  a->frozen_until = network_.now() + time;
}

void MeshRun::ScheduleFaults() {
  const double all = setting_.breaks + setting_.cuts + setting_.kills + setting_.freezes;
  if (all == 0) return;
  After(static_cast<DurationNs>(-std::log(1 - prng_.Unit()) / all * 1e9), [this] {
    if (!FaultsOn()) return;
    DoFault();
    ScheduleFaults();
  });
}

// ---- what is done ----

void MeshRun::ScheduleActions() {
  MakeInitial();
  ScheduleFaults();
  Act();
}

void MeshRun::Act() {
  After(DelayNs(2e7), [this] {
    if (!FaultsOn()) return;
    DoSomething();
    Act();
  });
}

void MeshRun::DoSomething() {
  if (setting_.intrudes && prng_.Below(20) == 0) {
    Worker* at = Any();
    if (at != nullptr) network_.Intrude(at->process);
  }
  Worker* worker = Any();
  if (worker == nullptr) return;
  if (!worker->started) {
    const bool any = std::any_of(workers_.begin(), workers_.end(), [](const Worker& each) {
      return each.mesh != nullptr && each.started;
    });
    if (!any) return MakeInitial();
    return Fetch(worker);
  }
  switch (prng_.Below(8)) {
    case 0:
    case 1:
    case 2:
      return TrainsInGroups(setting_.plan) ? MakeGroup() : Exchange(worker);
    case 3:
      return Sample(worker);
    case 4:
      return Probe(worker);
    case 5:
      return Fetch(worker);
    default:
      return BeginApply(worker);
  }
}

void MeshRun::Refill(Tensors* tensors, std::size_t from, std::size_t to) {
  to = std::min(to, tensors->views.size());
  for (std::size_t i = from; i < to; ++i) {
    const Tensor& tensor = tensors->views[i];
    const std::size_t size = DTypeSize(tensor.dtype);
    for (std::size_t j = 0; j < tensor.count; ++j) {
      reference::Encode(tensor.dtype, static_cast<int>(prng_.Below(17)) - 8,
                        static_cast<std::byte*>(tensor.data) + j * size);
    }
  }
}

// A call ends: its changes are others from now on.
void MeshRun::ForgetChanges(Worker* worker) {
  if (!TrainsInGroups(setting_.plan) || !RowsOf(setting_.plan).base) return;
  worker->store->averaged_cells.clear();
  worker->offered_to = kNoGroup;
}

void MeshRun::BeginApply(Worker* worker) {
  if (worker->applying || (worker->reducing && InPlace()) || Failed(*worker)) return;
  // Its caller waits for a start, or a copy.
  if (worker->reducing && FormedOf(*worker->reserved).group.kind == GroupKind::kInitial) return;
  if (worker->copying && worker->copying->in_place) return;
  worker->store->mutex.lock();
  worker->applying = true;
  worker->store->BeforeApply();
  ForgetChanges(worker);
  if (AveragesInBackground(setting_.plan)) {
    worker->store->AddInbox();
    worker->inbox.clear();
  }
  Settle(*worker);
  Refill(&worker->parameters, 0, (worker->parameters.views.size() + 1) / 2);
  const std::uint64_t life = worker->life;
  After(DelayNs(5e6), [this, worker, life] {
    if (worker->life == life) EndApply(worker);
  });
}

void MeshRun::EndApply(Worker* worker) {
  if (!worker->applying || Failed(*worker)) return;
  Settle(*worker);
  Refill(&worker->parameters, (worker->parameters.views.size() + 1) / 2);
  Refill(&worker->kept);
  ++worker->store->iteration;
  SetVersion(worker);
  Unlock(worker);
  Wake(worker);
}

// ---- the end ----

void MeshRun::CheckAllOver() {
  for (const Worker& worker : workers_) {
    if (worker.mesh == nullptr) continue;
    const std::string who = Name(worker.number);
    if (worker.reducing) {
      throw Violation("hang", who + " is in group " + std::to_string(*worker.reserved) + " still");
    }
    if (worker.copying) throw Violation("hang", who + " is copying still");
    if (worker.sampling) throw Violation("hang", who + " is sampling still");
    for (const auto& [ticket, pull] : worker.pulls) {
      throw Violation("hang", who + " waits for pull " + std::to_string(ticket) + " still");
    }
    for (const Incarnation asked : worker.probing) {
      const Worker& other = workers_[asked & 0xff];
      if (other.mesh == nullptr || other.incarnation != asked) continue;
      if (setting_.network.attacks > 0) continue;
      throw Violation("hang", who + " has no answer of " + Name(other.number));
    }
  }
}

void MeshRun::Hash(const Bytes& bytes) {
  for (const std::byte byte : bytes) {
    result_.hash = (result_.hash ^ static_cast<std::uint64_t>(byte)) * 1099511628211u;
  }
}

void MeshRun::Say(const std::string& what) const {
  if (!options_.trace) return;
  char time[32];
  std::snprintf(time, sizeof time, "%9.3f ms  ",
                static_cast<double>(network_.now().ns - kSecond) / 1e6);
  options_.trace(time + what);
}

void Worker::OnReduced(GroupId group, const Status& status, std::uint64_t,
                       const std::vector<Rank>& unreachable, std::uint64_t) {
  run->OnReduced(this, group, status, unreachable);
}
void Worker::OnFetched(const Status& status, Iteration iteration) {
  run->OnFetched(this, status, iteration);
}
void Worker::OnSampled(const Status& status, const std::shared_ptr<Buffer>& row) {
  run->OnSampled(this, status, row);
}
void Worker::OnIntruder(const std::string& what) {
  run->Say(MeshRun::Name(number) + " is told: " + what);
}
void Worker::OnProbed(Rank rank, Incarnation of) { run->OnProbed(this, rank, of); }
void Worker::OnRequest(Incarnation from, Request request, const PeerItem& parcel) {
  run->OnRequest(this, from, request, parcel);
}
void Worker::OnPulled(Ticket ticket, const Status& status, const ShardHeader& header) {
  run->OnPulled(this, ticket, status, header);
}

}  // namespace prd::sim::mesh

namespace prd::sim {

MeshRunResult RunMeshes(const MeshRunOptions& options) { return mesh::MeshRun(options).Run(); }

}  // namespace prd::sim
