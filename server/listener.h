// A ROUTER socket of the daemon that other processes connect to. There is none without a guard:
// what connections cost is bounded before anything that they bring is read.
//
// Users of this host whom nobody lets in are refused as they connect, by what the kernel says of
// them (SO_PEERCRED). They hold no descriptor. Everybody else is asked for by the context's ZAP
// handler (zap.h), which must exist before the socket.
//
// libzmq 4.3.4 aborts the process in two ways that a peer can bring about, and both are avoided
// here:
// - A peer goes while its messages fill the receive queue (ZMQ_RCVHWM), and a heartbeat, its or
//   ours, is looked at later (assertion !_io_error; libzmq issues 4841 and 4767). So the queue has
//   no bound in ZeroMQ but one in the guard (max_backlog), and there are no heartbeats.
// - accept(2) finds no descriptor on a local socket (EMFILE). So the guard keeps some.
#ifndef PRD_SERVER_LISTENER_H_
#define PRD_SERVER_LISTENER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <zmq.hpp>

#include "common/io/connection_guard.h"
#include "common/io/curve.h"
#include "prd/status.h"

namespace prd {

class AuditLog;

// Users of this host, by number, who may connect over ipc; nullopt: all of them. The user that this
// process runs as, and root, always may.
using LocalUsers = std::optional<std::set<std::uint32_t>>;

class Listener {
 public:
  struct Options {
    std::string key;                // of the config, for errors: "listen"
    std::string endpoint;           // "ipc://PATH", "tcp://HOST:PORT"; PORT may be "*"
    std::string zap_domain;         // zap.h
    std::optional<CurveKeys> keys;  // clients must encrypt
    LocalUsers users;
    ConnectionGuard::Options guard;
    AuditLog* audit = nullptr;  // hears of handshakes that fail; must outlive the listener
    std::int64_t max_part_bytes = 65'536;
    int send_queue = 1000;  // messages per connection before it blocks
    int handshake_ms = 10'000;
    int linger_ms = 1000;
  };

  // Errors name the key.
  static Result<std::unique_ptr<Listener>> Make(zmq::context_t& context, const Options& options);

  // From now on these users may connect. Connections that there are stay.
  Status LetIn(const LocalUsers& users);

  zmq::socket_t& socket() { return socket_; }
  ConnectionGuard& guard() { return *guard_; }
  const ConnectionGuard& guard() const { return *guard_; }
  // As bound: with the port that was given for "*".
  const std::string& endpoint() const { return endpoint_; }
  // Bytes of a part of a message on the wire.
  std::uint64_t OnWire(const zmq::message_t& part) const {
    return ConnectionGuard::OnWire(part.size(), curve_);
  }

 private:
  Listener(zmq::socket_t socket, bool curve) : socket_(std::move(socket)), curve_(curve) {}
  Status Bind(const Options& options);

  zmq::socket_t socket_;
  const bool curve_;
  std::unique_ptr<ConnectionGuard> guard_;  // goes before the socket
  std::string endpoint_;
  LocalUsers users_;
  int bound_ = 0;  // times that the socket was bound anew
};

}  // namespace prd

#endif  // PRD_SERVER_LISTENER_H_
