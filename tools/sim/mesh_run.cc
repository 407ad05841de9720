#include "tools/sim/mesh_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "engines/violation.h"
#include "tools/sim/network.h"
#include "worker/mesh/mesh.h"

namespace prd::sim {
namespace {

using Bytes = std::vector<std::byte>;

constexpr DurationNs kLease = kSecond;
constexpr DurationNs kFaults = 6 * kSecond;    // from the beginning
constexpr DurationNs kSettles = 12 * kSecond;  // after that
constexpr RunId kRun = 7;

// ---- values ----

double Epsilon(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x1p-23;
    case DType::kF64:
      return 0x1p-52;
    case DType::kF16:
      return 0x1p-10;
    case DType::kBF16:
      return 0x1p-7;
  }
  return 1;
}

// The format has 16 bits, so many of them for the fraction.
double DecodeHalf(std::uint16_t bits, int fraction, int bias) {
  const int exponent = (bits & 0x7fff) >> fraction;
  const double mantissa = bits & ((1 << fraction) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - fraction);
  return sign * std::ldexp(mantissa + (1 << fraction), exponent - bias - fraction);
}

double Decode(DType dtype, const std::byte* at) {
  const auto load = [at](auto value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (dtype) {
    case DType::kF32:
      return static_cast<double>(load(float{}));
    case DType::kF64:
      return load(double{});
    case DType::kF16:
      return DecodeHalf(load(std::uint16_t{}), 10, 15);
    case DType::kBF16:
      return DecodeHalf(load(std::uint16_t{}), 7, 127);
  }
  return 0;
}

// Small whole numbers, which every dtype has.
void Encode(DType dtype, int value, std::byte* at) {
  const auto store = [at](auto number) { std::memcpy(at, &number, sizeof number); };
  if (dtype == DType::kF32) return store(static_cast<float>(value));
  if (dtype == DType::kF64) return store(static_cast<double>(value));
  const int fraction = dtype == DType::kF16 ? 10 : 7;
  const int bias = dtype == DType::kF16 ? 15 : 127;
  if (value == 0) return store(std::uint16_t{0});
  const int exponent = std::ilogb(value);
  const auto mantissa =
      static_cast<int>(std::ldexp(std::abs(value), fraction - exponent)) - (1 << fraction);
  store(static_cast<std::uint16_t>((value < 0 ? 0x8000 : 0) | (exponent + bias) << fraction |
                                   mantissa));
}

struct Shape {
  DType dtype = DType::kF32;
  std::size_t count = 0;
};

struct Tensors {
  std::vector<Bytes> data;
  std::vector<Tensor> views;
  void Make(const std::vector<Shape>& shapes) {
    for (const Shape& shape : shapes) data.emplace_back(shape.count * DTypeSize(shape.dtype));
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      views.push_back({data[i].data(), shapes[i].count, shapes[i].dtype});
    }
  }
};

Bytes Read(const Layout& layout) {
  Bytes row(layout.bytes());
  layout.Read(0, row.size(), row.data());
  return row;
}
Bytes CopyOf(const Row& row) { return {row.data(), row.data() + row.size()}; }

// Every element of a row of these pieces.
std::vector<double> Values(const Layout& layout, const Bytes& row) {
  std::vector<double> values;
  for (const Layout::Piece& piece : layout.pieces()) {
    for (std::size_t at = piece.begin; at < piece.end; at += DTypeSize(piece.dtype)) {
      values.push_back(Decode(piece.dtype, row.data() + at));
    }
  }
  return values;
}
std::vector<double> Epsilons(const Layout& layout) {
  std::vector<double> epsilons;
  for (const Layout::Piece& piece : layout.pieces()) {
    epsilons.resize(epsilons.size() + (piece.end - piece.begin) / DTypeSize(piece.dtype),
                    Epsilon(piece.dtype));
  }
  return epsilons;
}

// A pool of this process: what a run does follows from no key.
const MeshKeyPair& KeyPair(std::size_t number) {
  static std::mutex mutex;
  static std::map<std::size_t, MeshKeyPair> pairs;
  const std::lock_guard lock(mutex);
  const auto [at, fresh] = pairs.try_emplace(number);
  if (fresh) {
    const Result<MeshKeyPair> drawn = DrawMeshKeys();
    PRD_CHECK(drawn.ok());
    at->second = *drawn;
  }
  return at->second;
}

// ---- what is followed ----

// What a copy of a replica is to have.
struct Version {
  Bytes shared;  // parameters, as peers get them
  Bytes kept;
  Bytes inbox;  // of rounds
  Iteration iteration = 0;
  friend bool operator==(const Version&, const Version&) = default;
};
struct Dated {
  Instant since;
  Version version;
};

struct Taking {  // one member's part in a group
  std::size_t worker = 0;
  std::uint64_t life = 0;
  double weight = 0;
  bool begun = false;
  std::optional<std::vector<double>> gave;
  Bytes before;                    // where the result goes
  std::vector<double> gave_first;  // Background: the virtual replica that it gave
  bool over = false;
  bool ok = false;
};
struct Formed {
  Group group;
  std::vector<Taking> members;
  std::optional<Bytes> result;  // of the first that has it, where all have the same
  Instant quiet_from;           // the last one has begun, or will not
};

struct Copying {
  std::size_t source = 0;
  std::uint64_t life = 0;
  Instant since;
  GroupId result = kNoGroup;
};
struct Pulling {
  std::size_t from = 0;
  std::uint64_t life = 0;
  Iteration stamp = 0;
  Instant since;
};

class MeshRun;

struct Worker : public MeshEvents {
  MeshRun* run = nullptr;
  std::size_t number = 0;
  std::size_t host = 0;
  std::uint64_t life = 0;
  Incarnation incarnation = 0;
  SimNetwork::Process process = 0;
  Tensors parameters, gradients, kept;
  std::unique_ptr<ReplicaStore> store;
  std::unique_ptr<Mesh> mesh;  // null: dead
  bool started = false;        // has a replica of the run
  bool applying = false;
  bool woken = false;
  Instant frozen_until;
  std::optional<GroupId> reserved;  // is to begin it, or has
  bool reducing = false;
  std::optional<Copying> copying;
  std::optional<Copying> sampling;
  std::vector<Dated> versions;
  std::set<Incarnation> probing;
  std::map<Iteration, Bytes> published;
  Iteration newest = 0;  // published
  std::map<Ticket, Pulling> pulls;
  Ticket tickets = 0;
  std::vector<double> inbox;  // what is to be there, of rounds
  std::vector<double> inbox_size;
  std::uint64_t asked_at = 0;  // the newest deadline asked for

