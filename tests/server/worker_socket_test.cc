// Connections that have ended, as a turn of the daemon sees them: what a worker says over an old
// connection, its end and the worker's next connection come to be read in any order.
#include "server/worker_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/io/clock.h"
#include "common/io/codec.h"
#include "server/zap.h"

namespace prd::worker_socket_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Incarnation kWorker = 42;
constexpr int kDeadlineMs = 60'000;

class WorkerSocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    access_ = Access::Load(Config()).value();
    zap_ = ZapHandler::Make(context_, &access_, &audit_).value();
    admits_ = std::thread([this] {
      for (; !ends_; (void)::poll(nullptr, 0, 1)) zap_->Serve();
    });
    workers_ = std::make_unique<WorkerSocket>(
        Listener::Make(context_, {.key = "listen",
                                  .endpoint = "tcp://127.0.0.1:*",
                                  .zap_domain = std::string(kWorkersDomain)})
            .value());
  }
  ~WorkerSocketTest() override {
    ends_ = true;
    if (admits_.joinable()) admits_.join();
  }

  zmq::socket_t Connect() {
    zmq::socket_t socket(clients_, zmq::socket_type::dealer);
    socket.connect(workers_->listener().endpoint());
    return socket;
  }
  static void Say(zmq::socket_t& socket) {
    const std::string bytes =
        Encode(WorkerEnvelope{.incarnation = kWorker, .token = {7, 8}, .body = Heartbeat{}});
    (void)socket.send(zmq::buffer(bytes), zmq::send_flags::none);
  }
  // Whether the worker's next message came, in the turn that lasts until Ended.
  bool Receive() {
    const std::int64_t end = MonotonicNs() + kDeadlineMs * kMillisecond;
    for (;;) {
      const WorkerEnvelope* const envelope = workers_->Receive({MonotonicNs()}, &gate_, &turn_);
      if (envelope != nullptr) return envelope->incarnation == kWorker;
      if (MonotonicNs() > end) return false;
      (void)::poll(nullptr, 0, 1);
    }
  }
  std::vector<Incarnation> Ended() {
    turn_ = {};
    return workers_->TakeEnded();
  }
  // Waits until the end of a connection is told.
  std::vector<Incarnation> NextEnded() {
    pollfd told{.fd = workers_->listener().guard().ended(), .events = POLLIN, .revents = 0};
    (void)::poll(&told, 1, kDeadlineMs);
    return Ended();
  }

  zmq::context_t clients_;
  zmq::context_t context_;
  Access access_;
  AuditLog audit_;
  const Controller controller_{{.random = [] { return 1; }}, nullptr, nullptr, nullptr};
  Gate gate_{&access_, &controller_, &audit_};
  std::unique_ptr<ZapHandler> zap_;
  std::atomic<bool> ends_ = false;
  std::thread admits_;
  std::unique_ptr<WorkerSocket> workers_;
  WorkerSocket::Turn turn_;
};

TEST_F(WorkerSocketTest, WhatIsReadLateEndsNoConnectionThatCameSince) {
  zmq::socket_t old = Connect();
  for (int i = 0; i < 4; ++i) Say(old);
  ASSERT_TRUE(Receive());
  EXPECT_TRUE(workers_->fresh());
  old.close();  // sends the rest first
  EXPECT_THAT(NextEnded(), ElementsAre(kWorker));
  EXPECT_THAT(Ended(), IsEmpty());

  // Over the old one alone: whoever admitted the worker by that must hear of the end again.
  ASSERT_TRUE(Receive());
  EXPECT_FALSE(workers_->fresh());
  EXPECT_THAT(Ended(), ElementsAre(kWorker));

  // Over the old one and then a new one, in one turn.
  ASSERT_TRUE(Receive());
  EXPECT_FALSE(workers_->fresh());
  zmq::socket_t fresh = Connect();
  Say(fresh);
  do {
    ASSERT_TRUE(Receive());
  } while (!workers_->fresh());
  EXPECT_THAT(Ended(), IsEmpty());

  fresh.close();
  EXPECT_THAT(NextEnded(), ElementsAre(kWorker));
}

// While the daemon reads its history (Daemon::TellReading).
TEST_F(WorkerSocketTest, WhoIsPutOffHearsWhyAndHasNoRouteYet) {
  zmq::socket_t worker = Connect();
  const auto says = [&](WorkerBody body) {
    const WorkerEnvelope envelope{.identity = {3, 4},
                                  .incarnation = kWorker,
                                  .seq = 9,
                                  .token = {7, 8},
                                  .body = std::move(body)};
    (void)worker.send(zmq::buffer(Encode(envelope)), zmq::send_flags::none);
  };
  const auto hears = [&]() -> std::optional<ControllerEnvelope> {
    zmq::message_t answer;
    const std::int64_t end = MonotonicNs() + kDeadlineMs * kMillisecond;
    while (!worker.recv(answer, zmq::recv_flags::dontwait)) {
      if (MonotonicNs() > end) return std::nullopt;
      workers_->PutOff(access_, "not yet", 500);
      (void)::poll(nullptr, 0, 1);
    }
    return DecodeControllerEnvelope(answer.to_string_view()).value();
  };
  (void)worker.send(zmq::str_buffer("no message"), zmq::send_flags::none);
  says(Hello{.job = "job"});
  std::optional<ControllerEnvelope> answer = hears();
  if (answer && std::get<Refused>(answer->body).code != Code::kUnavailable) answer = hears();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->incarnation, kWorker);
  EXPECT_EQ(std::get<Refused>(answer->body),
            (Refused{.code = Code::kUnavailable, .reason = "not yet", .retry_ms = 500}));
  for (WorkerBody body : {WorkerBody{Ready{.iteration = 1}}, WorkerBody{Heartbeat{}}}) {
    says(std::move(body));
    answer = hears();
    ASSERT_TRUE(answer);
    // It acknowledges nothing, and comes from the controller's life that the worker knows.
    EXPECT_EQ(*answer, (ControllerEnvelope{.identity = {3, 4},
                                           .incarnation = kWorker,
                                           .body = HeartbeatAck{.waits_for = "not yet"}}));
  }
  EXPECT_EQ(workers_->routes(), 0u);
  EXPECT_EQ(workers_->counters().malformed, 1u);
}

}  // namespace
}  // namespace prd::worker_socket_test
