// Rounds of gradients in the background (TrainsInRounds): what is contributed, what arrives, and
// that no gradient is counted twice or lost, whatever fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <string>
#include <thread>

#include "common/base/prng.h"
#include "tests/plans.h"
#include "tests/worker/mesh_job.h"

namespace prd::mesh_round_test {
namespace {

using testing::EveryDType;
using testing::Fill;
using testing::MeshJob;
using testing::MeshNode;
using testing::MeshNow;
using testing::MeshWorker;
using testing::RunUntil;
using testing::Shapes;
using testing::ValuesOf;
using Values = std::vector<double>;

constexpr Plan kEager = plans::kRounds;
constexpr Plan kNewest = plans::kNewestRound;

// After a third of the time limit a member asks for one whose death nobody has noticed. Nothing
// waits for the rest.
Mesh::Options Patient(std::size_t direct_bytes = Mesh::kDirectBytes, std::size_t chunk = 1024) {
  Mesh::Options options;
  options.timeout = 9 * kSecond;
  options.chunk_bytes = chunk;
  options.direct_bytes = direct_bytes;
  return options;
}

void Offer(MeshWorker* worker, double value) {
  Fill(&worker->gradients, [value] { return value; });
  worker->store().Deposit();
}

Values Apply(MeshWorker* worker) {
  ReplicaStore& store = worker->store();
  const std::lock_guard lock(store.mutex);
  if (!store.TakeInbox()) return {};
  store.iteration = store.inbox.iteration;
  return ValuesOf(worker->gradients);
}

Values Constant(MeshJob* job, double value) {
  return Values(ValuesOf((*job)[0].gradients).size(), value);
}

// Starts a round, lets this member give its part away, and calls the round off there: the others
// can complete it. REQUIRES: rows go directly.
void GiveAndFail(MeshJob* job, std::size_t member, const Group& group) {
  const auto came = [job](std::size_t w) {
    return (*job)[w].mesh().counters().early + (*job)[w].mesh().counters().received;
  };
  std::vector<std::uint64_t> before;
  for (std::size_t w = 0; w < job->size(); ++w) before.push_back(came(w));
  job->Start(member, group);
  ASSERT_TRUE(job->RunUntil([&] {
    for (std::size_t w = 0; w < job->size(); ++w) {
      if (w != member && came(w) == before[w]) return false;
    }
    return true;
  }));
  (*job)[member].mesh().CancelReduce();
  ASSERT_FALSE((*job)[member].node->reduced.has_value());
}

TEST(MeshRoundTest, EveryDTypeAgainstFloat64OverSeveralRounds) {
  Prng random(1);
  for (const DType dtype : testing::kDTypes) {
    for (const std::size_t direct : {std::size_t{0}, std::size_t{1} << 20}) {
      constexpr std::size_t kCount = 3001;
      MeshJob job(4, {{dtype, kCount}}, kEager, Patient(direct));
      std::vector<Values> outbox(4, Values(kCount, 0.0));
      Values inbox(kCount, 0.0);
      for (Iteration round = 1; round <= 5; ++round) {
        for (std::size_t w = 0; w < 4; ++w) {
          if (w == static_cast<std::size_t>(round) % 4) continue;
          Fill(&job[w].gradients, [&] { return random.Unit() - 0.5; });
          job[w].store().Deposit();
          const Values given = ValuesOf(job[w].gradients);
          for (std::size_t i = 0; i < kCount; ++i) outbox[w][i] += given[i];
        }
        std::vector<double> weights(4, 0.0);
        for (std::size_t w = 0; w < 4; ++w) {
          if (!job[w].store().owes || random.Below(3) == 0) continue;
          weights[w] = 0.25;
          for (std::size_t i = 0; i < kCount; ++i) inbox[i] += 0.25 * outbox[w][i];
          std::fill(outbox[w].begin(), outbox[w].end(), 0.0);
        }
        job.ReduceOk(GroupKind::kRound, round, {0, 1, 2, 3}, weights);
        for (std::size_t w = 0; w < 4; ++w) {
          EXPECT_EQ(job[w].store().inbox.rounds, round);
          EXPECT_EQ(job[w].store().inbox.iteration, round);
          EXPECT_FALSE(weights[w] != 0 && job[w].store().owes);
          EXPECT_EQ(testing::Bytes(job[w].store().inbox.row),
                    testing::Bytes(job[0].store().inbox.row));
        }
      }
      const Values got = Apply(&job[0]);
      for (std::size_t i = 0; i < kCount; ++i) {
        ASSERT_NEAR(got[i], inbox[i], 40 * testing::Epsilon(dtype)) << "element " << i;
      }
      EXPECT_EQ(job[0].store().iteration, 5);
      EXPECT_TRUE(Apply(&job[0]).empty());
    }
  }
}

TEST(MeshRoundTest, HalvesAddInFloatAndRoundOnce) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    MeshJob job(2, {{dtype, 100}}, kEager, Patient());
    testing::Tensors sum = testing::MakeTensors(job.shapes());
    Prng random(2);
    for (Iteration round = 1; round <= 20; ++round) {
      Fill(&job[0].gradients, [&] { return random.Unit() * 3 - 1; });
      // What one addition of two such numbers gives, rounded to the nearest.
      for (std::size_t i = 0; i < 100; ++i) {
        sum[0].Set(i, sum[0].Get(i) + job[0].gradients[0].Get(i));
      }
      job[0].store().Deposit();
      job.ReduceOk(GroupKind::kRound, round, {0, 1}, {1, 0});
    }
    EXPECT_EQ(Apply(&job[1]), ValuesOf(sum));
  }
}

