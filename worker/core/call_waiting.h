// How long the call in progress waits, and what it says about that.
#ifndef PRD_WORKER_CORE_CALL_WAITING_H_
#define PRD_WORKER_CORE_CALL_WAITING_H_

#include <optional>
#include <string>

#include "common/base/time.h"
#include "worker/core/actions.h"
#include "worker/core/session_parts.h"

namespace prd {

// When the call in progress times out; nullopt while the data plane works.
std::optional<Instant> TimeoutEnds(const SessionParts& p);
// Why it has timed out, for its Status.
std::string TimeoutText(const SessionParts& p);
// When the session leaves whatever it does (LeaveSoon).
std::optional<Instant> GraceEnds(const SessionParts& p);
// When the next line is due that says what the call waits for; and that line.
std::optional<Instant> LineAt(const SessionParts& p);
LogLine WaitingLine(const SessionParts& p);

}  // namespace prd

#endif  // PRD_WORKER_CORE_CALL_WAITING_H_
