// Restores from the history the runs that had not ended when the last daemon stopped, and which
// ones were finished.
#ifndef PRD_SERVER_RESTORE_H_
#define PRD_SERVER_RESTORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "common/base/ids.h"
#include "common/base/time.h"
#include "engines/controller.h"
#include "prd/status.h"
#include "server/history/rocks_history.h"

namespace prd {

// The highest `now` among the runs that have not ended: the controller's clock must not run behind
// it. A run whose newest record cannot be read is left to RestoreRuns.
Result<Instant> LastRecordedNow(const RocksHistory& history);

struct RestoreProgress {
  RunId run = 0;
  std::string job;
  std::uint64_t read = 0;  // records, or what a snapshot stands for
  std::uint64_t records = 0;
  int percent = 0;  // of the records of all runs
};
// Called before the first record is read and after each piece: a long history takes minutes
// (server/README.md, "Upgrades"). An error ends the restore.
using RestoreWatch = std::function<Status(const RestoreProgress&)>;

struct RestoreSummary {
  std::size_t restored = 0;
  std::size_t set_aside = 0;  // could not be restored: logged, kept in the history, not continued
};
// Fails only if the history as a whole cannot be read, or with the watch's error; then nothing has
// changed. A run that cannot be restored is set aside. Leases begin at `now` once all are read.
Result<RestoreSummary> RestoreRuns(const std::function<Instant()>& now, RocksHistory* history,
                                   Controller* controller, const RestoreWatch& watch,
                                   std::size_t piece_bytes = 1 << 20);

}  // namespace prd

#endif  // PRD_SERVER_RESTORE_H_
