#include "tools/sim/data_plane_exchange.h"

#include <algorithm>
#include <string>

#include "engines/violation.h"
#include "tools/sim/names.h"

namespace prd::sim {
namespace {

// Until a puller notices that its source has vanished, or did not answer.
constexpr DurationNs kPullFails = kMillisecond;

std::string Text(const PeerItem& parcel) {
  static constexpr const char* kKinds[] = {"update ", "delta ", "shard ", "state "};
  return kKinds[static_cast<std::size_t>(parcel.kind)] + std::to_string(parcel.stamp) +
         (parcel.kind == PeerItem::Kind::kUpdate ? std::string()
                                                 : " of shard " + std::to_string(parcel.shard) +
                                                       " in epoch " + std::to_string(parcel.epoch));
}

std::vector<double> Part(const std::vector<double>& of, std::pair<std::size_t, std::size_t> cut) {
  return {of.begin() + static_cast<std::ptrdiff_t>(cut.first),
          of.begin() + static_cast<std::ptrdiff_t>(cut.second)};
}

}  // namespace

Exchange::Exchange(World* world, const Plan& plan, Stats* stats, Mutation mutation)
    : world_(world),
      plans_(world->replicas.size(), plan),
      stats_(stats),
      mutation_(mutation),
      neighbours_(world, HasNeighbours(plan) ? *NeighboursOf(plan) : NeighbourPlan{}, stats),
      store_(world, stats),
      sides_(world->replicas.size()) {}

void Exchange::Joins(std::uint32_t worker, const Plan& plan) {
  plans_[worker] = plan;
  if (HasNeighbours(plan)) neighbours_.Joins(worker, *NeighboursOf(plan));
}

void Exchange::Told(std::uint32_t worker, const ControllerBody& body) {
  if (const auto* hood = std::get_if<Neighbourhood>(&body)) neighbours_.Told(worker, *hood);
  const auto* reply = std::get_if<QueryReply>(&body);
  if (reply != nullptr && HasNeighbours(plans_[worker])) {
    neighbours_.Answered(worker, reply->next);
  }
  Iteration& clock = sides_[worker].read_clock;
  if (const auto* placement = std::get_if<Placement>(&body)) clock = std::max(clock, placement->at);
  if (reply != nullptr) clock = std::max(clock, reply->next);
}

void Exchange::Says(std::uint32_t worker, RunId run, const WorkerBody& body) {
  const auto* ready = std::get_if<Ready>(&body);
  if (ready == nullptr) return;
  if (HasNeighbours(plans_[worker])) neighbours_.Asks(worker, ready->iteration);
  if (!HasStore(plans_[worker])) return;
  const auto find = [this](Incarnation of, std::uint32_t shard) -> const ShardCopy* {
    const auto& kept = sides_[WorkerOf(of)].kept;
    const auto copy = kept.find(shard);
    return copy == kept.end() ? nullptr : &copy->second;
  };
  store_.SaysReady(run, world_->replicas[worker].incarnation, ready->iteration, find);
}

void Exchange::CheckLent(std::uint32_t worker, bool lent, const Action& action) const {
  const bool touches = std::holds_alternative<MixUpdates>(action) ||
                       std::holds_alternative<prd::TakeDelta>(action) ||
                       std::holds_alternative<prd::ReadShard>(action);
  if (lent || !touches) return;
  throw Violation("lent", WorkerName(worker) + "'s parameters are touched while it computes");
}

bool Exchange::Perform(std::uint32_t worker, RunId run, bool lent, const Action& action) {
  Side& side = sides_[worker];
  CheckLent(worker, lent, action);
  if (const auto* meet = std::get_if<SetPeers>(&action)) {
    side.peers.clear();
    for (const GroupMember& peer : meet->peers) side.peers.insert(peer.incarnation);
  } else if (const auto* send = std::get_if<prd::SendNote>(&action)) {
    SendNote(worker, *send);
  } else if (const auto* start = std::get_if<prd::StartPull>(&action)) {
    StartPull(worker, *start);
  } else if (const auto* drop = std::get_if<DropPull>(&action)) {
    if (mutation_ != Mutation::kDropIgnored) side.pulls.erase(drop->ticket);
  } else if (const auto* serve = std::get_if<prd::Serve>(&action)) {
    Serve(worker, run, *serve);
  } else if (const auto* refuse = std::get_if<prd::Refuse>(&action)) {
    Refuse(worker, refuse->request);
  } else if (const auto* set = std::get_if<SetIteration>(&action)) {
    if (HasNeighbours(plans_[worker])) neighbours_.Enters(worker, set->iteration);
    world_->replicas[worker].iteration = set->iteration;
  } else if (const auto* publish = std::get_if<PublishUpdate>(&action)) {
    Publish(worker, publish->iteration);
  } else if (const auto* retire = std::get_if<RetireUpdate>(&action)) {
    side.published.erase(retire->iteration);
  } else if (const auto* mix = std::get_if<MixUpdates>(&action)) {
    Mix(worker, *mix);
  } else if (const auto* cut = std::get_if<CutShards>(&action)) {
    side.shards = cut->shards;
    side.read_tags.resize(cut->shards);
  } else if (const auto* take = std::get_if<prd::TakeDelta>(&action)) {
    TakeDelta(worker, take->share);
  } else if (const auto* keep = std::get_if<prd::KeepShard>(&action)) {
    KeepShard(worker, *keep);
  } else if (const auto* add = std::get_if<prd::AddDelta>(&action)) {
    AddDelta(worker, *add);
  } else if (const auto* merge = std::get_if<prd::MergePending>(&action)) {
    MergePending(worker, merge->shard);
  } else if (const auto* read = std::get_if<prd::ReadShard>(&action)) {
    ReadShard(worker, run, *read);
  } else if (const auto* forget = std::get_if<ForgetShard>(&action)) {
    side.kept.erase(forget->shard);
  } else {
    return false;
  }
  return true;
}

void Exchange::Gone(std::uint32_t worker) {
  const Incarnation gone = world_->replicas[worker].incarnation;
  for (const auto& [request, incoming] : sides_[worker].requests) {
    Fail(gone, incoming.from, incoming.ticket);
  }
  sides_[worker] = {};
  neighbours_.Gone(worker);
}

// ---- notes ----

// Between two workers, as on a connection.
Instant Exchange::Arrival(std::uint32_t from, std::uint32_t to) {
  const NetworkPart& network = world_->workload.network;
  const DurationNs delay = FromUs(network.delay_us + network.jitter_us * world_->prng.Unit());
  if (network.slow_probability > 0 && world_->prng.Unit() < network.slow_probability) {
    return world_->now + delay + FromMs(network.slow_ms * world_->prng.Unit());
  }
  Instant& last = last_[{from, to}];
  last = std::max(last, world_->now + delay);
  return last;
}

void Exchange::SendNote(std::uint32_t worker, const prd::SendNote& send) {
  PeerMessage note = send.note;
  ++world_->messages;
  if (!sides_[worker].peers.contains(send.to)) return;
  if (note.kind == PeerMessage::Kind::kOffer) WatchOffer(worker, send.to);
  if (!world_->links.Pass(world_->now, worker, WorkerOf(send.to))) return;
  const FaultsPart& faults = world_->workload.faults;
  const int copies = world_->Fault(faults.loss) ? 0 : world_->Fault(faults.duplicate) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    world_->queue.Push(
        Arrival(worker, WorkerOf(send.to)), EventKind::kNote, WorkerOf(send.to),
        notes_.Put({.from = world_->replicas[worker].incarnation, .to = send.to, .note = note}));
  }
}

