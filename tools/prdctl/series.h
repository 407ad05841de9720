// What `prdctl serve` keeps of a whole job in bounded memory, however long it runs.
#ifndef PRD_TOOLS_PRDCTL_SERIES_H_
#define PRD_TOOLS_PRDCTL_SERIES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "tools/prdctl/json.h"

namespace prd::ctl {

// Steps and losses of all workers over time, in at most kBuckets parts that grow with the run.
class StepSeries {
 public:
  static constexpr std::size_t kBuckets = 1024;
  void Add(DurationNs at, std::uint64_t steps, const Losses& losses);
  // "steps" by bucket, and "loss", their mean: null where none was told. None at all: no "loss".
  Json ToJson() const;

 private:
  struct Bucket {
    std::uint64_t steps = 0;
    double losses = 0, loss_sum = 0;
  };
  DurationNs width_ = kSecond / 4;
  std::vector<Bucket> buckets_;
};

// How often ranks met, in at most kSide x kSide fields: of more ranks, several share one.
class Meetings {
 public:
  static constexpr std::size_t kSide = 64;
  void Add(Rank a, Rank b, double weight);
  std::size_t per_field() const { return scale_; }
  std::size_t side() const { return side_; }
  double At(std::size_t a, std::size_t b) const { return fields_[a * kSide + b]; }

 private:
  void Widen();
  std::size_t scale_ = 1, side_ = 0;
  std::array<double, kSide * kSide> fields_{};
};

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_SERIES_H_
