#include "config/endpoint.h"

#include <arpa/inet.h>

#include <algorithm>
#include <optional>
#include <string_view>

namespace prd {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kIpc = "ipc://";
constexpr std::size_t kMaxIpcPath = 107;  // sun_path of unix(7), with its final 0

bool Digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool IsPort(std::string_view text) {
  if (!Digits(text) || text.size() > 5) return false;
  const int port = std::stoi(std::string(text));
  return port >= 1 && port <= 65535;
}

// The name of a host or of an interface; an IPv4 address looks the same.
bool IsName(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '-' || c == '_';
  });
}

// The address in "[ADDRESS]" or "[ADDRESS%INTERFACE]".
std::optional<in6_addr> Ipv6Of(std::string_view text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return {};
  text = text.substr(1, text.size() - 2);
  const std::size_t percent = text.find('%');
  if (percent != std::string_view::npos && !IsName(text.substr(percent + 1))) return {};
  in6_addr address;
  if (::inet_pton(AF_INET6, std::string(text.substr(0, percent)).c_str(), &address) != 1) return {};
  return address;
}

// A name, an address, or * for every IPv4 address of this host.
bool IsHost(std::string_view text) { return text == "*" || IsName(text) || Ipv6Of(text); }

bool IsIpcPath(std::string_view endpoint) {
  if (!endpoint.starts_with(kIpc)) return false;
  const std::string_view path = endpoint.substr(kIpc.size());
  return path.size() > 1 && path.size() <= kMaxIpcPath && path.front() == '/' &&
         path.back() != '/' && path.find('\x7f') == std::string_view::npos;
}

std::string_view HostOf(std::string_view address) { return address.substr(0, address.rfind(':')); }

// Four numbers up to 255, the first of them 127.
bool IsLoopbackIp4(std::string_view host) {
  int parts = 0;
  while (true) {
    const std::string_view part = host.substr(0, host.find('.'));
    if (!Digits(part) || part.size() > 3 || std::stoi(std::string(part)) > 255) return false;
    if (++parts == 1 && part != "127") return false;
    if (part.size() == host.size()) return parts == 4;
    host.remove_prefix(part.size() + 1);
  }
}

}  // namespace

bool IsAddressAndPort(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return false;
  return IsHost(std::string_view(text).substr(0, colon)) &&
         IsPort(std::string_view(text).substr(colon + 1));
}

std::string EndpointRule(const std::string& endpoint) {
  if (IsIpcPath(endpoint)) return {};
  if (endpoint.starts_with(kTcp)) {
    const std::string address = endpoint.substr(kTcp.size());
    if (IsAddressAndPort(address)) return {};
    // "*" as the port is ZeroMQ's word for any free one.
    if (address.ends_with(":*") && IsHost(HostOf(address))) return {};
  }
  return "tcp://ADDRESS:PORT (PORT 1 to 65535, or * for any free one) or ipc:///PATH (up to " +
         std::to_string(kMaxIpcPath) + " bytes)";
}

std::string ListenRule(const std::string& endpoint) {
  if (endpoint.empty()) return {};
  const std::string allowed = EndpointRule(endpoint);
  return allowed.empty() ? allowed : allowed + ", or \"\" for an ipc socket of this user's own";
}

bool IsIpc(const std::string& endpoint) { return endpoint.empty() || endpoint.starts_with(kIpc); }

bool IsLoopback(const std::string& endpoint) {
  if (IsIpc(endpoint)) return true;
  const std::string_view host = HostOf(std::string_view(endpoint).substr(kTcp.size()));
  const std::optional<in6_addr> ipv6 = Ipv6Of(host);
  return host == "localhost" || (ipv6 && IN6_IS_ADDR_LOOPBACK(&*ipv6)) || IsLoopbackIp4(host);
}

}  // namespace prd
