// Links between two workers that are cut, one way or both, or slow: what fails and who is named,
// what is waited for, and what probes find. In a time of the tests' own.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/plans.h"
#include "tests/worker/mesh_job.h"
#include "tests/worker/mesh_wires.h"

namespace prd::mesh_links_test {
namespace {

using testing::Fill;
using testing::MeshJob;
using testing::MeshNode;
using testing::MeshNow;
using testing::Shapes;
using testing::ValuesOf;
using testing::Wires;
using State = testing::Wires::State;
using Members = std::vector<std::size_t>;

constexpr DurationNs kLease = 30 * kSecond;
constexpr DurationNs kThird = kLease / 3 + kMillisecond;
const Shapes kModel = {{DType::kF32, 3000}};

Mesh::Options With(std::size_t direct_bytes) {
  Mesh::Options options;
  options.timeout = kLease;
  options.chunk_bytes = 1024;
  options.direct_bytes = direct_bytes;
  return options;
}
const Mesh::Options kByRing = With(0);
const Mesh::Options kDirectly = With(1 << 20);

class Links {
 public:
  Links(std::size_t workers, const Plan& plan, const Mesh::Options& options)
      : job(workers, kModel, plan, options), wires(job.Nodes()) {
    for (std::size_t w = 0; w < workers; ++w) {
      all.push_back(w);
      Fill(&job[w].parameters, [&] { return static_cast<double>(w + 1); });
    }
    Meet();
  }

  // The controller tells all of all others.
  void Meet() {
    for (const std::size_t w : all) {
      SharedList<GroupMember> members;
      for (const std::size_t m : all) members.push_back(job[m].node->AsMember(0));
      job[w].mesh().Announce(now, wires.SeenBy(w, members));
    }
  }

  // Services all meshes, while the clock stands, until it holds; false after 20 s of the wall's.
  bool Until(const std::function<bool()>& holds) {
    const Instant give_up = MeshNow() + 20 * kSecond;
    std::vector<zmq::pollitem_t> items;
    for (;;) {
      items.clear();
      wires.Carry();
      for (const std::size_t w : all) {
        job[w].mesh().Service(now);
        job[w].node->AppendPollItems(&items);
      }
      if (holds()) return true;
      if (MeshNow() >= give_up) return false;
      wires.AppendPollItems(&items);
      zmq::poll(items, std::chrono::milliseconds(1));
    }
  }
  // For what may or may not come.
  void Turns() {
    int turns = 0;
    (void)Until([&] { return ++turns > 40; });
  }
  void Later(DurationNs by) {
    now = now + by;
    Turns();
  }

  Group Announce(const Members& members, std::vector<double> weights = {},
                 GroupKind kind = GroupKind::kTrain) {
    weights.resize(members.size(), 1.0 / static_cast<double>(members.size()));
    const Group group = job.MakeGroup(kind, 0, members, weights);
    for (const std::size_t w : all) job[w].mesh().Announce(now, wires.SeenBy(w, group.members));
    return group;
  }
  void Start(std::size_t worker, Group group) {
    job[worker].node->reduced.reset();
    group.members = wires.SeenBy(worker, group.members);
    job[worker].mesh().StartReduce(now, group, job.WhatReduces(group.kind));
  }
  // And lets them do what they can.
  void StartAll(const Group& group) {
    for (const std::size_t w : all) Start(w, group);
    Turns();
  }
  const std::optional<MeshNode::Reduced>& reduced(std::size_t worker) {
    return job[worker].node->reduced;
  }
  bool AllReduced() {
    return std::all_of(all.begin(), all.end(),
                       [&](std::size_t w) { return reduced(w).has_value(); });
  }
  Rank RankOf(std::size_t worker) { return job[worker].node->AsMember(0).rank; }
  std::vector<Rank> Ranks(const Members& workers) {
    std::vector<Rank> ranks;
    for (const std::size_t w : workers) ranks.push_back(RankOf(w));
    return ranks;
  }
  SharedList<GroupMember> MemberSeenBy(std::size_t worker, std::size_t member) {
    return wires.SeenBy(worker, {job[member].node->AsMember(0)});
  }

