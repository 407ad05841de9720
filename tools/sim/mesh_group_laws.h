// What a group makes of its members' replicas in prdsim mesh, against float64: a result that is
// due, or nothing; and what is to be in inboxes.
//
//   result, untouched, contributed, one-average, torn (of results that are copied)  of mesh_run.h
#ifndef PRD_TOOLS_SIM_MESH_GROUP_LAWS_H_
#define PRD_TOOLS_SIM_MESH_GROUP_LAWS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/sim/group_sums.h"
#include "tools/sim/mesh_world.h"

namespace prd::sim::mesh {

struct Taking {  // one member's part in a group
  std::size_t worker = 0;
  std::uint64_t life = 0;
  double weight = 0;
  bool begun = false;
  std::optional<std::vector<double>> gave;
  Bytes before;                                   // where the result goes
  std::optional<std::vector<double>> was, holds;  // as Part
  bool landed = false;
  bool over = false;
  bool ok = false;
};
struct Formed {
  Group group;
  std::vector<Taking> members;
  std::optional<Bytes> result;  // of the first that has it, where all have the same
  bool tried_again = false;
  int tries = 1;
};

// All throw Violation.
class MeshGroupLaws {
 public:
  explicit MeshGroupLaws(MeshWorld* world) : world_(world), inboxes_(world->setting.workers) {}

  // The worker begins: what it brings, where that is known by now, and what is there.
  void Begins(const Worker& worker, const Formed& formed, Taking* member) const;
  // It has the result.
  void CheckResult(const Worker& worker, Formed* formed, const Taking& member);
  // A group that failed has changed nothing here, or some elements where averages land in place.
  void CheckUntouched(Worker* worker, const Formed& formed, const Taking& member,
                      const std::string& why);
  // What a round that fails has not taken is owed still.
  void CheckOutbox(const Worker& worker, const Formed& formed, const Taking& member) const;
  // The worker has copied the result of this round.
  void CheckFetched(Worker* worker, const Formed& formed);

  // The worker's inbox is empty; or, after a copy, as it stands.
  void EmptyInbox(const Worker& worker) { inboxes_[worker.number].sum.clear(); }
  void SetInbox(const Worker& worker);

 private:
  const Layout& ShapeOf(const Worker& worker, GroupKind kind) const;
  // What the result changes.
  Bytes LandingOf(const Worker& worker, GroupKind kind) const;
  static std::vector<Part> PartsOf(const Formed& formed);
  // What is due, in rows of this layout.
  static Due SumOf(const Formed& formed, const Layout& layout);
  // What is to become of the base, of which `due` is that of the changes.
  void AddBase(const std::vector<double>& base, Due* due) const;
  // As mesh::HoldToEarlier.
  void HoldToEarlier(const Formed& formed, const std::vector<double>& values,
                     const std::vector<double>& before, Due* due);
  void CheckFolded(Worker* worker, const Formed& formed, const Taking& member);
  void CheckInbox(const Worker& worker, const Formed& formed, const Taking& member, const Due& due,
                  const Bytes& after, double steps);

  MeshWorld* world_;
  std::vector<Due> inboxes_;  // by worker, what is to be there
};

}  // namespace prd::sim::mesh

#endif  // PRD_TOOLS_SIM_MESH_GROUP_LAWS_H_
