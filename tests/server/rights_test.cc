// Who may do what: the attacks on a controller that were tried, and how they end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/server/daemon_process.h"
#include "tests/server/raw_worker.h"

namespace prd {
namespace {

using ::testing::HasSubstr;

constexpr const char* kJobs =
    "[[job]]\nname = \"*\"\nengine = \"p-reduce\"\nworkers = 2\nlease_ms = 60000\n";

// Two workers of a job that trains, and a process that knows all of worker 0 but its token, as
// every peer does.
class Impostor : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(daemon_.Start()) << daemon_.log(); }
  void Begin() {
    victim_.Join("job", 0);
    other_.Join("job", 1);
    ASSERT_TRUE(victim_.Reduce() && other_.Reduce());  // the common start
    impostor_.Show({7, 7});
    impostor_.Pretend(victim_);
  }
  void ExpectTheVictimTrainsOn() {
    victim_.Send(Ready{.iteration = 1});
    other_.Send(Ready{.iteration = 1});
    EXPECT_TRUE(victim_.Reduce().has_value());
    EXPECT_TRUE(other_.Reduce().has_value());
    EXPECT_FALSE(impostor_.Receive(0)) << "what was meant for the victim, or an answer";
  }

  DaemonProcess daemon_{kJobs};
  RawWorker victim_{"ipc://" + (daemon_.dir() / "workers.sock"), 11};
  RawWorker other_{"ipc://" + (daemon_.dir() / "workers.sock"), 22};
  RawWorker impostor_{"ipc://" + (daemon_.dir() / "workers.sock"), 11};
};

TEST_F(Impostor, GetsNothingThatIsMeantForTheWorker) {
  Begin();
  for (int i = 0; i < 10; ++i) impostor_.Heartbeat();
  ASSERT_TRUE(daemon_.WaitForLog("with the token of another process"));
  ExpectTheVictimTrainsOn();
  EXPECT_GE(daemon_.Counter("messages_foreign"), 1u);
}

TEST_F(Impostor, CannotMakeTheWorkerLeave) {
  Begin();
  for (Seq seq = 1; seq < 10; ++seq) {
    impostor_.SendEnvelope({.run = victim_.run(),
                            .identity = victim_.identity(),
                            .rank = 0,
                            .incarnation = 11,
                            .seq = seq,
                            .ack = 1,
                            .token = {7, 7},
                            .body = Leave{"said by somebody else"}});
  }
  ASSERT_TRUE(daemon_.WaitForLog("with the token of another process"));
  ExpectTheVictimTrainsOn();
  EXPECT_EQ(daemon_.log().find("said by somebody else"), std::string::npos);
}

TEST_F(Impostor, IsNotFasterThanTheWorkerAfterARestart) {
  Begin();
  daemon_.Kill();
  ASSERT_TRUE(daemon_.Start()) << daemon_.log();
  impostor_.Heartbeat();
  impostor_.Send(RawWorker::HelloFor("job", 0));
  ASSERT_TRUE(daemon_.WaitForLog("with the token of another process"));
  victim_.WaitsFor(&other_);
  victim_.Send(Ready{.iteration = 1});
  other_.Send(Ready{.iteration = 1});
  EXPECT_TRUE(victim_.Reduce().has_value());
  EXPECT_FALSE(impostor_.Receive(0));
}

TEST_F(Impostor, FindsNoTokenInTheHistory) {
  const LinkToken token{0x0123456789abcdef, 0xfedcba9876543210};
  victim_.Show(token);
  victim_.Join("job", 0);
  const AdminReply reply = daemon_.Ask(ReadRecords{.run = victim_.run()});
  const auto* batch = std::get_if<RecordBatch>(&reply);
  ASSERT_TRUE(batch != nullptr);
  int hellos = 0;
  for (const Record& record : batch->records) {
    const auto* from = std::get_if<FromWorker>(&record.body);
    if (from == nullptr) continue;
    ++hellos;
    EXPECT_NE(from->envelope.token, LinkToken{});
    EXPECT_NE(from->envelope.token, token);
  }
  EXPECT_EQ(hellos, 1);
}

}  // namespace
}  // namespace prd
