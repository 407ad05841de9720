// What peers can cost a worker before it reads what they send: parts and handshakes without end,
// connections without number, of strangers and of members. The others go on.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/plans.h"
#include "tests/worker/mesh_job.h"
#include "tests/worker/mesh_ring.h"
#include "worker/mesh/keys.h"

namespace prd {
namespace {

using testing::EveryDType;
using testing::MeshJob;
using testing::MeshNode;

constexpr std::uint64_t kMiB = 1 << 20;

std::string Framed(char flags, const std::string& body) {
  std::string framed(1, static_cast<char>(flags | 2));  // with a size of 8 bytes
  for (int shift = 56; shift >= 0; shift -= 8) {
    framed.push_back(static_cast<char>(body.size() >> shift));
  }
  return framed + body;
}
std::string Short(const std::string& text) { return static_cast<char>(text.size()) + text; }

// ZMTP over TCP, without ZeroMQ, as whoever means ill may speak it.
class Raw {
 public:
  explicit Raw(const MeshNode& to) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) {
    const std::string& endpoint = to.mesh->endpoints().back();
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port =
        htons(static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
    (void)::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    std::string greeting = std::string("\xff\0\0\0\0\0\0\0\0\x7f\x03\0PLAIN", 17);
    greeting.resize(64);
    out_ = greeting;
  }
  Raw(Raw&& other) noexcept
      : sent(other.sent), fd_(std::exchange(other.fd_, -1)), out_(std::move(other.out_)) {}
  ~Raw() {
    if (fd_ >= 0) ::close(fd_);
  }

  void Say(const std::string& bytes) { out_ += bytes; }
  void SayHello(const std::string& user, const std::string& proof) {
    Say(Framed(4, Short("HELLO") + Short(user) + Short(proof)));
  }
  void SayInitiate() {
    Say(Framed(4, Short("INITIATE") + Short("Socket-Type") + std::string(3, '\0') + Short("PUSH")));
  }
  // Sends what it takes. False: the connection has ended.
  bool Go() {
    while (!out_.empty()) {
      const ssize_t some = ::send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL);
      if (some < 0) return errno == EAGAIN || errno == ENOTCONN || errno == EINPROGRESS;
      out_.erase(0, static_cast<std::size_t>(some));
      sent += static_cast<std::uint64_t>(some);
    }
    char byte = 0;
    const ssize_t got = ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == ENOTCONN));
  }
  bool waits() const { return !out_.empty(); }
  // Bytes that have come from the other side.
  std::size_t Come() {
    char bytes[4096];
    const ssize_t some = ::recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT);
    come_ += some > 0 ? static_cast<std::size_t>(some) : 0;
    return come_;
  }

  std::uint64_t sent = 0;

 private:
  int fd_;
  std::string out_;
  std::size_t come_ = 0;
};

constexpr std::size_t kGreeting = 64;
constexpr std::size_t kWelcome = kGreeting + 2 + 8;

// Worker 0, and two members on other hosts who train with it whatever comes.
class Job {
 public:
  explicit Job(MeshSecurity security, std::size_t connections = 0) {
    testing::NodeOptions options;
    options.max_connections = connections;
    job_ = std::make_unique<MeshJob>(1, EveryDType(1000), plans::kModels, options);
    job_->AddApart();
    job_->AddApart();
    for (std::size_t w = 0; w < 3; ++w) {
      (*job_)[w].mesh().JoinRun(1, plans::kModels, Mesh::kDefaultLease, {.security = security});
    }
  }
  MeshNode& victim() { return *(*job_)[0].node; }
  Mesh& mesh() { return *victim().mesh; }
  void Train() { job_->ReduceOk(GroupKind::kTrain, ++iteration_, {0, 1, 2}, {0.25, 0.25, 0.5}); }
  // Nothing wakes the workers when a raw connection may go on.
  bool Until(const std::function<bool()>& done) {
    const Instant end = testing::MeshNow() + 60 * kSecond;
    std::vector<zmq::pollitem_t> items;
    while (!done()) {
      if (testing::MeshNow() > end) return false;
      items.clear();
      for (MeshNode* node : job_->Nodes()) {
        node->mesh->Service(testing::MeshNow());
        node->AppendPollItems(&items);
      }
      zmq::poll(items, std::chrono::milliseconds(1));
    }
    return true;
  }

