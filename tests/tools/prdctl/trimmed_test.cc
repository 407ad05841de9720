// Runs that went on for so long that their older records were removed: what prdctl tells of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/base/archive.h"
#include "engines/any_engine.h"
#include "tests/tools/prdctl/printed.h"
#include "tests/tools/prdctl/simulated.h"
#include "tools/prdctl/commands.h"
#include "tools/prdctl/replay.h"

namespace prd::ctl {
namespace {

using ::testing::HasSubstr;

// Gives what the history gives of such a run.
class TrimmedSource final : public HistorySource {
 public:
  TrimmedSource(std::vector<Record> records, std::uint64_t first, Snapshot snapshot)
      : records_(std::move(records)), info_(InfoOf(records_)), snapshot_(std::move(snapshot)) {
    info_.first = first;
    info_.records = records_.size();
  }
  Result<std::vector<RunInfo>> Runs() override { return std::vector{info_}; }
  Result<std::vector<Record>> Read(RunId, std::uint64_t from, std::uint32_t max_bytes,
                                   std::uint32_t) override {
    if (from > 1 && from < info_.first) return Status(Code::kNotFound, "it was removed");
    std::vector<Record> some;
    for (std::uint64_t i = from; i < records_.size() && some.size() < (max_bytes < 1000 ? 1 : 50);
         ++i) {
      if (i == 1) i = info_.first;
      some.push_back(records_[i]);
    }
    return some;
  }
  Result<Snapshot> NewestSnapshot(RunId) override { return snapshot_; }
  Result<DaemonStatus> Daemon() override { return Status(Code::kFailedPrecondition, "files"); }

 private:
  std::vector<Record> records_;
  RunInfo info_;
  Snapshot snapshot_;
};

// The state before a record behind this one, where a snapshot can be.
Snapshot SnapshotBehind(const std::vector<Record>& records, std::uint64_t index) {
  Replayer replayer;
  for (const Record& record : records) {
    if (record.index > index && replayer.open() == 0) break;
    EXPECT_TRUE(replayer.Add(record).ok());
  }
  return {.index = replayer.run()->next_index(), .state = SaveState(*replayer.run())};
}

using Command = std::function<Status(HistorySource&, const Console&)>;

const std::map<std::string, Command>& Commands() {
  static const std::map<std::string, Command> commands = {
      {"workers", [](auto& source, auto& console) { return ShowWorkers(source, "", console); }},
      {"explain",
       [](auto& source, auto& console) { return Explain(source, "", std::nullopt, console); }},
      {"links", [](auto& source, auto& console) { return ShowLinks(source, "", console); }},
      {"replay", [](auto& source, auto& console) { return Replay(source, "", console); }},
      {"groups", [](auto& source, auto& console) { return ShowGroups(source, "", {}, console); }},
      {"stragglers",
       [](auto& source, auto& console) { return ShowStragglers(source, "", 1.5, console); }},
      {"graph",
       [](auto& source, auto& console) { return ShowGraph(source, "", 0, true, console); }},
  };
  return commands;
}

TEST(Trimmed, EveryCommandTellsWhatIsLeft) {
  for (const EngineOptions& engine : AllEngines()) {
    std::vector<Record> all = Simulated(engine, true);
    for (const bool ended : {true, false}) {
      if (!ended) all.resize(all.size() * 9 / 10);
      for (const std::uint64_t fifth : {1, 2, 3}) {
        const Snapshot older = SnapshotBehind(all, all.size() * fifth / 5);
        TrimmedSource source(all, older.index, SnapshotBehind(all, all.size() * (fifth + 1) / 5));
        const std::string where = std::string(EngineName(engine)) + (ended ? ", ended" : "") +
                                  ", from record " + std::to_string(older.index);
        for (const auto& [name, command] : Commands()) {
          std::ostringstream out;
          const Status status = command(source, {.out = out, .json = false, .stop = nullptr});
          // The same is refused of a run that has all its records, and for the same reason.
          if (status.code() == Code::kFailedPrecondition) continue;
          EXPECT_TRUE(status.ok()) << where << ", " << name << ": " << status.ToString();
          EXPECT_THAT(out.str(), HasSubstr("records 1 to " + std::to_string(older.index - 1) +
                                           " of this run were removed"))
              << where << ", " << name;
        }
        for (const ExportFormat format :
             {ExportFormat::kJsonLines, ExportFormat::kCsv, ExportFormat::kTrace}) {
          std::ostringstream out;
          const Status status =
              Export(source, "", format, "", {.out = out, .json = false, .stop = nullptr});
          EXPECT_TRUE(status.ok()) << where << ": " << status.ToString();
          EXPECT_FALSE(out.str().empty()) << where;
        }
      }
    }
  }
}

TEST(Trimmed, GroupsThatWereRemovedAreNotInWhatThereIs) {
  const std::vector<Record> all = Simulated(PReduceOptions{});
  const Snapshot older = SnapshotBehind(all, all.size() / 2);
  TrimmedSource source(all, older.index, older);
  GroupId oldest = kNoGroup;
  for (auto at = all.begin() + static_cast<std::ptrdiff_t>(older.index); oldest == kNoGroup; ++at) {
    if (const auto* formed = std::get_if<GroupFormed>(&at->body)) oldest = formed->id;
  }
  ASSERT_GT(oldest, 1u);
  std::ostringstream out;
  const Status status = ShowGroup(source, "", 1, {.out = out, .json = false, .stop = nullptr});
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(" there are " + std::to_string(oldest) + " to "));
  EXPECT_THAT(status.message(), HasSubstr("; records 1 to "));
}

TEST(Trimmed, WithoutASnapshotItSaysWhyItCannotBeFollowed) {
  const std::vector<Record> all = Simulated(AllEngines().front());
  Snapshot older = SnapshotBehind(all, all.size() / 2);
  --older.state.front();  // its version
  TrimmedSource source(all, older.index, older);
  std::ostringstream out;
  const Status status = Replay(source, "", {.out = out, .json = false, .stop = nullptr});
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("the records before it were removed (retain_bytes)"));
  EXPECT_THAT(status.message(), HasSubstr("nor from its snapshot: another version of prd"));
}

}  // namespace
}  // namespace prd::ctl
