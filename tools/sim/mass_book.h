// What members of groups of real meshes hold before and after, all parameters together.
//
//   mass   a group that averages models with equal weights, and succeeded for all members, has not
//          changed the sum of what they hold
#ifndef PRD_TOOLS_SIM_MASS_BOOK_H_
#define PRD_TOOLS_SIM_MASS_BOOK_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/base/messages.h"

namespace prd::sim {

class MassBook {
 public:
  explicit MassBook(std::size_t workers) : before_(workers) {}

  // The worker holds this when it begins a group, or as long as it changes it by itself.
  void Holds(std::uint32_t worker, std::vector<double> held) { before_[worker] = std::move(held); }
  // And this when it has the group's result. `run` by its number (run_table.h). Throws Violation.
  void Ends(std::uint32_t worker, RunId run, const Group& group, const std::vector<double>& held);

 private:
  struct Mass {
    std::size_t members = 0;
    double before = 0, after = 0, scale = 1;
  };

  std::vector<std::vector<double>> before_;  // by worker
  std::map<std::pair<RunId, GroupId>, Mass> masses_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_MASS_BOOK_H_
