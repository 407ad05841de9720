#include "tools/sim/mesh_copies.h"

#include "engines/violation.h"
#include "tools/sim/mesh_groups.h"
#include "tools/sim/mesh_pulls.h"

namespace prd::sim::mesh {

void MeshCopies::Fetch(Worker* worker) {
  Worker* source = world_->Any();
  if (source == nullptr || source == worker || Copying(*worker) || groups_->Has(*worker) ||
      worker->replica.applying() || pulls_->Waits(*worker)) {
    return;
  }
  // The source may be about to copy itself, or does so already.
  const std::optional<Copy>& its = copying_[source->number];
  if (!source->started && !(its && its->result == kNoGroup)) return;
  ++world_->result.copies;
  worker->started = false;
  const bool in_place = world_->prng.Below(2) == 0;
  copying_[worker->number] = {
      .source = source->number, .life = source->life, .since = world_->now(), .in_place = in_place};
  const GroupMember member = world_->MemberOf(*source);
  // The order may come late.
  if (world_->prng.Below(10) != 0) {  // or there is none
    world_->After(world_->DelayNs(4e6),
                  [this, source, life = source->life, taker = world_->MemberOf(*worker)] {
                    if (source->Is(life) && world_->Lives(taker)) Order(source, taker);
                  });
  }
  worker->mesh->Announce(world_->now(), {member});
  world_->Say(WorkerName(worker->number) + " begins to copy " + WorkerName(source->number) +
              (in_place ? ", in place" : ""));
  worker->mesh->StartFetch(world_->now(), member, kNoGroup, false, in_place);
  world_->Wake(worker);
}

void MeshCopies::Order(Worker* source, const GroupMember& taker) {
  ++orders_[{source->incarnation, taker.incarnation}];
  source->mesh->Announce(world_->now(), {taker}, true);
  world_->Wake(source);
}

const Worker* MeshCopies::Take(const Worker& worker, const Copy& copy) {
  ++world_->result.copied;
  const Worker& source = world_->workers[copy.source];
  if (source.life != copy.life) return nullptr;
  if (orders_[{source.incarnation, worker.incarnation}]-- <= 0) {
    throw Violation("ordered", WorkerName(worker.number) + " has a copy of " +
                                   WorkerName(source.number) + " that was not ordered");
  }
  return source.replica.there() ? &source : nullptr;  // else its versions are gone
}

void MeshCopies::Sample(Worker* worker, Worker* source) {
  if (source == nullptr) source = world_->Any();
  std::optional<Copy>& sampling = sampling_[worker->number];
  if (source == nullptr || source == worker || !source->started || sampling) return;
  ++world_->result.copies;
  sampling = {.source = source->number, .life = source->life, .since = world_->now()};
  Order(source, world_->MemberOf(*worker));
  worker->mesh->StartSample(world_->now(), world_->MemberOf(*source));
  world_->Wake(worker);
  if (world_->prng.Below(2) == 0) return;
  // The replica changes, and somebody else copies it.
  world_->After(world_->DelayNs(5e6), [this, source, life = source->life] {
    if (!source->Is(life)) return;
    world_->apply(source);
    Worker* next = world_->Any();
    if (next != nullptr && next != source && next->started) Sample(next, source);
  });
}

void MeshCopies::OnFetched(Worker* worker, const Status& status, Iteration iteration) {
  const MeshReplica& replica = worker->replica;
  if (replica.Lost()) return;
  const std::string who = WorkerName(worker->number);
  if (!Copying(*worker)) throw Violation("once", who + " ends a copy twice");
  const Copy copy = *std::exchange(copying_[worker->number], std::nullopt);
  const std::string whom = WorkerName(static_cast<std::uint32_t>(copy.source));
  world_->Say(who + " copies from " + whom + ": " + status.ToString());
  if (copy.result != kNoGroup) {
    if (status.ok()) ++world_->result.copied;
    if (status.ok()) groups_->OnResultFetched(worker, copy.result);
    return;
  }
  const bool torn = replica.store()->torn;
  if (!status.ok() && !torn && VersionOf(*replica.store()) != replica.newest()) {
    throw Violation("torn", who + " has a part of a copy that failed, and does not know it");
  }
  if (!torn) world_->SetVersion(worker);
  MeshWorld::CheckHonest(*worker, status);
  if (!status.ok()) return;
  if (torn) throw Violation("torn", who + " ends a copy, and is still torn");
  worker->started = true;
  groups_->Copied(*worker);
  const Worker* source = Take(*worker, copy);
  const Version& got = replica.newest();
  if (source == nullptr || source->replica.WasVersion(copy.since, [&](const Version& version) {
        return version.shared == got.shared && version.kept == got.kept &&
               version.inbox == got.inbox && version.iteration == got.iteration;
      })) {
    return;
  }
  throw Violation("torn", who + " has a copy, of iteration " + std::to_string(iteration) +
                              ", that " + whom + " never was");
}

void MeshCopies::FetchResult(Worker* worker, const Worker& source, GroupId round,
                             bool contributed) {
  ++world_->result.copies;
  copying_[worker->number] = {
      .source = source.number, .life = source.life, .since = world_->now(), .result = round};
  world_->After(0, [this, worker, life = worker->life, &source, source_life = source.life, round,
                    contributed] {
    if (!worker->Is(life)) return;
    if (!source.Is(source_life)) {
      copying_[worker->number].reset();
      return;
    }
    worker->mesh->StartFetch(world_->now(), world_->MemberOf(source), round, contributed);
    world_->Wake(worker);
  });
}

void MeshCopies::OnSampled(const Worker& worker, const Status& status,
                           const std::shared_ptr<Buffer>& row) {
  if (worker.replica.Lost()) return;
  const std::string who = WorkerName(worker.number);
  if (!sampling_[worker.number]) throw Violation("once", who + " ends a sample twice");
  const Copy sample = *std::exchange(sampling_[worker.number], std::nullopt);
  MeshWorld::CheckHonest(worker, status);
  if (!status.ok()) return;
  const Worker* source = Take(worker, sample);
  const Bytes got(row->data(), row->data() + row->size());
  if (source == nullptr || source->replica.WasVersion(sample.since, [&](const Version& version) {
        return version.shared == got;
      })) {
    return;
  }
  throw Violation("torn", who + " has a sample that " + WorkerName(source->number) + " never was");
}

void MeshCopies::Ended(const Worker& worker) {
  copying_[worker.number].reset();
  sampling_[worker.number].reset();
}

void MeshCopies::CheckOver(const Worker& worker) const {
  const std::string who = WorkerName(worker.number);
  if (Copying(worker)) throw Violation("hang", who + " is copying still");
  if (sampling_[worker.number]) throw Violation("hang", who + " is sampling still");
}

}  // namespace prd::sim::mesh
