// What the pump needs from its surroundings: the daemon gives RocksDB and ZeroMQ, the simulator
// and the tests their own.
#ifndef PRD_ENGINES_PORTS_H_
#define PRD_ENGINES_PORTS_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/history.h"
#include "common/base/messages.h"
#include "prd/status.h"

namespace prd {

// Where records become durable.
class History {
 public:
  virtual ~History() = default;

  // All records or none, in one write. On return with ok they survive a kill of the process.
  // After an error the pump gives the same records again later.
  virtual Status Append(std::span<const Record> records) = 0;

  // Keeps the state of a run after all records with an index below `index`, so that a replay can
  // start there. Losing a snapshot costs time only.
  virtual Status SaveSnapshot(RunId run, std::uint64_t index, std::string_view state) = 0;
};

// Where messages go. May lose, delay, duplicate and reorder: the link makes up for it.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual void Send(const ControllerEnvelope& envelope) = 0;
};

}  // namespace prd

#endif  // PRD_ENGINES_PORTS_H_
