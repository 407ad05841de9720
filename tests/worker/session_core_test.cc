// The protocol of one worker, message by message, against a controller that is a script.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/plans.h"
#include "tests/worker/core_script.h"

namespace prd::session_core_test {
namespace {

using ::testing::HasSubstr;
using testing::kMe;
using testing::kPeer;
using testing::Script;

TEST(SessionCoreTest, HelloIsRepeatedUntilAnswered) {
  Script s;
  s.Attach();
  ASSERT_EQ(s.Said<Hello>().size(), 1u);
  EXPECT_EQ(s.Said<Hello>()[0].rank, 3);
  EXPECT_EQ(s.Sent()[0].seq, 1u);
  EXPECT_EQ(s.Sent()[0].run, kNoRun);
  EXPECT_EQ(s.core.NextDeadline(), s.now + 250 * kMillisecond);
  s.Pass(250 * kMillisecond);
  EXPECT_EQ(s.Said<Hello>().size(), 2u);
  s.core.OnConnected(s.now, &s.actions);
  EXPECT_EQ(s.Said<Hello>().size(), 3u);
  // Nothing but Welcome and Refused counts yet, not even an acknowledgement.
  s.heard = 1;
  s.Aside(HeartbeatAck{});
  s.SayAt(1, Released{});
  s.SayAt(2, prd::Welcome{.run = 9, .rank = 3});
  EXPECT_FALSE(s.Done().has_value());
  s.Welcome();
  EXPECT_EQ(s.Count<JoinRun>(), 1u);
  const std::size_t hellos = s.Said<Hello>().size();
  s.Pass(kSecond);
  EXPECT_EQ(s.Said<Hello>().size(), hellos);
  EXPECT_GE(s.Said<Heartbeat>().size(), 2u);
  EXPECT_EQ(s.Sent().back().run, 9u);
  EXPECT_EQ(s.Sent().back().ack, 1u);
}

TEST(SessionCoreTest, CommonStartEndsAttach) {
  Script s;
  s.Attach();
  s.Welcome();
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 4));
  EXPECT_EQ(s.Count<StartReduce>(), 1u);
  EXPECT_FALSE(s.Done().has_value());
  s.core.OnReduced(s.now, 1, Status::Ok(), 10, &s.actions);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.core.iteration(), 4);
  ASSERT_EQ(s.Said<Finished>().size(), 1u);
  EXPECT_EQ(s.Said<Finished>()[0].outcome, Outcome::kOk);
}

// Also of a message that is about something else, or that has to wait: whoever turns to this worker
// is known by then.
TEST(SessionCoreTest, WhomeverTheControllerNamesIsAnnounced) {
  const auto member = [](Rank rank) {
    return GroupMember{.rank = rank, .incarnation = 100 + static_cast<Incarnation>(rank)};
  };
  testing::Script s;
  s.Join();
  s.announced.clear();
  s.Say(Announce{.members = {member(1), member(2)}});
  s.Say(Probe{.targets = {member(3)}});
  s.Say(Members{.members = {member(4)}});
  EXPECT_EQ(s.announced, (std::set<Incarnation>{101, 102, 103, 104}));
  EXPECT_TRUE(s.Sent().empty()) << "none of them is answered";
  s.Say(s.MakeGroup(2));  // for which there is no signal
  s.SayAdopt();
  EXPECT_TRUE(s.announced.contains(testing::kPeer));
  s.announced.clear();
  s.SayAt(s.seq, Announce{.members = {member(5)}});
  EXPECT_TRUE(s.announced.empty()) << "it came before";
}

TEST(SessionCoreTest, WhoIsOutIsForgottenOnceAndAnOrderToCopyIsPassedOn) {
  testing::Script s;
  s.Join();
  s.Say(Announce{.members = {{.rank = 1, .incarnation = 101}}});
  s.Say(Announce{.members = {{.rank = 2, .incarnation = 102}}, .copies = true});
  EXPECT_EQ(s.ordered, std::set<Incarnation>{102});
  s.Say(Gone{.incarnations = {101, 102}});
  ASSERT_EQ(s.Count<ForgetMembers>(), 1u);
  for (const Action& action : s.actions) {
    const auto* forget = std::get_if<ForgetMembers>(&action);
    EXPECT_TRUE(forget == nullptr || forget->incarnations == (std::vector<Incarnation>{101, 102}));
  }
  EXPECT_TRUE(s.Sent().empty()) << "it is not answered";
  s.actions.clear();
  s.SayAt(s.seq, Gone{.incarnations = {103}});
  EXPECT_EQ(s.Count<ForgetMembers>(), 0u) << "it came before";
}

