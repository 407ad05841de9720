// What every transport promises (worker/transport/transport.h), for each of them. A new one is a
// World, and a line at the end.
#include "worker/transport/transport.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "tools/sim/network.h"
#include "worker/transport/zmq_transport.h"

namespace prd {
namespace {

using Visitor = std::uint64_t;

MeshKeyPair Drawn() {
  const Result<MeshKeyPair> keys = DrawMeshKeys();
  EXPECT_TRUE(keys.ok());
  return *keys;
}

// Two processes, and time.
class World {
 public:
  virtual ~World() = default;
  std::array<std::unique_ptr<Transport>, 2> transports;
  // Lets a moment pass.
  virtual void Turn() = 0;
  // The process ends, and its transport with it.
  virtual void Kill(std::size_t which) { transports[which].reset(); }
  virtual bool Patient() const = 0;
};

class Sockets : public World {
 public:
  Sockets() {
    for (std::size_t i = 0; i < 2; ++i) {
      auto made = ZmqTransport::Make(&contexts_[i], {.longest_part = 1 << 20});
      EXPECT_TRUE(made.ok()) << made.status().ToString();
      transports[i] = std::move(made).value();
    }
  }
  ~Sockets() override {
    for (auto& transport : transports) transport.reset();
  }
  void Turn() override { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }
  bool Patient() const override { return std::chrono::steady_clock::now() < give_up_; }

 private:
  std::array<zmq::context_t, 2> contexts_;
  const std::chrono::steady_clock::time_point give_up_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(30);
};

class Simulated : public World {
 public:
  Simulated() {
    for (std::size_t i = 0; i < 2; ++i) {
      transports[i] = network_.Start(i, [] {});
      processes_[i] = network_.newest();
    }
  }
  ~Simulated() override {
    for (auto& transport : transports) transport.reset();
  }
  void Turn() override {
    const Instant until = network_.now() + kMillisecond;
    while (network_.RunNext(until)) {
    }
  }
  void Kill(std::size_t which) override {
    network_.Kill(processes_[which], false);
    World::Kill(which);
  }
  bool Patient() const override { return network_.now().ns < 60 * kSecond; }

 private:
  sim::SimNetwork network_{1, {}};
  std::array<sim::SimNetwork::Process, 2> processes_{};
};

struct Way {
  const char* name;
  std::function<std::unique_ptr<World>()> make;
  const char* prefix;  // of the endpoint to use
};

class TransportTest : public testing::TestWithParam<Way> {
 protected:
  TransportTest() : world_(GetParam().make()) {}
  Transport& own() { return *world_->transports[0]; }
  Transport& other() { return *world_->transports[1]; }

  bool Until(const std::function<bool()>& done) {
    while (!done()) {
      if (!world_->Patient()) return false;
      world_->Turn();
    }
    return true;
  }
  std::string Endpoint() {
    for (const std::string& endpoint : other().endpoints()) {
      if (endpoint.starts_with(GetParam().prefix)) return endpoint;
    }
    return {};
  }
  std::unique_ptr<Link> Open(Opening opening = {.name = "name", .proof = "proof"}) {
    if (opening.endpoint.empty()) opening.endpoint = Endpoint();
    Result<std::unique_ptr<Link>> link = own().Open(opening);
    EXPECT_TRUE(link.ok()) << link.status().ToString();
    return std::move(link).value();
  }
  Transport::Knock Await() {
    std::optional<Transport::Knock> knock;
    EXPECT_TRUE(Until([&] { return (knock = other().TakeKnock()).has_value(); }));
    return knock.value_or(Transport::Knock());
  }
  // A link that stands.
  std::unique_ptr<Link> Standing(Visitor visitor) {
    std::unique_ptr<Link> link = Open();
    other().Answer(Await().id, visitor);
    EXPECT_TRUE(Until([&] { return link->Look().stands; }));
    return link;
  }
  void Send(Link* link, const std::string& first, const SharedBytes& payload) {
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(first.data()),
                                           first.size());
    EXPECT_TRUE(Until([&] { return link->Send(bytes, payload) != Link::Sent::kFull; }));
  }
  struct Got {
    Visitor visitor = 0;
    std::string first;
    SharedBytes payload;
  };
  // Visitor N is member 100 + N.
  std::optional<Got> Receive() {
    Transport::Arrival arrival;
    if (!other().Receive(&arrival)) return std::nullopt;
    Got got{arrival.visitor,
            {reinterpret_cast<const char*>(arrival.first.data()), arrival.first.size()},
            std::move(arrival.payload)};
    EXPECT_TRUE(arrival.whole);
    other().Attribute(ends_.contains(got.visitor) ? 0 : got.visitor + 100);
    return got;
  }
  Got AwaitFrame() {
    std::optional<Got> got;
    EXPECT_TRUE(Until([&] { return (got = Receive()).has_value(); }));
    return got.value_or(Got());
  }
  bool Breaks(Link* link) {
    return Until([&] { return link->Look().broken; });
  }

