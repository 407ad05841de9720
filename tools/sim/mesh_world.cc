#include "tools/sim/mesh_world.h"

#include <cstdio>
#include <utility>

#include "engines/violation.h"

namespace prd::sim::mesh {

void MeshWorld::Wake(Worker* worker) {
  if (std::exchange(worker->woken, true)) return;
  const std::uint64_t life = worker->life;
  After(1 + DelayNs(2e4), [this, worker, life] {
    if (worker->life == life) serve(worker);
  });
}

Worker* MeshWorld::Any() {
  Worker& worker = workers[prng.Below(workers.size())];
  return worker.mesh != nullptr && !worker.replica.Failed() ? &worker : nullptr;
}

GroupMember MeshWorld::MemberOf(const Worker& worker) const {
  return {.rank = static_cast<Rank>(worker.number),
          .incarnation = worker.incarnation,
          .weight = 0,
          .host = "h" + std::to_string(worker.host),
          .endpoints = worker.mesh->endpoints(),
          .mesh_key = worker.mesh->key()};
}

bool MeshWorld::Lives(const GroupMember& member) const {
  const Worker& worker = workers[static_cast<std::size_t>(member.rank)];
  return worker.mesh != nullptr && worker.incarnation == member.incarnation;
}

void MeshWorld::EndApply(Worker* worker) {
  MeshReplica& replica = worker->replica;
  if (!replica.applying() || replica.Failed()) return;
  replica.ApplyRest(&prng);
  SetVersion(worker);
  replica.Unlock();
  Wake(worker);
}

void MeshWorld::CheckHonest(const Worker& worker, const Status& status) {
  if (status.code() != Code::kDataLoss) return;
  throw Violation("honest", WorkerName(worker.number) + " says " + status.ToString());
}

void MeshWorld::Hash(const Bytes& bytes) {
  for (const std::byte byte : bytes) {
    result.hash = (result.hash ^ static_cast<std::uint64_t>(byte)) * 1099511628211u;
  }
}

void MeshWorld::Say(const std::string& what) const {
  if (!options.trace) return;
  char time[32];
  std::snprintf(time, sizeof time, "%9.3f ms  ", static_cast<double>(now().ns - kSecond) / 1e6);
  options.trace(time + what);
}

}  // namespace prd::sim::mesh
