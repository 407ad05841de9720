#include "common/io/poll.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <thread>

namespace prd::poll_test {
namespace {

class PollTest : public ::testing::Test {
 protected:
  PollTest() {
    here_.bind("inproc://here");
    there_.connect("inproc://here");
  }
  ~PollTest() override { ::close(event_); }

  short Wait(long timeout_ms, short events = ZMQ_POLLIN) {
    items_[0].events = events;
    Poll(items_, timeout_ms);
    return items_[0].revents;
  }

  zmq::context_t context_;
  zmq::socket_t here_{context_, zmq::socket_type::pair};
  zmq::socket_t there_{context_, zmq::socket_type::pair};
  const int event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::array<zmq::pollitem_t, 2> items_{
      {{here_.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, event_, ZMQ_POLLIN, 0}}};
};

TEST_F(PollTest, NothingIsThere) {
  EXPECT_EQ(Wait(0), 0);
  EXPECT_EQ(Wait(20), 0);
  EXPECT_EQ(items_[1].revents, 0);
}

TEST_F(PollTest, AMessageThatHasComeIsTold) {
  there_.send(zmq::str_buffer("a"), zmq::send_flags::none);
  EXPECT_EQ(Wait(-1), ZMQ_POLLIN);
  EXPECT_EQ(Wait(-1), ZMQ_POLLIN) << "until somebody takes it";
  EXPECT_EQ(items_[1].revents, 0);
}

TEST_F(PollTest, AMessageOfWhichTheSocketKnowsIsTold) {
  there_.send(zmq::str_buffer("a"), zmq::send_flags::none);
  there_.send(zmq::str_buffer("b"), zmq::send_flags::none);
  zmq::message_t taken;
  ASSERT_TRUE(here_.recv(taken, zmq::recv_flags::dontwait));
  EXPECT_EQ(Wait(-1), ZMQ_POLLIN);
}

TEST_F(PollTest, AMessageThatComesEndsTheWait) {
  for (int i = 0; i < 100; ++i) {
    std::thread other([this] { there_.send(zmq::str_buffer("a"), zmq::send_flags::none); });
    EXPECT_EQ(Wait(-1), ZMQ_POLLIN);
    other.join();
    zmq::message_t taken;
    ASSERT_TRUE(here_.recv(taken, zmq::recv_flags::dontwait));
    here_.send(zmq::str_buffer("b"), zmq::send_flags::none);
    ASSERT_TRUE(there_.recv(taken, zmq::recv_flags::none));
    EXPECT_EQ(Wait(0), 0);
  }
}

TEST_F(PollTest, RoomToSendIsTold) { EXPECT_EQ(Wait(-1, ZMQ_POLLIN | ZMQ_POLLOUT), ZMQ_POLLOUT); }

TEST_F(PollTest, ADescriptorIsToldBesideSockets) {
  ASSERT_EQ(::eventfd_write(event_, 1), 0);
  EXPECT_EQ(Wait(-1), 0);
  EXPECT_EQ(items_[1].revents, ZMQ_POLLIN);
  there_.send(zmq::str_buffer("a"), zmq::send_flags::none);
  EXPECT_EQ(Wait(-1), ZMQ_POLLIN);
  EXPECT_EQ(items_[1].revents, ZMQ_POLLIN);
}

}  // namespace
}  // namespace prd::poll_test
