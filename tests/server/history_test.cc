#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <utility>
#include <vector>

#include "server/history/files.h"
#include "server/history/keys.h"
#include "tests/server/history_records.h"
#include "tests/server/scratch_dir.h"

namespace prd::history_test {
namespace {

using ::testing::HasSubstr;

TEST(History, ADirectoryThatOthersMayEnterIsRefused) {
  const ScratchDir dir;
  ASSERT_EQ(::chmod(dir.path().c_str(), 0777), 0);
  const Status status = RocksHistory::Open(dir.path(), {}).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("state_dir " + dir.path() + ": others may enter it"));
  ASSERT_EQ(::chmod(dir.path().c_str(), 0700), 0);
  EXPECT_TRUE(RocksHistory::Open(dir.path(), {}).ok());
}

TEST(History, GivesBackWhatWasAppended) {
  const ScratchDir dir;
  const HistoryPtr history = OpenOrDie(dir / "state");
  const std::vector<Record> records = RunOf(1, "mnist", 10);
  ASSERT_TRUE(history->Append(records).ok());
  const auto read = history->Read(1, 0, 1 << 20);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, records);
  EXPECT_EQ(history->Read(1, 7, 1 << 20)->size(), 3u);
  EXPECT_TRUE(history->Read(1, 10, 1 << 20)->empty());
  EXPECT_EQ(history->Read(2, 0, 1 << 20).status().code(), Code::kNotFound);
  EXPECT_EQ(history->NextIndex(1), 10u);
}

TEST(History, RunsAreApartAndInOrder) {
  const ScratchDir dir;
  HistoryPtr history = OpenOrDie(dir / "state");
  ASSERT_TRUE(history->Append(RunOf(255, "a", 300)).ok());
  ASSERT_TRUE(history->Append(RunOf(256, "b", 3)).ok());
  ASSERT_TRUE(history->Append(std::vector{Ended(255, 300)}).ok());
  for (int opening = 0; opening < 2; ++opening) {
    auto runs = history->ListRuns();
    ASSERT_TRUE(runs.ok());
    EXPECT_GT(std::exchange(runs->front().bytes, 0), 300u * 16);
    const std::vector<RunInfo> expected{{.run = 255,
                                         .job = "a",
                                         .engine = "p-reduce",
                                         .started_wall_ns = 77,
                                         .ended = true,
                                         .records = 301,
                                         .end = "the last worker has gone",
                                         .identity = 1255},
                                        {.run = 256,
                                         .job = "b",
                                         .engine = "p-reduce",
                                         .started_wall_ns = 77,
                                         .ended = false,
                                         .records = 3,
                                         .identity = 1256}};
    EXPECT_EQ(*runs, expected);
    EXPECT_EQ(history->last_run(), 256u);
    EXPECT_EQ(history->Read(255, 0, 1 << 20)->size(), 301u);
    EXPECT_EQ(history->Read(256, 0, 1 << 20)->size(), 3u);
    EXPECT_EQ(history->LastNow(256)->value().ns, 12);
    history.reset();
    history = OpenOrDie(dir / "state");
  }
}

TEST(History, TellsHowRunsHaveEnded) {
  const ScratchDir dir;
  HistoryPtr history = OpenOrDie(dir / "state");
  ASSERT_TRUE(history->Append(Whole(1, "a")).ok());  // in one batch
  for (const Record& record : Whole(2, "a")) {       // in several
    ASSERT_TRUE(history->Append(std::vector{record}).ok());
    const RunInfo info = history->ListRuns()->back();
    EXPECT_EQ(info.begun, record.index >= 1);
    EXPECT_EQ(info.finished, record.index == 2);
  }
  for (int opening = 0; opening < 2; ++opening) {
    const auto runs = history->ListRuns();
    ASSERT_TRUE(runs.ok() && runs->size() == 2);
    for (const RunInfo& info : *runs) {
      EXPECT_TRUE(info.begun && info.ended && info.finished);
      EXPECT_EQ(info.end, "the job is done");
      EXPECT_EQ(info.identity, info.run + 1000);
      EXPECT_EQ(info.records, 3u);
    }
    history.reset();
    history = OpenOrDie(dir / "state");
  }
}

