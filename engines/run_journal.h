// The output of a run, input by input: records of its history, and messages to workers.
#ifndef PRD_ENGINES_RUN_JOURNAL_H_
#define PRD_ENGINES_RUN_JOURNAL_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"

namespace prd {

// Records and messages of one input, in order. Records have run, index and now filled in.
struct RunOutput {
  struct Outgoing {
    Rank rank = kNoRank;
    ControllerEnvelope envelope;
  };
  std::vector<Record> records;
  std::vector<Outgoing> sends;
};

// Numbers and dates the records of a run. Not thread safe.
class RunJournal {
 public:
  explicit RunJournal(RunId run) : run_(run) {}

  // Output goes there until End().
  void Begin(Instant now, RunOutput* out) {
    now_ = now;
    out_ = out;
  }
  void End() { out_ = nullptr; }

  Record& Write(RecordBody body) {
    return out_->records.emplace_back(
        Record{.run = run_, .index = next_index_++, .now = now_, .body = std::move(body)});
  }
  void Send(Rank rank, ControllerEnvelope envelope) {
    out_->sends.push_back({rank, std::move(envelope)});
  }

  RunId run() const { return run_; }
  std::uint64_t next_index() const { return next_index_; }              // of the next record
  Instant now() const { return now_; }                                  // of the last input
  const std::vector<Record>& records() const { return out_->records; }  // of this input

  void Archive(StateArchive& ar) { ar(next_index_, now_); }

 private:
  const RunId run_;
  std::uint64_t next_index_ = 0;
  Instant now_;
  RunOutput* out_ = nullptr;
};

}  // namespace prd

#endif  // PRD_ENGINES_RUN_JOURNAL_H_
