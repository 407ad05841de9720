// Binding a ZeroMQ socket with errors that say what to do.
#ifndef PRD_SERVER_BIND_H_
#define PRD_SERVER_BIND_H_

#include <string>
#include <zmq.hpp>

#include "prd/status.h"

namespace prd {

// Binds, and returns the endpoint with the port that the system chose for "*". Replaces the file of
// an ipc endpoint that a dead daemon has left; its owner alone may connect to it. kAlreadyExists: a
// process answers at it. `key` is the config key, for messages.
Result<std::string> Bind(zmq::socket_t& socket, const std::string& endpoint,
                         const std::string& key);

// Who may connect to the file of an ipc endpoint: its owner alone, or every user, where something
// else decides who is let in. Nothing happens to other endpoints.
Status OpenToUsers(const std::string& endpoint, bool open);

}  // namespace prd

#endif  // PRD_SERVER_BIND_H_
