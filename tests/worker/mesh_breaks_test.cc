// Connections between hosts break while data is on its way, and can be replaced: reductions and
// copies go on. A frame that comes twice counts once.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/prng.h"
#include "tests/plans.h"
#include "tests/worker/mesh_job.h"
#include "worker/mesh/arrivals.h"
#include "worker/mesh/peers.h"

namespace prd::mesh_breaks_test {
namespace {

using testing::Fill;
using testing::MeshJob;
using testing::MeshNow;

// ---- what has come ----

FrameHeader Numbered(std::uint64_t stream, std::uint64_t number, std::uint64_t length = 0) {
  return {.from = 7, .length = length, .stream = stream, .number = number};
}

TEST(ArrivalsTest, WhatComesTwiceCountsOnce) {
  Arrivals arrivals;
  const Instant now{kSecond};
  EXPECT_TRUE(arrivals.Take(now, Numbered(3, 1)));
  EXPECT_TRUE(arrivals.Take(now, Numbered(3, 2)));
  EXPECT_FALSE(arrivals.Take(now, Numbered(3, 1)));
  EXPECT_FALSE(arrivals.Take(now, Numbered(3, 2)));
  EXPECT_TRUE(arrivals.Take(now, Numbered(8, 1))) << "another stream";
  EXPECT_FALSE(arrivals.Take(now, Numbered(3, 2))) << "the old one's, late";
  FrameHeader other = Numbered(3, 1);
  other.from = 9;
  EXPECT_TRUE(arrivals.Take(now, other));
}

TEST(ArrivalsTest, ANumberThatIsMissingIsAFrameThatIsLost) {
  Arrivals arrivals;
  const Instant now{kSecond};
  EXPECT_FALSE(arrivals.Misses(Numbered(3, 1)));
  EXPECT_TRUE(arrivals.Misses(Numbered(3, 2))) << "of a sender that was not heard before";
  ASSERT_TRUE(arrivals.Take(now, Numbered(3, 1)));
  EXPECT_FALSE(arrivals.Misses(Numbered(3, 1))) << "it has come before";
  EXPECT_FALSE(arrivals.Misses(Numbered(3, 2)));
  EXPECT_TRUE(arrivals.Misses(Numbered(3, 3)));
  EXPECT_TRUE(arrivals.Misses(Numbered(4, 2))) << "of a new stream";
  for (std::uint64_t stream = 5; stream < 4 + Arrivals::kStreams; ++stream) {
    ASSERT_TRUE(arrivals.Take(now, Numbered(stream, 1)));
  }
  EXPECT_FALSE(arrivals.Misses(Numbered(2, 9))) << "of a stream that is remembered no more";
}

TEST(ArrivalsTest, TheNewestStreamsOfASenderAreRemembered) {
  Arrivals arrivals;
  const Instant now{kSecond};
  for (std::uint64_t stream = 2; stream <= 1 + Arrivals::kStreams; ++stream) {
    EXPECT_TRUE(arrivals.Take(now, Numbered(stream, 1)));
  }
  EXPECT_TRUE(arrivals.Take(now, Numbered(1, 1)));
  EXPECT_TRUE(arrivals.Take(now, Numbered(1, 1))) << "older than all that are remembered";
  EXPECT_FALSE(arrivals.Take(now, Numbered(2, 1)));
  EXPECT_TRUE(arrivals.Take(now, Numbered(99, 1)));
  EXPECT_TRUE(arrivals.Take(now, Numbered(2, 1))) << "99 has taken its place";
}

TEST(ArrivalsTest, IsAcknowledgedAfterAWhileOrMuch) {
  Arrivals arrivals;
  const Instant now{kSecond};
  EXPECT_FALSE(arrivals.NextDeadline().has_value());
  ASSERT_TRUE(arrivals.Take(now, Numbered(3, 1, 100)));
  ASSERT_TRUE(arrivals.Take(now + 1, Numbered(3, 2, 100)));
  ASSERT_EQ(arrivals.NextDeadline(), now + Arrivals::kTellAfter);
  EXPECT_TRUE(arrivals.TakeDue(now + Arrivals::kTellAfter - 1).empty());
  const auto due = arrivals.TakeDue(now + Arrivals::kTellAfter);
  ASSERT_EQ(due.size(), 1u);
  EXPECT_EQ(due[0].to, 7u);
  EXPECT_EQ(due[0].stream, 3u);
  EXPECT_EQ(due[0].number, 2u);
  EXPECT_FALSE(arrivals.NextDeadline().has_value());
  EXPECT_TRUE(arrivals.TakeDue(now + kSecond).empty());

  ASSERT_TRUE(arrivals.Take(now, Numbered(4, 1)));
  ASSERT_TRUE(arrivals.Take(now, Numbered(3, 3, Arrivals::kTellBytes)));
  const auto much = arrivals.TakeDue(now);
  ASSERT_EQ(much.size(), 1u);
  EXPECT_EQ(much[0].number, 3u);
  // Also where nothing was new: what said so before may have been lost.
  ASSERT_FALSE(arrivals.Take(now, Numbered(3, 3, 10)));
  EXPECT_EQ(arrivals.TakeDue(now + Arrivals::kTellAfter).size(), 2u);
}

// ---- links that say late that they are broken ----

// A transport of links that do as they are told.
class Told : public Transport {
 public:
  struct Wire {
    Link::State state;
    Link::Sent next = Link::Sent::kTaken;
    int sent = 0;
    bool delivered = true;
  };
  class Line : public Link {
   public:
    explicit Line(Wire* wire) : wire_(wire) {}
    Sent Send(std::span<const std::byte>, const SharedBytes&) override {
      if (wire_->next == Sent::kBroken) wire_->state.broken = true;
      wire_->sent += wire_->next == Sent::kTaken ? 1 : 0;
      return wire_->next;
    }
    State Look() override { return wire_->state; }
    bool Delivered() override { return wire_->delivered; }

