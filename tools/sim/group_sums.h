// What a group of real meshes is to give, in float64.
#ifndef PRD_TOOLS_SIM_GROUP_SUMS_H_
#define PRD_TOOLS_SIM_GROUP_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace prd::sim::mesh {

// One member's. The pointers outlive it.
struct Part {
  double weight = 0;
  const std::vector<double>* gave = nullptr;
  // Gradients, or parameters whose changes are averaged, as they stand when the group begins, and
  // as they stood before a group for the same iteration: what differs is what that made of them.
  // Null: those are not known, or the member has not begun.
  const std::vector<double>* was = nullptr;
  const std::vector<double>* holds = nullptr;
  bool landed = false;  // some of it may be a result also where nothing differs
};

// The weighted sum of what they gave, and of its sizes. Empty: of none. REQUIRES: `gave` of all
// that have a weight.
struct Due {
  std::vector<double> sum, size;
};
Due SumOf(std::span<const Part> parts);

// Where a member brought what an earlier group had given it already, that is due, in
// `sum` and in `values`; in these there may be what stood there before, where that is given. Counts
// such elements, and gives the first that is not so.
std::optional<std::size_t> HoldToEarlier(std::span<const Part> parts, bool ring_only,
                                         const std::vector<double>& values,
                                         const std::vector<double>& before,
                                         std::vector<double>* sum, std::uint64_t* held);

}  // namespace prd::sim::mesh

#endif  // PRD_TOOLS_SIM_GROUP_SUMS_H_
