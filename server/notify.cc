#include "server/notify.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/io/clock.h"

namespace prd {
namespace {

Result<std::int64_t> Number(const char* name, std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value <= 0) {
    return Status(Code::kInvalidArgument, std::string(name) + ": found \"" + std::string(text) +
                                              "\", allowed is a number above 0");
  }
  return value;
}

}  // namespace

Result<Notifier> Notifier::FromEnvironment() {
  Notifier notifier;
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || *path == '\0') return notifier;
  sockaddr_un& address = notifier.address_;
  address.sun_family = AF_UNIX;
  const std::size_t size = std::strlen(path);
  if ((path[0] != '/' && path[0] != '@') || size < 2 || size >= sizeof address.sun_path) {
    return Status(Code::kInvalidArgument, "NOTIFY_SOCKET: found \"" + std::string(path) +
                                              "\", allowed is an absolute path or @name, below " +
                                              std::to_string(sizeof address.sun_path) + " bytes");
  }
  std::memcpy(address.sun_path, path, size);
  if (path[0] == '@') address.sun_path[0] = '\0';  // an abstract socket
  notifier.fd_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (notifier.fd_ < 0) {
    return Status(Code::kUnavailable, std::string("NOTIFY_SOCKET: ") + std::strerror(errno));
  }
  const timeval timeout{.tv_sec = 0, .tv_usec = 200'000};
  ::setsockopt(notifier.fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  notifier.length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size);
  const char* interval = std::getenv("WATCHDOG_USEC");
  if (interval == nullptr) return notifier;
  if (const char* pid = std::getenv("WATCHDOG_PID"); pid != nullptr) {
    const Result<std::int64_t> meant = Number("WATCHDOG_PID", pid);
    if (!meant.ok()) return meant.status();
    if (*meant != ::getpid()) return notifier;
  }
  const Result<std::int64_t> usec = Number("WATCHDOG_USEC", interval);
  if (!usec.ok()) return usec.status();
  notifier.watchdog_interval_ = *usec * kMicrosecond / 2;
  return notifier;
}

Notifier::Notifier(Notifier&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      address_(other.address_),
      length_(other.length_),
      watchdog_interval_(other.watchdog_interval_),
      alive_at_(other.alive_at_),
      told_status_(std::move(other.told_status_)) {}

Notifier& Notifier::operator=(Notifier&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(address_, other.address_);
  std::swap(length_, other.length_);
  std::swap(watchdog_interval_, other.watchdog_interval_);
  std::swap(alive_at_, other.alive_at_);
  std::swap(told_status_, other.told_status_);
  return *this;
}

Notifier::~Notifier() {
  if (fd_ >= 0) ::close(fd_);
}

void Notifier::Send(const std::string& message) const {
  if (fd_ < 0) return;
  (void)::sendto(fd_, message.data(), message.size(), MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&address_), length_);
}

void Notifier::TellStatus(const std::string& status) {
  if (status != told_status_) Send("STATUS=" + status);
  told_status_ = status;
}

void Notifier::Alive(Instant now) {
  if (!watchdog_interval_ || (alive_at_ && now < *alive_at_)) return;
  if (alive_at_) Send("WATCHDOG=1");
  alive_at_ = now + *watchdog_interval_;
}

void Notifier::Reloading() const {
  Send("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(MonotonicNs() / kMicrosecond));
}

}  // namespace prd
