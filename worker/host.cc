#include "worker/host.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <random>

namespace prd {

std::string HostId() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char space[64] = {};
  const ssize_t length = readlink("/proc/self/ns/net", space, sizeof space - 1);
  if (boot.empty() || length <= 0) {
    std::random_device device;
    return "unknown-" + std::to_string(device()) + "-" + std::to_string(device());
  }
  return boot + "/" + std::string(space, static_cast<std::size_t>(length));
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

Result<std::string> AddressTowards(const std::string& endpoint) {
  if (endpoint.rfind("tcp://", 0) != 0) return std::string("127.0.0.1");
  std::string host = endpoint.substr(6);
  const std::size_t colon = host.rfind(':');
  if (colon == std::string::npos) {
    return Status(Code::kInvalidArgument,
                  "controller: found \"" + endpoint + "\", needed is tcp://HOST:PORT");
  }
  const std::string port = host.substr(colon + 1);
  host.resize(colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return Status(Code::kInvalidArgument,
                  "controller: found \"" + endpoint + "\": " + gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  // Connecting a datagram socket sends nothing; it only picks the route.
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  char text[NI_MAXHOST] = {};
  const bool routed = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
                      getnameinfo(reinterpret_cast<const sockaddr*>(&own), size, text, sizeof text,
                                  nullptr, 0, NI_NUMERICHOST) == 0;
  if (fd >= 0) close(fd);
  if (!routed) {
    return Status(Code::kInvalidArgument, "controller: found \"" + endpoint +
                                              "\": no route there; set PRD_ADDRESS to an address "
                                              "of this host");
  }
  return std::string(text);
}

}  // namespace prd
