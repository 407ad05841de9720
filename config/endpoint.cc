#include "config/endpoint.h"

#include <algorithm>
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

// A name, an IPv4 address, an interface, or * for all of them.
bool IsHost(std::string_view text) {
  if (text == "*") return true;
  if (text.size() > 2 && text.front() == '[' && text.back() == ']') {
    const std::string_view inner = text.substr(1, text.size() - 2);
    return inner.find_first_not_of("0123456789abcdefABCDEF:.%") == std::string_view::npos;
  }
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '-' || c == '_';
  });
}

bool IsIpc(std::string_view endpoint) {
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

std::string ListenRule(const std::string& endpoint) {
  if (IsIpc(endpoint)) return {};
  if (endpoint.starts_with(kTcp)) {
    const std::string address = endpoint.substr(kTcp.size());
    if (IsAddressAndPort(address)) return {};
    // "*" as the port is ZeroMQ's word for any free one.
    if (address.ends_with(":*") && IsHost(HostOf(address))) return {};
  }
  return "tcp://ADDRESS:PORT (PORT 1 to 65535, or * for any free one) or ipc:///PATH (up to " +
         std::to_string(kMaxIpcPath) + " bytes)";
}

std::string AdminRule(const std::string& endpoint) {
  if (IsIpc(endpoint)) return {};
  return "ipc:///PATH (up to " + std::to_string(kMaxIpcPath) +
         " bytes): a socket file that only its owner may open";
}

bool IsLoopback(const std::string& endpoint) {
  if (endpoint.starts_with(kIpc)) return true;
  const std::string_view host = HostOf(std::string_view(endpoint).substr(kTcp.size()));
  return host == "localhost" || host == "[::1]" || IsLoopbackIp4(host);
}

}  // namespace prd
