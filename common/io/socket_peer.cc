#include "common/io/socket_peer.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace prd {
namespace {

// One end of a connection.
struct End {
  int family = AF_UNSPEC;  // AF_INET also for IPv4 over an IPv6 socket
  std::uint16_t port = 0;  // in the network's order
  std::string bytes;       // the address

  bool loopback() const {
    if (family == AF_INET) return bytes.front() == 127;
    return bytes == std::string(15, '\0') + '\1';
  }
};

End ToEnd(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return {AF_INET, v4.sin_port,
            std::string(reinterpret_cast<const char*>(&v4.sin_addr), sizeof v4.sin_addr)};
  }
  if (address.ss_family != AF_INET6) return {};
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  const std::string bytes(reinterpret_cast<const char*>(&v6.sin6_addr), sizeof v6.sin6_addr);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return {AF_INET, v6.sin6_port, bytes.substr(12)};
  return {AF_INET6, v6.sin6_port, bytes};
}

End OwnEnd(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  const bool ok = ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  return ok ? ToEnd(address) : End();
}

End OtherEnd(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  const bool ok = ::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  return ok ? ToEnd(address) : End();
}

struct Question {
  nlmsghdr header;
  inet_diag_req_v2 request;
};
struct Answer {
  nlmsghdr header;
  inet_diag_msg told;
};

// The TCP socket of this host that is bound to `own`, and connected to `other`, or listens.
std::optional<inet_diag_msg> Find(int netlink, const End& own, const End& other) {
  Question question{};
  question.header = {.nlmsg_len = sizeof question,
                     .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                     .nlmsg_flags = NLM_F_REQUEST};
  inet_diag_req_v2& request = question.request;
  request.sdiag_family = static_cast<std::uint8_t>(own.family);
  request.sdiag_protocol = IPPROTO_TCP;
  request.idiag_states = ~0U;
  request.id.idiag_sport = own.port;
  request.id.idiag_dport = other.port;
  std::memcpy(request.id.idiag_src, own.bytes.data(), own.bytes.size());
  std::memcpy(request.id.idiag_dst, other.bytes.data(), other.bytes.size());
  request.id.idiag_cookie[0] = request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (::send(netlink, &question, sizeof question, MSG_DONTWAIT) < 0) return std::nullopt;
  Answer answer{};  // the attributes behind it are cut off
  const ssize_t size = ::recv(netlink, &answer, sizeof answer, MSG_DONTWAIT);
  if (size < static_cast<ssize_t>(sizeof answer)) return std::nullopt;
  if (answer.header.nlmsg_type != SOCK_DIAG_BY_FAMILY) return std::nullopt;
  const inet_diag_sockid& id = answer.told.id;
  if (id.idiag_sport != own.port || id.idiag_dport != other.port) return std::nullopt;
  return answer.told;
}

}  // namespace

PeerLookup::PeerLookup(int listening)
    : netlink_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)) {
  const End own = OwnEnd(listening);
  const End none{own.family, 0, std::string(own.bytes.size(), '\0')};
  if (netlink_ < 0 || own.family == AF_UNSPEC || Find(netlink_, own, none)) return;
  ::close(netlink_);
  netlink_ = -1;
}

PeerLookup::~PeerLookup() {
  if (netlink_ >= 0) ::close(netlink_);
}

SocketPeer PeerLookup::Of(int fd) const {
  const End own = OwnEnd(fd);
  const End other = OtherEnd(fd);
  SocketPeer peer;
  peer.gone = other.family == AF_UNSPEC;
  if (peer.gone) return peer;
  peer.name = other.family == AF_INET ? other.bytes : other.bytes.substr(0, 8);
  peer.here = other.loopback() || other.bytes == own.bytes;
  if (!peer.here || !tells_users()) return peer;
  // Where the kernel translates addresses, there is no such socket.
  const auto found = Find(netlink_, other, own);
  if (!found) return peer;
  // What was closed has no inode any more, and the kernel may say then that it was root's.
  peer.gone = found->idiag_inode == 0;
  if (peer.gone) return peer;
  peer.user = found->idiag_uid;
  peer.name = "user " + std::to_string(*peer.user);
  return peer;
}

}  // namespace prd
