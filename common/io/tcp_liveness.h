// A connection whose other host is gone without a word ends by itself.
//
// The kernel finds that out. ZeroMQ's heartbeats would, too, but with them libzmq 4.3.4 aborts the
// process when a peer goes while its messages fill the receive queue (assertion !_io_error).
#ifndef PRD_COMMON_IO_TCP_LIVENESS_H_
#define PRD_COMMON_IO_TCP_LIVENESS_H_

#include <algorithm>
#include <zmq.hpp>

namespace prd {

// Over tcp, connections of the socket end after so long without a sign of the other host, 3 s at
// least, whether they are idle or owe it bytes. Over ipc the kernel always tells. To be called
// before the socket is bound or connected.
inline void EndDeadConnections(zmq::socket_ref socket, int after_ms) {
  constexpr int kProbes = 2;
  const int part_s = std::max(1, after_ms / 1000 / (kProbes + 1));
  socket.set(zmq::sockopt::tcp_maxrt, after_ms);
  socket.set(zmq::sockopt::tcp_keepalive, 1);
  socket.set(zmq::sockopt::tcp_keepalive_idle, part_s);
  socket.set(zmq::sockopt::tcp_keepalive_intvl, part_s);
  socket.set(zmq::sockopt::tcp_keepalive_cnt, kProbes);
}

}  // namespace prd

#endif  // PRD_COMMON_IO_TCP_LIVENESS_H_