std::optional<Exchange::Noted> Exchange::OnNote(std::uint32_t worker, std::uint64_t what) {
  const Mailed mailed = notes_.Take(what);
  if (!world_->Lives(mailed.to)) return std::nullopt;
  sides_[worker].offered.erase(mailed.from);
  if (mailed.note.kind == PeerMessage::Kind::kOffer &&
      mailed.note.parcel.kind == PeerItem::Kind::kDelta) {
    sides_[worker].offers[{mailed.from, mailed.note.parcel}] = mailed.note;
  } else if (mailed.note.kind == PeerMessage::Kind::kOffer &&
             mailed.note.parcel.kind == PeerItem::Kind::kUpdate) {
    neighbours_.Offered(worker, mailed.from, mailed.note.version, mailed.note.parcel.stamp);
  }
  return Noted{.from = mailed.from, .note = mailed.note};
}

void Exchange::WatchOffer(std::uint32_t worker, Incarnation to) {
  if (!world_->links.on()) return;
  const auto [watch, fresh] = sides_[worker].offered.try_emplace(to, next_watch_);
  if (!fresh) return;
  ++next_watch_;
  world_->queue.Push(
      world_->now + world_->LeaseNs() + kPullFails, EventKind::kUnheard, worker,
      watches_.Put(
          {.from = world_->replicas[worker].incarnation, .to = to, .number = watch->second}));
}

