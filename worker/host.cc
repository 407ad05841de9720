#include "worker/host.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string_view>
#include <system_error>

#include "common/io/secret.h"

namespace prd {
namespace {

constexpr std::string_view kTcp = "tcp://";
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// The addresses of tcp://HOST:PORT: of IPv4, or of IPv6 when HOST has none of IPv4.
Result<Addresses> Resolve(const std::string& endpoint) {
  std::string host = endpoint.substr(kTcp.size());
  const std::size_t colon = host.rfind(':');
  if (colon == std::string::npos) {
    return Status(Code::kInvalidArgument,
                  "controller: found \"" + endpoint + "\", needed is tcp://HOST:PORT");
  }
  const std::string port = host.substr(colon + 1);
  host.resize(colon);
  std::uint16_t number = 0;
  const auto [end, wrong] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (wrong != std::errc() || end != port.data() + port.size() || number == 0) {
    return Status(Code::kInvalidArgument, "controller: found \"" + endpoint +
                                              "\", needed is tcp://HOST:PORT with a port from 1 to "
                                              "65535");
  }
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  int error = 0;
  for (const int family : {AF_INET, AF_INET6}) {
    addrinfo hints{};
    hints.ai_family = family;
    hints.ai_socktype = SOCK_DGRAM;
    addrinfo* found = nullptr;
    error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
    if (error == 0) return Addresses(found, freeaddrinfo);
  }
  return Status(Code::kInvalidArgument,
                "controller: found \"" + endpoint + "\": " + gai_strerror(error));
}

bool IsLinkLocal(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

}  // namespace

std::string HostId() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char space[64] = {};
  const ssize_t length = readlink("/proc/self/ns/net", space, sizeof space - 1);
  if (boot.empty() || length <= 0) {
    return "unknown-" + std::to_string(RandomBits());
  }
  return boot + "/" + std::string(space, static_cast<std::size_t>(length));
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

bool IsReachedByIpv6(const std::string& endpoint) {
  if (!endpoint.starts_with(kTcp)) return false;
  if (endpoint.find('[') != std::string::npos) return true;
  const Result<Addresses> found = Resolve(endpoint);
  return found.ok() && (*found)->ai_family == AF_INET6;
}

bool IsLoopbackAddress(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

Result<std::string> AddressTowards(const std::string& endpoint) {
  if (!endpoint.starts_with(kTcp)) return std::string("127.0.0.1");
  const Result<Addresses> found = Resolve(endpoint);
  if (!found.ok()) return found.status();
  const addrinfo& to = **found;
  // Connecting a datagram socket sends nothing; it only picks the route.
  const int fd = socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  char text[NI_MAXHOST] = {};
  const bool routed = fd >= 0 && connect(fd, to.ai_addr, to.ai_addrlen) == 0 &&
                      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
                      getnameinfo(reinterpret_cast<const sockaddr*>(&own), size, text, sizeof text,
                                  nullptr, 0, NI_NUMERICHOST) == 0;
  if (fd >= 0) close(fd);
  if (!routed) {
    return Status(Code::kInvalidArgument, "controller: found \"" + endpoint +
                                              "\": no route there; set PRD_ADDRESS to an address "
                                              "of this host");
  }
  if (IsLinkLocal(own)) {
    return Status(Code::kInvalidArgument,
                  "controller: found \"" + endpoint + "\": this host's address towards it is " +
                      text +
                      ", which is valid on one link only; set PRD_ADDRESS to an address of this "
                      "host that the other workers' hosts can reach");
  }
  return std::string(text);
}

}  // namespace prd
