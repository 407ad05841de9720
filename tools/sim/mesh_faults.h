// What goes wrong between meshes: breaks, cuts, ends of processes and processes that stand still,
// as often as the seed says; and between whom something is wrong, or was lately.
//
//   accused   of mesh_run.h
#ifndef PRD_TOOLS_SIM_MESH_FAULTS_H_
#define PRD_TOOLS_SIM_MESH_FAULTS_H_

#include <cstddef>
#include <functional>
#include <map>
#include <utility>

#include "tools/sim/mesh_world.h"

namespace prd::sim::mesh {

class MeshFaults {
 public:
  static constexpr DurationNs kLast = 6 * kSecond;  // from the beginning

  // `kill` ends a worker's process.
  MeshFaults(MeshWorld* world, std::function<void(Worker*)> kill)
      : world_(world), kill_(std::move(kill)), end_(world->now() + kLast) {}

  Instant end() const { return end_; }
  bool On() const { return world_->now() < end_; }
  // Nothing but ends of processes goes wrong.
  bool KillsAlone() const;
  // The next one happens when it is its time, and those after it.
  void Schedule();

  // Something is wrong with the worker for so long, and what comes of that may last.
  void Disturb(std::size_t worker, DurationNs time) {
    for (std::size_t other = 0; other < world_->workers.size(); ++other) {
      Disturb(worker, other, time);
    }
  }
  // The worker says that another one is out of reach. Throws Violation.
  void CheckAccused(const Worker& worker, Rank accused, GroupId group) const;

 private:
  double PerSecond() const;
  void Disturb(std::size_t a, std::size_t b, DurationNs time);
  void Do();

  MeshWorld* world_;
  const std::function<void(Worker*)> kill_;
  const Instant end_;
  std::map<std::pair<std::size_t, std::size_t>, Instant> disturbed_;
};

}  // namespace prd::sim::mesh

#endif  // PRD_TOOLS_SIM_MESH_FAULTS_H_
