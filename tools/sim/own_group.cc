#include "tools/sim/own_group.h"

#include <string>
#include <variant>

#include "engines/violation.h"
#include "tools/sim/names.h"
#include "tools/sim/world.h"

namespace prd::sim {

void OwnGroup::CheckSays(std::uint32_t worker, const WorkerBody& body) const {
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

bool OwnGroup::Passive(std::uint32_t worker, GroupId group) const {
  if (group_.id != group) return false;
  for (const GroupMember& member : group_.members) {
    if (WorkerOf(member.incarnation) == worker) return member.passive;
  }
  return false;
}

}  // namespace prd::sim
