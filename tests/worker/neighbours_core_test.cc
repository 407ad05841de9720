// The steps of a worker that exchanges updates with its neighbours (HasNeighbours), message
// by message (Hop: Luo et al., ASPLOS 2019; sections are that paper's).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/plans.h"
#include "tests/worker/core_script.h"

namespace prd::neighbours_core_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kMe;
using testing::kPeer;
using testing::Script;

constexpr Incarnation kOther = 3003;
constexpr Plan kParallel = plans::kNeighbours;
constexpr Plan kSerial{.by = NeighbourPlan{.serial = true}};

PeerItem Update(Iteration iteration) {
  return {.kind = PeerItem::Kind::kUpdate, .stamp = iteration};
}

// The one neighbour, in both directions.
Neighbourhood Pair(Iteration at = 0, std::uint32_t slots = 4) {
  Neighbourhood hood{.from = {0}, .own_weight = 0.5, .slots = slots, .at = at, .reason = "because"};
  hood.in.push_back({.rank = 4, .incarnation = kPeer, .weight = 0.5});
  hood.out.push_back({.rank = 4, .incarnation = kPeer});
  return hood;
}

class NeighboursTest : public ::testing::Test {
 protected:
  // What was done since the last time, but for heartbeats.
  std::vector<std::string> Did() {
    std::vector<std::string> did;
    for (const Action& action : s.actions) {
      if (std::string text = Text(action); !text.empty()) did.push_back(std::move(text));
    }
    s.Clear();
    return did;
  }
  static std::string Text(const Action& action) {
    const auto text = [](auto number) { return std::to_string(number); };
    if (const auto* send = std::get_if<SendToController>(&action)) {
      const auto* ready = std::get_if<Ready>(&send->envelope.body);
      if (ready != nullptr) return "ready " + text(ready->iteration);
      return std::holds_alternative<Finish>(send->envelope.body) ? "finish" : "";
    }
    if (const auto* send = std::get_if<SendNote>(&action)) {
      const char* kinds[] = {"offer ", "decline ", "stored "};
      return kinds[static_cast<int>(send->note.kind)] + text(send->note.parcel.stamp);
    }
    if (const auto* pull = std::get_if<StartPull>(&action)) {
      return "pull " + text(pull->parcel.stamp);
    }
    if (const auto* mix = std::get_if<MixUpdates>(&action)) {
      return "mix " + text(mix->updates.size());
    }
    if (const auto* publish = std::get_if<PublishUpdate>(&action)) {
      return "publish " + text(publish->iteration);
    }
    if (const auto* set = std::get_if<SetIteration>(&action)) return "at " + text(set->iteration);
    if (const auto* done = std::get_if<CallDone>(&action)) {
      return done->status.ok() ? "done" : "failed";
    }
    if (const auto* meet = std::get_if<SetPeers>(&action))
      return "meet " + text(meet->peers.size());
    if (std::holds_alternative<DropPull>(action)) return "drop";
    if (std::holds_alternative<RetireUpdate>(action)) return "retire";
    if (std::holds_alternative<Serve>(action)) return "serve";
    if (std::holds_alternative<Refuse>(action)) return "refuse";
    if (std::holds_alternative<ApplyNow>(action)) return "apply";
    return {};
  }

  void Offer(Iteration iteration, Incarnation from = kPeer) {
    s.core.OnNote(
        s.now, from,
        {.kind = PeerMessage::Kind::kOffer, .parcel = Update(iteration), .version = iteration - 1},
        &s.actions);
  }
  void Pulled(Ticket ticket, bool ok = true) {
    s.core.OnPulled(s.now, ticket, ok ? Status::Ok() : Status(Code::kUnavailable, "gone"), {},
                    &s.actions);
  }
  // The neighbour's update is pulled, as this ticket.
  void Bring(Iteration iteration, Ticket ticket) {
    Offer(iteration);
    Pulled(ticket);
  }
  void Enter(Iteration asked, Iteration next) {
    s.Say(QueryReply{.iteration = asked, .next = next});
  }
  // Through the common start, and with that neighbour.
  void Join(const Plan& plan, const Neighbourhood& hood = Pair()) {
    s.Join(plan);
    s.Say(hood);
    s.Clear();
  }
  Script s;
};

