#include "common/io/dial.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <memory>
#include <string_view>
#include <system_error>

namespace prd {
namespace {

constexpr std::string_view kTcp = "tcp://";

// Connecting a datagram socket sends nothing; it only picks the route.
std::string OwnTowards(const addrinfo& to) {
  const int fd = socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  // Not an address that the kernel gives up after some days (RFC 4941).
  constexpr int kPreferPublic = 0x0002;  // linux/in6.h: IPV6_PREFER_SRC_PUBLIC
  if (to.ai_family == AF_INET6) {
    (void)setsockopt(fd, IPPROTO_IPV6, IPV6_ADDR_PREFERENCES, &kPreferPublic, sizeof kPreferPublic);
  }
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  char text[NI_MAXHOST] = {};
  const bool routed = connect(fd, to.ai_addr, to.ai_addrlen) == 0 &&
                      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
                      getnameinfo(reinterpret_cast<const sockaddr*>(&own), size, text, sizeof text,
                                  nullptr, 0, NI_NUMERICHOST) == 0;
  close(fd);
  return routed ? text : "";
}

}  // namespace

Result<std::vector<TcpWay>> WaysTo(const std::string& endpoint) {
  const auto wrong = [&endpoint](const std::string& why) {
    return Status(Code::kInvalidArgument, "found \"" + endpoint + "\"" + why);
  };
  if (!endpoint.starts_with(kTcp)) return wrong(", needed is tcp://HOST:PORT");
  std::string host = endpoint.substr(kTcp.size());
  const std::size_t colon = host.rfind(':');
  if (colon == std::string::npos) return wrong(", needed is tcp://HOST:PORT");
  const std::string port = host.substr(colon + 1);
  host.resize(colon);
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number == 0) {
    return wrong(", needed is tcp://HOST:PORT with a port from 1 to 65535");
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  if (host.find_first_of("[]") != std::string::npos) {
    return wrong(": an IPv6 address stands in brackets, as in tcp://[fd00::1]:5775");
  }
  std::vector<TcpWay> ways;
  int failed = 0;
  for (const int family : {AF_INET, AF_INET6}) {
    addrinfo hints{};
    hints.ai_family = family;
    hints.ai_socktype = SOCK_DGRAM;
    addrinfo* found = nullptr;
    const int code = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
    if (code == 0) {
      const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
      ways.push_back({.ipv6 = family == AF_INET6, .own = OwnTowards(*found)});
    } else {
      failed = code;
    }
  }
  if (ways.empty()) {
    return Status(Code::kUnavailable, wrong(std::string(": ") + gai_strerror(failed)).message());
  }
  std::stable_partition(ways.begin(), ways.end(),
                        [](const TcpWay& way) { return !way.own.empty(); });
  return ways;
}

}  // namespace prd
