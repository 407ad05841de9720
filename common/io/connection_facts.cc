#include "common/io/connection_facts.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "common/io/system_error.h"

namespace prd {
namespace {

// The peek offset of a local socket that is counted. Nobody peeks there. The kernel takes from the
// offset, down to 0, what a read consumes (unix(7), SO_PEEK_OFF).
constexpr int kPeekFrom = kMaxLocalCount;

// shutdown(2) would let a TCP peer send on, and the owner would read it.
void Disconnect(int fd, bool tcp) {
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  if (!tcp || ::connect(fd, &nobody, sizeof nobody) != 0) ::shutdown(fd, SHUT_RDWR);
}

}  // namespace

std::optional<std::uint64_t> CookieOf(int fd) {
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  if (::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0) return std::nullopt;
  return cookie;
}

bool CountFromHere(int fd) {
  return ::setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &kPeekFrom, sizeof kPeekFrom) == 0;
}

std::uint64_t TakenFromLocal(int fd) {
  int offset = kPeekFrom;
  socklen_t size = sizeof offset;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, &size) != 0) return 0;
  return static_cast<std::uint64_t>(kPeekFrom - std::clamp(offset, 0, kPeekFrom));
}

std::optional<std::uint64_t> TakenFromTcp(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  if (size < offsetof(tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received) {
    return std::nullopt;
  }
  int waiting = 0;
  if (::ioctl(fd, FIONREAD, &waiting) != 0) return std::nullopt;
  const auto queued = static_cast<std::uint64_t>(std::max(waiting, 0));
  return info.tcpi_bytes_received - std::min<std::uint64_t>(queued, info.tcpi_bytes_received);
}

bool HungUp(int fd) {
  pollfd item{.fd = fd, .events = POLLRDHUP, .revents = 0};
  return ::poll(&item, 1, 0) > 0 && (item.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

ConnectionPeer PeerOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return {.name = "gone", .gone = true};
  }
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
    return {"4" + std::string(reinterpret_cast<const char*>(&v4), sizeof v4), true};
  }
  if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6);
    const char* bytes = reinterpret_cast<const char*>(&v6);
    return {mapped ? "4" + std::string(bytes + 12, 4) : "6" + std::string(bytes, 8), true};
  }
  ucred user{};
  socklen_t user_size = sizeof user;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &user_size) != 0) return {"unknown"};
  return {user.uid == ::geteuid() ? std::string() : "u" + std::to_string(user.uid)};
}

std::string TextOf(const ConnectionPeer& peer) {
  if (peer.name.empty()) return "user " + std::to_string(::geteuid());
  const std::string rest = peer.name.substr(1);
  if (!peer.tcp) {
    const bool user = peer.name.front() == 'u' && rest.find_first_not_of("0123456789") == rest.npos;
    return user ? "user " + rest : "unknown";
  }
  const bool v4 = peer.name.front() == '4';
  in6_addr address{};
  std::memcpy(&address, rest.data(), std::min(rest.size(), sizeof address));
  std::array<char, INET6_ADDRSTRLEN> text{};
  (void)::inet_ntop(v4 ? AF_INET : AF_INET6, &address, text.data(), text.size());
  return text.data() + std::string(v4 ? "" : "/64");
}

ConnectionBreaker::~ConnectionBreaker() {
  for (const int fd : {nothing_, copy_}) {
    if (fd >= 0) ::close(fd);
  }
}

Status ConnectionBreaker::Open() {
  nothing_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  copy_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing_ >= 0 && copy_ >= 0) return Status::Ok();
  return SystemError(Code::kUnavailable, "/dev/null cannot be opened", errno);
}

void ConnectionBreaker::Break(int fd, std::uint64_t cookie, bool tcp) {
  if (::dup3(fd, copy_, O_CLOEXEC) < 0) return;
  if (CookieOf(copy_) == cookie) Disconnect(copy_, tcp);
  (void)::dup3(nothing_, copy_, O_CLOEXEC);
}

}  // namespace prd