TEST(MeshRoundTest, NobodyContributesGivesZerosAndKeepsOutboxes) {
  for (const std::size_t direct : {std::size_t{0}, std::size_t{1} << 20}) {
    MeshJob job(3, EveryDType(500), kEager, Patient(direct));
    Offer(&job[1], std::numeric_limits<double>::quiet_NaN());
    job.ReduceOk(GroupKind::kRound, 1, {0, 1, 2}, {0, 0, 0});
    for (std::size_t w = 0; w < 3; ++w) {
      EXPECT_EQ(job[w].store().inbox.rounds, 1);
      EXPECT_EQ(job[w].store().owes, w == 1);
      EXPECT_EQ(Apply(&job[w]), Constant(&job, 0));
    }
  }
}

TEST(MeshRoundTest, WhatIsDepositedDuringARoundWithoutItStaysForTheNext) {
  MeshJob job(2, EveryDType(100), kEager, Patient());
  Offer(&job[0], 1);
  const Group group = job.MakeGroup(GroupKind::kRound, 1, {0, 1}, {1, 0});
  job.Start(1, group);
  Offer(&job[1], 2);
  Offer(&job[1], 3);
  job.Start(0, group);
  for (const Status& status : job.Finish({0, 1})) ASSERT_TRUE(status.ok());
  EXPECT_EQ(Apply(&job[1]), Constant(&job, 1));
  job.ReduceOk(GroupKind::kRound, 2, {0, 1}, {0, 0.5});
  EXPECT_EQ(Apply(&job[1]), Constant(&job, 2.5));
  EXPECT_EQ(Apply(&job[0]), Constant(&job, 3.5));  // both rounds
}

TEST(MeshRoundTest, LatestOnlyKeepsTheNewestResult) {
  MeshJob job(2, EveryDType(100), kNewest, Patient());
  for (Iteration round = 1; round <= 3; ++round) {
    Offer(&job[0], static_cast<double>(round));
    job.ReduceOk(GroupKind::kRound, round, {0, 1}, {1, 0});
  }
  EXPECT_EQ(job[1].store().inbox.rounds, 3);
  EXPECT_EQ(job[1].store().inbox.iteration, 3);
  EXPECT_EQ(Apply(&job[1]), Constant(&job, 3));
  Offer(&job[0], 7);
  job.ReduceOk(GroupKind::kRound, 4, {0, 1}, {1, 0});
  EXPECT_EQ(Apply(&job[1]), Constant(&job, 7));
}