TEST(SessionCoreTest, FailedCommonStartIsWaitedForAgain) {
  Script s;
  s.Attach();
  s.Welcome();
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.core.OnReduced(s.now, 1, Status(Code::kUnavailable, "peer gone"), 10, &s.actions);
  EXPECT_EQ(s.Said<Finished>()[0].outcome, Outcome::kFailed);
  EXPECT_EQ(s.Said<Finished>()[0].detail, "peer gone");
  EXPECT_FALSE(s.Done().has_value());
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.Say(Script::MakeGroup(2, GroupKind::kInitial, 0));
  s.core.OnReduced(s.now, 2, Status::Ok(), 10, &s.actions);
  EXPECT_TRUE(s.Done()->ok());
}

TEST(SessionCoreTest, StepWithAveragedModels) {
  Script s;
  s.Join();
  s.Step(1);
  ASSERT_EQ(s.Said<Ready>().size(), 1u);
  EXPECT_EQ(s.Signal(), (Ready{.iteration = 1, .step_ns = 5, .samples = 6}));
  s.now = s.now + 7 * kMillisecond;
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 5));
  s.now = s.now + 3 * kMillisecond;
  s.core.OnReduced(s.now, 2, Status::Ok(), 100, &s.actions);
  ASSERT_TRUE(s.Done()->ok());
  const StepOutcome step = s.Outcome();
  EXPECT_EQ(step.iteration, 5);
  EXPECT_EQ(step.attempts, 1);
  EXPECT_FALSE(step.adopted);
  EXPECT_EQ(step.waited, 7 * kMillisecond);
  EXPECT_EQ(step.reduced, 3 * kMillisecond);
  EXPECT_EQ(step.group.reason, "because");
  const Finished finished = s.Said<Finished>().at(0);
  EXPECT_EQ(finished.wait_ns, 7 * kMillisecond);
  EXPECT_EQ(finished.reduce_ns, 3 * kMillisecond);
  EXPECT_EQ(finished.bytes, 100u);
}

TEST(SessionCoreTest, StepWithReducedGradientsReportsAfterApply) {
  Script s;
  s.Join(plans::kGradients);
  s.Step(1);
  EXPECT_EQ(s.core.iteration(), 0);
  s.Say(Script::MakeGroup(2));
  s.core.OnReduced(s.now, 2, Status::Ok(), 100, &s.actions);
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  EXPECT_TRUE(s.Said<Finished>().empty());
  // An abort that is late for this worker: it has the sum, and reports so.
  s.Say(Abort{.group = 2, .reason = "late"});
  s.core.Applied(s.now, 1, 1, &s.actions);
  ASSERT_EQ(s.Said<Finished>().size(), 1u);
  EXPECT_EQ(s.Said<Finished>()[0].outcome, Outcome::kOk);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.core.iteration(), 1);
}

