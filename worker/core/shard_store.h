// SSP's sharded store: this worker's side of it, as one that pushes and reads and as one that owns
// and holds shards (Ho et al., NIPS 2013). Pure; a part of SessionCore.
#ifndef PRD_WORKER_CORE_SHARD_STORE_H_
#define PRD_WORKER_CORE_SHARD_STORE_H_

#include <optional>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/core/actions.h"

namespace prd {

class ShardStore {
 public:
  void OnNote(Instant now, Incarnation from, const Note& note, Actions* out);
  void OnRequest(Instant now, Incarnation from, Request request, const Parcel& parcel,
                 Actions* out);
  void OnPulled(Instant now, Ticket ticket, const Status& status, const Enclosure& enclosure,
                Actions* out);
  void OnTime(Instant now, Actions* out);
  std::optional<Instant> NextDeadline() const;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_SHARD_STORE_H_
