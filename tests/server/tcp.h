#ifndef PRD_TESTS_SERVER_TCP_H_
#define PRD_TESTS_SERVER_TCP_H_

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace prd {

// A TCP socket on loopback.
class Tcp {
 public:
  explicit Tcp(bool ipv6 = false)
      : ipv6_(ipv6), fd_(::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Tcp() { ::close(fd_); }
  Tcp(const Tcp&) = delete;
  Tcp& operator=(const Tcp&) = delete;

  // A port that is free now.
  int FreePort() {
    Address address = At(0);
    socklen_t size = address.size;
    EXPECT_EQ(::bind(fd_, &address.any, size), 0);
    EXPECT_EQ(::getsockname(fd_, &address.any, &size), 0);
    return ntohs(ipv6_ ? address.v6.sin6_port : address.v4.sin_port);
  }
  int Listen() {
    const int port = FreePort();
    EXPECT_EQ(::listen(fd_, 1), 0);
    return port;
  }
  bool Connect(int port) {
    const Address address = At(port);
    return ::connect(fd_, &address.any, address.size) == 0;
  }
  // False: the other end has closed.
  bool Send(const std::string& bytes) {
    return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
  }
  // Until the other end closes, or nothing comes for this long.
  std::string Read(int timeout_s = 60) {
    const timeval timeout{.tv_sec = timeout_s, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    std::string answer;
    char buffer[4096];
    for (ssize_t size = 0; (size = ::recv(fd_, buffer, sizeof buffer, 0)) > 0;) {
      answer.append(buffer, static_cast<std::size_t>(size));
    }
    return answer;
  }
  std::string Get(int port, const std::string& path, int timeout_s = 60) {
    if (!Connect(port) || !Send("GET " + path + " HTTP/1.0\r\n\r\n")) return "";
    return Read(timeout_s);
  }

 private:
  struct Address {
    union {
      sockaddr any;
      sockaddr_in v4;
      sockaddr_in6 v6;
    };
    socklen_t size;
  };

  Address At(int port) const {
    Address address{};
    const auto in_order = htons(static_cast<std::uint16_t>(port));
    if (ipv6_) {
      address.v6 = {.sin6_family = AF_INET6, .sin6_port = in_order, .sin6_addr = in6addr_loopback};
      address.size = sizeof address.v6;
    } else {
      address.v4 = {.sin_family = AF_INET, .sin_port = in_order};
      address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address.size = sizeof address.v4;
    }
    return address;
  }
  const bool ipv6_;
  int fd_;
};

}  // namespace prd

#endif  // PRD_TESTS_SERVER_TCP_H_
