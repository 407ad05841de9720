// /healthz and /readyz: what they answer, and why.
#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/tcp.h"

namespace prd {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A server, and what it answers.
class Probes {
 public:
  explicit Probes(DurationNs dead_after = Metrics::kDeadAfter) {
    Result<std::unique_ptr<Metrics>> served =
        Metrics::Serve("127.0.0.1:" + std::to_string(port_), dead_after);
    EXPECT_TRUE(served.ok()) << served.status().message();
    if (served.ok()) metrics_ = std::move(*served);
  }
  Metrics& metrics() { return *metrics_; }
  std::string Health() const { return Tcp().Get(port_, "/healthz"); }
  std::string Ready() const { return Tcp().Get(port_, "/readyz"); }

 private:
  const int port_ = Tcp().FreePort();
  std::unique_ptr<Metrics> metrics_;
};

constexpr const char* kYes = "HTTP/1.1 200 OK\r\n";
constexpr const char* kNo = "HTTP/1.1 503 Service Unavailable\r\n";

TEST(Readyz, WhileTheHistoryIsReadWhileItCannotBeWrittenAndAtTheEnd) {
  Probes probes;
  EXPECT_THAT(probes.Ready(),
              AllOf(StartsWith(kNo), EndsWith("\r\n\r\nstarting: the history is read\n")));
  probes.metrics().SetUnready("");
  EXPECT_THAT(probes.Ready(), AllOf(StartsWith(kYes), EndsWith("\r\n\r\nok\n")));
  for (const char* why : {"the history cannot be written: no space", "stopping"}) {
    probes.metrics().SetUnready(why);
    EXPECT_THAT(probes.Ready(),
                AllOf(StartsWith(kNo), EndsWith("\r\n\r\n" + std::string(why) + "\n")));
    EXPECT_THAT(probes.Health(), StartsWith(kYes)) << "it is to be left to itself";
  }
}

TEST(Healthz, AThreadThatDoesNotTurnIsDead) {
  Probes dead(0);
  EXPECT_THAT(dead.Health(),
              AllOf(StartsWith(kNo), HasSubstr("the daemon's thread has not turned for 0 s\n")));
  dead.metrics().SetUnready("");
  EXPECT_THAT(dead.Ready(), StartsWith(kYes)) << "another question";
  Probes lives;
  lives.metrics().Alive();
  EXPECT_THAT(lives.Health(), AllOf(StartsWith(kYes), EndsWith("\r\n\r\nok\n")));
}

}  // namespace
}  // namespace prd
