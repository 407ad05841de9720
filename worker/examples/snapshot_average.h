// The average of all workers' newest snapshots at a time, from a folder of snapshots.
#ifndef PRD_WORKER_EXAMPLES_SNAPSHOT_AVERAGE_H_
#define PRD_WORKER_EXAMPLES_SNAPSHOT_AVERAGE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "worker/examples/snapshot.h"

namespace example {

struct AveragedModel {
  std::vector<float> parameters;  // empty if no worker was live
  int live = 0;                   // workers averaged
  int finals = 0;                 // of them, those whose snapshot is final
  double updates = 0;             // groups so far, those of the dead included
  std::int64_t samples = 0;
  std::int64_t steps = 0;
  // The largest difference of any parameter between two of the workers.
  double spread = 0;
};

// One thread.
class SnapshotAverager {
 public:
  // parameters: of the model. A worker whose newest snapshot is not final and older than live_ns is
  // taken for dead. keep: files are left; else those that are no longer needed are removed.
  SnapshotAverager(std::string dir, std::size_t parameters, std::int64_t live_ns, bool keep);

  // Reads what is new in the folder. Once a worker has begun another training there, what is left
  // of an earlier one that ended is as if it had not been.
  void Look();

  std::size_t workers() const { return headers_.size(); }  // seen so far
  // When so many workers had left a snapshot. REQUIRES: 0 < workers <= workers().
  std::int64_t BegunNs(std::size_t workers) const;
  // The earliest snapshot's time. REQUIRES: workers() > 0.
  std::int64_t FirstNs() const { return BegunNs(1); }
  // The latest snapshot's time. REQUIRES: workers() > 0.
  std::int64_t LastNs() const;
  // Every worker seen has left its final snapshot or is dead at this time.
  bool Ended(std::int64_t now_ns) const;

  // Averages the newest snapshots not later than at_ns. REQUIRES: at_ns does not decrease.
  AveragedModel Average(std::int64_t at_ns);
  // Averages the final snapshots alone.
  AveragedModel AverageFinals();

  // Removes all files that Look has read, unless they are kept.
  void Clear();

 private:
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::min();
  struct Entry {
    std::string path;
    SnapshotHeader header;
  };
  bool Live(const SnapshotHeader& header, std::int64_t at_ns) const;
  void LeaveOutEarlierTraining();
  void Remove(const Entry& entry) const;
  AveragedModel Combine(const std::vector<const Entry*>& entries) const;

  const std::string dir_;
  const std::size_t parameters_;
  const std::int64_t live_ns_;
  const bool keep_;
  std::map<int, std::map<std::int64_t, Entry>> headers_;  // rank -> time -> entry; none is empty
  std::map<int, std::int64_t> first_ns_;                  // by rank, of its snapshots
  std::int64_t earlier_ns_ = kNone;                       // an earlier training's end
};

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_SNAPSHOT_AVERAGE_H_
