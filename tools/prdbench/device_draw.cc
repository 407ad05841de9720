#include <algorithm>
#include <numeric>
#include <set>

#include "tools/prdbench/device_check.h"

namespace prd::bench {

std::vector<std::pair<DType, std::size_t>> AllDTypes(std::size_t elements) {
  return {{DType::kF32, elements},
          {DType::kBF16, elements | 1},
          {DType::kF16, elements | 1},
          {DType::kF64, elements | 1}};
}

Result<std::unique_ptr<MeshTeam>> StartTeam(
    const DeviceOptions& options, const std::vector<std::pair<DType, std::size_t>>& tensors,
    std::uint32_t recurs, std::size_t limit, std::size_t window_bytes) {
  const Result<std::vector<int>> devices = DevicesOf({options.device});
  if (!devices.ok()) return devices.status();
  MeshTeam::Options team;
  team.workers = options.processes;
  team.devices = *devices;
  team.tensors = tensors;
  team.timeout = options.timeout_ms * kMillisecond;
  team.communicators.recurs = recurs;
  team.communicators.limit = limit;
  team.window_bytes = window_bytes;
  return MeshTeam::Start(team);
}

std::vector<int> AllRanks(const DeviceOptions& options) {
  std::vector<int> ranks(static_cast<std::size_t>(options.processes));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<Share> Draw::Weighted(const std::vector<int>& ranks) {
  std::vector<Share> shares;
  for (const int rank : ranks) {
    shares.push_back({rank, static_cast<double>(1 + Below(1'000'000)) * 1e-6});
  }
  if (Below(8) == 0) shares[Below(shares.size())].weight = 0;
  double sum = 0;
  for (const Share& share : shares) sum += share.weight;
  for (Share& share : shares) share.weight /= sum;
  return shares;
}

std::vector<std::vector<int>> Draw::Groups(std::vector<int> ranks) {
  for (std::size_t i = ranks.size(); i > 1; --i) std::swap(ranks[i - 1], ranks[Below(i)]);
  std::vector<std::vector<int>> groups;
  while (ranks.size() >= 2) {
    const std::size_t size = 2 + Below(std::min<std::size_t>(3, ranks.size() - 1));
    groups.emplace_back(ranks.end() - static_cast<std::ptrdiff_t>(size), ranks.end());
    std::sort(groups.back().begin(), groups.back().end());
    ranks.resize(ranks.size() - size);
  }
  return groups;
}

MeshTeam::Work Draw::Verified(const std::vector<int>& ranks) {
  MeshTeam::Work work;
  work.shares = Weighted(ranks);
  work.seed = bits_();
  return work;
}

void Tally::Count(const std::vector<Share>& shares,
                  const std::vector<MeshTeam::Outcome>& outcomes) {
  ++groups;
  std::set<std::string> hashes;
  bool right = true;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const MeshTeam::Outcome& outcome = outcomes[i];
    hashes.insert(outcome.hash);
    if (outcome.status.ok()) worst = std::max(worst, outcome.worst);
    if (outcome.status.ok() && outcome.worst <= 1) continue;
    right = false;
    if (!why.empty()) continue;
    why = GroupName(groups) + ", rank " + std::to_string(shares[i].rank) + ": " +
          (outcome.status.ok()
               ? std::to_string(outcome.worst) + " of the bound, by way of " + outcome.way
               : outcome.status.ToString());
  }
  if (!right) ++wrong;
  if (right && hashes.size() > 1) ++unequal;
  ++ways[outcomes.front().way];
}

void Tally::AddTo(nlohmann::ordered_json* line) const {
  (*line)["groups"] = groups;
  (*line)["wrong"] = wrong;
  (*line)["unequal"] = unequal;
  (*line)["worst"] = worst;
  (*line)["bound"] = kBound;
  (*line)["ways"] = ways;
  if (!why.empty()) (*line)["why"] = why;
}

Status RunAtOnce(MeshTeam* team, const std::vector<MeshTeam::Work>& works, Tally* tally) {
  for (const MeshTeam::Work& work : works) {
    const Result<GroupId> group = team->Begin(work);
    if (!group.ok()) return group.status();
  }
  for (const MeshTeam::Work& work : works) {
    const Result<std::vector<MeshTeam::Outcome>> outcomes = team->End(Ranks(work.shares));
    if (!outcomes.ok()) return outcomes.status();
    tally->Count(work.shares, *outcomes);
  }
  return Status::Ok();
}

}  // namespace prd::bench