TEST(MeshRoundTest, OutboxIsKeptAfterAFailure) {
  MeshJob job(3, EveryDType(5000), kEager, Patient(0));
  for (std::size_t w = 0; w < 3; ++w) Offer(&job[w], 1);
  const Group group = job.MakeGroup(GroupKind::kRound, 1, {0, 1, 2}, {1, 1, 1});
  job.Start(0, group);
  job.Start(1, group);
  for (int turn = 0; turn < 3; ++turn) {
    for (std::size_t w = 0; w < 2; ++w) job[w].mesh().Service(MeshNow());
  }
  job[2].node.reset();
  for (const Status& status : job.Finish({0, 1})) EXPECT_FALSE(status.ok());
  for (std::size_t w = 0; w < 2; ++w) {
    EXPECT_TRUE(job[w].store().owes);
    EXPECT_EQ(job[w].store().inbox.rounds, 0);
    Offer(&job[w], 1);
  }
  job.ReduceOk(GroupKind::kRound, 1, {0, 1}, {0.5, 0.5});
  EXPECT_EQ(Apply(&job[0]), Constant(&job, 2));
  EXPECT_FALSE(job[0].store().owes);
}

TEST(MeshRoundTest, ContributingAnEmptyOutboxFailsAtOnceForAll) {
  MeshJob job(3, EveryDType(100), kEager, Patient());
  Offer(&job[0], 1);
  const std::vector<Status> statuses = job.Reduce(GroupKind::kRound, 1, {0, 1, 2}, {1, 1, 0});
  EXPECT_EQ(statuses[0].code(), Code::kAborted);
  EXPECT_EQ(statuses[1].code(), Code::kFailedPrecondition);
  EXPECT_EQ(statuses[2].code(), Code::kAborted);
  EXPECT_TRUE(job[0].store().owes);
}

TEST(MeshRoundTest, WhatThePlanKeepsNoRowForFails) {
  const auto verdict = [](const Plan& plan, const Reduced& what) {
    MeshJob job(1, EveryDType(10), plan, Patient());
    const Group group = job.MakeGroup(GroupKind::kTrain, 1, {0}, {1});
    job[0].node->reduced.reset();
    job[0].mesh().StartReduce(MeshNow(), group, what);
    return job.Finish({0})[0].code();
  };
  for (const Plan& plan : {plans::kModels, plans::kGradients, plans::kAsked}) {
    EXPECT_EQ(verdict(plan, {Payload::kGradients, Landing::kInbox}), Code::kFailedPrecondition);
    EXPECT_EQ(verdict(plan, {Payload::kParameters, Landing::kInbox}), Code::kFailedPrecondition);
  }
  EXPECT_EQ(verdict(kEager, {Payload::kChange, Landing::kBase}), Code::kFailedPrecondition);
  EXPECT_EQ(verdict(kEager, {Payload::kChange, Landing::kInbox}), Code::kFailedPrecondition);
  EXPECT_EQ(verdict(kEager, {Payload::kParameters, Landing::kParameters}), Code::kOk);
}

// ---- a round's result, fetched ----

class ResultTest : public ::testing::TestWithParam<bool> {};  // GroupPlan::newest_only

TEST_P(ResultTest, FetchedAfterAFailureIsAsIfTheRoundHadSucceeded) {
  MeshJob job(4, EveryDType(1000), GetParam() ? kNewest : kEager, Patient(1 << 20));
  Prng random(3);
  for (Iteration round = 1; round <= 3; ++round) {
    for (std::size_t w = 0; w < 4; ++w) {
      Fill(&job[w].gradients, [&] { return random.Unit() - 0.5; });
      job[w].store().Deposit();
    }
    const Group group = job.MakeGroup(GroupKind::kRound, round, {0, 1, 2, 3}, {0.3, 0.3, 0.4, 0});
    GiveAndFail(&job, 2, group);
    for (const std::size_t w : {0, 1, 3}) job.Start(w, group);
    for (const Status& status : job.Finish({0, 1, 3})) ASSERT_TRUE(status.ok());
    EXPECT_TRUE(job[2].store().owes);
    EXPECT_EQ(job[2].store().inbox.rounds, round - 1);
    const MeshNode::Fetched fetched = job.Fetch(2, round % 2 == 0 ? 1 : 3, group.id, true);
    ASSERT_TRUE(fetched.status.ok()) << fetched.status.ToString();
    EXPECT_EQ(fetched.iteration, round);
    EXPECT_FALSE(job[2].store().owes);
    EXPECT_TRUE(job[3].store().owes);
    EXPECT_EQ(job[2].store().inbox.rounds, round);
    EXPECT_EQ(job[2].store().inbox.iteration, round);
    EXPECT_EQ(testing::Bytes(job[2].store().inbox.row), testing::Bytes(job[0].store().inbox.row));
  }
}

