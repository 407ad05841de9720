// A member is killed in mid-reduce.
#include <algorithm>
#include <map>
#include <numeric>

#include "tools/prdbench/device_check.h"
#include "tools/prdbench/device_line.h"
#include "tools/prdbench/worker_memory.h"

namespace prd::bench {
namespace {

constexpr int kGraceMs = 5000;            // beyond the reduction's own timeout
constexpr std::size_t kTensorTimes = 32;  // larger than other checks' tensors: there is a middle

class Kill {
 public:
  explicit Kill(const DeviceOptions& options) : options_(options) {}

  Result<nlohmann::ordered_json> Run() {
    if (options_.processes < 6) {
      return Status(Code::kInvalidArgument, "`kill` needs 6 processes or more");
    }
    const std::size_t elements = options_.elements * kTensorTimes;
    bytes_ = elements * sizeof(float);
    auto team = StartTeam(options_, {{DType::kF32, elements}}, 1, 16, DevicePlane::kWindowBytes);
    if (!team.ok()) return team.status();
    team_ = std::move(*team);
    const int last = options_.processes - 1;
    std::vector<int> large(static_cast<std::size_t>(options_.processes - 2));
    std::iota(large.begin(), large.end(), 2);  // ends with the one that is killed first

    for (const std::vector<int>& group : {kPair, kOthers, large}) {
      PRD_RETURN_IF_ERROR(Prepare(group));
    }
    PRD_RETURN_IF_ERROR(KillIn(large, last, /*begins=*/false));
    PRD_RETURN_IF_ERROR(CheckOthers());
    large.pop_back();
    PRD_RETURN_IF_ERROR(Prepare(large));
    PRD_RETURN_IF_ERROR(KillIn(large, last - 1, /*begins=*/true));
    PRD_RETURN_IF_ERROR(CheckOthers());
    return Report();
  }

 private:
  MeshTeam::Work WorkOf(const std::vector<int>& ranks) const {
    MeshTeam::Work work;
    work.shares = Unequal(ranks);
    work.bytes = bytes_;
    return work;
  }

  bool Collective(const std::vector<MeshTeam::Outcome>& outcomes) const {
    return team_->about().nccl.empty() ||
           std::all_of(outcomes.begin(), outcomes.end(), [](const MeshTeam::Outcome& outcome) {
             return outcome.way == WayName(Way::kCollective);
           });
  }

  // Until the group has a communicator of its own.
  Status Prepare(const std::vector<int>& ranks) {
    for (const Instant until = Now() + 60 * kSecond; Now() < until;) {
      const auto outcomes = team_->Run(WorkOf(ranks));
      if (!outcomes.ok()) return outcomes.status();
      if (Collective(*outcomes)) return Status::Ok();
    }
    return Status(Code::kDeadlineExceeded, "a group gets no communicator of its own");
  }

  // The last of the members, which has begun, or which the others wait for.
  Status KillIn(const std::vector<int>& ranks, int victim, bool begins) {
    std::vector<int> others = ranks;
    std::erase(others, victim);
    const auto before = team_->AskAll(others, "hash");
    if (!before.ok()) return before.status();
    const Result<GroupId> group =
        begins ? team_->Begin(WorkOf(ranks)) : team_->BeginWithout(WorkOf(ranks), victim);
    if (!group.ok()) return group.status();
    if (!begins) {
      const auto running = team_->AskAll(others, "running");
      if (!running.ok()) return running.status();
    }
    const Instant start = Now();
    team_->Kill(victim);
    const auto outcomes = team_->End(others);
    if (!outcomes.ok()) return outcomes.status();  // nobody waits for ever: or this says so
    const double ms = static_cast<double>(Now() - start) * 1e-6;
    const auto after = team_->AskAll(others, "hash");
    if (!after.ok()) return after.status();
    bool failed = false;
    for (std::size_t i = 0; i < others.size(); ++i) {
      if ((*outcomes)[i].status.ok()) continue;  // it was through with it
      failed = true;
      why_.push_back((*outcomes)[i].status.ToString());
      unchanged_ = unchanged_ && (*before)[i] == (*after)[i];
    }
    in_the_middle_ += failed ? 1 : 0;
    ended_ms_.push_back(ms);
    return Status::Ok();
  }

  // Groups without the one that was killed: with the communicators that they had before.
  Status CheckOthers() {
    for (const std::vector<int>& group : {kPair, kOthers}) {
      const auto before = team_->CountersOf(group);
      if (!before.ok()) return before.status();
      const auto outcomes = team_->Run(WorkOf(group));
      if (!outcomes.ok()) return outcomes.status();
      const auto after = team_->CountersOf(group);
      if (!after.ok()) return after.status();
      kept_ = kept_ && Collective(*outcomes);
      for (std::size_t i = 0; i < group.size(); ++i) {
        kept_ = kept_ && (*before)[i].made == (*after)[i].made;
      }
      ++went_on_;
    }
    return Status::Ok();
  }

  nlohmann::ordered_json Report() const {
    const double limit_ms = options_.timeout_ms + kGraceMs;
    const double slowest = *std::max_element(ended_ms_.begin(), ended_ms_.end());
    nlohmann::ordered_json line = DeviceLine("check", "kill", team_->about());
    line["ok"] = in_the_middle_ > 0 && slowest <= limit_ms && unchanged_ && kept_;
    line["processes"] = options_.processes;
    line["bytes"] = bytes_;
    line["killed"] = ended_ms_.size();
    line["in_the_middle"] = in_the_middle_;
    line["ended_ms"] = ended_ms_;
    line["limit_ms"] = limit_ms;
    line["unchanged"] = unchanged_;
    line["groups_after"] = went_on_;
    line["communicators_kept"] = kept_;
    line["errors"] = why_;
    return line;
  }

  const std::vector<int> kPair = {0, 1};
  const std::vector<int> kOthers = {2, 3};  // they were in the groups of who is killed

  const DeviceOptions& options_;
  std::size_t bytes_ = 0;
  std::unique_ptr<MeshTeam> team_;
  std::vector<double> ended_ms_;
  std::vector<std::string> why_;
  int in_the_middle_ = 0;
  int went_on_ = 0;
  bool unchanged_ = true;
  bool kept_ = true;
};

}  // namespace

Result<nlohmann::ordered_json> CheckKill(const DeviceOptions& options) {
  return Kill(options).Run();
}

}  // namespace prd::bench
