// A run as the page of `prdctl serve` shows it: kept up with its records, and asked for what is in
// the window. All answers are bounded, however many workers and records there are.
#ifndef PRD_TOOLS_PRDCTL_WATCH_H_
#define PRD_TOOLS_PRDCTL_WATCH_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/prdctl/export.h"
#include "tools/prdctl/json.h"
#include "tools/prdctl/meters.h"
#include "tools/prdctl/present.h"

namespace prd::ctl {

// What a worker did, and when; in order. Of a run longer than kMost spans the oldest are forgotten.
class Lanes final : public TraceExporter {
 public:
  // In the order of precedence in which the page names them.
  enum class Kind : std::uint8_t { kComputing, kWaiting, kReducing, kBeside };
  struct Span {
    Instant from, to;
    GroupId group = kNoGroup;
    Kind kind = Kind::kComputing;
  };
  struct Lane {
    std::deque<Span> spans;
    std::deque<std::pair<Instant, std::optional<Instant>>> there;  // joined, left
  };

  explicit Lanes(std::size_t most = 2'000'000) : TraceExporter(nullptr), most_(most) {}
  void Follow(const Record& record);

  const std::map<Rank, Lane>& lanes() const { return lanes_; }
  // What it does since its last span, if it is there and `now` is the present.
  std::optional<Span> Open(Rank rank, Instant now) const;
  // Before this time spans were forgotten.
  std::optional<Instant> forgotten() const { return forgotten_; }

 private:
  void Did(const char* name, int thread, Instant from, Instant to, GroupId group) override;
  void Forget();

  const std::size_t most_;
  std::size_t spans_ = 0;
  std::map<Rank, Lane> lanes_;
  std::map<Rank, GroupId> in_;  // a group that has its training loop
  std::set<Rank> stopped_;      // finished, or pausing
  std::optional<Instant> forgotten_;
};

// Steps of all workers over time, in at most kBuckets parts that grow with the run.
class StepSeries {
 public:
  static constexpr std::size_t kBuckets = 1024;
  void Add(DurationNs at, std::uint64_t steps);
  DurationNs width() const { return width_; }
  const std::vector<std::uint64_t>& buckets() const { return buckets_; }

 private:
  DurationNs width_ = kSecond / 4;
  std::vector<std::uint64_t> buckets_;
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

class RunWatch {
 public:
  static constexpr std::size_t kGroups = 20'000;  // kept, the newest
  static constexpr std::size_t kMembers = 64;     // of each that are named

  // In order, from the first on. kDataLoss: it is not what follows; what is shown stays as it was.
  Status Add(const Record& record);
  std::uint64_t records() const { return records_; }

  // `daemon`: null: none runs.
  Json Summary(const RunInfo& run, const DaemonStatus* daemon) const;
  // Seconds since the run's start; `width`: pixels that there are. Exact spans where they are few,
  // else a grid of what was mostly done.
  Json Timeline(double from_s, double to_s, int width, Instant now) const;
  // The newest of those formed until then, the newest first.
  Json Groups(double to_s, std::optional<Rank> rank) const;
  // The latest time that is known of.
  Instant Now(const DaemonStatus* daemon) const;

 private:
  struct Group {
    GroupId id = kNoGroup;
    GroupKind kind = GroupKind::kTrain;
    Instant formed;
    std::optional<Instant> ended;
    std::string state, reason, failure;
    std::vector<Rank> members;  // the first kMembers
    std::size_t all = 0;
    DurationNs waited_ns = 0;  // by all
    Rank last = kNoRank;       // that the others waited for
    DurationNs reduce_ns = 0;  // the longest
  };
  // What an operator did.
  struct Act {
    Instant at;
    std::string what, by, reason;
  };
  Group Of(const GroupRow& row) const;
  void OnGroup(const GroupTracker::Change& change);
  void OnSteps(const Record& record, Rank rank, std::int64_t own);
  Json Pace() const;
  Json Graph() const;

  std::uint64_t records_ = 0;
  Instant start_, last_;
  bool ended_ = false;
  PresentReader present_;
  PaceMeter pace_;
  Lanes lanes_;
  StepSeries steps_;
  Meetings meetings_;
  std::map<Rank, NeighboursSet> neighbours_;
  std::map<Rank, std::int64_t> told_;
  std::uint64_t all_steps_ = 0;
  GroupTracker tracker_;
  std::deque<Group> groups_;  // by id
  std::deque<Act> acts_;      // the newest
};

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_WATCH_H_
