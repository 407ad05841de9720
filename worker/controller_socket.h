// A worker's socket to its controller. It connects for as long as that takes, and again whenever
// the connection breaks; what cannot be sent meanwhile is dropped, for the link
// (core/controller_link.h) sends it again. For the session's thread alone.
#ifndef PRD_WORKER_CONTROLLER_SOCKET_H_
#define PRD_WORKER_CONTROLLER_SOCKET_H_

#include <optional>
#include <vector>
#include <zmq.hpp>

#include "common/base/messages.h"
#include "common/io/dial.h"
#include "prd/session.h"
#include "worker/handshakes.h"

namespace prd {

class ControllerSocket {
 public:
  ControllerSocket() = default;
  ~ControllerSocket();

  // Begins to connect to options.controller, with its keys. Once, before all else; *context
  // outlives this.
  Status Connect(zmq::context_t* context, const SessionOptions& options);

  void Send(const WorkerEnvelope& envelope);
  // Takes the next message. False: there is none. *envelope is empty where it does not decode.
  bool Receive(std::optional<ControllerEnvelope>* envelope);

  // What has become of the connection since the last call.
  struct News {
    bool connected = false;                      // it was made, or can take more again
    std::optional<Handshakes::Failure> failure;  // the newest
  };
  News TakeNews();

  // What to wait for: two items. OnPolled gets the first of them back.
  void AppendPollItems(std::vector<zmq::pollitem_t>* items);
  void OnPolled(const zmq::pollitem_t& item);

 private:
  void ChangePace(bool patient);
  void Reconnect();

  SessionOptions options_;  // where the controller is, and the keys for it
  zmq::socket_t socket_;
  Handshakes handshakes_;
  std::vector<TcpWay> ways_;  // over tcp; the first one is in use, and they take turns
  int attempts_ = 0;          // of the handshakes, as the turn of that one began
  bool patient_ = false;      // asks seldom whether the controller is there
  bool blocked_ = false;      // the connection is away
  bool unblocked_ = false;    // it was, until now
};

}  // namespace prd

#endif  // PRD_WORKER_CONTROLLER_SOCKET_H_
