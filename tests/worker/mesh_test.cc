// Reductions over real sockets against a reference in double precision.
#include "worker/mesh/mesh.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "common/base/prng.h"
#include "tests/worker/mesh_ring.h"
#include "tests/worker/numbers.h"

namespace prd::mesh_test {
namespace {

using testing::MeshNode;
using testing::ReduceAll;

// Nodes with the same tensors and random values.
class Team {
 public:
  Team(std::size_t nodes, std::vector<std::pair<DType, std::size_t>> shapes, std::uint64_t seed,
       testing::NodeOptions options = {}, bool tcp = false)
      : shapes_(std::move(shapes)), random_(seed) {
    for (std::size_t i = 0; i < nodes; ++i) {
      std::vector<testing::Numbers> tensors;
      std::vector<Tensor> views;
      for (const auto& [dtype, count] : shapes_) tensors.emplace_back(dtype, count);
      memory_.push_back(std::move(tensors));
      for (testing::Numbers& numbers : memory_.back()) views.push_back(numbers.tensor());
      options.incarnation = seed * 1000 + i + (std::uint64_t{getpid_()} << 32);
      options.host = tcp ? "host" + std::to_string(i) : "host";
      nodes_.push_back(std::make_unique<MeshNode>(options, views));
    }
    Randomise();
  }

  void Randomise() {
    for (auto& tensors : memory_) {
      for (testing::Numbers& numbers : tensors) {
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers.Set(i, random_.Unit() * 2 - 1);
      }
    }
  }

  // Weights that sum to 1.
  std::vector<double> Weights(std::size_t count) {
    std::vector<double> weights(count);
    for (double& weight : weights) weight = random_.Unit() + 0.01;
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (double& weight : weights) weight /= sum;
    return weights;
  }