// A digest that the group asks for is of the parameters with the result: after `apply`, where the
// result is gradients, else as the data plane says.
TEST(SessionCoreTest, TellsTheDigestThatAGroupAsksFor) {
  for (const bool asked : {true, false}) {
    Script s;
    s.Join(plans::kGradients);
    s.Step(1);
    Group group = Script::MakeGroup(2);
    group.digest = asked;
    s.Say(group);
    s.core.OnReduced(s.now, 2, Status::Ok(), 100, &s.actions);
    EXPECT_EQ(std::get<ApplyNow>(s.actions.back()).digest, asked);
    s.core.Applied(s.now, 1, 1, &s.actions, asked ? 77 : 0);
    EXPECT_EQ(s.Only<Finished>().digest, asked ? 77u : 0u);
    // The next group does not ask, and one that fails has nothing to tell.
    s.actions.clear();
    s.Step(2);
    s.Say(Script::MakeGroup(3, GroupKind::kTrain, 2));
    s.core.OnReduced(s.now, 3, Status::Ok(), 100, &s.actions);
    EXPECT_FALSE(std::get<ApplyNow>(s.actions.back()).digest);
    s.core.Applied(s.now, 2, 1, &s.actions);
    EXPECT_EQ(s.Only<Finished>().digest, 0u);
  }
  for (const GroupKind kind : {GroupKind::kTrain, GroupKind::kAverage}) {
    Script s;
    s.Join(kind == GroupKind::kTrain ? plans::kModels : plans::kRounds);
    s.Step(1);
    s.actions.clear();
    Group group = Script::MakeGroup(2, kind, 1);
    group.digest = true;
    s.Say(group);
    s.core.OnReduced(s.now, 2, Status::Ok(), 100, &s.actions, {}, 78);
    EXPECT_EQ(s.Only<Finished>().digest, 78u);
  }
}

// Once a device is about to commit the result, it alone knows whether it did.
TEST(SessionCoreTest, AnAbortOfWhatIsHandedOverIsReportedAsTheDeviceSaysItEnded) {
  for (const bool committed : {true, false}) {
    Script s;
    s.Join();
    s.Step(1);
    s.Say(Script::MakeGroup(2, GroupKind::kTrain, 5));
    EXPECT_FALSE(s.core.HandedOver(1).has_value());
    const std::optional<StepOutcome> expected = s.core.HandedOver(2);
    ASSERT_TRUE(expected.has_value());
    EXPECT_EQ(expected->iteration, 5);
    s.Say(Abort{.group = 2, .reason = "rank 4 is gone"});
    EXPECT_EQ(s.Count<GiveUpReduce>(), 1u);
    EXPECT_EQ(s.Count<CancelReduce>(), 0u);
    EXPECT_TRUE(s.Said<Finished>().empty());
    EXPECT_FALSE(s.Done().has_value());
    const Status end = committed ? Status::Ok() : Status(Code::kAborted, "rank 4 is gone");
    s.core.OnReduced(s.now, 2, end, 0, &s.actions);
    ASSERT_EQ(s.Said<Finished>().size(), 1u);
    EXPECT_EQ(s.Said<Finished>()[0].outcome, committed ? Outcome::kOk : Outcome::kAborted);
    EXPECT_EQ(s.core.iteration(), committed ? 5 : 1);
    EXPECT_EQ(s.Done().has_value(), committed);
    EXPECT_EQ(s.Said<Ready>().size(), committed ? 1u : 2u);
  }
}

TEST(SessionCoreTest, FailedAndAbortedGroupsAreTriedAgainWithTheSameSignal) {
  Script s;
  s.Join();
  s.Step(1);
  s.Say(Script::MakeGroup(2));
  s.core.OnReduced(s.now, 2, Status(Code::kUnavailable, "gone"), 0, &s.actions);
  s.Say(Abort{.group = 2, .reason = "gone"});  // crossed our report: ignored
  s.Say(Script::MakeGroup(3));
  s.Say(Abort{.group = 3, .reason = "rank 4 is gone"});
  EXPECT_EQ(s.Count<CancelReduce>(), 1u);
  s.core.OnReduced(s.now, 3, Status::Ok(), 0, &s.actions);  // of a reduction that is off
  s.Say(Script::MakeGroup(4));
  s.core.OnReduced(s.now, 4, Status::Ok(), 0, &s.actions);
  ASSERT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.Outcome().attempts, 3);
  const auto finished = s.Said<Finished>();
  ASSERT_EQ(finished.size(), 3u);
  EXPECT_EQ(finished[0].outcome, Outcome::kFailed);
  EXPECT_EQ(finished[1].outcome, Outcome::kAborted);
  EXPECT_EQ(finished[2].outcome, Outcome::kOk);
  const auto ready = s.Said<Ready>();
  ASSERT_EQ(ready.size(), 3u);
  EXPECT_EQ(ready[2], ready[0]);
}

