#include "common/io/socket_monitor.h"

#include <atomic>
#include <cstring>
#include <string>

#include "common/io/system_error.h"

namespace prd {

Status SocketMonitor::Start(zmq::context_t& context, zmq::socket_ref socket) {
  socket_ = socket;
  static std::atomic<std::uint64_t> number{0};
  const std::string name = "inproc://prd-guard-" + std::to_string(++number);
  constexpr int kEvents = ZMQ_EVENT_LISTENING | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_ACCEPT_FAILED |
                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_CLOSED |
                          ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_MONITOR_STOPPED;
  try {
    // First: the destructor waits for a monitor's last event to be read.
    events_ = zmq::socket_t(context, zmq::socket_type::pair);
    events_.set(zmq::sockopt::linger, 0);
    if (::zmq_socket_monitor(socket.handle(), name.c_str(), kEvents) != 0) throw zmq::error_t();
    events_.connect(name);
  } catch (const zmq::error_t& error) {
    return SystemError(Code::kInternal, "connections cannot be watched", error.num());
  }
  return Status::Ok();
}

void SocketMonitor::Stop() { (void)::zmq_socket_monitor(socket_.handle(), nullptr, 0); }

void SocketMonitor::Wait(long timeout_ms) {
  zmq_pollitem_t item{.socket = events_.handle(), .fd = 0, .events = ZMQ_POLLIN, .revents = 0};
  (void)::zmq_poll(&item, 1, timeout_ms);
}

std::optional<SocketMonitor::Event> SocketMonitor::Next() {
  zmq::message_t frame;
  if (!events_.recv(frame, zmq::recv_flags::dontwait)) return std::nullopt;
  Event event;
  if (frame.size() >= sizeof event.kind + sizeof event.value) {
    std::memcpy(&event.kind, frame.data(), sizeof event.kind);
    std::memcpy(&event.value, frame.data<char>() + sizeof event.kind, sizeof event.value);
  }
  while (frame.more()) (void)events_.recv(frame, zmq::recv_flags::none);
  return event;
}

}  // namespace prd