  // A member of the job, through the door.
  Raw Admitted(std::uint64_t number) {
    const Incarnation self = 4711;
    const GroupMember to = victim().AsMember(0);
    mesh().Announce(testing::MeshNow(), {{.rank = 900,
                                          .incarnation = self,
                                          .weight = 0,
                                          .host = "elsewhere",
                                          .endpoints = {"tcp://127.0.0.1:1"},
                                          .mesh_key = keys_.public_key}});
    const Pass pass{.from = self, .number = number, .purpose = Purpose::kData};
    const auto agreed =
        AgreeOnKeys(keys_, to.mesh_key, {.run = 1, .from = self, .to = to.incarnation});
    Raw raw(victim());
    raw.SayHello(EncodePass(pass), ProofOf(agreed.value().out, pass));
    EXPECT_TRUE(Until([&] { return raw.Go() && raw.Come() >= kWelcome; }));
    raw.SayInitiate();
    EXPECT_TRUE(Until([&] { return raw.Go() && raw.Come() > kWelcome; }));
    return raw;
  }

 private:
  std::unique_ptr<MeshJob> job_;
  Iteration iteration_ = 0;
  MeshKeyPair keys_ = testing::DrawnKeys();
};

TEST(MeshBoundsTest, AMembersPartsWithoutEndAreCut) {
  for (const MeshSecurity security : {MeshSecurity::kNone, MeshSecurity::kAead}) {
    Job job(security);
    job.Train();
    Raw raw = job.Admitted(1);
    const std::string part = Framed(1, std::string(64 << 10, 'x'));
    const bool ended = job.Until([&] {
      if (!raw.waits()) raw.Say(part);
      return !raw.Go() || raw.sent > 1024 * kMiB;
    });
    EXPECT_TRUE(ended);
    EXPECT_LT(raw.sent, 512 * kMiB);
    EXPECT_EQ(job.mesh().transported().cut, 1u);
    job.Train();
  }
}

TEST(MeshBoundsTest, MembersAreCutTogether) {
  Job job(MeshSecurity::kAead);
  job.Train();
  std::vector<Raw> many;
  for (std::uint64_t n = 1; n <= 40; ++n) many.push_back(job.Admitted(n));
  for (Raw& raw : many) {
    for (int i = 0; i < 32; ++i) raw.Say(Framed(1, std::string(64 << 10, 'x')));
  }
  EXPECT_TRUE(job.Until([&] {
    for (Raw& raw : many) (void)raw.Go();
    return job.mesh().transported().cut > 0;
  })) << "each is below what one may bring";
  job.Train();
}

// A command of the handshake is not read as a message; it takes memory all the same.
TEST(MeshBoundsTest, HandshakesWithoutEndAreCut) {
  Job job(MeshSecurity::kAead);
  job.Train();
  // Two members have a connection for frames and one for signals each, which may come later.
  constexpr std::uint64_t kMembers = 4;
  EXPECT_TRUE(job.Until([&] { return job.mesh().connections().admitted == kMembers; }));
  std::vector<Raw> crowd;
  const std::string endless = Framed(4, std::string(kMiB / 2, 'x')).substr(0, kMiB / 2);
  for (int i = 0; i < 80; ++i) {
    crowd.emplace_back(job.victim());
    crowd.back().Say(endless);
  }
  EXPECT_TRUE(job.Until([&] {
    for (Raw& raw : crowd) (void)raw.Go();
    return job.mesh().transported().cut > 0;
  }));
  EXPECT_EQ(job.mesh().connections().admitted, kMembers);
  job.Train();
}

TEST(MeshBoundsTest, ConnectionsAreCounted) {
  Job job(MeshSecurity::kAead, 16);
  job.Train();
  std::vector<Raw> idle;
  for (int i = 0; i < 100; ++i) {
    idle.emplace_back(job.victim());
    (void)idle.back().Go();
  }
  EXPECT_TRUE(job.Until([&] { return job.mesh().transported().refused >= 90; }));
  EXPECT_LE(job.mesh().transported().open, 8u) << "half of all, from one address";
  EXPECT_TRUE(job.Until([&] { return !job.victim().intruders.empty(); }));
  for (int i = 0; i < 5; ++i) job.Train();
  // One who comes again and again, and is let in, has no more.
  for (std::uint64_t n = 1; n <= 20; ++n) {
    Raw raw = job.Admitted(n);
    raw.Say(Framed(1, "a") + Framed(0, "frame"));
    const std::uint64_t dropped = job.mesh().counters().dropped;
    EXPECT_TRUE(job.Until([&] { return raw.Go() && job.mesh().counters().dropped > dropped; }));
  }
  job.Train();
}

}  // namespace
}  // namespace prd
