// Processes of the worker library's data plane (mesh_worker.h), and words with each.
#ifndef PRD_TOOLS_PRDBENCH_MESH_TEAM_H_
#define PRD_TOOLS_PRDBENCH_MESH_TEAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "tools/prdbench/device_line.h"
#include "tools/prdbench/device_values.h"
#include "tools/prdbench/mesh_worker.h"
#include "tools/prdbench/processes.h"
#include "tools/prdbench/team.h"

namespace prd::bench {

class MeshTeam : public Team {
 public:
  struct Options {
    int workers = 0;
    bool tcp = false;
    std::vector<std::pair<DType, std::size_t>> tensors;
    std::vector<int> devices;  // of the workers, in turn; none: host memory
    DurationNs timeout = 10 * kSecond;
    MeshSecurity mesh_security = MeshSecurity::kNone;
    Communicators::Options communicators;
    std::size_t window_bytes = DevicePlane::kWindowBytes;
  };
  // Timeout of an answer.
  static constexpr int kAnswerMs = 60'000;

  static Result<std::unique_ptr<MeshTeam>> Start(const Options& options);

  const DeviceAbout& about() const { return about_; }

  // Equal weights.
  Result<double> Reduce(const std::vector<int>& members, std::size_t bytes) override;

  struct Outcome {
    Status status;  // of this member
    std::int64_t start_ns = 0, end_ns = 0;
    std::string way;
    double worst = 0;  // of `verified`
    std::string hash;  // of `verified`
  };
  struct Work {
    GroupKind kind = GroupKind::kTrain;
    std::vector<Share> shares;
    std::size_t bytes = 0;  // 0: all, filled from `seed` and compared
    std::uint64_t seed = 0;
    int tensor = -1;  // of those that are filled; -1: all
  };
  // Tells all members; the group's number.
  Result<GroupId> Begin(const Work& work);
  // Tells all members but this one.
  Result<GroupId> BeginWithout(const Work& work, int rank);
  // The answers of these ranks, in this order; kDeadlineExceeded where one does not answer.
  Result<std::vector<Outcome>> End(const std::vector<int>& ranks);
  // Both; not ok if one of the members' is not.
  Result<std::vector<Outcome>> Run(const Work& work);
  static double Seconds(const std::vector<Outcome>& outcomes);

  Status Tell(int rank, const std::string& line);
  Result<std::string> Hear(int rank, int timeout_ms = kAnswerMs);
  Result<std::string> Ask(int rank, const std::string& line, int timeout_ms = kAnswerMs);
  // The same of all these ranks, who do it at once.
  Result<std::vector<std::string>> AskAll(const std::vector<int>& ranks, const std::string& line,
                                          int timeout_ms = kAnswerMs);
  void Kill(int rank);

  // So many numbers of groups are left out: what was popular before counts for less.
  void Skip(GroupId groups) { groups_ += groups; }
  // Waits until making and giving up communicators has come to rest, or for so long.
  Status Settle(const std::vector<int>& ranks, DurationNs timeout = 20 * kSecond);
  struct Counters {
    std::uint64_t made = 0, broken = 0, given_up = 0, here = 0;  // Communicators::Counters
    bool making = false;
    friend bool operator==(const Counters&, const Counters&) = default;
  };
  Result<std::vector<Counters>> CountersOf(const std::vector<int>& ranks);

 private:
  Status Fork(const Options& options, int rank);
  Result<GroupId> Send(const Work& work, int without);

  std::vector<Process> processes_;
  DeviceAbout about_;
  GroupId groups_ = 0;
};

std::vector<int> Ranks(const std::vector<Share>& shares);

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_MESH_TEAM_H_
