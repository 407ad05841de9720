// What a run was like: counted from the history as it is written and from what workers do.
#ifndef PRD_TOOLS_SIM_STATS_H_
#define PRD_TOOLS_SIM_STATS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/history.h"
#include "common/base/time.h"

namespace prd::sim {

struct WorkerStats {
  DurationNs computed = 0;
  DurationNs waited = 0;   // from the end of the local step until its group is announced here
  DurationNs reduced = 0;  // in groups, failed ones included
  std::int64_t steps = 0;
  std::uint64_t sent = 0;    // bytes, as far as peers asked for them (NeighbourPlan, StorePlan)
  std::int64_t skipped = 0;  // iterations (NeighbourPlan)
  // The share of its time in training that a worker neither computed nor reduced.
  double IdleShare() const {
    const auto all = static_cast<double>(computed + waited + reduced);
    return all > 0 ? static_cast<double>(waited) / all : 0;
  }
};

struct Slice {
  enum class Kind : std::uint8_t { kCompute, kWait, kReduce };
  std::uint32_t worker = 0;
  Kind kind = Kind::kCompute;
  Instant from;
  Instant to;
};

struct LossPoint {
  Instant at;
  std::uint64_t updates = 0;
  double loss = 0;
};

// Counts by value; values over the last are counted there.
class Histogram {
 public:
  static constexpr std::size_t kValues = 4096;
  void Add(std::int64_t value);
  const std::vector<std::uint64_t>& counts() const { return counts_; }
  std::uint64_t total() const { return total_; }
  double Mean() const;
  // The smallest value that at least this share of all are at most.
  std::int64_t Quantile(double share) const;

 private:
  std::vector<std::uint64_t> counts_;
  std::uint64_t total_ = 0;
};

// What all workers have done for training together.
struct Work {
  std::int64_t steps = 0;
  std::uint64_t bytes = 0;  // sent between workers; groups that are in no history tell none
};

// Updates: training groups, rounds and answers that succeeded. Those until the first worker
// finishes are measured.
class Throughput {
 public:
  // A worker has finished.
  void End() { over_ = true; }
  // One of so many members; `work`: all of it so far.
  void Add(Instant now, std::uint64_t members, const Work& work);

  std::uint64_t updates() const { return updates_; }    // in all
  std::uint64_t measured() const { return measured_; }  // of these
  std::uint64_t members() const { return members_; }    // of the groups of those measured
  // From the end of the first measured update to that of the last. 0 with fewer than two.
  double PerSecond() const;
  // Between the same two ends.
  double Seconds() const { return static_cast<double>(last_ - first_) / 1e9; }
  Work Done() const;

 private:
  std::uint64_t updates_ = 0, measured_ = 0, members_ = 0;
  bool over_ = false;
  Instant first_, last_;         // measured
  Work first_work_, last_work_;  // all of it until then
};

// The mean synchronisation matrix E[W_k] over the groups that succeeded (P-Reduce, Assumption 1.3).
// Kept for at most kWorkers.
class MeanMatrix {
 public:
  static constexpr std::size_t kWorkers = 256;
  explicit MeanMatrix(std::size_t workers);
  void Add(const GroupFormed& formed);
  // rho = max(|lambda_2|, |lambda_N|); of the second largest modulus where weights make it
  // asymmetric. nullopt: no group, or more than kWorkers workers.
  std::optional<double> Rho() const;

 private:
  std::vector<double> sum_;  // over groups of W_k - I, row by row; empty: not kept
  std::size_t size_ = 0;
  std::uint64_t groups_ = 0;
};

// Where the joined workers are.
class Iterations {
 public:
  void MoveTo(Rank rank, Iteration iteration);
  void Forget(Rank rank);
  bool Has(Rank rank) const;
  // Between the largest and the least of all; nullopt: nobody has joined.
  std::optional<Iteration> Gap() const;

 private:
  std::map<Iteration, std::int64_t> at_;  // workers by iteration
  std::vector<Iteration> iteration_;      // by rank; -1: not joined
};

// Counts records; see RunResult for what becomes of it.
class Stats {
 public:
  // `own_counts`: members of a group keep their own iteration. `answers`: without groups, each
  // answer lets a worker make an update (NeighbourPlan, StorePlan).
  Stats(std::int64_t workers, bool slices, std::size_t slice_limit, bool own_counts = false,
        bool answers = false);

  // A run of this plan begins.
  void Begins(const Plan& plan) {
    own_counts_ = DrawnAhead(plan);
    answers_ = !TrainsInGroups(plan);
  }
  void Seen(const Record& record);
  // A group that succeeded and is in no history (FollowsSchedule).
  void Unreported(Instant now, const GroupFormed& formed);
  void AddSlice(std::uint32_t worker, Slice::Kind kind, Instant from, Instant to);

  Throughput throughput;
  std::uint64_t groups = 0;  // for training
  std::uint64_t failed_groups = 0;
  std::uint64_t conflicts = 0;  // groups that had to be serialised (GroupFormed::conflict)
  std::uint64_t expired = 0;    // leases
  std::uint64_t adoptions = 0;  // ordered
  std::uint64_t members = 0;    // of groups
  // NeighbourPlan: updates that came and were never used, and that were not sent.
  std::uint64_t dropped = 0;
  std::uint64_t suppressed = 0;
  // Staleness. Of a group's member: the group's largest iteration minus its own. NeighbourPlan, of
  // an update: the iteration that it is used in minus its own. StorePlan, of a read: its clock
  // minus the slowest worker's.
  Histogram staleness;
  Histogram contributors;  // to a kRound (the active processes of eager-SGD, section 4)
  Histogram gap;           // between the largest and the least iteration of all joined workers
  std::vector<WorkerStats> workers;
  std::vector<Slice> slices;

  std::optional<double> Rho() const { return matrix_.Rho(); }  // as MeanMatrix

 private:
  void OnAnswered(Instant now, const QueryAnswered& answered);
  void OnFinished(const Finished& finished);
  void OnFormed(const GroupFormed& formed);
  void OnEnded(Instant now, const GroupEnded& ended);
  void Succeeded(Instant now, const GroupFormed& formed);
  void AddGap();

  bool keep_slices_;
  bool own_counts_;
  bool answers_;
  std::size_t slice_limit_;
  RunId run_ = kNoRun;
  std::map<GroupId, GroupFormed> running_;
  Work work_;               // each worker's up to its last slice
  std::vector<Work> seen_;  // what of it is each worker's steps and what it sent on request
  MeanMatrix matrix_;
  Iterations iterations_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_STATS_H_