TEST(SessionCoreTest, AdoptVoidsTheWaitingSignalAndEndsTheStep) {
  Script s;
  s.Join();
  s.Step(1);
  s.Say(Adopt{.source = {.rank = 4, .incarnation = kPeer}});
  EXPECT_EQ(s.Count<StartFetch>(), 1u);
  s.core.OnFetched(s.now, Status::Ok(), 8, &s.actions);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_TRUE(s.Outcome().adopted);
  EXPECT_EQ(s.Outcome().iteration, 8);
  EXPECT_EQ(s.Said<Adopted>().at(0), (Adopted{.ok = true, .iteration = 8}));
  EXPECT_EQ(s.Said<Ready>().size(), 1u);
  s.actions.clear();
  s.Step(9);
  EXPECT_EQ(s.Said<Ready>().at(0).iteration, 9);
}

// A worker whose copy came too late for the controller to keep it has signalled, and then takes
// part in a common start with other such workers.
TEST(SessionCoreTest, ACommonStartVoidsTheWaitingSignal) {
  for (const Plan& plan : {plans::kModels, plans::kGradients, plans::kRounds, plans::kNewestRound,
                           plans::kAsked, plans::kAhead}) {
    Script s;
    s.Join(plan);
    s.Step(1);
    ASSERT_FALSE(s.Said<Ready>().empty());
    ASSERT_FALSE(s.Done());
    s.Clear();
    s.Say(Script::MakeGroup(2, GroupKind::kInitial, 5));
    s.Reduced(2);
    EXPECT_TRUE(s.Outcome().adopted);
    s.Clear();
    s.Step(6);
    ASSERT_FALSE(s.Said<Ready>().empty());
    EXPECT_TRUE(s.Said<Ready>().back().waiting);
  }
}

TEST(SessionCoreTest, AdoptThatFailsIsReportedAndTheSignalSentAgain) {
  Script s;
  s.Join();
  s.Step(1);
  s.Say(Adopt{.source = {.rank = 4, .incarnation = kPeer}});
  s.core.OnFetched(s.now, Status(Code::kUnavailable, "gone"), 0, &s.actions);
  EXPECT_FALSE(s.Said<Adopted>().at(0).ok);
  EXPECT_EQ(s.Said<Ready>().size(), 2u);
  EXPECT_FALSE(s.Done().has_value());
}

TEST(SessionCoreTest, JoinerWaitsForAnotherSourceAfterAFailure) {
  Script s;
  s.Attach();
  s.Welcome();
  s.Say(Adopt{.source = {.rank = 4, .incarnation = kPeer}});
  s.core.OnFetched(s.now, Status(Code::kUnavailable, "gone"), 0, &s.actions);
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.Say(Adopt{.source = {.rank = 5, .incarnation = kPeer}});
  s.core.OnFetched(s.now, Status::Ok(), 12, &s.actions);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.core.iteration(), 12);
}

TEST(SessionCoreTest, DuplicatesAndReorderedMessagesAreHarmless) {
  Script s;
  s.Join();
  s.Step(1);
  const Seq next = s.seq + 1;
  s.SayAt(next + 1, Abort{.group = 2});  // its predecessor is missing
  EXPECT_EQ(s.Count<StartReduce>(), 0u);
  s.SayAt(next, Script::MakeGroup(2));
  s.SayAt(next, Script::MakeGroup(2));
  EXPECT_EQ(s.Count<StartReduce>(), 1u);
  EXPECT_EQ(s.Count<CancelReduce>(), 0u);
  // The gap and the duplicate are answered with what has been received.
  EXPECT_EQ(s.core.NextDeadline(), s.now);
  s.Pass(0);
  EXPECT_EQ(s.Said<Heartbeat>().size(), 1u);
  EXPECT_EQ(s.Sent().back().ack, next);
  s.SayAt(next + 1, Abort{.group = 2});
  EXPECT_EQ(s.Count<CancelReduce>(), 1u);
  EXPECT_EQ(s.Said<Finished>().size(), 1u);
}

