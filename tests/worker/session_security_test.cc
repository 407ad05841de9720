// Whole sessions whose mesh is protected: each engine trains as it does without protection, a late
// worker copies a replica, and who has no key gets in nowhere.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>
#include <zmq.hpp>

#include "engines/registry.h"
#include "tests/worker/session_worker.h"

namespace prd::session_security_test {
namespace {

using testing::FakeDaemon;
using testing::InParallel;
using testing::SpecFor;
using testing::Worker;

// libsodium is not built with the thread sanitizer, which takes seconds to find that out of each of
// the races that it sees there (tsan.supp): leases run out.
#if defined(PRD_THREAD_SANITIZER)
constexpr MeshSecurity kAll[] = {MeshSecurity::kNone, MeshSecurity::kAead};
#else
constexpr MeshSecurity kAll[] = {MeshSecurity::kNone, MeshSecurity::kAead, MeshSecurity::kCurve};
#endif
constexpr std::array kNames = {"none", "aead", "curve"};

JobSpec Protected(EngineOptions engine, int workers, MeshSecurity security) {
  JobSpec spec = SpecFor(std::move(engine), workers);
  spec.mesh_security = security;
  return spec;
}

class SessionSecurityTest : public ::testing::TestWithParam<std::tuple<std::size_t, MeshSecurity>> {
};

std::string NameOf(const ::testing::TestParamInfo<std::tuple<std::size_t, MeshSecurity>>& info) {
  std::string name(EngineName(AllEngines()[std::get<0>(info.param)]));
  std::erase(name, '-');
  return name + "_" + kNames[static_cast<std::size_t>(std::get<1>(info.param))];
}

TEST_P(SessionSecurityTest, AJobTrainsAndALateWorkerJoins) {
  const auto [engine, security] = GetParam();
  constexpr int kWorkers = 3;
  constexpr int kSteps = 12;
  FakeDaemon daemon(Protected(AllEngines()[engine], kWorkers, security));
  std::vector<std::vector<float>> ends(kWorkers + 1);
  const auto attach = [](Worker* worker) {
    const Status attached = worker->session->Attach(worker->replica());
    ASSERT_TRUE(attached.ok()) << attached.ToString();
  };
  const auto train = [&](Worker* worker, int rank) {
    for (int step = 0; step < kSteps; ++step) {
      std::fill(worker->gradients.begin(), worker->gradients.end(), 1.f);
      const auto result = worker->session->Step({.samples = 1});
      ASSERT_TRUE(result.ok()) << result.status().ToString();
    }
    const Status finished = worker->session->Finish();
    ASSERT_TRUE(finished.ok()) << finished.ToString();
    ends[static_cast<std::size_t>(rank)] = worker->values;
  };
  std::thread late;
  InParallel(daemon, kWorkers, [&](Worker* worker, int rank) {
    attach(worker);
    if (rank != 0) return train(worker, rank);
    late = std::thread([&] {
      Worker one(daemon, kWorkers);
      attach(&one);
      train(&one, kWorkers);
    });
    ASSERT_TRUE(daemon.WaitFor([&](const Record& record) {
      const auto* ordered = std::get_if<AdoptOrdered>(&record.body);
      return ordered != nullptr && ordered->rank == kWorkers;
    }));
    train(worker, 0);
  });
  late.join();
  for (const std::vector<float>& end : ends) {
    ASSERT_FALSE(end.empty());
    EXPECT_EQ(end, ends[0]) << "the final average";
  }
  int evicted = 0;
  for (const Record& record : daemon.records()) {
    const auto* left = std::get_if<WorkerLeft>(&record.body);
    evicted += left != nullptr && left->why == LeftReason::kEvicted;
  }
  EXPECT_EQ(evicted, 0);
}

INSTANTIATE_TEST_SUITE_P(All, SessionSecurityTest,
                         ::testing::Combine(::testing::Range<std::size_t>(0, 9),
                                            ::testing::ValuesIn(kAll)),
                         NameOf);

// ---- S1 ----

// Names of this process's abstract sockets; every user of the host can read all names.
std::vector<std::string> AbstractNames() {
  std::set<std::string> own;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string link = std::filesystem::read_symlink(entry.path(), gone).string();
    if (link.starts_with("socket:[")) own.insert(link.substr(8, link.size() - 9));
  }
  std::vector<std::string> names;
  std::ifstream in("/proc/net/unix");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
    if (fields.size() == 8 && own.contains(fields[6]) && fields[7].starts_with("@prd-")) {
      names.push_back(fields[7]);
    }
  }
  return names;
}

std::string Hex(Incarnation incarnation) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(incarnation));
  return text;
}

