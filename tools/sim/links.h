// Links between workers, as faults leave them: cut in a direction, or slow.
#ifndef PRD_TOOLS_SIM_LINKS_H_
#define PRD_TOOLS_SIM_LINKS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "common/base/time.h"
#include "tools/sim/workload.h"

namespace prd::sim {

class Links {
 public:
  explicit Links(const FaultsPart& faults)
      : on_(faults.link_cuts_per_s > 0 || faults.large_cuts_per_s > 0 ||
            faults.slow_links_per_s > 0 || faults.worker_freezes_per_s > 0) {}

  // Whether a worker may ever be out of another one's reach and live. False: nothing here does
  // anything.
  bool on() const { return on_; }

  // What is sent from one to the other is lost until then.
  void Cut(std::uint32_t from, std::uint32_t to, Instant until) {
    Instant& cut = cut_[{from, to}];
    cut = std::max(cut, until);
  }
  // What begins to move between the two until then takes that much longer.
  void Slow(std::uint32_t a, std::uint32_t b, Instant until, DurationNs by) {
    slow_[std::minmax(a, b)] = {until, by};
  }

  bool Pass(Instant now, std::uint32_t from, std::uint32_t to) const {
    return CutUntil(from, to) <= now;
  }
  // The link is whole in both directions from then on.
  Instant WholeFrom(std::uint32_t a, std::uint32_t b) const {
    return std::max(CutUntil(a, b), CutUntil(b, a));
  }
  DurationNs Slowness(Instant now, std::uint32_t a, std::uint32_t b) const {
    const auto slow = slow_.find(std::minmax(a, b));
    return slow == slow_.end() || slow->second.first <= now ? 0 : slow->second.second;
  }

 private:
  using Pair = std::pair<std::uint32_t, std::uint32_t>;

  Instant CutUntil(std::uint32_t from, std::uint32_t to) const {
    const auto cut = cut_.find({from, to});
    return cut == cut_.end() ? Instant{} : cut->second;
  }

  const bool on_;
  std::map<Pair, Instant> cut_;
  std::map<Pair, std::pair<Instant, DurationNs>> slow_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_LINKS_H_
