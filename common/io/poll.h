// Waiting for ZeroMQ sockets in fewer system calls than zmq::poll makes.
#ifndef PRD_COMMON_IO_POLL_H_
#define PRD_COMMON_IO_POLL_H_

#include <span>
#include <zmq.hpp>

namespace prd {

// Waits as zmq::poll does, until something that is asked for is there, and tells in `revents`; or
// for this long, in ms (-1: for ever), or until a signal comes. zmq::poll asks every socket twice.
// This asks each once, and after its wait those alone whose descriptors tell of something.
void Poll(std::span<zmq::pollitem_t> items, long timeout_ms);

// Whether a message waits on the socket. If none does, the socket's descriptor (ZMQ_FD) becomes
// readable with the next one, unless the socket is used before that.
bool HasMessage(zmq::socket_ref socket);

}  // namespace prd

#endif  // PRD_COMMON_IO_POLL_H_
