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
  // Visitor N is member 100 + N, if members_ does not say otherwise.
  std::optional<Got> Receive() {
    Transport::Arrival arrival;
    if (!other().Receive(&arrival)) return std::nullopt;
    Got got{arrival.visitor,
            {reinterpret_cast<const char*>(arrival.first.data()), arrival.first.size()},
            std::move(arrival.payload)};
    EXPECT_TRUE(arrival.whole);
    const auto member = members_.find(got.visitor);
    other().Attribute(member != members_.end() ? member->second : got.visitor + 100);
    return got;
  }
  Got AwaitFrame() {
    std::optional<Got> got;
    EXPECT_TRUE(Until([&] { return (got = Receive()).has_value(); }));
    return got.value_or(Got());
  }
  // For what may or may not come.
  void Turns() {
    for (int turn = 0; turn < 20; ++turn) world_->Turn();
  }
  bool HasOpen(std::size_t links) {
    return Until([&] { return other().counters().open == links; });
  }
  // What an owner does whenever its transport wakes it: some ends need it.
  bool BreaksWhileServed(Link* link) {
    return Until([&] {
      EXPECT_FALSE(other().TakeKnock().has_value());
      EXPECT_FALSE(Receive().has_value());
      return link->Look().broken;
    });
  }
  bool Breaks(Link* link) {
    return Until([&] { return link->Look().broken; });
  }

  std::unique_ptr<World> world_;
  std::map<Visitor, Incarnation> members_;  // 0: its link ends with its next frame
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
  EXPECT_TRUE(Breaks(wrong.get()));
  EXPECT_FALSE(wrong->Look().stands);
  EXPECT_FALSE(other().TakeKnock().has_value()) << "of a link that shows no key, or to another one";
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
  EXPECT_FALSE(link->Delivered());
  for (std::size_t i = 0; i < taken; ++i) EXPECT_EQ(AwaitFrame().payload.size(), payload.size());
  Send(link.get(), "more", payload);
  EXPECT_EQ(AwaitFrame().first, "more");
  EXPECT_TRUE(Until([&] { return link->Delivered(); }));
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
  members_[1] = 0;
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

TEST_P(TransportTest, FramesOnTheirWayTogetherKeepTheirOrder) {
  const std::unique_ptr<Link> link = Standing(5);
  constexpr std::size_t kSizes[] = {0, 10, 512 << 10, 1024, 100, 1025, 64 << 10, 1};
  constexpr int kAll = 100;
  int sent = 0;
  int came = 0;
  EXPECT_TRUE(Until([&] {
    while (sent < kAll) {
      const auto number = static_cast<std::byte>(sent);
      if (link->Send({&number, 1}, Filled(kSizes[sent % 8], sent)) != Link::Sent::kTaken) break;
      ++sent;
    }
    while (const std::optional<Got> got = Receive()) {
      EXPECT_EQ(got->first, std::string(1, static_cast<char>(came)));
      EXPECT_TRUE(Same(got->payload, Filled(kSizes[came % 8], came))) << came;
      ++came;
    }
    return came >= kAll;
  }));
  Turns();
  EXPECT_FALSE(Receive().has_value()) << "one came twice";
}

TEST_P(TransportTest, EachFrameHasTheVisitorOfItsLink) {
  constexpr Visitor kGreatest = ~Visitor{0};
  const std::unique_ptr<Link> one = Standing(kGreatest);
  const std::unique_ptr<Link> two = Standing(2);
  members_[kGreatest] = 99;
  for (int i = 0; i < 3; ++i) {
    Send(one.get(), "one", Filled(2000, i));
    Send(two.get(), "two", SharedBytes());
  }
  for (int i = 0; i < 6; ++i) {
    const Got got = AwaitFrame();
    EXPECT_EQ(got.visitor, got.first == "one" ? kGreatest : 2u);
  }
}

