// Where a mesh listens: on an abstract ipc endpoint, for workers on this host, and on a tcp
// endpoint where workers on other hosts are to reach it.
//
// The ipc endpoint has a name of fresh random bytes, which says nothing about the worker: every
// user of a host can list such names. Only processes of this user can connect to it.
#ifndef PRD_WORKER_TRANSPORT_LISTEN_H_
#define PRD_WORKER_TRANSPORT_LISTEN_H_

#include <functional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "prd/status.h"

namespace prd {

struct Listening {
  std::string address = "127.0.0.1";  // of this host; IPv6 with or without brackets. Empty: no tcp
  std::string ports;                  // "FIRST-LAST" or "PORT"; empty: any that is free
  // "HOST" or "HOST:PORT" that peers are told instead of what is bound; empty: that.
  std::string announce;
};

struct Endpoints {
  std::vector<std::string> told;   // to peers: "ipc://..", "tcp://.."
  std::vector<std::string> bound;  // as the socket knows them
};

// Binds the socket. kInvalidArgument: what is wrong in `listening`, or cannot be bound.
// kResourceExhausted: all `ports` are taken.
Result<Endpoints> Listen(const Listening& listening, zmq::socket_t* socket);
// The socket stops listening there, and begins anew once `change` has run: its connections from
// then on have the socket's new options. Throws zmq::error_t.
void ListenAgain(const Endpoints& endpoints, zmq::socket_t* socket,
                 const std::function<void()>& change);

}  // namespace prd

#endif  // PRD_WORKER_TRANSPORT_LISTEN_H_
