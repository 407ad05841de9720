// Strategy::kNeighbours: what a step waits for under Hop.
#include "worker/core/session_core.h"

namespace prd {

void SessionCore::ArriveNeighbours(Instant now, Actions* out) { ProceedNeighbours(now, out); }
void SessionCore::ProceedNeighbours(Instant, Actions*) {}
void SessionCore::OnNeighbourhood(Instant, const Neighbourhood&, Actions*) {}
void SessionCore::OnEntered(Instant, const QueryReply&, Actions*) {}
void SessionCore::AppliedUpdate(Instant, Actions*) {}

}  // namespace prd