INSTANTIATE_TEST_SUITE_P(SumOrNewest, ResultTest, ::testing::Bool());

TEST(MeshRoundTest, ResultOfARoundWithoutOwnPartLeavesTheOutbox) {
  MeshJob job(2, EveryDType(100), kEager, Patient());
  Offer(&job[0], 5);
  Offer(&job[1], 1);
  const Group group = job.MakeGroup(GroupKind::kRound, 1, {0, 1}, {1, 0});
  job.Start(0, group);
  ASSERT_TRUE(job.Finish({0})[0].ok());
  ASSERT_TRUE(job.Fetch(1, 0, group.id, false).status.ok());
  EXPECT_TRUE(job[1].store().owes);
  EXPECT_EQ(Apply(&job[1]), Constant(&job, 5));
}

TEST(MeshRoundTest, OlderResultThatComesAfterANewerRound) {
  for (const Plan& plan : {kEager, kNewest}) {
    MeshJob job(3, EveryDType(100), plan, Patient());
    Offer(&job[0], 1);
    const Group first = job.MakeGroup(GroupKind::kRound, 1, {0, 1}, {1, 0});
    job.Start(0, first);
    ASSERT_TRUE(job.Finish({0})[0].ok());
    Offer(&job[2], 8);
    const Group second = job.MakeGroup(GroupKind::kRound, 2, {0, 1, 2}, {0, 0, 1});
    for (const std::size_t w : {1, 2}) job.Start(w, second);
    for (const Status& status : job.Finish({1, 2})) ASSERT_TRUE(status.ok());
    ASSERT_TRUE(job.Fetch(1, 0, first.id, false).status.ok());
    EXPECT_EQ(job[1].store().inbox.rounds, 2);
    EXPECT_EQ(job[1].store().inbox.iteration, 2);
    // The newest result is still to be had as it was.
    EXPECT_EQ(Apply(&job[0]), Constant(&job, 1));
    ASSERT_TRUE(job.Fetch(0, 1, second.id, false).status.ok());
    EXPECT_EQ(Apply(&job[0]), Constant(&job, 8));
    EXPECT_EQ(Apply(&job[1]), Constant(&job, TakesNewestOnly(plan) ? 8 : 9));
  }
}

TEST(MeshRoundTest, ResultIsRefusedAtOnceWhenItIsNotThere) {
  MeshJob job(2, EveryDType(100), kEager, Patient());
  Offer(&job[0], 1);
  Offer(&job[1], 1);
  EXPECT_EQ(job.Fetch(1, 0, 1, true).status.code(), Code::kNotFound);  // none was made yet
  const Group group = job.MakeGroup(GroupKind::kRound, 1, {0, 1}, {1, 0});
  job.Start(0, group);
  ASSERT_TRUE(job.Finish({0})[0].ok());
  EXPECT_EQ(job.Fetch(1, 0, group.id + 1, true).status.code(), Code::kNotFound);
  // Too late: the next one has started, of whatever kind, and though it fails.
  job.Start(0, job.MakeGroup(GroupKind::kAverage, 2, {0, 1}, {0.5, 0.5}));
  EXPECT_EQ(job.Fetch(1, 0, group.id, true).status.code(), Code::kNotFound);
  job[0].mesh().CancelReduce();
  EXPECT_EQ(job.Fetch(1, 0, group.id, true).status.code(), Code::kNotFound);
  EXPECT_TRUE(job[1].store().owes);
  EXPECT_EQ(job[1].store().inbox.rounds, 0);
  // A new run has no results of an old one.
  const Group next = job.MakeGroup(GroupKind::kRound, 2, {0}, {0});
  job.Start(0, next);
  ASSERT_TRUE(job.Finish({0})[0].ok());
  job[0].mesh().JoinRun(1, kEager);
  EXPECT_EQ(job.Fetch(1, 0, next.id).status.code(), Code::kNotFound);
}

