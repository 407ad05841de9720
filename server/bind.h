// Binding a ZeroMQ socket with errors that say what to do.
#ifndef PRD_SERVER_BIND_H_
#define PRD_SERVER_BIND_H_

#include <string>
#include <zmq.hpp>

#include "prd/status.h"

namespace prd {

// Access to the file of an ipc endpoint.
enum class Access { kOwner, kByUmask };

// Binds, and returns the endpoint with the port that the system chose for "*". Replaces the file of
// an ipc endpoint that a dead daemon has left. kAlreadyExists: a process answers at it. `key` is
// the config key, for messages.
Result<std::string> Bind(zmq::socket_t& socket, const std::string& endpoint, const std::string& key,
                         Access access);

}  // namespace prd

#endif  // PRD_SERVER_BIND_H_
