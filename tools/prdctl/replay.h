// A controller restored from its history, record by record: what it decides is compared with what
// it had decided, and its state answers questions about the present.
#ifndef PRD_TOOLS_PRDCTL_REPLAY_H_
#define PRD_TOOLS_PRDCTL_REPLAY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/history.h"
#include "engines/replay.h"
#include "engines/run.h"
#include "prd/status.h"
#include "tools/prdctl/source.h"

namespace prd::ctl {

class Replayer {
 public:
  // The next record, from the run's first on. kDataLoss: it is not what follows from those before
  // it; the replayer is of no more use then.
  Status Add(const Record& record);
  // Goes on from a snapshot instead; `first` is the run's RunStarted record.
  Status Load(const Record& first, const Snapshot& snapshot);

  // Null before the first record.
  const Run* run() const { return run_.get(); }
  std::uint64_t inputs() const { return replay_ ? replay_->inputs() : 0; }
  std::uint64_t decisions() const { return replay_ ? replay_->decisions() : 0; }
  // Decisions of the last input that the history does not hold yet.
  std::size_t open() const { return replay_ ? replay_->open().size() : 0; }

 private:
  Status MakeJob(const Record& first);

  std::unique_ptr<Run> run_;
  std::unique_ptr<prd::Replay> replay_;
};

// Verifies all of a run; of one of which records were removed, what follows its newest snapshot.
Status ReplayAll(HistorySource& source, const RunInfo& run, Replayer* replayer,
                 const std::function<void(const Record&)>& seen = nullptr);

// The state after the newest record, from the newest snapshot where that can be read: `seen` gets
// the records from there on, after the replayer.
Status ReplayToPresent(HistorySource& source, RunId run, Replayer* replayer,
                       const std::function<void(const Record&)>& seen);

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_REPLAY_H_