TEST(MeshRoundTest, SeveralFetchAResultWhileTheNextRoundOverwritesIt) {
  constexpr std::size_t kCount = 1'000'000;  // several chunks
  MeshJob job(4, {{DType::kF32, kCount}}, kEager, Patient(0, Mesh::kChunkBytes));
  Offer(&job[0], 1);
  const Group all = job.MakeGroup(GroupKind::kRound, 1, {0, 1, 2, 3}, {1, 0, 0, 0});
  job.Start(0, all);
  job.Start(1, all);
  for (const Status& status : job.Finish({0, 1})) ASSERT_TRUE(status.ok());
  const std::uint64_t before = job[0].mesh().counters().received;
  job.StartFetch(2, 0, all.id);
  job.StartFetch(3, 0, all.id);
  ASSERT_TRUE(
      RunUntil(job.Nodes(), [&] { return job[0].mesh().counters().received == before + 2; }));
  Offer(&job[0], 2);
  Offer(&job[1], 2);
  const Group next = job.MakeGroup(GroupKind::kRound, 2, {0, 1}, {1, 1});
  job.Start(0, next);
  job.Start(1, next);
  for (const Status& status : job.Finish({0, 1})) ASSERT_TRUE(status.ok());
  for (const std::size_t taker : {2, 3}) {
    ASSERT_TRUE(job.FinishFetch(taker).status.ok());
    EXPECT_EQ(Apply(&job[taker]), Constant(&job, 1));
  }
  EXPECT_EQ(Apply(&job[1]), Constant(&job, 5));
}

// ---- a replica, fetched ----

TEST(MeshRoundTest, ReplicaComesWithItsInbox) {
  MeshJob job(3, EveryDType(5000), kEager, Patient(0));
  Fill(&job[0].parameters, [] { return 3.0; });
  job[0].store().iteration = 4;
  Offer(&job[0], 1);
  for (Iteration round = 5; round <= 6; ++round) {
    job.ReduceOk(GroupKind::kRound, round, {0, 1}, {round == 5 ? 1.0 : 0.0, 0});
  }
  Offer(&job[0], 9);  // its own, and stays with it
  Offer(&job[2], 9);
  job.ReduceOk(GroupKind::kRound, 7, {2}, {1});
  Offer(&job[2], 9);
  const MeshNode::Fetched fetched = job.Fetch(2, 0);
  ASSERT_TRUE(fetched.status.ok()) << fetched.status.ToString();
  EXPECT_EQ(fetched.iteration, 6);
  EXPECT_EQ(job[2].store().iteration, 4);
  EXPECT_FALSE(job[2].store().owes);
  EXPECT_EQ(job[2].store().inbox.rounds, 2);
  EXPECT_EQ(ValuesOf(job[2].parameters), Constant(&job, 3));
  EXPECT_EQ(Apply(&job[2]), Constant(&job, 1));
  EXPECT_TRUE(job[0].store().owes);
  // And one without: what the taker had is gone.
  Apply(&job[0]);
  Offer(&job[2], 9);
  job.ReduceOk(GroupKind::kRound, 8, {2}, {1});
  EXPECT_EQ(job.Fetch(2, 0).iteration, 6);
  EXPECT_EQ(job[2].store().iteration, 6);
  EXPECT_TRUE(Apply(&job[2]).empty());
}

TEST(MeshRoundTest, SnapshotIsOfOneMomentThoughRoundsGoOn) {
  constexpr std::size_t kCount = 1'000'000;
  MeshJob job(3, {{DType::kF32, kCount}}, kEager, Patient(0, Mesh::kChunkBytes));
  Offer(&job[0], 1);
  job.ReduceOk(GroupKind::kRound, 1, {0, 1}, {1, 0});
  const std::uint64_t before = job[0].mesh().counters().received;
  job.StartFetch(2, 0);
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return job[0].mesh().counters().received > before; }));
  Offer(&job[0], 1);
  job.ReduceOk(GroupKind::kRound, 2, {0, 1}, {1, 0});
  const MeshNode::Fetched fetched = job.FinishFetch(2);
  ASSERT_TRUE(fetched.status.ok());
  EXPECT_EQ(fetched.iteration, 1);
  EXPECT_EQ(Apply(&job[2]), Constant(&job, 1));
}