std::optional<Rank> Exchange::OnUnheard(std::uint32_t worker, std::uint64_t what) {
  const Watch watch = watches_.Take(what);
  Side& side = sides_[worker];
  const auto offered = side.offered.find(watch.to);
  if (!world_->Lives(watch.from) || offered == side.offered.end() ||
      offered->second != watch.number) {
    return std::nullopt;
  }
  side.offered.erase(offered);
  if (!side.peers.contains(watch.to)) return std::nullopt;
  if (!world_->Answers(worker, watch.to)) return static_cast<Rank>(WorkerOf(watch.to));
  WatchOffer(worker, watch.to);
  return std::nullopt;
}

// ---- pulls ----

void Exchange::StartPull(std::uint32_t worker, const prd::StartPull& start) {
  Side& side = sides_[worker];
  if (start.ticket <= side.newest_ticket) {
    throw Violation("tickets",
                    WorkerName(worker) + " uses ticket " + std::to_string(start.ticket) + " again");
  }
  side.newest_ticket = start.ticket;
  if (start.parcel.kind == PeerItem::Kind::kUpdate) {
    const auto of_it = std::count_if(side.pulls.begin(), side.pulls.end(), [&](const auto& pull) {
      return pull.second.from == start.from;
    });
    neighbours_.Pulls(worker, start.from, static_cast<std::size_t>(of_it), side.pulls.size());
  }
  Pull& pull = side.pulls[start.ticket];
  pull.from = start.from;
  pull.parcel = start.parcel;
  const Incarnation own = world_->replicas[worker].incarnation;
  if (!side.peers.contains(start.from) || world_->Fault(world_->workload.faults.fetch_fails)) {
    return Fail(start.from, own, start.ticket);
  }
  const std::uint32_t source = WorkerOf(start.from);
  ++world_->messages;
  if (!Whole(worker, source)) return FailLate(start.from, own, start.ticket);
  if (world_->Frozen(source)) FailLate(start.from, own, start.ticket);
  world_->queue.Push(
      Arrival(worker, source), EventKind::kRequest, source,
      asked_.Put({.from = own, .to = start.from, .ticket = start.ticket, .parcel = start.parcel}));
}

void Exchange::Frozen(std::uint32_t worker) {
  const Incarnation frozen = world_->replicas[worker].incarnation;
  for (std::uint32_t i = 0; i < sides_.size(); ++i) {
    for (const auto& [ticket, pull] : sides_[i].pulls) {
      if (pull.from != frozen || pull.through) continue;
      FailLate(frozen, world_->replicas[i].incarnation, ticket);
    }
  }
}

void Exchange::Fail(Incarnation from, Incarnation to, Ticket ticket, bool late) {
  const auto jitter = static_cast<DurationNs>(world_->prng.Below(kPullFails));
  world_->queue.Push(
      world_->now + (late ? world_->LeaseNs() : 0) + kPullFails + jitter, EventKind::kPulled,
      WorkerOf(to),
      answered_.Put(
          {.from = from, .to = to, .ticket = ticket, .ok = false, .late = late, .load = {}}));
}

bool Exchange::OutOfReach(std::uint32_t worker, const Answered& failed) const {
  if (failed.late) return !world_->Answers(worker, failed.from);
  return world_->replicas[WorkerOf(failed.from)].incarnation == 0;
}

std::optional<Exchange::Requested> Exchange::OnRequest(std::uint32_t worker, std::uint64_t what) {
  const Asked asked = asked_.Take(what);
  Side& side = sides_[worker];
  if (!world_->Lives(asked.to) || !side.peers.contains(asked.from)) {
    Fail(asked.to, asked.from, asked.ticket);
    return std::nullopt;
  }
  if (!Whole(worker, WorkerOf(asked.from))) {
    FailLate(asked.to, asked.from, asked.ticket);
    return std::nullopt;
  }
  side.offered.erase(asked.from);
  const Request request = side.next_request++;
  side.requests[request] = {.from = asked.from, .ticket = asked.ticket, .parcel = asked.parcel};
  return Requested{.from = asked.from, .request = request, .parcel = asked.parcel};
}

