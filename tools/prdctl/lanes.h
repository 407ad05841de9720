// What each worker of a job did over time, as `prdctl serve` draws it.
#ifndef PRD_TOOLS_PRDCTL_LANES_H_
#define PRD_TOOLS_PRDCTL_LANES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "tools/prdctl/export.h"

namespace prd::ctl {

// What a worker did, and when; in order. Of more than `most` spans the oldest are forgotten. A
// worker that goes from run to run is there all the time.
class Lanes final : public TraceExporter {
 public:
  // In the order of precedence in which the page names them.
  enum class Kind : std::uint8_t { kComputing, kWaiting, kReducing, kBeside };
  struct Span {
    Instant from, to;
    GroupId group = kNoGroup;
    Kind kind = Kind::kComputing;
  };
  struct Stay {
    Instant joined;
    std::optional<Instant> left;
    std::string why;  // it left
  };
  struct Lane {
    std::deque<Span> spans;
    std::deque<Stay> there;
  };

  explicit Lanes(std::size_t most = 2'000'000) : TraceExporter(nullptr), most_(most) {}
  void Follow(const Record& record);

  const std::map<Rank, Lane>& lanes() const { return lanes_; }
  // What it does since its last span, if it is there and `now` is the present.
  std::optional<Span> Open(Rank rank, Instant now) const;
  // Groups of each run have numbers from 1 on. Added to those of this run, no number comes twice.
  GroupId base() const { return base_; }
  // Before this time spans were forgotten.
  std::optional<Instant> forgotten() const { return forgotten_; }

 private:
  void Did(const char* name, int thread, Instant from, Instant to, GroupId group) override;
  void Forget();

  const std::size_t most_;
  std::size_t spans_ = 0;
  std::map<Rank, Lane> lanes_;
  std::map<Rank, GroupId> in_;  // a group that has its training loop
  std::set<Rank> going_over_;   // there as the run before ended for this one
  std::optional<Instant> forgotten_;
  GroupId base_ = 0;
  GroupId newest_ = 0;  // of this run
};

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_LANES_H_