TEST_P(TransportTest, LinksGoBothWaysAtOnce) {
  const std::unique_ptr<Link> there = Standing(1);
  std::swap(world_->transports[0], world_->transports[1]);
  const std::unique_ptr<Link> back = Standing(2);
  Send(back.get(), "back", SharedBytes());
  EXPECT_EQ(AwaitFrame().first, "back");
  std::swap(world_->transports[0], world_->transports[1]);
  Send(there.get(), "there", SharedBytes());
  const Got got = AwaitFrame();
  EXPECT_EQ(got.first, "there");
  EXPECT_EQ(got.visitor, 1u);
}

TEST_P(TransportTest, EachLinkKnocksOnce) {
  const std::unique_ptr<Link> one = Open({.name = "one", .proof = "proof"});
  const Transport::Knock first = Await();
  const std::unique_ptr<Link> two = Open({.name = "two", .proof = "proof"});
  const Transport::Knock second = Await();
  EXPECT_EQ(first.shown.front() + second.shown.front(), "onetwo");
  EXPECT_NE(first.id, second.id);
  Turns();
  EXPECT_FALSE(other().TakeKnock().has_value());
  other().Answer(second.id, 2);
  EXPECT_TRUE(Until([&] { return two->Look().stands; }));
  EXPECT_FALSE(one->Look().stands);
}

TEST_P(TransportTest, NothingOfARefusedLinkIsRead) {
  const std::unique_ptr<Link> link = Open();
  const Transport::Knock knock = Await();
  Send(link.get(), "bad", Filled(2000, 1));
  other().Answer(knock.id, std::nullopt);
  EXPECT_TRUE(Breaks(link.get()));
  Turns();
  EXPECT_FALSE(Receive().has_value());
  EXPECT_TRUE(HasOpen(0));
}

TEST_P(TransportTest, ALinkTakesFramesThatNobodyReadsYet) {
  for (const Purpose purpose : {Purpose::kData, Purpose::kSignals}) {
    const std::unique_ptr<Link> link = Open({.purpose = purpose, .name = "name", .proof = "proof"});
    other().Answer(Await().id, 1);
    ASSERT_TRUE(Until([&] { return link->Look().stands; }));
    const int most = purpose == Purpose::kData ? Transport::kFrames : Transport::kSignals;
    for (int i = 0; i < most; ++i) {
      const SharedBytes number(&i, sizeof i);
      ASSERT_EQ(link->Send(std::array<std::byte, 1>(), number), Link::Sent::kTaken) << i;
    }
    for (int i = 0; i < most; ++i) {
      ASSERT_TRUE(Same(AwaitFrame().payload, SharedBytes(&i, sizeof i))) << i;
    }
  }
}

TEST_P(TransportTest, AllLinksOfAMemberEndAndNewOnesMayCome) {
  members_ = {{1, 7}, {2, 7}};
  const std::unique_ptr<Link> one = Standing(1);
  const std::unique_ptr<Link> two = Standing(2);
  const std::unique_ptr<Link> others = Standing(3);
  for (Link* link : {one.get(), two.get(), others.get()}) {
    Send(link, "hello", SharedBytes());
    (void)AwaitFrame();
  }
  other().End(7);
  EXPECT_TRUE(Breaks(one.get()));
  EXPECT_TRUE(Breaks(two.get()));
  EXPECT_TRUE(HasOpen(1));
  members_[4] = 7;
  const std::unique_ptr<Link> again = Standing(4);
  for (Link* link : {again.get(), others.get()}) {
    Send(link, "still", SharedBytes());
    EXPECT_EQ(AwaitFrame().first, "still");
    EXPECT_FALSE(link->Look().broken);
  }
}

TEST_P(TransportTest, OpenLinksAreCountedUntilTheirEnd) {
  EXPECT_EQ(other().counters().open, 0u);
  std::unique_ptr<Link> one = Standing(1);
  std::unique_ptr<Link> two = Standing(2);
  EXPECT_TRUE(HasOpen(2));
  one.reset();
  EXPECT_TRUE(HasOpen(1));
  Send(two.get(), "two", SharedBytes());
  EXPECT_EQ(AwaitFrame().first, "two");
  two.reset();
  EXPECT_TRUE(HasOpen(0));
}