TEST(MeshRoundTest, StartsAndEndsEmptyOutboxAndInbox) {
  MeshJob job(2, EveryDType(10), kEager, Patient());
  const auto fill = [&] {
    for (std::size_t w = 0; w < 2; ++w) {
      Offer(&job[w], 1);
      job.ReduceOk(GroupKind::kRound, 1, {w}, {1});
      Offer(&job[w], 1);
      ASSERT_TRUE(job[w].store().owes);
      ASSERT_EQ(job[w].store().inbox.rounds, 1);
    }
  };
  const auto empty = [&](std::size_t w) {
    return !job[w].store().owes && job[w].store().inbox.rounds == 0;
  };
  for (const GroupKind kind : {GroupKind::kInitial, GroupKind::kFinal}) {
    fill();
    job.ReduceOk(kind, 3, {0, 1}, {1, 0});
    EXPECT_TRUE(empty(0) && empty(1));
    EXPECT_EQ(job[1].store().iteration, 3);
  }
  fill();
  job.ReduceOk(GroupKind::kAverage, 3, {0, 1}, {1, 0});
  EXPECT_FALSE(empty(0) || empty(1));
  job[0].mesh().SetIncarnation(77);
  EXPECT_TRUE(empty(0));
  job[1].mesh().JoinRun(2, kEager);
  EXPECT_TRUE(empty(1));
}

// ---- memory ----

TEST(MeshRoundTest, RowsAreThoseThePlanNeeds) {
  MeshJob job(2, EveryDType(1000), kEager, Patient());
  ReplicaStore& store = job[0].store();
  const auto bytes = static_cast<std::int64_t>(store.gradients.bytes());
  const auto held = [&store] { return store.memory->meter()->all().host; };
  auto round = [&job, number = Iteration{0}](bool applies) mutable {
    Offer(&job[0], 1);
    job.ReduceOk(GroupKind::kRound, ++number, {0, 1}, {1, 0});
    if (applies) Apply(&job[0]);
  };
  EXPECT_EQ(held(), 2 * bytes);
  for (int i = 0; i < 5; ++i) {
    round(true);
    EXPECT_EQ(held(), 2 * bytes) << "a result comes to where the one before was taken from";
  }
  round(false);
  EXPECT_EQ(held(), 2 * bytes);
  for (int i = 0; i < 5; ++i) {
    round(i % 2 == 0);
    EXPECT_EQ(held(), 3 * bytes) << "one came before the one before was taken";
  }
  for (const Plan& plan : {plans::kGradients, plans::kModels}) {
    job[0].mesh().JoinRun(2, plan);
    EXPECT_EQ(store.outbox.size() + store.inbox.row.size() + store.arriving.size(), 0u);
    EXPECT_EQ(store.base.size(), 0u);
  }
  job[0].mesh().JoinRun(3, plans::kAsked);
  job.ReduceOk(GroupKind::kInitial, 0, {0}, {1});
  EXPECT_EQ(store.outbox.size(), 0u);
  EXPECT_EQ(store.base.size(), store.gradients.bytes());
  EXPECT_EQ(store.inbox.row.size(), 0u);
}

// ---- the caller's thread ----

TEST(MeshRoundTest, ApplyOfOneWorkerHoldsUpNobodyElse) {
  MeshJob job(3, EveryDType(5000), kEager, Patient(0));
  Offer(&job[0], 1);
  Offer(&job[1], 2);
  const Group group = job.MakeGroup(GroupKind::kRound, 1, {0, 1, 2}, {1, 1, 0});
  for (std::size_t w = 0; w < 3; ++w) job.Start(w, group);
  std::unique_lock apply(job[1].store().mutex);
  for (const Status& status : job.Finish({0, 2})) ASSERT_TRUE(status.ok());
  // Neither what others do now, nor time, takes the result from the one that has it.
  EXPECT_FALSE(job[1].mesh().NextDeadline().has_value());
  job[0].node.reset();
  job[2].node.reset();
  job[1].mesh().Service(MeshNow() + 3600 * kSecond);
  EXPECT_FALSE(job[1].node->reduced.has_value());
  EXPECT_TRUE(job[1].store().owes);
  apply.unlock();
  ASSERT_TRUE(job.Finish({1})[0].ok());
  EXPECT_EQ(Apply(&job[1]), Constant(&job, 3));
}

