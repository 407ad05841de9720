// The other end of a TCP connection: a host, or, within this one, a user. The kernel
// tells the user (sock_diag(7)) where netlink sockets are allowed.
#ifndef PRD_COMMON_IO_SOCKET_PEER_H_
#define PRD_COMMON_IO_SOCKET_PEER_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <optional>
#include <string>

namespace prd {

struct SocketPeer {
  // Equal for connections of one peer: "user 1000", or the bytes of an address. Of IPv6 the upper
  // half, because a host may choose the lower one.
  std::string name;
  bool here = false;          // of this host
  std::optional<uid_t> user;  // of one that is here, where the kernel tells
  bool gone = false;          // it has closed its end already
};

// For the connections of one listening TCP socket. Not thread-safe.
class PeerLookup {
 public:
  explicit PeerLookup(int listening);
  ~PeerLookup();
  PeerLookup(const PeerLookup&) = delete;
  PeerLookup& operator=(const PeerLookup&) = delete;

  SocketPeer Of(int fd) const;
  // Whether the kernel tells users: it was tried with the listening socket.
  bool tells_users() const { return netlink_ >= 0; }

 private:
  int netlink_ = -1;
};

}  // namespace prd

#endif  // PRD_COMMON_IO_SOCKET_PEER_H_
