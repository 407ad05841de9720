#include "worker/host.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/io/dial.h"
#include "common/io/secret.h"

namespace prd {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr int kAskAgainMs = 250;  // for a name
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// In brackets or without; nullopt: a name, or nothing.
std::optional<sockaddr_storage> Numeric(std::string host) {
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return std::nullopt;
  const Addresses addresses(found, freeaddrinfo);
  sockaddr_storage address{};
  std::memcpy(&address, found->ai_addr, found->ai_addrlen);
  return address;
}

bool IsLocalName(const std::string& host) {
  return host == "localhost" || host.starts_with("localhost.") || host.ends_with(".localhost") ||
         host == "ip6-localhost" || host == "ip6-loopback";
}

// Why nobody reaches a worker at this address, where `remote` is that the controller is on another
// host. Empty: somebody may.
std::string WhyOutOfReach(const sockaddr_storage& address, bool remote) {
  bool every = false;
  bool many = false;
  bool own = false;
  if (address.ss_family == AF_INET) {
    const in_addr_t number = ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr);
    every = number == INADDR_ANY;
    many = IN_MULTICAST(number) || number == INADDR_BROADCAST;
    own = number >> 24 == IN_LOOPBACKNET;
  } else {
    const in6_addr& number = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    every = IN6_IS_ADDR_UNSPECIFIED(&number);
    many = IN6_IS_ADDR_MULTICAST(&number);
    own = IN6_IS_ADDR_LOOPBACK(&number);
  }
  if (every) return "which is no address that others can dial";
  if (many) return "which is no address of one host";
  return own && remote ? "which the other hosts of the job do not reach" : "";
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

bool IsLoopbackAddress(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

Result<std::string> AddressTowards(const std::string& endpoint) {
  if (!endpoint.starts_with(kTcp)) return std::string("127.0.0.1");
  const Result<std::vector<TcpWay>> ways = WaysTo(endpoint);
  if (!ways.ok()) return Status(ways.status().code(), "controller: " + ways.status().message());
  const std::string& own = ways->front().own;
  if (own.empty()) {
    return Status(Code::kInvalidArgument, "controller: found \"" + endpoint +
                                              "\": no route there; set PRD_ADDRESS to an address "
                                              "of this host");
  }
  const std::optional<sockaddr_storage> numeric = Numeric(own);
  if (numeric && IsLinkLocal(*numeric)) {
    return Status(Code::kInvalidArgument,
                  "controller: found \"" + endpoint + "\": this host's address towards it is " +
                      own +
                      ", which is valid on one link only; set PRD_ADDRESS to an address of this "
                      "host that the other workers' hosts can reach");
  }
  return own;
}

Result<std::string> AwaitAddressTowards(const std::string& endpoint,
                                        std::chrono::steady_clock::time_point end,
                                        const std::function<void(const std::string& why)>& waits) {
  for (bool told = false;; told = true) {
    Result<std::string> address = AddressTowards(endpoint);
    const bool again = !address.ok() && address.status().code() == Code::kUnavailable;
    if (!again || std::chrono::steady_clock::now() >= end) return address;
    if (!told) waits(address.status().message());
    if (::poll(nullptr, 0, kAskAgainMs) < 0) return address;
  }
}

std::string AddressOfHost(const std::string& endpoint) {
  if (!endpoint.starts_with(kTcp)) return "";
  const std::string host = endpoint.substr(kTcp.size(), endpoint.rfind(':') - kTcp.size());
  if (Numeric(host) || IsLocalName(host)) return "";
  // That of the default route. Nothing is sent to these, which are for documentation.
  for (const char* far : {"tcp://192.0.2.1:9", "tcp://[2001:db8::1]:9"}) {
    const Result<std::string> address = AddressTowards(far);
    if (address.ok() && !IsLoopbackAddress(*address)) return *address;
  }
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
      const bool up = (at->ifa_flags & IFF_RUNNING) != 0 && (at->ifa_flags & IFF_LOOPBACK) == 0;
      if (!up || at->ifa_addr == nullptr || at->ifa_addr->sa_family != family) continue;
      const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      sockaddr_storage address{};
      std::memcpy(&address, at->ifa_addr, size);
      char text[NI_MAXHOST] = {};
      if (!IsLinkLocal(address) &&
          getnameinfo(at->ifa_addr, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) {
        return text;
      }
    }
  }
  return "";
}

Status CheckAddress(const std::string& address, bool remote) {
  const std::optional<sockaddr_storage> numeric = Numeric(address);
  const std::string why = numeric ? WhyOutOfReach(*numeric, remote) : "which is none";
  if (why.empty()) return Status::Ok();
  return Status(Code::kInvalidArgument, "address: found \"" + address + "\", " + why +
                                            "; needed is a numeric address of this host "
                                            "(PRD_ADDRESS)");
}

Status CheckAnnounced(const std::string& announce, bool remote) {
  std::string host = announce;
  const std::size_t colon = host.rfind(':');
  const bool one = colon != std::string::npos && host.find(':') == colon;
  if (one || (colon != std::string::npos && colon > 0 && host[colon - 1] == ']'))
    host.resize(colon);
  const std::optional<sockaddr_storage> numeric = Numeric(host);
  std::string why = numeric ? WhyOutOfReach(*numeric, remote) : "";
  if (!numeric && host.find_first_of("[]:") != std::string::npos) why = "which is no IPv6 address";
  if (remote && IsLocalName(host)) why = "which on each host is another";
  if (why.empty()) return Status::Ok();
  return Status(Code::kInvalidArgument, "announce_address: found \"" + announce + "\", " + why +
                                            "; needed is what other hosts dial, HOST or HOST:PORT "
                                            "(PRD_ANNOUNCE_ADDRESS)");
}

}  // namespace prd
