// Replicas of a few numbers, for real meshes (mesh_run.h, mesh_plane.h).
#ifndef PRD_TOOLS_SIM_MESH_VALUES_H_
#define PRD_TOOLS_SIM_MESH_VALUES_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tools/sim/group_sums.h"
#include "worker/mesh/mesh.h"

namespace prd::sim::mesh {

using Bytes = std::vector<std::byte>;

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

// The row of the layout's bytes.
Bytes Read(const Layout& layout);
inline Bytes CopyOf(const Row& row) { return {row.data(), row.data() + row.size()}; }

// Every element of a row of this layout, and the distance from 1 to the next number of its dtype.
std::vector<double> Values(const Layout& layout, const Bytes& row);
std::vector<double> Epsilons(const Layout& layout);
// The row of `who` is what is due: exactly, or within so many steps of what its dtypes round.
// Throws Violation of this law.
void CheckNear(const char* law, const std::string& who, const Layout& layout, const Bytes& row,
               const Due& due, double steps, bool exact = false);

// What a copy of a replica is to have.
struct Version {
  Bytes shared;  // parameters, as peers get them
  Bytes kept;
  Bytes inbox;  // of rounds
  Iteration iteration = 0;
  friend bool operator==(const Version&, const Version&) = default;
};
Bytes SharedOf(const ReplicaStore& store);
// The inbox, or what it is once it is unfolded. REQUIRES: there is one.
Bytes InboxOf(const ReplicaStore& store);
// Whether some of what a worker gives for that iteration is an earlier group's result already.
bool Landed(const ReplicaStore& store, Iteration iteration);
// parameters - base, as a row.
Bytes ChangeOf(const ReplicaStore& store);
Version VersionOf(const ReplicaStore& store);

// A key pair for each number, the same in every process. Thread safe.
const MeshKeyPair& KeyPair(std::size_t number);
// SharedSecret of two such pairs, computed once in a thread.
std::optional<SecretKey> KnownSecret(const MeshKeyPair& own, const MeshKey& peer);

}  // namespace prd::sim::mesh

#endif  // PRD_TOOLS_SIM_MESH_VALUES_H_
