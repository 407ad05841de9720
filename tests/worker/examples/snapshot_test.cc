#include "worker/examples/snapshot.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "tests/worker/examples/temp_dir.h"
#include "worker/examples/snapshot_average.h"

namespace example::snapshot_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kLiveNs = 1000;

class SnapshotTest : public ::testing::Test {
 protected:
  void Write(int rank, std::int64_t steps, std::int64_t time_ns, std::vector<float> parameters,
             bool final = false) {
    Snapshot snapshot;
    snapshot.header = {.rank = rank,
                       .final = final ? 1 : 0,
                       .time_ns = time_ns,
                       .steps = steps,
                       .samples = 10 * steps,
                       .updates = 0.5 * static_cast<double>(steps)};
    snapshot.parameters = std::move(parameters);
    WriteSnapshot(dir_.path(), snapshot);
  }
  std::string Path(int rank, int time_ns) const {
    return dir_.path() + "/snapshot-" + std::to_string(rank) + "-" + std::to_string(time_ns) +
           ".bin";
  }

  TempDir dir_;
};

TEST_F(SnapshotTest, IsReadAsWritten) {
  Write(3, 7, 42, {1.5F, -2}, true);
  const auto snapshot = ReadSnapshot(Path(3, 42), 2);
  ASSERT_TRUE(snapshot.has_value());
  EXPECT_THAT(snapshot->parameters, ElementsAre(1.5F, -2));
  EXPECT_EQ(snapshot->header.rank, 3);
  EXPECT_EQ(snapshot->header.final, 1);
  EXPECT_EQ(snapshot->header.time_ns, 42);
  EXPECT_EQ(snapshot->header.samples, 70);
  EXPECT_FALSE(ReadSnapshot(Path(3, 43), 2).has_value());
}

TEST_F(SnapshotTest, WhatIsNotOneIsRefused) {
  Write(0, 0, 1, {1, 2});
  EXPECT_THAT([&] { ReadSnapshot(Path(0, 1), 3); },
              ThrowsMessage<std::runtime_error>(
                  HasSubstr("is of another model: it holds 2 parameters, this model has 3")));
  std::filesystem::resize_file(Path(0, 1), std::filesystem::file_size(Path(0, 1)) - 1);
  EXPECT_THAT([&] { ReadSnapshot(Path(0, 1), 2); },
              ThrowsMessage<std::runtime_error>(HasSubstr("ends early")));
  std::ofstream(Path(0, 2)) << std::string(200, 'x');
  EXPECT_THAT([&] { ReadSnapshotHeader(Path(0, 2), 2); },
              ThrowsMessage<std::runtime_error>(HasSubstr("is not a snapshot")));
  std::ofstream(Path(0, 3)) << "x";
  EXPECT_THAT([&] { ReadSnapshotHeader(Path(0, 3), 2); },
              ThrowsMessage<std::runtime_error>(HasSubstr("shorter than its header")));
}

TEST_F(SnapshotTest, ListIsByRankAndTimeAndLeavesOthersOut) {
  Write(1, 0, 10, {1});
  Write(1, 0, 9, {1});
  Write(0, 0, 2, {1});
  std::ofstream(Path(0, 3) + ".part") << "x";
  std::ofstream(dir_.path() + "/snapshot-x-1.bin") << "x";
  std::vector<std::string> paths;
  for (const auto& file : ListSnapshots(dir_.path())) paths.push_back(file.path);
  EXPECT_THAT(paths, ElementsAre(Path(0, 2), Path(1, 9), Path(1, 10)));
  EXPECT_THROW(ListSnapshots(dir_.path() + "/none"), std::runtime_error);
}