TEST(MeshRoundTest, ThreadsThatApplyMissNothing) {
  constexpr int kRounds = 200;
  MeshJob job(2, EveryDType(200), kEager, Patient());
  const double rounds = kRounds;
  std::vector<double> sums(2, 0.0);
  std::vector<std::thread> callers;
  std::atomic<bool> through = false;
  for (std::size_t w = 0; w < 2; ++w) {
    callers.emplace_back([&, w] {
      for (bool last = false; !last;) {
        last = through;  // what came before is there
        const Values got = Apply(&job[w]);
        if (!got.empty()) {
          EXPECT_EQ(got, Values(got.size(), got[0]));
          sums[w] += got[0];
        }
        std::this_thread::yield();
      }
    });
  }
  // The callers own the gradients here, so outboxes are filled without them.
  for (Iteration round = 1; round <= kRounds; ++round) {
    testing::Tensors one = testing::MakeTensors(job.shapes());
    Fill(&one, [] { return 1.0; });
    testing::LayoutOf(&one).Read(0, job[0].store().outbox.size(), job[0].store().outbox.data());
    job[0].store().owes = true;
    const Group group = job.MakeGroup(GroupKind::kRound, round, {0, 1}, {1, 0});
    for (const std::size_t w : {0, 1}) job.Start(w, group);
    // A session's background thread is told when its caller is done; here, it has to look.
    const Instant deadline = MeshNow() + 20 * kSecond;
    while (!(job[0].node->reduced && job[1].node->reduced) && MeshNow() < deadline) {
      for (const std::size_t w : {0, 1}) job[w].mesh().Service(MeshNow());
      std::this_thread::yield();
    }
    for (const Status& status : job.Finish({0, 1})) EXPECT_TRUE(status.ok());
  }
  through = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sums, std::vector<double>(2, rounds));
}

// ---- liars ----

// A source as seen by the taker, that says whatever the test wants.
class Liar {
 public:
  Liar(MeshJob* job, GroupId result)
      : taker_((*job)[0].node.get()), real_((*job)[1].node.get()), source_(taker_, *real_) {
    job->StartFetch(0, 1, result);
  }
  void Send(FrameKind kind, const std::string& payload, std::uint32_t stage = 0,
            std::uint64_t offset = 0) {
    const FrameHeader header{.kind = kind,
                             .run = 1,
                             .group = 1,  // the taker's first fetch
                             .from = source_.AsMember().incarnation,
                             .to = taker_->AsMember(0).incarnation,
                             .stage = stage,
                             .offset = offset,
                             .length = payload.size()};
    source_.Send(header, payload);
  }
  void Send(const ReplicaInfo& info) {
    Send(FrameKind::kReplica, std::string(reinterpret_cast<const char*>(&info), sizeof info));
  }
  Code Verdict() {
    EXPECT_TRUE(RunUntil({taker_}, [&] { return taker_->fetched.has_value(); }));
    // The taker's connection there is not left half made, for which its end would wait.
    EXPECT_TRUE(RunUntil({taker_, real_}, [&] { return real_->mesh->counters().received > 0; }));
    return taker_->fetched ? taker_->fetched->status.code() : Code::kInternal;
  }

 private:
  MeshNode* taker_;
  MeshNode* real_;
  testing::PlayedWorker source_;
};

