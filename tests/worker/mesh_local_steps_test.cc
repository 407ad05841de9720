// Local steps (Payload::kChange; ESync, Algorithm 1): the mean of the differences to the round's
// start moves all workers to the same new start, whatever they did locally.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "common/base/prng.h"
#include "tests/plans.h"
#include "tests/worker/mesh_job.h"

namespace prd::mesh_local_steps_test {
namespace {

using testing::EveryDType;
using testing::Fill;
using testing::MeshJob;
using testing::MeshNode;
using testing::MeshNow;
using testing::Numbers;
using testing::RunUntil;
using testing::ValuesOf;
using Values = std::vector<double>;

Plan Local(double outer_rate) {
  return {.by = GroupPlan{.payload = Payload::kChange, .asks = true, .outer_rate = outer_rate}};
}

// After a third of the time limit a member asks for one whose death nobody has noticed. Nothing
// waits for the rest.
Mesh::Options Patient(std::size_t direct_bytes) {
  Mesh::Options options;
  options.timeout = 9 * kSecond;
  options.chunk_bytes = 256;
  options.direct_bytes = direct_bytes;
  return options;
}

constexpr std::size_t kByRing = 0;
constexpr std::size_t kDirect = 1 << 20;

// Adds to every parameter of a worker what f() gives, rounded as the dtype does.
template <typename F>
void Train(MeshJob* job, std::size_t worker, F&& f) {
  for (Numbers& numbers : (*job)[worker].parameters) {
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers.Set(i, numbers.Get(i) + f());
  }
}

void Begin(MeshJob* job, Prng* random) {
  std::vector<std::size_t> all;
  std::vector<double> weights(job->size(), 0.0);
  for (std::size_t w = 0; w < job->size(); ++w) {
    all.push_back(w);
    Fill(&(*job)[w].parameters, [&] { return random->Unit() * 2 - 1; });
  }
  weights[0] = 1;
  job->ReduceOk(GroupKind::kInitial, 0, all, weights);
}

// All workers stand at the same start, to the bit, and their parameters are equal to it.
void ExpectTogether(MeshJob* job, Iteration iteration) {
  for (std::size_t w = 0; w < job->size(); ++w) {
    ReplicaStore& store = (*job)[w].store();
    std::vector<std::byte> parameters(store.parameters.bytes());
    store.parameters.Read(0, parameters.size(), parameters.data());
    ASSERT_EQ(testing::Bytes(store.base), parameters) << "worker " << w;
    ASSERT_EQ(testing::Bytes(store.base), testing::Bytes((*job)[0].store().base)) << "worker " << w;
    ASSERT_EQ(store.iteration, iteration);
    ASSERT_FALSE(store.owes);
  }
}

TEST(MeshLocalStepsTest, EveryDTypeAgainstFloat64) {
  constexpr std::size_t kCount = 1501;
  Prng random(1);
  for (const double global_lr : {1.0, 0.5}) {
    for (const std::size_t direct : {kByRing, kDirect}) {
      for (const DType dtype : testing::kDTypes) {
        MeshJob job(4, {{dtype, kCount}}, Local(global_lr), Patient(direct));
        Begin(&job, &random);
        for (Iteration round = 1; round <= 4; ++round) {
          const Values start = ValuesOf(job[0].parameters);
          Values expected = start;
          const std::vector<double> weights = {0.5, 0.125, 0, 0.375};  // the third stands by
          for (std::size_t w = 0; w < 4; ++w) {
            for (std::size_t step = 0; step < 1 + w; ++step) {
              Train(&job, w, [&] { return 0.1 * (random.Unit() - 0.5); });
            }
            const Values mine = ValuesOf(job[w].parameters);
            for (std::size_t i = 0; i < kCount; ++i) {
              expected[i] += global_lr * weights[w] * (mine[i] - start[i]);
            }
          }
          job.ReduceOk(GroupKind::kTrain, round, {0, 1, 2, 3}, weights);
          ExpectTogether(&job, round);
          const Values got = ValuesOf(job[0].parameters);
          for (std::size_t i = 0; i < kCount; ++i) {
            ASSERT_NEAR(got[i], expected[i], 3 * testing::Epsilon(dtype)) << "element " << i;
          }
        }
      }
    }
  }
}

// Nothing is lost to rounding where there is none to do: the differences are small integers.
TEST(MeshLocalStepsTest, StaysExactWhereNumbersAre) {
  MeshJob job(2, EveryDType(300), Local(0.5), Patient(kByRing));
  for (std::size_t w = 0; w < 2; ++w) Fill(&job[w].parameters, [] { return 8.0; });
  job.ReduceOk(GroupKind::kInitial, 0, {0, 1}, {1, 0});
  Train(&job, 0, [] { return 2.0; });
  Train(&job, 1, [] { return -6.0; });
  job.ReduceOk(GroupKind::kTrain, 1, {0, 1}, {0.5, 0.5});
  ExpectTogether(&job, 1);
  EXPECT_EQ(ValuesOf(job[1].parameters), Values(ValuesOf(job[1].parameters).size(), 7.0));
}

TEST(MeshLocalStepsTest, AloneItTakesItsOwnShare) {
  MeshJob job(1, EveryDType(10), Local(0.5), Patient(kDirect));
  job.ReduceOk(GroupKind::kInitial, 0, {0}, {1});
  Train(&job, 0, [] { return 4.0; });
  job.ReduceOk(GroupKind::kTrain, 1, {0}, {1});
  EXPECT_EQ(job[0].parameters[0].Get(0), 2);
  ExpectTogether(&job, 1);
}

TEST(MeshLocalStepsTest, AveragesOfTheParametersMoveTheStart) {
  Prng random(2);
  for (const GroupKind kind : {GroupKind::kFinal, GroupKind::kAverage}) {
    MeshJob job(3, EveryDType(200), Local(0.5), Patient(kByRing));
    Begin(&job, &random);
    for (std::size_t w = 0; w < 3; ++w) Train(&job, w, [&] { return random.Unit(); });
    job.ReduceOk(kind, 7, {0, 1, 2}, {0.25, 0.25, 0.5});
    ExpectTogether(&job, 7);
  }
}

TEST(MeshLocalStepsTest, FailureLeavesParametersAndStart) {
  Prng random(3);
  MeshJob job(3, EveryDType(3000), Local(1), Patient(kByRing));
  Begin(&job, &random);
  const std::vector<std::byte> base = testing::Bytes(job[0].store().base);
  std::vector<Values> trained(3);
  for (std::size_t w = 0; w < 3; ++w) {
    Train(&job, w, [&] { return random.Unit(); });
    trained[w] = ValuesOf(job[w].parameters);
  }
  const Group group = job.MakeGroup(GroupKind::kTrain, 1, {0, 1, 2}, {0.25, 0.25, 0.5});
  for (std::size_t w = 0; w < 2; ++w) job.Start(w, group);
  for (int turn = 0; turn < 3; ++turn) {
    for (std::size_t w = 0; w < 2; ++w) job[w].mesh().Service(MeshNow());
  }
  job[2].node.reset();
  for (const Status& status : job.Finish({0, 1})) EXPECT_FALSE(status.ok());
  for (std::size_t w = 0; w < 2; ++w) {
    EXPECT_EQ(ValuesOf(job[w].parameters), trained[w]);
    EXPECT_EQ(testing::Bytes(job[w].store().base), base);
    EXPECT_EQ(job[w].store().iteration, 0);
    EXPECT_TRUE(job[w].store().outbox.empty());  // there is no row for the differences
  }
  job.Revive(2);
  const MeshNode::Fetched fetched = job.Fetch(2, 0);
  ASSERT_TRUE(fetched.status.ok()) << fetched.status.ToString();
  job.ReduceOk(GroupKind::kTrain, 1, {0, 1, 2}, {0.25, 0.25, 0.5});
  ExpectTogether(&job, 1);
}

TEST(MeshLocalStepsTest, ReplicaIsTheRoundsStart) {
  Prng random(4);
  MeshJob job(2, EveryDType(3000), Local(1), Patient(kByRing));
  Begin(&job, &random);
  Train(&job, 0, [&] { return random.Unit(); });
  job.ReduceOk(GroupKind::kTrain, 5, {0, 1}, {1, 0});
  const Values start = ValuesOf(job[0].parameters);
  Train(&job, 0, [&] { return random.Unit(); });
  const Values trained = ValuesOf(job[0].parameters);
  job.Add();
  const MeshNode::Fetched fetched = job.Fetch(2, 0);
  ASSERT_TRUE(fetched.status.ok()) << fetched.status.ToString();
  EXPECT_EQ(fetched.iteration, 5);
  EXPECT_EQ(ValuesOf(job[2].parameters), start);
  EXPECT_EQ(testing::Bytes(job[2].store().base), testing::Bytes(job[0].store().base));
  EXPECT_EQ(ValuesOf(job[0].parameters), trained);
  // It takes part as everybody else does.
  job.ReduceOk(GroupKind::kTrain, 6, {0, 1, 2}, {0.5, 0.25, 0.25});
  ExpectTogether(&job, 6);
}

TEST(MeshLocalStepsTest, WithoutAStartNothingIsReduced) {
  MeshJob job(2, EveryDType(10), Local(1), Patient(kDirect));
  for (std::size_t w = 0; w < 2; ++w) Fill(&job[w].parameters, [] { return 1.0; });
  job.ReduceOk(GroupKind::kInitial, 0, {0}, {1});
  for (const std::vector<double>& weights :
       std::vector<std::vector<double>>{{0.5, 0.5}, {1, 0}, {0, 1}}) {
    const std::vector<Status> statuses = job.Reduce(GroupKind::kTrain, 1, {0, 1}, weights);
    EXPECT_EQ(statuses[1].code(), Code::kFailedPrecondition);
  }
  // A run begins without one.
  job[0].mesh().JoinRun(1, Local(1));
  EXPECT_EQ(job.Reduce(GroupKind::kTrain, 1, {0}, {1})[0].code(), Code::kFailedPrecondition);
  EXPECT_EQ(ValuesOf(job[0].parameters), Values(ValuesOf(job[0].parameters).size(), 1.0));
}

}  // namespace
}  // namespace prd::mesh_local_steps_test
