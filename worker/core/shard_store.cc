#include "worker/core/shard_store.h"

namespace prd {

void ShardStore::OnNote(Instant, Incarnation, const Note&, Actions*) {}
void ShardStore::OnRequest(Instant, Incarnation, Request request, const Parcel&, Actions* out) {
  out->push_back(Refuse{request});
}
void ShardStore::OnPulled(Instant, Ticket, const Status&, const Enclosure&, Actions*) {}
void ShardStore::OnTime(Instant, Actions*) {}
std::optional<Instant> ShardStore::NextDeadline() const { return std::nullopt; }

}  // namespace prd
