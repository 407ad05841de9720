#include "tools/sim/mesh_questions.h"

#include "engines/violation.h"

namespace prd::sim::mesh {

void MeshQuestions::Ask(Worker* worker) {
  SharedList<GroupMember> targets;
  std::set<Incarnation>& asked = asked_[worker->number];
  asked.clear();
  std::string whom;
  for (const Worker& other : world_->workers) {
    if (other.mesh == nullptr || &other == worker || world_->prng.Below(2) == 0) continue;
    targets.push_back(world_->MemberOf(other));
    asked.insert(other.incarnation);
    whom += " " + std::to_string(other.number);
  }
  world_->result.probes += targets.size();
  world_->Say(WorkerName(worker->number) + " asks" + whom);
  worker->mesh->Probe(world_->now(), targets);
  world_->Wake(worker);
}

void MeshQuestions::OnProbed(const Worker& worker, Rank rank, Incarnation of) {
  const std::string hears = WorkerName(worker.number) + " hears an answer of " +
                            WorkerName(static_cast<std::uint32_t>(rank));
  if (asked_[worker.number].erase(of) == 0 || (of & 0xff) != static_cast<Incarnation>(rank)) {
    throw Violation("probed", hears + " that it does not wait for");
  }
  const auto ended = ended_.find(of);
  const bool on_its_way = ended == ended_.end() || world_->now() - ended->second < 4 * kLease;
  if (!on_its_way) throw Violation("probed", hears + " long after its end");
}

void MeshQuestions::Ended(const Worker& worker) {
  asked_[worker.number].clear();
  ended_[worker.incarnation] = world_->now();
}

void MeshQuestions::CheckOver(const Worker& worker) const {
  if (world_->setting.network.attacks > 0) return;
  for (const Incarnation asked : asked_[worker.number]) {
    const Worker& other = world_->workers[asked & 0xff];
    if (other.mesh == nullptr || other.incarnation != asked) continue;
    throw Violation("hang",
                    WorkerName(worker.number) + " has no answer of " + WorkerName(other.number));
  }
}

}  // namespace prd::sim::mesh