  std::unique_ptr<World> world_;
  std::map<Visitor, bool> ends_;  // their links end with their next frame
};

SharedBytes Filled(std::size_t size, int with) {
  SharedBytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes.data()[i] = static_cast<std::byte>(with + static_cast<int>(i % 7));
  }
  return bytes;
}
bool Same(const SharedBytes& a, const SharedBytes& b) {
  return a.size() == b.size() && std::equal(a.data(), a.data() + a.size(), b.data());
}

TEST_P(TransportTest, FramesArriveWholeOnceAndInOrder) {
  const std::unique_ptr<Link> link = Standing(5);
  constexpr std::size_t kSizes[] = {0, 1, 100, 1024, 1025, 512 << 10};
  for (int i = 0; i < 24; ++i) {
    const SharedBytes payload = Filled(kSizes[i % 6], i);
    Send(link.get(), "frame " + std::to_string(i), payload);
    const Got got = AwaitFrame();
    EXPECT_EQ(got.visitor, 5u);
    EXPECT_EQ(got.first, "frame " + std::to_string(i));
    EXPECT_TRUE(Same(got.payload, payload)) << i;
  }
  EXPECT_FALSE(Receive().has_value());
}

TEST_P(TransportTest, NothingIsReadBeforeTheLinkIsAdmitted) {
  const std::unique_ptr<Link> link = Open();
  const Transport::Knock knock = Await();
  Send(link.get(), "early", SharedBytes());
  for (int turn = 0; turn < 20; ++turn) world_->Turn();
  EXPECT_FALSE(Receive().has_value());
  EXPECT_FALSE(link->Look().stands);
  other().Answer(knock.id, 9);
  EXPECT_EQ(AwaitFrame().first, "early");
}

TEST_P(TransportTest, ARefusalIsTold) {
  const std::unique_ptr<Link> link = Open();
  other().Answer(Await().id, std::nullopt);
  EXPECT_TRUE(Breaks(link.get()));
  EXPECT_TRUE(link->Look().refused);
  EXPECT_FALSE(link->Look().stands);
  EXPECT_EQ(link->Send({}, SharedBytes()), Link::Sent::kBroken);
}

TEST_P(TransportTest, AKnockShowsWhatTheLinkShows) {
  const std::unique_ptr<Link> link = Open({.name = "who", .proof = "how"});
  const Transport::Knock knock = Await();
  EXPECT_EQ(knock.shown, (std::vector<std::string>{"who", "how"}));
  EXPECT_FALSE(knock.key);
  EXPECT_EQ(knock.local, std::string(GetParam().prefix) == "ipc://");
  EXPECT_FALSE(knock.address.empty());
}

TEST_P(TransportTest, KeysAreShownWhereTheyAreAskedFor) {
  const MeshKeyPair keys = Drawn();
  const MeshKeyPair others = Drawn();
  other().ShowKeys(true, others);
  const std::unique_ptr<Link> named = Open();
  EXPECT_TRUE(Breaks(named.get()));
  const std::unique_ptr<Link> wrong = Open({.server = keys.public_key, .own = &keys});
  const std::unique_ptr<Link> link = Open({.server = others.public_key, .own = &keys});
  const Transport::Knock knock = Await();
  EXPECT_TRUE(knock.key);
  const auto& bytes = keys.public_key.bytes;
  EXPECT_EQ(
      knock.shown,
      (std::vector<std::string>{{reinterpret_cast<const char*>(bytes.data()), bytes.size()}}));
  other().Answer(knock.id, 3);
  Send(link.get(), "sealed", SharedBytes());
  EXPECT_EQ(AwaitFrame().visitor, 3u);
  EXPECT_FALSE(wrong->Look().stands);
}

