// What groups of workers with real meshes give, as it is to be: in float64, beside their replica
// stores.
//
//   result       a member of a group that succeeded has, where results go, what the members gave,
//                summed by weight; and so has a worker that copies the result of a round. Where
//                results take the place of what was given, all members have the same bits
//   one-average  of gradients, or changes, that an earlier group has averaged for the same step, a
//                member's average is not summed again
//   untouched    a group that failed for a member has changed nothing there; where results land in
//                place, some elements may be the result's
//   contributed  no group succeeds before all that contribute to it have begun it
#ifndef PRD_TOOLS_SIM_GROUP_BOOK_H_
#define PRD_TOOLS_SIM_GROUP_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "tools/sim/group_sums.h"
#include "tools/sim/mesh_values.h"
#include "worker/core/actions.h"
#include "worker/mesh/mesh.h"

namespace prd::sim {

class GroupBook {
 public:
  explicit GroupBook(std::size_t workers) : sides_(workers) {}

  // The worker is about to take part in a group, or to copy the result of a round to which it
  // `contributed`; instead of what it did before.
  void Begins(std::uint32_t worker, RunId run, const StartReduce& start, const Plan& plan,
              const ReplicaStore& store);
  void Copies(std::uint32_t worker, RunId run, const StartFetch& fetch);
  // Its mesh is about to go on.
  void GoesOn(std::uint32_t worker, const ReplicaStore& store);
  // What it began has ended while its mesh went on. Throws Violation.
  void Ends(std::uint32_t worker, bool ok, const ReplicaStore& store);
  void Copied(std::uint32_t worker, bool ok, const ReplicaStore& store);
  // The group is called off there. Throws Violation.
  void Cancelled(std::uint32_t worker, const ReplicaStore& store);
  // A call begins: its gradients are others.
  void Enters(std::uint32_t worker) { sides_[worker].offered.reset(); }
  // It has begun nothing.
  void Clear(std::uint32_t worker) { sides_[worker] = {}; }

  // Results that were held to their sums, and their elements that an earlier group had averaged.
  std::uint64_t results() const { return results_; }
  std::uint64_t held() const { return held_; }

 private:
  using Numbers = std::vector<double>;
  struct Member {
    std::optional<Numbers> gave, was, holds;  // as mesh::Part
    bool landed = false;
    Numbers before;  // where results land, but in the inbox
  };
  struct Formed {
    Group group;
    Reduced what;
    Plan plan;
    std::vector<Member> members;  // as in the group
    std::optional<mesh::Bytes> result;
    std::size_t through = 0;  // members that have it
  };
  struct Side {
    Formed* formed = nullptr;                            // that it takes part in,
    std::size_t position = 0;                            // as this member
    std::optional<std::pair<RunId, StartFetch>> copies;  // of a result
    // Gradients of the call, or parameters whose changes are averaged, as they were before a group
    // did so, and for which iteration.
    std::optional<Numbers> offered;
    Iteration offered_for = 0;
    // The inbox before the mesh went on, and of which round it was; empty: there was none.
    Numbers inbox;
    Iteration inbox_round = 0;
  };

  Formed* Find(RunId run, const StartReduce& start, const Plan& plan);
  static std::vector<mesh::Part> PartsOf(const Formed& formed);
  // Whether all that contribute have begun it.
  static bool Known(const Formed& formed);
  mesh::Due DueOf(const Formed& formed, const ReplicaStore& store) const;
  void CheckLanded(std::uint32_t worker, Formed* formed, std::size_t position,
                   const ReplicaStore& store);
  void CheckInbox(std::uint32_t worker, const Formed& formed, mesh::Due due, const Numbers* own,
                  const ReplicaStore& store);
  void CheckUntouched(std::uint32_t worker, const Formed& formed, std::size_t position,
                      const ReplicaStore& store);
  void CheckFolded(std::uint32_t worker, const Formed& formed, const Numbers& gave,
                   const ReplicaStore& store);
  void CheckEarlier(std::uint32_t worker, const Formed& formed, const Numbers& values,
                    const Numbers& before, Numbers* sum);
  void CheckNear(const char* law, std::uint32_t worker, const Formed& formed, const Numbers& found,
                 const mesh::Due& due) const;

  std::vector<Side> sides_;
  // A controller that has forgotten one group may form another with its id.
  std::multimap<std::pair<RunId, GroupId>, Formed> formed_;
  std::uint64_t results_ = 0;
  std::uint64_t held_ = 0;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_GROUP_BOOK_H_