// Figures 2b, 4 and 7.
TEST_F(NeighboursTest, ParallelSendsFirstThenReceivesAveragesAndApplies) {
  s.Join(kParallel);  // needs no neighbours yet
  s.Say(Pair());
  EXPECT_THAT(Did(), ElementsAre("meet 1", "publish 0", "offer 0"));
  s.Step(1);
  EXPECT_THAT(Did(), IsEmpty());
  Offer(0);
  EXPECT_THAT(Did(), ElementsAre("pull 0"));
  Pulled(1);
  EXPECT_THAT(Did(), ElementsAre("stored 0", "ready 1", "mix 1", "apply"));
  s.Applied(0);
  EXPECT_THAT(Did(), IsEmpty());
  Enter(1, 1);
  EXPECT_EQ(s.Outcome().iteration, 1);
  EXPECT_EQ(s.Outcome().rounds, 1);
  EXPECT_TRUE(s.Outcome().included);
  EXPECT_FALSE(s.Outcome().adopted);
  EXPECT_THAT(Did(), ElementsAre("at 1", "publish 1", "offer 1", "done"));
  EXPECT_EQ(s.core.iteration(), 1);
}

TEST_F(NeighboursTest, TheAnswerMayComeWhileApplyRuns) {
  Join(kParallel);
  Bring(0, 1);
  s.Step(1);
  Enter(1, 1);
  EXPECT_THAT(Did(), ElementsAre("pull 0", "stored 0", "ready 1", "mix 1", "apply"));
  EXPECT_EQ(s.core.iteration(), 0);
  s.Applied(0);
  EXPECT_THAT(Did(), ElementsAre("at 1", "publish 1", "offer 1", "done"));
}

// Figure 2a.
TEST_F(NeighboursTest, SerialSendsWhatItHasApplied) {
  Join(kSerial);
  Offer(0);
  EXPECT_THAT(Did(), ElementsAre("pull 0"));  // nothing is published: its gradient is not in it
  s.Step(1);
  EXPECT_THAT(Did(), ElementsAre("publish 0", "offer 0"));
  Pulled(1);
  EXPECT_THAT(Did(), ElementsAre("stored 0", "ready 1", "mix 1"));
  Enter(1, 1);
  EXPECT_THAT(Did(), ElementsAre("at 1", "done"));
  s.Step(2);
  EXPECT_THAT(Did(), ElementsAre("publish 1", "offer 1"));
}

TEST_F(NeighboursTest, AStepWaitsForItsNeighbourhood) {
  s.Join(kSerial);
  s.Step(1);
  EXPECT_THAT(Did(), IsEmpty());
  s.Say(Pair());
  EXPECT_THAT(Did(), ElementsAre("meet 1", "publish 0", "offer 0"));
}

TEST_F(NeighboursTest, WhoIsAloneNeedsNoUpdates) {
  Join(kParallel, Neighbourhood{});
  s.Step(1);
  EXPECT_THAT(Did(), ElementsAre("ready 1", "apply"));
  s.Applied(0);
  Enter(1, 1);
  EXPECT_EQ(s.Outcome().rounds, 0);
  EXPECT_FALSE(s.Outcome().included);
  EXPECT_THAT(Did(), ElementsAre("at 1", "publish 1", "retire", "done"));
}

TEST_F(NeighboursTest, ADiscardedGradientIsNotAppliedButItsIterationIsPassed) {
  Join(kParallel);
  Bring(0, 1);
  s.Clear();
  s.Step(1, true);
  EXPECT_THAT(Did(), ElementsAre("ready 1", "mix 1"));
  Enter(1, 1);
  EXPECT_THAT(Did(), ElementsAre("at 1", "publish 1", "offer 1", "done"));
}

TEST_F(NeighboursTest, SaysWhatItsQueuesHold) {
  Join({.by = NeighbourPlan{.backups = 1}});
  Bring(0, 1);
  Bring(1, 2);
  s.Clear();
  s.Step(1);
  EXPECT_EQ(s.Only<Ready>().queued, 2u);
  EXPECT_EQ(s.Only<Ready>().samples, 6);
  EXPECT_TRUE(s.Only<Ready>().waiting);
  s.Applied(0);
  Enter(1, 5);  // drops the update of 1, and needs none of 4
  s.core.OnNote(s.now, kPeer, {.kind = PeerMessage::Kind::kDeclined, .parcel = Update(0)},
                &s.actions);
  s.Clear();
  s.Step(6);
  EXPECT_EQ(s.Only<Ready>().queued, 0u);
  EXPECT_EQ(s.Only<Ready>().dropped, 1u);
  EXPECT_EQ(s.Only<Ready>().suppressed, 1u);
}

