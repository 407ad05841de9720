// The group that a worker is in, and what came of it. What its core tells of its own gradients in
// it is what the plane knows (gradients-once).
#ifndef PRD_TOOLS_SIM_OWN_GROUP_H_
#define PRD_TOOLS_SIM_OWN_GROUP_H_

#include <cstdint>
#include <string>
#include <variant>

#include "common/base/messages.h"
#include "engines/violation.h"
#include "tools/sim/names.h"
#include "tools/sim/plane.h"
#include "tools/sim/world.h"

namespace prd::sim {

class OwnGroup {
 public:
  // The worker is another incarnation.
  void Anew() { result_ = {}; }
  void Begins(const Group& group) { group_ = group; }
  // A reduction, or a copy, has ended.
  void Ends(const PlaneResult& result) { result_ = result; }
  // The worker says this. Throws Violation.
  void CheckSays(std::uint32_t worker, const WorkerBody& body) const {
    if (!result_.included) return;
    const auto* finished = std::get_if<Finished>(&body);
    const auto* adopted = std::get_if<Adopted>(&body);
    std::uint32_t told = 0;
    if (finished != nullptr && finished->group == result_.group) {
      told = finished->included;
    } else if (adopted != nullptr && adopted->ok && result_.group != kNoGroup) {
      told = adopted->included;
    } else {
      return;
    }
    if (told == *result_.included) return;
    throw Violation("gradients-once", WorkerName(worker) + " tells of " + std::to_string(told) +
                                          " gradients in group " + std::to_string(result_.group) +
                                          ", where " + std::to_string(*result_.included) + " are");
  }

  GroupId id() const { return group_.id; }  // the newest that it has begun
  // It is a passive member of this one.
  bool Passive(std::uint32_t worker, GroupId group) const {
    if (group_.id != group) return false;
    for (const GroupMember& member : group_.members) {
      if (WorkerOf(member.incarnation) == worker) return member.passive;
    }
    return false;
  }

 private:
  Group group_;
  PlaneResult result_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_OWN_GROUP_H_
