// Strategy::kShardedStore: what a step waits for under SSP.
#include "worker/core/session_core.h"

namespace prd {

void SessionCore::ArriveStore(Instant now, Actions* out) { ProceedStore(now, out); }
void SessionCore::ProceedStore(Instant, Actions*) {}
void SessionCore::OnPlacement(Instant, const Placement&, Actions*) {}
void SessionCore::OnOpened(Instant, const Opened&, Actions*) {}
void SessionCore::OnMayRead(Instant, const QueryReply&, Actions*) {}
bool SessionCore::FinalReadDue(Instant, Actions*) { return false; }

}  // namespace prd
