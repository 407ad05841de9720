// What is right across processes on one device.
#include "tools/prdbench/device_check.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "tools/prdbench/device_line.h"
#include "tools/prdbench/way_team.h"
#include "tools/prdbench/worker_memory.h"

namespace prd::bench {
namespace {

using Line = nlohmann::ordered_json;
using Outcomes = std::vector<MeshTeam::Outcome>;

const char* const kDTypeNames[] = {"f32", "bf16", "f16", "f64"};

// A communicator of all of them, made at once.
Status Cover(MeshTeam* team, const std::vector<int>& ranks, Draw* draw, Tally* tally) {
  MeshTeam::Work work = draw->Verified(ranks);
  work.kind = GroupKind::kAverage;
  PRD_RETURN_IF_ERROR(RunAtOnce(team, {work}, tally));
  return team->Settle(ranks);
}

Status Add(Line* line, MeshTeam* team, const std::vector<int>& ranks) {
  const Result<std::vector<MeshTeam::Counters>> all = team->CountersOf(ranks);
  if (!all.ok()) return all.status();
  MeshTeam::Counters sum;
  for (const MeshTeam::Counters& one : *all) {
    sum.made += one.made;
    sum.broken += one.broken;
    sum.given_up += one.given_up;
    sum.here += one.here;
  }
  (*line)["communicators"] = {
      {"made", sum.made}, {"broken", sum.broken}, {"given_up", sum.given_up}, {"here", sum.here}};
  return Status::Ok();
}

// All ways have been gone that there are.
bool AllWays(const std::map<std::string, int>& ways, const DeviceAbout& about) {
  return about.nccl.empty() || (ways.contains("collective") && ways.contains("exchange"));
}

Result<Line> CheckGroups(const DeviceOptions& options) {
  auto team = StartTeam(options, AllDTypes(options.elements), 2, 8, kCheckedWindow);
  if (!team.ok()) return team.status();
  Draw draw(options.seed);
  Tally tally;
  const std::vector<int> ranks = AllRanks(options);
  PRD_RETURN_IF_ERROR(Cover(team->get(), ranks, &draw, &tally));
  // Some memberships come again and again, others once.
  std::vector<std::vector<std::vector<int>>> recurring;
  for (int i = 0; i < 3; ++i) recurring.push_back(draw.Groups(ranks));
  while (tally.groups < options.groups) {
    const bool again = draw.Below(3) != 0;
    std::vector<MeshTeam::Work> works;
    for (const std::vector<int>& group :
         again ? recurring[draw.Below(recurring.size())] : draw.Groups(ranks)) {
      works.push_back(draw.Verified(group));
    }
    PRD_RETURN_IF_ERROR(RunAtOnce(team->get(), works, &tally));
  }
  Line line = DeviceLine("check", "groups", (*team)->about());
  line["ok"] = tally.wrong == 0 && AllWays(tally.ways, (*team)->about());
  line["processes"] = options.processes;
  line["elements_per_dtype"] = options.elements;
  line["seed"] = options.seed;
  tally.AddTo(&line);
  PRD_RETURN_IF_ERROR(Add(&line, team->get(), ranks));
  return line;
}

Result<Line> CheckDTypes(const DeviceOptions& options) {
  const Result<std::vector<int>> devices = DevicesOf({options.device});
  if (!devices.ok()) return devices.status();
  WayTeam::Options processes;
  processes.ranks = std::clamp(options.processes / 2, 2, 4);
  processes.devices = *devices;
  processes.tensors = AllDTypes(options.elements);
  Draw draw(options.seed);
  Line worst;
  DeviceAbout about;
  bool ok = true;
  for (const Way way : {Way::kStaged, Way::kExchange, Way::kCollective}) {
    Result<std::unique_ptr<WayTeam>> team = WayTeam::Start(way, processes);
    if (!team.ok()) return team.status();
    about = (*team)->team().about();
    if (about.nccl.empty() && way != Way::kStaged) continue;
    PRD_RETURN_IF_ERROR((*team)->Prepare(4096));
    for (int tensor = -1; tensor < static_cast<int>(std::size(kDTypeNames)); ++tensor) {
      double most = 0;
      for (int i = 0; i < 4; ++i) {
        MeshTeam::Work work = draw.Verified(Ranks((*team)->shares()));
        work.tensor = tensor;
        const Result<Outcomes> outcomes = (*team)->Run(work);
        if (!outcomes.ok()) return outcomes.status();
        for (const MeshTeam::Outcome& one : *outcomes) most = std::max(most, one.worst);
      }
      worst[WayName(way)][tensor < 0 ? "mixed" : kDTypeNames[tensor]] = most;
      ok = ok && most <= 1;
    }
  }
  Line line = DeviceLine("check", "dtypes", about);
  line["ok"] = ok;
  line["ranks"] = processes.ranks;
  line["elements_per_dtype"] = options.elements;
  line["worst"] = worst;
  line["bound"] = kBound;
  return line;
}

// Communicators are made and given up over and over: what is free in the end is what was free after
// the first quarter, at the same place of the same cycle.
class Leak {
 public:
  explicit Leak(const DeviceOptions& options)
      : options_(options), draw_(options.seed), ranks_(AllRanks(options)) {}

