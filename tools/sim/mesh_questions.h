// Questions whether others are there, in prdsim mesh, and who may answer them.
//
//   probed, hang   of mesh_run.h
#ifndef PRD_TOOLS_SIM_MESH_QUESTIONS_H_
#define PRD_TOOLS_SIM_MESH_QUESTIONS_H_

#include <map>
#include <set>

#include "tools/sim/mesh_world.h"

namespace prd::sim::mesh {

class MeshQuestions {
 public:
  explicit MeshQuestions(MeshWorld* world) : world_(world), asked_(world->setting.workers) {}

  void Ask(Worker* worker);
  void OnProbed(const Worker& worker, Rank rank, Incarnation of);
  // The worker's process has ended.
  void Ended(const Worker& worker);
  // It is in nothing any more. Throws Violation.
  void CheckOver(const Worker& worker) const;

 private:
  MeshWorld* world_;
  std::vector<std::set<Incarnation>> asked_;  // by worker
  std::map<Incarnation, Instant> ended_;
};

}  // namespace prd::sim::mesh

#endif  // PRD_TOOLS_SIM_MESH_QUESTIONS_H_
