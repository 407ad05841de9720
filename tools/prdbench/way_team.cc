#include "tools/prdbench/way_team.h"

#include <limits>
#include <numeric>

#include "tools/prdbench/worker_memory.h"

namespace prd::bench {
namespace {

constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();

std::vector<int> FirstRanks(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

bool Went(const std::vector<MeshTeam::Outcome>& outcomes, Way way) {
  for (const MeshTeam::Outcome& outcome : outcomes) {
    if (outcome.way != WayName(way)) return false;
  }
  return true;
}

}  // namespace

const char* WayName(Way way) {
  switch (way) {
    case Way::kStaged:
      return "staged";
    case Way::kCollective:
      return "collective";
    case Way::kExchange:
      return "exchange";
  }
  return "";
}

Result<std::vector<int>> DevicesOf(const std::vector<std::string>& devices) {
  std::vector<int> numbers;
  for (const std::string& name : devices) {
    const Result<std::optional<int>> number = ParseDevice(name);
    if (!number.ok()) return number.status();
    if (!number->has_value()) {
      return Status(Code::kInvalidArgument, "device: found '" + name + "', needed is cuda:N");
    }
    numbers.push_back(**number);
  }
  return numbers;
}

std::vector<Share> Unequal(const std::vector<int>& ranks) {
  std::vector<Share> shares;
  const double sum = static_cast<double>(ranks.size() * (ranks.size() + 1)) / 2;
  for (const int rank : ranks) {
    shares.push_back({rank, static_cast<double>(shares.size() + 1) / sum});
  }
  return shares;
}

Result<std::unique_ptr<WayTeam>> WayTeam::Start(Way way, const Options& options) {
  auto team = std::make_unique<WayTeam>();
  team->way_ = way;
  team->processes_ = options.ranks + (way == Way::kCollective ? 0 : 1);
  team->shares_ = Unequal(FirstRanks(options.ranks));
  MeshTeam::Options processes;
  processes.workers = team->processes_;
  processes.tensors = options.tensors;
  processes.devices = options.devices;
  processes.timeout = options.timeout;
  processes.communicators.recurs = way == Way::kCollective ? 1 : kNever;
  Result<std::unique_ptr<MeshTeam>> started = MeshTeam::Start(processes);
  if (!started.ok()) return started.status();
  team->team_ = std::move(*started);
  return team;
}

Status WayTeam::Prepare(std::size_t bytes, DurationNs timeout) {
  MeshTeam::Work work;
  work.bytes = bytes;
  if (way_ == Way::kExchange) {  // a communicator of all is made at once
    work.kind = GroupKind::kAverage;
    work.shares = Unequal(FirstRanks(processes_));
    const auto all = team_->Run(work);
    if (!all.ok()) return all.status();
    work.kind = GroupKind::kTrain;
  }
  work.shares = shares_;
  std::string last;
  for (const Instant until = Now() + timeout; Now() < until;) {
    const Result<std::vector<MeshTeam::Outcome>> outcomes = team_->Run(work);
    if (!outcomes.ok()) return outcomes.status();
    if (Went(*outcomes, way_)) return Status::Ok();
    last = outcomes->front().way;
  }
  return Status(Code::kDeadlineExceeded,
                std::string("groups do not come to go the way ") + WayName(way_) + ", but " + last);
}

Result<std::vector<MeshTeam::Outcome>> WayTeam::Run(MeshTeam::Work work) {
  if (work.shares.empty()) work.shares = shares_;
  Result<std::vector<MeshTeam::Outcome>> outcomes = team_->Run(work);
  if (outcomes.ok() && !Went(*outcomes, way_)) {
    return Status(Code::kFailedPrecondition,
                  "a group went the way " + outcomes->front().way + ", needed is " + WayName(way_));
  }
  return outcomes;
}

}  // namespace prd::bench
