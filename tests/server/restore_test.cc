// Runs that are read back from a history, piece by piece.
#include "server/restore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "tests/server/history_records.h"
#include "tests/server/scratch_dir.h"

namespace prd::restore_test {
namespace {

using ::testing::SizeIs;

constexpr std::size_t kPiece = 1000;
const std::vector<std::string> kJobs = {"one", "two"};

class RestoreTest : public ::testing::Test, private History, private Messenger {
 protected:
  // Two jobs, in each of which a worker joins and leaves again and again while another one waits.
  void SetUp() override {
    const std::unique_ptr<Controller> controller = Make();
    for (const std::string& job : kJobs) {
      Say(controller.get(), Hello{.job = job, .rank = 0});
      for (int i = 0; i < 40; ++i) {
        Say(controller.get(), Hello{.job = job, .rank = 1});
        Say(controller.get(), Leave{.reason = "test"});
      }
    }
    hashes_ = Hashes(*controller);
    ASSERT_THAT(hashes_, SizeIs(2));
  }

  std::unique_ptr<Controller> Make() {
    return std::make_unique<Controller>(
        Controller::Options{.random = [this] { return ++drawn_; }, .spec_of = JobSpecFromToml},
        [](const std::string& job) { return SpecOf(job); }, static_cast<History*>(this),
        static_cast<Messenger*>(this));
  }
  static Result<JobSpec> SpecOf(const std::string& job) {
    return JobSpecFromToml("[job]\nname = \"" + job +
                           "\"\nengine = \"all-reduce\"\nmin_workers = 2\n");
  }
  static std::map<RunId, std::uint64_t> Hashes(const Controller& controller) {
    std::map<RunId, std::uint64_t> hashes;
    for (const auto& [id, run] : controller.runs()) hashes[id] = run->StateHash();
    return hashes;
  }
  void Say(Controller* controller, WorkerBody body) {
    const bool hello = std::holds_alternative<Hello>(body);
    if (auto* says = std::get_if<Hello>(&body)) {
      says->host = says->host_name = "host";
      says->endpoints = {"tcp://x:1"};
      says->model_hash = 9;
      newest_.incarnation = ++drawn_;
    }
    const WorkerEnvelope envelope{.run = hello ? kNoRun : newest_.run,
                                  .identity = hello ? RunIdentity() : newest_.identity,
                                  .rank = hello ? kNoRank : newest_.rank,
                                  .incarnation = newest_.incarnation,
                                  .seq = hello ? 1u : 2u,
                                  .ack = hello ? 0u : 1u,
                                  .body = std::move(body)};
    controller->Receive({++now_}, 7, envelope);
    ASSERT_TRUE(controller->Flush().ok());
  }

  Status Append(std::span<const Record> records) override { return history_->Append(records); }
  Status SaveSnapshot(RunId, std::uint64_t, std::string_view) override { return Status::Ok(); }
  void Send(const ControllerEnvelope& envelope) override {
    const auto* welcome = std::get_if<Welcome>(&envelope.body);
    if (welcome == nullptr) return;
    newest_.run = welcome->run;
    newest_.rank = welcome->rank;
    newest_.identity = envelope.identity;
  }

  const ScratchDir dir_;
  HistoryPtr history_ = OpenOrDie(dir_ / "state");
  std::map<RunId, std::uint64_t> hashes_;

 private:
  std::uint64_t drawn_ = 0;
  std::int64_t now_ = 0;
  WorkerEnvelope newest_;
};

TEST_F(RestoreTest, ALongHistoryIsReadInPiecesAndLeasesBeginAfterTheLast) {
  const std::unique_ptr<Controller> controller = Make();
  std::map<RunId, std::vector<std::uint64_t>> read;
  std::vector<int> percents;
  std::vector<std::size_t> pieces_at_now;
  std::size_t pieces = 0;
  const auto watch = [&](const RestoreProgress& progress) {
    ++pieces;
    EXPECT_EQ(progress.job, kJobs[progress.run - 1]);
    EXPECT_EQ(progress.records, history_->ListRuns().value()[progress.run - 1].records);
    read[progress.run].push_back(progress.read);
    percents.push_back(progress.percent);
    return Status::Ok();
  };
  const auto now = [&] {
    pieces_at_now.push_back(pieces);
    return Instant{1'000'000};
  };
  const auto summary = RestoreRuns(now, history_.get(), controller.get(), watch, kPiece);
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->restored, 2u);
  EXPECT_EQ(Hashes(*controller), hashes_);
  ASSERT_THAT(read, SizeIs(2));
  for (const auto& [run, at] : read) {
    EXPECT_EQ(at.front(), 0u);
    EXPECT_EQ(at.back(), history_->ListRuns().value()[run - 1].records);
    EXPECT_TRUE(std::is_sorted(at.begin(), at.end()));
    EXPECT_GT(at.size(), 5u);
  }
  EXPECT_TRUE(std::is_sorted(percents.begin(), percents.end()));
  EXPECT_EQ(percents.front(), 0);
  EXPECT_EQ(percents.back(), 100);
  EXPECT_EQ(pieces_at_now, std::vector<std::size_t>(2, pieces));
}

TEST_F(RestoreTest, ASignalMeanwhileLeavesAllAsItWas) {
  for (const int stops : {1, 3, 12}) {
    int pieces = 0;
    const auto watch = [&](const RestoreProgress&) {
      return ++pieces < stops ? Status::Ok() : Status(Code::kCancelled, "stopping on signal 15");
    };
    const std::unique_ptr<Controller> controller = Make();
    const auto summary =
        RestoreRuns([] { return Instant{9}; }, history_.get(), controller.get(), watch, kPiece);
    EXPECT_EQ(summary.status(), Status(Code::kCancelled, "stopping on signal 15"));
    EXPECT_TRUE(controller->runs().empty());
    const std::vector<RunInfo> runs = history_->ListRuns().value();
    ASSERT_THAT(runs, SizeIs(2));
    for (const RunInfo& info : runs) EXPECT_FALSE(info.ended);
  }
}

}  // namespace
}  // namespace prd::restore_test