  MeshJob job;
  Wires wires;
  Members all;
  Instant now = MeshNow();
};

TEST(MeshLinksTest, ACutLinkFailsTheGroupAndItsEndsAloneAreNamed) {
  for (const Mesh::Options& options : {kByRing, kDirectly}) {
    Links links(4, Plan{}, options);
    links.wires.SetBoth(1, 2, State::kCut);
    links.StartAll(links.Announce(links.all));
    for (int third = 0; third < 3; ++third) {
      EXPECT_FALSE(links.AllReduced());
      links.Later(kThird);
    }
    // Over a real connection the other end of the link learns it from TCP. Here those who have not
    // heard of the failure find out that nothing is to come.
    for (int third = 0; third < 3; ++third) links.Later(kThird);
    ASSERT_TRUE(links.AllReduced());
    const bool around = options.direct_bytes == 0;  // else the others have all that they need
    EXPECT_EQ(links.reduced(0)->status.ok(), !around);
    EXPECT_EQ(links.reduced(3)->status.ok(), !around);
    EXPECT_EQ(links.reduced(0)->unreachable, std::vector<Rank>());
    EXPECT_EQ(links.reduced(3)->unreachable, std::vector<Rank>());
    EXPECT_FALSE(links.reduced(1)->status.ok());
    EXPECT_FALSE(links.reduced(2)->status.ok());
    EXPECT_EQ(links.reduced(2)->unreachable, links.Ranks({1}));
    EXPECT_EQ(links.reduced(1)->unreachable, around ? std::vector<Rank>() : links.Ranks({2}));
    links.wires.SetBoth(1, 2, State::kWhole);
    links.StartAll(links.Announce(links.all));
    ASSERT_TRUE(links.Until([&] { return links.AllReduced(); }));
    for (const std::size_t w : links.all) EXPECT_TRUE(links.reduced(w)->status.ok());
  }
}

TEST(MeshLinksTest, ALinkCutOneWayFailsAGroupThatNeedsThatWay) {
  for (const bool there : {true, false}) {
    for (const Mesh::Options& options : {kByRing, kDirectly}) {
      Links links(3, Plan{}, options);
      links.wires.Set(there ? 0 : 1, there ? 1 : 0, State::kCut);
      links.StartAll(links.Announce(links.all));
      if (!there && options.direct_bytes == 0) {  // around the ring nothing goes that way
        ASSERT_TRUE(links.Until([&] { return links.AllReduced(); }));
        for (const std::size_t w : links.all) EXPECT_TRUE(links.reduced(w)->status.ok());
        continue;
      }
      const std::size_t waits = there ? 1 : 0;
      for (int third = 0; third < 3; ++third) links.Later(kThird);
      ASSERT_TRUE(links.reduced(waits));
      EXPECT_EQ(links.reduced(waits)->status.code(), Code::kDeadlineExceeded);
      EXPECT_EQ(links.reduced(waits)->unreachable, links.Ranks({1 - waits}));
    }
  }
}

TEST(MeshLinksTest, ASlowLinkIsWaitedFor) {
  for (const Mesh::Options& options : {kByRing, kDirectly}) {
    Links links(3, Plan{}, options);
    links.wires.Set(0, 1, State::kSlow);
    links.StartAll(links.Announce(links.all));
    for (int third = 0; third < 15; ++third) links.Later(kThird);
    EXPECT_FALSE(links.reduced(1));
    links.wires.Set(0, 1, State::kWhole);
    ASSERT_TRUE(links.Until([&] { return links.AllReduced(); }));
    for (const std::size_t w : links.all) {
      EXPECT_TRUE(links.reduced(w)->status.ok()) << links.reduced(w)->status.ToString();
    }
  }
}

// The sender has completed the group, and others since.
TEST(MeshLinksTest, WhatIsOnItsWayIsWaitedForAsLongAsItsConnectionStands) {
  for (const bool breaks : {false, true}) {
    Links links(3, Plan{}, kDirectly);
    links.wires.Set(0, 1, State::kSlow);
    const Group group = links.Announce({0, 1});
    links.Start(0, group);
    links.Start(1, group);
    ASSERT_TRUE(links.Until([&] { return links.reduced(0).has_value(); }));
    EXPECT_TRUE(links.reduced(0)->status.ok());
    const Group later = links.Announce({0, 2});
    links.Start(0, later);
    links.Start(2, later);
    ASSERT_TRUE(links.Until([&] { return links.reduced(0) && links.reduced(2); }));
    for (int third = 0; third < 9; ++third) links.Later(kThird);
    ASSERT_FALSE(links.reduced(1));
    if (breaks) {
      links.wires.Break(0, 1);
      for (int third = 0; third < 6; ++third) links.Later(kThird);
      ASSERT_TRUE(links.reduced(1));
      EXPECT_EQ(links.reduced(1)->status.code(), Code::kDeadlineExceeded);
      EXPECT_EQ(links.reduced(1)->unreachable, std::vector<Rank>()) << "it answers";
    } else {
      links.wires.Set(0, 1, State::kWhole);
      ASSERT_TRUE(links.Until([&] { return links.reduced(1).has_value(); }));
      EXPECT_TRUE(links.reduced(1)->status.ok());
    }
  }
}

// ---- groups around broken links ----

TEST(MeshLinksTest, RingOnlyNeedsNoLinkBetweenOtherThanNeighbours) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const std::vector<std::vector<double>> weights = {
      {0.2, 0.2, 0.2, 0.2, 0.2}, {0.5, 0, 0.25, 0, 0.25}, {0, 0, 1, 0, 0}, {0, 0, 0, 0, 0}};
  for (const Mesh::Options& options : {kByRing, kDirectly}) {
    for (const std::vector<double>& each : weights) {
      Links links(5, Plan{}, options);
      for (const std::size_t w : links.all) {
        links.wires.SetBoth(w, (w + 2) % 5, State::kCut);
        if (each[w] == 0) Fill(&links.job[w].parameters, [] { return kInf; });
      }
      double mean = 0;
      for (std::size_t w = 0; w < 5; ++w)
        mean += each[w] == 0 ? 0 : each[w] * static_cast<double>(w + 1);
      Group group = links.Announce(links.all, each, GroupKind::kInitial);
      group.ring_only = true;
      links.StartAll(group);
      ASSERT_TRUE(links.Until([&] { return links.AllReduced(); }));
      const std::vector<double> first = ValuesOf(links.job[0].parameters);
      for (const double value : first) ASSERT_NEAR(value, mean, 1e-5);
      for (const std::size_t w : links.all) {
        EXPECT_TRUE(links.reduced(w)->status.ok()) << links.reduced(w)->status.ToString();
        EXPECT_EQ(ValuesOf(links.job[w].parameters), first);
      }
    }
  }
}

// A member that gives up cannot tell all others: they tell each other.
TEST(MeshLinksTest, RingOnlyFailsForAllOnceOneGivesUp) {
  Links links(5, Plan{}, kDirectly);
  for (const std::size_t w : links.all) links.wires.SetBoth(w, (w + 2) % 5, State::kCut);
  Group group = links.Announce(links.all);
  group.ring_only = true;
  for (const std::size_t w : {0, 1, 2, 3}) links.Start(w, group);
  links.Turns();
  // The last one can do nothing else than fail: its initial model is not there.
  group.initial_weight = 0.5;
  links.Start(4, group);
  ASSERT_TRUE(links.Until([&] { return links.AllReduced(); }));
  for (const std::size_t w : links.all) {
    EXPECT_FALSE(links.reduced(w)->status.ok());
    EXPECT_EQ(links.reduced(w)->unreachable, std::vector<Rank>());
  }
}

// ---- probes ----

TEST(MeshLinksTest, AProbeFindsOutWhenALinkWorksAgain) {
  Links links(3, Plan{}, kByRing);
  const auto probed = [&](std::size_t w) { return links.job[w].node->probed; };
  const auto targets = [&](const Members& members) {
    SharedList<GroupMember> list;
    for (const std::size_t m : members) list.push_back(links.job[m].node->AsMember(0));
    return links.wires.SeenBy(0, list);
  };
  const auto entry = [&](std::size_t w) {
    return std::pair(links.RankOf(w), links.job[w].node->AsMember(0).incarnation);
  };
  links.wires.Set(1, 0, State::kCut);  // answers are lost
  links.job[0].mesh().Probe(links.now, targets({1, 2}));
  ASSERT_TRUE(links.Until([&] { return probed(0).size() == 1; }));
  EXPECT_EQ(probed(0)[0], entry(2));
  for (int i = 0; i < 8; ++i) links.Later(kSecond);
  EXPECT_EQ(probed(0).size(), 1u);
  // Its groups go on meanwhile.
  const Group group = links.Announce({0, 2});
  links.Start(0, group);
  links.Start(2, group);
  ASSERT_TRUE(links.Until([&] { return links.reduced(0) && links.reduced(2); }));
  EXPECT_TRUE(links.reduced(0)->status.ok());
  links.wires.Set(1, 0, State::kWhole);
  links.Later(kSecond);
  ASSERT_TRUE(links.Until([&] { return probed(0).size() == 2; }));
  EXPECT_EQ(probed(0)[1], entry(1));
  for (int i = 0; i < 4; ++i) links.Later(kSecond);
  EXPECT_EQ(probed(0).size(), 2u) << "once";
  links.job[0].mesh().Probe(links.now, targets({1}));
  ASSERT_TRUE(links.Until([&] { return probed(0).size() == 3; })) << "a new Probe asks anew";
}

// What is answered in small is asked in large: of several, each in turn, and the answers are large.
TEST(MeshLinksTest, APathThatSwallowsLargePacketsIsNotWhole) {
  for (const auto& [from, to] : {std::pair(0, 1), std::pair(1, 0)}) {
    Links links(3, Plan{}, kByRing);
    const std::vector<std::pair<Rank, Incarnation>>& probed = links.job[0].node->probed;
    links.wires.Set(from, to, State::kSmall);
    SharedList<GroupMember> targets;
    for (const std::size_t m : {1, 2}) targets.push_back(links.job[m].node->AsMember(0));
    links.job[0].mesh().Probe(links.now, links.wires.SeenBy(0, targets));
    for (int i = 0; i < 8; ++i) links.Later(kSecond);
    ASSERT_TRUE(links.Until([&] { return !probed.empty(); }));
    for (int i = 0; i < 8; ++i) links.Later(kSecond);
    ASSERT_EQ(probed.size(), 1u);
    EXPECT_EQ(probed[0].first, links.RankOf(2));
    links.wires.Set(from, to, State::kWhole);
    links.Later(kSecond);
    ASSERT_TRUE(links.Until([&] { return probed.size() == 2; }));
    EXPECT_EQ(probed[1].first, links.RankOf(1));
  }
}

TEST(MeshLinksTest, AProbeEndsWithItsReplacementItsIncarnationAndItsRun) {
  enum class How { kNone, kOther, kNewIncarnation, kNewRun };
  for (const How how : {How::kNone, How::kOther, How::kNewIncarnation, How::kNewRun}) {
    SCOPED_TRACE(static_cast<int>(how));
    Links links(3, Plan{}, kByRing);
    Mesh& mesh = links.job[0].mesh();
    links.wires.Set(0, 1, State::kCut);
    mesh.Probe(links.now, links.MemberSeenBy(0, 1));
    links.Later(kSecond);
    if (how == How::kNone) mesh.Probe(links.now, {});
    if (how == How::kOther) mesh.Probe(links.now, links.MemberSeenBy(0, 2));
    if (how == How::kNewIncarnation) mesh.SetIncarnation(4711);
    if (how == How::kNewRun) mesh.JoinRun(1, Plan{});
    links.wires.Set(0, 1, State::kWhole);
    for (int i = 0; i < 4; ++i) links.Later(kSecond);
    const std::size_t answers = how == How::kOther ? 1 : 0;
    ASSERT_EQ(links.job[0].node->probed.size(), answers);
    for (const auto& [rank, incarnation] : links.job[0].node->probed) {
      EXPECT_EQ(rank, links.RankOf(2));
    }
  }
}

TEST(MeshLinksTest, ManyTargetsAreProbedInTurns) {
  Links links(2, Plan{}, kByRing);
  SharedList<GroupMember> targets;
  const MeshKey key = testing::AnyMeshKey();
  for (Rank rank = 0; rank < 300; ++rank) {  // nobody is there
    targets.push_back({.rank = 1000 + rank,
                       .incarnation = 1000u + static_cast<Incarnation>(rank),
                       .weight = 0,
                       .host = "host",
                       .endpoints = {"ipc://@prd-nobody-" + std::to_string(rank)},
                       .passive = false,
                       .mesh_key = key});
  }
  targets.push_back(links.MemberSeenBy(0, 1)[0]);
  targets.push_back(
      {.rank = 2000, .incarnation = 7, .weight = 0, .host = "host", .endpoints = {"x"}});
  links.job[0].mesh().Probe(links.now, targets);
  for (int i = 0; i < 6; ++i) links.Later(kSecond);
  ASSERT_EQ(links.job[0].node->probed.size(), 1u);
  EXPECT_EQ(links.job[0].node->probed[0].first, links.RankOf(1));
}

// ---- copies and pulls ----

TEST(MeshLinksTest, ACopyFailsWithItsLinkAndWaitsForALateSource) {
  for (const State state : {State::kCut, State::kSlow}) {
    Links links(2, Plan{}, kByRing);
    links.wires.Set(0, 1, state);
    links.job[0].mesh().Announce(links.now, links.MemberSeenBy(0, 1), true);
    links.job[1].mesh().StartFetch(links.now, links.MemberSeenBy(1, 0)[0]);
    const auto& fetched = links.job[1].node->fetched;
    links.Turns();
    for (int third = 0; third < 2; ++third) {
      links.Later(kThird);
      EXPECT_FALSE(fetched);
    }
    for (int third = 0; third < 9; ++third) links.Later(kThird);
    if (state == State::kCut) {
      ASSERT_TRUE(fetched);
      EXPECT_EQ(fetched->status.code(), Code::kDeadlineExceeded);
    } else {
      EXPECT_FALSE(fetched);
      links.wires.Set(0, 1, State::kWhole);
      ASSERT_TRUE(links.Until([&] { return fetched.has_value(); }));
      EXPECT_TRUE(fetched->status.ok()) << fetched->status.ToString();
      EXPECT_EQ(ValuesOf(links.job[1].parameters), ValuesOf(links.job[0].parameters));
    }
  }
  Links links(2, Plan{}, kByRing);
  std::unique_lock applies(links.job[0].store().mutex);
  links.job[0].mesh().Announce(links.now, links.MemberSeenBy(0, 1), true);
  links.job[1].mesh().StartFetch(links.now, links.MemberSeenBy(1, 0)[0]);
  links.Turns();
  for (int third = 0; third < 9; ++third) links.Later(kThird);
  EXPECT_FALSE(links.job[1].node->fetched) << "its source is inside `apply`";
  applies.unlock();
  ASSERT_TRUE(links.Until([&] { return links.job[1].node->fetched.has_value(); }));
  EXPECT_TRUE(links.job[1].node->fetched->status.ok());
}

TEST(MeshLinksTest, APullFailsWithItsLinkAndWaitsForALateAnswer) {
  const PeerItem item{.kind = PeerItem::Kind::kUpdate, .stamp = 0};
  for (const State state : {State::kCut, State::kSlow, State::kWhole}) {
    Links links(2, plans::kNeighbours, kByRing);
    Mesh& source = links.job[0].mesh();
    Mesh& taker = links.job[1].mesh();
    source.Do(links.now, SetPeers{links.MemberSeenBy(0, 1).get()});
    taker.Do(links.now, SetPeers{links.MemberSeenBy(1, 0).get()});
    source.Do(links.now, PublishUpdate{0});
    std::optional<Request> asked;
    links.job[0].node->on_request = [&](Incarnation, Request request, const PeerItem&) {
      asked = request;
      if (state != State::kWhole) source.Do(links.now, Serve{request, item, {}});
    };
    links.wires.Set(0, 1, state);
    taker.Do(links.now, StartPull{1, links.job[0].node->AsMember(0).incarnation, item});
    const auto& pulled = links.job[1].node->pulled;
    links.Turns();
    for (int third = 0; third < 9; ++third) links.Later(kThird);
    if (state == State::kCut) {
      ASSERT_EQ(pulled.size(), 1u);
      EXPECT_EQ(pulled.at(1).status.code(), Code::kDeadlineExceeded);
      continue;
    }
    EXPECT_TRUE(pulled.empty());
    links.wires.Set(0, 1, State::kWhole);
    ASSERT_TRUE(asked);
    if (state == State::kWhole) source.Do(links.now, Serve{*asked, item, {}});
    ASSERT_TRUE(links.Until([&] { return !pulled.empty(); }));
    EXPECT_TRUE(pulled.at(1).status.ok()) << pulled.at(1).status.ToString();
  }
}

// What is offered may never arrive, so that nobody pulls.
TEST(MeshLinksTest, AnOfferNamesAPeerThatDoesNotAnswer) {
  const PeerMessage offer{.kind = PeerMessage::Kind::kOffer,
                          .parcel = {.kind = PeerItem::Kind::kUpdate, .stamp = 0}};
  for (const auto& [there, back] :
       {std::pair(State::kCut, State::kCut), std::pair(State::kCut, State::kWhole),
        std::pair(State::kWhole, State::kCut)}) {
    Links links(2, plans::kNeighbours, kByRing);
    Mesh& offers = links.job[0].mesh();
    offers.Do(links.now, SetPeers{links.MemberSeenBy(0, 1).get()});
    links.job[1].mesh().Do(links.now, SetPeers{links.MemberSeenBy(1, 0).get()});
    links.wires.Set(0, 1, there);
    links.wires.Set(1, 0, back);
    const SendNote note{links.job[1].node->AsMember(0).incarnation, offer};
    offers.Do(links.now, note);
    const std::vector<Rank>& named = links.job[0].node->out_of_reach;
    for (int third = 0; third < 2; ++third) links.Later(kThird);
    EXPECT_TRUE(named.empty()) << "within the lease";
    for (int third = 0; third < 7; ++third) links.Later(kThird);
    EXPECT_EQ(named, links.Ranks({1}));
    offers.Do(links.now, note);  // again, as long as nobody has answered it
    for (int third = 0; third < 4; ++third) links.Later(kThird);
    EXPECT_EQ(named, links.Ranks({1, 1}));
  }
}

// A source that has lost the request says so.
TEST(MeshLinksTest, APullThatItsPeerDoesNotKnowFails) {
  const PeerItem item{.kind = PeerItem::Kind::kUpdate, .stamp = 0};
  Links links(2, plans::kNeighbours, kByRing);
  Mesh& source = links.job[0].mesh();
  links.job[1].mesh().Do(links.now, SetPeers{links.MemberSeenBy(1, 0).get()});
  source.Do(links.now, SetPeers{links.MemberSeenBy(0, 1).get()});
  bool asked = false;
  links.job[0].node->on_request = [&](Incarnation, Request, const PeerItem&) { asked = true; };
  links.job[1].mesh().Do(links.now, StartPull{1, links.job[0].node->AsMember(0).incarnation, item});
  ASSERT_TRUE(links.Until([&] { return asked; }));
  source.JoinRun(1, plans::kNeighbours);
  for (int third = 0; third < 3; ++third) links.Later(kThird);
  ASSERT_EQ(links.job[1].node->pulled.size(), 1u);
  EXPECT_EQ(links.job[1].node->pulled.at(1).status.code(), Code::kDeadlineExceeded);
}

}  // namespace
}  // namespace prd::mesh_links_test
