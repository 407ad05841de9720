#include "tools/sim/mesh_pulls.h"

#include <cmath>

#include "engines/violation.h"
#include "tools/sim/mesh_copies.h"

namespace prd::sim::mesh {

void MeshPulls::Exchange(Worker* worker) {
  Mesh& mesh = *worker->mesh;
  Side& side = sides_[worker->number];
  const Instant now = world_->now();
  if (worker->replica.applying()) return;
  mesh.Do(now, PublishUpdate{++side.newest});
  worker->replica.Settle();
  side.published[side.newest] = Read(worker->replica.store()->parameters);
  if (side.newest > 4) mesh.Do(now, RetireUpdate{side.newest - 4});
  Worker* from = world_->Any();
  if (from == nullptr || from == worker || sides_[from->number].newest == 0) return;
  const Iteration stamp =
      sides_[from->number].newest - static_cast<Iteration>(world_->prng.Below(2));
  mesh.Do(now, SendNote{from->incarnation,
                        {.parcel = {.stamp = side.newest}, .version = side.newest - 1}});
  const Ticket ticket = ++side.tickets;
  ++world_->result.pulls;
  side.pulls[ticket] = {from->number, from->life, stamp};
  world_->Say(WorkerName(worker->number) + " pulls update " + std::to_string(stamp) + " of " +
              WorkerName(from->number) + ", ticket " + std::to_string(ticket));
  mesh.Do(now, StartPull{ticket, from->incarnation, {.stamp = stamp}});
  if (world_->prng.Below(10) == 0) {
    mesh.Do(now, DropPull{ticket});
    side.pulls.erase(ticket);
  }
  world_->Wake(worker);
}

void MeshPulls::OnRequest(Worker* worker, Request request, const PeerItem& parcel) {
  world_->After(world_->DelayNs(2e6), [this, worker, life = worker->life, request, parcel] {
    if (!worker->Is(life)) return;
    const Side& side = sides_[worker->number];
    const Instant now = world_->now();
    if (side.published.contains(parcel.stamp) && side.newest - parcel.stamp < 4) {
      worker->mesh->Do(now, Serve{request, parcel, {.version = parcel.stamp}});
      // What is on its way is not touched by that.
      if (world_->prng.Below(4) == 0 && parcel.stamp < side.newest) {
        worker->mesh->Do(now, RetireUpdate{parcel.stamp});
      }
    } else {
      worker->mesh->Do(now, Refuse{request});
    }
    world_->Wake(worker);
  });
}

void MeshPulls::OnPulled(Worker* worker, Ticket ticket, const Status& status,
                         const ShardHeader& header) {
  if (worker->replica.Lost()) return;
  Side& side = sides_[worker->number];
  const std::string who = WorkerName(worker->number);
  const auto at = side.pulls.find(ticket);
  if (at == side.pulls.end()) {
    throw Violation("once",
                    who + " ends pull " + std::to_string(ticket) + " that it has not, or no more");
  }
  const Pulling pulling = at->second;
  side.pulls.erase(at);
  world_->Say(who + " ends pull " + std::to_string(ticket) + ": " + status.ToString());
  MeshWorld::CheckHonest(*worker, status);
  if (!status.ok()) return;
  ++world_->result.pulled;
  if (header.version != pulling.stamp) {
    throw Violation("mixed", who + " pulled update " + std::to_string(pulling.stamp) +
                                 ", and got " + std::to_string(header.version));
  }
  const std::map<Iteration, Bytes>& published = sides_[pulling.from].published;
  const bool known =
      world_->workers[pulling.from].life == pulling.life && published.contains(pulling.stamp);
  const std::optional<Bytes> update =
      known ? std::optional(published.at(pulling.stamp)) : std::nullopt;
  world_->After(world_->DelayNs(1e6), [this, worker, life = worker->life, ticket, update] {
    if (!worker->Is(life) || worker->replica.Failed()) return;
    if (worker->replica.applying() || copies_->Copying(*worker)) {
      worker->mesh->Do(world_->now(), DropPull{ticket});
      return;
    }
    Mix(worker, ticket, update);
  });
}

void MeshPulls::Mix(Worker* worker, Ticket ticket, const std::optional<Bytes>& update) {
  const Layout& layout = worker->replica.store()->parameters;
  worker->replica.Settle();
  const std::vector<double> own = Values(layout, Read(layout));
  worker->mesh->Do(world_->now(), MixUpdates{.own_weight = 0.5, .updates = {{ticket, 0.5}}});
  world_->SetVersion(worker);
  if (!update) return;
  const std::vector<double> other = Values(layout, *update);
  Due due{std::vector<double>(own.size()), std::vector<double>(own.size())};
  for (std::size_t j = 0; j < own.size(); ++j) {
    due.sum[j] = 0.5 * own[j] + 0.5 * other[j];
    due.size[j] = 0.5 * std::abs(own[j]) + 0.5 * std::abs(other[j]);
  }
  CheckNear("mixed", WorkerName(worker->number), layout, Read(layout), due, 2);
}

void MeshPulls::Ended(const Worker& worker) {
  sides_[worker.number].pulls.clear();
  sides_[worker.number].published.clear();
}

void MeshPulls::CheckOver(const Worker& worker) const {
  if (!Waits(worker)) return;
  throw Violation("hang", WorkerName(worker.number) + " waits for pull " +
                              std::to_string(sides_[worker.number].pulls.begin()->first) +
                              " still");
}

}  // namespace prd::sim::mesh