void Exchange::Refuse(std::uint32_t worker, Request request) {
  const auto it = sides_[worker].requests.find(request);
  if (it == sides_[worker].requests.end()) {
    throw Violation("served", WorkerName(worker) + " refuses a request that it has not");
  }
  Fail(world_->replicas[worker].incarnation, it->second.from, it->second.ticket);
  sides_[worker].requests.erase(it);
}

void Exchange::Serve(std::uint32_t worker, RunId run, const prd::Serve& serve) {
  Side& side = sides_[worker];
  const auto it = side.requests.find(serve.request);
  const PeerItem& parcel = serve.parcel;
  if (it == side.requests.end() || it->second.parcel.kind != parcel.kind ||
      it->second.parcel.shard != parcel.shard ||
      (parcel.stamp != it->second.parcel.stamp && parcel.kind != PeerItem::Kind::kState)) {
    throw Violation("served",
                    WorkerName(worker) + " serves " + Text(parcel) + " where " +
                        (it == side.requests.end() ? "nothing" : Text(it->second.parcel)) +
                        " is asked for");
  }
  const Incoming incoming = it->second;
  side.requests.erase(it);
  const Incarnation own = world_->replicas[worker].incarnation;
  Load load;
  load.enclosure = serve.enclosure;
  if (parcel.kind == PeerItem::Kind::kUpdate) {
    const auto update = side.published.find(parcel.stamp);
    if (update == side.published.end()) {
      throw Violation("served", WorkerName(worker) + " has retired " + Text(parcel));
    }
    load.values = update->second.values;
    load.tag = update->second.tag;
  } else if (parcel.kind == PeerItem::Kind::kDelta) {
    if (side.delta_clock != parcel.stamp) {
      throw Violation("served", WorkerName(worker) + " serves " + Text(parcel) +
                                    " and has that of " + std::to_string(side.delta_clock));
    }
    load.values = Part(side.delta, Cut(side, side.delta.size(), parcel.shard));
  } else {
    const ShardCopy& copy = Kept(worker, parcel.shard);
    store_.Serves(run, copy, own, incoming.from, parcel, serve.enclosure);
    load.copy = std::make_shared<const ShardCopy>(copy);
  }
  if (!Whole(worker, WorkerOf(incoming.from))) {
    return FailLate(own, incoming.from, incoming.ticket);
  }
  const ReducePart& reduce = world_->workload.reduce;
  const bool local = world_->HostOf(worker) == world_->HostOf(WorkerOf(incoming.from));
  const double bytes = BytesOf(side, parcel, load);
  const double speed = local ? reduce.local_bandwidth_mb_per_s : reduce.bandwidth_mb_per_s;
  Instant& busy = busy_[{worker, WorkerOf(incoming.from)}];
  busy = std::max(busy, world_->now) + FromUs(bytes / speed);  // a MB/s is a byte per us
  if (!local) {
    busy = std::max(busy, world_->cards.Carry(world_->now, world_->HostOf(worker),
                                              world_->HostOf(WorkerOf(incoming.from)), bytes));
  }
  const DurationNs slow = world_->links.Slowness(world_->now, worker, WorkerOf(incoming.from));
  if (slow > 0) world_->Disturbed(busy + slow);
  bytes_ += static_cast<std::uint64_t>(bytes);
  stats_->workers[worker].sent += static_cast<std::uint64_t>(bytes);
  world_->queue.Push(busy + slow + FromUs(local ? reduce.local_latency_us : reduce.latency_us),
                     EventKind::kPulled, WorkerOf(incoming.from),
                     answered_.Put({.from = own,
                                    .to = incoming.from,
                                    .ticket = incoming.ticket,
                                    .ok = true,
                                    .load = std::move(load)}));
}

double Exchange::BytesOf(const Side& side, const PeerItem& parcel, const Load& load) const {
  const double all = world_->workload.reduce.bytes;
  if (parcel.kind == PeerItem::Kind::kUpdate) return all;
  const bool pending = parcel.kind == PeerItem::Kind::kState && load.copy->in_pending.size() > 0;
  return all / std::max(side.shards, 1u) * (pending ? 2 : 1);
}

