// Workers that are out (Mesh::ForgetMembers) or have no order to copy: what they get from a
// worker's mesh, and what waits for them.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/plans.h"
#include "tests/worker/mesh_job.h"
#include "tests/worker/mesh_ring.h"
#include "worker/mesh/directory.h"
#include "worker/mesh/door.h"

namespace prd::mesh_gone_test {
namespace {

using testing::AnyMeshKey;
using testing::DrawnKeys;
using testing::EveryDType;
using testing::Fill;
using testing::MeshJob;
using testing::MeshNode;
using testing::MeshNow;
using testing::RunUntil;
using testing::ValuesOf;

constexpr DurationNs kLong = 60 * kSecond;  // nothing here ends for a lease

// For what may or may not come.
void Turns(const std::vector<MeshNode*>& nodes) {
  std::vector<zmq::pollitem_t> items;
  for (int turn = 0; turn < 50; ++turn) {
    items.clear();
    for (MeshNode* node : nodes) {
      node->mesh->Service(MeshNow());
      node->AppendPollItems(&items);
    }
    zmq::poll(items, std::chrono::milliseconds(1));
  }
}

// ---- the directory ----

TEST(DirectoryTest, WhoIsOutIsKnownNoMoreUnlessItIsAnnouncedAnew) {
  Directory directory(DrawnKeys());
  directory.Join(1, 7);
  const GroupMember member{.rank = 4, .incarnation = 40, .mesh_key = AnyMeshKey()};
  EXPECT_TRUE(directory.Announce(member));
  EXPECT_EQ(directory.HolderOf(Rank{4}), 40u);
  directory.Remove(40);
  EXPECT_EQ(directory.Find(40), nullptr);
  EXPECT_EQ(directory.KeysOf(40), nullptr);
  EXPECT_EQ(directory.HolderOf(member.mesh_key), std::nullopt);
  EXPECT_EQ(directory.HolderOf(Rank{4}), 0u);
  EXPECT_TRUE(directory.IsOut(40));
  EXPECT_FALSE(directory.Meet(member)) << "a message from before may be acted on later";
  EXPECT_EQ(directory.size(), 0u);
  EXPECT_TRUE(directory.Announce(member)) << "it may be admitted again if it has heard nothing";
  EXPECT_FALSE(directory.IsOut(40));
  directory.Remove(40);
  GroupMember next = member;
  next.incarnation = 41;  // the same session, come back
  EXPECT_TRUE(directory.Announce(next));
  EXPECT_EQ(directory.HolderOf(member.mesh_key), 41u);
  directory.Remove(40);
  EXPECT_NE(directory.Find(41), nullptr);
  // A worker is out as well once another incarnation gets its rank.
  next.incarnation = 42;
  EXPECT_TRUE(directory.Announce(next));
  EXPECT_TRUE(directory.IsOut(41));
  directory.Remove(1);
  EXPECT_FALSE(directory.IsOut(1)) << "this worker itself";
  for (Incarnation other = 1000; other < 1000 + Directory::kMaxOut; ++other)
    directory.Remove(other);
  EXPECT_FALSE(directory.IsOut(40)) << "the newest are remembered";
  directory.Join(2, 8);
  EXPECT_FALSE(directory.IsOut(1000));
}

// ---- who is out ----

using Way = std::tuple<MeshSecurity, bool /* over tcp */>;

class MeshGoneTest : public ::testing::TestWithParam<Way> {
 protected:
  static constexpr std::size_t kSource = 0;
  static constexpr std::size_t kOut = 1;
  static constexpr std::size_t kOther = 2;

