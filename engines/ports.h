// The interfaces through which the controller records and sends. The daemon implements them with
// RocksDB and ZeroMQ; the simulator and the tests have implementations of their own.
#ifndef PRD_ENGINES_PORTS_H_
#define PRD_ENGINES_PORTS_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/history.h"
#include "common/base/messages.h"
#include "prd/status.h"

namespace prd {

// Makes records durable.
class History {
 public:
  virtual ~History() = default;

  // Writes all records or none. Once it has returned ok, they survive a kill of the process. After
  // an error the controller appends the same records again later.
  virtual Status Append(std::span<const Record> records) = 0;

  // Keeps the state of a run after all records with an index below `index`. A replay can start
  // there. A snapshot that is lost costs time only.
  virtual Status SaveSnapshot(RunId run, std::uint64_t index, std::string_view state) = 0;
};

// Sends messages. May lose, delay, duplicate and reorder them: the link (link.h) repairs that.
class Messenger {
 public:
  virtual ~Messenger() = default;
  virtual void Send(const ControllerEnvelope& envelope) = 0;
};

}  // namespace prd

#endif  // PRD_ENGINES_PORTS_H_
