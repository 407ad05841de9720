// The network cards of hosts. All that a host sends to others shares what its card carries, and so
// does all that it receives: whatever comes first goes first.
#ifndef PRD_TOOLS_SIM_CARDS_H_
#define PRD_TOOLS_SIM_CARDS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/time.h"
#include "tools/sim/workload.h"

namespace prd::sim {

class Cards {
 public:
  explicit Cards(const Workload& workload)
      : us_per_byte_(1 / (workload.reduce.host_bandwidth_mb_per_s > 0
                              ? workload.reduce.host_bandwidth_mb_per_s
                              : workload.reduce.bandwidth_mb_per_s)),
        out_(
            static_cast<std::size_t>(workload.cluster.workers / workload.cluster.workers_per_host) +
            1),
        in_(out_.size()) {}

  // When bytes from one host to another that are sent now have gone through both cards.
  Instant Carry(Instant now, std::int64_t from, std::int64_t to, double bytes) {
    const DurationNs takes = FromUs(bytes * us_per_byte_);
    Instant& out = out_[static_cast<std::size_t>(from)];
    Instant& in = in_[static_cast<std::size_t>(to)];
    out = std::min(std::max(out, now) + takes, now + kForever);
    in = std::min(std::max(in, now) + takes, now + kForever);
    return std::max(out, in);
  }

 private:
  double us_per_byte_;             // a MB/s is a byte per us
  std::vector<Instant> out_, in_;  // by host: when it is idle
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_CARDS_H_
