// ZeroMQ's monitor of a socket: what becomes of its connections, as events. ZeroMQ's exceptions
// pass through.
#ifndef PRD_COMMON_IO_SOCKET_MONITOR_H_
#define PRD_COMMON_IO_SOCKET_MONITOR_H_

#include <cstdint>
#include <optional>
#include <zmq.hpp>

#include "prd/status.h"

namespace prd {

class SocketMonitor {
 public:
  struct Event {
    std::uint16_t kind = 0;  // ZMQ_EVENT_*
    std::int32_t value = 0;  // a descriptor, or an error (of a handshake: ZMQ_PROTOCOL_ERROR_*)
  };

  // Call before the socket is bound. Both must outlive the monitor.
  Status Start(zmq::context_t& context, zmq::socket_ref socket);
  // In the socket's thread. The last event comes then (ZMQ_EVENT_MONITOR_STOPPED); whoever waits
  // has to read it.
  void Stop();

  // All that follows in one other thread. Until there is an event, or for so long.
  void Wait(long timeout_ms);
  // nullopt: there is none now.
  std::optional<Event> Next();

 private:
  zmq::socket_ref socket_;
  zmq::socket_t events_;  // the monitor's other end
};

}  // namespace prd

#endif  // PRD_COMMON_IO_SOCKET_MONITOR_H_