std::optional<Exchange::Pulled> Exchange::OnPulled(std::uint32_t worker, std::uint64_t what) {
  Answered answered = answered_.Take(what);
  if (!world_->Lives(answered.to)) return std::nullopt;
  Side& side = sides_[worker];
  const auto it = side.pulls.find(answered.ticket);
  if (it == side.pulls.end()) return std::nullopt;
  Pull& pull = it->second;
  Pulled pulled{.ticket = answered.ticket,
                .ok = false,
                .enclosure = {},
                .from = pull.from,
                .parcel = pull.parcel};
  if (!answered.ok && pull.through) return std::nullopt;  // it came before the time was over
  if (!answered.ok || !world_->Lives(answered.from)) {
    pulled.out_of_reach = side.peers.contains(answered.from) && OutOfReach(worker, answered);
    side.pulls.erase(it);
    return pulled;
  }
  side.offered.erase(answered.from);
  pull.through = true;
  pull.load = std::move(answered.load);
  if (pull.parcel.kind == PeerItem::Kind::kUpdate) {
    neighbours_.Received(worker, pull.from, pull.parcel.stamp);
  }
  pulled.ok = true;
  pulled.enclosure = pull.load.enclosure;
  if (mutation_ == Mutation::kClockForgotten) pulled.enclosure.clocks.clear();
  return pulled;
}

// What was pulled under the ticket, which is used up.
Exchange::Pull Exchange::Use(std::uint32_t worker, Ticket ticket, PeerItem::Kind kind,
                             std::uint32_t shard) {
  auto node = sides_[worker].pulls.extract(ticket);
  if (node.empty() || !node.mapped().through || node.mapped().parcel.kind != kind ||
      node.mapped().parcel.shard != shard) {
    throw Violation("tickets",
                    WorkerName(worker) + " uses ticket " + std::to_string(ticket) +
                        (node.empty() ? ", which it has not"
                                      : ", under which it pulls " + Text(node.mapped().parcel)));
  }
  return std::move(node.mapped());
}

// ---- updates of neighbours ----

void Exchange::Publish(std::uint32_t worker, Iteration iteration) {
  const Replica& replica = world_->replicas[worker];
  if (iteration != replica.iteration) {
    throw Violation("entry", WorkerName(worker) + " publishes iteration " +
                                 std::to_string(iteration) + " in " +
                                 std::to_string(replica.iteration));
  }
  neighbours_.Publishes(worker, iteration);
  sides_[worker].published[iteration] = {.values = replica.x, .tag = replica.tag};
}

void Exchange::Mix(std::uint32_t worker, const MixUpdates& mix) {
  Replica& replica = world_->replicas[worker];
  std::vector<NeighbourBook::Used> used;
  std::vector<Pull> pulls;
  for (const MixUpdates::Update& update : mix.updates) {
    pulls.push_back(Use(worker, update.ticket, PeerItem::Kind::kUpdate, 0));
    used.push_back({.from = pulls.back().from,
                    .iteration = pulls.back().parcel.stamp,
                    .weight = update.weight,
                    .tag = pulls.back().load.tag});
  }
  if (mutation_ == Mutation::kUpdateTwice && !used.empty()) used.front().weight *= 2;
  neighbours_.Mixes(worker, mix.own_weight, used);
  for (double& value : replica.x) value *= mix.own_weight;
  for (std::size_t i = 0; i < pulls.size(); ++i) {
    const Load& load = pulls[i].load;
    for (std::size_t j = 0; j < replica.x.size(); ++j) {
      replica.x[j] += mix.updates[i].weight * load.values[j];
    }
    replica.tag = Mixed(replica.tag ^ load.tag);
  }
}

// ---- shards ----

std::pair<std::size_t, std::size_t> Exchange::Cut(const Side& side, std::size_t size,
                                                  std::uint32_t shard) const {
  if (shard >= side.shards) {
    throw Violation("served", "shard " + std::to_string(shard) + " of " +
                                  std::to_string(side.shards) + " is asked for");
  }
  return {size * shard / side.shards, size * (shard + 1) / side.shards};
}

ShardCopy& Exchange::Kept(std::uint32_t worker, std::uint32_t shard) {
  const auto copy = sides_[worker].kept.find(shard);
  if (copy == sides_[worker].kept.end()) {
    throw Violation("served", WorkerName(worker) + " has no shard " + std::to_string(shard));
  }
  return copy->second;
}

