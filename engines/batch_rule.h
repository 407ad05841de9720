// How a global batch is divided among unequal workers, so that all are ready at the same time.
//
// Synchronous data-parallel training ends a step when its slowest worker does. With equal shares a
// worker of half the speed costs the job half its speed. Here a slow worker gets fewer samples:
// "balanced batches" (LB-BSP: Chen et al., Semi-Dynamic Load Balancing, SoCC 2020; dynamic
// batching: Tyagi and Sharma, Taming Resource Heterogeneity, 2020). The sum of the shares stays,
// and with it the step that the optimiser makes, if gradients are weighted by samples
// (engines/samples.h).
//
// The rule, once per step:
// - What a step costs each worker is estimated from its computing times (engines/step_cost.h).
// - The division with the least largest expected time is computed (DivideBatch).
// - The shares change if steps become shorter by more than `rebalance_min`, and by more than the
//   errors of the estimates explain. The bound is a few standard errors: more with more workers,
//   because the slowest of many looks slower than it is. So noise rarely moves shares (Chen et
//   al. predict the speed of the next step instead). No share becomes more than twice the largest
//   one that the worker's cost is known from.
// - They change at once where workers have come or gone, or may hold another number of samples. A
//   worker without a measured step counts as the mean of the others. Until each worker has
//   measured two steps, nothing else changes shares.
// - A worker with few samples and a large fixed part cannot show that its samples have become
//   cheaper. Every 64 calls such a worker gets more samples for one step: at least twice as many,
//   and as many as keep the step below 1.2 times its expected length. Probes that find nothing
//   become rarer, down to one in 256 calls.
//
// Pure: no clock, no random numbers. Equal inputs give equal decisions, also after an archive was
// saved and loaded. Samples are counted, times are in ns. Not thread-safe.
#ifndef PRD_ENGINES_BATCH_RULE_H_
#define PRD_ENGINES_BATCH_RULE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/archive.h"
#include "common/base/ids.h"
#include "common/base/time.h"
#include "engines/step_cost.h"

namespace prd {

struct BatchRuleOptions {
  std::int64_t batch = 0;       // samples of all workers in one step
  std::int64_t multiple = 1;    // shares are multiples of it, as far as possible
  double rebalance_min = 0.05;  // least gain, as a part of the shorter step
};

struct ShareOf {
  Rank rank = kNoRank;
  std::int64_t samples = 0;
  void Archive(StateArchive& ar) { ar(rank, samples); }
  friend bool operator==(const ShareOf&, const ShareOf&) = default;
};

struct WorkerLoad {
  Rank rank = kNoRank;
  const StepCost* cost = nullptr;  // null, or not known(): counts as the mean of the others
  std::int64_t limit = 0;          // most samples; 0: no limit
};

// The shares with the least largest expected time, in the order of `workers` (sorted by rank). Each
// is at least 1 and at most the worker's limit; their sum is min(batch, sum of limits). They are
// multiples of `multiple`, with these exceptions: one worker takes the remainder; a limit below
// `multiple` is taken whole; single samples fill up limits if nothing else holds the batch; and all
// counts in single samples if there are fewer multiples than workers. Workers that cost the same
// differ by at most one multiple (and the remainder), the lower ranks first.
// O(workers * log(workers)). REQUIRES: batch >= workers.size(), multiple >= 1, limits >= 0.
std::vector<std::int64_t> DivideBatch(std::int64_t batch, std::int64_t multiple,
                                      std::span<const WorkerLoad> workers);

class BatchRule {
 public:
  explicit BatchRule(BatchRuleOptions options) : options_(options) {}

  void SetOptions(BatchRuleOptions options) { options_ = options; }

  // A step of `samples` samples took the worker `computing` ns. Values <= 0 are ignored.
  void Observe(Rank rank, std::int64_t samples, DurationNs computing);
  // Forgets what is known of a worker that has left.
  void Forget(Rank rank) { costs_.erase(rank); }

  struct Decision {
    std::vector<ShareOf> shares;  // of all workers, sorted by rank
    std::string reason;
  };
  struct Asked {
    Rank rank = kNoRank;
    std::int64_t limit = 0;  // most samples; 0: no limit
    void Archive(StateArchive& ar) { ar(rank, limit); }
    friend bool operator==(const Asked&, const Asked&) = default;
  };
  // The shares from the next step on, if they differ from `present`. Both lists are sorted by rank;
  // `workers` are those who are to have a share. Called once per step.
  // REQUIRES: batch >= workers.size().
  std::optional<Decision> Decide(std::span<const Asked> workers, std::span<const ShareOf> present);

  // Samples besides the shares, divided in the same way among some workers: of more workers than
  // samples, the lowest ranks. Sorted by rank. REQUIRES: there are some of both.
  std::vector<ShareOf> Divide(std::int64_t samples, const std::vector<Rank>& ranks) const;

  // How long the worker is expected to compute with so many samples, in ns. 0: not known.
  DurationNs Expected(Rank rank, std::int64_t samples) const;

  // The options are not part of it: they are those that were set before.
  void Archive(StateArchive& ar);

 private:
  using Loads = std::vector<WorkerLoad>;
  using Counts = std::vector<std::int64_t>;  // samples, by the index of the worker

  Loads LoadsOf(std::span<const Asked> workers) const;
  std::string WhyForced(std::span<const Asked> workers, std::span<const ShareOf> present) const;
  Loads Bounded(const Loads& loads, const Counts& present) const;
  std::optional<Decision> Rebalance(const Loads& loads, const Counts& present) const;
  std::optional<Decision> EndProbe(const Loads& loads, std::span<const ShareOf> present);
  std::optional<Decision> Probe(const Loads& loads, const Counts& present);
  std::int64_t ProbeShare(const Loads& loads, const Counts& present, std::size_t index) const;

  BatchRuleOptions options_;
  std::map<Rank, StepCost> costs_;
  std::vector<Asked> asked_;           // by the last call
  std::int64_t quiet_calls_ = 0;       // since shares last changed
  std::int64_t probe_interval_ = 64;   // in calls
  Rank probed_ = kNoRank;              // by the last probe
  std::vector<ShareOf> before_probe_;  // empty: no probe goes on
};

}  // namespace prd

#endif  // PRD_ENGINES_BATCH_RULE_H_
