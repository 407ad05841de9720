// A transport over ZeroMQ: a PULL socket that listens (listen.h), and a PUSH socket per link.
//
// The socket that listens is a PLAIN or a CURVE server (ZMTP, RFC 24 to 26). libzmq asks whether it
// may let a connection in (ZAP, RFC 27), and marks every message of the connection with the name
// that the answer gives. What connections cost is bounded by a ConnectionGuard.
//
// A link is a connection: ZeroMQ makes no second one. Nothing is handed to an ipc connection before
// it is known that a process of this user listens there.
#ifndef PRD_WORKER_TRANSPORT_ZMQ_TRANSPORT_H_
#define PRD_WORKER_TRANSPORT_ZMQ_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "common/io/connection_guard.h"
#include "prd/status.h"
#include "worker/transport/listen.h"
#include "worker/transport/transport.h"

namespace prd {

class ZmqTransport : public Transport {
 public:
  struct Options {
    Listening listening;  // for workers on other hosts
    // From other hosts, and other processes over tcp; half as many from one address. 0: half of the
    // descriptors that this process may have.
    std::size_t max_connections = 0;
    // The longest part of a frame. The receiver of a longer one closes the connection.
    std::size_t longest_part = 0;
  };
  static constexpr const char* kDomain = "prd-mesh";  // of ZAP
  // All connections that have brought no frame yet may have so many bytes that are not read.
  static constexpr std::uint64_t kMaxSilentBytes = 24 << 20;

  // There is one per context, which outlives it. kInvalidArgument: what is wrong in `listening`, or
  // cannot be bound.
  static Result<std::unique_ptr<ZmqTransport>> Make(zmq::context_t* context, Options options);

  const std::vector<std::string>& endpoints() const override { return endpoints_.told; }
  Result<std::unique_ptr<Link>> Open(const Opening& opening) override;
  void ShowKeys(bool keys, const MeshKeyPair& own) override;
  std::optional<Knock> TakeKnock() override;
  void Answer(std::uint64_t knock, std::optional<std::uint64_t> visitor) override;
  bool Receive(Arrival* arrival) override;
  void Attribute(Incarnation member) override;
  void End(Incarnation member) override;
  void Allow(std::size_t silent, std::uint64_t unread) override { guard_->Allow(silent, unread); }
  Counters counters() const override;

  // To wait for knocks and frames, and for these links of this transport.
  void AppendPollItems(const std::vector<Watched>& links, std::vector<zmq::pollitem_t>* items);

 private:
  // Whom an answer goes to, and which request it answers.
  struct Asking {
    std::vector<std::string> envelope;
    std::string request;
  };

  ZmqTransport(zmq::context_t* context, Options options);
  Status Bind();

  zmq::context_t* context_;
  Options options_;
  zmq::socket_t zap_;
  zmq::socket_t pull_;
  std::unique_ptr<ConnectionGuard> guard_;  // goes before the socket
  Endpoints endpoints_;
  bool keys_ = false;
  std::uint64_t knocks_ = 0;
  std::map<std::uint64_t, Asking> asking_;
  zmq::message_t newest_;     // the first part of the frame that came last
  std::uint64_t opened_ = 0;  // links
};

}  // namespace prd

#endif  // PRD_WORKER_TRANSPORT_ZMQ_TRANSPORT_H_
