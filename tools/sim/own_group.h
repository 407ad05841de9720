// The group that a worker is in, and what came of it. What its core tells of its own gradients in
// it is what the plane knows (gradients-once).
#ifndef PRD_TOOLS_SIM_OWN_GROUP_H_
#define PRD_TOOLS_SIM_OWN_GROUP_H_

#include <cstdint>

#include "common/base/messages.h"
#include "tools/sim/plane.h"

namespace prd::sim {

class OwnGroup {
 public:
  // The worker is another incarnation.
  void Anew() { result_ = {}; }
  void Begins(const Group& group) { group_ = group; }
  // A reduction, or a copy, has ended.
  void Ends(const PlaneResult& result) { result_ = result; }
  // The worker says this. Throws Violation.
  void CheckSays(std::uint32_t worker, const WorkerBody& body) const;

  GroupId id() const { return group_.id; }  // the newest that it has begun
  // It is a passive member of this one.
  bool Passive(std::uint32_t worker, GroupId group) const;

 private:
  Group group_;
  PlaneResult result_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_OWN_GROUP_H_
