#include "common/io/poll.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "common/base/time.h"
#include "common/io/clock.h"

namespace prd {
namespace {

int Option(void* socket, int option) {
  int value = 0;
  std::size_t size = sizeof value;
  while (::zmq_getsockopt(socket, option, &value, &size) != 0) {
    if (::zmq_errno() != EINTR) throw zmq::error_t();
  }
  return value;
}

// Asks the socket. If it has nothing, its descriptor tells of what comes until it is used again.
void Ask(zmq::pollitem_t* item) {
  item->revents = static_cast<short>(Option(item->socket, ZMQ_EVENTS) & item->events);
}

short ToSystem(short events) {
  return static_cast<short>(((events & ZMQ_POLLIN) != 0 ? POLLIN : 0) |
                            ((events & ZMQ_POLLOUT) != 0 ? POLLOUT : 0));
}

short FromSystem(short events) {
  return static_cast<short>(((events & (POLLIN | POLLHUP)) != 0 ? ZMQ_POLLIN : 0) |
                            ((events & POLLOUT) != 0 ? ZMQ_POLLOUT : 0) |
                            ((events & (POLLERR | POLLNVAL)) != 0 ? ZMQ_POLLERR : 0));
}

}  // namespace

bool HasMessage(zmq::socket_ref socket) {
  return (Option(socket.handle(), ZMQ_EVENTS) & ZMQ_POLLIN) != 0;
}

void Poll(std::span<zmq::pollitem_t> items, long timeout_ms) {
  std::vector<pollfd> fds;
  fds.reserve(items.size());
  for (zmq::pollitem_t& item : items) {
    item.revents = 0;
    if (item.socket == nullptr) {
      fds.push_back({.fd = item.fd, .events = ToSystem(item.events), .revents = 0});
    } else {
      Ask(&item);
      fds.push_back({.fd = Option(item.socket, ZMQ_FD), .events = POLLIN, .revents = 0});
    }
  }
  const auto any = [&items] {
    return std::any_of(items.begin(), items.end(), [](const auto& item) { return item.revents; });
  };
  const std::int64_t until = MonotonicNs() + timeout_ms * kMillisecond;
  long left_ms = any() ? 0 : timeout_ms;
  while (::poll(fds.data(), fds.size(), static_cast<int>(left_ms)) > 0) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (fds[i].revents == 0) continue;
      if (items[i].socket == nullptr) {
        items[i].revents = FromSystem(fds[i].revents);
      } else {
        Ask(&items[i]);
      }
    }
    // A socket's descriptor may have told of what nobody has asked for.
    if (any() || left_ms == 0) return;
    if (left_ms > 0) left_ms = std::max<long>(0, (until - MonotonicNs()) / kMillisecond);
  }
}

}  // namespace prd
