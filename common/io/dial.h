// How an endpoint tcp://HOST:PORT is dialled: with which kinds of addresses, and from where.
#ifndef PRD_COMMON_IO_DIAL_H_
#define PRD_COMMON_IO_DIAL_H_

#include <string>
#include <vector>

#include "prd/status.h"

namespace prd {

// One kind of address that HOST has. A socket that is to use IPv6 needs ZMQ_IPV6, and then prefers
// it; without, libzmq asks for addresses of IPv4 alone.
struct TcpWay {
  bool ipv6 = false;
  std::string own;  // the address of this host that routes there, as a number; empty: no route
};

// The kinds of addresses that HOST has, in the order in which to try them: a kind with a route
// comes before one without, then IPv4 before IPv6. Not empty. Blocks while a name server is asked,
// and sends nothing else. kInvalidArgument: `endpoint` is no tcp://HOST:PORT. kUnavailable: no such
// host is found, now.
Result<std::vector<TcpWay>> WaysTo(const std::string& endpoint);

}  // namespace prd

#endif  // PRD_COMMON_IO_DIAL_H_