TEST(SessionCoreTest, UnacknowledgedMessagesAreSentAgainInOrderWithBackoff) {
  Script s;
  s.Join();
  s.Step(1);
  s.Say(Script::MakeGroup(2));
  s.core.OnReduced(s.now, 2, Status::Ok(), 0, &s.actions);
  s.actions.clear();
  s.Pass(250 * kMillisecond);
  const auto again = s.Sent();
  ASSERT_GE(again.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<Ready>(again[0].body));
  EXPECT_TRUE(std::holds_alternative<Finished>(again[1].body));
  EXPECT_EQ(again[0].seq + 1, again[1].seq);
  s.actions.clear();
  s.Pass(250 * kMillisecond);
  EXPECT_TRUE(s.Said<Ready>().empty()) << "too soon";
  s.Pass(250 * kMillisecond);
  EXPECT_EQ(s.Said<Ready>().size(), 1u);
  s.heard = again[0].seq;
  s.Aside(HeartbeatAck{});
  s.actions.clear();
  s.Pass(250 * kMillisecond);
  EXPECT_TRUE(s.Said<Ready>().empty()) << "acknowledged";
  EXPECT_EQ(s.Said<Finished>().size(), 1u);
}

TEST(SessionCoreTest, AFailedGroupNamesTheMembersThatWereOutOfReach) {
  for (const GroupKind kind : {GroupKind::kTrain, GroupKind::kFinal}) {
    Script s;
    s.Join();
    if (kind == GroupKind::kTrain) s.Step(1);
    if (kind == GroupKind::kFinal) s.core.Finish(s.now, &s.actions);
    s.Clear();
    s.Say(Script::MakeGroup(2, kind));
    s.core.OnReduced(s.now, 2, Status(Code::kDeadlineExceeded, "silent"), 0, &s.actions, {4});
    EXPECT_EQ(s.Only<Finished>().unreachable, std::vector<Rank>{4});
    s.Clear();
    s.Say(Script::MakeGroup(3, kind));
    s.core.OnReduced(s.now, 3, Status(Code::kAborted, "given up"), 0, &s.actions);
    EXPECT_EQ(s.Only<Finished>().unreachable, std::vector<Rank>());
    s.Clear();
    s.Say(Script::MakeGroup(4, kind));
    s.Say(Abort{.group = 4, .reason = "r"});
    EXPECT_EQ(s.Only<Finished>().unreachable, std::vector<Rank>());
  }
}

TEST(SessionCoreTest, ProbesAreForTheMeshAndTheirAnswersForTheController) {
  const auto targets = [](const Script& s) {
    std::vector<std::size_t> counts;
    for (const Action& action : s.actions) {
      if (const auto* probe = std::get_if<ProbePeers>(&action)) {
        counts.push_back(probe->targets.size());
      }
    }
    return counts;
  };
  Script s;
  s.Join();
  s.Step(1);
  s.Clear();
  s.Say(Probe{.targets = Script::MakeGroup(9).members});
  EXPECT_EQ(targets(s), std::vector<std::size_t>{2});
  s.core.OnProbed(s.now, 4, kPeer, &s.actions);
  EXPECT_EQ(s.Only<Probed>(), (Probed{.rank = 4, .incarnation = kPeer}));
  EXPECT_FALSE(s.Done().has_value()) << "the step goes on";
  s.Clear();
  s.Say(Released{});
  EXPECT_EQ(targets(s), std::vector<std::size_t>{0}) << "with the session the probe is over";
  s.Clear();
  s.core.OnProbed(s.now, 4, kPeer, &s.actions);
  EXPECT_TRUE(s.Said<Probed>().empty());
}

TEST(SessionCoreTest, MessagesForAnotherIncarnationAreNotForUs) {
  Script s;
  s.Join();
  s.core.OnEnvelope(s.now, {.incarnation = 5, .seq = s.seq + 1, .body = Released{}}, &s.actions);
  s.core.OnEnvelope(s.now, {.incarnation = 5, .body = Refused{.code = Code::kInvalidArgument}},
                    &s.actions);
  s.Step(1);
  EXPECT_FALSE(s.Done().has_value());
}

