// What the data plane does when peers die, lie or are late: nothing is written, nobody waits for
// long, and the next group is as good as ever.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "common/base/prng.h"
#include "tests/worker/mesh_job.h"
#include "tests/worker/mesh_ring.h"
#include "worker/mesh/mesh.h"

namespace prd::mesh_fault_test {
namespace {

using testing::MeshNode;
using testing::MeshNow;
using testing::PlayedWorker;
using testing::ReduceAll;
using testing::RunUntil;

constexpr std::size_t kCount = 100'000;

struct Node {
  explicit Node(float value, Mesh::Options options = {}) : values(kCount, value) {
    options.incarnation = incarnation;
    if (options.host.empty()) options.host = "host";
    mesh = std::make_unique<MeshNode>(
        options, std::vector<Tensor>{{values.data(), values.size(), DType::kF32}});
  }
  Incarnation incarnation = testing::FreshIncarnation();
  std::vector<float> values;
  std::unique_ptr<MeshNode> mesh;
};

Mesh::Options SmallChunks() {
  Mesh::Options options;
  options.chunk_bytes = 8192;
  return options;
}

// More frames than are handled in one turn.
Mesh::Options TinyChunks() {
  Mesh::Options options;
  options.chunk_bytes = 1024;
  return options;
}

Group Among(const std::vector<MeshNode*>& nodes, GroupId id) {
  Group group{.id = id};
  for (const MeshNode* node : nodes) {
    group.members.push_back(node->AsMember(1.0 / static_cast<double>(nodes.size())));
  }
  testing::Announce(nodes, group.members);
  return group;
}

TEST(MeshFaultTest, VanishedPeerFailsTheGroupAtOnceOnAllMembers) {
  Mesh::Options options = SmallChunks();
  options.timeout = 60 * kSecond;  // not what ends the wait
  Node a(1, options), b(2, options), d(4, options);
  auto c = std::make_unique<Node>(3.f, options);
  const std::vector<MeshNode*> all = {a.mesh.get(), b.mesh.get(), c->mesh.get(), d.mesh.get()};
  const Group group = Among(all, 1);
  // The last does not take part yet, so nobody can be through when the third is gone.
  for (std::size_t i = 0; i < 3; ++i) all[i]->mesh->StartReduce(MeshNow(), group);
  ASSERT_TRUE(RunUntil({a.mesh.get(), b.mesh.get(), c->mesh.get()},
                       [&] { return c->mesh->mesh->counters().received >= 3; }));
  c.reset();
  d.mesh->mesh->StartReduce(MeshNow(), group);
  const std::vector<MeshNode*> left = {a.mesh.get(), b.mesh.get(), d.mesh.get()};
  ASSERT_TRUE(
      RunUntil(left, [&] { return a.mesh->reduced && b.mesh->reduced && d.mesh->reduced; }));
  for (const Node* node : {&a, &b, &d}) EXPECT_FALSE(node->mesh->reduced->status.ok());
  EXPECT_EQ(a.values, std::vector<float>(kCount, 1.f));
  EXPECT_EQ(b.values, std::vector<float>(kCount, 2.f));
  EXPECT_EQ(d.values, std::vector<float>(kCount, 4.f));
  // And the others go on.
  for (const Status& status : ReduceAll(left, {0.25, 0.25, 0.5}, {.id = 2})) {
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  EXPECT_EQ(a.values, std::vector<float>(kCount, 2.75f));
}

// Around the ring A, B, C: A has all of the result, and so looks out for nobody, when B dies with
// A's last frame. C, which waits for what B would have passed on, finds nobody when it asks.
TEST(MeshFaultTest, APeerThatDiesWithWhatACompletedMemberSentIsMissedByTheNext) {
  Mesh::Options options;
  options.timeout = 3 * kSecond;
  options.direct_bytes = 0;
  Node a(1, options), c(3, options);
  auto b = std::make_unique<Node>(2.f, options);
  MeshNode* const at_a = a.mesh.get();
  MeshNode* const at_b = b->mesh.get();
  MeshNode* const at_c = c.mesh.get();
  const auto heard = [](const MeshNode* node) { return node->mesh->counters().received; };
  const Group group = Among({at_a, at_b, at_c}, 1);
  for (MeshNode* node : {at_a, at_b, at_c}) node->mesh->StartReduce(MeshNow(), group);
  // One chunk to each shard: four frames come to each member.
  ASSERT_TRUE(RunUntil({at_a, at_c}, [&] { return heard(at_a) == 1; }));
  ASSERT_TRUE(RunUntil({at_b, at_c}, [&] { return heard(at_b) == 2 && heard(at_c) == 3; }));
  ASSERT_TRUE(RunUntil({at_a}, [&] { return at_a->reduced.has_value(); }));
  EXPECT_TRUE(at_a->reduced->status.ok());
  b.reset();
  ASSERT_TRUE(RunUntil({at_c}, [&] { return at_c->reduced.has_value(); }));
  EXPECT_EQ(at_c->reduced->status.code(), Code::kUnavailable);
  EXPECT_EQ(at_c->reduced->unreachable, std::vector<Rank>{group.members[1].rank});
}

TEST(MeshFaultTest, KilledProcessFailsTheGroupAtOnce) {
  int up[2];
  int down[2];
  ASSERT_EQ(pipe(up), 0);
  ASSERT_EQ(pipe(down), 0);
  const MeshKeyPair child_keys = testing::DrawnKeys();
  const MeshKeyPair keys = testing::DrawnKeys();
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    // Joins the group, sends and receives a little of it, says so, and stands still.
    Mesh::Options options = TinyChunks();
    options.keys = child_keys;
    Node node(5, options);
    const std::string hello =
        std::to_string(node.incarnation) + " " + node.mesh->mesh->endpoints()[0];
    (void)!write(up[1], hello.data(), hello.size());
    Group group{.id = 1};
    Incarnation other = 0;
    char endpoint[64] = {};
    (void)!read(down[0], &other, sizeof other);
    (void)!read(down[0], endpoint, sizeof endpoint);
    group.members.push_back({.rank = 0,
                             .incarnation = other,
                             .weight = 0.5,
                             .host = "host",
                             .endpoints = {endpoint},
                             .passive = false,
                             .mesh_key = keys.public_key});
    group.members.push_back(node.mesh->AsMember(0.5));
    node.mesh->mesh->StartReduce(MeshNow(), group);
    RunUntil({node.mesh.get()}, [&] { return node.mesh->mesh->counters().received >= 3; });
    (void)!write(up[1], "x", 1);
    pause();
    _exit(0);
  }
  Mesh::Options options = TinyChunks();
  options.timeout = 60 * kSecond;
  options.keys = keys;
  Node node(1, options);
  char hello[128] = {};
  ASSERT_GT(read(up[0], hello, sizeof hello - 1), 0);
  GroupMember child{.rank = 1, .weight = 0.5, .host = "host"};
  char child_endpoint[64] = {};
  ASSERT_EQ(std::sscanf(hello, "%llu %63s",
                        reinterpret_cast<unsigned long long*>(&child.incarnation), child_endpoint),
            2);
  child.endpoints = {child_endpoint};
  child.mesh_key = child_keys.public_key;
  char endpoint[64] = {};
  std::strncpy(endpoint, node.mesh->mesh->endpoints()[0].c_str(), sizeof endpoint - 1);
  ASSERT_EQ(write(down[1], &node.incarnation, sizeof node.incarnation),
            static_cast<ssize_t>(sizeof node.incarnation));
  ASSERT_EQ(write(down[1], endpoint, sizeof endpoint), static_cast<ssize_t>(sizeof endpoint));
  Group group{.id = 1};
  group.members = {node.mesh->AsMember(0.5), child};
  node.mesh->mesh->StartReduce(MeshNow(), group);
  // One turn: enough to send something, not to get through.
  node.mesh->mesh->Service(MeshNow());
  ASSERT_TRUE(RunUntil({node.mesh.get()}, [&] {
    return node.mesh->mesh->counters().received > 0 || node.mesh->reduced.has_value();
  }));
  kill(pid, SIGKILL);
  ASSERT_TRUE(RunUntil({node.mesh.get()}, [&] { return node.mesh->reduced.has_value(); }));
  EXPECT_EQ(node.mesh->reduced->status.code(), Code::kUnavailable)
      << node.mesh->reduced->status.ToString();
  // Some may be averaged with the other's, which are 5.
  EXPECT_TRUE(std::all_of(node.values.begin(), node.values.end(),
                          [](float value) { return value == 1 || value == 3; }));
  EXPECT_NE(node.values, std::vector<float>(kCount, 3.f));
  waitpid(pid, nullptr, 0);
}

TEST(MeshFaultTest, NobodyThereFailsAtOnce) {
  Mesh::Options options;
  options.timeout = 60 * kSecond;
  for (const char* endpoint : {"ipc://@prd-test-nobody", "tcp://127.0.0.1:1"}) {
    Node node(1, options);
    Group group{.id = 1};
    group.members = {node.mesh->AsMember(0.5),
                     {.rank = 900,
                      .incarnation = 77,
                      .weight = 0.5,
                      .host = "host",
                      .endpoints = {endpoint},
                      .passive = false,
                      .mesh_key = testing::AnyMeshKey()}};
    node.mesh->mesh->StartReduce(MeshNow(), group);
    ASSERT_TRUE(RunUntil({node.mesh.get()}, [&] { return node.mesh->reduced.has_value(); }));
    EXPECT_EQ(node.mesh->reduced->status.code(), Code::kUnavailable);
  }
  Node node(1, options);
  Group group{.id = 1};
  group.members = {
      node.mesh->AsMember(0.5),
      {.rank = 1, .incarnation = 77, .weight = 0.5, .host = "", .endpoints = {"udp://x"}}};
  node.mesh->mesh->StartReduce(MeshNow(), group);
  ASSERT_TRUE(RunUntil({node.mesh.get()}, [&] { return node.mesh->reduced.has_value(); }));
  EXPECT_EQ(node.mesh->reduced->status.code(), Code::kInvalidArgument);
}

TEST(MeshFaultTest, SilentPeerFailsAfterTheTimeLimit) {
  Mesh::Options options;
  options.timeout = 50 * kMillisecond;
  Node a(1, options), b(2, options);  // b listens, but does not take part
  a.mesh->mesh->StartReduce(MeshNow(), Among({a.mesh.get(), b.mesh.get()}, 1));
  ASSERT_TRUE(RunUntil({a.mesh.get()}, [&] { return a.mesh->reduced.has_value(); }));
  EXPECT_EQ(a.mesh->reduced->status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(a.values, std::vector<float>(kCount, 1.f));
}

TEST(MeshFaultTest, CancelledGroupLeavesNothingBehind) {
  Node a(1, SmallChunks()), b(2, SmallChunks()), c(3, SmallChunks());
  const std::vector<MeshNode*> both = {a.mesh.get(), b.mesh.get()};
  for (GroupId id = 1; id < 20; id += 2) {
    // The third never takes part, so this one cannot succeed.
    const Group group = Among({a.mesh.get(), b.mesh.get(), c.mesh.get()}, id);
    for (MeshNode* node : both) node->mesh->StartReduce(MeshNow(), group);
    for (GroupId turn = 0; turn < id / 2; ++turn) {
      for (MeshNode* node : both) node->mesh->Service(MeshNow());
    }
    for (MeshNode* node : both) node->mesh->CancelReduce();
    ASSERT_FALSE(a.mesh->reduced || b.mesh->reduced);
    // Frames of the cancelled one are on their way into this one.
    std::fill(a.values.begin(), a.values.end(), 1.f);
    std::fill(b.values.begin(), b.values.end(), 2.f);
    for (const Status& status : ReduceAll(both, {0.5, 0.5}, {.id = id + 1})) {
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    EXPECT_EQ(a.values, std::vector<float>(kCount, 1.5f));
    EXPECT_EQ(b.values, a.values);
    a.mesh->reduced.reset();
    b.mesh->reduced.reset();
  }
}

TEST(MeshFaultTest, GarbageIsDroppedAndCounted) {
  Node a(1), b(2), c(3);
  PlayedWorker stranger(a.mesh.get(), *b.mesh);
  Prng random(5);
  FrameHeader good{
      .kind = FrameKind::kRing, .run = 1, .group = 1, .from = b.incarnation, .to = a.incarnation};
  stranger.SendParts({"hello"});
  stranger.SendParts({"", "", "", ""});
  FrameHeader other = good;
  other.to ^= 1;  // for somebody else
  stranger.Send(other, "");
  other = good;
  other.length = 5;  // which the payload is not
  stranger.Send(other, "four");
  other = good;
  other.kind = static_cast<FrameKind>(99);
  stranger.Send(other, "");
  other = good;
  other.kind = FrameKind::kChunk;  // nobody asked
  stranger.Send(other, "");
  other = good;
  other.from = 4711;  // over this worker's connection
  stranger.Send(other, "");
  constexpr std::uint64_t kRandom = 200;
  for (std::uint64_t i = 0; i < kRandom; ++i) {
    std::string noise(kFrameHeaderBytes, '\0');
    const auto bytes = EncodeHeader(good);
    std::memcpy(noise.data(), bytes.data(), bytes.size());
    noise[random.Below(8)] ^= static_cast<char>(1 + random.Below(255));
    stranger.SendParts({noise, std::string(random.Below(100), 'x')});
  }
  ASSERT_TRUE(
      RunUntil({a.mesh.get()}, [&] { return a.mesh->mesh->counters().dropped >= 7 + kRandom; }));
  EXPECT_EQ(a.mesh->mesh->counters().received, 0u);
  EXPECT_EQ(a.mesh->mesh->counters().forged, 1u);
  for (const Status& status : ReduceAll({a.mesh.get(), c.mesh.get()}, {0.5, 0.5}, {.id = 1})) {
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

TEST(MeshFaultTest, MemberThatBreaksTheProtocolFailsTheGroup) {
  const struct {
    FrameKind kind;
    std::uint32_t stage, chunk;
    std::uint64_t offset;
    std::size_t length;
  } frames[] = {
      {FrameKind::kRing, 9, 0, 0, 8},          // no such stage
      {FrameKind::kRing, 0, 77, 0, 8},         // no such chunk
      {FrameKind::kRing, 0, 0, 8, 8},          // not where the chunk is
      {FrameKind::kRing, 0, 0, 200'000, 8},    // shorter than the chunk
      {FrameKind::kDirect, 0, 0, 0, 400'000},  // the row is too large for that
      {FrameKind::kRing, 0xffffffff, 0xffffffff, ~0ull, 8},
  };
  for (const auto& frame : frames) {
    Node a(1), b(2);
    const Group group = Among({a.mesh.get(), b.mesh.get()}, 1);
    a.mesh->mesh->StartReduce(MeshNow(), group);
    PlayedWorker liar(a.mesh.get(), *b.mesh);
    liar.Send({.kind = frame.kind,
               .run = 1,
               .group = 1,
               .from = b.incarnation,
               .to = a.incarnation,
               .stage = frame.stage,
               .chunk = frame.chunk,
               .offset = frame.offset,
               .length = frame.length,
               .members = MarkOf(group)},
              std::string(frame.length, 'x'));
    ASSERT_TRUE(RunUntil({a.mesh.get()}, [&] { return a.mesh->reduced.has_value(); }));
    EXPECT_EQ(a.mesh->reduced->status.code(), Code::kDataLoss)
        << a.mesh->reduced->status.ToString();
    EXPECT_EQ(a.values, std::vector<float>(kCount, 1.f));
  }
}

// A controller that has lost the end of its history gives the number again, while a member of the
// group that it has forgotten may be dead.
TEST(MeshFaultTest, APartOfAnotherGroupOfTheSameNumberIsNotTaken) {
  Node a(1), b(2), c(3);
  b.mesh->mesh->StartReduce(MeshNow(), Among({b.mesh.get(), a.mesh.get(), c.mesh.get()}, 1));
  ASSERT_TRUE(
      RunUntil({a.mesh.get(), b.mesh.get()}, [&] { return a.mesh->mesh->counters().early > 0; }));
  a.mesh->mesh->StartReduce(MeshNow(), Among({a.mesh.get(), b.mesh.get()}, 1));
  ASSERT_TRUE(RunUntil({a.mesh.get()}, [&] { return a.mesh->reduced.has_value(); }));
  EXPECT_EQ(a.mesh->reduced->status.code(), Code::kAborted) << a.mesh->reduced->status.ToString();
  EXPECT_EQ(a.values, std::vector<float>(kCount, 1.f));
  b.mesh->mesh->CancelReduce();
  a.mesh->reduced.reset();
  for (const Status& status : ReduceAll({a.mesh.get(), b.mesh.get()}, {0.5, 0.5}, {.id = 2})) {
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

TEST(MeshFaultTest, FramesOfUnannouncedGroupsAreBounded) {
  Node a(1), b(2);
  PlayedWorker stranger(a.mesh.get(), 7, 900);
  const std::string payload(512 << 10, 'x');
  // 64 MiB for groups that never come; the mesh keeps at most 16.
  for (std::uint64_t group = 1; group <= 128; ++group) {
    stranger.Send({.kind = FrameKind::kRing,
                   .run = 1,
                   .group = 1000 + group,
                   .from = 7,
                   .to = a.incarnation,
                   .length = payload.size()},
                  payload);
    if (group % 8 == 0) {
      ASSERT_TRUE(
          RunUntil({a.mesh.get()}, [&] { return a.mesh->mesh->counters().early == group; }));
    }
  }
  EXPECT_GE(a.mesh->mesh->counters().dropped, 96u);
  for (const Status& status : ReduceAll({a.mesh.get(), b.mesh.get()}, {0.5, 0.5}, {.id = 1})) {
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

// A worker that has come back gets what was sent to it before, over the new connection too.
TEST(MeshFaultTest, FramesAfterOneForAnotherIncarnationCome) {
  Node a(1);
  PlayedWorker peer(a.mesh.get(), 7, 900);
  for (std::uint64_t number = 1; number <= 3; ++number) {
    peer.Send({.kind = FrameKind::kRing,
               .run = 1,
               .group = 1000 + number,
               .from = 7,
               .to = a.incarnation + (number == 2 ? 1 : 0),
               .stream = 1,
               .number = number},
              "");
  }
  EXPECT_TRUE(RunUntil({a.mesh.get()}, [&] { return a.mesh->mesh->counters().early == 2; }));
  EXPECT_EQ(a.mesh->mesh->counters().dropped, 1u);
}

TEST(MeshFaultTest, OversizedPartsCloseTheConnection) {
  Node a(1), b(2);
  PlayedWorker stranger(a.mesh.get(), 7, 900);
  stranger.Send({.kind = FrameKind::kRing,
                 .run = 1,
                 .group = 1,
                 .from = 7,
                 .to = a.incarnation,
                 .length = 8u << 20},
                std::string(8 << 20, 'x'));
  PlayedWorker second(a.mesh.get(), 8, 901);  // a connection of its own, so it is heard
  second.SendParts({"over"});
  ASSERT_TRUE(RunUntil({a.mesh.get()}, [&] { return a.mesh->mesh->counters().dropped >= 1; }));
  EXPECT_EQ(a.mesh->mesh->counters().early, 0u);
  for (const Status& status : ReduceAll({a.mesh.get(), b.mesh.get()}, {0.5, 0.5}, {.id = 1})) {
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

void StartFetch(Node* taker, Node* source) {
  source->mesh->mesh->Announce(MeshNow(), {taker->mesh->AsMember(0)}, true);
  taker->mesh->mesh->StartFetch(MeshNow(), source->mesh->AsMember(0));
}

TEST(MeshFaultTest, FetchCopiesParametersIterationAndInitialModel) {
  Node source(3), taker(1);
  source.mesh->store.iteration = 42;
  source.mesh->store.KeepInitial();
  StartFetch(&taker, &source);
  ASSERT_TRUE(RunUntil({source.mesh.get(), taker.mesh.get()},
                       [&] { return taker.mesh->fetched.has_value(); }));
  ASSERT_TRUE(taker.mesh->fetched->status.ok()) << taker.mesh->fetched->status.ToString();
  EXPECT_EQ(taker.mesh->fetched->iteration, 42);
  EXPECT_EQ(taker.mesh->store.iteration, 42);
  EXPECT_EQ(taker.values, std::vector<float>(kCount, 3.f));
  EXPECT_EQ(testing::Bytes(taker.mesh->store.initial), testing::Bytes(source.mesh->store.initial));
  EXPECT_EQ(taker.mesh->store.initial.size(), kCount * sizeof(float));
}

TEST(MeshFaultTest, FetchWaitsWhileTheSourceIsInsideApply) {
  Node source(3), taker(1);
  std::unique_lock apply(source.mesh->store.mutex);
  StartFetch(&taker, &source);
  ASSERT_TRUE(RunUntil({source.mesh.get(), taker.mesh.get()},
                       [&] { return source.mesh->mesh->counters().received == 1; }));
  EXPECT_FALSE(taker.mesh->fetched.has_value());
  std::fill(source.values.begin(), source.values.end(), 4.f);
  source.mesh->store.iteration = 5;
  apply.unlock();
  ASSERT_TRUE(RunUntil({source.mesh.get(), taker.mesh.get()},
                       [&] { return taker.mesh->fetched.has_value(); }));
  EXPECT_EQ(taker.values, std::vector<float>(kCount, 4.f));
  EXPECT_EQ(taker.mesh->fetched->iteration, 5);
}

// As in Session::Average: the group waits for who copies first.
TEST(MeshFaultTest, WhoIsWaitedForMayCopyFirst) {
  for (const bool ring : {true, false}) {
    testing::NodeOptions options;
    if (ring) options.direct_bytes = 0;
    testing::MeshJob job(3, {{DType::kF32, 1000}}, plans::kAhead, options);
    for (std::size_t w = 0; w < 3; ++w) {
      testing::Fill(&job[w].parameters, [&] { return static_cast<double>(3 * w); });
    }
    const Group group = job.MakeGroup(GroupKind::kTrain, 1, {0, 1, 2}, {1.0 / 3, 1.0 / 3, 1.0 / 3});
    job.Start(0, group);
    job.Start(1, group);
    ASSERT_TRUE(job.RunUntil([&] { return job[2].mesh().counters().early > 0; }));
    ASSERT_TRUE(job.Fetch(2, 1).status.ok());
    EXPECT_EQ(testing::ValuesOf(job[2].parameters), std::vector<double>(1000, 3.0));
    job.Start(2, group);
    for (const Status& status : job.Finish({0, 1, 2})) EXPECT_TRUE(status.ok());
    for (std::size_t w = 0; w < 3; ++w) {
      EXPECT_NEAR(testing::ValuesOf(job[w].parameters)[0], 2.0, 1e-6);
    }
  }
}

TEST(MeshFaultTest, FetchFromTheDeadOrTheDifferentFails) {
  Mesh::Options options;
  options.timeout = 60 * kSecond;
  Node taker(1, options);
  auto source = std::make_unique<Node>(3.f, options);
  const GroupMember gone = source->mesh->AsMember(0);
  source.reset();
  taker.mesh->mesh->StartFetch(MeshNow(), gone);
  ASSERT_TRUE(RunUntil({taker.mesh.get()}, [&] { return taker.mesh->fetched.has_value(); }));
  EXPECT_EQ(taker.mesh->fetched->status.code(), Code::kUnavailable);

  taker.mesh->fetched.reset();
  Node other(3, options);
  float one = 1;
  other.mesh->store.parameters = Layout({{&one, 1, DType::kF32}});
  StartFetch(&taker, &other);
  ASSERT_TRUE(RunUntil({taker.mesh.get(), other.mesh.get()},
                       [&] { return taker.mesh->fetched.has_value(); }));
  EXPECT_EQ(taker.mesh->fetched->status.code(), Code::kDataLoss);
  EXPECT_EQ(taker.values, std::vector<float>(kCount, 1.f));
}

}  // namespace
}  // namespace prd::mesh_fault_test