TEST_F(SnapshotTest, AveragesTheNewestAtATime) {
  Write(0, 0, 100, {1, 1});
  Write(0, 1, 200, {3, 1});
  Write(0, 2, 300, {100, 1});
  Write(1, 0, 150, {5, 2});
  SnapshotAverager averager(dir_.path(), 2, kLiveNs, false);
  averager.Look();
  EXPECT_EQ(averager.workers(), 2U);
  EXPECT_EQ(averager.FirstNs(), 100);
  EXPECT_EQ(averager.BegunNs(2), 150);
  EXPECT_EQ(averager.LastNs(), 300);
  const AveragedModel model = averager.Average(250);
  EXPECT_THAT(model.parameters, ElementsAre(4, 1.5F));
  EXPECT_EQ(model.live, 2);
  EXPECT_EQ(model.spread, 2);
  EXPECT_EQ(model.samples, 10);
  EXPECT_EQ(model.updates, 0.5);
  // What lies before is removed, what may still be needed is not.
  EXPECT_FALSE(std::filesystem::exists(Path(0, 100)));
  EXPECT_TRUE(std::filesystem::exists(Path(0, 200)));
  EXPECT_TRUE(std::filesystem::exists(Path(0, 300)));
  averager.Clear();
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(SnapshotTest, KeepsFilesWhenAskedTo) {
  Write(0, 0, 100, {1});
  Write(0, 1, 200, {3});
  SnapshotAverager averager(dir_.path(), 1, kLiveNs, true);
  averager.Look();
  averager.Average(250);
  averager.Look();
  averager.Clear();
  EXPECT_TRUE(std::filesystem::exists(Path(0, 100)));
  EXPECT_TRUE(std::filesystem::exists(Path(0, 200)));
  EXPECT_THAT(averager.Average(260).parameters, ElementsAre(3));
  EXPECT_EQ(averager.FirstNs(), 100);
}

TEST_F(SnapshotTest, TheDeadAreLeftOutButTheirUpdatesCount) {
  Write(0, 4, 100, {1});
  Write(1, 6, 2000, {5});
  SnapshotAverager averager(dir_.path(), 1, kLiveNs, false);
  averager.Look();
  const AveragedModel model = averager.Average(2000);
  EXPECT_THAT(model.parameters, ElementsAre(5));
  EXPECT_EQ(model.live, 1);
  EXPECT_EQ(model.updates, 5);
  EXPECT_FALSE(averager.Ended(2000));
  EXPECT_TRUE(averager.Ended(3001));
}

TEST_F(SnapshotTest, EndsWhenAllFinalsAreThere) {
  Write(0, 0, 100, {1}, true);
  Write(1, 0, 100, {1});
  SnapshotAverager averager(dir_.path(), 1, kLiveNs, false);
  averager.Look();
  EXPECT_FALSE(averager.Ended(200));
  Write(1, 1, 150, {1}, true);
  averager.Look();
  EXPECT_TRUE(averager.Ended(200));
  const AveragedModel finals = averager.AverageFinals();
  EXPECT_EQ(finals.finals, 2);
  EXPECT_EQ(finals.spread, 0);
  EXPECT_THAT(finals.parameters, ElementsAre(1));
}

TEST_F(SnapshotTest, OfTwoTrainingsTheLaterOneCounts) {
  Write(0, 0, 100, {1});
  Write(0, 5, 200, {2}, true);
  Write(1, 5, 210, {2}, true);
  SnapshotAverager averager(dir_.path(), 1, kLiveNs, true);
  averager.Look();
  Write(1, 4, 230, {1});  // of a worker that the others went on without
  averager.Look();
  EXPECT_EQ(averager.AverageFinals().finals, 1);
  EXPECT_TRUE(averager.Ended(1231));
  Write(0, 0, 300, {8});
  averager.Look();
  EXPECT_EQ(averager.FirstNs(), 230);
  EXPECT_FALSE(averager.Ended(400));
  Write(0, 3, 400, {9}, true);
  averager.Look();
  averager.Look();
  EXPECT_THAT(averager.AverageFinals().parameters, ElementsAre(9));
  EXPECT_TRUE(std::filesystem::exists(Path(1, 210)));
  SnapshotAverager removes(dir_.path(), 1, kLiveNs, false);
  removes.Look();
  EXPECT_FALSE(std::filesystem::exists(Path(1, 210)));
}

TEST_F(SnapshotTest, NobodyLiveGivesNoModel) {
  Write(0, 0, 100, {1});
  SnapshotAverager averager(dir_.path(), 1, kLiveNs, false);
  averager.Look();
  EXPECT_EQ(averager.AverageFinals().live, 0);
  EXPECT_TRUE(averager.Average(5000).parameters.empty());
}

}  // namespace
}  // namespace example::snapshot_test
