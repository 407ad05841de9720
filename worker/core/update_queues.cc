#include "worker/core/update_queues.h"

namespace prd {

void UpdateQueues::OnNote(Instant, Incarnation, const Note&, Actions*) {}
void UpdateQueues::OnRequest(Instant, Incarnation, Request request, const Parcel&, Actions* out) {
  out->push_back(Refuse{request});
}
void UpdateQueues::OnPulled(Instant, Ticket, const Status&, Actions*) {}
void UpdateQueues::OnTime(Instant, Actions*) {}
std::optional<Instant> UpdateQueues::NextDeadline() const { return std::nullopt; }

}  // namespace prd
