// Silence in groups: who is asked, who answers, and what becomes of the group. In a time of the
// tests' own.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/plans.h"
#include "tests/worker/mesh_job.h"
#include "worker/mesh/fetch.h"

namespace prd::mesh_silence_test {
namespace {

using testing::MeshJob;
using testing::MeshNode;
using testing::MeshNow;
using testing::Shapes;
using testing::ValuesOf;

constexpr Plan kWaits = plans::kAhead;
constexpr Plan kAtOnce = plans::Background(0, Membership::kAhead);

constexpr DurationNs kTimeout = 30 * kSecond;
constexpr DurationNs kThird = kTimeout / 3 + kMillisecond;

const Shapes kModel = {{DType::kF32, 3000}};
constexpr std::uint64_t kShardChunks = 4;  // of a third of it

Mesh::Options ByRing() {
  Mesh::Options options;
  options.timeout = kTimeout;
  options.chunk_bytes = 1024;
  options.direct_bytes = 0;
  return options;
}

Mesh::Options Directly() {
  Mesh::Options options = ByRing();
  options.direct_bytes = 1 << 20;
  return options;
}

class Silence {
 public:
  Silence(std::size_t workers, const Plan& plan, const Mesh::Options& options)
      : job(workers, kModel, plan, options) {}

  // Services these meshes, while the clock stands, until it holds; false after 20 s of the wall's.
  bool Until(const std::vector<std::size_t>& awake, const std::function<bool()>& holds) {
    const Instant give_up = MeshNow() + 20 * kSecond;
    std::vector<zmq::pollitem_t> items;
    for (;;) {
      items.clear();
      for (const std::size_t w : awake) {
        job[w].mesh().Service(now);
        job[w].node->AppendPollItems(&items);
      }
      if (holds()) return true;
      if (MeshNow() >= give_up) return false;
      zmq::poll(items, std::chrono::milliseconds(1));
    }
  }

  // Services them for some turns, for what may or may not come.
  void Turns(const std::vector<std::size_t>& awake) {
    int turns = 0;
    (void)Until(awake, [&] { return ++turns > 20; });
  }

  // Until so many frames have come to these.
  [[nodiscard]] bool Come(const std::vector<std::size_t>& awake, std::uint64_t frames) {
    const std::uint64_t before = Heard(awake);
    return Until(awake, [&] { return Heard(awake) >= before + frames; });
  }
  // A third of the timeout later; until these have heard so many questions and answers.
  [[nodiscard]] bool Third(const std::vector<std::size_t>& awake, std::uint64_t frames) {
    now = now + kThird;
    return Come(awake, frames);
  }

  Group Announce(const std::vector<std::size_t>& members) {
    return job.MakeGroup(
        GroupKind::kTrain, 0, members,
        std::vector<double>(members.size(), 1.0 / static_cast<double>(members.size())));
  }
  void Start(std::size_t worker, const Group& group) {
    job[worker].node->reduced.reset();
    job[worker].mesh().StartReduce(now, group, job.WhatReduces(group.kind));
  }
  // What a worker has heard of its peers' meshes.
  std::uint64_t Heard(std::size_t worker) { return job[worker].mesh().counters().received; }
  std::uint64_t Heard(const std::vector<std::size_t>& workers) {
    std::uint64_t heard = 0;
    for (const std::size_t w : workers) heard += Heard(w);
    return heard;
  }
  const std::optional<MeshNode::Reduced>& reduced(std::size_t worker) {
    return job[worker].node->reduced;
  }

