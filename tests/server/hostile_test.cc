// A client that is listed and means harm: it has as many jobs as it is let have, acknowledges
// nothing, says the longest texts, and sends without pause. What it costs the daemon is bounded,
// and other jobs go on.
//
// By hand: PRD_ATTACK_JOBS=14000 PRD_ATTACK_ROUNDS=3000 hostile_test prints the latency of another
// job's groups with and without it; PRD_ATTACK_TEXT is how long the texts are, PRD_ATTACK_EQUAL=1
// gives the attacker the same priority. `chrt -f 5` before
// it keeps out what else the machine does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/io/clock.h"
#include "tests/server/daemon_process.h"
#include "tests/server/raw_worker.h"

namespace prd::hostile_test {
namespace {

std::size_t Size(const char* variable, std::size_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Behind the daemon and the other job, whose processor is not what is attacked.
void StepBack() {
  if (Size("PRD_ATTACK_EQUAL", 0) != 0) return;
  const sched_param least{.sched_priority = 1};
  if (::sched_getscheduler(0) == SCHED_FIFO) (void)::sched_setscheduler(0, SCHED_RR, &least);
  (void)!::nice(5);
}

// All of it on one connection.
class Hostile {
 public:
  Hostile(const std::string& endpoint, const CurveKeys& own, const std::string& server) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::curve_publickey, own.public_key);
    socket_.set(zmq::sockopt::curve_secretkey, own.secret_key);
    socket_.set(zmq::sockopt::curve_serverkey, server);
    socket_.connect(endpoint);
  }

  // So many jobs, as far as it is let have them; then messages for all of them, without end.
  // `opened` is called in between.
  [[noreturn]] void Attack(std::size_t jobs, const std::function<void()>& opened) {
    // What a slow daemon has not read when it cuts the connection is said again.
    while (heard_.size() < jobs) {
      for (std::size_t i = 0; i < jobs; ++i) {
        if (!heard_.contains(kFirst + i)) Open(i);
        Hear();
      }
      for (std::int64_t end = MonotonicNs() + kSecond; MonotonicNs() < end;) {
        if (Hear()) end = MonotonicNs() + kSecond;
        if (heard_.size() >= jobs) break;
      }
    }
    opened();
    for (std::size_t i = 0;; ++i) {
      if (i % 512 == 0) Open(i % jobs);  // again
      if (!members_.empty()) Trouble(members_[i % members_.size()], i);
      Hear();
    }
  }

 private:
  static constexpr Incarnation kFirst = 1'000'000;
  struct Member {
    Incarnation incarnation = 0;
    RunId run = kNoRun;
    RunIdentity identity;
  };

  void Send(const WorkerEnvelope& envelope) {
    (void)socket_.send(zmq::buffer(Encode(envelope)), zmq::send_flags::none);
  }
  void Open(std::size_t i) {
    const std::string longest(256, 'x');
    std::string name = "bob-" + std::to_string(i) + "-";
    name.resize(200, 'j');
    Hello hello = RawWorker::HelloFor(name, 0);
    hello.host = hello.host_name = hello.launch = longest;
    hello.endpoints.assign(4, longest);
    Send({.incarnation = kFirst + i,
          .seq = 1,
          .oldest = 1,
          .token = {9, i},
          .body = std::move(hello)});
  }
  // The worst for each: a sign of life, after which what it has not acknowledged comes again;
  // something said again; something out of order, and long.
  void Trouble(const Member& member, std::size_t i) {
    WorkerEnvelope envelope{.run = member.run,
                            .identity = member.identity,
                            .rank = 0,
                            .incarnation = member.incarnation,
                            .oldest = 1,
                            .token = {9, member.incarnation - kFirst},
                            .body = Heartbeat{}};
    switch (i % 3) {
      case 0:
        break;
      case 1:
        envelope.seq = 1;
        envelope.body = Leave{.reason = std::string(text_, 'y')};
        break;
      default:
        envelope.seq = 100;
        envelope.body = Finished{.group = 7, .detail = std::string(text_, 'z')};
        break;
    }
    Send(envelope);
  }
  // Takes what has come. False: nothing.
  bool Hear() {
    bool any = false;
    for (zmq::message_t message; socket_.recv(message, zmq::recv_flags::dontwait);) {
      any = true;
      const auto envelope =
          DecodeControllerEnvelope({static_cast<const char*>(message.data()), message.size()});
      if (!envelope.ok()) continue;
      if (envelope->seq <= 1) heard_.insert(envelope->incarnation);
      if (const auto* welcome = std::get_if<Welcome>(&envelope->body)) {
        if (!known_.insert(envelope->incarnation).second) continue;
        members_.push_back({envelope->incarnation, welcome->run, envelope->identity});
      }
    }
    return any;
  }