TEST_P(TransportTest, ALinkTakesSoManyFramesUntilTheyAreRead) {
  const std::unique_ptr<Link> link = Standing(1);
  const SharedBytes payload = Filled(512 << 10, 0);
  constexpr std::size_t kAll = 400;
  std::size_t taken = 0;
  int idle = 0;
  while (taken < kAll && idle < 200) {
    const bool took = link->Send(std::array<std::byte, 1>(), payload) == Link::Sent::kTaken;
    taken += took ? 1 : 0;
    idle = took ? 0 : idle + 1;
    if (!took) world_->Turn();
  }
  EXPECT_GE(taken, 1u);
  EXPECT_LT(taken, kAll);
  for (std::size_t i = 0; i < taken; ++i) EXPECT_EQ(AwaitFrame().payload.size(), payload.size());
  Send(link.get(), "more", payload);
  EXPECT_EQ(AwaitFrame().first, "more");
}

TEST_P(TransportTest, WhoReadsHasBytesOfItsOwn) {
  const std::unique_ptr<Link> link = Standing(1);
  const SharedBytes payload = Filled(100'000, 1);
  Send(link.get(), "one", payload);
  Send(link.get(), "two", payload);
  Got first = AwaitFrame();
  std::fill(first.payload.data(), first.payload.data() + first.payload.size(), std::byte{0});
  EXPECT_TRUE(Same(payload, Filled(100'000, 1)));
  EXPECT_TRUE(Same(AwaitFrame().payload, payload));
}

TEST_P(TransportTest, TheLinksOfAMemberEndTogether) {
  const std::unique_ptr<Link> one = Standing(1);
  const std::unique_ptr<Link> two = Standing(2);
  for (Link* link : {one.get(), two.get()}) {
    Send(link, "hello", SharedBytes());
    (void)AwaitFrame();
  }
  other().End(101);
  EXPECT_TRUE(Breaks(one.get()));
  Send(two.get(), "still", SharedBytes());
  EXPECT_EQ(AwaitFrame().first, "still");
  EXPECT_FALSE(two->Look().broken);
}

TEST_P(TransportTest, WhatIsFromNobodyEndsItsLinkAlone) {
  const std::unique_ptr<Link> one = Standing(1);
  const std::unique_ptr<Link> two = Standing(2);
  ends_[1] = true;
  Send(one.get(), "hello", SharedBytes());
  (void)AwaitFrame();
  EXPECT_TRUE(Breaks(one.get()));
  Send(two.get(), "still", SharedBytes());
  EXPECT_EQ(AwaitFrame().first, "still");
}

TEST_P(TransportTest, TheEndOfTheOtherProcessBreaksTheLink) {
  const std::unique_ptr<Link> link = Standing(1);
  world_->Kill(1);
  EXPECT_TRUE(Breaks(link.get()));
  EXPECT_FALSE(link->Look().refused);
}

TEST_P(TransportTest, WhatALinkHasTakenIsSentAfterItsEnd) {
  std::unique_ptr<Link> link = Standing(1);
  for (int i = 0; i < 4; ++i) Send(link.get(), std::to_string(i), Filled(100'000, i));
  link.reset();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(AwaitFrame().first, std::to_string(i));
}

TEST_P(TransportTest, WhereNobodyListensALinkBreaks) {
  const std::string gone = Endpoint();
  world_->Kill(1);
  const std::unique_ptr<Link> link =
      Open({.endpoint = gone, .name = "name", .proof = "proof", .connects = kSecond});
  EXPECT_TRUE(Breaks(link.get()));
  EXPECT_FALSE(link->Look().stands);
}

TEST_P(TransportTest, AnAnswerToALinkThatIsGoneMeansNothing) {
  std::unique_ptr<Link> link = Open();
  const Transport::Knock knock = Await();
  link.reset();
  for (int turn = 0; turn < 20; ++turn) world_->Turn();
  other().Answer(knock.id, 1);
  other().Answer(knock.id, 1);
  other().Answer(12345, std::nullopt);
  const std::unique_ptr<Link> next = Standing(2);
  Send(next.get(), "next", SharedBytes());
  EXPECT_EQ(AwaitFrame().visitor, 2u);
}

template <typename T>
std::unique_ptr<World> Make() {
  return std::make_unique<T>();
}

INSTANTIATE_TEST_SUITE_P(Each, TransportTest,
                         testing::Values(Way{"ZmqIpc", Make<Sockets>, "ipc://"},
                                         Way{"ZmqTcp", Make<Sockets>, "tcp://"},
                                         Way{"SimIpc", Make<Simulated>, "ipc://"},
                                         Way{"SimTcp", Make<Simulated>, "tcp://"}),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace prd