TEST(SessionCoreTest, FinishWaitsForTheFinalAverageAndTheRelease) {
  Script s;
  s.Join();
  s.core.Finish(s.now, &s.actions);
  EXPECT_EQ(s.Said<Finish>().size(), 1u);
  // The first final group fails: there will be another, without another Finish.
  s.Say(Script::MakeGroup(2, GroupKind::kFinal));
  s.core.OnReduced(s.now, 2, Status(Code::kUnavailable, "gone"), 0, &s.actions);
  s.Say(Script::MakeGroup(3, GroupKind::kFinal));
  s.core.OnReduced(s.now, 3, Status::Ok(), 0, &s.actions);
  EXPECT_FALSE(s.Done().has_value());
  s.Say(Released{.reason = "the job is done"});
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.Said<Finish>().size(), 1u);
  EXPECT_EQ(s.core.NextDeadline(), std::nullopt);
}

TEST(SessionCoreTest, ReleaseThatWasLostShowsAsARefusal) {
  Script s;
  s.Join();
  s.core.Finish(s.now, &s.actions);
  s.Say(Script::MakeGroup(2, GroupKind::kFinal));
  s.core.OnReduced(s.now, 2, Status::Ok(), 0, &s.actions);
  s.Aside(Refused{.code = Code::kAborted, .reason = "run 9 is not running here"});
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.Count<BecomeIncarnation>(), 0u);
}

TEST(SessionCoreTest, TakenRankIsAskedForAgainWhenTold) {
  Script s;
  s.Attach(10 * kSecond);
  s.Aside(Refused{.code = Code::kUnavailable, .reason = "rank 3 is held", .retry_ms = 600});
  EXPECT_EQ(s.core.NextDeadline(), s.now + 600 * kMillisecond);
  s.Pass(600 * kMillisecond);
  EXPECT_EQ(s.Said<Hello>().size(), 2u);
  EXPECT_EQ(s.Sent().back().incarnation, kMe);
  for (int i = 0; i < 40; ++i) {
    s.Pass(300 * kMillisecond);
    if (s.Done()) break;
    s.Aside(Refused{.code = Code::kUnavailable, .reason = "rank 3 is held", .retry_ms = 300});
  }
  ASSERT_TRUE(s.Done().has_value());
  EXPECT_EQ(s.Done()->code(), Code::kUnavailable);
  EXPECT_THAT(s.Done()->message(), HasSubstr("rank 3 is held"));
}

TEST(SessionCoreTest, FinalRefusalEndsTheCallWithItsReason) {
  for (const Code code : {Code::kInvalidArgument, Code::kNotFound, Code::kResourceExhausted}) {
    Script s;
    s.Attach();
    s.Aside(Refused{.code = code, .reason = "so it is"});
    EXPECT_EQ(*s.Done(), Status(code, "so it is"));
    s.actions.clear();
    s.Step(1);
    EXPECT_FALSE(s.Done()->ok());
  }
  Script s;
  s.Join();
  s.Step(1);
  s.Aside(Refused{.code = Code::kInvalidArgument, .reason = "broke the protocol"});
  EXPECT_EQ(s.Done()->code(), Code::kAborted);
  EXPECT_THAT(s.Done()->message(), HasSubstr("broke the protocol"));
}

TEST(SessionCoreTest, LostMembershipIsANewIncarnationWithTheSameRank) {
  Script s;
  s.Join();
  s.Step(1);
  s.Say(Script::MakeGroup(2));
  s.core.GiveIncarnation(kMe + 1);
  s.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
  EXPECT_EQ(s.Count<CancelReduce>(), 1u);
  s.Pass(100 * kMillisecond);
  EXPECT_EQ(s.core.incarnation(), kMe + 1);
  ASSERT_EQ(s.Said<Hello>().size(), 1u);
  EXPECT_EQ(s.Said<Hello>()[0].rank, 3);
  EXPECT_EQ(s.Said<Hello>()[0].iteration, 1);
  EXPECT_EQ(s.Sent().back().seq, 1u);
  s.core.OnReduced(s.now, 2, Status::Ok(), 0, &s.actions);  // of the life before
  EXPECT_FALSE(s.Done().has_value());
  s.Welcome();
  EXPECT_EQ(s.Said<Ready>().size(), 1u) << "only the first life's";
  s.Say(Adopt{.source = {.rank = 4, .incarnation = kPeer}});
  s.core.OnFetched(s.now, Status::Ok(), 30, &s.actions);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_TRUE(s.Outcome().adopted);
}