  zmq::context_t context_;
  zmq::socket_t socket_{context_, zmq::socket_type::dealer};
  std::vector<Member> members_;
  std::set<Incarnation> known_;
  const std::size_t text_ = Size("PRD_ATTACK_TEXT", 60'000);
  std::set<Incarnation> heard_;  // whose first answer came
};

class HostileClient : public ::testing::Test {
 protected:
  void TearDown() override { End(); }
  void End() {
    if (attacker_ <= 0) return;
    ::kill(attacker_, SIGKILL);
    ::waitpid(attacker_, nullptr, 0);
    attacker_ = -1;
  }
  void Start(const std::string& quotas) {
    std::ofstream(daemon_.dir() / "secret") << server_.secret_key << "\n";
    ASSERT_EQ(::chmod((daemon_.dir() / "secret").c_str(), 0600), 0);
    const auto identity = [](const std::string& name, const CurveKeys& keys) {
      return "[[identity]]\nname = \"" + name + "\"\nkeys = [\"" + keys.public_key +
             "\"]\njobs = [\"" + name + "-*\"]\n";
    };
    daemon_.WriteConfig(
        "[[job]]\nname = \"*\"\nengine = \"p-reduce\"\nworkers = 2\nlease_ms = 600000\n"
        "[job.p-reduce]\ngroup_size = 2\n" +
            identity("alice", alice_) + identity("bob", bob_) + quotas,
        "listen = \"tcp://127.0.0.1:*\"\ncurve_secret_key_file = \"" + (daemon_.dir() / "secret") +
            "\"");
    ASSERT_TRUE(daemon_.Start()) << daemon_.log();
  }
  // In a process of its own. Waits until its jobs are there, or refused.
  void Attack(std::size_t jobs) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const std::string endpoint = daemon_.endpoint();
    attacker_ = ::fork();
    if (attacker_ == 0) {
      StepBack();
      Hostile(endpoint, bob_, server_.public_key).Attack(jobs, [&] {
        (void)!::write(ready[1], "x", 1);
      });
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  void Join(const std::string& job) {
    ++launches_;
    const auto worker = [this](Incarnation incarnation) {
      return std::make_unique<RawWorker>(daemon_.endpoint(), incarnation,
                                         std::pair(alice_, server_.public_key));
    };
    first_ = worker(10 * launches_);
    second_ = worker(10 * launches_ + 1);
    first_->Join(job, 0);
    second_->Join(job, 1);
    ASSERT_TRUE(first_->Reduce() && second_->Reduce());  // the common start
    iteration_ = 0;
  }
  // From the second signal to the announcement, in us, sorted.
  std::vector<double> Rounds(std::size_t rounds) {
    std::vector<double> took;
    for (std::size_t i = 0; i < rounds; ++i) {
      ++iteration_;
      first_->Send(Ready{.iteration = iteration_});
      const std::int64_t begin = MonotonicNs();
      second_->Send(Ready{.iteration = iteration_});
      const std::optional<Group> group = second_->Reduce();
      took.push_back(static_cast<double>(MonotonicNs() - begin) / 1e3);
      if (!group || !first_->Reduce()) return {};
    }
    std::sort(took.begin(), took.end());
    return took;
  }
  static void Print(const char* what, const std::vector<double>& us) {
    const auto at = [&](double p) {
      return us[static_cast<std::size_t>(p * static_cast<double>(us.size() - 1))];
    };
    std::fprintf(stderr, "%-10s p50 %8.0f us, p99 %8.0f us, most %8.0f us\n", what, at(0.5),
                 at(0.99), us.back());
  }
  long Resident() const {  // kB
    std::ifstream status("/proc/" + std::to_string(daemon_.pid()) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmRSS:")) return std::strtol(line.c_str() + 6, nullptr, 10);
    }
    return 0;
  }

  const CurveKeys server_ = NewCurveKeys().value();
  const CurveKeys alice_ = NewCurveKeys().value();
  const CurveKeys bob_ = NewCurveKeys().value();
  DaemonProcess daemon_{""};
  std::unique_ptr<RawWorker> first_, second_;
  Iteration iteration_ = 0;
  Incarnation launches_ = 0;
  pid_t attacker_ = -1;
};

TEST_F(HostileClient, CostsOthersLittle) {
  const std::size_t jobs = Size("PRD_ATTACK_JOBS", 500);
  const std::size_t rounds = Size("PRD_ATTACK_ROUNDS", 100);
  ASSERT_NO_FATAL_FAILURE(Start(""));
  ASSERT_NO_FATAL_FAILURE(Join("alice-1"));
  const std::vector<double> without = Rounds(rounds);
  ASSERT_EQ(without.size(), rounds);
  Print("without", without);
  first_.reset();
  second_.reset();
  const long before = Resident();
  ASSERT_NO_FATAL_FAILURE(Attack(jobs));
  ASSERT_NO_FATAL_FAILURE(Join("alice-2"));
  // Its turn may come late on a busy machine.
  const std::int64_t deadline = MonotonicNs() + 60 * kSecond;
  while (daemon_.Counter("messages_out_of_order") == 0) {
    ASSERT_LT(MonotonicNs(), deadline) << daemon_.log();
  }
  const std::vector<double> with = Rounds(rounds);
  ASSERT_EQ(with.size(), rounds) << daemon_.log();
  Print("with", with);
  const AdminReply reply = daemon_.Ask(GetStatus{});
  const auto* status = std::get_if<DaemonStatus>(&reply);
  ASSERT_TRUE(status != nullptr);
  EXPECT_EQ(status->silences.size(), jobs + 4) << daemon_.log();
  std::fprintf(stderr, "%zu jobs, %llu messages of theirs; the daemon grew by %ld kB\n", jobs,
               static_cast<unsigned long long>(daemon_.Counter("messages_out_of_order")),
               Resident() - before);
  // 16 KiB for a job with the longest texts, and what is on the way. AddressSanitizer keeps what
  // the daemon has freed.
#if !defined(PRD_ADDRESS_SANITIZER)
  EXPECT_LT(Resident() - before, static_cast<long>(64 * 1024 + 16 * jobs));
#endif
}

TEST_F(HostileClient, HasNoMoreThanItsQuotas) {
  ASSERT_NO_FATAL_FAILURE(Start("max_jobs = 5\nmax_messages_per_s = 200\n"));
  ASSERT_NO_FATAL_FAILURE(Attack(50));
  ASSERT_NO_FATAL_FAILURE(Join("alice-2"));
  EXPECT_EQ(Rounds(50).size(), 50u) << daemon_.log();
  EXPECT_LE(std::get<DaemonStatus>(daemon_.Ask(GetStatus{})).silences.size(), 5u + 2u);
  EXPECT_GT(daemon_.Counter("messages_over_quota"), 0u);
}

}  // namespace
}  // namespace prd::hostile_test