// Section 5: "before the jump, worker i will renew its parameters by executing Recv(k-1) and a
// following Reduce".
TEST_F(NeighboursTest, BeforeAJumpItAveragesAgain) {
  Join(kParallel, Pair(0, 3));
  Bring(0, 1);
  s.Step(1);
  Offer(1);
  Offer(5);
  EXPECT_THAT(Did(), ElementsAre("pull 0", "stored 0", "ready 1", "mix 1", "apply", "pull 1"));
  Enter(1, 6);
  EXPECT_THAT(Did(), ElementsAre("drop", "decline 1", "pull 5"));
  s.Applied(0);
  EXPECT_THAT(Did(), IsEmpty());
  Offer(6);
  Pulled(3);
  EXPECT_THAT(Did(),
              ElementsAre("pull 6", "stored 5", "mix 1", "at 6", "publish 6", "offer 6", "done"));
  EXPECT_EQ(s.core.iteration(), 6);
  s.Step(7);
  Pulled(4);
  EXPECT_THAT(Did(), ElementsAre("stored 6", "ready 7", "mix 1", "apply"));
}

TEST_F(NeighboursTest, TellsHowLongItWaited) {
  Join(kParallel);
  s.Step(1);
  s.Pass(3 * kMillisecond);
  Bring(0, 1);
  s.Pass(10 * kMillisecond);  // apply
  s.Applied(0);
  s.Pass(4 * kMillisecond);
  Enter(1, 1);
  EXPECT_EQ(s.Outcome().waited, 7 * kMillisecond);
}

TEST_F(NeighboursTest, AJoinerGoesOnWhereTheControllerCountsIt) {
  s.Join(kParallel);
  s.Say(Pair(7));
  EXPECT_THAT(Did(), ElementsAre("at 7", "meet 1", "publish 7", "offer 7"));
  Bring(7, 1);
  s.Clear();
  s.Step(8);
  EXPECT_THAT(Did(), ElementsAre("ready 8", "mix 1", "apply"));
}

TEST_F(NeighboursTest, ItsOwnAnswerOnItsWayInIsNoReasonToSkip) {
  Join(kParallel);
  Bring(0, 1);
  s.Step(1);
  Enter(1, 1);
  s.Clear();
  s.Say(Pair(1));  // as the controller counts; apply still runs
  EXPECT_THAT(Did(), ElementsAre("meet 1"));
  EXPECT_EQ(s.core.iteration(), 0);
  s.Applied(0);
  EXPECT_THAT(Did(), ElementsAre("at 1", "publish 1", "offer 1", "done"));
}

TEST_F(NeighboursTest, GoesOnWhenANeighbourIsNoneAnyMore) {
  Join(kParallel);
  s.Step(1);
  EXPECT_THAT(Did(), IsEmpty());
  Neighbourhood other{.from = {3}, .own_weight = 0.5};
  other.in.push_back({.rank = 5, .incarnation = kOther, .weight = 0.5});
  other.out.push_back({.rank = 5, .incarnation = kOther});
  s.Say(other);
  EXPECT_THAT(Did(), ElementsAre("meet 1", "offer 0", "ready 1", "apply"));
}

TEST_F(NeighboursTest, OffersToANewNeighbourWhileApplyRuns) {
  s.Join(kParallel);
  s.Say(Neighbourhood{});
  s.Step(1);
  s.Clear();
  s.Say(Pair());
  EXPECT_THAT(Did(), ElementsAre("meet 1", "offer 0"));  // it is published already
  s.core.OnRequest(s.now, kPeer, 1, Update(0), &s.actions);
  EXPECT_THAT(Did(), ElementsAre("serve"));
}

// ---- the end ----

TEST_F(NeighboursTest, AfterItsLastStepItIsNoNeighbour) {
  Join(kParallel);
  Offer(0);
  s.Clear();
  s.core.Finish(s.now, &s.actions);
  EXPECT_THAT(Did(), ElementsAre("finish", "drop", "retire", "meet 0"));
  s.Say(Pair());
  Offer(1);
  s.core.OnRequest(s.now, kPeer, 1, Update(0), &s.actions);
  EXPECT_THAT(Did(), ElementsAre("refuse"));
  s.Say(Script::MakeGroup(2, GroupKind::kFinal, 0));
  s.Reduced(2);
  s.Say(Released{.reason = "all done"});
  EXPECT_THAT(Did(), ElementsAre("done"));
}

TEST_F(NeighboursTest, ACancelledStepEndsOnceApplyHasRun) {
  Join(kParallel);
  Bring(0, 1);
  s.Step(1);
  s.core.Cancel(s.now, &s.actions);
  s.Clear();
  s.Applied(0);
  EXPECT_THAT(Did(), ElementsAre("failed"));
}

