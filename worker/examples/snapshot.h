// Snapshots: what a worker leaves in a folder now and then so that another process can evaluate the
// averaged model, outside the training's own time.
//
// A snapshot is one file, snapshot-RANK-TIME.bin, complete from the moment it has this name. The
// time is the header's, so that a later training in the same folder overwrites none. It is read by
// the machine that wrote it: native byte order.
#ifndef PRD_WORKER_EXAMPLES_SNAPSHOT_H_
#define PRD_WORKER_EXAMPLES_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace example {

// Nanoseconds of the host's monotonic clock: the same for all processes of one host.
std::int64_t MonotonicNs();

struct SnapshotHeader {
  std::int32_t rank = 0;
  std::int32_t final = 0;    // 1: training is over, and this is the average of all replicas
  std::int64_t time_ns = 0;  // MonotonicNs when the parameters were copied
  std::int64_t steps = 0;    // this worker's since it joined
  std::int64_t samples = 0;  // in those
  // Sum over the steps of rounds/members of the step's group: summed over all workers it is the
  // number of groups; nearly, where a step has several rounds, in groups of unequal sizes.
  double updates = 0;
};

struct Snapshot {
  SnapshotHeader header;
  std::vector<float> parameters;
};

// Throws std::runtime_error when the file cannot be written.
void WriteSnapshot(const std::string& dir, const Snapshot& snapshot);

// The header of a snapshot of `parameters` values, or the whole. Throws std::runtime_error that
// says what is wrong with the file; gives nothing if it is not there (any more).
std::optional<SnapshotHeader> ReadSnapshotHeader(const std::string& path, std::size_t parameters);
std::optional<Snapshot> ReadSnapshot(const std::string& path, std::size_t parameters);

// One snapshot file by its name alone.
struct SnapshotFile {
  std::string path;
  int rank = 0;
  std::int64_t time_ns = 0;
};

// All snapshots in `dir`, by rank and time. Throws std::runtime_error if it cannot be read.
std::vector<SnapshotFile> ListSnapshots(const std::string& dir);

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_SNAPSHOT_H_
