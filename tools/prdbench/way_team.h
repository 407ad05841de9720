// A team whose groups go a way that is known: staged, by sends and receives on a communicator that
// covers them, or by an all-reduce on one of their own.
#ifndef PRD_TOOLS_PRDBENCH_WAY_TEAM_H_
#define PRD_TOOLS_PRDBENCH_WAY_TEAM_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/prdbench/mesh_team.h"

namespace prd::bench {

// "staged", "exchange", "collective".
const char* WayName(Way way);

// "cuda:0,cuda:1" in parts, as numbers.
Result<std::vector<int>> DevicesOf(const std::vector<std::string>& devices);

class WayTeam {
 public:
  struct Options {
    int ranks = 0;  // of a group
    std::vector<std::pair<DType, std::size_t>> tensors;
    std::vector<int> devices;
    DurationNs timeout = 30 * kSecond;
  };
  // For kExchange and kStaged it has one process more, which is in none of these groups.
  static Result<std::unique_ptr<WayTeam>> Start(Way way, const Options& options);

  Way way() const { return way_; }
  MeshTeam& team() { return *team_; }
  int processes() const { return processes_; }
  // The shares of the group's members, unequal.
  const std::vector<Share>& shares() const { return shares_; }

  // Runs groups until they go that way: what there is to be made is made.
  // kDeadlineExceeded: they do not come to.
  Status Prepare(std::size_t bytes, DurationNs timeout = 60 * kSecond);
  // The work's shares are shares() if it has none. kFailedPrecondition: it went another way.
  Result<std::vector<MeshTeam::Outcome>> Run(MeshTeam::Work work);

 private:
  Way way_ = Way::kStaged;
  int processes_ = 0;
  std::vector<Share> shares_;
  std::unique_ptr<MeshTeam> team_;
};

// These ranks, with weights 1, 2, .. in proportion.
std::vector<Share> Unequal(const std::vector<int>& ranks);

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_WAY_TEAM_H_