  MeshGoneTest() : job_(1, EveryDType(1000), plans::kModels) {
    for (int i = 0; i < 2; ++i) {
      if (std::get<1>(GetParam())) {
        job_.AddApart();
      } else {
        job_.Add();
      }
    }
    Join(kLong);
    for (std::size_t w = 0; w < 3; ++w) {
      Fill(&job_[w].parameters, [&] { return static_cast<double>(w + 1); });
    }
  }
  void Join(DurationNs lease) {
    for (std::size_t w = 0; w < 3; ++w) {
      job_[w].mesh().JoinRun(1, plans::kModels, lease, {.security = std::get<0>(GetParam())});
    }
    testing::Announce(job_.Nodes(), {Member(0), Member(1), Member(2)});
  }
  GroupMember Member(std::size_t w) { return job_[w].node->AsMember(0); }
  Mesh& mesh(std::size_t w) { return job_[w].mesh(); }
  void Order(std::size_t taker, std::size_t source) {
    mesh(source).Announce(MeshNow(), {Member(taker)}, true);
  }
  void Ask(std::size_t taker, std::size_t source) {
    job_[taker].node->fetched.reset();
    mesh(taker).StartFetch(MeshNow(), Member(source));
  }
  bool Got(std::size_t taker) {
    return job_[taker].node->fetched && job_[taker].node->fetched->status.ok();
  }
  bool CopiesAsItMay(std::size_t taker) {
    Order(taker, kSource);
    Ask(taker, kSource);
    return job_.FinishFetch(taker).status.ok();
  }
  // The guard, in its own thread, has heard of its connection, and of whose that is.
  bool IsKnown(std::size_t taker) {
    const std::size_t before = mesh(kSource).transported().open;
    if (!CopiesAsItMay(taker)) return false;
    if (!job_.RunUntil([&] { return mesh(kSource).transported().open > before; })) return false;
    return CopiesAsItMay(taker);
  }
  void Out() { mesh(kSource).ForgetMembers(MeshNow(), {Member(kOut).incarnation}); }
  bool curve() const { return std::get<0>(GetParam()) == MeshSecurity::kCurve; }

