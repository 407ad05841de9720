#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <future>

#include "common/io/clock.h"
#include "tests/server/daemon_process.h"
#include "tests/server/raw_worker.h"

namespace prd::admin_test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kJobs =
    "[[job]]\nname = \"*\"\nengine = \"p-reduce\"\nworkers = 2\nlease_ms = 60000\n";

class AdminTest : public ::testing::Test {
 protected:
  AdminTest() : daemon_(kJobs, "snapshot_every = 1") {}
  void SetUp() override { ASSERT_TRUE(daemon_.Start()) << daemon_.log(); }
  DaemonProcess daemon_;
};

TEST_F(AdminTest, OnlyTheOwnerMayAsk) {
  struct stat info {};
  ASSERT_EQ(::stat((daemon_.dir() / "admin.sock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(AdminTest, ListsRunsAndReadsTheirRecords) {
  EXPECT_EQ(daemon_.Ask(ListRuns{}), AdminReply(RunList{}));
  RawWorker worker(daemon_.endpoint(), 11);
  worker.Join("mnist", 0);
  const AdminReply listed = daemon_.Ask(ListRuns{});
  const auto* runs = std::get_if<RunList>(&listed);
  ASSERT_TRUE(runs != nullptr && runs->runs.size() == 1);
  EXPECT_EQ(runs->runs[0].job, "mnist");
  EXPECT_EQ(runs->runs[0].engine, "p-reduce");
  EXPECT_FALSE(runs->runs[0].ended);
  EXPECT_GT(runs->runs[0].started_wall_ns, 0);

  const AdminReply read = daemon_.Ask(ReadRecords{.run = worker.run()});
  const auto* batch = std::get_if<RecordBatch>(&read);
  ASSERT_TRUE(batch != nullptr);
  EXPECT_EQ(batch->records.size(), runs->runs[0].records);
  EXPECT_TRUE(std::holds_alternative<RunStarted>(batch->records[0].body));
  const AdminReply one = daemon_.Ask(ReadRecords{.run = worker.run(), .from = 1, .max_bytes = 0});
  ASSERT_TRUE(std::holds_alternative<RecordBatch>(one));
  ASSERT_EQ(std::get<RecordBatch>(one).records.size(), 1u);
  EXPECT_EQ(std::get<RecordBatch>(one).records[0], batch->records[1]);

  const AdminReply snapshot = daemon_.Ask(ReadSnapshot{.run = worker.run()});
  ASSERT_TRUE(std::holds_alternative<Snapshot>(snapshot));
  EXPECT_FALSE(std::get<Snapshot>(snapshot).state.empty());
}

TEST_F(AdminTest, TellsOfItself) {
  RawWorker worker(daemon_.endpoint(), 11);
  worker.Join("mnist", 0);
  const AdminReply reply = daemon_.Ask(GetStatus{});
  const auto* status = std::get_if<DaemonStatus>(&reply);
  ASSERT_TRUE(status != nullptr);
  EXPECT_EQ(status->pid, static_cast<std::uint32_t>(daemon_.pid()));
  EXPECT_FALSE(status->version.empty());
  EXPECT_GT(status->uptime_ns, 0);
  ASSERT_EQ(status->silences.size(), 1u);
  EXPECT_EQ(status->silences[0].rank, 0);
  EXPECT_GE(daemon_.Counter("messages"), 1u);
}

TEST_F(AdminTest, RefusesWhatItCannotAnswer) {
  for (const AdminRequest& request :
       {AdminRequest(ReadRecords{.run = 9}), AdminRequest(ReadSnapshot{.run = ~0ull})}) {
    const AdminReply reply = daemon_.Ask(request);
    ASSERT_TRUE(std::holds_alternative<AdminError>(reply));
    EXPECT_EQ(std::get<AdminError>(reply).code, Code::kNotFound);
  }
  zmq::context_t context;
  zmq::socket_t socket(context, zmq::socket_type::req);
  socket.set(zmq::sockopt::linger, 0);
  socket.connect(daemon_.admin());
  socket.send(zmq::str_buffer("what is up?"), zmq::send_flags::none);
  zmq::message_t message;
  socket.set(zmq::sockopt::rcvtimeo, kTimeoutMs);
  ASSERT_TRUE(socket.recv(message));
  const auto reply = DecodeAdminReply({static_cast<const char*>(message.data()), message.size()});
  ASSERT_TRUE(reply.ok() && std::holds_alternative<AdminError>(*reply));
  EXPECT_THAT(std::get<AdminError>(*reply).message, HasSubstr("an admin request"));
}

TEST_F(AdminTest, AReaderWaitsForTheNextRecordAndHoldsUpNobody) {
  RawWorker worker(daemon_.endpoint(), 11);
  worker.Join("mnist", 0);
  const AdminReply all = daemon_.Ask(ReadRecords{.run = worker.run()});
  const std::uint64_t next = std::get<RecordBatch>(all).records.size();
  auto waiting = std::async(std::launch::async, [&] {
    return daemon_.Ask(ReadRecords{.run = worker.run(), .from = next, .wait_ms = 10'000});
  });
  EXPECT_EQ(daemon_.Counter("history_errors"), 0u);  // others are answered meanwhile
  RawWorker other(daemon_.endpoint(), 22);
  other.Join("mnist", 1);
  const AdminReply reply = waiting.get();
  ASSERT_TRUE(std::holds_alternative<RecordBatch>(reply));
  ASSERT_FALSE(std::get<RecordBatch>(reply).records.empty());
  EXPECT_EQ(std::get<RecordBatch>(reply).records[0].index, next);
}

TEST_F(AdminTest, AReaderThatWaitsInVainGetsNothing) {
  RawWorker worker(daemon_.endpoint(), 11);
  worker.Join("mnist", 0);
  const std::int64_t begin = MonotonicNs();
  const AdminReply reply =
      daemon_.Ask(ReadRecords{.run = worker.run(), .from = 1000, .wait_ms = 100});
  ASSERT_TRUE(std::holds_alternative<RecordBatch>(reply));
  EXPECT_TRUE(std::get<RecordBatch>(reply).records.empty());
  EXPECT_GE(MonotonicNs() - begin, 99 * kMillisecond);
}

TEST(AdminStart, AMissingFolderIsSaid) {
  DaemonProcess daemon(kJobs);
  std::ofstream(daemon.config()) << "[daemon]\nlisten = \"ipc://" << (daemon.dir() / "w")
                                 << "\"\nadmin = \"ipc://" << (daemon.dir() / "none/admin.sock")
                                 << "\"\nstate_dir = \"" << daemon.state_dir() << "\"\n"
                                 << kJobs;
  EXPECT_FALSE(daemon.Start());
  EXPECT_EQ(daemon.WaitForEnd(), 1);
  EXPECT_THAT(daemon.log(), HasSubstr("no socket can be made in " + (daemon.dir() / "none")));
}

}  // namespace
}  // namespace prd::admin_test