TEST(History, TellsWhichRunsAnOperatorHasPaused) {
  const ScratchDir dir;
  HistoryPtr history = OpenOrDie(dir / "state");
  const std::vector<Record> whole = Whole(1, "a");
  const auto paused_after = [&](std::uint64_t index, RecordBody body) {
    EXPECT_TRUE(history->Append(std::vector{Record{.run = 1, .index = index, .body = body}}).ok());
    history.reset();
    history = OpenOrDie(dir / "state");
    const RunInfo info = history->ListRuns()->back();
    EXPECT_EQ(info.job, "a");
    return info.paused;
  };
  const auto act = [](OperatorVerb verb) { return OperatorActed{.verb = verb}; };
  ASSERT_TRUE(history->Append(std::vector{whole[0]}).ok());
  EXPECT_TRUE(paused_after(1, act(OperatorVerb::kPause)));
  EXPECT_TRUE(paused_after(2, act(OperatorVerb::kEvict)));
  EXPECT_FALSE(paused_after(3, act(OperatorVerb::kResume)));
  EXPECT_TRUE(paused_after(4, act(OperatorVerb::kPause)));
  EXPECT_FALSE(paused_after(5, act(OperatorVerb::kEnd)));
  EXPECT_TRUE(paused_after(6, act(OperatorVerb::kPause)));
  EXPECT_FALSE(paused_after(7, whole[2].body));
}

TEST(History, ReadsKeepToTheByteLimitButGiveOne) {
  const ScratchDir dir;
  const HistoryPtr history = OpenOrDie(dir / "state");
  ASSERT_TRUE(history->Append(RunOf(1, "mnist", 100)).ok());
  EXPECT_EQ(history->Read(1, 0, 0)->size(), 1u);
  const std::size_t some = history->Read(1, 0, 1000)->size();
  EXPECT_GT(some, 1u);
  EXPECT_LT(some, 100u);
}

TEST(History, SnapshotsReplaceEachOther) {
  const ScratchDir dir;
  HistoryPtr history = OpenOrDie(dir / "state");
  ASSERT_TRUE(history->Append(RunOf(1, "mnist", 10)).ok());
  EXPECT_EQ(*history->ReadSnapshot(1), Snapshot{});
  ASSERT_TRUE(history->SaveSnapshot(1, 4, "four").ok());
  ASSERT_TRUE(history->SaveSnapshot(1, 8, std::string("ei\0ht", 5)).ok());
  history.reset();
  history = OpenOrDie(dir / "state");
  EXPECT_EQ(*history->ReadSnapshot(1), (Snapshot{.index = 8, .state = std::string("ei\0ht", 5)}));
  EXPECT_EQ(history->ReadSnapshot(2).status().code(), Code::kNotFound);
}

// The child writes the number of acknowledged batches to a pipe and is killed in the middle.
TEST(History, EverythingAcknowledgedSurvivesAKill) {
  const ScratchDir dir;
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const HistoryPtr history = OpenOrDie(dir / "state");
    if (!history->Append(RunOf(1, "mnist", 1)).ok()) ::_exit(1);
    for (std::uint64_t index = 1;; index += 3) {
      const std::vector<Record> batch{Signal(1, index), Signal(1, index + 1), Signal(1, index + 2)};
      if (!history->Append(batch).ok()) ::_exit(1);
      const std::uint64_t next = index + 3;
      if (::write(fds[1], &next, sizeof next) != sizeof next) ::_exit(1);
    }
  }
  ::close(fds[1]);
  std::uint64_t acknowledged = 0;
  std::uint64_t next = 0;
  while (acknowledged < 900 && ::read(fds[0], &next, sizeof next) == sizeof next) {
    acknowledged = next;
  }
  ::kill(child, SIGKILL);
  while (::read(fds[0], &next, sizeof next) == sizeof next) acknowledged = next;
  ::waitpid(child, nullptr, 0);
  ::close(fds[0]);
  ASSERT_GE(acknowledged, 900u);

  const HistoryPtr history = OpenOrDie(dir / "state");
  const auto read = history->Read(1, 0, 1 << 30);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_GE(read->size(), acknowledged);
  EXPECT_EQ(read->size() % 3, 1u) << "half a batch";
  EXPECT_EQ(history->ListRuns()->front().records, read->size());
}