void Exchange::TakeDelta(std::uint32_t worker, double share) {
  Side& side = sides_[worker];
  const Replica& replica = world_->replicas[worker];
  side.base.resize(replica.x.size());
  side.delta.resize(replica.x.size());
  for (std::size_t j = 0; j < replica.x.size(); ++j) {
    side.delta[j] = share * (replica.x[j] - side.base[j]);
  }
  side.delta_clock = replica.iteration + 1;
}

void Exchange::KeepShard(std::uint32_t worker, const prd::KeepShard& keep) {
  Side& side = sides_[worker];
  const Replica& replica = world_->replicas[worker];
  const auto cut = Cut(side, replica.x.size(), keep.shard);
  if (keep.ticket != 0) {
    side.kept[keep.shard] = *Use(worker, keep.ticket, PeerItem::Kind::kState, keep.shard).load.copy;
    std::vector<double>& values = side.kept[keep.shard].values;
    if (mutation_ == Mutation::kCopyDamaged && !values.empty()) values.back() += 0.1;
  } else {
    const std::vector<double>& read = side.base.empty() ? replica.x : side.base;
    side.kept[keep.shard] = {
        .values = Part(read, cut), .pending = {}, .in_values = {}, .in_pending = {}};
  }
}

void Exchange::AddDelta(std::uint32_t worker, const prd::AddDelta& add) {
  Side& side = sides_[worker];
  ShardCopy& copy = Kept(worker, add.shard);
  Incarnation from = world_->replicas[worker].incarnation;
  Iteration clock = side.delta_clock;
  std::vector<double> delta;
  std::optional<PeerMessage> offer;
  if (add.ticket != 0) {
    Pull pull = Use(worker, add.ticket, PeerItem::Kind::kDelta, add.shard);
    from = pull.from;
    clock = pull.parcel.stamp;
    delta = std::move(pull.load.values);
    const auto offered = side.offers.find({from, pull.parcel});
    if (offered != side.offers.end()) offer = offered->second;
    std::erase_if(side.offers, [&](const auto& of) {
      return of.first.first == from && of.first.second.stamp < clock;
    });
  } else {
    delta = Part(side.delta, Cut(side, side.delta.size(), add.shard));
  }
  store_.Adds(copy, add.shard, from, clock, add.factor, add.pending, offer,
              *StoreOf(plans_[worker]));
  if (mutation_ == Mutation::kDeltaLost && clock % 5 == 4) return;
  (add.pending ? copy.in_pending : copy.in_values).Add(from, clock);
  std::vector<double>& into = add.pending ? copy.pending : copy.values;
  into.resize(delta.size());
  for (std::size_t j = 0; j < delta.size(); ++j) into[j] += add.factor * delta[j];
}

void Exchange::MergePending(std::uint32_t worker, std::uint32_t shard) {
  ShardCopy& copy = Kept(worker, shard);
  for (std::size_t j = 0; j < copy.pending.size(); ++j) copy.values[j] += copy.pending[j];
  copy.pending.clear();
  copy.in_values.Add(copy.in_pending);
  copy.in_pending = {};
}

void Exchange::ReadShard(std::uint32_t worker, RunId run, const prd::ReadShard& read) {
  Side& side = sides_[worker];
  Replica& replica = world_->replicas[worker];
  std::shared_ptr<const ShardCopy> pulled;
  if (read.ticket != 0) {
    pulled = Use(worker, read.ticket, PeerItem::Kind::kShard, read.shard).load.copy;
  }
  const ShardCopy& copy = pulled != nullptr ? *pulled : Kept(worker, read.shard);
  if (pulled == nullptr) {
    store_.Reads(run, copy, replica.incarnation, read.shard,
                 std::max(side.read_clock, replica.iteration));
  }
  const auto [from, to] = Cut(side, replica.x.size(), read.shard);
  side.base.resize(replica.x.size());
  for (std::size_t j = from; j < to; ++j) replica.x[j] = side.base[j] = copy.values[j - from];
  side.read_tags[read.shard] = copy.in_values.tag();
  replica.tag = Mixed(run);
  for (const std::uint64_t tag : side.read_tags) replica.tag = Mixed(replica.tag ^ tag);
}

}  // namespace prd::sim
