// What members of groups of real meshes hold before and after, all parameters together.
//
//   mass   a group that averages models with equal weights, and succeeded for all members, has not
//          changed the sum of what they hold
#ifndef PRD_TOOLS_SIM_MASS_BOOK_H_
#define PRD_TOOLS_SIM_MASS_BOOK_H_

#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "engines/violation.h"

namespace prd::sim {

class MassBook {
 public:
  explicit MassBook(std::size_t workers) : before_(workers), parameters_(workers) {}

  // The worker holds this when it begins a group, or as long as it changes it by itself.
  // `parameters`: what of it is not in the inbox.
  void Holds(std::uint32_t worker, std::vector<double> held, std::vector<double> parameters) {
    before_[worker] = std::move(held);
    parameters_[worker] = std::move(parameters);
  }
  // While a group changes what it holds, the worker changes the parameters to these.
  void Changes(std::uint32_t worker, std::vector<double> parameters) {
    std::vector<double>& last = parameters_[worker];
    for (std::size_t j = 0; j < parameters.size(); ++j) {
      before_[worker].at(j) += parameters[j] - last.at(j);
    }
    last = std::move(parameters);
  }
  // And this when it has the group's result. `run` by its number (run_table.h). Throws Violation.
  void Ends(std::uint32_t worker, RunId run, const Group& group, const std::vector<double>& held) {
    const std::vector<double>& before = before_[worker];
    Mass& mass = masses_[{run, group.id}];
    mass.before = std::accumulate(before.begin(), before.end(), mass.before);
    mass.after = std::accumulate(held.begin(), held.end(), mass.after);
    for (const double value : held) mass.scale += std::abs(value);
    if (++mass.members < group.members.size()) return;
    if (std::abs(mass.after - mass.before) <= 1e-9 * mass.scale) return;
    throw Violation("mass", GroupName(group.id) +
                                " changes the sum of what its members hold from " +
                                std::to_string(mass.before) + " to " + std::to_string(mass.after));
  }

 private:
  struct Mass {
    std::size_t members = 0;
    double before = 0, after = 0, scale = 1;
  };

  std::vector<std::vector<double>> before_, parameters_;  // by worker
  std::map<std::pair<RunId, GroupId>, Mass> masses_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_MASS_BOOK_H_
