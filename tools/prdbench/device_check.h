// What the checks across processes share: memberships and weights that are drawn, and the count of
// what came of them.
#ifndef PRD_TOOLS_PRDBENCH_DEVICE_CHECK_H_
#define PRD_TOOLS_PRDBENCH_DEVICE_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tools/prdbench/device.h"
#include "tools/prdbench/way_team.h"

namespace prd::bench {

// f32, bf16, f16, f64: of odd sizes, so that none but the first ends where a vector does.
std::vector<std::pair<DType, std::size_t>> AllDTypes(std::size_t elements);

// Reduces by windows of this many bytes: several in the rows of checks of values, which are small.
constexpr std::size_t kCheckedWindow = 192 << 10;
Result<std::unique_ptr<MeshTeam>> StartTeam(
    const DeviceOptions& options, const std::vector<std::pair<DType, std::size_t>>& tensors,
    std::uint32_t recurs, std::size_t limit, std::size_t window_bytes);

std::vector<int> AllRanks(const DeviceOptions& options);

// The same from the same seed.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : bits_(seed) {}

  std::size_t Below(std::size_t n) { return static_cast<std::size_t>(bits_() % n); }
  // Random weights of sum 1; now and then one of them is 0.
  std::vector<Share> Weighted(const std::vector<int>& ranks);
  // Disjoint groups of 2 to 4 of the ranks, as many as there is room for.
  std::vector<std::vector<int>> Groups(std::vector<int> ranks);
  // A group of these that fills, reduces and compares.
  MeshTeam::Work Verified(const std::vector<int>& ranks);

 private:
  std::mt19937_64 bits_;
};

struct Tally {
  int groups = 0;
  int wrong = 0;    // a member's result is out of bounds, or there is none
  int unequal = 0;  // members' results differ in a bit
  double worst = 0;
  std::map<std::string, int> ways;
  std::string why;  // of the first that was wrong

  void Count(const std::vector<Share>& shares, const std::vector<MeshTeam::Outcome>& outcomes);
  void AddTo(nlohmann::ordered_json* line) const;
};

// Groups that are begun together.
Status RunAtOnce(MeshTeam* team, const std::vector<MeshTeam::Work>& works, Tally* tally);

// The check `kill` (device.h).
Result<nlohmann::ordered_json> CheckKill(const DeviceOptions& options);

inline constexpr char kBound[] =
    "against float64: P + 2 roundings of sum |weight * value| and 2 of sum |max weight * value|";

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_DEVICE_CHECK_H_