  MeshJob job;
  Instant now = MeshNow();
};

TEST(MeshSilenceTest, AMemberThatComputesForManyTimeoutsIsWaitedFor) {
  for (const Plan& plan : {kWaits, kAtOnce}) {
    for (const Mesh::Options& options : {ByRing(), Directly()}) {
      Silence silence(3, plan, options);
      const Group group = silence.Announce({0, 1, 2});
      silence.Start(0, group);
      silence.Start(1, group);
      ASSERT_TRUE(silence.Come({0, 1, 2}, options.direct_bytes == 0 ? kShardChunks : 2));
      for (int third = 0; third < 30; ++third) {
        // Both others ask the one whom they wait for, and are answered.
        ASSERT_TRUE(silence.Third({0, 1, 2}, 4));
        ASSERT_FALSE(silence.reduced(0) || silence.reduced(1));
      }
      silence.Start(2, group);
      ASSERT_TRUE(silence.Until({0, 1, 2}, [&] {
        return silence.reduced(0) && silence.reduced(1) && silence.reduced(2);
      }));
      for (std::size_t w = 0; w < 3; ++w) {
        EXPECT_TRUE(silence.reduced(w)->status.ok()) << silence.reduced(w)->status.ToString();
      }
    }
  }
}

// In groups that go through a tree, too, where most members do not know one another.
TEST(MeshSilenceTest, ALargeGroupWaitsForOneOfItsMembers) {
  Silence silence(12, kWaits, Directly());
  std::vector<std::size_t> all;
  for (std::size_t w = 0; w < 12; ++w) all.push_back(w);
  for (const std::size_t late : {0, 1, 11}) {
    const Group group = silence.Announce(all);
    for (const std::size_t w : all) {
      if (w != late) silence.Start(w, group);
    }
    // What goes up the tree as far as it gets: to place 0 from 1 to 8, to place 1 from 9 to 11.
    ASSERT_TRUE(silence.Come(all, late == 0 ? 3 : late == 1 ? 7 : 9));
    for (int third = 0; third < 8; ++third) {
      // All ask their parents, which are not through; and those above the late one ask down to it.
      ASSERT_TRUE(silence.Third(all, 2 * (late == 11 ? 12 : 11)));
      for (const std::size_t w : all) ASSERT_FALSE(w != late && silence.reduced(w));
    }
    silence.Start(late, group);
    ASSERT_TRUE(silence.Until(all, [&] {
      return std::all_of(all.begin(), all.end(),
                         [&](std::size_t w) { return silence.reduced(w).has_value(); });
    }));
    for (const std::size_t w : all) EXPECT_TRUE(silence.reduced(w)->status.ok());
  }
}

// Its process stands still: nobody answers for it.
TEST(MeshSilenceTest, AStoppedProcessFailsTheGroupWithinTheTimeout) {
  for (const Mesh::Options& options : {ByRing(), Directly()}) {
    for (const bool begun : {false, true}) {
      Silence silence(3, kWaits, options);
      const Group group = silence.Announce({0, 1, 2});
      silence.Start(0, group);
      silence.Start(1, group);
      if (begun) silence.Start(2, group);
      ASSERT_TRUE(silence.Come({0, 1}, options.direct_bytes == 0 ? kShardChunks : 2));
      for (int third = 0; third < 2; ++third) {
        // Around the ring the second one waits for the first, which answers.
        ASSERT_TRUE(silence.Third({0, 1}, options.direct_bytes == 0 ? 2 : 0));
        EXPECT_FALSE(silence.reduced(0) || silence.reduced(1)) << "it may still answer";
      }
      silence.now = silence.now + kThird;
      ASSERT_TRUE(silence.Until({0, 1}, [&] { return silence.reduced(0) && silence.reduced(1); }));
      bool named = false;
      const std::string rank = "rank " + std::to_string(group.members[2].rank);
      for (std::size_t w = 0; w < 2; ++w) {
        EXPECT_FALSE(silence.reduced(w)->status.ok());
        named |= silence.reduced(w)->status.message().find(rank) != std::string::npos;
      }
      EXPECT_TRUE(named) << silence.reduced(0)->status.ToString();
    }
  }
}

TEST(MeshSilenceTest, OneAnswerIsEnoughForTheWholeTimeout) {
  Silence silence(2, kWaits, Directly());
  const Group group = silence.Announce({0, 1});
  silence.Start(0, group);
  silence.Turns({0, 1});
  silence.now = silence.now + kThird;
  silence.Turns({0});
  silence.now = silence.now + kThird;
  silence.Turns({0});
  const std::uint64_t before = silence.Heard(0);
  ASSERT_TRUE(silence.Until({0, 1}, [&] { return silence.Heard(0) > before; }));
  for (int third = 0; third < 2; ++third) {
    silence.now = silence.now + kThird;
    silence.Turns({0});
    EXPECT_FALSE(silence.reduced(0)) << "asked anew after that answer";
  }
  silence.now = silence.now + kThird;
  ASSERT_TRUE(silence.Until({0}, [&] { return silence.reduced(0).has_value(); }));
  EXPECT_EQ(silence.reduced(0)->status.code(), Code::kDeadlineExceeded);
}

// It says so if it belongs to the run still, and then it is not taken to be out of reach.
TEST(MeshSilenceTest, WhoIsThroughWithAGroupIsNotWaitedFor) {
  enum class How { kCalledOff, kCancelled, kFailed, kLaterGroup, kOtherRun, kOtherIncarnation };
  for (const How how : {How::kCalledOff, How::kCancelled, How::kFailed, How::kLaterGroup,
                        How::kOtherRun, How::kOtherIncarnation}) {
    SCOPED_TRACE(static_cast<int>(how));
    Silence silence(3, kWaits, ByRing());
    const Group group = silence.Announce({0, 1});
    const Group later = silence.Announce({1});
    silence.Start(0, group);
    Mesh& other = silence.job[1].mesh();
    if (how == How::kCalledOff) other.CallOff(group.id);
    if (how == How::kCancelled || how == How::kFailed) silence.Start(1, group);
    if (how == How::kCancelled) other.CancelReduce();
    if (how == How::kFailed) {  // as it sees it; the first one is not told
      other.CancelReduce();
      other.StartReduce(silence.now, later, silence.job.WhatReduces(later.kind));
    }
    if (how == How::kLaterGroup) silence.Start(1, later);
    if (how == How::kOtherRun) other.JoinRun(2, kWaits);
    if (how == How::kOtherIncarnation) other.SetIncarnation(4711);
    silence.Turns({0, 1});
    for (int third = 0; third < 3; ++third) {
      EXPECT_FALSE(silence.reduced(0));
      silence.now = silence.now + kThird;
      silence.Turns({0, 1});
    }
    ASSERT_TRUE(silence.reduced(0));
    EXPECT_EQ(silence.reduced(0)->status.code(), Code::kDeadlineExceeded);
    const bool gone = how == How::kOtherRun || how == How::kOtherIncarnation;
    EXPECT_EQ(silence.reduced(0)->unreachable,
              gone ? std::vector<Rank>{group.members[1].rank} : std::vector<Rank>{});
  }
}

// Under every plan, and also before the final average: whoever answers is waited for, and a member
// that does not answer is named.
TEST(MeshSilenceTest, MembersOfEveryGroupAreAsked) {
  const Plan plans[] = {Plan{}, plans::Background(1), kWaits};
  for (const Plan& plan : plans) {
    for (const GroupKind kind : {GroupKind::kTrain, GroupKind::kFinal}) {
      Silence silence(2, plan, ByRing());
      const Group group = silence.job.MakeGroup(kind, 0, {0, 1}, {0.5, 0.5});
      silence.Start(0, group);
      silence.Turns({0, 1});
      for (int third = 0; third < 9; ++third) {
        ASSERT_TRUE(silence.Third({0, 1}, 2));
        ASSERT_FALSE(silence.reduced(0));
      }
      for (int third = 0; third < 3; ++third) {
        EXPECT_FALSE(silence.reduced(0));
        silence.now = silence.now + kThird;
        silence.Turns({0});
      }
      ASSERT_TRUE(silence.reduced(0));
      EXPECT_EQ(silence.reduced(0)->status.code(), Code::kDeadlineExceeded);
      EXPECT_EQ(silence.reduced(0)->unreachable, std::vector<Rank>{group.members[1].rank});
    }
  }
}

TEST(MeshSilenceTest, AnswersOfOthersCountForNothing) {
  Silence silence(3, kWaits, ByRing());
  const Group group = silence.Announce({0, 1});
  silence.Start(0, group);
  silence.Turns({0});
  constexpr Incarnation kOther = 4711;
  testing::PlayedWorker other(silence.job[0].node.get(), kOther, 900);
  testing::PlayedWorker member(silence.job[0].node.get(), *silence.job[1].node);
  const auto send = [&](FrameHeader header, const std::string& payload) {
    header.run = 1;
    header.to = group.members[0].incarnation;
    header.length = payload.size();
    (header.from == kOther ? other : member).Send(header, payload);
  };
  const auto dropped = [&] { return silence.job[0].mesh().counters().dropped; };
  for (int third = 0; third < 3; ++third) {
    EXPECT_FALSE(silence.reduced(0));
    const std::uint64_t before = dropped();
    send({.kind = FrameKind::kPong, .group = group.id, .from = 4711}, "");
    send({.kind = FrameKind::kPong, .group = 77, .from = group.members[1].incarnation}, "");
    if (third == 0) {  // before it is asked
      send({.kind = FrameKind::kPong, .group = group.id, .from = group.members[1].incarnation}, "");
    }
    // Questions about nothing there is.
    send({.kind = FrameKind::kPing, .group = group.id, .from = 4711, .stage = kTopics}, "");
    send({.kind = FrameKind::kPing, .group = group.id, .from = 4711, .stage = 99}, "");
    ASSERT_TRUE(silence.Until({0}, [&] { return dropped() >= before + (third == 0 ? 5 : 4); }));
    silence.now = silence.now + kThird;
    silence.Turns({0});
  }
  EXPECT_TRUE(silence.reduced(0));
}

// A source that does nothing but copy its replica, for longer than the timeout, is waited for as
// long as it says so.
TEST(MeshSilenceTest, ASourceThatCopiesForLongIsWaitedFor) {
  for (const bool says : {true, false}) {
    Silence silence(2, Plan{}, ByRing());
    MeshNode& source = *silence.job[0].node;
    MeshNode& taker = *silence.job[1].node;
    source.mesh->Announce(silence.now, {taker.AsMember(0)}, true);
    taker.mesh->Announce(silence.now, {source.AsMember(0)});
    std::unique_lock applies(source.store.mutex);  // it cannot copy yet
    taker.fetched.reset();
    taker.mesh->StartFetch(silence.now, source.AsMember(0));
    ASSERT_TRUE(silence.Come({0, 1}, 1));
    silence.Turns({0, 1});
    for (int third = 0; third < 9 && !taker.fetched; ++third) {
      silence.now = silence.now + kThird;
      silence.Turns({1});
      if (says) {
        source.mesh->SayToCome(silence.now);
        ASSERT_TRUE(silence.Come({1}, 1));
      }
    }
    EXPECT_EQ(taker.fetched.has_value(), !says);
    if (!says) continue;
    applies.unlock();
    source.mesh->Service(silence.now);  // a call that takes longer than the timeout
    silence.now = silence.now + 2 * kTimeout;
    ASSERT_TRUE(silence.Until({0, 1}, [&] { return taker.fetched.has_value(); }));
    EXPECT_TRUE(taker.fetched->status.ok()) << taker.fetched->status.ToString();
  }
}

// A copy that gives its source up fails a group with that worker, too: in the same turn, in which
// the group has been looked at already.
TEST(MeshSilenceTest, WhatFailsLateInATurnIsReportedInTheNext) {
  Silence silence(2, Plan{}, ByRing());
  MeshNode& taker = *silence.job[1].node;
  taker.mesh->Announce(silence.now, {silence.job[0].node->AsMember(0)});
  taker.mesh->StartFetch(silence.now, silence.job[0].node->AsMember(0));
  silence.Turns({1});
  for (int third = 0; third < 2; ++third) {
    silence.now = silence.now + kThird;
    silence.Turns({1});
  }
  silence.Start(1, silence.Announce({0, 1}));
  silence.Turns({1});
  ASSERT_FALSE(taker.fetched || taker.reduced);
  silence.now = silence.now + kThird;
  taker.mesh->Service(silence.now);
  ASSERT_TRUE(taker.fetched.has_value());
  EXPECT_EQ(taker.fetched->status.code(), Code::kDeadlineExceeded);
  if (!taker.reduced) {
    ASSERT_LE(taker.mesh->NextDeadline(), silence.now);
    taker.mesh->Service(silence.now);
  }
  ASSERT_TRUE(taker.reduced.has_value());
  EXPECT_EQ(taker.reduced->status.code(), Code::kUnavailable);
}

// So is a neighbour whose update is pulled.
TEST(MeshSilenceTest, ANeighbourThatCopiesForLongIsWaitedFor) {
  for (const bool says : {true, false}) {
    Silence silence(2, {.by = NeighbourPlan{}}, ByRing());
    MeshNode& keeper = *silence.job[0].node;
    MeshNode& taker = *silence.job[1].node;
    bool asked = false;
    keeper.on_request = [&asked](Incarnation, Request, const PeerItem&) { asked = true; };
    for (MeshNode* node : {&keeper, &taker}) {
      MeshNode& other = node == &keeper ? taker : keeper;
      node->mesh->Announce(silence.now, {other.AsMember(0)});
      node->mesh->Do(silence.now, SetPeers{{other.AsMember(0)}});
    }
    taker.mesh->Do(silence.now, StartPull{1, keeper.AsMember(0).incarnation, {.stamp = 1}});
    ASSERT_TRUE(silence.Until({0, 1}, [&] { return asked; }));
    silence.Turns({0, 1});
    for (int third = 0; third < 9 && taker.pulled.empty(); ++third) {
      silence.now = silence.now + kThird;
      silence.Turns({1});
      if (says) {
        keeper.mesh->SayToCome(silence.now);
        ASSERT_TRUE(silence.Come({1}, 1));
      }
    }
    EXPECT_EQ(taker.pulled.empty(), says);
  }
}

// Somebody who asks without end and never takes an answer costs a connection, and no more.
TEST(MeshSilenceTest, AFloodOfQuestionsIsBounded) {
  Silence silence(2, kWaits, ByRing());
  testing::DeafEnd deaf;
  testing::PlayedWorker asking(silence.job[0].node.get(), 4711, 900, {deaf.endpoint()});
  const auto counters = [&] { return silence.job[0].mesh().counters(); };
  constexpr std::uint64_t kQuestions = 100'000;
  for (std::uint64_t i = 1; i <= kQuestions && counters().dropped < 100; ++i) {
    const FrameHeader header{.kind = FrameKind::kPing,
                             .run = 1,
                             .group = i,
                             .from = 4711,
                             .to = silence.job[0].node->AsMember(0).incarnation};
    asking.Send(header, "");
    ASSERT_TRUE(silence.Until({0}, [&] { return counters().received + counters().dropped == i; }));
  }
  EXPECT_GT(counters().received, 0u);
  EXPECT_EQ(counters().dropped, 100u);
  std::vector<zmq::pollitem_t> items;
  silence.job[0].node->AppendPollItems(&items);
  EXPECT_EQ(items.size(), 2u) << "no connection is watched, but for its own socket and its door";
  for (const Status& status : silence.job.Reduce(GroupKind::kTrain, 0, {0, 1}, {0.5, 0.5})) {
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

// What peers sent ahead of time had to be dropped: the group cannot succeed here, and nobody is
// kept waiting by answers.
TEST(MeshSilenceTest, AGroupWhoseEarlyFramesWereDroppedFails) {
  Silence silence(2, kWaits, ByRing());
  const Group group = silence.Announce({0, 1});
  silence.Start(1, group);
  ASSERT_TRUE(silence.Until({0, 1}, [&] { return silence.job[0].mesh().counters().early > 0; }));
  silence.Turns({0, 1});
  testing::PlayedWorker other(silence.job[0].node.get(), 4711, 900);
  const std::string payload(512 << 10, 'x');
  const std::uint64_t early = silence.job[0].mesh().counters().early;
  for (int i = 0; i < 34; ++i) {
    const FrameHeader header{.kind = FrameKind::kRing,
                             .run = 1,
                             .group = 1000,
                             .from = 4711,
                             .to = group.members[0].incarnation,
                             .length = payload.size()};
    other.Send(header, payload);
    ASSERT_TRUE(silence.Until({0}, [&] {
      return silence.job[0].mesh().counters().early == early + static_cast<std::uint64_t>(i) + 1;
    }));
  }
  EXPECT_GT(silence.job[0].mesh().counters().dropped, 0u);
  silence.Start(0, group);
  ASSERT_TRUE(silence.Until({0, 1}, [&] { return silence.reduced(0) && silence.reduced(1); }));
  EXPECT_EQ(silence.reduced(0)->status.code(), Code::kResourceExhausted);
  EXPECT_EQ(silence.reduced(1)->status.code(), Code::kAborted) << "it is told";
  for (const Status& status : silence.job.Reduce(GroupKind::kTrain, 0, {0, 1}, {0.5, 0.5})) {
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

}  // namespace
}  // namespace prd::mesh_silence_test