TEST(History, AHoleIsNamed) {
  const ScratchDir dir;
  ASSERT_TRUE(OpenOrDie(dir / "state")->Append(RunOf(3, "mnist", 10)).ok());
  Tamper(dir / "state", [](rocksdb::DB& db, rocksdb::ColumnFamilyHandle* records) {
    ASSERT_TRUE(db.Delete({}, records, history::RecordKey(3, 6)).ok());
  });
  const HistoryPtr history = OpenOrDie(dir / "state");
  const auto read = history->Read(3, 0, 1 << 20);
  EXPECT_EQ(read.status().code(), Code::kDataLoss);
  EXPECT_THAT(read.status().message(), HasSubstr("run 3, record 6: missing; the next one is 7"));
  EXPECT_EQ(history->Read(3, 7, 1 << 20)->size(), 3u);
}

TEST(History, ADamagedRecordIsNamed) {
  const ScratchDir dir;
  ASSERT_TRUE(OpenOrDie(dir / "state")->Append(RunOf(3, "mnist", 10)).ok());
  Tamper(dir / "state", [](rocksdb::DB& db, rocksdb::ColumnFamilyHandle* records) {
    ASSERT_TRUE(db.Put({}, records, history::RecordKey(3, 4), "not a record").ok());
    std::string other;
    ASSERT_TRUE(db.Get({}, records, history::RecordKey(3, 8), &other).ok());
    ASSERT_TRUE(db.Put({}, records, history::RecordKey(3, 7), other).ok());
  });
  const HistoryPtr history = OpenOrDie(dir / "state");
  const auto read = history->Read(3, 0, 1 << 20);
  EXPECT_EQ(read.status().code(), Code::kDataLoss);
  EXPECT_THAT(read.status().message(), HasSubstr("run 3, record 4: "));
  const auto swapped = history->Read(3, 5, 1 << 20);
  EXPECT_EQ(swapped.status().code(), Code::kDataLoss);
  EXPECT_THAT(swapped.status().message(), HasSubstr("run 3, record 7: holds record 8 of run 3"));
}

TEST(History, ADamagedFileIsNoticed) {
  const ScratchDir dir;
  ASSERT_TRUE(OpenOrDie(dir / "state")->Append(RunOf(3, "mnist", 2000)).ok());
  Tamper(dir / "state", [](rocksdb::DB& db, rocksdb::ColumnFamilyHandle* records) {
    ASSERT_TRUE(db.Flush({}, records).ok());
  });
  std::uintmax_t largest = 0;
  std::filesystem::path file;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "state")) {
    if (entry.path().extension() == ".sst" && entry.file_size() > largest) {
      largest = entry.file_size();
      file = entry.path();
    }
  }
  ASSERT_GT(largest, 0u);
  {
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(static_cast<std::streamoff>(largest / 3));
    out.write("damage", 6);
  }
  const HistoryPtr history = OpenOrDie(dir / "state");
  const auto read = history->Read(3, 0, 1 << 30);
  EXPECT_EQ(read.status().code(), Code::kDataLoss);
  EXPECT_THAT(read.status().message(), HasSubstr("run 3, record "));
}