TEST(MeshRoundTest, DescriptionsThatCannotBeRightAreRefused) {
  constexpr std::uint64_t kRow = 40;
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  const struct {
    bool result;
    Plan plan;
    ReplicaInfo info;
  } wrong[] = {
      {false, plans::kRounds, {0, {kRow + 4, 0, 0}, 0, 0}},
      {false, plans::kRounds, {0, {kHuge, 0, 0}, 0, 0}},
      {false, plans::kRounds, {-1, {kRow, 0, 0}, 0, 0}},
      {false, plans::kRounds, {0, {kRow, 4, 0}, 0, 0}},
      {false, plans::kRounds, {0, {kRow, 0, kRow}, 0, 0}},   // of no round
      {false, plans::kRounds, {0, {kRow, 0, 0}, 1, 1}},      // of no bytes
      {false, plans::kRounds, {0, {kRow, 0, kHuge}, 1, 1}},  //
      {false, plans::kRounds, {0, {kRow, 0, kRow}, -1, 1}},  //
      {false, plans::kRounds, {0, {kRow, 0, kRow}, 1, -1}},  //
      {false, plans::kModels, {0, {kRow, 0, kRow}, 1, 1}},   // has no inbox
      {false, plans::kAsked, {0, {kRow, 0, kRow}, 1, 1}},    //
      {true, plans::kRounds, {0, {kRow, 0, 0}, 0, 0}},       // not what was asked for
      {true, plans::kRounds, {0, {kRow, 0, kRow}, 1, 1}},    //
      {true, plans::kRounds, {0, {0, kRow, kRow}, 1, 1}},    //
      {true, plans::kRounds, {0, {0, 0, kRow}, 2, 1}},       //
      {true, plans::kRounds, {0, {0, 0, 0}, 0, 1}},          //
      {true, plans::kAsked, {0, {0, 0, kRow}, 1, 1}},        // has no rounds
  };
  for (const auto& [result, plan, info] : wrong) {
    MeshJob job(2, {{DType::kF32, 10}}, plan, Patient());
    Liar liar(&job, result ? 5 : kNoGroup);
    liar.Send(info);
    EXPECT_EQ(liar.Verdict(), Code::kDataLoss) << &info - &wrong[0].info;
    EXPECT_EQ(job[0].store().inbox.rounds, 0);
  }
}

TEST(MeshRoundTest, BytesThatDoNotFitAreRefused) {
  const std::string row(40, 'x');
  const auto verdict = [&](bool result, const std::function<void(Liar*)>& say) {
    MeshJob job(2, {{DType::kF32, 10}}, kEager, Patient());
    Fill(&job[0].parameters, [] { return 1.0; });
    Offer(&job[0], 2);
    Liar liar(&job, result ? 5 : kNoGroup);
    say(&liar);
    const Code code = liar.Verdict();
    EXPECT_EQ(ValuesOf(job[0].parameters), Constant(&job, 1));
    EXPECT_TRUE(job[0].store().owes);
    EXPECT_EQ(job[0].store().inbox.rounds, code == Code::kOk ? 1 : 0);
    return code;
  };
  const ReplicaInfo result{1, {0, 0, 40}, 1, 1};
  const ReplicaInfo replica{1, {40, 0, 40}, 1, 1};
  const auto chunk = [&](const ReplicaInfo& info, std::uint32_t stage, std::uint64_t offset,
                         std::size_t length) {
    return [&row, info, stage, offset, length](Liar* liar) {
      liar->Send(info);
      liar->Send(FrameKind::kChunk, row.substr(0, length), stage, offset);
    };
  };
  EXPECT_EQ(verdict(true, chunk(result, 2, 0, 40)), Code::kOk);
  EXPECT_EQ(verdict(true, chunk(result, 0, 0, 40)), Code::kDataLoss);
  EXPECT_EQ(verdict(true, chunk(result, 1, 0, 40)), Code::kDataLoss);
  EXPECT_EQ(verdict(true, chunk(result, 3, 0, 40)), Code::kDataLoss);
  EXPECT_EQ(verdict(true, chunk(result, 0xffffffff, 0, 40)), Code::kDataLoss);
  EXPECT_EQ(verdict(true, chunk(result, 2, 8, 8)), Code::kDataLoss);
  EXPECT_EQ(verdict(true, chunk(result, 2, 0, 0)), Code::kDataLoss);
  EXPECT_EQ(verdict(false, chunk(replica, 2, 1, 4)), Code::kDataLoss);
  EXPECT_EQ(verdict(true, [&](Liar* liar) { liar->Send(FrameKind::kReplica, "short"); }),
            Code::kDataLoss);
  EXPECT_EQ(verdict(true, [&](Liar* liar) { liar->Send(FrameKind::kChunk, row, 2); }),
            Code::kDataLoss);
  EXPECT_EQ(verdict(true, [&](Liar* liar) { liar->Send(FrameKind::kGone, ""); }), Code::kNotFound);
  EXPECT_EQ(verdict(false, [&](Liar* liar) { liar->Send(FrameKind::kGone, ""); }), Code::kDataLoss);
}

// ---- random sequences ----

}  // namespace
}  // namespace prd::mesh_round_test