  // Reduces among these, and compares with the reference and with each other.
  void ReduceAndCheck(const std::vector<std::size_t>& members, GroupId group) {
    const std::vector<double> weights = Weights(members.size());
    std::vector<std::vector<double>> expected;
    for (std::size_t t = 0; t < shapes_.size(); ++t) {
      expected.emplace_back(shapes_[t].second, 0.0);
      for (std::size_t m = 0; m < members.size(); ++m) {
        const testing::Numbers& numbers = memory_[members[m]][t];
        for (std::size_t i = 0; i < numbers.size(); ++i) {
          expected[t][i] += weights[m] * numbers.Get(i);
        }
      }
    }
    for (const Status& status : Reduce(members, weights, {.id = group, .iteration = 7})) {
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    for (std::size_t t = 0; t < shapes_.size(); ++t) {
      const double tolerance =
          testing::Epsilon(shapes_[t].first) * static_cast<double>(members.size() + 1);
      for (std::size_t m : members) {
        for (std::size_t i = 0; i < expected[t].size(); ++i) {
          ASSERT_NEAR(memory_[m][t].Get(i), expected[t][i], tolerance)
              << "tensor " << t << " element " << i << " of node " << m;
        }
        EXPECT_TRUE(memory_[m][t] == memory_[members[0]][t]) << "other bits on node " << m;
        EXPECT_EQ(node(m).store.iteration, 7);
      }
    }
  }

  std::vector<Status> Reduce(const std::vector<std::size_t>& members,
                             const std::vector<double>& weights, Group group) {
    std::vector<MeshNode*> nodes;
    for (std::size_t m : members) nodes.push_back(nodes_[m].get());
    return ReduceAll(nodes, weights, std::move(group));
  }

  MeshNode& node(std::size_t i) { return *nodes_[i]; }
  std::vector<testing::Numbers>& memory(std::size_t i) { return memory_[i]; }

 private:
  static std::uint32_t getpid_() { return static_cast<std::uint32_t>(::getpid()); }
  std::vector<std::pair<DType, std::size_t>> shapes_;
  std::vector<std::vector<testing::Numbers>> memory_;
  std::vector<std::unique_ptr<MeshNode>> nodes_;
  Prng random_;
};

std::vector<std::size_t> Everyone(std::size_t count) {
  std::vector<std::size_t> all(count);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(MeshTest, EveryDtypeAndGroupSizeByRing) {
  Mesh::Options options;
  options.chunk_bytes = 4096;  // many chunks
  options.direct_bytes = 0;
  std::uint64_t seed = 1;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    for (std::size_t nodes = 1; nodes <= 6; ++nodes) {
      Team team(nodes, {{dtype, 10'007}}, ++seed, options);
      team.ReduceAndCheck(Everyone(nodes), 1);
    }
  }
}

TEST(MeshTest, EveryDtypeAndGroupSizeDirectly) {
  std::uint64_t seed = 100;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    for (std::size_t nodes = 1; nodes <= 6; ++nodes) {
      Team team(nodes, {{dtype, 1003}}, ++seed);
      team.ReduceAndCheck(Everyone(nodes), 1);
    }
  }
}

TEST(MeshTest, OddSizesDownToNothing) {
  Mesh::Options options;
  options.chunk_bytes = 64;
  options.direct_bytes = 0;
  for (const std::size_t count : {1, 2, 15, 16, 17, 33, 255}) {
    Team team(4, {{DType::kF32, count}}, 200 + count, options);
    team.ReduceAndCheck(Everyone(4), 1);
  }
}

TEST(MeshTest, ManyTensorsOfMixedDtypes) {
  Mesh::Options options;
  options.chunk_bytes = 1024;
  for (const std::size_t direct : {std::size_t{0}, std::size_t{1} << 20}) {
    options.direct_bytes = direct;
    std::vector<std::pair<DType, std::size_t>> shapes;
    for (std::size_t i = 0; i < 60; ++i) {
      shapes.emplace_back(static_cast<DType>(i * 7 % 4), i % 9 == 4 ? 0 : i * 13 % 101);
    }
    Team team(5, shapes, 300 + direct, options);
    team.ReduceAndCheck(Everyone(5), 1);
  }
}

TEST(MeshTest, RealChunkSizeOverIpcAndTcp) {
  for (const bool tcp : {false, true}) {
    Team team(3, {{DType::kF32, 700'001}}, 400 + tcp, {}, tcp);
    team.ReduceAndCheck(Everyone(3), 1);
    team.ReduceAndCheck(Everyone(3), 2);
  }
}

bool HasIpv6Loopback() {
  const int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in6 address{.sin6_family = AF_INET6,
                             .sin6_port = 0,
                             .sin6_flowinfo = 0,
                             .sin6_addr = IN6ADDR_LOOPBACK_INIT,
                             .sin6_scope_id = 0};
  const bool bound =
      fd >= 0 && ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (fd >= 0) ::close(fd);
  return bound;
}

// PRD_ADDRESS may have the brackets of an endpoint.
TEST(MeshTest, HostsReachEachOtherOverIpv6) {
  if (!HasIpv6Loopback()) GTEST_SKIP() << "this host has no IPv6";
  for (const char* address : {"::1", "[::1]"}) {
    testing::NodeOptions options;
    options.listening.address = address;
    Team team(3, {{DType::kF32, 5000}}, 450, options, /*tcp=*/true);
    EXPECT_TRUE(team.node(0).mesh->endpoints().back().starts_with("tcp://[::1]:"));
    team.ReduceAndCheck(Everyone(3), 1);
  }
}

TEST(MeshTest, SubsetsReduceOneAfterAnotherWithNoSetUp) {
  Mesh::Options options;
  options.chunk_bytes = 2048;
  options.direct_bytes = 0;
  Team team(6, {{DType::kF32, 5000}, {DType::kBF16, 77}}, 500, options);
  const std::vector<std::vector<std::size_t>> groups = {{0, 1, 2}, {2, 3}, {5, 4, 3, 2, 1, 0},
                                                        {1, 3, 5}, {5, 1}, {0, 2, 4, 3}};
  GroupId id = 0;
  for (const auto& group : groups) {
    team.Randomise();
    team.ReduceAndCheck(group, ++id);
  }
}

// Two groups at once, and a member that goes from one straight into the next while the others of
// that one have long begun.
TEST(MeshTest, FramesOfAGroupNotAnnouncedHereYetAreKept) {
  Mesh::Options options;
  options.chunk_bytes = 2048;
  for (const std::size_t direct : {std::size_t{0}, std::size_t{1} << 20}) {
    options.direct_bytes = direct;
    Team team(3, {{DType::kF32, 20'000}}, 600 + direct, options);
    Group group{.id = 1};
    for (std::size_t i = 0; i < 3; ++i) group.members.push_back(team.node(i).AsMember(1.0 / 3));
    const std::vector<MeshNode*> all = {&team.node(0), &team.node(1), &team.node(2)};
    testing::Announce(all, group.members);
    team.node(0).mesh->StartReduce(testing::MeshNow(), group);
    team.node(1).mesh->StartReduce(testing::MeshNow(), group);
    // Until the third has seen all that can reach it before it takes part.
    const std::uint64_t frames = direct != 0 ? 2 : 2 * 14;
    ASSERT_TRUE(
        testing::RunUntil(all, [&] { return team.node(2).mesh->counters().early >= frames; }));
    team.node(2).mesh->StartReduce(testing::MeshNow(), group);
    ASSERT_TRUE(testing::RunUntil(
        all, [&] { return team.node(0).reduced && team.node(1).reduced && team.node(2).reduced; }));
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(team.node(i).reduced->status.ok());
    EXPECT_TRUE(team.memory(2)[0] == team.memory(0)[0]);
  }
}

TEST(MeshTest, WeightZeroContributesNothingNotEvenNaN) {
  Mesh::Options options;
  options.chunk_bytes = 1024;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    for (const std::size_t direct : {std::size_t{0}, std::size_t{1} << 20}) {
      options.direct_bytes = direct;
      for (const std::size_t owner : {0, 1, 2}) {
        Team team(3, {{dtype, 2000}}, 700 + owner, options);
        const testing::Numbers wanted = team.memory(owner)[0];
        for (std::size_t i = 0; i < 3; ++i) {
          if (i == owner) continue;
          for (std::size_t e = 0; e < 2000; ++e) {
            team.memory(i)[0].Set(e, std::numeric_limits<double>::quiet_NaN());
          }
        }
        std::vector<double> weights(3, 0.0);
        weights[owner] = 1;
        for (const Status& status :
             team.Reduce({0, 1, 2}, weights, {.id = 1, .kind = GroupKind::kInitial})) {
          ASSERT_TRUE(status.ok()) << status.ToString();
        }
        // The common start is this: every bit of one member's parameters.
        for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(team.memory(i)[0] == wanted);
      }
    }
  }
}

TEST(MeshTest, EqualWeightsNeitherGrowNorShrinkEqualParameters) {
  Team team(3, {{DType::kF32, 30'000}}, 800);
  for (std::size_t i = 1; i < 3; ++i) team.memory(i)[0] = team.memory(0)[0];
  const testing::Numbers before = team.memory(0)[0];
  for (GroupId group = 1; group <= 30; ++group) {
    for (const Status& status :
         team.Reduce({0, 1, 2}, {1.0 / 3, 1.0 / 3, 1.0 / 3}, {.id = group})) {
      ASSERT_TRUE(status.ok());
    }
  }
  double drift = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    drift += (team.memory(0)[0].Get(i) - before.Get(i)) * (before.Get(i) > 0 ? 1 : -1);
  }
  EXPECT_LT(std::abs(drift) / static_cast<double>(before.size()), 5e-8);
}

TEST(MeshTest, InitialModelIsMixedInLocally) {
  for (const std::size_t count : {std::size_t{100}, std::size_t{50'000}}) {
    Team team(2, {{DType::kF32, count}}, 900 + count);
    for (std::size_t i = 0; i < 2; ++i) {
      team.node(i).mesh->JoinRun(1, {.by = GroupPlan{.keep_initial = true}});
      for (std::size_t e = 0; e < count; ++e) team.memory(i)[0].Set(e, i == 0 ? 8 : -1);
    }
    for (const Status& status :
         team.Reduce({0, 1}, {1, 0}, {.id = 1, .kind = GroupKind::kInitial})) {
      ASSERT_TRUE(status.ok());
    }
    for (std::size_t i = 0; i < 2; ++i) {
      for (std::size_t e = 0; e < count; ++e) team.memory(i)[0].Set(e, i == 0 ? 2 : 4);
    }
    for (const Status& status :
         team.Reduce({0, 1}, {0.5, 0.25}, {.id = 2, .initial_weight = 0.25})) {
      ASSERT_TRUE(status.ok());
    }
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(team.memory(i)[0].Get(count - 1), 0.5 * 2 + 0.25 * 4 + 0.25 * 8);
    }
    // Alone, too.
    for (const Status& status : team.Reduce({0}, {0.5}, {.id = 3, .initial_weight = 0.5})) {
      ASSERT_TRUE(status.ok());
    }
    EXPECT_EQ(team.memory(0)[0].Get(0), 0.5 * 4 + 0.5 * 8);
  }
}

TEST(MeshTest, InitialModelThatIsNotKeptIsAnError) {
  Team team(1, {{DType::kF32, 10}}, 950);
  const std::vector<Status> statuses = team.Reduce({0}, {0.5}, {.id = 1, .initial_weight = 0.5});
  EXPECT_EQ(statuses[0].code(), Code::kFailedPrecondition);
}

}  // namespace
}  // namespace prd::mesh_test
