#include "server/notify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/server/scratch_dir.h"

namespace prd::notify_test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// What the service manager would be. `name` begins with '/' or, abstract, with '@'.
class Manager {
 public:
  explicit Manager(const std::string& name) : fd_(::socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path, sizeof address.sun_path - 1);
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    const timeval timeout{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  }
  ~Manager() { ::close(fd_); }
  std::string Next() {
    char buffer[256];
    const ssize_t size = ::recv(fd_, buffer, sizeof buffer, 0);
    return size < 0 ? "" : std::string(buffer, static_cast<std::size_t>(size));
  }

 private:
  int fd_;
};

class NotifyTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) ::unsetenv(name);
  }
  void SetUp() override { TearDown(); }
};

TEST_F(NotifyTest, TellsNobodyWhenNobodyAsks) {
  const auto notifier = Notifier::FromEnvironment();
  ASSERT_TRUE(notifier.ok());
  EXPECT_FALSE(notifier->enabled());
  notifier->Ready();
}

TEST_F(NotifyTest, SpeaksToAFileAndToAnAbstractSocket) {
  const ScratchDir dir;
  for (const std::string& name :
       {dir / "notify", "@prd-notify-test-" + std::to_string(::getpid())}) {
    Manager manager(name);
    ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
    const auto notifier = Notifier::FromEnvironment();
    ASSERT_TRUE(notifier.ok()) << notifier.status().ToString();
    EXPECT_TRUE(notifier->enabled());
    notifier->Ready();
    EXPECT_EQ(manager.Next(), "READY=1");
    notifier->Reloading();
    EXPECT_THAT(manager.Next(), MatchesRegex("RELOADING=1\nMONOTONIC_USEC=[0-9]+"));
    notifier->Stopping();
    EXPECT_EQ(manager.Next(), "STOPPING=1");
    EXPECT_FALSE(notifier->watchdog_interval());
  }
}

TEST_F(NotifyTest, TheWatchdogIsFedTwiceAsOftenAsNeeded) {
  ::setenv("NOTIFY_SOCKET", "@prd-notify-test", 1);
  ::setenv("WATCHDOG_USEC", "30000000", 1);
  EXPECT_EQ(Notifier::FromEnvironment()->watchdog_interval(), 15 * kSecond);
  ::setenv("WATCHDOG_PID", std::to_string(::getpid()).c_str(), 1);
  EXPECT_EQ(Notifier::FromEnvironment()->watchdog_interval(), 15 * kSecond);
  ::setenv("WATCHDOG_PID", "1", 1);  // meant for another process
  EXPECT_FALSE(Notifier::FromEnvironment()->watchdog_interval());
}

TEST_F(NotifyTest, NamesTheVariableThatIsWrong) {
  for (const std::string& name :
       {std::string("relative"), std::string("@"), std::string(200, '/')}) {
    ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
    const auto notifier = Notifier::FromEnvironment();
    ASSERT_FALSE(notifier.ok()) << name;
    EXPECT_THAT(notifier.status().message(), HasSubstr("NOTIFY_SOCKET: found"));
  }
  ::setenv("NOTIFY_SOCKET", "@prd-notify-test", 1);
  for (const char* value : {"", "soon", "-5", "5s"}) {
    ::setenv("WATCHDOG_USEC", value, 1);
    EXPECT_THAT(Notifier::FromEnvironment().status().message(), HasSubstr("WATCHDOG_USEC: found"));
  }
}

}  // namespace
}  // namespace prd::notify_test