TEST(History, KeepsSoManyEndedRunsPerJob) {
  const ScratchDir dir;
  const RocksHistory::Options options{.bounds = {.runs_per_job = 2}};
  HistoryPtr history = OpenOrDie(dir / "state", options);
  ASSERT_TRUE(history->Append(RunOf(1, "other", 5)).ok());
  for (RunId run = 2; run <= 6; ++run) {
    ASSERT_TRUE(history->Append(RunOf(run, "mnist", 5)).ok());
    ASSERT_TRUE(history->SaveSnapshot(run, 3, "state").ok());
    ASSERT_TRUE(history->Append(std::vector{Ended(run, 5)}).ok());
  }
  ASSERT_TRUE(history->Append(RunOf(7, "mnist", 5)).ok());
  for (int opening = 0; opening < 2; ++opening) {
    std::vector<RunId> kept;
    const auto runs = history->ListRuns();
    ASSERT_TRUE(runs.ok());
    for (const RunInfo& info : *runs) kept.push_back(info.run);
    EXPECT_EQ(kept, (std::vector<RunId>{1, 5, 6, 7}));
    EXPECT_EQ(history->Read(2, 0, 1 << 20).status().code(), Code::kNotFound);
    EXPECT_EQ(history->Read(5, 0, 1 << 20)->size(), 6u);
    EXPECT_EQ(history->Read(7, 0, 1 << 20)->size(), 5u);
    history.reset();
    history = OpenOrDie(dir / "state", options);
  }
  history.reset();
  history =
      OpenOrDie(dir / "state", {.bounds = {.runs_per_job = 1}});  // a smaller limit counts at once
  EXPECT_EQ(history->Read(5, 0, 1 << 20).status().code(), Code::kNotFound);
  history.reset();
  Tamper(dir / "state", [](rocksdb::DB& db, rocksdb::ColumnFamilyHandle* records) {
    std::string value;
    EXPECT_TRUE(db.Get({}, records, history::RecordKey(4, 2), &value).IsNotFound());
    EXPECT_TRUE(db.Get({}, records, history::RecordKey(6, 2), &value).ok());
  });
}

TEST(History, ARunSetAsideStaysAndCountsAsEnded) {
  const ScratchDir dir;
  HistoryPtr history = OpenOrDie(dir / "state");
  ASSERT_TRUE(history->Append(RunOf(1, "mnist", 5)).ok());
  ASSERT_TRUE(history->SetAside(1, "it does not replay").ok());
  for (int opening = 0; opening < 2; ++opening) {
    EXPECT_TRUE(history->ListRuns()->front().ended);
    EXPECT_EQ(history->Read(1, 0, 1 << 20)->size(), 5u);
    history.reset();
    history = OpenOrDie(dir / "state");
  }
}

