// One end of an HTTP connection whose other end a loop has, for tests without threads.
#ifndef PRD_TESTS_IO_HTTP_PEER_H_
#define PRD_TESTS_IO_HTTP_PEER_H_

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "common/io/http_loop.h"

namespace prd {

// Turns until nothing is left to do at this time.
inline void TurnAll(HttpLoop& loop, Instant now) {
  for (int turns = 0; turns < 1000; ++turns) {
    loop.Turn(now);
    const auto next = loop.next_turn();
    if (!next || *next > now) return;
  }
}

class HttpPeer {
 public:
  HttpPeer(HttpLoop& loop, const std::string& name, Instant now) {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return;
    fd_ = ends[0];
    loop.Add(ends[1], name, now);
  }
  HttpPeer(HttpPeer&& other) noexcept : fd_(std::exchange(other.fd_, -1)), ended_(other.ended_) {}
  HttpPeer& operator=(HttpPeer&&) = delete;
  ~HttpPeer() {
    if (fd_ >= 0) ::close(fd_);
  }

  // False: not all of it was taken.
  bool Write(std::string_view bytes) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent == static_cast<ssize_t>(bytes.size());
  }
  // What there is to read, at most so much.
  std::string Read(std::size_t most = 1 << 20) {
    std::string text;
    char buffer[4096];
    while (text.size() < most) {
      const ssize_t size = ::recv(fd_, buffer, std::min(sizeof buffer, most - text.size()), 0);
      if (size < 0 && errno == EAGAIN) break;
      if (size <= 0) {
        ended_ = true;
        break;
      }
      text.append(buffer, static_cast<std::size_t>(size));
    }
    return text;
  }
  // Whether the other end has been closed. Reads what there was.
  bool Ended() {
    (void)Read();
    return ended_;
  }

 private:
  int fd_ = -1;
  bool ended_ = false;
};

}  // namespace prd

#endif  // PRD_TESTS_IO_HTTP_PEER_H_
