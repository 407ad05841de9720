#include "engines/p_reduce/weights.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace prd {

namespace {

using Missing = PReduceOptions::Missing;

// Sum of alpha^(r-1) over r in [first, last], times (1 - alpha): Eq. 9 but for the denominator,
// which all shares have in common. expm1 keeps its precision where alpha is close to 1.
double Share(double alpha, double log_alpha, std::uint64_t first, std::uint64_t last) {
  if (alpha == 0) return first == 1 ? 1 : 0;
  const double count = static_cast<double>(last - first) + 1;
  const double before = static_cast<double>(first - 1);
  return std::exp(before * log_alpha) * -std::expm1(count * log_alpha);
}

}  // namespace

double SetWeights(const PReduceOptions& options, std::vector<GroupShare>* members) {
  const std::size_t size = members->size();
  std::sort(members->begin(), members->end(), [](const GroupShare& a, const GroupShare& b) {
    return a.iteration != b.iteration ? a.iteration > b.iteration : a.rank < b.rank;
  });
  const auto newest = static_cast<std::uint64_t>(members->front().iteration);
  const bool constant = options.weights == PReduceOptions::Weights::kConstant;
  if (constant || members->back().iteration == members->front().iteration) {
    for (GroupShare& member : *members) member.weight = 1.0 / static_cast<double>(size);
    return 0;
  }
  const double alpha = options.alpha;
  const double log_alpha = std::log(alpha);
  const auto relative = [&](std::size_t i) {
    return newest - static_cast<std::uint64_t>((*members)[i].iteration) + 1;
  };
  double sum = 0;
  double initial = 0;
  std::uint64_t next = 1;  // the first r whose share has not been given
  for (std::size_t begin = 0, end = 0; begin < size; begin = end) {
    const std::uint64_t own = relative(begin);
    while (end < size && relative(end) == own) ++end;
    std::uint64_t first = own;
    std::uint64_t last = own;
    if (options.missing == Missing::kNearest) {
      first = next;
      if (end < size) last = own + (relative(end) - own) / 2;
    } else if (options.missing == Missing::kInitial && next < own) {
      initial += Share(alpha, log_alpha, next, own - 1);
    }
    next = last + 1;
    const double share = Share(alpha, log_alpha, first, last);
    sum += share;
    for (std::size_t i = begin; i < end; ++i) {
      (*members)[i].weight = share / static_cast<double>(end - begin);
    }
  }
  sum += initial;
  for (GroupShare& member : *members) member.weight /= sum;
  return initial / sum;
}

}  // namespace prd
