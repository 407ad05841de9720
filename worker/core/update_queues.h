// Hop's update queues: this worker's side of the exchange with its neighbours on a graph (Luo et
// al., ASPLOS 2019). Pure; a part of SessionCore.
#ifndef PRD_WORKER_CORE_UPDATE_QUEUES_H_
#define PRD_WORKER_CORE_UPDATE_QUEUES_H_

#include <optional>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/core/actions.h"

namespace prd {

class UpdateQueues {
 public:
  void OnNote(Instant now, Incarnation from, const Note& note, Actions* out);
  void OnRequest(Instant now, Incarnation from, Request request, const Parcel& parcel,
                 Actions* out);
  void OnPulled(Instant now, Ticket ticket, const Status& status, Actions* out);
  void OnTime(Instant now, Actions* out);
  std::optional<Instant> NextDeadline() const;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_UPDATE_QUEUES_H_