  void OnReduced(GroupId group, const Status& status, std::uint64_t sent,
                 const std::vector<Rank>& unreachable, std::uint64_t digest) override;
  void OnFetched(const Status& status, Iteration iteration) override;
  void OnSampled(const Status& status, const std::shared_ptr<Buffer>& row) override;
  void OnProbed(Rank rank, Incarnation of) override;
  void OnRequest(Incarnation from, Request request, const PeerItem& parcel) override;
  void OnPulled(Ticket ticket, const Status& status, const ShardHeader& header) override;
  void OnIntruder(const std::string& what) override;
};

struct Setting {
  std::size_t workers = 2;
  std::size_t hosts = 1;
  MeshSecurity security = MeshSecurity::kNone;
  Plan plan;
  const char* plan_name = "";
  std::vector<Shape> shapes;
  std::vector<Shape> kept;
  std::size_t chunk_bytes = 8;
  std::size_t direct_bytes = 0;
  bool exact = false;
  double breaks = 0, cuts = 0, kills = 0, freezes = 0;  // a second
  bool intrudes = false;
  std::size_t early_bytes = 16 << 20;
  NetworkOptions network;
};

struct NamedPlan {
  const char* name;
  Plan plan;
};
const NamedPlan kPlans[] = {
    {"models", {}},
    {"gradients", {.by = GroupPlan{.payload = Payload::kGradients}}},
    {"rounds", {.by = GroupPlan{.payload = Payload::kGradients, .any_time = true}}},
    {"background", {.by = GroupPlan{.any_time = true, .run_ahead = 1}}},
    {"changes", {.every = 8, .by = GroupPlan{.payload = Payload::kChange}}},
    {"neighbours", {.by = NeighbourPlan{}}},
};

Setting Draw(Prng* prng) {
  const auto chance = [prng](double p) { return prng->Unit() < p; };
  Setting s;
  s.workers = 2 + prng->Below(5);
  s.hosts = 1 + prng->Below(s.workers);
  const double secured = prng->Unit();
  s.security = secured < 0.5    ? MeshSecurity::kNone
               : secured < 0.85 ? MeshSecurity::kAead
                                : MeshSecurity::kCurve;
  const NamedPlan& plan = kPlans[prng->Below(std::size(kPlans))];
  s.plan = plan.plan;
  s.plan_name = plan.name;
  constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};
  for (std::size_t n = 1 + prng->Below(4); n > 0; --n) {
    s.shapes.push_back({kDTypes[prng->Below(4)], 1 + prng->Below(70)});
  }
  if (chance(0.5)) s.kept.push_back({kDTypes[prng->Below(4)], 1 + prng->Below(40)});
  s.chunk_bytes = std::size_t{8} << prng->Below(5);
  s.direct_bytes = chance(0.6) ? 0 : 1 << 16;
  s.exact = chance(0.5);
  if (chance(0.7)) s.breaks = 3 * prng->Unit();
  if (chance(0.5)) s.cuts = 2 * prng->Unit();
  if (chance(0.5)) s.kills = 1 * prng->Unit();
  if (chance(0.4)) s.freezes = 1 * prng->Unit();
  if (chance(0.15)) {  // kills alone
    s.breaks = s.cuts = s.freezes = 0;
    s.kills = 1;
  }
  if (chance(0.2)) s.early_bytes = 0;
  s.network.latency = static_cast<DurationNs>(5'000 + prng->Below(400'000));
  s.network.jitter = static_cast<DurationNs>(prng->Below(300'000));
  s.network.bytes_per_s = std::pow(10, 5 + 4 * prng->Unit());
  s.network.uplink_bytes_per_s = std::pow(10, 5 + 4 * prng->Unit());
  if (s.security == MeshSecurity::kAead && chance(0.5)) s.network.attacks = 0.05 * prng->Unit();
  s.intrudes = s.security != MeshSecurity::kCurve && chance(0.5);
  return s;
}

class MeshRun {
 public:
  explicit MeshRun(const MeshRunOptions& options)
      : options_(options),
        prng_(Mixed(options.seed)),
        setting_(Draw(&prng_)),
        network_(prng_.Next(), setting_.network),
        end_of_faults_(network_.now() + kFaults) {}
  ~MeshRun() {
    for (Worker& worker : workers_) Unlock(&worker);
  }

  MeshRunResult Run() {
    try {
      Go();
    } catch (const Violation& violation) {
      result_.invariant = violation.invariant();
      result_.what = violation.what();
    }
    for (Worker& worker : workers_) Tally(&worker);
    result_.attacks = network_.attacks();
    result_.frames = network_.frames();
    result_.setting = Text();
    for (const Worker& worker : workers_) {
      if (worker.mesh != nullptr) Hash(Read(worker.store->parameters));
    }
    return result_;
  }

 private:
  friend struct Worker;

  // ---- workers ----

  void Go() {
    workers_.resize(setting_.workers);
    for (std::size_t i = 0; i < setting_.workers; ++i) {
      workers_[i].run = this;
      workers_[i].number = i;
      workers_[i].host = i % setting_.hosts;
      Start(&workers_[i]);
    }
    ScheduleActions();
    while (network_.RunNext(end_of_faults_)) {
    }
    // From here on nothing goes wrong, but what has been begun goes on.
    network_.StopAttacks();
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

  void Start(Worker* worker) {
    ++worker->life;
    worker->woken = false;
    worker->incarnation = (++incarnations_ << 8) | worker->number;
    worker->parameters = worker->gradients = worker->kept = {};
    worker->parameters.Make(setting_.shapes);
    worker->gradients.Make(setting_.shapes);
    worker->kept.Make(setting_.kept);
    worker->store = std::make_unique<ReplicaStore>();
    std::vector<StateTensor> state;
    for (const Tensor& tensor : worker->kept.views) {
      state.push_back({tensor.data, tensor.count, tensor.dtype});
    }
    worker->store->SetTensors(worker->parameters.views, worker->gradients.views, state);
    worker->store->lent = true;
    Refill(&worker->parameters);
    Refill(&worker->kept);
    const std::uint64_t life = worker->life;
    auto transport = network_.Start(worker->host, [this, worker, life] {
      if (worker->life == life) Wake(worker);
    });
    worker->process = network_.newest();
    Mesh::Options options{.incarnation = worker->incarnation,
                          .host = "h" + std::to_string(worker->host),
                          .keys = KeyPair(worker->number + 16 * (worker->life % 8)),
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

  // The controller's word, which takes its time.
  void Tell(Worker* to, const GroupMember& member) {
    const std::uint64_t life = to->life;
    After(DelayNs(3e6), [this, to, life, member] {
      if (to->mesh == nullptr || to->life != life || !Lives(member)) return;
      to->mesh->Announce(network_.now(), {member});
      Meet(to);
    });
  }

  void Kill(Worker* worker) {
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

  // All members have begun it: those that are left notice soon.
  void WatchPrompt(GroupId id, std::size_t killed) {
    const Formed& formed = FormedOf(id);
    const bool all = std::all_of(formed.members.begin(), formed.members.end(),
                                 [](const Taking& each) { return each.begun; });
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

  // All are neighbours.
  void Meet(Worker* worker) {
    SetPeers peers;
    for (const Worker& other : workers_) {
      if (other.mesh != nullptr && &other != worker) peers.peers.push_back(MemberOf(other));
    }
    if (HasNeighbours(setting_.plan)) worker->mesh->Do(network_.now(), peers);
    Wake(worker);
  }

  void Tally(Worker* worker) {
    if (worker->mesh == nullptr) return;
    result_.resumed += worker->mesh->resumed();
    const std::uint64_t forged = worker->mesh->counters().forged;
    result_.forged += forged;
  }

  GroupMember MemberOf(const Worker& worker) const {
    return {.rank = static_cast<Rank>(worker.number),
            .incarnation = worker.incarnation,
            .weight = 0,
            .host = "h" + std::to_string(worker.host),
            .endpoints = worker.mesh->endpoints(),
            .mesh_key = worker.mesh->key()};
  }
  bool Lives(const GroupMember& member) const {
    const Worker& worker = workers_[static_cast<std::size_t>(member.rank)];
    return worker.mesh != nullptr && worker.incarnation == member.incarnation;
  }
  Worker* Find(Incarnation incarnation) {
    Worker& worker = workers_[incarnation & 0xff];
    return worker.mesh != nullptr && worker.incarnation == incarnation ? &worker : nullptr;
  }

  // ---- time ----

  void After(DurationNs delay, std::function<void()> what) {
    network_.At(network_.now() + delay, std::move(what));
  }
  DurationNs DelayNs(double most) { return static_cast<DurationNs>(prng_.Unit() * most); }

  void Wake(Worker* worker) {
    if (std::exchange(worker->woken, true)) return;
    const std::uint64_t life = worker->life;
    After(1 + DelayNs(2e4), [this, worker, life] {
      if (worker->life == life) Serve(worker);
    });
  }

  void Serve(Worker* worker) {
    worker->woken = false;
    if (worker->mesh == nullptr) return;
    if (worker->frozen_until > network_.now()) {
      return network_.At(worker->frozen_until, [this, worker] { Wake(worker); });
    }
    NoteVirtual(worker);
    worker->mesh->Service(network_.now());
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
    const std::optional<Instant> next = worker->mesh->NextDeadline();
    if (!next) return;
    if (*next <= network_.now()) return Wake(worker);
    const std::uint64_t number = ++worker->asked_at;
    const std::uint64_t life = worker->life;
    network_.At(*next, [this, worker, number, life] {
      if (worker->asked_at == number && worker->life == life) Wake(worker);
    });
  }

  // ---- what goes wrong ----

  bool FaultsOn() const { return network_.now() < end_of_faults_; }
  void Disturb(std::size_t worker, DurationNs time) {
    for (std::size_t other = 0; other < workers_.size(); ++other) Disturb(worker, other, time);
  }
  void Disturb(std::size_t a, std::size_t b, DurationNs time) {
    Instant& until = disturbed_[std::minmax(a, b)];
    until = std::max(until, network_.now() + time + 2 * kLease);
  }
  Worker* Any(bool alive = true) {
    Worker& worker = workers_[prng_.Below(workers_.size())];
    return !alive || worker.mesh != nullptr ? &worker : nullptr;
  }

  void DoFault() {
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
    if ((drawn -= setting_.kills) < 0) return Kill(a);
    const DurationNs time = DelayNs(2e9);
    Say(Name(a->number) + " stands still for " + std::to_string(time / kMillisecond) + " ms");
    Disturb(a->number, time);
    a->frozen_until = network_.now() + time;
  }

  void ScheduleFaults() {
    const double all = setting_.breaks + setting_.cuts + setting_.kills + setting_.freezes;
    if (all == 0) return;
    After(static_cast<DurationNs>(-std::log(1 - prng_.Unit()) / all * 1e9), [this] {
      if (!FaultsOn()) return;
      DoFault();
      ScheduleFaults();
    });
  }

  // ---- what is done ----

  void ScheduleActions() {
    MakeInitial();
    ScheduleFaults();
    Act();
  }

  void Act() {
    After(DelayNs(2e7), [this] {
      if (!FaultsOn()) return;
      DoSomething();
      Act();
    });
  }

  void DoSomething() {
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

  void Refill(Tensors* tensors, std::size_t from = 0, std::size_t to = ~std::size_t{0}) {
    to = std::min(to, tensors->views.size());
    for (std::size_t i = from; i < to; ++i) {
      const Tensor& tensor = tensors->views[i];
      const std::size_t size = DTypeSize(tensor.dtype);
      for (std::size_t j = 0; j < tensor.count; ++j) {
        Encode(tensor.dtype, static_cast<int>(prng_.Below(17)) - 8,
               static_cast<std::byte*>(tensor.data) + j * size);
      }
    }
  }

  // Whether a group reads or writes the parameters while it runs.
  bool InPlace() const { return !AveragesInBackground(setting_.plan); }

  // The caller's `apply`: half of the replica, and after a while the rest.
  void BeginApply(Worker* worker) {
    if (worker->applying || (worker->reducing && InPlace())) return;
    worker->store->mutex.lock();
    worker->applying = true;
    if (AveragesInBackground(setting_.plan)) {
      worker->store->AddInbox();
      worker->inbox.clear();
    }
    Refill(&worker->parameters, 0, (worker->parameters.views.size() + 1) / 2);
    const std::uint64_t life = worker->life;
    After(DelayNs(5e6), [this, worker, life] {
      if (worker->life == life) EndApply(worker);
    });
  }
  void EndApply(Worker* worker) {
    if (!worker->applying) return;
    Refill(&worker->parameters, (worker->parameters.views.size() + 1) / 2);
    Refill(&worker->kept);
    ++worker->store->iteration;
    SetVersion(worker);
    Unlock(worker);
    Wake(worker);
  }
  static void Unlock(Worker* worker) {
    if (std::exchange(worker->applying, false)) worker->store->mutex.unlock();
  }

  // ---- versions ----

  Bytes SharedOf(const Worker& worker) const {
    const ReplicaStore& store = *worker.store;
    Bytes row(store.parameters.bytes());
    store.ReadShared(Memory::In(row.data()));
    return row;
  }
  void SetVersion(Worker* worker) {
    const ReplicaStore& store = *worker->store;
    Version version{.shared = SharedOf(*worker),
                    .kept = Read(store.kept),
                    .inbox = {},
                    .iteration = store.iteration + store.inbox_gain};
    if (store.inbox_rounds != 0 && !store.background) version.inbox = CopyOf(store.inbox);
    if (!worker->versions.empty() && worker->versions.back().version == version) return;
    worker->versions.push_back({network_.now(), std::move(version)});
  }
  // One of the source's that was there at `since` or later.
  bool IsVersion(const Worker& source, Instant since,
                 const std::function<bool(const Version&)>& is) const {
    for (std::size_t i = source.versions.size(); i-- > 0;) {
      if (is(source.versions[i].version)) return true;
      if (source.versions[i].since < since) return false;
    }
    return false;
  }

  // ---- copies ----

  void Fetch(Worker* worker) {
    Worker* source = Any();
    if (source == nullptr || source == worker || !source->started || worker->copying ||
        worker->reserved || worker->applying || !worker->pulls.empty()) {
      return;
    }
    ++result_.copies;
    worker->started = false;
    worker->copying = {.source = source->number, .life = source->life, .since = network_.now()};
    const GroupMember member = MemberOf(*source);
    // The order may come late.
    const GroupMember taker = MemberOf(*worker);
    const std::uint64_t life = source->life;
    if (prng_.Below(10) != 0) {  // or there is none
      After(DelayNs(4e6), [this, source, life, taker] {
        if (source->mesh != nullptr && source->life == life && Lives(taker)) Order(source, taker);
      });
    }
    worker->mesh->Announce(network_.now(), {member});
    worker->mesh->StartFetch(network_.now(), member);
    Wake(worker);
  }

  void Order(Worker* source, const GroupMember& taker) {
    ++orders_[{source->incarnation, taker.incarnation}];
    source->mesh->Announce(network_.now(), {taker}, true);
    Wake(source);
  }
  void TakeOrder(const Worker& source, const Worker& taker) {
    if (orders_[{source.incarnation, taker.incarnation}]-- > 0) return;
    throw Violation("ordered", Name(taker.number) + " has a copy of " + Name(source.number) +
                                   " that was not ordered");
  }

  void Sample(Worker* worker, Worker* source = nullptr) {
    if (source == nullptr) source = Any();
    if (source == nullptr || source == worker || !source->started || worker->sampling) return;
    ++result_.copies;
    worker->sampling = {.source = source->number, .life = source->life, .since = network_.now()};
    Order(source, MemberOf(*worker));
    worker->mesh->StartSample(network_.now(), MemberOf(*source));
    Wake(worker);
    const std::uint64_t life = source->life;
    if (prng_.Below(2) == 0) return;
    After(DelayNs(5e6), [this, source, life] {  // the replica changes, and somebody else copies it
      if (source->life != life || source->mesh == nullptr) return;
      BeginApply(source);
      Worker* next = Any();
      if (next != nullptr && next != source && next->started) Sample(next, source);
    });
  }

  void OnFetched(Worker* worker, const Status& status, Iteration iteration) {
    if (!worker->copying) throw Violation("once", Name(worker->number) + " ends a copy twice");
    const Copying copying = *std::exchange(worker->copying, std::nullopt);
    Say(Name(worker->number) + " copies from " + Name(copying.source) + ": " + status.ToString());
    if (copying.result != kNoGroup) return OnResultFetched(worker, copying, status);
    SetVersion(worker);
    CheckHonest(worker, status);
    if (!status.ok()) return;
    ++result_.copied;
    worker->started = true;
    worker->inbox.clear();
    if (!worker->versions.back().version.inbox.empty()) SetInbox(worker);
    const Worker& source = workers_[copying.source];
    if (source.life == copying.life) TakeOrder(source, *worker);
    if (source.life != copying.life || source.store == nullptr) return;  // its versions are gone
    const Version& got = worker->versions.back().version;
    const bool found = IsVersion(source, copying.since, [&](const Version& version) {
      return version.shared == got.shared && version.kept == got.kept &&
             version.inbox == got.inbox && version.iteration == got.iteration;
    });
    if (found) return;
    throw Violation("torn", Name(worker->number) + " has a copy, of iteration " +
                                std::to_string(iteration) + ", that " + Name(copying.source) +
                                " never was");
  }

  void OnSampled(Worker* worker, const Status& status, const std::shared_ptr<Buffer>& row) {
    if (!worker->sampling) throw Violation("once", Name(worker->number) + " ends a sample twice");
    const Copying sampling = *std::exchange(worker->sampling, std::nullopt);
    CheckHonest(worker, status);
    if (!status.ok()) return;
    ++result_.copied;
    const Worker& source = workers_[sampling.source];
    if (source.life == sampling.life) TakeOrder(source, *worker);
    if (source.life != sampling.life || source.store == nullptr) return;
    const Bytes got(row->data(), row->data() + row->size());
    if (IsVersion(source, sampling.since,
                  [&](const Version& version) { return version.shared == got; })) {
      return;
    }
    throw Violation("torn", Name(worker->number) + " has a sample that " + Name(sampling.source) +
                                " never was");
  }

  // ---- questions ----

  void Probe(Worker* worker) {
    SharedList<GroupMember> targets;
    worker->probing.clear();
    for (const Worker& other : workers_) {
      if (other.mesh == nullptr || &other == worker || prng_.Below(2) == 0) continue;
      targets.push_back(MemberOf(other));
      worker->probing.insert(other.incarnation);
    }
    result_.probes += targets.size();
    std::string whom;
    for (const GroupMember& target : targets) whom += " " + std::to_string(target.rank);
    Say(Name(worker->number) + " asks" + whom);
    worker->mesh->Probe(network_.now(), targets);
    Wake(worker);
  }
  void OnProbed(Worker* worker, Rank rank, Incarnation of) {
    const Worker& other = workers_[static_cast<std::size_t>(rank)];
    if (worker->probing.erase(of) == 0 || (of & 0xff) != static_cast<Incarnation>(rank)) {
      throw Violation("probed", Name(worker->number) + " hears an answer of " + Name(other.number) +
                                    " that it does not wait for");
    }
    const bool away = other.frozen_until > network_.now() &&
                      other.frozen_until - network_.now() > kSecond + kSecond / 2;
    if (away) return;  // it has begun to stand still since: what it sent comes
  }

  // ---- updates of neighbours ----

  void Exchange(Worker* worker) {
    Mesh& mesh = *worker->mesh;
    const Instant now = network_.now();
    if (worker->applying) return;
    mesh.Do(now, PublishUpdate{++worker->newest});
    worker->published[worker->newest] = Read(worker->store->parameters);
    if (worker->newest > 4) mesh.Do(now, RetireUpdate{worker->newest - 4});
    Worker* from = Any();
    if (from == nullptr || from == worker || from->newest == 0) return;
    const Iteration stamp = from->newest - static_cast<Iteration>(prng_.Below(2));
    mesh.Do(now, SendNote{from->incarnation,
                          {.parcel = {.stamp = worker->newest}, .version = worker->newest - 1}});
    const Ticket ticket = ++worker->tickets;
    ++result_.pulls;
    worker->pulls[ticket] = {from->number, from->life, stamp, now};
    Say(Name(worker->number) + " pulls update " + std::to_string(stamp) + " of " +
        Name(from->number) + ", ticket " + std::to_string(ticket));
    mesh.Do(now, StartPull{ticket, from->incarnation, {.stamp = stamp}});
    if (prng_.Below(10) == 0) {
      mesh.Do(now, DropPull{ticket});
      worker->pulls.erase(ticket);
    }
    Wake(worker);
  }

  void OnRequest(Worker* worker, Incarnation from, Request request, const PeerItem& parcel) {
    const std::uint64_t life = worker->life;
    (void)from;
    After(DelayNs(2e6), [this, worker, life, request, parcel] {
      if (worker->mesh == nullptr || worker->life != life) return;
      const Instant now = network_.now();
      if (worker->published.contains(parcel.stamp) && worker->newest - parcel.stamp < 4) {
        worker->mesh->Do(now, prd::Serve{request, parcel, {.version = parcel.stamp}});
        // What is on its way is not touched by that.
        if (prng_.Below(4) == 0 && parcel.stamp < worker->newest) {
          worker->mesh->Do(now, RetireUpdate{parcel.stamp});
        }
      } else {
        worker->mesh->Do(now, Refuse{request});
      }
      Wake(worker);
    });
  }

  void OnPulled(Worker* worker, Ticket ticket, const Status& status, const ShardHeader& header) {
    const auto at = worker->pulls.find(ticket);
    if (at == worker->pulls.end()) {
      throw Violation("once", Name(worker->number) + " ends pull " + std::to_string(ticket) +
                                  " that it has not, or no more");
    }
    const Pulling pulling = at->second;
    worker->pulls.erase(at);
    Say(Name(worker->number) + " ends pull " + std::to_string(ticket) + ": " + status.ToString());
    CheckHonest(worker, status);
    if (!status.ok()) return;
    ++result_.pulled;
    if (header.version != pulling.stamp) {
      throw Violation("mixed", Name(worker->number) + " pulled update " +
                                   std::to_string(pulling.stamp) + ", and got " +
                                   std::to_string(header.version));
    }
    const Worker& from = workers_[pulling.from];
    const std::uint64_t life = worker->life;
    const bool known = from.life == pulling.life && from.published.contains(pulling.stamp);
    const std::optional<Bytes> update =
        known ? std::optional(from.published.at(pulling.stamp)) : std::nullopt;
    After(DelayNs(1e6), [this, worker, life, ticket, update] {
      if (worker->mesh == nullptr || worker->life != life) return;
      if (worker->applying || worker->copying) {
        worker->mesh->Do(network_.now(), DropPull{ticket});
        return;
      }
      Mix(worker, ticket, update);
    });
  }

  void Mix(Worker* worker, Ticket ticket, const std::optional<Bytes>& update) {
    const Layout& layout = worker->store->parameters;
    const std::vector<double> own = Values(layout, Read(layout));
    worker->mesh->Do(network_.now(), MixUpdates{.own_weight = 0.5, .updates = {{ticket, 0.5}}});
    SetVersion(worker);
    if (!update) return;
    const std::vector<double> other = Values(layout, *update);
    std::vector<double> sum(own.size());
    std::vector<double> size(own.size());
    for (std::size_t j = 0; j < own.size(); ++j) {
      sum[j] = 0.5 * own[j] + 0.5 * other[j];
      size[j] = 0.5 * std::abs(own[j]) + 0.5 * std::abs(other[j]);
    }
    CheckNear("mixed", worker, layout, Read(layout), sum, size, 2, false);
  }

  // ---- groups ----

  Formed& FormedOf(GroupId id) { return formed_[id]; }

  void MakeInitial() {
    Formed formed;
    formed.group = {.id = ++last_group_, .kind = GroupKind::kInitial, .iteration = 0};
    std::vector<Worker*> all;
    for (Worker& worker : workers_) {
      if (worker.mesh == nullptr || worker.reserved || worker.copying || worker.applying) continue;
      if (!worker.pulls.empty()) continue;
      all.push_back(&worker);
    }
    if (all.empty()) return;
    const std::size_t source = prng_.Below(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      Join(&formed, all[i], i == source ? 1 : 0);
      all[i]->started = false;
    }
    Launch(std::move(formed));
  }

  void MakeGroup() {
    std::vector<Worker*> free;
    for (Worker& worker : workers_) {
      const bool can =
          worker.mesh != nullptr && worker.started && !worker.reserved && !worker.copying;
      if (can) free.push_back(&worker);
    }
    if (free.empty()) return;
    for (std::size_t i = free.size(); i > 1; --i) std::swap(free[i - 1], free[prng_.Below(i)]);
    free.resize(1 + prng_.Below(free.size()));
    Formed formed;
    const bool rounds = TrainsInRounds(setting_.plan);
    formed.group = {.id = ++last_group_,
                    .kind = rounds ? GroupKind::kRound : GroupKind::kTrain,
                    .iteration = ++rounds_};
    formed.group.ring_only = prng_.Below(6) == 0;
    const bool nulls = rounds || setting_.plan.every == 1;
    for (Worker* worker : free) {
      double weight =
          setting_.exact ? 0.25 * static_cast<double>(1 + prng_.Below(2)) : 0.05 + prng_.Unit();
      if (nulls && prng_.Below(4) == 0) weight = 0;
      Join(&formed, worker, weight);
    }
    Launch(std::move(formed));
  }

  void Join(Formed* formed, Worker* worker, double weight) {
    GroupMember member = MemberOf(*worker);
    member.weight = weight;
    formed->group.members.push_back(member);
    formed->members.push_back({.worker = worker->number, .life = worker->life, .weight = weight});
    worker->reserved = formed->group.id;
  }

  void Launch(Formed formed) {
    const GroupId id = formed.group.id;
    const std::size_t count = formed.members.size();
    formed_[id] = std::move(formed);
    for (std::size_t i = 0; i < count; ++i) {
      const DurationNs late = DelayNs(prng_.Below(10) == 0 ? 2e9 : 5e6);
      After(last_ ? DelayNs(5e6) : late, [this, id, i] { Begin(id, i); });
    }
  }

  void Begin(GroupId id, std::size_t index) {
    Formed& formed = FormedOf(id);
    Taking& member = formed.members[index];
    Worker* worker = &workers_[member.worker];
    if (member.over || worker->life != member.life || worker->mesh == nullptr) return;
    if (worker->applying && formed.group.kind == GroupKind::kInitial) EndApply(worker);
    if (worker->applying && InPlace()) EndApply(worker);  // it calls the library after that
    const Instant now = network_.now();
    if (!last_ && prng_.Below(25) == 0) {
      Say(Name(worker->number) + " does not begin group " + std::to_string(id));
      worker->mesh->CallOff(id);
      member.over = true;
      worker->reserved.reset();
      Wake(worker);
      return;
    }
    const bool initial = formed.group.kind == GroupKind::kInitial;
    ReplicaStore& store = *worker->store;
    const Reduced what = initial ? Reduced() : ReducedInTraining(setting_.plan);
    if (!initial && what.payload == Payload::kGradients) {
      Refill(&worker->gradients);
      if (TrainsInRounds(setting_.plan) && member.weight != 0) store.Deposit();
    }
    if (!initial && setting_.exact && what.landing == Landing::kParameters) {
      Refill(&worker->parameters);
      ++store.iteration;
      SetVersion(worker);
    }
    member.begun = true;
    worker->reducing = true;
    const Layout& layout = ShapeOf(*worker, formed.group.kind);
    member.before = LandingOf(*worker, formed.group.kind);
    if (what.payload == Payload::kParameters && what.landing != Landing::kInbox) {
      member.gave = Values(layout, Read(layout));
    } else if (what.payload == Payload::kChange) {
      std::vector<double> change = Values(layout, Read(layout));
      const std::vector<double> base = Values(layout, CopyOf(store.base));
      for (std::size_t j = 0; j < change.size() && j < base.size(); ++j) change[j] -= base[j];
      member.gave = std::move(change);
    } else if (what.landing == Landing::kGradients) {
      member.gave = Values(layout, Read(layout));
    } else if (TrainsInRounds(setting_.plan)) {
      member.gave = member.weight != 0 ? Values(layout, CopyOf(store.outbox))
                                       : std::vector<double>(Values(layout, Read(layout)).size());
    }
    Say(Name(worker->number) + " begins group " + std::to_string(id) + " of " +
        std::to_string(formed.members.size()));
    NoteVirtual(worker);
    worker->mesh->StartReduce(now, formed.group, what, 1);
    Wake(worker);
    if (!last_ && prng_.Below(25) == 0) {
      const std::uint64_t life = worker->life;
      const bool give_up = prng_.Below(2) == 0;
      After(DelayNs(1e6), [this, worker, life, id, index, give_up] {
        if (worker->life != life || worker->mesh == nullptr || !worker->reducing ||
            worker->reserved != id) {
          return;
        }
        if (give_up) {
          worker->mesh->GiveUpReduce("the run calls it off");
        } else {
          worker->mesh->CancelReduce();
          FormedOf(id).members[index].over = true;
          worker->reducing = false;
          worker->reserved.reset();
        }
        Wake(worker);
      });
    }
  }

  const Layout& ShapeOf(const Worker& worker, GroupKind kind) const {
    const ReplicaStore& store = *worker.store;
    if (kind == GroupKind::kInitial) return *store.BeginsWith();
    return NeedsGradients(setting_.plan) ? store.gradients : store.parameters;
  }
  // What the result changes.
  Bytes LandingOf(const Worker& worker, GroupKind kind) const {
    const ReplicaStore& store = *worker.store;
    if (kind == GroupKind::kInitial) return Read(*store.BeginsWith());
    switch (ReducedInTraining(setting_.plan).landing) {
      case Landing::kParameters:
        return Read(store.parameters);
      case Landing::kGradients:
        return Read(store.gradients);
      case Landing::kBase:
        return CopyOf(store.base);
      case Landing::kInbox:
        return store.inbox_rounds == 0 ? Bytes() : CopyOf(store.inbox);
    }
    return {};
  }

  // A virtual replica is taken as soon as the caller is not in `apply`.
  void NoteVirtual(Worker* worker) {
    if (worker->applying || !worker->reducing || !AveragesInBackground(setting_.plan)) return;
    Formed& formed = FormedOf(*worker->reserved);
    if (formed.group.kind == GroupKind::kInitial) return;
    for (Taking& member : formed.members) {
      if (member.worker != worker->number || member.gave) continue;
      member.gave = Values(worker->store->parameters, SharedOf(*worker));
    }
  }

  void EndMember(Worker* worker) {
    if (!worker->reserved) return;
    for (Taking& member : FormedOf(*worker->reserved).members) {
      if (member.worker == worker->number) member.over = true;
    }
  }

  void OnReduced(Worker* worker, GroupId id, const Status& status,
                 const std::vector<Rank>& unreachable) {
    Formed& formed = FormedOf(id);
    const auto at =
        std::find_if(formed.members.begin(), formed.members.end(), [&](const Taking& member) {
          return member.worker == worker->number && member.life == worker->life;
        });
    if (at == formed.members.end() || !at->begun || at->over) {
      throw Violation("once", Name(worker->number) + " ends group " + std::to_string(id) +
                                  " that it is not in, or no more");
    }
    Say(Name(worker->number) + " ends group " + std::to_string(id) + ": " + status.ToString());
    Taking& member = *at;
    member.over = true;
    member.ok = status.ok();
    worker->reducing = false;
    worker->reserved.reset();
    ++result_.groups;
    CheckHonest(worker, status);
    CheckOutbox(worker, formed, member);
    for (const Rank rank : unreachable) CheckAccused(worker, static_cast<std::size_t>(rank), id);
    if (!status.ok()) {
      if (LandingOf(*worker, formed.group.kind) != member.before &&
          !(AveragesInBackground(setting_.plan) && formed.group.kind != GroupKind::kInitial)) {
        throw Violation("untouched", Name(worker->number) + " is changed by group " +
                                         std::to_string(id) +
                                         ", which failed: " + status.ToString());
      }
      FetchResult(worker, &formed, member.weight != 0);
      return;
    }
    ++result_.succeeded;
    CheckResult(worker, &formed, &member);
    if (formed.group.kind == GroupKind::kInitial) {
      worker->started = true;
      worker->inbox.clear();
    }
    SetVersion(worker);
    if (TrainsInRounds(setting_.plan) && prng_.Below(3) != 0) TakeInbox(worker);
  }

  static void CheckHonest(Worker* worker, const Status& status) {
    if (status.code() != Code::kDataLoss) return;
    throw Violation("honest", Name(worker->number) + " says " + status.ToString());
  }

  void CheckAccused(Worker* worker, std::size_t accused, GroupId id) {
    if (setting_.network.attacks > 0) return;
    const auto disturbed = disturbed_.find(std::minmax(worker->number, accused));
    if (disturbed != disturbed_.end() && disturbed->second >= network_.now()) return;
    throw Violation("accused", Name(worker->number) + " says of group " + std::to_string(id) +
                                   " that " + Name(accused) +
                                   " is out of reach, and nothing is wrong with it");
  }

  // The weighted sum of what they gave, and of its sizes.
  void Sum(const Formed& formed, std::vector<double>* sum, std::vector<double>* size) const {
    double most = 0;  // float32's weights are rounded together: by steps of the largest
    for (const Taking& member : formed.members) most = std::max(most, member.weight);
    for (const Taking& member : formed.members) {
      if (member.weight == 0) continue;
      if (!member.gave) {
        throw Violation("contributed", "group " + std::to_string(formed.group.id) +
                                           " succeeds, and " + Name(member.worker) +
                                           " has not begun it");
      }
      sum->resize(member.gave->size());
      size->resize(member.gave->size());
      for (std::size_t j = 0; j < sum->size(); ++j) {
        (*sum)[j] += member.weight * (*member.gave)[j];
        (*size)[j] += std::abs(most * (*member.gave)[j]);
      }
    }
  }

  void CheckResult(Worker* worker, Formed* formed, Taking* member) {
    const GroupKind kind = formed->group.kind;
    const Layout& layout = ShapeOf(*worker, kind);
    std::vector<double> sum;
    std::vector<double> size;
    Sum(*formed, &sum, &size);
    const Bytes after = LandingOf(*worker, kind);
    if (sum.empty()) sum.resize(Values(layout, Read(layout)).size());
    size.resize(sum.size());
    const Landing landing = kind == GroupKind::kInitial ? Landing::kParameters
                                                        : ReducedInTraining(setting_.plan).landing;
    const double steps = static_cast<double>(formed->members.size()) + 3;
    if (landing == Landing::kParameters || landing == Landing::kGradients) {
      CheckNear("result", worker, layout, after, sum, size, steps, setting_.exact);
      if (formed->result && *formed->result != after) {
        throw Violation("result", Name(worker->number) + " has other bits of group " +
                                      std::to_string(formed->group.id) + " than others");
      }
      formed->result = after;
    } else if (landing == Landing::kBase) {
      const std::vector<double> before = Values(layout, member->before);
      for (std::size_t j = 0; j < sum.size(); ++j) {
        size[j] = size[j] * 2 + 20 + std::abs(before[j]);
        sum[j] = before[j] + OuterRate(setting_.plan) * sum[j];
      }
      CheckNear("result", worker, layout, after, sum, size, steps, false);
      if (after != Read(worker->store->parameters)) {
        throw Violation("result", Name(worker->number) + "'s parameters are not its base");
      }
    } else {
      CheckInbox(worker, *formed, *member, sum, size, after, steps);
    }
    Hash(after);
  }

  void CheckInbox(Worker* worker, const Formed& formed, const Taking& member,
                  const std::vector<double>& sum, const std::vector<double>& size,
                  const Bytes& after, double steps) {
    const Layout& layout = ShapeOf(*worker, formed.group.kind);
    worker->inbox.resize(sum.size());
    worker->inbox_size.resize(sum.size());
    if (member.before.empty() || worker->inbox.empty()) {
      std::fill(worker->inbox.begin(), worker->inbox.end(), 0.0);
      std::fill(worker->inbox_size.begin(), worker->inbox_size.end(), 0.0);
    }
    const bool background = AveragesInBackground(setting_.plan);
    for (std::size_t j = 0; j < sum.size(); ++j) {
      const double gave = background ? member.gave->at(j) : 0;
      worker->inbox[j] += sum[j] - gave;
      worker->inbox_size[j] += size[j] + std::abs(gave);
    }
    if (worker->applying) return;  // the inbox may be on its way into the parameters
    const bool one = worker->store->inbox_rounds == 1;
    CheckNear("result", worker, layout, after, worker->inbox, worker->inbox_size, 4 * steps,
              setting_.exact && !background && one);
  }

  void CheckNear(const char* law, Worker* worker, const Layout& layout, const Bytes& row,
                 const std::vector<double>& sum, const std::vector<double>& size, double steps,
                 bool exact) const {
    const std::vector<double> values = Values(layout, row);
    const std::vector<double> epsilons = Epsilons(layout);
    for (std::size_t j = 0; j < values.size(); ++j) {
      const double off = std::abs(values[j] - sum[j]);
      if (exact ? off == 0 : off <= steps * epsilons[j] * (size[j] + 1e-4)) continue;
      throw Violation(law, Name(worker->number) + "'s element " + std::to_string(j) + " of " +
                               std::to_string(values.size()) + " is " + std::to_string(values[j]) +
                               " where " + std::to_string(sum[j]) + " is due");
    }
  }

  // ---- rounds ----

  void SetInbox(Worker* worker) {
    worker->inbox = Values(worker->store->gradients, CopyOf(worker->store->inbox));
    worker->inbox_size.assign(worker->inbox.size(), 100);
  }
  void TakeInbox(Worker* worker) {
    if (worker->applying || !worker->store->TakeInbox()) return;
    worker->inbox.clear();
    SetVersion(worker);
  }

  // What a round that fails has not taken is owed still.
  void CheckOutbox(Worker* worker, const Formed& formed, const Taking& member) const {
    if (formed.group.kind != GroupKind::kRound || member.weight == 0) return;
    const ReplicaStore& store = *worker->store;
    const bool kept = store.owes && Values(store.gradients, CopyOf(store.outbox)) == *member.gave;
    if (member.ok ? !store.owes : kept) return;
    throw Violation("untouched", Name(worker->number) + "'s outbox is not as round " +
                                     std::to_string(formed.group.id) + " leaves it");
  }

  // What failed here, others may have.
  void FetchResult(Worker* worker, Formed* formed, bool contributed) {
    if (formed->group.kind != GroupKind::kRound || worker->copying) return;
    const auto has =
        std::find_if(formed->members.begin(), formed->members.end(), [&](const Taking& member) {
          const Worker& other = workers_[member.worker];
          return member.ok && other.life == member.life && other.mesh != nullptr;
        });
    if (has == formed->members.end()) return;
    ++result_.copies;
    worker->copying = {.source = has->worker,
                       .life = has->life,
                       .since = network_.now(),
                       .result = formed->group.id};
    const std::uint64_t life = worker->life;
    const Copying copying = *worker->copying;
    After(0, [this, worker, life, copying, contributed] {
      if (worker->mesh == nullptr || worker->life != life) return;
      const Worker& source = workers_[copying.source];
      if (source.mesh == nullptr || source.life != copying.life) {
        worker->copying.reset();
        return;
      }
      worker->mesh->StartFetch(network_.now(), MemberOf(source), copying.result, contributed);
      Wake(worker);
    });
  }

  void OnResultFetched(Worker* worker, const Copying& copying, const Status& status) {
    if (!status.ok()) return;
    ++result_.copied;
    const Formed& formed = FormedOf(copying.result);
    std::vector<double> sum;
    std::vector<double> size;
    Sum(formed, &sum, &size);
    const Layout& layout = worker->store->gradients;
    if (sum.empty()) sum.resize(Values(layout, Read(layout)).size());
    size.resize(sum.size());
    const bool empty = worker->inbox.empty();
    worker->inbox.resize(sum.size());
    worker->inbox_size.resize(sum.size());
    if (empty) std::fill(worker->inbox_size.begin(), worker->inbox_size.end(), 0.0);
    for (std::size_t j = 0; j < sum.size(); ++j) {
      worker->inbox[j] += sum[j];
      worker->inbox_size[j] += size[j];
    }
    CheckNear("torn", worker, layout, CopyOf(worker->store->inbox), worker->inbox,
              worker->inbox_size, 4.0 * static_cast<double>(formed.members.size() + 3),
              setting_.exact && worker->store->inbox_rounds == 1);
    SetVersion(worker);
  }

  // ---- the end ----

  void CheckAllOver() {
    for (const Worker& worker : workers_) {
      if (worker.mesh == nullptr) continue;
      const std::string who = Name(worker.number);
      if (worker.reducing) {
        throw Violation("hang",
                        who + " is in group " + std::to_string(*worker.reserved) + " still");
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

  void Hash(const Bytes& bytes) {
    for (const std::byte byte : bytes) {
      result_.hash = (result_.hash ^ static_cast<std::uint64_t>(byte)) * 1099511628211u;
    }
  }
  static std::string Name(std::size_t worker) { return "worker " + std::to_string(worker); }
  void Say(const std::string& what) const {
    if (!options_.trace) return;
    char time[32];
    std::snprintf(time, sizeof time, "%9.3f ms  ",
                  static_cast<double>(network_.now().ns - kSecond) / 1e6);
    options_.trace(time + what);
  }
  std::string Text() const {
    static constexpr const char* kSecurities[] = {"none", "aead", "curve"};
    return std::to_string(setting_.workers) + " workers on " + std::to_string(setting_.hosts) +
           " hosts, " + setting_.plan_name + ", mesh_security " +
           kSecurities[static_cast<std::size_t>(setting_.security)] + ", chunks of " +
           std::to_string(setting_.chunk_bytes) + " bytes" +
           (setting_.direct_bytes != 0 ? ", direct" : "") + (setting_.exact ? ", exact" : "");
  }

  const MeshRunOptions& options_;
  Prng prng_;
  const Setting setting_;
  SimNetwork network_;
  const Instant end_of_faults_;
  std::vector<Worker> workers_;
  std::map<GroupId, Formed> formed_;
  std::map<std::pair<std::size_t, std::size_t>, Instant> disturbed_;
  std::map<std::pair<Incarnation, Incarnation>, std::int64_t>
      orders_;  // copies, by source and taker
  GroupId last_group_ = 0;
  Iteration rounds_ = 0;
  Incarnation incarnations_ = 0;
  bool last_ = false;
  MeshRunResult result_;
};

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

}  // namespace

MeshRunResult RunMeshes(const MeshRunOptions& options) { return MeshRun(options).Run(); }

}  // namespace prd::sim