// The run in which the worker trained has ended while the worker was away: it does not begin
// another one, and hears so in the call in progress or in the next one.
TEST(SessionCoreTest, WhoComesBackToAFinishedRunIsAborted) {
  for (const bool in_step : {true, false}) {
    Script s;
    s.Join();
    if (in_step) s.Step(1);
    s.core.GiveIncarnation(kMe + 1);
    s.now = s.now + kSecond;
    s.Aside(Refused{.code = Code::kAborted, .reason = "run 9 is not running here"});
    s.Pass(100 * kMillisecond);
    ASSERT_EQ(s.Said<Hello>().size(), 1u);
    EXPECT_EQ(s.Said<Hello>()[0].former, s.identity);
    s.Aside(Refused{.code = Code::kFailedPrecondition, .reason = "run 9 of job job has ended"});
    if (!in_step) s.Step(1);
    ASSERT_TRUE(s.Done().has_value());
    EXPECT_EQ(*s.Done(), Status(Code::kAborted, "refused: run 9 of job job has ended"));
    s.actions.clear();
    s.now = s.now + 10 * kSecond;
    s.core.OnTime(s.now, &s.actions);
    EXPECT_TRUE(s.Said<Hello>().empty());
    s.core.Finish(s.now, &s.actions);
    EXPECT_EQ(s.Done()->code(), Code::kAborted);
  }
}

TEST(SessionCoreTest, AnAttachThatLastsLongerThanItsRunIsAborted) {
  Script s;
  s.Attach();
  s.Welcome(plans::kStore);
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  ASSERT_FALSE(s.Done().has_value()) << "the shards are not there";
  s.core.GiveIncarnation(kMe + 1);
  s.now = s.now + kSecond;
  s.Aside(Refused{.code = Code::kAborted, .reason = "run 9 is not running here"});
  s.Pass(100 * kMillisecond);
  s.Aside(Refused{.code = Code::kFailedPrecondition, .reason = "run 9 of job job has ended"});
  ASSERT_TRUE(s.Done().has_value());
  EXPECT_EQ(*s.Done(), Status(Code::kAborted, "refused: run 9 of job job has ended"));
}

TEST(SessionCoreTest, MembershipLostWhileComputingIsRegainedAtTheNextStep) {
  Script s;
  s.Join();
  s.core.GiveIncarnation(kMe + 1);
  s.now = s.now + kSecond;
  s.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
  s.Welcome();
  s.Say(Adopt{.source = {.rank = 4, .incarnation = kPeer}});
  EXPECT_EQ(s.Count<StartFetch>(), 0u) << "the replica is the user's now";
  s.Step(1);
  EXPECT_EQ(s.Count<StartFetch>(), 1u);
  s.core.OnFetched(s.now, Status::Ok(), 30, &s.actions);
  EXPECT_TRUE(s.Outcome().adopted);
}

TEST(SessionCoreTest, MembershipLostDuringApplyLetsTheStepEnd) {
  Script s;
  s.Join(plans::kGradients);
  s.Step(1);
  s.Say(Script::MakeGroup(2));
  s.core.OnReduced(s.now, 2, Status::Ok(), 0, &s.actions);
  s.core.GiveIncarnation(kMe + 1);
  s.now = s.now + kSecond;
  s.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
  s.Welcome(plans::kGradients);
  s.core.Applied(s.now, 1, 1, &s.actions);
  EXPECT_TRUE(s.Said<Finished>().empty()) << "the new incarnation was in no group";
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.Outcome().iteration, 1);
}

