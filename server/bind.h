// Binding a ZeroMQ socket with errors that say what to do.
#ifndef PRD_SERVER_BIND_H_
#define PRD_SERVER_BIND_H_

#include <string>
#include <zmq.hpp>

#include "prd/status.h"

namespace prd {

// Binds and returns the endpoint with the port that was given for "*". A file of an ipc endpoint
// can be opened by its owner only; a file that a daemon which is gone has left is replaced, one
// that a living one answers at is not (kAlreadyExists). `key` is the config key, for messages.
Result<std::string> Bind(zmq::socket_t& socket, const std::string& endpoint,
                         const std::string& key);

}  // namespace prd

#endif  // PRD_SERVER_BIND_H_
