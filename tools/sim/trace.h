// What happens in a run, event by event, in words; the newest events are remembered.
#ifndef PRD_TOOLS_SIM_TRACE_H_
#define PRD_TOOLS_SIM_TRACE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/messages.h"
#include "tools/sim/event_queue.h"
#include "worker/core/exchange.h"

namespace prd::sim {

const char* WordOf(const WorkerBody& body);
const char* WordOf(const ControllerBody& body);
const char* WordOf(PeerMessage::Kind kind);
const char* WordOf(PeerItem::Kind kind);

class Traces {
 public:
  struct Trace {
    SimEvent event;
    const char* word = "";
    std::uint64_t id = 0;
    std::optional<std::uint32_t> peer;
  };

  // The next event. Whoever handles it adds what it is about to newest().
  void Begin(const SimEvent& event);
  Trace& newest() { return traces_[events_ % traces_.size()]; }
  std::uint64_t events() const { return events_; }  // so far

  std::string Line() const { return Line(traces_[events_ % traces_.size()]); }  // of the newest
  std::vector<std::string> LastLines() const;

 private:
  static std::string Line(const Trace& trace);

  std::uint64_t events_ = 0;
  std::array<Trace, 32> traces_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_TRACE_H_
