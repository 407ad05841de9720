#include "tools/sim/group_sums.h"

#include <algorithm>
#include <cmath>

namespace prd::sim::mesh {

Due SumOf(std::span<const Part> parts) {
  Due due;
  double most = 0;  // float32's weights are rounded together: by steps of the largest
  for (const Part& part : parts) most = std::max(most, part.weight);
  for (const Part& part : parts) {
    if (part.weight == 0) continue;
    due.sum.resize(part.gave->size());
    due.size.resize(part.gave->size());
    for (std::size_t j = 0; j < due.sum.size(); ++j) {
      due.sum[j] += part.weight * (*part.gave)[j];
      due.size[j] += std::abs(most * (*part.gave)[j]);
    }
  }
  return due;
}

std::optional<std::size_t> HoldToEarlier(std::span<const Part> parts, bool ring_only,
                                         const std::vector<double>& values,
                                         const std::vector<double>& before,
                                         std::vector<double>* sum, std::uint64_t* held) {
  const bool any =
      std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.weight != 0; });
  if (!any) return std::nullopt;  // a sum of none is zeros
  std::vector<bool> brought(values.size());
  std::vector<bool> fits(values.size());
  for (const Part& part : parts) {
    if ((part.weight == 0 && !ring_only) || part.holds == nullptr) continue;
    if (!part.landed && *part.holds == *part.was) continue;
    for (std::size_t j = 0; j < values.size(); ++j) {
      const double has = part.holds->at(j);
      const bool differs = has != part.was->at(j);
      // An average may be what was given, by chance. Members hold different ones where one of them
      // gave nothing to the group between.
      if (values[j] == has || (differs && !fits[j])) sum->at(j) = has;
      fits[j] = fits[j] || values[j] == has;
      brought[j] = brought[j] || differs;
    }
  }
  for (std::size_t j = 0; j < values.size(); ++j) {
    if (!brought[j]) continue;
    ++*held;
    if (values[j] == sum->at(j) || (!before.empty() && values[j] == before[j])) continue;
    return j;
  }
  return std::nullopt;
}

}  // namespace prd::sim::mesh