TEST(SessionCoreTest, TimeoutEndsAStepAndTheNextOneGoesOn) {
  Script s;
  s.Attach(kSecond);
  s.Welcome();
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.core.OnReduced(s.now, 1, Status::Ok(), 0, &s.actions);
  s.Acknowledge();
  s.actions.clear();
  s.Step(1);
  s.Pass(900 * kMillisecond);
  s.Aside(HeartbeatAck{});  // the controller lives: waiting for a group has no limit
  s.Pass(900 * kMillisecond);
  EXPECT_FALSE(s.Done().has_value());
  s.Pass(200 * kMillisecond);
  EXPECT_EQ(s.Done()->code(), Code::kUnavailable);
  s.actions.clear();
  // The signal may have arrived: it is not doubled.
  s.Step(2);
  for (const WorkerEnvelope& envelope : s.Sent()) EXPECT_LE(envelope.seq, 3u);
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 2));
  s.core.OnReduced(s.now, 2, Status::Ok(), 0, &s.actions);
  EXPECT_TRUE(s.Done()->ok());
}

TEST(SessionCoreTest, GroupsThatComeOutsideAStepFailOrWait) {
  Script s;
  s.Join();
  s.Step(1);
  s.core.Cancel(s.now, &s.actions);
  EXPECT_EQ(s.Done()->code(), Code::kCancelled);
  s.Say(Script::MakeGroup(2));
  EXPECT_EQ(s.Said<Finished>().at(0).outcome, Outcome::kFailed);
  EXPECT_EQ(s.Count<StartReduce>(), 0u);
  s.actions.clear();
  s.Step(2);
  EXPECT_EQ(s.Done()->code(), Code::kCancelled);
  EXPECT_TRUE(s.Sent().empty());
}

TEST(SessionCoreTest, CancelCallsOffWhatRuns) {
  Script s;
  s.Join();
  s.Step(1);
  s.Say(Script::MakeGroup(2));
  s.core.Cancel(s.now, &s.actions);
  EXPECT_EQ(s.Count<CancelReduce>(), 1u);
  EXPECT_EQ(s.Said<Finished>().at(0).outcome, Outcome::kFailed);
  EXPECT_EQ(s.Done()->code(), Code::kCancelled);
  s.actions.clear();
  s.core.Leave(s.now, "bye", &s.actions);
  ASSERT_EQ(s.Said<Leave>().size(), 1u);
  s.Say(Released{.reason = "left"});
  EXPECT_TRUE(s.Done()->ok());
}

TEST(SessionCoreTest, LeaveDoesNotWaitForEver) {
  Script s;
  s.Join();
  s.core.Leave(s.now, "bye", &s.actions);
  s.Pass(500 * kMillisecond);
  EXPECT_FALSE(s.Done().has_value());
  s.Pass(500 * kMillisecond);
  EXPECT_TRUE(s.Done()->ok());
  // Nor at all when nobody has let it in.
  Script other;
  other.Attach();
  other.core.Cancel(other.now, &other.actions);
  other.actions.clear();
  other.core.Leave(other.now, "bye", &other.actions);
  EXPECT_TRUE(other.Done()->ok());
}

TEST(SessionCoreTest, ImpossibleGroupsEndTheSession) {
  const auto impossible = [](auto change) {
    Script s;
    s.Join();
    s.Step(1);
    prd::Group group = Script::MakeGroup(2);
    change(&group);
    s.Say(group);
    EXPECT_EQ(s.Count<StartReduce>(), 0u);
    ASSERT_TRUE(s.Done().has_value());
    EXPECT_EQ(s.Done()->code(), Code::kDataLoss);
  };
  impossible([](prd::Group* group) { group->members = {}; });
  impossible([](prd::Group* group) { group->members.Mutable().erase(group->members.begin()); });
  impossible([](prd::Group* group) { group->members.push_back(group->members.back()); });
  impossible([](prd::Group* group) { group->members.Mutable()[0].weight = -1; });
  impossible([](prd::Group* group) {
    group->members.Mutable()[1].weight = std::numeric_limits<double>::quiet_NaN();
  });
  impossible([](prd::Group* group) { group->id = 1; });
  impossible([](prd::Group* group) { group->iteration = -4; });
  impossible([](prd::Group* group) { group->initial_weight = -0.5; });
}

}  // namespace
}  // namespace prd::session_core_test
