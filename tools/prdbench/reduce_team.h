// Processes that reduce on command: prd's mesh, or PyTorch with Gloo.
#ifndef PRD_TOOLS_PRDBENCH_REDUCE_TEAM_H_
#define PRD_TOOLS_PRDBENCH_REDUCE_TEAM_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
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

// A child process and the pipes to and from it. Its end is waited for on destruction.
class Child {
 public:
  Child() = default;
  Child(pid_t pid, int to, int from) : pid_(pid), to_(to), from_(from) {}
  Child(Child&& other) noexcept { *this = std::move(other); }
  Child& operator=(Child&& other) noexcept;
  ~Child();

  // SIGKILL, at once; its end is waited for.
  void Kill();
  Status WriteLine(const std::string& line);
  // Without the newline. kDeadlineExceeded after timeout_ms.
  Result<std::string> ReadLine(int timeout_ms);

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  std::string pending_;
};

// "START END" in ns of the monotonic clock, from each member, to seconds.
Result<double> Span(std::vector<Child>* children, const std::vector<int>& members);

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_REDUCE_TEAM_H_