// The program that once took the whole model with one message of 80 bytes, and the one that ruined
// a training run with forty: with everything that the controller has told its members.
TEST(SessionAttackTest, WhoReadsEveryNameAndKnowsEveryIncarnationGetsNothing) {
  FakeDaemon daemon(SpecFor(AllReduceOptions{}, 2));
  std::uint64_t got = 0;
  InParallel(daemon, 2, [&](Worker* worker, int rank) {
    const Status attached = worker->session->Attach(worker->replica());
    ASSERT_TRUE(attached.ok()) << attached.ToString();
    zmq::context_t context;
    zmq::socket_t loot(context, zmq::socket_type::pull);
    std::vector<zmq::socket_t> sockets;
    if (rank == 0) {
      for (const Rank member : {0, 1}) {
        ASSERT_TRUE(daemon.WaitFor([member](const Record& record) {
          const auto* joined = std::get_if<WorkerJoined>(&record.body);
          return joined != nullptr && joined->rank == member;
        }));
      }
      std::vector<Incarnation> members;
      std::vector<std::uint64_t> runs = {1};
      for (const Record& record : daemon.records()) {
        if (const auto* joined = std::get_if<WorkerJoined>(&record.body)) {
          members.push_back(joined->incarnation);
        }
        if (const auto* started = std::get_if<RunStarted>(&record.body)) {
          runs.push_back(started->identity.high);
        }
      }
      ASSERT_EQ(members.size(), 2u);
      loot.bind("tcp://127.0.0.1:*");
      const std::string address = "nowhere\n" + loot.get(zmq::sockopt::last_endpoint);
      const std::vector<std::string> names = AbstractNames();
      EXPECT_GE(names.size(), 2u);
      for (const std::string& name : names) {
        for (const Incarnation member : members) {
          EXPECT_EQ(name.find(Hex(member)), std::string::npos) << "the name tells the incarnation";
        }
        for (const bool plain : {false, true}) {
          zmq::socket_t& push = sockets.emplace_back(context, zmq::socket_type::push);
          push.set(zmq::sockopt::linger, 0);
          if (plain) {
            push.set(zmq::sockopt::plain_username, Hex(members[1]) + "-" + Hex(1) + "-d");
            push.set(zmq::sockopt::plain_password, std::string(64, '0'));
          }
          push.connect("ipc://" + name);
          for (const std::uint64_t run : runs) {
            for (const std::uint32_t kind : {2u, 4u}) {  // a contribution; "send me your replica"
              std::string frame(80, '\0');
              const std::uint32_t magic = 0x39647270;
              std::memcpy(frame.data(), &magic, 4);
              std::memcpy(frame.data() + 4, &kind, 4);
              const std::uint64_t words[] = {run, 2, members[1], members[0]};
              std::memcpy(frame.data() + 8, words, sizeof words);
              // Once it is refused, the socket has nobody to send to, and would wait for ever.
              const auto once = zmq::send_flags::dontwait;
              if (!push.send(zmq::buffer(frame), zmq::send_flags::sndmore | once)) continue;
              (void)push.send(zmq::buffer(address), once);
            }
          }
        }
      }
    }
    for (int step = 0; step < 40; ++step) {
      std::fill(worker->gradients.begin(), worker->gradients.end(), 1.f);
      ASSERT_TRUE(worker->session->Step({.samples = 1}).ok());
    }
    EXPECT_EQ(worker->values, std::vector<float>(testing::kSize, 40.f)) << "as nobody else says";
    if (rank == 0) {
      for (zmq::message_t part; loot.recv(part, zmq::recv_flags::dontwait);) got += part.size();
    }
    EXPECT_TRUE(worker->session->Finish().ok());
  });
  EXPECT_EQ(got, 0u);
}

// ---- where a worker listens ----

TEST(SessionListenTest, PortsThatAreAllTakenAreNamed) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  SessionOptions options;
  options.job = "job";
  options.mesh_ports = port + "-" + port;
  const Result<Session> session = Session::Create(options);
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().code(), Code::kResourceExhausted);
  EXPECT_NE(session.status().message().find(options.mesh_ports), std::string::npos);
  EXPECT_NE(session.status().message().find("PRD_MESH_PORTS"), std::string::npos);
  close(fd);
}

TEST(SessionListenTest, WrongPortsAndAddressesAreRefusedByName) {
  for (const char* ports : {"x", "0-5", "5-4", "40000-", "-40000", "1-70000", "1-2-3"}) {
    SessionOptions options;
    options.job = "job";
    options.mesh_ports = ports;
    const Result<Session> session = Session::Create(options);
    ASSERT_FALSE(session.ok()) << ports;
    EXPECT_EQ(session.status().code(), Code::kInvalidArgument);
    EXPECT_NE(session.status().message().find(std::string("found \"") + ports), std::string::npos);
  }
  for (const char* announce : {":5", "host:", "host:0", "host:x", "a b", "*", "0.0.0.0"}) {
    SessionOptions options;
    options.job = "job";
    options.announce_address = announce;
    const Result<Session> session = Session::Create(options);
    ASSERT_FALSE(session.ok()) << announce;
    EXPECT_NE(session.status().message().find("PRD_ANNOUNCE_ADDRESS"), std::string::npos);
  }
}

}  // namespace
}  // namespace prd::session_security_test
