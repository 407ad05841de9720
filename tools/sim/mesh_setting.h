// What a seed of prdsim mesh draws (mesh_run.h): workers and hosts, what they reduce, and what goes
// wrong.
#ifndef PRD_TOOLS_SIM_MESH_SETTING_H_
#define PRD_TOOLS_SIM_MESH_SETTING_H_

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/prng.h"
#include "tools/sim/mesh_values.h"
#include "tools/sim/network.h"

namespace prd::sim::mesh {

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
  double devices = 0;  // of the workers' replicas, so many are on one
  NetworkOptions network;
};

Setting Draw(Prng* prng);
// In words.
std::string Text(const Setting& setting);

}  // namespace prd::sim::mesh

#endif  // PRD_TOOLS_SIM_MESH_SETTING_H_
