// What becomes of a worker's connections to the controller before any message goes over them. Who
// is refused there hears nothing else, and libzmq then gives the connection up for good, or makes
// it anew for ever.
#ifndef PRD_WORKER_HANDSHAKES_H_
#define PRD_WORKER_HANDSHAKES_H_

#include <optional>
#include <string>
#include <utility>
#include <zmq.hpp>

#include "prd/session.h"
#include "prd/status.h"
#include "worker/own_process.h"

namespace prd {

class Handshakes {
 public:
  // Watches a socket, before it connects. Throws zmq::error_t.
  void Watch(zmq::context_t* context, zmq::socket_ref socket);
  // Before the socket is closed.
  void Stop();

  struct Failure {
    Status status;
    bool final = false;  // there is no connection any more, and libzmq makes none
  };
  // What is new, and what to do about it.
  std::optional<Failure> Take(const SessionOptions& options);
  // Whether a connection was made since the last call, as Take saw.
  bool TakeMade() { return std::exchange(made_, false); }
  // The same of one that ended.
  bool TakeBroken() { return std::exchange(broken_, false); }
  // Attempts since the last connection that was made.
  int attempts() const { return attempts_; }
  void* handle() { return events_.handle(); }

 private:
  zmq::socket_ref socket_;
  zmq::socket_t events_;
  int ended_ = 0;   // in a row, by the other side
  OwnProcess own_;  // of the connection's socket
  bool made_ = false;
  bool broken_ = false;
  int attempts_ = 0;
};

// Whether this process may open the controller's socket file, if it is one that is there.
Status MayOpen(const std::string& controller);

}  // namespace prd

#endif  // PRD_WORKER_HANDSHAKES_H_
