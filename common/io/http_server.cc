#include "common/io/http_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/io/clock.h"

namespace prd {
namespace {

constexpr int kBacklog = 128;
constexpr int kAtOnce = 16;  // connections that are accepted before what has come is read
constexpr DurationNs kPause = 100 * kMillisecond;  // where there are no descriptors
// What the kernel keeps of a connection, in each direction, in bytes; it doubles them.
constexpr int kReceive = 32 << 10;
constexpr int kSend = 128 << 10;

std::string ErrorText() { return std::strerror(errno); }

// The listening socket, or why there is none.
Result<int> ListenOn(const addrinfo& at) {
  const int fd = ::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
  if (fd < 0) return Status(Code::kUnavailable, ErrorText());
  const auto set = [fd](int level, int option, int value) {
    (void)::setsockopt(fd, level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_REUSEADDR, 1);  // not SO_REUSEPORT: a port is one server's
  set(SOL_SOCKET, SO_RCVBUF, kReceive);
  set(SOL_SOCKET, SO_SNDBUF, kSend);
  if (at.ai_family == AF_INET6) set(IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(fd, at.ai_addr, at.ai_addrlen) == 0 && ::listen(fd, kBacklog) == 0) return fd;
  const std::string error = ErrorText();
  ::close(fd);
  return Status(Code::kUnavailable, error);
}

Result<int> ListenOn(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return Status(Code::kInvalidArgument, "it has no port");
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  if (host == "*") host = "0.0.0.0";
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found);
  if (error != 0) return Status(Code::kInvalidArgument, ::gai_strerror(error));
  Result<int> listening = Status(Code::kUnavailable, "no address");
  for (const addrinfo* at = found; at != nullptr && !listening.ok(); at = at->ai_next) {
    listening = ListenOn(*at);
  }
  ::freeaddrinfo(found);
  return listening;
}

bool Readable(int fd) {
  pollfd what{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&what, 1, 0) == 1;
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<sockaddr_in6&>(address).sin6_port);
}

}  // namespace

HttpServer::HttpServer(int listening)
    : listening_(listening),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      port_(PortOf(listening)),
      peers_(listening) {}

Result<std::unique_ptr<HttpServer>> HttpServer::Listen(const std::string& address) {
  const Result<int> listening = ListenOn(address);
  if (!listening.ok()) return listening.status();
  std::unique_ptr<HttpServer> server(new HttpServer(*listening));
  if (server->stop_ < 0) return Status(Code::kUnavailable, ErrorText());
  return server;
}

Status HttpServer::Start(HttpHandler handler, const Options& options) {
  PRD_CHECK(loop_ == nullptr);
  Result<std::unique_ptr<HttpLoop>> loop = HttpLoop::Make(std::move(handler), options.loop);
  if (!loop.ok()) return loop.status();
  loop_ = std::move(*loop);
  own_user_only_ = options.own_user_only;
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Status started;
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    started = Status(Code::kUnavailable, error.what());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

HttpServer::~HttpServer() {
  if (thread_.joinable()) {
    const std::uint64_t one = 1;
    (void)!::write(stop_, &one, sizeof one);
    thread_.join();
  }
  ::close(listening_);
  if (stop_ >= 0) ::close(stop_);
}

void HttpServer::Run() {
  while (true) {
    std::array<pollfd, 3> fds{
        {{.fd = stop_, .events = POLLIN, .revents = 0},
         {.fd = loop_->fd(), .events = POLLIN, .revents = 0},
         {.fd = accept_at_ ? -1 : listening_, .events = POLLIN, .revents = 0}}};
    (void)::poll(fds.data(), fds.size(), TimeoutMs());
    if (fds[0].revents != 0) return;
    const Instant now{MonotonicNs()};
    if (accept_at_ && *accept_at_ <= now) accept_at_.reset();
    if (fds[2].revents != 0) Accept(now);
    loop_->Turn(now);
  }
}

// Until something is to be done without an event.
int HttpServer::TimeoutMs() const {
  std::optional<Instant> next = loop_->next_turn();
  if (accept_at_) next = next ? std::min(*next, *accept_at_) : *accept_at_;
  if (!next) return -1;
  const DurationNs wait = std::max<DurationNs>(0, *next - Instant{MonotonicNs()});
  return static_cast<int>((wait + kMillisecond - 1) / kMillisecond);
}

void HttpServer::Accept(Instant now) {
  // Without descriptors accept4(2) says so also where there is nothing to accept.
  for (int i = 0; i < kAtOnce && Readable(listening_); ++i) {
    const int fd = ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      Admit(fd, now);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      loop_->EndSilent();
      accept_at_ = now + kPause;
      return;
    }  // else it has gone already
  }
}

void HttpServer::Admit(int fd, Instant now) {
  SocketPeer peer = peers_.Of(fd);
  const bool own = peer.user && (*peer.user == 0 || *peer.user == ::geteuid());
  if (peer.gone || (own_user_only_ && peers_.tells_users() && !own)) {
    ::close(fd);
  } else {
    loop_->Add(fd, std::move(peer.name), now);
  }
}

}  // namespace prd
