// SessionCore and a controller that starts again, with what it knew or with less.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/core_script.h"

namespace prd::restart_core_test {
namespace {

using ::testing::HasSubstr;
using testing::Script;

TEST(RestartCoreTest, EnvelopesTellOfTheRunAndOfWhatCanBeSentAgain) {
  Script s;
  s.Attach();
  EXPECT_FALSE(s.Sent().back().identity.known());
  s.Clear();
  s.Welcome();
  EXPECT_EQ(s.Sent().back().identity, s.identity);
  EXPECT_EQ(s.Sent().back().oldest, 2u);
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  EXPECT_EQ(s.Sent().back().seq, 2u);
  EXPECT_EQ(s.Sent().back().oldest, 2u);  // the report itself
  s.Acknowledge();
  s.Clear();
  s.Step(1);
  EXPECT_EQ(s.Sent().back().seq, 3u);
  EXPECT_EQ(s.Sent().back().oldest, 3u);
}

TEST(RestartCoreTest, ANewLifeIsToldAtOnceWhatWasSentAndReceived) {
  Script s;
  s.Join();
  s.Step(1);
  s.Clear();
  s.identity.low = 88;
  s.Aside(HeartbeatAck{});
  ASSERT_EQ(s.Sent().size(), 2u);
  EXPECT_EQ(s.Said<Heartbeat>().size(), 1u);
  EXPECT_EQ(s.Said<Ready>().size(), 1u);  // again
  for (const WorkerEnvelope& envelope : s.Sent()) EXPECT_EQ(envelope.identity, s.identity);
  // A late message of the life before is not for this worker any more.
  s.Clear();
  s.identity.low = 8;
  s.Say(Script::MakeGroup(2));
  EXPECT_EQ(s.Count<StartReduce>(), 0u);
  EXPECT_TRUE(s.Sent().empty());
  s.identity.low = 88;
  --s.seq;
  s.Say(Script::MakeGroup(2));
  EXPECT_EQ(s.Count<StartReduce>(), 1u);
}

TEST(RestartCoreTest, MessagesOfAnotherRunAreNotTaken) {
  Script s;
  s.Join();
  s.Step(1);
  s.Clear();
  s.identity.high = 77;
  s.Say(Script::MakeGroup(2));
  EXPECT_TRUE(s.actions.empty());
}

TEST(RestartCoreTest, AnAcknowledgementOfWhatWasNotSentIsANewIncarnation) {
  Script s;
  s.Join();
  s.Step(1);
  s.core.GiveIncarnation(3003);
  s.Clear();
  s.heard = 100;
  s.Aside(HeartbeatAck{});
  s.now = s.now + kSecond;
  s.core.OnTime(s.now, &s.actions);
  EXPECT_EQ(s.Only<Hello>().former, s.identity);
  EXPECT_EQ(s.core.incarnation(), 3003u);
}

TEST(RestartCoreTest, WhoHasNoReplicaYetBringsNone) {
  Script s;
  s.Attach();
  s.Welcome();
  s.core.GiveIncarnation(3003);
  s.Clear();
  s.Aside(Refused{.code = Code::kAborted, .reason = "run 9 is not running here"});
  s.now = s.now + kSecond;
  s.core.OnTime(s.now, &s.actions);
  EXPECT_FALSE(s.Only<Hello>().former.known());
}

// The controller is well and answers, and the workers that the start waits for never come.
TEST(RestartCoreTest, AStartThatNeverComesEndsAttachAndSaysForWhomItWaited) {
  Script s;
  s.Attach(kSecond);
  s.Welcome();
  for (int i = 0; i < 11; ++i) {
    s.Aside(HeartbeatAck{.waits_for = "waiting for the common start: missing: rank 2"});
    EXPECT_FALSE(s.Done().has_value());
    s.now = s.now + 100 * kMillisecond;
    if (i < 9) s.core.OnTime(s.now, &s.actions);
  }
  s.core.OnTime(s.now, &s.actions);
  ASSERT_TRUE(s.Done().has_value());
  EXPECT_EQ(s.Done()->code(), Code::kUnavailable);
  EXPECT_THAT(s.Done()->message(), HasSubstr("missing: rank 2"));
}

// So does the step of a worker that came back to a run that never begins.
TEST(RestartCoreTest, AStepOfAWorkerThatCameBackEndsToo) {
  Script s;
  s.Attach(kSecond);
  s.Welcome();
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  s.Acknowledge();
  s.Step(1);
  s.core.GiveIncarnation(3003);
  s.Clear();
  s.Aside(Refused{.code = Code::kAborted, .reason = "run 9 is not running here"});
  s.now = s.now + 100 * kMillisecond;
  s.core.OnTime(s.now, &s.actions);
  s.identity = {17, 18};
  s.Welcome();
  for (int i = 0; i < 12 && !s.Done(); ++i) {
    s.Aside(HeartbeatAck{.waits_for = "2 of 4 workers are here"});
    s.now = s.now + 100 * kMillisecond;
    s.core.OnTime(s.now, &s.actions);
  }
  ASSERT_TRUE(s.Done().has_value());
  EXPECT_THAT(s.Done()->message(), HasSubstr("2 of 4 workers are here"));
}

}  // namespace
}  // namespace prd::restart_core_test
