// A job as the page of `prdctl serve` shows it: kept up with the records of its run, and of those
// that follow where it is switched, and asked for what is in the window. All answers are bounded,
// however many workers and records there are.
#ifndef PRD_TOOLS_PRDCTL_WATCH_H_
#define PRD_TOOLS_PRDCTL_WATCH_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/prdctl/json.h"
#include "tools/prdctl/lanes.h"
#include "tools/prdctl/meters.h"
#include "tools/prdctl/present.h"
#include "tools/prdctl/series.h"

namespace prd::ctl {

class JobWatch {
 public:
  static constexpr std::size_t kGroups = 20'000;   // kept, the newest
  static constexpr std::size_t kMembers = 64;      // of each that are named
  static constexpr std::size_t kSwitches = 1'000;  // kept, the newest

  // In order, from a run's first on; after its last, those of the run in which the job goes on.
  // kDataLoss: it is not what follows; what is shown stays as it was.
  Status Add(const Record& record);
  // No more of the newest run can be read: what comes is of the next one.
  void GiveUp() { ended_ = true; }
  // Read so far: of the newest run, and of all.
  std::uint64_t records() const { return records_; }
  std::uint64_t all_records() const { return before_.records + records_; }
  RunId run() const { return run_; }  // the newest
  // Its last record was read.
  bool ended() const { return ended_; }

  // `runs`: those of the job in turn, the first one read from its start on; at least one. `daemon`:
  // null: none runs.
  Json Summary(const std::vector<RunInfo>& runs, const DaemonStatus* daemon) const;
  // Seconds since the start of the job's first run; `width`: pixels that there are. Exact spans
  // where they are few, else a grid of what was mostly done.
  Json Timeline(double from_s, double to_s, int width, Instant now) const;
  // The newest of those formed until then, the newest first.
  Json Groups(double to_s, std::optional<Rank> rank) const;
  // The latest time that is known of.
  Instant Now(const DaemonStatus* daemon) const;

 private:
  struct Group {
    GroupId key = kNoGroup;  // Lanes::base() and its number
    GroupId id = kNoGroup;
    RunId run = kNoRun;
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
  // The job went on under another engine, or with other options.
  struct Switch {
    Instant asked, at;
    RunId run = kNoRun;  // that began
    std::string from, to, by, reason;
    DurationNs pause_ns = 0;  // the longest of a worker: from its Finish until it trained again
  };
  // What a rank did in the runs before the newest one.
  struct Done {
    std::uint64_t steps = 0, dropped = 0;
    DurationNs computed_ns = 0, waited_ns = 0, reduced_ns = 0, cost_ns = 0;
  };
  struct Before {
    std::uint64_t records = 0;
    DurationNs waited_ns = 0, controller_ns = 0;
    std::map<Rank, Done> ranks;
  };
  void GoOn(const RunStarted& started, Instant now, RunId run);
  Group Of(const GroupRow& row) const;
  void OnGroup(const RunView::Change& change);
  void OnSteps(const Record& record, Rank rank, std::int64_t own, const Losses& losses);
  Json Pace() const;
  Json Graph() const;

  // The newest run's alone.
  RunId run_ = kNoRun;
  std::string engine_;
  std::uint64_t records_ = 0;
  bool ended_ = false;
  std::unique_ptr<PresentReader> present_;
  std::unique_ptr<PaceMeter> pace_;
  std::map<Rank, Instant> finished_;  // where they have: in it, or in the run before
  // For all runs.
  Instant start_, last_;
  Before before_;
  std::optional<OperatorActed> asked_;  // a switch that is to come
  Instant asked_at_;
  std::deque<Switch> switches_;
  Lanes lanes_;
  StepSeries steps_;
  Meetings meetings_;
  std::map<Rank, NeighboursSet> neighbours_;
  std::map<Rank, std::int64_t> told_;
  std::uint64_t all_steps_ = 0;
  std::deque<Group> groups_;  // by key
  std::deque<Act> acts_;      // the newest
};

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_WATCH_H_