   private:
    Wire* wire_;
  };
  const std::vector<std::string>& endpoints() const override { return none_; }
  Result<std::unique_ptr<Link>> Open(const Opening&) override {
    return std::unique_ptr<Link>(std::make_unique<Line>(&wires.emplace_back()));
  }
  void ShowKeys(bool, const MeshKeyPair&) override {}
  std::optional<Knock> TakeKnock() override { return std::nullopt; }
  void Answer(std::uint64_t, std::optional<std::uint64_t>) override {}
  bool Receive(Arrival*) override { return false; }
  void Attribute(Incarnation) override {}
  void End(Incarnation) override {}
  void Allow(std::size_t, std::uint64_t) override {}
  Counters counters() const override { return {}; }

  std::deque<Wire> wires;  // all that were opened

 private:
  std::vector<std::string> none_;
};

class PeersTest : public ::testing::Test {
 protected:
  static constexpr const char* kThere = "tcp://192.0.2.1:7";
  PeersTest() {
    directory_.Join(1, 5);
    const GroupMember member{.rank = 2,
                             .incarnation = 2,
                             .weight = 1,
                             .host = "there",
                             .endpoints = {kThere},
                             .mesh_key = testing::AnyMeshKey()};
    directory_.Announce(member);
    peers_.Join(MeshSecurity::kNone);
    peers_.Introduce(member);
    EXPECT_TRUE(peers_.Use(kThere).ok());
    transport_.wires[0].state.stands = true;
    EXPECT_TRUE(peers_.Service(now_).empty());
    Send();
    EXPECT_EQ(transport_.wires[0].sent, 1);
    now_ = now_ + 2 * Peers::kReconnect;
  }
  void Send() { peers_.Send(kThere, {.kind = FrameKind::kRing, .to = 2}, SharedBytes(8)); }
  // Another link has been made, and takes all that was not acknowledged.
  void ExpectResumed(int frames) {
    ASSERT_EQ(transport_.wires.size(), 2u);
    transport_.wires[1].state.stands = true;
    EXPECT_TRUE(peers_.Service(now_).empty());
    EXPECT_EQ(transport_.wires[1].sent, frames);
    EXPECT_EQ(peers_.resumed(), 1u);
  }

