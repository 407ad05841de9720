// MeshRun: copies of replicas, samples, questions, and neighbours' updates.
#include <algorithm>
#include <cmath>
#include <set>

#include "engines/violation.h"
#include "tools/sim/mesh_world.h"

namespace prd::sim::mesh {

// ---- versions ----

void MeshRun::SetVersion(Worker* worker) {
  Settle(*worker);
  Version version = VersionOf(*worker->store);
  if (!worker->versions.empty() && worker->versions.back().version == version) return;
  worker->versions.push_back({network_.now(), std::move(version)});
}

bool MeshRun::IsVersion(const Worker& source, Instant since,
                        const std::function<bool(const Version&)>& is) const {
  for (std::size_t i = source.versions.size(); i-- > 0;) {
    if (is(source.versions[i].version)) return true;
    if (source.versions[i].since < since) return false;
  }
  return false;
}

// ---- copies ----

void MeshRun::Fetch(Worker* worker) {
  Worker* source = Any();
  if (source == nullptr || source == worker || worker->copying || worker->reserved ||
      worker->applying || !worker->pulls.empty()) {
    return;
  }
  // The source may be about to copy itself, or does so already.
  if (!source->started && !(source->copying && source->copying->result == kNoGroup)) return;
  ++result_.copies;
  worker->started = false;
  const bool in_place = prng_.Below(2) == 0;
  worker->copying = {.source = source->number,
                     .life = source->life,
                     .since = network_.now(),
                     .in_place = in_place};
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
  Say(Name(worker->number) + " begins to copy " + Name(source->number) +
      (in_place ? ", in place" : ""));
  worker->mesh->StartFetch(network_.now(), member, kNoGroup, false, in_place);
  Wake(worker);
}

void MeshRun::Order(Worker* source, const GroupMember& taker) {
  ++orders_[{source->incarnation, taker.incarnation}];
  source->mesh->Announce(network_.now(), {taker}, true);
  Wake(source);
}

void MeshRun::TakeOrder(const Worker& source, const Worker& taker) {
  if (orders_[{source.incarnation, taker.incarnation}]-- > 0) return;
  throw Violation("ordered", Name(taker.number) + " has a copy of " + Name(source.number) +
                                 " that was not ordered");
}

void MeshRun::Sample(Worker* worker, Worker* source) {
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

void MeshRun::OnFetched(Worker* worker, const Status& status, Iteration iteration) {
  if (Lost(*worker)) return;
  if (!worker->copying) throw Violation("once", Name(worker->number) + " ends a copy twice");
  const Copying copying = *std::exchange(worker->copying, std::nullopt);
  Say(Name(worker->number) + " copies from " + Name(copying.source) + ": " + status.ToString());
  if (copying.result != kNoGroup) return OnResultFetched(worker, copying, status);
  if (!status.ok() && !worker->store->torn &&
      VersionOf(*worker->store) != worker->versions.back().version) {
    throw Violation("torn", Name(worker->number) +
                                " has a part of a copy that failed, and does "
                                "not know it");
  }
  if (!worker->store->torn) SetVersion(worker);
  CheckHonest(worker, status);
  if (!status.ok()) return;
  if (worker->store->torn) {
    throw Violation("torn", Name(worker->number) + " ends a copy, and is still torn");
  }
  ++result_.copied;
  ForgetChanges(worker);
  worker->started = true;
  worker->inbox.clear();
  if (!worker->versions.back().version.inbox.empty()) SetInbox(worker);
  const Worker& source = workers_[copying.source];
  if (source.life == copying.life) TakeOrder(source, *worker);
  if (source.life != copying.life || source.store == nullptr) return;  // its versions are gone
  const Version& got = worker->versions.back().version;
  const bool found = IsVersion(source, copying.since, [&](const Version& version) {
    return version.shared == got.shared && version.kept == got.kept && version.inbox == got.inbox &&
           version.iteration == got.iteration;
  });
  if (found) return;
  throw Violation("torn", Name(worker->number) + " has a copy, of iteration " +
                              std::to_string(iteration) + ", that " + Name(copying.source) +
                              " never was");
}

void MeshRun::OnSampled(Worker* worker, const Status& status, const std::shared_ptr<Buffer>& row) {
  if (Lost(*worker)) return;
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
  throw Violation(
      "torn", Name(worker->number) + " has a sample that " + Name(sampling.source) + " never was");
}

// ---- questions ----

void MeshRun::Probe(Worker* worker) {
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

void MeshRun::OnProbed(Worker* worker, Rank rank, Incarnation of) {
  const Worker& other = workers_[static_cast<std::size_t>(rank)];
  if (worker->probing.erase(of) == 0 || (of & 0xff) != static_cast<Incarnation>(rank)) {
    throw Violation("probed", Name(worker->number) + " hears an answer of " + Name(other.number) +
                                  " that it does not wait for");
  }
  const auto killed = killed_.find(of);
  if (killed == killed_.end() || network_.now() - killed->second < 4 * kLease)
    return;  // on its way
  throw Violation("probed", Name(worker->number) + " hears an answer of " + Name(other.number) +
                                " long after its end");
}

// ---- updates of neighbours ----

void MeshRun::Exchange(Worker* worker) {
  Mesh& mesh = *worker->mesh;
  const Instant now = network_.now();
  if (worker->applying) return;
  mesh.Do(now, PublishUpdate{++worker->newest});
  Settle(*worker);
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

void MeshRun::OnRequest(Worker* worker, Incarnation from, Request request, const PeerItem& parcel) {
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

void MeshRun::OnPulled(Worker* worker, Ticket ticket, const Status& status,
                       const ShardHeader& header) {
  if (Lost(*worker)) return;
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
    if (worker->mesh == nullptr || worker->life != life || Failed(*worker)) return;
    if (worker->applying || worker->copying) {
      worker->mesh->Do(network_.now(), DropPull{ticket});
      return;
    }
    Mix(worker, ticket, update);
  });
}

void MeshRun::Mix(Worker* worker, Ticket ticket, const std::optional<Bytes>& update) {
  const Layout& layout = worker->store->parameters;
  Settle(*worker);
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

}  // namespace prd::sim::mesh
