#include "server/input_wait.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "common/io/poll.h"

namespace prd {

std::vector<std::uint32_t> InputWait::Wait(DurationNs time, bool ends) {
  // Rounded up: a wait that ends early would only be repeated.
  const DurationNs left = std::max<DurationNs>(time, 0);
  const auto timeout_ms = static_cast<int>((left + kMillisecond - 1) / kMillisecond);
  const bool waits = !requests_ && !arrivals_ && !HasMessage(workers_->listener().socket());
  std::array<pollfd, 5> items{};
  std::size_t count = 0;
  const auto add = [&](int fd) -> const pollfd& {
    items[count] = {.fd = fd, .events = POLLIN, .revents = 0};
    return items[count++];
  };
  const pollfd& signals = add(signals_);
  const pollfd& admin = add(admin_->descriptor());
  const pollfd& zap = add(zap_->socket().get(zmq::sockopt::fd));
  add(workers_->listener().socket().get(zmq::sockopt::fd));
  if (ends) add(workers_->listener().guard().ended());
  std::vector<std::uint32_t> came;
  if (::poll(items.data(), count, waits ? timeout_ms : 0) <= 0) return came;
  requests_ = requests_ || admin.revents != 0;
  arrivals_ = arrivals_ || zap.revents != 0;
  if (signals.revents == 0) return came;
  signalfd_siginfo info{};
  while (::read(signals_, &info, sizeof info) == sizeof info) came.push_back(info.ssi_signo);
  return came;
}

void InputWait::ServeArrivals() {
  if (!arrivals_) return;
  zap_->Serve();
  arrivals_ = HasMessage(zap_->socket());
}

}  // namespace prd