  Told transport_;
  Directory directory_{testing::DrawnKeys()};
  Peers peers_{&transport_, "here", &directory_};
  Instant now_{kSecond};
};

TEST_F(PeersTest, ALinkThatBreaksWhileAFrameIsSentIsReplaced) {
  transport_.wires[0].next = Link::Sent::kFull;
  Send();
  transport_.wires[0].next = Link::Sent::kBroken;
  EXPECT_TRUE(peers_.Service(now_).empty());
  ExpectResumed(2);
}

TEST_F(PeersTest, ABreakThatASendShowsIsDueAtOnce) {
  transport_.wires[0].next = Link::Sent::kBroken;
  EXPECT_NE(peers_.NextDeadline(), Instant{0});
  Send();
  EXPECT_EQ(peers_.NextDeadline(), Instant{0});
  EXPECT_TRUE(peers_.Service(now_).empty());
  ExpectResumed(2);
}

// Both breaks fall into times of use, which are far apart. Nobody looks between them.
TEST_F(PeersTest, ABreakLongAgoDoesNotCount) {
  peers_.Acknowledged(kThere, 1, 1);
  transport_.wires[0].state.broken = true;
  EXPECT_TRUE(peers_.Service(now_).empty());
  ASSERT_EQ(transport_.wires.size(), 2u);
  peers_.Rest();
  transport_.wires[1].state.stands = true;
  now_ = now_ + 2 * Peers::kReconnect;
  EXPECT_TRUE(peers_.Service(now_).empty());
  ASSERT_TRUE(peers_.Use(kThere).ok());
  Send();
  EXPECT_TRUE(peers_.Service(now_).empty());
  EXPECT_EQ(transport_.wires[1].sent, 1);
  transport_.wires[1].state.broken = true;
  EXPECT_TRUE(peers_.Service(now_ + 1).empty());
  EXPECT_EQ(transport_.wires.size(), 3u);
}

TEST_F(PeersTest, WhatIsAskedForAgainIsDueAtOnce) {
  peers_.SendAgain(now_, kThere);
  EXPECT_EQ(peers_.NextDeadline(), Instant{0});
  EXPECT_TRUE(peers_.Service(now_).empty());
  ExpectResumed(1);
  // Not again and again.
  peers_.SendAgain(now_, kThere);
  EXPECT_TRUE(peers_.Service(now_).empty());
  EXPECT_EQ(transport_.wires.size(), 2u);
}

TEST_F(PeersTest, WhoeverMayHaveLostFramesAsksUntilItIsAnswered) {
  using Questions = std::vector<std::pair<Incarnation, std::uint64_t>>;
  EXPECT_EQ(peers_.TakeSpoiled(now_), Questions());
  peers_.SetSpoiled(now_, 2, 5);
  EXPECT_EQ(peers_.TakeSpoiled(now_), Questions()) << "the next frame may be whole";
  ASSERT_TRUE(peers_.NextDeadline());
  now_ = *peers_.NextDeadline();
  EXPECT_EQ(peers_.TakeSpoiled(now_), (Questions{{2, 1}}));
  EXPECT_EQ(peers_.TakeSpoiled(now_), Questions()) << "the answer is on its way";
  now_ = now_ + kSecond;
  EXPECT_EQ(peers_.TakeSpoiled(now_), (Questions{{2, 1}})) << "the question or its answer is lost";

  peers_.SetSpoiled(now_, 2, 5);
  peers_.NothingLost(2, 1);
  now_ = now_ + kSecond;
  EXPECT_EQ(peers_.TakeSpoiled(now_), (Questions{{2, 2}})) << "that was answered before";
  peers_.NothingLost(2, 2);
  now_ = now_ + kSecond;
  EXPECT_EQ(peers_.TakeSpoiled(now_), Questions());

  peers_.SetSpoiled(now_, 2, 5);
  peers_.ClearSpoiled(2, 4);
  now_ = now_ + kSecond;
  EXPECT_EQ(peers_.TakeSpoiled(now_), (Questions{{2, 3}})) << "an older connection is whole";
  peers_.ClearSpoiled(2, 5);
  now_ = now_ + kSecond;
  EXPECT_EQ(peers_.TakeSpoiled(now_), Questions());
}

// All has come to its host, and it still waits: what it waits for may have come as something else.
TEST_F(PeersTest, APeerThatWaitsForWhatHasComeIsSentItAgain) {
  const auto links_after = [&](DurationNs time) {
    now_ = now_ + time;
    peers_.Asked(now_, kThere);
    EXPECT_TRUE(peers_.Service(now_).empty());
    transport_.wires.back().state.stands = true;
    EXPECT_TRUE(peers_.Service(now_).empty());
    return transport_.wires.size();
  };
  EXPECT_EQ(links_after(0), 1u);
  EXPECT_EQ(links_after(kSecond - 1), 1u) << "it may tell of it yet";
  EXPECT_EQ(links_after(1), 2u);
  EXPECT_EQ(transport_.wires[1].sent, 1);
  // A link that is slow.
  transport_.wires[1].delivered = false;
  EXPECT_EQ(links_after(kSecond), 2u);
  EXPECT_EQ(links_after(20 * kSecond), 2u);
  transport_.wires[1].delivered = true;
  EXPECT_EQ(links_after(kSecond), 2u);
  peers_.Acknowledged(kThere, 1, 1);
  EXPECT_EQ(links_after(20 * kSecond), 2u) << "nothing is owed";
  Send();
  EXPECT_EQ(links_after(0), 2u);
  EXPECT_EQ(links_after(kSecond), 3u);
}

TEST_F(PeersTest, WhatIsNotAcknowledgedIsOwed) {
  EXPECT_TRUE(peers_.Owes(kThere));
  EXPECT_FALSE(peers_.Owes("tcp://elsewhere:1"));
}

// ---- meshes ----

// Connections over tcp that this process has with itself: one end each.
std::vector<int> Connections() {
  std::vector<int> found;
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_in other{};
    socklen_t size = sizeof other;
    const bool connected = ::getpeername(fd, reinterpret_cast<sockaddr*>(&other), &size) == 0;
    if (connected && other.sin_family == AF_INET) found.push_back(fd);
  }
  return found;
}
// Both ends see it reset, and what is on its way is lost.
void Break(int connection) {
  sockaddr nowhere{};
  nowhere.sa_family = AF_UNSPEC;
  (void)::connect(connection, &nowhere, sizeof nowhere);
}

class MeshBreaksTest : public ::testing::TestWithParam<std::tuple<MeshSecurity, std::size_t>> {
 protected:
  static constexpr std::size_t kWorkers = 4;
  static constexpr std::uint64_t kResumed = 5;

