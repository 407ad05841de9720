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
  Tcp() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Tcp() { ::close(fd_); }
  // A port that is free now.
  int FreePort() {
    sockaddr_in address = At(0);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    return ntohs(address.sin_port);
  }
  std::string Get(int port, const std::string& path) {
    const sockaddr_in address = At(port);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return "";
    const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
    if (::send(fd_, request.data(), request.size(), MSG_NOSIGNAL) < 0) return "";
    std::string answer;
    char buffer[4096];
    for (ssize_t size = 0; (size = ::recv(fd_, buffer, sizeof buffer, 0)) > 0;) {
      answer.append(buffer, static_cast<std::size_t>(size));
    }
    return answer;
  }

 private:
  static sockaddr_in At(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  int fd_;
};

}  // namespace prd

#endif  // PRD_TESTS_SERVER_TCP_H_
