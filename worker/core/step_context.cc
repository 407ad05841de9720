#include "worker/core/step_context.h"

#include <algorithm>

#include "worker/core/session_parts.h"

namespace prd {

StepContext::StepContext(SessionParts& parts)
    : now(parts.now),
      link(parts.link),
      call(parts.call),
      standing(parts.standing),
      step(parts.step),
      work(parts.work),
      beside(parts.beside),
      parts_(parts) {}

Aim StepContext::aim() const { return parts_.aim(); }
std::size_t StepContext::max_members() const { return parts_.options.max_members; }

bool StepContext::Passive(const Group& group) const {
  if (!DrawnAhead(plan()) || group.kind != GroupKind::kTrain) return false;
  return std::any_of(group.members.begin(), group.members.end(), [this](const GroupMember& member) {
    return member.incarnation == link.incarnation() && member.passive;
  });
}

bool StepContext::Contributes(const Group& group) const {
  return std::any_of(group.members.begin(), group.members.end(), [this](const GroupMember& member) {
    return member.incarnation == link.incarnation() && member.weight != 0;
  });
}

void StepContext::RefuseCopy(const std::string& why, Actions* out) {
  Push(Adopted{.ok = false, .iteration = 0, .detail = why}, out);
}

}  // namespace prd