TEST_P(TransportTest, LinksOfTheOtherKindEnd) {
  const MeshKeyPair keys = Drawn();
  const MeshKeyPair others = Drawn();
  const Opening shows_key{.server = others.public_key, .own = &keys};
  const std::unique_ptr<Link> named = Standing(1);
  other().ShowKeys(true, others);
  EXPECT_TRUE(BreaksWhileServed(named.get()));
  const std::unique_ptr<Link> keyed = Open(shows_key);
  other().Answer(Await().id, 3);
  EXPECT_TRUE(Until([&] { return keyed->Look().stands; }));
  other().ShowKeys(true, others);
  Send(keyed.get(), "the same kind", SharedBytes());
  EXPECT_EQ(AwaitFrame().visitor, 3u);

  other().ShowKeys(false, others);
  EXPECT_TRUE(BreaksWhileServed(keyed.get()));
  const std::unique_ptr<Link> late = Open(shows_key);
  EXPECT_TRUE(BreaksWhileServed(late.get()));
  EXPECT_FALSE(other().TakeKnock().has_value());
  const std::unique_ptr<Link> again = Standing(4);
  other().ShowKeys(false, others);
  Send(again.get(), "again", SharedBytes());
  EXPECT_EQ(AwaitFrame().visitor, 4u);
}

TEST_P(TransportTest, LinksOfTheOtherKindThatWaitForAnAnswerEnd) {
  const std::unique_ptr<Link> link = Open();
  const Transport::Knock knock = Await();
  other().ShowKeys(true, Drawn());
  other().Answer(knock.id, 2);
  EXPECT_TRUE(BreaksWhileServed(link.get()));
  EXPECT_TRUE(HasOpen(0));
}

TEST_P(TransportTest, LinksThatShowKeysAreRefusedAndEndedAsOthers) {
  const MeshKeyPair keys = Drawn();
  const MeshKeyPair others = Drawn();
  const Opening opening{.server = others.public_key, .own = &keys};
  other().ShowKeys(true, others);
  const std::unique_ptr<Link> refused = Open(opening);
  other().Answer(Await().id, std::nullopt);
  EXPECT_TRUE(Breaks(refused.get()));
  EXPECT_TRUE(refused->Look().refused);
  std::vector<std::unique_ptr<Link>> links;
  for (Visitor visitor = 1; visitor <= 3; ++visitor) {
    links.push_back(Open(opening));
    other().Answer(Await().id, visitor);
    Send(links.back().get(), "hello", Filled(70'000, 1));
    EXPECT_EQ(AwaitFrame().visitor, visitor);
  }
  other().End(101);
  EXPECT_TRUE(Breaks(links[0].get()));
  members_[2] = 0;
  Send(links[1].get(), "of nobody", SharedBytes());
  (void)AwaitFrame();
  EXPECT_TRUE(Breaks(links[1].get()));
  Send(links[2].get(), "still", SharedBytes());
  EXPECT_EQ(AwaitFrame().visitor, 3u);
}

TEST_P(TransportTest, ALinkThatIsNotAdmittedInTimeBreaks) {
  const std::unique_ptr<Link> link =
      Open({.name = "name", .proof = "proof", .admits = 100 * kMillisecond});
  const Transport::Knock knock = Await();
  EXPECT_TRUE(Breaks(link.get()));
  EXPECT_FALSE(link->Look().refused) << "nobody has answered";
  other().Answer(knock.id, 1);
  EXPECT_TRUE(HasOpen(0));
  EXPECT_FALSE(link->Look().stands);
}

TEST_P(TransportTest, ALinkThatIsGoneBeforeItsAnswerIsNotOpen) {
  std::unique_ptr<Link> link = Open();
  const Transport::Knock knock = Await();
  link.reset();
  Turns();
  other().Answer(knock.id, 1);
  EXPECT_TRUE(HasOpen(0));
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
