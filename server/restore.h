// Restores from the history the runs that had not ended when the last daemon stopped, and which
// ones were finished.
#ifndef PRD_SERVER_RESTORE_H_
#define PRD_SERVER_RESTORE_H_

#include <cstddef>

#include "common/base/time.h"
#include "engines/controller.h"
#include "prd/status.h"
#include "server/history/rocks_history.h"

namespace prd {

// The highest `now` among the runs that have not ended: the controller's clock must not run behind
// it. A run whose newest record cannot be read is left to RestoreRuns.
Result<Instant> LastRecordedNow(const RocksHistory& history);

struct RestoreSummary {
  std::size_t restored = 0;
  std::size_t set_aside = 0;  // could not be restored: logged, kept in the history, not continued
};
// Fails only if the history as a whole cannot be read. A run that cannot be restored is set aside.
Result<RestoreSummary> RestoreRuns(Instant now, RocksHistory* history, Controller* controller);

}  // namespace prd

#endif  // PRD_SERVER_RESTORE_H_
