// A run's history fed back into a job: what restores a controller, and what proves a history right.
#ifndef PRD_ENGINES_REPLAY_H_
#define PRD_ENGINES_REPLAY_H_

#include <cstdint>
#include <deque>

#include "common/base/history.h"
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

}  // namespace prd

#endif  // PRD_ENGINES_REPLAY_H_
