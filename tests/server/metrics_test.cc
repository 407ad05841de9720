// /healthz and /readyz: what they answer, and why.
#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/server/tcp.h"

namespace prd::metrics_test {
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
  int port() const { return port_; }

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

// Connections that bring a head byte by byte, from the user that also asks.
class SlowConnections {
 public:
  SlowConnections(int port, std::size_t count) : port_(port), slow_(count) {
    for (auto& tcp : slow_) Open(&tcp);
    thread_ = std::thread([this] {
      while (!stop_) {
        for (auto& tcp : slow_) {
          if (!tcp->Send("X")) Open(&tcp);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    });
  }
  ~SlowConnections() {
    stop_ = true;
    thread_.join();
  }

 private:
  void Open(std::unique_ptr<Tcp>* tcp) const {
    *tcp = std::make_unique<Tcp>();
    if ((*tcp)->Connect(port_)) (void)(*tcp)->Send("GET / HTTP/1.1\r\n");
  }

  const int port_;
  std::vector<std::unique_ptr<Tcp>> slow_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

constexpr int kPatienceS = 3;  // of who asks; answers come within a millisecond or so

// Asks again where the connection ends before the answer: between connecting and asking it is one
// of its user's silent connections, and the server takes newer ones in place of these.
std::string GetBeside(int port, const std::string& path) {
  std::string answer;
  for (int tries = 0; tries < 5 && answer.empty(); ++tries) {
    answer = Tcp().Get(port, path, kPatienceS);
  }
  return answer;
}

TEST(MetricsAttack, SlowConnectionsTakeNothingAway) {
  Probes probes;
  probes.metrics().SetUnready("");
  for (const std::size_t count : {6u, 200u}) {
    const SlowConnections slow(probes.port(), count);
    for (int i = 0; i < 20; ++i) {
      for (const char* path : {"/healthz", "/readyz", "/metrics"}) {
        ASSERT_THAT(GetBeside(probes.port(), path), StartsWith(kYes))
            << path << " beside " << count;
      }
    }
  }
}

// Their clients have asked, and read nothing.
TEST(MetricsAttack, PagesThatNobodyReadsTakeNothingAway) {
  Probes probes;
  probes.metrics().SetUnready("");
  MetricsPage page;
  for (int job = 0; job < 50'000; ++job) {
    page.Add("job_workers", {{"job", "a-long-name-of-a-job-" + std::to_string(job)}}, job);
  }
  const std::size_t size = page.Text().size();
  ASSERT_GT(size, 2u << 20);
  probes.metrics().Publish(std::move(page));
  std::vector<std::unique_ptr<Tcp>> lazy;
  for (int i = 0; i < 200; ++i) {
    lazy.push_back(std::make_unique<Tcp>());
    ASSERT_TRUE(lazy.back()->Connect(probes.port()));
    ASSERT_TRUE(lazy.back()->Send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"));
    if (i % 20 != 0) continue;
    ASSERT_THAT(Tcp().Get(probes.port(), "/healthz", kPatienceS), StartsWith(kYes));
  }
  EXPECT_THAT(Tcp().Get(probes.port(), "/readyz", kPatienceS), StartsWith(kYes));
  EXPECT_GT(Tcp().Get(probes.port(), "/metrics").size(), size);
  EXPECT_LT(mallinfo2().uordblks + mallinfo2().hblkhd, 32u << 20) << "200 pages are 500 MiB";
}

}  // namespace
}  // namespace prd::metrics_test
