#include "tools/sim/mass_book.h"

#include <cmath>
#include <numeric>
#include <string>

#include "engines/violation.h"

namespace prd::sim {

void MassBook::Ends(std::uint32_t worker, RunId run, const Group& group,
                    const std::vector<double>& held) {
  const std::vector<double>& before = before_[worker];
  Mass& mass = masses_[{run, group.id}];
  mass.before = std::accumulate(before.begin(), before.end(), mass.before);
  mass.after = std::accumulate(held.begin(), held.end(), mass.after);
  for (const double value : held) mass.scale += std::abs(value);
  if (++mass.members < group.members.size()) return;
  if (std::abs(mass.after - mass.before) <= 1e-9 * mass.scale) return;
  throw Violation("mass", GroupName(group.id) + " changes the sum of what its members hold from " +
                              std::to_string(mass.before) + " to " + std::to_string(mass.after));
}

}  // namespace prd::sim
