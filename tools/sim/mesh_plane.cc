#include "tools/sim/mesh_plane.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "engines/violation.h"
#include "tools/sim/copy_book.h"
#include "tools/sim/group_book.h"
#include "tools/sim/item_book.h"
#include "tools/sim/mass_book.h"
#include "tools/sim/mesh_values.h"
#include "tools/sim/names.h"
#include "tools/sim/network.h"
#include "tools/sim/node_replica.h"
#include "tools/sim/replica_book.h"
#include "tools/sim/sim_device.h"
#include "tools/sim/sim_worker.h"
#include "worker/mesh/mesh.h"

namespace prd::sim {
namespace {

constexpr std::uint64_t kOwnSequence = 0x6d657368u;

// The network's time begins later: Instant{0} is a mesh's "at once".
Instant NetworkTime(Instant at) { return at + kSecond; }

NetworkOptions DrawNetwork(const Workload& workload, Prng* prng) {
  NetworkOptions network;
  network.latency = FromUs(workload.reduce.latency_us) + 1;
  network.jitter = static_cast<DurationNs>(prng->Below(400'000));
  network.bytes_per_s = std::pow(10, 5.5 + 3 * prng->Unit());
  network.uplink_bytes_per_s = std::pow(10, 5.5 + 3 * prng->Unit());
  const bool attacked = workload.job.mesh_security == MeshSecurity::kAead && prng->Below(2) == 0;
  if (attacked && workload.faults.until_ms > 0) network.attacks = 0.02 * prng->Unit();
  return network;
}

// The share of the workers whose replicas are on one.
double DrawDevices(std::uint64_t seed) {
  Prng prng(seed ^ kOwnSequence);
  (void)prng.Next();
  return prng.Below(4) != 0 ? 0 : prng.Below(2) == 0 ? 1 : 0.5;
}

class MeshPlane;

struct Node final : public MeshEvents {
  MeshPlane* plane = nullptr;
  std::uint32_t worker = 0;
  std::uint64_t life = 0;
  bool accumulates = false;
  NodeReplica replica;
  std::unique_ptr<Mesh> mesh;  // null: it has ended
  SimNetwork::Process process = 0;
  bool woken = false;
  std::optional<Alarm> deadline;             // of its mesh
  std::uint64_t turns = 0;                   // of its meshes
  std::vector<std::function<void()>> heard;  // from the mesh, to be told to the core
  std::optional<Group> group;                // that is reduced,
  Reduced what;
  Plan plan;  // of its run, as it was told
  bool fetching = false, sampling = false;

  void OnReduced(GroupId group, const Status& status, std::uint64_t sent,
                 const std::vector<Rank>& unreachable, std::uint64_t digest) override;
  void OnFetched(const Status& status, Iteration iteration) override;
  void OnSampled(const Status& status, const std::shared_ptr<Buffer>& row) override;
  void OnProbed(Rank rank, Incarnation of) override;
  void OnNote(Incarnation from, const PeerMessage& note) override;
  void OnRequest(Incarnation from, Request request, const PeerItem& item) override;
  void OnPulled(Ticket ticket, const Status& status, const ShardHeader& header) override;
  void OnOutOfReach(Rank rank) override;
};

class MeshPlane final : public Plane {
 public:
  MeshPlane(World* world, std::vector<SimWorker>* workers,
            std::function<void(const std::string&)> trace,
            std::pair<std::uint32_t, std::uint64_t> kill = {0, 0})
      : world_(world),
        workers_(workers),
        trace_(std::move(trace)),
        kill_(kill),
        prng_(Prng(world->seed ^ kOwnSequence).Next()),
        network_(prng_.Next(), DrawNetwork(world->workload, &prng_),
                 [world](Instant now) { world->now = Instant{now.ns - kSecond}; }),
        chunk_bytes_(std::size_t{8} << prng_.Below(5)),
        direct_bytes_(prng_.Below(2) == 0 ? 0 : 1 << 16),
        devices_(DrawDevices(world->seed)),
        nodes_(workers->size()),
        masses_(workers->size()),
        copies_(workers->size()),
        groups_(workers->size()),
        items_(workers->size()) {
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i].plane = this;
      nodes_[i].worker = i;
      nodes_[i].deadline.emplace(&network_, [this, i] { Wake(&nodes_[i]); });
    }
    network_.At(NetworkTime(Instant{FromMs(world->workload.faults.until_ms)}),
                [this] { network_.StopAttacks(); });
  }

  bool RunNext(Instant until) override { return network_.RunNext(NetworkTime(until)); }

  void Start(std::uint32_t worker, Incarnation incarnation, bool accumulates) override;
  void End(std::uint32_t worker, bool killed) override;
  std::vector<std::string> Endpoints(std::uint32_t worker) const override {
    return nodes_[worker].mesh->endpoints();
  }
  MeshKey Key(std::uint32_t worker) const override { return nodes_[worker].mesh->key(); }

  bool Torn(std::uint32_t worker) const override { return nodes_[worker].replica.store()->torn; }
  std::uint64_t Mark(std::uint32_t worker) const override {
    return Replica{.x = world_->replicas[worker].x}.Digest();
  }

  void Enter(std::uint32_t worker, PlaneCall call) override;
  void Ask(std::uint32_t worker) override;
  void Leave(std::uint32_t worker, bool pauses) override;
  StepReplica* Lent(std::uint32_t worker) override { return &nodes_[worker].replica; }
  void BeforeApply(std::uint32_t worker) override {
    nodes_[worker].replica.store()->BeforeApply();
    nodes_[worker].replica.Settle();
  }
  void AfterApply(std::uint32_t worker, Iteration iteration, bool group) override;
  void Perform(std::uint32_t worker, const Action& action) override;
  void Flip(std::uint32_t worker) override;
  void Agree(std::uint32_t worker, RunId run, GroupId group, bool kept) override;
  void Cut(std::uint32_t from, std::uint32_t to, Instant until) override;
  void CutLarge(std::uint32_t from, std::uint32_t to, Instant until) override;

 private:
  friend struct Node;

  Instant Now() const { return network_.now(); }
  void After(DurationNs delay, std::function<void()> what) {
    network_.At(Now() + delay, std::move(what));
  }
  void Wake(Node* node);
  void Serve(Node* node);
  void Hear(Node* node, std::function<void()> what) { node->heard.push_back(std::move(what)); }
  // A method of the core is called, with what it takes between the time and its actions.
  template <typename Method, typename... Args>
  void Tell(Node* node, Method method, const Args&... args) {
    Hear(node, [=, this] {
      (*workers_)[node->worker].Hear([&](SessionCore* core, Instant now, Actions* out) {
        (core->*method)(now, args..., out);
      });
    });
  }
  std::unique_ptr<SimDevice> MakeDevice(Node* node);
  void Join(Node* node, const Welcome& welcome);
  // The worker has begun nothing, as far as is known.
  void Clear(Node* node) {
    node->group.reset();
    node->fetching = node->sampling = false;
    node->heard.clear();
    copies_.Clear(node->worker);
    groups_.Clear(node->worker);
    items_.Clear(node->worker);
  }
  void Exchange(Node* node, const Action& action);
  void Reduce(Node* node, const StartReduce& start);
  void Reduced(Node* node, GroupId group, const Status& status, std::uint64_t sent,
               const std::vector<Rank>& unreachable, std::uint64_t digest);
  void Copy(std::uint32_t worker, CopyBook::Kind kind, const GroupMember& source);
  void MayBreak(double probability, std::uint32_t a, std::uint32_t b);
  void CheckMass(const Node& node);
  static void CheckHonest(const Node& node, const Status& status);
  // The worker ends `what`, which it has begun, or not.
  static void CheckStarted(const Node& node, bool begun, const std::string& what);
  void Say(const Node& node, const std::string& what) const;

  World* world_;
  std::vector<SimWorker>* workers_;
  const std::function<void(const std::string&)> trace_;
  const std::pair<std::uint32_t, std::uint64_t> kill_;  // the worker, at this turn of its mesh
  Prng prng_;
  SimNetwork network_;
  const std::size_t chunk_bytes_;
  const std::size_t direct_bytes_;
  const double devices_;  // of the workers, so many train on one
  std::vector<Node> nodes_;
  std::size_t processes_ = 0;
  MassBook masses_;
  CopyBook copies_;
  GroupBook groups_;
  ItemBook items_;
  std::map<std::pair<RunId, GroupId>, std::uint64_t> digests_;
};

// ---- time ----

void MeshPlane::Wake(Node* node) {
  if (node->mesh == nullptr || std::exchange(node->woken, true)) return;
  After(1 + static_cast<DurationNs>(prng_.Below(20'000)), [node, life = node->life] {
    if (node->life == life) node->plane->Serve(node);
  });
}

void MeshPlane::Serve(Node* node) {
  node->woken = false;
  if (node->mesh == nullptr) return;
  const std::uint64_t life = node->life;
  if (world_->Frozen(node->worker)) {
    return After(world_->frozen_until[node->worker] - world_->now, [this, node, life] {
      if (node->life == life) Wake(node);
    });
  }
  SimWorker& worker = (*workers_)[node->worker];
  if (std::pair(node->worker, ++node->turns) == kill_ &&
      worker.phase() != SimWorker::Phase::kDone) {
    return worker.Kill();
  }
  node->replica.Settle();
  if (node->group && node->what.landing == Landing::kInbox) {
    std::vector<double> parameters = node->replica.Parameters();
    if (node->replica.store()->fold.open) {
      masses_.Changes(node->worker, std::move(parameters));
    } else {
      masses_.Holds(node->worker, node->replica.Held(), std::move(parameters));
    }
  }
  groups_.GoesOn(node->worker, *node->replica.store());
  copies_.Is(node->worker, *node->replica.store());
  node->mesh->Service(Now());
  node->replica.Settle();
  copies_.Is(node->worker, *node->replica.store());
  Replica& own = world_->replicas[node->worker];
  own.iteration = node->replica.store()->iteration;
  for (const std::function<void()>& tell : std::exchange(node->heard, {})) {
    if (node->life == life && node->mesh != nullptr) tell();
  }
  if (node->life != life || node->mesh == nullptr) return;
  node->deadline->Set(node->mesh->NextDeadline());
}

// ---- processes ----

void MeshPlane::Start(std::uint32_t worker, Incarnation incarnation, bool accumulates) {
  Node& node = nodes_[worker];
  Replica& own = world_->replicas[worker];
  PRD_CHECK(node.mesh == nullptr && !own.x.empty());
  const std::uint64_t life = ++node.life;
  node.woken = false;
  node.deadline->Set(std::nullopt);
  node.accumulates = accumulates;
  Clear(&node);
  own.gradient.assign(own.x.size(), 0.0);
  for (double& value : own.x) value += 1e-3 * prng_.Unit();  // until the common start
  const bool on_device = devices_ > 0 && prng_.Unit() < devices_;
  node.replica.Make(&own.x, &own.gradient, on_device ? MakeDevice(&node) : nullptr);
  auto transport =
      network_.Start(static_cast<std::size_t>(world_->HostOf(worker)), [this, node = &node, life] {
        if (node->life == life) Wake(node);
      });
  node.process = network_.newest();
  Mesh::Options options{.incarnation = incarnation,
                        .host = "h" + std::to_string(world_->HostOf(worker)),
                        .keys = mesh::KeyPair(++processes_ % 256),
                        .secret_of = mesh::KnownSecret,
                        .chunk_bytes = chunk_bytes_,
                        .direct_bytes = direct_bytes_,
                        .probe_bytes = 8 * chunk_bytes_};
  Result<std::unique_ptr<Mesh>> made =
      Mesh::Create(std::move(transport), options, node.replica.store(), &node);
  PRD_CHECK(made.ok());
  node.mesh = std::move(*made);
  Wake(&node);
}

std::unique_ptr<SimDevice> MeshPlane::MakeDevice(Node* node) {
  const SimDevice::Clock clock{
      .after = [this](DurationNs delay,
                      std::function<void()> what) { After(delay, std::move(what)); },
      .wake =
          [this, node, life = node->life] {
            if (node->life == life) Wake(node);
          }};
  return std::make_unique<SimDevice>(prng_.Next(), clock);
}

void MeshPlane::End(std::uint32_t worker, bool killed) {
  Node& node = nodes_[worker];
  if (node.mesh == nullptr) return;
  if (killed) network_.Kill(node.process, false);
  ++node.life;
  node.mesh.reset();
  // The store stays: who calls may be in the midst of something.
}

// ---- the caller's thread ----

void MeshPlane::Enter(std::uint32_t worker, PlaneCall call) {
  if (nodes_[worker].mesh == nullptr) return;
  groups_.Enters(worker);
  nodes_[worker].replica.store()->BeginCall(call == PlaneCall::kStep);
  nodes_[worker].replica.Settle();
}

void MeshPlane::Ask(std::uint32_t worker) {
  Node& node = nodes_[worker];
  if (node.mesh == nullptr) return;
  node.replica.store()->kept.lent = true;
  copies_.Is(worker, *node.replica.store());
  node.mesh->ServeWaiting(Now());
  Wake(&node);
}

void MeshPlane::Leave(std::uint32_t worker, bool pauses) {
  Node& node = nodes_[worker];
  if (node.mesh == nullptr) return;
  node.replica.store()->GiveBack();
  node.replica.Settle();
  if (pauses) node.replica.store()->kept.LeaveCopies();
  node.replica.store()->EndCall();
  node.replica.Settle();
  Wake(&node);
}

void MeshPlane::AfterApply(std::uint32_t worker, Iteration iteration, bool group) {
  Node& node = nodes_[worker];
  Replica& own = world_->replicas[worker];
  if (group && world_->workload.faults.state_not_told != 0) {
    own.x[0] += static_cast<double>(own.state % 1024) / 1024;
  }
  node.replica.Applied(iteration);
}

// ---- what the core wants ----

void MeshPlane::Perform(std::uint32_t worker, const Action& action) {
  Node* node = &nodes_[worker];
  if (node->mesh == nullptr) return;
  Mesh& mesh = *node->mesh;
  const Instant now = Now();
  copies_.Is(worker, *node->replica.store());
  if (const auto* send = std::get_if<SendToController>(&action)) {
    const auto* through = std::get_if<Finished>(&send->envelope.body);
    if (through == nullptr) return;
    mesh.CallOff(through->group);
  } else if (const auto* become = std::get_if<BecomeIncarnation>(&action)) {
    mesh.SetIncarnation(become->incarnation);
    Clear(node);
  } else if (const auto* join = std::get_if<JoinRun>(&action)) {
    Join(node, join->welcome);
  } else if (const auto* announced = std::get_if<AnnouncedMembers>(&action)) {
    mesh.Announce(now, announced->members, announced->copies);
  } else if (const auto* gone = std::get_if<ForgetMembers>(&action)) {
    mesh.ForgetMembers(now, gone->incarnations);
  } else if (const auto* start = std::get_if<StartReduce>(&action)) {
    Reduce(node, *start);
  } else if (std::holds_alternative<CancelReduce>(action)) {
    mesh.CancelReduce();
    node->group.reset();
    groups_.Cancelled(worker, *node->replica.store());
  } else if (const auto* give_up = std::get_if<GiveUpReduce>(&action)) {
    mesh.GiveUpReduce(give_up->reason);
  } else if (const auto* fetch = std::get_if<StartFetch>(&action)) {
    node->fetching = true;
    Say(*node, "begins to copy " + WorkerName(WorkerOf(fetch->source.incarnation)));
    groups_.Copies(worker, (*workers_)[worker].run_number(), *fetch);
    if (fetch->result == kNoGroup) Copy(worker, CopyBook::Kind::kReplica, fetch->source);
    mesh.StartFetch(now, fetch->source, fetch->result, fetch->contributed, fetch->in_place);
    MayBreak(world_->workload.faults.fetch_fails, WorkerOf(fetch->source.incarnation), worker);
  } else if (std::holds_alternative<CancelFetch>(action)) {
    mesh.CancelFetch();
    node->fetching = false;
    copies_.Ends(worker, CopyBook::Kind::kReplica);
  } else if (const auto* copy = std::get_if<CopyForAverage>(&action)) {
    node->sampling = true;
    Say(*node,
        "begins to copy the parameters of " + WorkerName(WorkerOf(copy->source.incarnation)));
    Copy(worker, CopyBook::Kind::kParameters, copy->source);
    mesh.StartSample(now, copy->source);
    MayBreak(world_->workload.faults.fetch_fails, WorkerOf(copy->source.incarnation), worker);
  } else if (std::holds_alternative<CancelCopyForAverage>(action)) {
    mesh.CancelSample();
    node->sampling = false;
    copies_.Ends(worker, CopyBook::Kind::kParameters);
  } else if (const auto* probe = std::get_if<ProbePeers>(&action)) {
    copies_.Asks(worker, probe->targets);
    mesh.Probe(now, probe->targets);
  } else if (std::holds_alternative<Deposit>(action)) {
    node->replica.store()->Deposit();
  } else {
    Exchange(node, action);
  }
  node->replica.Settle();
  Wake(node);
}

// What workers with neighbours, or shards, do among themselves.
void MeshPlane::Exchange(Node* node, const Action& action) {
  const Incarnation self = (*workers_)[node->worker].incarnation();
  items_.Before(node->worker, self, action, *node->replica.store());
  std::visit(
      [&](const auto& what) {
        if constexpr (requires { node->mesh->Do(Now(), what); }) node->mesh->Do(Now(), what);
      },
      action);
  world_->replicas[node->worker].iteration = node->replica.store()->iteration;
  node->replica.Settle();
  items_.After(node->worker, action, *node->replica.store());
}

void MeshPlane::Join(Node* node, const Welcome& welcome) {
  Clear(node);
  node->plan = welcome.plan;
  node->replica.store()->keeps_gradients = node->accumulates && welcome.batch > 0;
  node->mesh->JoinRun(welcome.identity.high, welcome.plan, welcome.lease_ms * kMillisecond,
                      {.security = welcome.mesh_security});
}

void MeshPlane::Copy(std::uint32_t worker, CopyBook::Kind kind, const GroupMember& source) {
  const Node& from = nodes_[WorkerOf(source.incarnation)];
  copies_.Begins(worker, kind, source.incarnation,
                 from.mesh != nullptr ? from.replica.store() : nullptr);
}

void MeshPlane::MayBreak(double probability, std::uint32_t a, std::uint32_t b) {
  if (!world_->Rolled(probability) || a == b) return;
  After(static_cast<DurationNs>(prng_.Below(5 * kMillisecond)), [this, a, b] {
    Say(nodes_[a], "its links to " + WorkerName(b) + " break");
    network_.Break(nodes_[a].process, nodes_[b].process);
  });
}

void MeshPlane::Reduce(Node* node, const StartReduce& start) {
  if (const Status whole = node->replica.store()->Whole(); !whole.ok() && !start.in_place) {
    return Tell(node, &SessionCore::Fail, whole);
  }
  Say(*node, "begins group " + std::to_string(start.group.id));
  node->group = start.group;
  node->what = start.what;
  masses_.Holds(node->worker, node->replica.Held(), node->replica.Parameters());
  const SharedList<GroupMember>& members = start.group.members;
  const std::uint32_t other = WorkerOf(members[prng_.Below(members.size())].incarnation);
  MayBreak(world_->workload.faults.reduce_fails, node->worker, other);
  const RunId run = (*workers_)[node->worker].run_number();
  groups_.Begins(node->worker, run, start, node->plan, *node->replica.store());
  node->mesh->StartReduce(Now(), start.group, start.what, start.gain, start.in_place);
}

// ---- what comes of it ----

void Node::OnReduced(GroupId id, const Status& status, std::uint64_t sent,
                     const std::vector<Rank>& unreachable, std::uint64_t digest) {
  plane->Reduced(this, id, status, sent, unreachable, digest);
}

void MeshPlane::Reduced(Node* node, GroupId id, const Status& status, std::uint64_t sent,
                        const std::vector<Rank>& unreachable, std::uint64_t digest) {
  node->replica.Settle();
  Say(*node, "ends group " + std::to_string(id) + ": " + status.ToString());
  CheckHonest(*node, status);
  CheckStarted(*node, node->group && node->group->id == id, "group " + std::to_string(id));
  groups_.Ends(node->worker, status.ok(), *node->replica.store());
  if (status.ok()) {
    CheckMass(*node);
    if (node->group->kind == GroupKind::kInitial) {
      world_->replicas[node->worker].trained = true;
    }
  }
  node->group.reset();
  const PlaneResult result{.worker = node->worker,
                           .group = id,
                           .ok = status.ok(),
                           .bytes = sent,
                           .included = std::nullopt,
                           .unreachable = unreachable,
                           .digest = digest};
  Hear(node, [this, node, result, status] { (*workers_)[node->worker].OnReduced(result, status); });
}

void Node::OnFetched(const Status& status, Iteration at) {
  replica.Settle();
  plane->Say(*this, "has copied: " + status.ToString());
  MeshPlane::CheckHonest(*this, status);
  MeshPlane::CheckStarted(*this, std::exchange(fetching, false), "a copy");
  plane->groups_.Copied(worker, status.ok(), *replica.store());
  if (status.ok()) plane->copies_.Copied(worker, *replica.store());
  plane->copies_.Ends(worker, CopyBook::Kind::kReplica);
  const Iteration in_inbox =
      status.ok() ? std::max<Iteration>(0, at - replica.store()->iteration) : Iteration{0};
  if (status.ok()) plane->world_->replicas[worker].trained = true;
  plane->Hear(this, [this, status, at, in_inbox] {
    (*plane->workers_)[worker].Hear([&](SessionCore* core, Instant now, Actions* out) {
      core->OnFetched(now, status, at, out, in_inbox);
    });
  });
}

void Node::OnSampled(const Status& status, const std::shared_ptr<Buffer>& row) {
  plane->Say(*this, "has copied parameters: " + status.ToString());
  MeshPlane::CheckHonest(*this, status);
  MeshPlane::CheckStarted(*this, std::exchange(sampling, false), "a sample");
  if (status.ok()) {
    plane->copies_.Copied(worker, mesh::Bytes(row->data(), row->data() + row->size()));
  }
  plane->copies_.Ends(worker, CopyBook::Kind::kParameters);
  plane->Tell(this, &SessionCore::OnCopiedForAverage, status);
}

void Node::OnProbed(Rank rank, Incarnation of) {
  plane->copies_.Answers(worker, of);
  plane->Tell(this, &SessionCore::OnProbed, rank, of);
}

void Node::OnNote(Incarnation from, const PeerMessage& note) {
  plane->Tell(this, &SessionCore::OnNote, from, note);
}

void Node::OnRequest(Incarnation from, Request request, const PeerItem& item) {
  plane->items_.OnRequest(worker, request, from);
  plane->Tell(this, &SessionCore::OnRequest, from, request, item);
}

void Node::OnPulled(Ticket ticket, const Status& status, const ShardHeader& header) {
  MeshPlane::CheckHonest(*this, status);
  MeshPlane::CheckStarted(*this, plane->items_.OnPulled(worker, ticket),
                          "pull " + std::to_string(ticket));
  plane->Tell(this, &SessionCore::OnPulled, ticket, status, header);
}

void Node::OnOutOfReach(Rank rank) {
  plane->Say(*this, "does not reach rank " + std::to_string(rank));
  plane->Tell(this, &SessionCore::OnOutOfReach, rank);
}

// ---- laws ----

void MeshPlane::CheckMass(const Node& node) {
  const Group& group = *node.group;
  const bool equal = std::all_of(group.members.begin(), group.members.end(), [&](const auto& m) {
    return m.weight == group.members[0].weight;
  });
  if (group.kind != GroupKind::kTrain || node.what.payload != Payload::kParameters || !equal ||
      group.initial_weight > 0 || world_->forgot) {
    return;
  }
  masses_.Ends(node.worker, (*workers_)[node.worker].run_number(), group, node.replica.Held());
}

void MeshPlane::Agree(std::uint32_t worker, RunId run, GroupId group, bool kept) {
  const FaultsPart& faults = world_->workload.faults;
  if (world_->forgot || ReplicaBook::Differ(faults)) return;
  const NodeReplica& replica = nodes_[worker].replica;
  const std::uint64_t digest = kept ? replica.DigestOfAll() : replica.Digest();
  if (digests_.try_emplace({run, group}, digest).first->second == digest) return;
  throw Violation("replicas-agree", WorkerName(worker) + " has another replica than others after " +
                                        GroupName(group));
}

void MeshPlane::CheckHonest(const Node& node, const Status& status) {
  if (status.code() != Code::kDataLoss) return;
  throw Violation("honest", WorkerName(node.worker) + " says " + status.ToString());
}

void MeshPlane::CheckStarted(const Node& node, bool begun, const std::string& what) {
  if (begun) return;
  throw Violation("started",
                  WorkerName(node.worker) + " ends " + what + ", which it has not begun");
}

// ---- faults ----

void MeshPlane::Flip(std::uint32_t worker) {
  world_->replicas[worker].x[0] += 1;
  nodes_[worker].replica.FlipBase();
}

void MeshPlane::Cut(std::uint32_t from, std::uint32_t to, Instant until) {
  if (until <= world_->now) return;
  Say(nodes_[from], "nothing gets to " + WorkerName(to) + " for " +
                        std::to_string((until - world_->now) / kMillisecond) + " ms");
  network_.Cut(nodes_[from].process, nodes_[to].process, until - world_->now);
}

void MeshPlane::CutLarge(std::uint32_t from, std::uint32_t to, Instant until) {
  Say(nodes_[from], "nothing large gets to " + WorkerName(to) + " for " +
                        std::to_string((until - world_->now) / kMillisecond) + " ms");
  network_.CutLarge(nodes_[from].process, nodes_[to].process, until - world_->now);
}

void MeshPlane::Say(const Node& node, const std::string& what) const {
  if (!trace_) return;
  trace_(std::to_string(world_->now.ns / 1000) + " us  mesh of " + WorkerName(node.worker) + ": " +
         what);
}

}  // namespace

std::unique_ptr<Plane> MakeMeshPlane(World* world, std::vector<SimWorker>* workers,
                                     std::function<void(const std::string&)> trace) {
  return std::make_unique<MeshPlane>(world, workers, std::move(trace));
}

MakePlane MakeKillingMeshPlane(std::uint32_t worker, std::uint64_t turn) {
  return [=](World* world, std::vector<SimWorker>* workers,
             std::function<void(const std::string&)> trace) -> std::unique_ptr<Plane> {
    return std::make_unique<MeshPlane>(world, workers, std::move(trace), std::pair(worker, turn));
  };
}

}  // namespace prd::sim