TEST_F(NeighboursTest, AStepThatTimedOutIsGoneOnWith) {
  s.Attach(kSecond);
  s.Welcome(kParallel);
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  s.Say(Pair());
  Bring(0, 1);
  s.Clear();
  s.Step(1);
  s.Applied(0);
  s.Pass(kSecond);
  EXPECT_THAT(s.Said<Ready>().size(), 2u);  // the one, and again as it was not acknowledged
  s.Acknowledge();
  EXPECT_EQ(s.Done()->code(), Code::kUnavailable);
  s.Clear();
  s.core.Finish(s.now, &s.actions);
  EXPECT_THAT(Did(), IsEmpty());
  Enter(1, 1);
  EXPECT_THAT(Did(), ElementsAre("finish", "retire", "meet 0"));
}

// ---- new lives ----

TEST_F(NeighboursTest, ANewIncarnationBeginsAnew) {
  Join(kParallel);
  Bring(0, 1);
  Offer(1);
  s.Step(1);
  s.core.GiveIncarnation(4004);
  s.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
  s.Pass(kSecond);
  ASSERT_EQ(s.core.incarnation(), kMe) << "while `apply` runs";
  s.Applied(0);
  s.Pass(0);
  ASSERT_EQ(s.core.incarnation(), 4004u);
  s.Clear();
  Pulled(2);
  Offer(1);
  EXPECT_THAT(Did(), IsEmpty());
  s.Welcome(kParallel);
  s.SayAdopt();
  EXPECT_EQ(s.Count<StartFetch>(), 1u);
  s.Fetched(6);
  EXPECT_TRUE(s.Outcome().adopted);
  EXPECT_THAT(Did(), ElementsAre("done"));
  s.Say(Pair(8));
  EXPECT_THAT(Did(), ElementsAre("at 8", "meet 1", "publish 8", "offer 8"));
  Bring(8, 1);  // tickets begin anew
  s.Clear();
  s.Step(9);
  EXPECT_THAT(Did(), ElementsAre("ready 9", "mix 1", "apply"));
}

// ---- a controller that makes no sense ----

TEST_F(NeighboursTest, RefusesNeighboursThatCannotBe) {
  const auto refused = [](const Neighbourhood& hood) {
    Script script;
    script.Join(kParallel);
    script.Say(hood);
    script.Step(1);
    return script.Done() ? script.Done()->message() : std::string();
  };
  EXPECT_THAT(refused(Pair()), "");
  Neighbourhood hood = Pair();
  hood.from.clear();
  EXPECT_THAT(refused(hood), HasSubstr("from when on"));
  hood = Pair();
  hood.own_weight = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(refused(hood), HasSubstr("not a number"));
  hood = Pair();
  hood.in.Mutable()[0].weight = -1;
  EXPECT_THAT(refused(hood), HasSubstr("not a number"));
  hood = Pair();
  hood.out.Mutable()[0].incarnation = kMe;
  EXPECT_THAT(refused(hood), HasSubstr("in it itself"));
  hood = Pair();
  hood.out.push_back({.rank = 5, .incarnation = kPeer});
  EXPECT_THAT(refused(hood), HasSubstr("twice"));
}

TEST_F(NeighboursTest, RefusesAnIterationItCannotEnter) {
  const auto refused = [](Iteration asked, Iteration next) {
    Script script;
    script.Join(kParallel);
    script.Say(Neighbourhood{});
    script.Step(1);
    script.Applied(0);
    script.Say(QueryReply{.iteration = asked, .next = next});
    return script.Done() && script.Done()->code() == Code::kDataLoss;
  };
  EXPECT_FALSE(refused(1, 1));
  EXPECT_TRUE(refused(1, 0));
  EXPECT_TRUE(refused(2, 2));
  EXPECT_TRUE(refused(1, std::numeric_limits<Iteration>::max()));
  Join(kParallel, Neighbourhood{});
  Enter(1, 1);  // asked for by nobody
  s.Step(1);
  EXPECT_THAT(Did(), ElementsAre("ready 1", "apply"));
}

// What it asked for on its own count would be of an iteration that is long over.
TEST_F(NeighboursTest, WhoResumesIsToldFirstWhereItGoesOn) {
  Join(kParallel, Neighbourhood{});
  s.core.Pause(s.now, &s.actions);
  s.Clear();
  s.core.Resume(s.now, &s.actions);
  s.Say(Resumed{});
  EXPECT_THAT(Did(), ElementsAre("done"));
  s.Step(1);
  EXPECT_THAT(Did(), IsEmpty());
  s.Say(Neighbourhood{.at = 7});
  EXPECT_THAT(Did(), ::testing::IsSupersetOf({"at 7", "ready 8"}));
}

TEST_F(NeighboursTest, AbsurdSlotsAreNoReasonToReserveThem) {
  Join(kParallel, Pair(0, std::numeric_limits<std::uint32_t>::max()));
  Offer(1'000'000);
  EXPECT_THAT(Did(), ElementsAre("pull 1000000"));
}

}  // namespace
}  // namespace prd::neighbours_core_test
