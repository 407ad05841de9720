// One reduction of the model's data plane (data_plane.h), from when its first member begins it.
#ifndef PRD_TOOLS_SIM_REDUCTION_H_
#define PRD_TOOLS_SIM_REDUCTION_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "common/base/messages.h"
#include "worker/core/actions.h"

namespace prd::sim {

struct Reduction {
  std::uint64_t serial = 0;
  RunId run = kNoRun;
  Group group;
  std::vector<std::uint32_t> members;  // in ring order
  std::vector<Incarnation> incarnations;
  std::vector<std::uint32_t> arrived;
  std::map<std::uint32_t, Iteration> goes_on_at;  // by worker: DrawnAhead, each has its own
  std::size_t through = 0;                        // members for whom it is over
  Plan plan;
  bool broken = false;
  std::vector<std::uint32_t> gave_up;  // those of them without a result
  Reduced what;
  DurationNs took = 0;  // once all have arrived

  std::size_t Contributors() const {
    return static_cast<std::size_t>(std::count_if(group.members.begin(), group.members.end(),
                                                  [](const auto& m) { return m.weight > 0; }));
  }
  bool Overlaps() const { return what == Reduced{Payload::kParameters, Landing::kInbox}; }
  bool Unreported() const { return group.kind == GroupKind::kTrain && FollowsSchedule(plan); }
  // Whether two of its members send to each other; by places.
  bool Linked(std::size_t a, std::size_t b) const {
    const std::size_t n = members.size();
    return a != b && (!group.ring_only || (a + 1) % n == b || (b + 1) % n == a);
  }
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_REDUCTION_H_
