// A connection that speaks ZMTP 3.0 by hand, as a DEALER without keys, over tcp or ipc: what a
// hostile client may send, and libzmq would not.
#ifndef PRD_TESTS_IO_RAW_ZMTP_H_
#define PRD_TESTS_IO_RAW_ZMTP_H_

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

namespace prd {

class RawZmtp {
 public:
  explicit RawZmtp(const std::string& endpoint, const char* from = "127.0.0.1") {
    if (endpoint.starts_with("ipc://")) {
      ConnectLocally(endpoint.substr(6));
    } else {
      Connect(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)), from);
    }
  }
  explicit RawZmtp(int connected) : fd_(connected) {}
  RawZmtp(RawZmtp&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RawZmtp& operator=(RawZmtp&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~RawZmtp() { Close(); }

  bool connected() const { return fd_ >= 0; }
  bool Send(const std::string& bytes) {
    for (std::size_t sent = 0; sent < bytes.size();) {
      const ssize_t some = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (some <= 0) return false;
      sent += static_cast<std::size_t>(some);
    }
    return true;
  }
  bool Take(std::string* bytes) {
    return ::recv(fd_, bytes->data(), bytes->size(), MSG_WAITALL) == std::ssize(*bytes);
  }
  static std::string Greeting() {
    std::string greeting = std::string("\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL", 16);
    greeting.resize(64);
    return greeting;
  }
  bool ShakeHands() {
    std::string answer(66, '\0');  // a greeting, and the beginning of a READY: its size is last
    if (!Send(Greeting()) ||
        !Send(std::string("\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06"
                          "DEALER",
                          30)) ||
        !Take(&answer)) {
      return false;
    }
    answer.resize(static_cast<unsigned char>(answer.back()));
    return Take(&answer);
  }
  // A part of up to 255 bytes.
  static std::string Part(const std::string& text, bool more = false) {
    return std::string(1, more ? '\1' : '\0') + static_cast<char>(text.size()) + text;
  }
  // A message of one part.
  bool Say(const std::string& text) { return Send(Part(text)); }
  // A heartbeat.
  static std::string Ping() { return std::string("\x04\x07\x04PING\0\0", 9); }
  // A part of 8 KiB, with more to come.
  bool SendPart() { return SendPart(8192); }
  bool SendPart(std::size_t size) {
    std::string part(9 + size, '\0');
    part[0] = 3;
    for (int i = 0; i < 8; ++i) part[8 - i] = static_cast<char>(size >> 8 * i);
    return Send(part);
  }
  // Whether the other side has ended the connection.
  bool Ended() {
    pollfd item{.fd = fd_, .events = POLLIN | POLLRDHUP, .revents = 0};
    return ::poll(&item, 1, 0) > 0 && (item.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
  }
  void Close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  void Connect(int port, const char* from) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    (void)::inet_pton(AF_INET, from, &address.sin_addr);
    if (::bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) Close();
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) Close();
  }
  void ConnectLocally(const std::string& path) {
    fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) Close();
  }

  int fd_ = -1;
};

}  // namespace prd

#endif  // PRD_TESTS_IO_RAW_ZMTP_H_
