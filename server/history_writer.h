// Writes what the controller has decided into the history, and waits while that cannot be done, as
// on a full disk. Not thread safe.
#ifndef PRD_SERVER_HISTORY_WRITER_H_
#define PRD_SERVER_HISTORY_WRITER_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "common/base/time.h"
#include "engines/controller.h"
#include "server/history/rocks_history.h"
#include "server/metrics.h"

namespace prd {

class HistoryWriter {
 public:
  // All must outlive it. `metrics` is told while prd is not ready for this; null: nobody is.
  HistoryWriter(Controller* controller, const RocksHistory* history, Metrics* metrics);

  // True: what was decided is in the history, and has been sent. False: the history cannot be
  // written now. It is tried again at retry_at, unless it has failed.
  bool Flush(Instant now);

  bool stalled() const { return stalled_since_.has_value(); }
  // For so long, at least 1; 0: it is not stalled.
  DurationNs StalledFor(Instant now) const {
    return stalled_since_ ? std::max<DurationNs>(1, now - *stalled_since_) : 0;
  }
  const std::string& why_stalled() const { return why_stalled_; }
  Instant retry_at() const { return retry_at_; }
  // A write failed half-way. The daemon ends, and the next one goes on from what is recorded.
  bool failed() const { return failed_; }

  std::uint64_t errors() const { return errors_; }
  const Distribution& seconds() const { return seconds_; }  // of writes

 private:
  Controller* controller_;
  const RocksHistory* history_;
  Metrics* metrics_;
  std::optional<Instant> stalled_since_;
  std::string why_stalled_;
  Instant retry_at_;
  DurationNs pause_ = 0;  // before it is tried again
  bool failed_ = false;
  std::uint64_t errors_ = 0;
  Distribution seconds_;
};

}  // namespace prd

#endif  // PRD_SERVER_HISTORY_WRITER_H_