  Result<Line> Run() {
    auto team = StartTeam(options_, AllDTypes(options_.elements), 1, 2, kCheckedWindow);
    if (!team.ok()) return team.status();
    team_ = std::move(*team);
    for (int i = 0; i < 4; ++i) cycle_.push_back(draw_.Groups(ranks_));
    double before = 0, warm = 0, end = 0;
    PRD_RETURN_IF_ERROR(Free(&before));
    PRD_RETURN_IF_ERROR(RunUntil(options_.groups / 4));
    PRD_RETURN_IF_ERROR(Free(&warm));
    PRD_RETURN_IF_ERROR(RunUntil(options_.groups));
    PRD_RETURN_IF_ERROR(Free(&end));
    Line line = DeviceLine("check", "leak", team_->about());
    line["ok"] = tally_.wrong == 0 && warm - end <= static_cast<double>(options_.slack_bytes);
    line["processes"] = options_.processes;
    line["free_before"] = before;
    line["free_after_warm_up"] = warm;
    line["free_at_end"] = end;
    line["lost_bytes"] = warm - end;
    line["slack_bytes"] = options_.slack_bytes;
    tally_.AddTo(&line);
    PRD_RETURN_IF_ERROR(Add(&line, team_.get(), ranks_));
    return line;
  }

 private:
  static constexpr int kTimes = 3;  // a membership runs before the next

  // Whole cycles, until there were so many groups.
  Status RunUntil(int groups) {
    while (tally_.groups < groups) {
      for (const std::vector<std::vector<int>>& at_once : cycle_) {
        for (int i = 0; i < kTimes; ++i) {
          std::vector<MeshTeam::Work> works;
          for (const std::vector<int>& group : at_once) works.push_back(draw_.Verified(group));
          PRD_RETURN_IF_ERROR(RunAtOnce(team_.get(), works, &tally_));
          if (i == 0) PRD_RETURN_IF_ERROR(team_->Settle(ranks_));
        }
        // Then the next ones are worth more than these, which make room.
        team_->Skip(4 * Communicators::kHalfLife);
      }
    }
    return Status::Ok();
  }

  Status Free(double* bytes) {
    PRD_RETURN_IF_ERROR(team_->Settle(ranks_));
    const Result<std::string> line = team_->Ask(0, "free");
    if (!line.ok()) return line.status();
    char* end = nullptr;
    *bytes = std::strtod(line->c_str(), &end);
    return end == line->c_str() ? Status(Code::kUnavailable, *line) : Status::Ok();
  }

  const DeviceOptions& options_;
  Draw draw_;
  const std::vector<int> ranks_;
  std::unique_ptr<MeshTeam> team_;
  std::vector<std::vector<std::vector<int>>> cycle_;
  Tally tally_;
};

}  // namespace

const std::vector<std::string>& DeviceChecks() {
  static const std::vector<std::string> checks = {"groups", "dtypes", "kill", "leak"};
  return checks;
}

int CheckDevice(const DeviceOptions& options) {
  signal(SIGPIPE, SIG_IGN);  // a process that is gone is an error of its own
  const std::map<std::string, std::function<Result<Line>(const DeviceOptions&)>> checks = {
      {"groups", CheckGroups},
      {"dtypes", CheckDTypes},
      {"kill", CheckKill},
      {"leak", [](const DeviceOptions& leak) { return Leak(leak).Run(); }}};
  const auto check = checks.find(options.check);
  if (check == checks.end()) {
    std::fprintf(stderr, "prdbench: there is no check '%s'\n", options.check.c_str());
    return 2;
  }
  const Instant start = Now();
  Result<Line> line = check->second(options);
  if (!line.ok()) {
    PrintLine({{"check", options.check}, {"ok", false}, {"why", line.status().ToString()}});
    return 1;
  }
  (*line)["seconds"] = static_cast<double>(Now() - start) * 1e-9;
  PrintLine(*line);
  return (*line)["ok"].get<bool>() ? 0 : 1;
}

}  // namespace prd::bench
