// What the kernel says about a connection, over TCP or a local socket, by its descriptor; and how
// to end one whose descriptor somebody else owns.
#ifndef PRD_COMMON_IO_CONNECTION_FACTS_H_
#define PRD_COMMON_IO_CONNECTION_FACTS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "prd/status.h"

namespace prd {

// The kernel's number of the connection, never used twice. nullopt: there is none.
std::optional<std::uint64_t> CookieOf(int fd);

struct ConnectionPeer {
  // Address of the host, or user of a local socket; empty: this process's own user. As in
  // syn_filter.h. A host may choose the lower half of its address of IPv6, so that is left out.
  std::string name;
  bool tcp = false;
  bool gone = false;  // not known any more
};
ConnectionPeer PeerOf(int fd);
// Its name for people: "10.1.2.3", "2001:db8::/64", "user 1000", or "unknown".
std::string TextOf(const ConnectionPeer& peer);

// The other side has closed it, or it is broken.
bool HungUp(int fd);

// Bytes that were received on a TCP connection and taken from the kernel.
std::optional<std::uint64_t> TakenFromTcp(int fd);

// Bytes that were taken from a local socket since CountFromHere, which has to be called again
// before they are kMaxLocalCount. False: they are not counted.
inline constexpr std::uint64_t kMaxLocalCount = 1 << 30;
bool CountFromHere(int fd);
std::uint64_t TakenFromLocal(int fd);

// Ends connections. It needs no descriptor of its own when there are none left. One thread at a
// time.
class ConnectionBreaker {
 public:
  ConnectionBreaker() = default;
  ~ConnectionBreaker();
  ConnectionBreaker(const ConnectionBreaker&) = delete;
  ConnectionBreaker& operator=(const ConnectionBreaker&) = delete;

  // Before Break.
  Status Open();
  // If the descriptor is still of the connection with this cookie. What has come and is not read is
  // dropped, too.
  void Break(int fd, std::uint64_t cookie, bool tcp);

 private:
  // A descriptor to be replaced by a copy of another one. A copy stays what it is while the owner
  // closes the connection and its number is used again.
  int nothing_ = -1;
  int copy_ = -1;
};

}  // namespace prd

#endif  // PRD_COMMON_IO_CONNECTION_FACTS_H_
