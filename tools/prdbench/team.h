// Processes that reduce on command: prd's mesh, or PyTorch with Gloo.
#ifndef PRD_TOOLS_PRDBENCH_TEAM_H_
#define PRD_TOOLS_PRDBENCH_TEAM_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "common/base/messages.h"
#include "prd/status.h"

namespace prd::bench {

class Team {
 public:
  virtual ~Team() = default;  // ends the processes
  // One reduction by the ranks in `members`. Seconds from the first member's start to the last
  // one's end.
  virtual Result<double> Reduce(const std::vector<int>& members, std::size_t bytes) = 0;
};

// `max_bytes` are allocated and touched before the first reduction.
Result<std::unique_ptr<Team>> StartMeshTeam(int workers, std::size_t max_bytes, bool tcp,
                                            MeshSecurity security);
Result<std::unique_ptr<Team>> StartTorchTeam(int workers, std::size_t max_bytes,
                                             const std::string& python);

// From the first start to the last end, in seconds, of lines "START END" in ns of the monotonic
// clock; a line that is something else is the error.
Result<double> Span(const std::vector<std::string>& lines);

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_TEAM_H_
