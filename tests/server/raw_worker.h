// A worker that speaks the control protocol by hand, message by message.
#ifndef PRD_TESTS_SERVER_RAW_WORKER_H_
#define PRD_TESTS_SERVER_RAW_WORKER_H_

#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>
#include <zmq.hpp>

#include "common/base/link.h"
#include "common/base/messages.h"
#include "common/io/codec.h"
#include "common/io/curve.h"
#include "tests/server/daemon_process.h"

namespace prd {

class RawWorker {
 public:
  explicit RawWorker(const std::string& endpoint, Incarnation incarnation = 1,
                     const std::optional<std::pair<CurveKeys, std::string>>& keys_and_server = {})
      : socket_(context_, zmq::socket_type::dealer), incarnation_(incarnation) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::reconnect_ivl, 10);
    if (keys_and_server) {
      socket_.set(zmq::sockopt::curve_publickey, keys_and_server->first.public_key);
      socket_.set(zmq::sockopt::curve_secretkey, keys_and_server->first.secret_key);
      socket_.set(zmq::sockopt::curve_serverkey, keys_and_server->second);
    }
    socket_.connect(endpoint);
  }

  static Hello HelloFor(const std::string& job, Rank rank) {
    return {.job = job,
            .rank = rank,
            .host = "host",
            .host_name = "host",
            .pid = 42,
            .endpoints = {"ipc:///nowhere"},
            .model_bytes = 4,
            .model_hash = 1};
  }

  void SendParts(const std::vector<std::string>& parts) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      // A connection that was refused for its key is gone for good, and would block.
      const auto more = i + 1 < parts.size() ? zmq::send_flags::sndmore : zmq::send_flags::none;
      (void)socket_.send(zmq::buffer(parts[i]), more | zmq::send_flags::dontwait);
    }
  }
  void SendEnvelope(const WorkerEnvelope& envelope) { SendParts({Encode(envelope)}); }
  // What it shows from now on to be this incarnation.
  void Show(const LinkToken& token) { token_ = token; }
  // In order, numbered, as a worker does.
  void Send(WorkerBody body) {
    const auto& [seq, pushed] = link_.Push(std::move(body));
    SendEnvelope(Envelope(seq, pushed));
  }
  void Heartbeat() { SendEnvelope(Envelope(0, prd::Heartbeat{})); }
  void ResendAll() {
    for (const auto& [seq, body] : link_.unacked()) SendEnvelope(Envelope(seq, body));
  }

  // A daemon that has started again takes nothing from a worker that has not heard of it.
  void Nudge() {
    while (auto envelope = Take(0)) {
      if (envelope->identity.known()) identity_ = envelope->identity;
      taken_.push_back(std::move(*envelope));
    }
    ResendAll();
    if (run_ != kNoRun) Heartbeat();
  }
  // Nudged while this one waits, because its messages may be what this one waits for.
  void WaitsFor(RawWorker* peer) { peer_ = peer; }

  // The next envelope, whatever it is; nullopt when none comes within wait_ms.
  std::optional<ControllerEnvelope> Receive(int wait_ms = kTimeoutMs) {
    if (taken_.empty()) return Take(wait_ms);
    ControllerEnvelope envelope = std::move(taken_.front());
    taken_.pop_front();
    return envelope;
  }
  std::optional<ControllerEnvelope> Take(int wait_ms) {
    socket_.set(zmq::sockopt::rcvtimeo, wait_ms);
    zmq::message_t message;
    if (!socket_.recv(message)) return std::nullopt;
    auto envelope =
        DecodeControllerEnvelope({static_cast<const char*>(message.data()), message.size()});
    if (!envelope.ok()) return std::nullopt;
    return std::move(*envelope);
  }

  // The next message that is new, as a worker sees it. While nothing comes it does what a worker
  // does: beats and sends again what is not acknowledged.
  std::optional<ControllerBody> Next() {
    for (int quiet = 0; quiet * 100 < kTimeoutMs;) {
      std::optional<ControllerEnvelope> envelope = Receive(100);
      if (!envelope) {
        ++quiet;
        Nudge();
        if (peer_ != nullptr) peer_->Nudge();
        continue;
      }
      if (envelope->incarnation != 0 && envelope->incarnation != incarnation_) continue;
      if (!std::holds_alternative<Refused>(envelope->body)) link_.OnAck(envelope->ack);
      const bool restarted = identity_.known() && envelope->identity.low != identity_.low;
      if (envelope->identity.known()) identity_ = envelope->identity;
      if (restarted) ResendAll();
      if (restarted) Heartbeat();
      using Verdict = LinkEnd<WorkerBody>::Verdict;
      if (envelope->seq != 0 && link_.OnReceive(envelope->seq) != Verdict::kDeliver) continue;
      if (const auto* welcome = std::get_if<Welcome>(&envelope->body)) {
        run_ = welcome->run;
        rank_ = welcome->rank;
      }
      return std::move(envelope->body);
    }
    return std::nullopt;
  }

  // The next one of this kind; those before it are passed over.
  template <typename Body>
  std::optional<Body> Expect() {
    while (std::optional<ControllerBody> body = Next()) {
      if (auto* wanted = std::get_if<Body>(&*body)) return std::move(*wanted);
    }
    return std::nullopt;
  }

  // Says Hello, gets Welcome.
  void Join(const std::string& job, Rank rank = kNoRank) {
    Send(HelloFor(job, rank));
    ASSERT_TRUE(Expect<Welcome>().has_value());
  }
  // Takes the next group and reports that it went well.
  std::optional<Group> Reduce() {
    std::optional<Group> group = Expect<Group>();
    if (group) Send(Finished{.group = group->id});
    return group;
  }

  // As if this were another worker: what a peer knows of it.
  void Pretend(const RawWorker& other) {
    run_ = other.run_;
    rank_ = other.rank_;
    identity_ = other.identity_;
  }

  RunId run() const { return run_; }
  Rank rank() const { return rank_; }
  const RunIdentity& identity() const { return identity_; }

 private:
  WorkerEnvelope Envelope(Seq seq, WorkerBody body) const {
    return {.run = run_,
            .identity = identity_,
            .rank = rank_,
            .incarnation = incarnation_,
            .seq = seq,
            .ack = link_.last_in(),
            .oldest = link_.oldest(),
            .token = token_,
            .body = std::move(body)};
  }

  zmq::context_t context_;
  zmq::socket_t socket_;
  const Incarnation incarnation_;
  LinkToken token_{1, incarnation_};
  RunId run_ = kNoRun;
  RunIdentity identity_;
  std::deque<ControllerEnvelope> taken_;  // received, and not looked at
  Rank rank_ = kNoRank;
  LinkEnd<WorkerBody> link_;
  RawWorker* peer_ = nullptr;
};

}  // namespace prd

#endif  // PRD_TESTS_SERVER_RAW_WORKER_H_
