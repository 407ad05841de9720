// A run's history fed back into a job: what restores a controller, and what proves a history right.
#ifndef PRD_ENGINES_REPLAY_H_
#define PRD_ENGINES_REPLAY_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/history.h"
#include "common/base/ids.h"
#include "engines/job_spec.h"
#include "engines/run.h"
#include "prd/status.h"

namespace prd {

// Applies the recorded inputs and compares the decisions they lead to with the recorded ones.
class Replay {
 public:
  // The job is fresh, or loaded from a snapshot; it must outlive the replay.
  explicit Replay(Run* run) : run_(run) {}

  // The next record: that of index job->next_index(), or a decision of the input before. kDataLoss:
  // a record is missing, or it is not what follows from those before; the job is of no use then.
  Status Add(const Record& record);

  // Decisions of the last input that have not been added: none, or the history ends in a torn
  // batch.
  const std::deque<Record>& open() const { return open_; }
  std::uint64_t inputs() const { return inputs_; }
  std::uint64_t decisions() const { return decisions_; }

 private:
  Run* run_;
  std::deque<Record> open_;
  RunOutput output_;
  std::uint64_t inputs_ = 0;
  std::uint64_t decisions_ = 0;
};

// A run that is read back from its history, in pieces: histories may be larger than the memory.
class StoredRun {
 public:
  StoredRun(RunId id, JobSpec spec)
      : run_(std::make_unique<Run>(id, std::move(spec))), replay_(run_.get()) {}

  // Begins with this snapshot, of the state before record `from`; an empty one changes nothing.
  // REQUIRES: nothing was added. After an error the run is of no use, as after one of Add.
  Status Load(std::string_view snapshot, std::uint64_t from);
  // The next records, of index next() and so on. kDataLoss says where the replay does not make the
  // recorded decisions, or which record is missing.
  Status Add(std::span<const Record> records);

  std::uint64_t next() const {
    return replay_.open().empty() ? run_->next_index() : replay_.open().front().index;
  }
  std::uint64_t loaded() const { return loaded_; }  // records that the snapshot stands for
  const Run& run() const { return *run_; }
  // Decisions that belong to the last records and were not among them: the history's end is torn.
  const std::deque<Record>& open() const { return replay_.open(); }
  // Workers that left, in that order.
  const std::vector<Incarnation>& left() const { return left_; }
  std::unique_ptr<Run> TakeRun() { return std::move(run_); }

 private:
  std::unique_ptr<Run> run_;
  Replay replay_;
  std::uint64_t loaded_ = 0;
  std::vector<Incarnation> left_;
};

}  // namespace prd

#endif  // PRD_ENGINES_REPLAY_H_
