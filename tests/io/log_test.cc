// The log of a daemon, on a stderr that is read, or is not.
#include "common/io/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace prd::log_test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

// stderr is a pipe meanwhile. What fails is told on stdout.
class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    EXPECT_EQ(::fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    reads_ = ends[0];
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[1]);
    ::unsetenv("JOURNAL_STREAM");
  }
  ~LogTest() override {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
    ::close(reads_);
    StartLog("info");
  }

  // What is there to be read.
  std::string Read() {
    std::string text;
    char chunk[1 << 16];
    for (ssize_t size = 0; (size = ::read(reads_, chunk, sizeof chunk)) > 0;) {
      text.append(chunk, static_cast<std::size_t>(size));
    }
    return text;
  }

 private:
  const int before_ = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  int reads_ = -1;
};

std::string StreamOf(int fd) {
  struct stat info {};
  ::fstat(fd, &info);
  return std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
}

TEST_F(LogTest, LinesHaveTheirTimeInUtc) {
  ::setenv("TZ", "UTC-9", 1);
  ::tzset();
  StartLog("info");
  spdlog::info("hour");
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  ::unsetenv("TZ");
  ::tzset();
  const std::string text = Read();
  EXPECT_THAT(text, MatchesRegex("[0-9-]+T[0-9:]+[.][0-9]+Z info    hour\n"));
  // An hour may have passed by just now.
  const int hour = std::atoi(text.substr(text.find('T') + 1, 2).c_str());
  EXPECT_LE((utc.tm_hour - hour + 24) % 24, 1) << text;
}

TEST_F(LogTest, OnlyTheJournalHasNoNeedOfATime) {
  ::setenv("JOURNAL_STREAM", StreamOf(STDIN_FILENO).c_str(), 1);
  StartLog("info");
  spdlog::info("another stderr than systemd's");
  EXPECT_THAT(Read(), MatchesRegex("[0-9-]+T.*\n"));
  ::setenv("JOURNAL_STREAM", StreamOf(STDERR_FILENO).c_str(), 1);
  StartLog("info");
  spdlog::warn("systemd's");
  EXPECT_EQ(Read(), "<4>systemd's\n");
}

TEST_F(LogTest, WhereNobodyReadsLinesAreLeftOutAndCounted) {
  StartLog("info");
  constexpr int kLines = 1000;
  const std::string long_text(1000, 'x');
  for (int i = 0; i < kLines; ++i) spdlog::info("line {} {}", i, long_text);
  const std::string before = Read();
  EXPECT_THAT(before, HasSubstr("line 0 "));
  spdlog::info("the last one");
  const std::string after = Read();
  const std::string both = before + after;
  const auto whole = std::count(both.begin(), both.end(), '\n') - 2;
  EXPECT_LT(whole, kLines);
  EXPECT_THAT(after, HasSubstr("warning " + std::to_string(kLines - whole) +
                               " lines are left out here: nobody read the log\n"));
  EXPECT_THAT(after, HasSubstr("the last one\n"));
  spdlog::info("and on");
  EXPECT_THAT(Read(), StartsWith("2"));
}

TEST_F(LogTest, ALineThatIsLongerThanThePipeComesInParts) {
  StartLog("info");
  spdlog::info("{}", std::string(100'000, 'x'));
  std::string text = Read();
  spdlog::info("more");
  text += Read();
  EXPECT_EQ(std::count(text.begin(), text.end(), 'x'), 100'000);
  EXPECT_THAT(text, HasSubstr("x\n2"));
  EXPECT_THAT(text, HasSubstr(" more\n"));
}

}  // namespace
}  // namespace prd::log_test