  MeshJob job_;
};

TEST_P(MeshGoneTest, WhoIsOutGetsNothingOverItsOldConnectionNorOverNewOnes) {
  ASSERT_TRUE(IsKnown(kOut));
  ASSERT_TRUE(CopiesAsItMay(kOther));
  // Over tcp both acknowledge what they got, on connections of their own.
  const std::size_t connections = std::get<1>(GetParam()) ? 4 : 2;
  ASSERT_TRUE(job_.RunUntil([&] { return mesh(kSource).connections().admitted >= connections; }));
  Order(kOut, kSource);  // which is void with its end
  Fill(&job_[kSource].parameters, [] { return 9.0; });
  Out();
  const std::uint64_t read = mesh(kSource).counters().received;
  const std::uint64_t sent = mesh(kOut).counters().received;
  const Door::Counters door = mesh(kSource).connections();
  for (int i = 0; i < 3;
       ++i) {  // the first over the connection that it has, unless it has seen its end
    Ask(kOut, kSource);
    if (curve()) {  // whose key does not say that it does not come back
      Turns(job_.Nodes());
      if (!job_[kOut].node->fetched) mesh(kOut).CancelFetch();
      EXPECT_FALSE(Got(kOut));
    } else {
      EXPECT_EQ(job_.FinishFetch(kOut).status.code(), Code::kUnavailable);
    }
  }
  EXPECT_TRUE(curve() || mesh(kSource).connections().refused > door.refused);
  EXPECT_FALSE(Got(kOut));
  EXPECT_EQ(mesh(kSource).connections().admitted, door.admitted);
  EXPECT_EQ(mesh(kSource).counters().received, read) << "what it says counts for nothing";
  EXPECT_EQ(mesh(kOut).counters().received, sent) << "and is answered by nothing";
  EXPECT_EQ(ValuesOf(job_[kOut].parameters)[0], 1.0);
  EXPECT_EQ(mesh(kSource).counters().forged, 0u);
  // Others are served as before.
  ASSERT_TRUE(CopiesAsItMay(kOther));
  EXPECT_EQ(ValuesOf(job_[kOther].parameters)[0], 9.0);
}

TEST_P(MeshGoneTest, FramesThatWaitCountForNothing) {
  ASSERT_TRUE(IsKnown(kOut));
  Order(kOut, kSource);
  Ask(kOut, kSource);
  Turns({job_[kOut].node.get()});  // they are with the source, which has not looked
  Out();
  const std::uint64_t read = mesh(kSource).counters().received;
  EXPECT_EQ(job_.FinishFetch(kOut).status.code(), Code::kUnavailable);
  EXPECT_EQ(mesh(kSource).counters().received, read);
}

TEST_P(MeshGoneTest, ACopyUnderWayEnds) {
  std::unique_lock applies(job_[kSource].store().mutex);
  Order(kOut, kSource);
  Ask(kOut, kSource);
  ASSERT_TRUE(RunUntil(job_.Nodes(), [&] { return mesh(kSource).counters().received == 1; }));
  Out();
  applies.unlock();
  Turns(job_.Nodes());
  EXPECT_FALSE(Got(kOut));
  EXPECT_EQ(mesh(kOut).counters().received, 0u);
}

TEST_P(MeshGoneTest, AConnectionThatWaitsToBeAnnouncedIsRefused) {
  job_[kSource].mesh().JoinRun(2, plans::kModels, kLong, {.security = std::get<0>(GetParam())});
  Ask(kOut, kSource);
  Turns(job_.Nodes());
  EXPECT_EQ(mesh(kSource).connections().refused, 0u);
  Out();
  if (curve()) return;
  // The pass is of another run; who is out is refused before that is looked at.
  EXPECT_EQ(job_.FinishFetch(kOut).status.code(), Code::kUnavailable);
  EXPECT_EQ(mesh(kSource).connections().refused, 1u);
  ASSERT_FALSE(job_[kSource].node->intruders.empty());
  EXPECT_NE(job_[kSource].node->intruders[0].find("of a worker that is out"), std::string::npos);
}

TEST_P(MeshGoneTest, WhatWaitsForItFailsAtOnce) {
  // A copy.
  Ask(kSource, kOut);  // without an order: it waits
  Turns(job_.Nodes());
  EXPECT_FALSE(job_[kSource].node->fetched);
  // A group.
  const Group group = job_.MakeGroup(GroupKind::kTrain, 1, {kSource, kOut}, {0.5, 0.5});
  job_.Start(kSource, group);
  Turns(job_.Nodes());
  EXPECT_FALSE(job_[kSource].node->reduced);
  Out();
  EXPECT_EQ(job_.FinishFetch(kSource).status.code(), Code::kUnavailable);
  EXPECT_EQ(job_.Finish({kSource})[0].code(), Code::kUnavailable);
  // And whatever turns to it later, by what was said before.
  Ask(kSource, kOut);
  EXPECT_EQ(job_.FinishFetch(kSource).status.code(), Code::kUnavailable);
  Group late = group;
  late.id += 1;
  job_.Start(kSource, late);
  EXPECT_EQ(job_.Finish({kSource})[0].code(), Code::kUnavailable);
  // Those without it go on.
  job_.ReduceOk(GroupKind::kTrain, 2, {kSource, kOther}, {0.5, 0.5});
}

TEST_P(MeshGoneTest, TheSameSessionMayComeBackAsAnotherIncarnation) {
  ASSERT_TRUE(CopiesAsItMay(kOut));
  Out();
  job_[kOut].node->mesh->SetIncarnation(testing::FreshIncarnation());
  mesh(kOut).JoinRun(1, plans::kModels, kLong, {.security = std::get<0>(GetParam())});
  GroupMember back = Member(kOut);
  back.incarnation = testing::FreshIncarnation();
  mesh(kOut).SetIncarnation(back.incarnation);
  mesh(kOut).JoinRun(1, plans::kModels, kLong, {.security = std::get<0>(GetParam())});
  mesh(kOut).StartFetch(MeshNow(), Member(kSource));
  Turns(job_.Nodes());
  mesh(kSource).Announce(MeshNow(), {back}, true);
  job_[kOut].node->fetched.reset();
  EXPECT_TRUE(job_.FinishFetch(kOut).status.ok());
}

// ---- orders ----

TEST_P(MeshGoneTest, AnOrderIsForOneCopyAndWhoHasNoneGetsNothing) {
  Join(kSecond);
  Ask(kOther, kSource);
  const Status none = job_.FinishFetch(kOther).status;
  EXPECT_EQ(none.code(), Code::kNotFound) << none.ToString();
  EXPECT_EQ(ValuesOf(job_[kOther].parameters)[0], 3.0);
  // It has been heard, and the source looks no more whether an order comes.
  Order(kOther, kSource);
  Turns(job_.Nodes());
  EXPECT_FALSE(Got(kOther));
  Ask(kOther, kSource);
  ASSERT_TRUE(job_.FinishFetch(kOther).status.ok());
  Ask(kOther, kSource);
  EXPECT_EQ(job_.FinishFetch(kOther).status.code(), Code::kNotFound);
  // A copy for an average is none without an order, either.
  mesh(kOther).StartSample(MeshNow(), Member(kSource));
  const std::uint64_t before = mesh(kOther).counters().received;
  Turns(job_.Nodes());
  mesh(kOther).CancelSample();
  EXPECT_LE(mesh(kOther).counters().received, before + 1) << "a pong, and no parameters";
}

TEST_P(MeshGoneTest, ARequestMayComeBeforeItsOrder) {
  Ask(kOther, kSource);
  Turns(job_.Nodes());
  EXPECT_FALSE(job_[kOther].node->fetched);
  Order(kOut, kSource);  // of another one
  Turns(job_.Nodes());
  EXPECT_FALSE(job_[kOther].node->fetched);
  Order(kOther, kSource);
  EXPECT_TRUE(job_.FinishFetch(kOther).status.ok());
}

std::string Name(const ::testing::TestParamInfo<Way>& way) {
  const char* const names[] = {"None", "Aead", "Curve"};
  return std::string(names[static_cast<std::size_t>(std::get<0>(way.param))]) +
         (std::get<1>(way.param) ? "Tcp" : "Ipc");
}

INSTANTIATE_TEST_SUITE_P(All, MeshGoneTest,
                         ::testing::Combine(::testing::Values(MeshSecurity::kNone,
                                                              MeshSecurity::kAead,
                                                              MeshSecurity::kCurve),
                                            ::testing::Bool()),
                         Name);

// ---- results and pulls ----

TEST(MeshOrderTest, AResultIsForThoseWhoWereInItsRound) {
  MeshJob job(3, EveryDType(100), plans::kRounds);
  Fill(&job[0].gradients, [] { return 1.0; });
  job[0].store().Deposit();
  const Group round = job.MakeGroup(GroupKind::kRound, 1, {0, 1}, {1, 0});
  job.Start(0, round);
  ASSERT_TRUE(job.Finish({0})[0].ok());
  EXPECT_EQ(job.Fetch(2, 0, round.id).status.code(), Code::kNotFound);
  EXPECT_TRUE(job.Fetch(1, 0, round.id).status.ok());
}

TEST(MeshOutExchangeTest, PullsOfWhoIsOutFailAndItIsGivenNothing) {
  MeshJob job(2, EveryDType(100), plans::kNeighbours);
  for (std::size_t w = 0; w < 2; ++w) {
    job[w].mesh().JoinRun(1, plans::kNeighbours, kLong);
    job[w].mesh().Do(MeshNow(), SetPeers{{job[1 - w].node->AsMember(0)}});
  }
  const PeerItem item{.kind = PeerItem::Kind::kUpdate, .stamp = 0};
  std::optional<Request> asked;
  job[0].node->on_request = [&](Incarnation, Request request, const PeerItem&) { asked = request; };
  bool heard = false;
  job[1].node->on_request = [&](Incarnation, Request, const PeerItem&) { heard = true; };
  const Incarnation out = job[1].node->AsMember(0).incarnation;
  job[0].mesh().Do(MeshNow(), PublishUpdate{0});
  job[0].mesh().Do(MeshNow(), StartPull{1, out, item});
  job[1].mesh().Do(MeshNow(), StartPull{1, job[0].node->AsMember(0).incarnation, item});
  ASSERT_TRUE(job.RunUntil([&] { return asked.has_value() && heard; }));
  job[0].mesh().ForgetMembers(MeshNow(), {out});
  const std::uint64_t got = job[1].mesh().counters().received;
  job[0].mesh().Do(MeshNow(), Serve{*asked, item, {}});
  job[0].mesh().Do(MeshNow(), StartPull{2, out, item});
  ASSERT_TRUE(job.RunUntil([&] { return job[0].node->pulled.size() == 2; }));
  for (const auto& [ticket, pulled] : job[0].node->pulled) {
    EXPECT_EQ(pulled.status.code(), Code::kUnavailable);
  }
  Turns(job.Nodes());
  const auto pulled = job[1].node->pulled.find(1);
  EXPECT_TRUE(pulled == job[1].node->pulled.end() || !pulled->second.status.ok());
  EXPECT_EQ(job[1].mesh().counters().received, got);
  EXPECT_TRUE(job[0].node->out_of_reach.empty()) << "nobody is to look for it";
}

}  // namespace
}  // namespace prd::mesh_gone_test
