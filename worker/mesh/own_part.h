// This member's part of a group: what it contributes, and where the result goes.
//
// Part of GroupReduction.
#ifndef PRD_WORKER_MESH_OWN_PART_H_
#define PRD_WORKER_MESH_OWN_PART_H_

#include <cstddef>

#include "common/base/messages.h"
#include "prd/status.h"
#include "worker/device/plane.h"
#include "worker/memory/layout.h"
#include "worker/mesh/replica_store.h"

namespace prd {

class OwnPart {
 public:
  enum class What { kParameters, kGradients, kDifference, kOutbox, kVirtual };

  // The pointers outlive it. `position`: of this member. Up to `direct_bytes` go as wholes, and not
  // around in chunks. `in_place`: Mesh::StartReduce.
  OwnPart(ReplicaStore* store, const Plan* plan, const Group* group, std::size_t position,
          std::size_t direct_bytes, bool in_place)
      : store_(store),
        plan_(plan),
        group_(group),
        position_(position),
        direct_bytes_(direct_bytes),
        in_place_(in_place),
        shape_(&store->parameters) {}

  // First, and once. An error for what no member can do, or this one cannot under its plan.
  Status Choose(Reduced what);
  // Takes the part, which is fixed from then on. False: the caller is inside `apply`, or away.
  bool Take();
  bool taken() const { return taken_; }

  What what() const { return what_; }
  // The tensors' shapes.
  const Layout& shape() const { return *shape_; }
  // What is contributed is the outbox, not the tensors.
  bool own_row() const { return own_row_; }
  bool contributes() const { return group_->members[position_].weight != 0; }
  bool device() const { return store_->memory->device(); }
  bool MayBeLate() const { return DrawnAhead(*plan_) && group_->kind == GroupKind::kTrain; }

  // ---- where the result goes ----

  // Straight into the parameters: on the plane by the device itself, on a host as chunks are final.
  // Not on the plane where members may be late: from the first window on, the memory's stream waits
  // for all of them, and who is late may be copying this replica.
  bool Commits() const;
  // On a host: parameters, or gradients and changes that do not go around as wholes. Of these each
  // chunk that is final takes the place of the own part, and the store notes which have.
  bool InPlace() const;
  // Changes that go around in chunks.
  bool Settles() const { return what_ == What::kDifference && shape_->bytes() > direct_bytes_; }
  // Over a replica that is not contributed, at the common start.
  bool Overwrites() const { return in_place_ && !device(); }
  // To the store's own row for a round's result.
  bool Arrives() const { return what_ == What::kOutbox && !device(); }
  // To where the own part was. `on_plane`: the plane reduces it.
  bool ReplacesOutbox(bool on_plane) const;
  // On the plane.
  DevicePlane::Into Into() const;
  // Nowhere: it is this member's own part, bit for bit, as that of a group of one, and of a start
  // that takes this replica. Nothing is copied then, and nothing has to be committed.
  bool ResultStays() const;

 private:
  Status CheckInitial() const;

  ReplicaStore* store_;
  const Plan* plan_;
  const Group* group_;
  const std::size_t position_;
  const std::size_t direct_bytes_;
  const bool in_place_;
  What what_ = What::kParameters;
  const Layout* shape_;
  bool own_row_ = false;
  bool taken_ = false;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_OWN_PART_H_