TEST(History, OneWriterAtATimeAndReadersBesideIt) {
  const ScratchDir dir;
  const HistoryPtr history = OpenOrDie(dir / "state");
  ASSERT_TRUE(history->Append(RunOf(1, "mnist", 5)).ok());
  const auto second = RocksHistory::Open(dir / "state", {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kAlreadyExists);
  EXPECT_THAT(second.status().message(), HasSubstr(dir / "state"));
  EXPECT_THAT(second.status().message(), HasSubstr("in use by another prd"));

  const auto reader = RocksHistory::OpenReadOnly(dir / "state");
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  ASSERT_TRUE(history->Append(std::vector{Signal(1, 5)}).ok());
  EXPECT_EQ((*reader)->Read(1, 0, 1 << 20)->size(), 5u);
  EXPECT_EQ((*reader)->ListRuns()->front().records, 5u);
  EXPECT_EQ((*reader)->Append(std::vector{Signal(1, 5)}).code(), Code::kFailedPrecondition);
}

TEST(History, SaysWhatIsWrongWithADirectory) {
  const ScratchDir dir;
  const auto no_parent = RocksHistory::Open(dir / "no/such/parent", {});
  ASSERT_FALSE(no_parent.ok());
  EXPECT_THAT(no_parent.status().message(), HasSubstr("its parent must be there"));
  const auto nothing = RocksHistory::OpenReadOnly(dir / "nothing");
  ASSERT_FALSE(nothing.ok());
  EXPECT_EQ(nothing.status().code(), Code::kNotFound);
  std::ofstream(dir / "file") << "text";
  EXPECT_FALSE(RocksHistory::Open(dir / "file", {}).ok());
}

TEST(History, AnotherFormatIsRefused) {
  const ScratchDir dir;
  OpenOrDie(dir / "state").reset();
  Tamper(dir / "state", [](rocksdb::DB& db, rocksdb::ColumnFamilyHandle*) {
    ASSERT_TRUE(db.Put({}, "format", "9").ok());
  });
  const auto history = RocksHistory::Open(dir / "state", {});
  ASSERT_FALSE(history.ok());
  EXPECT_EQ(history.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(history.status().message(), HasSubstr("format 9"));
}

TEST(History, WithoutRoomNothingIsTouched) {
  const ScratchDir dir;
  const HistoryPtr history = OpenOrDie(dir / "state");
  ASSERT_TRUE(history->Append(RunOf(1, "mnist", 10)).ok());
  history->set_reserve_bytes(~0ull >> 1);  // an eighth of the disk, then
  const std::filesystem::space_info space = std::filesystem::space(dir.path());
  const bool roomy = space.available > space.capacity / 8 + (1 << 20);
  const Status status = history->Append(std::vector{Signal(1, 10)});
  EXPECT_EQ(status.ok(), roomy) << status.ToString();
  history->set_reserve_bytes(0);
  ASSERT_TRUE(history->Append(std::vector{Signal(1, 10)}).ok());
  EXPECT_EQ(history->Read(1, 0, 1 << 20)->size(), 11u);
}

// Takes all descriptors that the process may still have, of few.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = 300;
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~NoDescriptors() {
    GiveBack(taken_.size());
    ::setrlimit(RLIMIT_NOFILE, &before_);
  }
  void TakeAll() {
    for (int fd = ::open("/dev/null", O_RDONLY); fd >= 0; fd = ::open("/dev/null", O_RDONLY)) {
      taken_.push_back(fd);
    }
  }
  void GiveBack(std::size_t count) {
    for (; count > 0; --count) {
      ::close(taken_.back());
      taken_.pop_back();
    }
  }

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

TEST(History, WithoutDescriptorsItsFilesAreOpenedFromTheReserve) {
  const ScratchDir dir;
  NoDescriptors none;
  history::PatientFiles files;
  ASSERT_TRUE(files.Ready());
  none.TakeAll();
  constexpr std::size_t kHalf = history::PatientFiles::kReserve / 2;
  std::vector<std::unique_ptr<rocksdb::FSWritableFile>> open(kHalf + 1);
  for (std::size_t i = 0; i < open.size(); ++i) {
    EXPECT_TRUE(files.Ready());
    const auto status =
        files.NewWritableFile(dir / std::to_string(i), rocksdb::FileOptions(), &open[i], nullptr);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  EXPECT_FALSE(files.Ready());
  none.GiveBack(1);
  EXPECT_TRUE(files.Ready());
}

TEST(History, GoesOnWithoutDescriptors) {
  const ScratchDir dir;
  NoDescriptors none;
  {
    const HistoryPtr history = OpenOrDie(dir / "state");
    ASSERT_TRUE(history->Append(RunOf(1, "mnist", 1)).ok());
    none.TakeAll();
    // Enough for RocksDB to begin new files.
    const std::string text(200'000, 'x');
    for (std::uint64_t index = 1; index <= 200; ++index) {
      Record record = Signal(1, index);
      std::get<FromWorker>(record.body).envelope.body = Leave{.reason = text};
      const Status status = history->Append(std::vector{record});
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    EXPECT_FALSE(history->broken());
    none.GiveBack(50);
  }
  EXPECT_EQ(OpenOrDie(dir / "state")->Read(1, 0, 100 << 20)->size(), 201u);
}

std::filesystem::path LogOf(const std::string& dir) {
  std::filesystem::path log;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (entry.path().extension() == ".log" && entry.file_size() > 0) log = entry.path();
  }
  return log;
}

TEST(History, ADamagedLogIsNoticed) {
  const ScratchDir dir;
  const HistoryPtr writer = OpenOrDie(dir / "state");
  for (RunId run = 1; run <= 40; ++run) ASSERT_TRUE(writer->Append(Whole(run, "a")).ok());
  const std::string copy = dir / "copy";
  for (const bool last : {false, true}) {  // a record in the middle, and the last one
    std::filesystem::remove_all(copy);
    std::filesystem::copy(dir / "state", copy);
    ASSERT_EQ(::chmod(copy.c_str(), 0700), 0);
    const std::filesystem::path log = LogOf(copy);
    const auto size = static_cast<std::streamoff>(std::filesystem::file_size(log));
    std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
    const std::streamoff at = last ? size - 1 : size / 2;
    file.seekg(at);
    const char flipped = static_cast<char>(file.get() ^ 1);
    file.seekp(at);
    file.put(flipped);
    file.close();
    const Status read = RocksHistory::OpenReadOnly(copy).status();
    EXPECT_EQ(read.code(), Code::kDataLoss) << read.ToString();
    const Status status = RocksHistory::Open(copy, {}).status();
    EXPECT_EQ(status.code(), Code::kDataLoss) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("the history in state_dir " + copy + " is damaged"));
  }
}

// A kill, a power cut or a full disk in the middle of the last write.
TEST(History, ALogWithoutTheEndOfItsLastRecordIsOpened) {
  const ScratchDir dir;
  const HistoryPtr writer = OpenOrDie(dir / "state");
  for (RunId run = 1; run <= 5; ++run) ASSERT_TRUE(writer->Append(Whole(run, "a")).ok());
  const auto before = std::filesystem::file_size(LogOf(dir / "state"));
  ASSERT_TRUE(writer->Append(Whole(6, "a")).ok());
  const auto after = std::filesystem::file_size(LogOf(dir / "state"));
  const std::string copy = dir / "copy";
  for (const std::uintmax_t size : {before, before + 3, (before + after) / 2, after - 1, after}) {
    std::filesystem::remove_all(copy);
    std::filesystem::copy(dir / "state", copy);
    ASSERT_EQ(::chmod(copy.c_str(), 0700), 0);
    std::filesystem::resize_file(LogOf(copy), size);
    const HistoryPtr history = OpenOrDie(copy);
    EXPECT_EQ(history->ListRuns()->size(), size == after ? 6u : 5u);
  }
}

// A limit on the size of files stands for a disk that fails. In a child, because the limit is the
// process's.
TEST(History, AfterAFailureOfTheDiskAllThatWasAcknowledgedIsThere) {
  const ScratchDir dir;
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    HistoryPtr history = OpenOrDie(dir / "state");
    if (!history->Append(RunOf(1, "mnist", 1)).ok()) ::_exit(1);
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 64 << 10;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::uint64_t index = 1;
    Status status;
    while (status.ok() && index < 100'000) {
      status = history->Append(std::vector{Signal(1, index), Signal(1, index + 1)});
      if (status.ok()) index += 2;
    }
    if (status.code() != Code::kUnavailable || !history->broken()) ::_exit(2);
    if (history->Append(std::vector{Signal(1, index)}).code() != Code::kDataLoss) ::_exit(3);
    if (::write(fds[1], &index, sizeof index) != sizeof index) ::_exit(4);
    history.reset();  // takes no harm
    ::_exit(0);
  }
  ::close(fds[1]);
  std::uint64_t acknowledged = 0;
  const bool told = ::read(fds[0], &acknowledged, sizeof acknowledged) == sizeof acknowledged;
  ::close(fds[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(told && WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  const HistoryPtr history = OpenOrDie(dir / "state");
  const auto read = history->Read(1, 0, 1 << 30);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_GE(read->size(), acknowledged);
  EXPECT_LE(read->size(), acknowledged + 2);
  ASSERT_TRUE(history->Append(std::vector{Signal(1, read->size())}).ok());
}

}  // namespace
}  // namespace prd::history_test
