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

  // Reads what is new in the folder.
  void Look();

  std::size_t workers() const { return headers_.size(); }  // seen so far
  // The earliest snapshot's time. REQUIRES: workers() > 0.
  std::int64_t FirstNs() const;
  // The latest snapshot's time. REQUIRES: workers() > 0.
  std::int64_t LastNs() const;
  // Every worker seen has left its final snapshot or is dead at this time.
  bool Ended(std::int64_t now_ns) const;

  // Averages the newest snapshots not later than at_ns. REQUIRES: at_ns does not decrease.
  AveragedModel Average(std::int64_t at_ns);
  // Averages the final snapshots alone.
  AveragedModel AverageFinals();

 private:
  struct Entry {
    std::string path;
    SnapshotHeader header;
  };
  bool Live(const SnapshotHeader& header, std::int64_t at_ns) const;
  AveragedModel Combine(const std::vector<const Entry*>& entries) const;

  const std::string dir_;
  const std::size_t parameters_;
  const std::int64_t live_ns_;
  const bool keep_;
  std::map<int, std::map<std::int64_t, Entry>> headers_;  // rank -> number -> entry
  std::int64_t first_ns_ = std::numeric_limits<std::int64_t>::max();
};

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_SNAPSHOT_AVERAGE_H_