  MeshBreaksTest() : job_(0, {{DType::kF32, std::get<1>(GetParam())}}, plans::kModels, Options()) {
    for (std::size_t w = 0; w < kWorkers; ++w) job_.AddApart();
    for (std::size_t w = 0; w < kWorkers; ++w) {
      job_[w].mesh().JoinRun(1, plans::kModels, 20 * kSecond,
                             {.security = std::get<0>(GetParam())});
      all_.push_back(w);
    }
  }
  static Mesh::Options Options() {
    Mesh::Options options;
    options.chunk_bytes = 64 << 10;
    return options;
  }
  std::uint64_t Resumed() {
    std::uint64_t resumed = 0;
    for (const std::size_t w : all_) resumed += job_[w].mesh().counters().resumed;
    return resumed;
  }

  void BreakOne() {
    const std::vector<int> connections = Connections();
    if (connections.empty()) return;
    Break(connections[random_.Below(connections.size())]);
    broke_ = MeshNow();
  }
  // A connection that breaks again and again before anything is acknowledged is lost in the end.
  void Rest() {
    while (MeshNow() - broke_ < 100 * kMillisecond) {
      (void)job_.RunUntil([] { return true; });
      (void)::poll(nullptr, 0, 1);
    }
  }

  MeshJob job_;
  Instant broke_;
  std::vector<std::size_t> all_;
  Prng random_{5};
};

TEST_P(MeshBreaksTest, ReductionsGoOnOverConnectionsThatBreak) {
  for (int round = 0; round < 10 || (Resumed() < kResumed && round < 100); ++round) {
    Rest();
    for (const std::size_t w : all_) {
      Fill(&job_[w].parameters, [&] { return static_cast<double>(w + 1 + round); });
    }
    const std::vector<double> weights(kWorkers, 1.0 / kWorkers);
    const Group group = job_.MakeGroup(GroupKind::kTrain, round + 1, all_, weights);
    for (const std::size_t w : all_) job_.Start(w, group);
    // At a turn that is different each time; the first round makes the connections.
    int turn = static_cast<int>(random_.Below(std::get<1>(GetParam()) < 10'000 ? 4 : 40));
    const bool over = job_.RunUntil([&] {
      if (round > 0 && turn-- == 0) BreakOne();
      return std::all_of(all_.begin(), all_.end(),
                         [&](std::size_t w) { return job_[w].node->reduced.has_value(); });
    });
    ASSERT_TRUE(over) << "round " << round;
    for (const std::size_t w : all_) {
      const auto& reduced = *job_[w].node->reduced;
      ASSERT_TRUE(reduced.status.ok()) << reduced.status.ToString() << " in round " << round;
      ASSERT_EQ(job_[w].parameters[0].Get(0), 2.5 + round);
      ASSERT_EQ(job_[w].parameters[0].Get(job_[w].parameters[0].size() - 1), 2.5 + round);
    }
  }
  EXPECT_GE(Resumed(), kResumed) << "connections break too seldom to tell anything";
}

// A copy of a replica comes in many frames, of which most wait at its source.
TEST_P(MeshBreaksTest, ACopyGoesOnOverAConnectionThatBreaks) {
  for (int round = 0; round < 10; ++round) {
    Rest();
    Fill(&job_[0].parameters, [&] { return 1.0 + round; });
    int turn = static_cast<int>(random_.Below(round == 0 ? 1 : 30));
    job_.StartFetch(1, 0);
    const bool over = job_.RunUntil([&] {
      if (round > 0 && turn-- == 0) BreakOne();
      return job_[1].node->fetched.has_value();
    });
    ASSERT_TRUE(over) << "round " << round;
    const Status& status = job_[1].node->fetched->status;
    ASSERT_TRUE(status.ok()) << status.ToString() << " in round " << round;
    ASSERT_EQ(ValuesOf(job_[1].parameters), ValuesOf(job_[0].parameters));
  }
}

TEST_P(MeshBreaksTest, WhoIsGoneIsNamed) {
  const std::vector<double> weights(kWorkers, 1.0 / kWorkers);
  job_.ReduceOk(GroupKind::kTrain, 1, all_, weights);
  const Group group = job_.MakeGroup(GroupKind::kTrain, 2, all_, weights);
  const Rank gone = group.members.get()[2].rank;
  for (const std::size_t w : {0, 1, 3}) job_.Start(w, group);
  job_[2].node.reset();
  bool named = false;
  for (const Status& status : job_.Finish({0, 1, 3})) EXPECT_FALSE(status.ok());
  for (const std::size_t w : {0, 1, 3}) {
    const std::vector<Rank>& unreachable = job_[w].node->reduced->unreachable;
    named = named || unreachable == std::vector<Rank>{gone};
  }
  EXPECT_TRUE(named);
}

// Small rows go directly, large ones around the ring in many chunks. Each is sealed its own way.
INSTANTIATE_TEST_SUITE_P(OfEachSecurity, MeshBreaksTest,
                         ::testing::Values(std::tuple(MeshSecurity::kNone, 1'000'000),
                                           std::tuple(MeshSecurity::kAead, 1000),
                                           std::tuple(MeshSecurity::kAead, 1'000'000),
                                           std::tuple(MeshSecurity::kCurve, 1'000'000)));

}  // namespace
}  // namespace prd::mesh_breaks_test
