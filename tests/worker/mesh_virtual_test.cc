// Averages in the background (AveragesInBackground): groups reduce what the parameters and the
// averages that wait for them come to, and the parameters get the differences at the next boundary.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/prng.h"
#include "tests/plans.h"
#include "tests/worker/mesh_job.h"

namespace prd::mesh_virtual_test {
namespace {

using testing::EveryDType;
using testing::Fill;
using testing::MeshJob;
using testing::MeshNode;
using testing::MeshNow;
using testing::MeshWorker;
using testing::Numbers;
using testing::RunUntil;
using testing::Shapes;
using testing::ValuesOf;
using Values = std::vector<double>;

constexpr Plan kOverlap = plans::Background(4);
constexpr Plan kAhead = plans::Background(0, Membership::kAhead);
constexpr Plan kMixes = {.by = GroupPlan{.any_time = true, .run_ahead = 4, .keep_initial = true}};

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

const Shapes kExact = {{DType::kF32, 301}, {DType::kF64, 40}, {DType::kF32, 3}};

// What Session::Step does before the controller hears of it. -1: the inbox is not added now.
template <typename F>
std::int64_t Boundary(MeshWorker* worker, F&& apply) {
  ReplicaStore& store = worker->store();
  const std::lock_guard lock(store.mutex);
  store.BeforeApply();
  apply();
  ++store.iteration;
  return store.AddInbox().value_or(-1);
}

std::int64_t Boundary(MeshWorker* worker) {
  return Boundary(worker, [] {});
}

void Add(MeshWorker* worker, double value) {
  for (Numbers& numbers : worker->parameters) {
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers.Set(i, numbers.Get(i) + value);
  }
}

// As ValuesOf: every element is equal in these tests' models.
double Value(MeshWorker* worker) {
  const Values values = ValuesOf(worker->parameters);
  EXPECT_EQ(values, Values(values.size(), values.front()));
  return values.front();
}

void SetAll(MeshJob* job, const Values& values) {
  for (std::size_t w = 0; w < job->size(); ++w) {
    Fill(&(*job)[w].parameters, [&] { return values[w]; });
  }
}

// The same in double precision, one number per worker.
class Reference {
 public:
  explicit Reference(Values values) : parameters_(std::move(values)), inbox_(parameters_.size()) {}

  void Start(std::size_t worker) { outbox_[worker] = parameters_[worker] + inbox_[worker]; }
  void Complete(const std::vector<std::size_t>& members, const Values& weights) {
    double average = 0;
    for (std::size_t m = 0; m < members.size(); ++m) average += weights[m] * outbox_[members[m]];
    for (const std::size_t m : members) inbox_[m] += average - outbox_[m];
  }
  void Boundary(std::size_t worker, double step, bool added) {
    parameters_[worker] += step;
    if (added) parameters_[worker] += std::exchange(inbox_[worker], 0);
  }
  double parameter(std::size_t worker) const { return parameters_[worker]; }
  double virtual_sum() const {
    double sum = 0;
    for (std::size_t w = 0; w < inbox_.size(); ++w) sum += parameters_[w] + inbox_[w];
    return sum;
  }

 private:
  Values parameters_;
  Values inbox_;
  Values outbox_ = Values(parameters_.size());
};

// All numbers are small multiples of a power of two, so that nothing is rounded.
TEST(MeshVirtualTest, RandomInterleavingsMatchTheReferenceExactly) {
  int postponed = 0;
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng random(seed);
    MeshJob job(5, kExact, seed % 2 == 0 ? kOverlap : kAhead,
                Patient(seed % 3 == 0 ? kDirect : kByRing));
    Values start;
    for (std::size_t w = 0; w < 5; ++w) start.push_back(static_cast<double>(random.Below(16)));
    SetAll(&job, start);
    Reference reference(start);
    const auto maybe_step = [&](std::size_t w) {
      if (random.Below(2) == 0) return;
      const double step = static_cast<double>(random.Below(5)) - 2;
      const std::int64_t added = Boundary(&job[w], [&] { Add(&job[w], step); });
      postponed += added < 0;
      reference.Boundary(w, step, added >= 0);
      ASSERT_EQ(Value(&job[w]), reference.parameter(w));
    };
    for (int turn = 0; turn < 8; ++turn) {
      // A pair and another one, or three of which one is only there to be averaged with.
      std::vector<std::size_t> order = {0, 1, 2, 3, 4};
      for (std::size_t i = 4; i > 0; --i) std::swap(order[i], order[random.Below(i + 1)]);
      std::vector<std::vector<std::size_t>> groups = {{order[0], order[1]}, {order[2], order[3]}};
      Values weights = {0.5, 0.5};
      if (random.Below(3) == 0) {
        groups = {{order[0], order[1], order[2]}};
        weights = {0.5, 0.25, 0.25};
      }
      std::vector<Group> announced;
      for (const auto& members : groups) {
        announced.push_back(job.MakeGroup(GroupKind::kTrain, 0, members, weights));
      }
      for (std::size_t g = 0; g < groups.size(); ++g) {
        for (const std::size_t w : groups[g]) {
          maybe_step(w);
          job.Start(w, announced[g]);
          reference.Start(w);
          maybe_step(w);
        }
      }
      for (const auto& members : groups) {
        for (const Status& status : job.Finish(members)) {
          ASSERT_TRUE(status.ok()) << status.ToString();
        }
        reference.Complete(members, weights);
        for (const std::size_t w : members) ASSERT_EQ(Value(&job[w]), reference.parameter(w));
      }
    }
    const double sum = reference.virtual_sum();
    double got = 0;
    for (std::size_t w = 0; w < 5; ++w) {
      Boundary(&job[w]);
      reference.Boundary(w, 0, true);
      got += Value(&job[w]);
    }
    EXPECT_EQ(got, sum);
  }
  EXPECT_GT(postponed, 0);
}

// What groups one after another do between two boundaries is what they would do in place.
TEST(MeshVirtualTest, SeveralGroupsBetweenTwoBoundariesAreTheSerialResult) {
  for (const Plan& plan : {kAhead, plans::kAhead}) {
    MeshJob job(4, kExact, plan, Patient(kByRing));
    SetAll(&job, {1, 5, 9, 17});
    job.ReduceOk(GroupKind::kTrain, 0, {0, 1}, {0.5, 0.5});
    job.ReduceOk(GroupKind::kTrain, 0, {0, 2}, {0.5, 0.5});
    job.ReduceOk(GroupKind::kTrain, 0, {0, 3}, {0.25, 0.75});
    if (AveragesInBackground(plan)) {
      EXPECT_EQ(Value(&job[0]), 1);
      EXPECT_EQ(job[0].store().inbox.rounds, 3);
      for (std::size_t w = 0; w < 4; ++w) EXPECT_EQ(Boundary(&job[w]), w == 0 ? 3 : 1);
    }
    EXPECT_EQ(Value(&job[0]), 14.25);
    EXPECT_EQ(Value(&job[1]), 3);
    EXPECT_EQ(Value(&job[2]), 6);
    EXPECT_EQ(Value(&job[3]), 14.25);
  }
}

TEST(MeshVirtualTest, EveryDTypeAgainstFloat64) {
  constexpr std::size_t kCount = 1501;
  Prng random(3);
  for (const DType dtype : testing::kDTypes) {
    for (const std::size_t direct : {kByRing, kDirect}) {
      MeshJob job(3, {{dtype, kCount}}, kAhead, Patient(direct));
      std::vector<Values> expected(3);
      for (std::size_t w = 0; w < 3; ++w) {
        Fill(&job[w].parameters, [&] { return random.Unit() - 0.5; });
        expected[w] = ValuesOf(job[w].parameters);
      }
      const Values weights = {0.5, 0.125, 0.375};
      for (int round = 0; round < 4; ++round) {
        Values average(kCount);
        for (std::size_t w = 0; w < 3; ++w) {
          for (std::size_t i = 0; i < kCount; ++i) average[i] += weights[w] * expected[w][i];
        }
        expected.assign(3, average);
        job.ReduceOk(GroupKind::kTrain, 0, {0, 1, 2}, weights);
      }
      for (std::size_t w = 0; w < 3; ++w) {
        EXPECT_EQ(Boundary(&job[w]), 4);
        const Values got = ValuesOf(job[w].parameters);
        for (std::size_t i = 0; i < kCount; ++i) {
          ASSERT_NEAR(got[i], expected[w][i], 6 * testing::Epsilon(dtype)) << "element " << i;
        }
      }
    }
  }
}

TEST(MeshVirtualTest, AloneItKeepsItsModelAndGains) {
  MeshJob job(1, EveryDType(50), kOverlap, Patient(kByRing));
  SetAll(&job, {3});
  const Group group = job.MakeGroup(GroupKind::kTrain, 9, {0}, {1});
  job[0].node->reduced.reset();
  job[0].mesh().StartReduce(MeshNow(), group, job.WhatReduces(group.kind), 4);
  job[0].mesh().Service(MeshNow());
  ASSERT_TRUE(job[0].node->reduced.has_value());
  EXPECT_EQ(job[0].store().iteration, 0) << "is the caller's";
  EXPECT_EQ(Boundary(&job[0]), 1);
  EXPECT_EQ(job[0].store().iteration, 5);
  EXPECT_EQ(Value(&job[0]), 3);
  EXPECT_EQ(Boundary(&job[0]), 0);
  EXPECT_EQ(job[0].store().iteration, 6);
}

TEST(MeshVirtualTest, TheInitialModelMixesIn) {
  MeshJob job(2, kExact, kMixes, Patient(kByRing));
  SetAll(&job, {8, 0});
  job.ReduceOk(GroupKind::kInitial, 0, {0, 1}, {1, 0});
  for (std::size_t w = 0; w < 2; ++w) {
    Boundary(&job[w], [&] { Add(&job[w], w == 0 ? 8 : 16); });
  }
  Group group = job.MakeGroup(GroupKind::kTrain, 1, {0, 1}, {0.25, 0.25});
  group.initial_weight = 0.5;
  for (std::size_t w = 0; w < 2; ++w) job.Start(w, group);
  for (const Status& status : job.Finish({0, 1})) ASSERT_TRUE(status.ok()) << status.ToString();
  for (std::size_t w = 0; w < 2; ++w) {
    Boundary(&job[w]);
    EXPECT_EQ(Value(&job[w]), 0.25 * (16 + 24) + 0.5 * 8);
  }
}

// While the caller's thread is inside `apply`, nothing is read: the group begins with what `apply`
// leaves. What peers send meanwhile is kept.
TEST(MeshVirtualTest, BeginsWhenApplyIsOver) {
  for (const std::size_t direct : {kByRing, kDirect}) {
    MeshJob job(2, kExact, kAhead, Patient(direct));
    SetAll(&job, {2, 6});
    std::unique_lock apply(job[0].store().mutex);
    const Group group = job.MakeGroup(GroupKind::kTrain, 0, {0, 1}, {0.5, 0.5});
    for (std::size_t w = 0; w < 2; ++w) job.Start(w, group);
    ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return job[0].mesh().counters().early > 0; }));
    EXPECT_FALSE(job[0].node->reduced || job[1].node->reduced);
    EXPECT_EQ(job[0].mesh().NextDeadline(), std::nullopt) << "it neither spins nor gives up";
    Add(&job[0], 10);
    apply.unlock();
    for (const Status& status : job.Finish({0, 1})) ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(Value(&job[0]), 12);
    for (std::size_t w = 0; w < 2; ++w) {
      Boundary(&job[w]);
      EXPECT_EQ(Value(&job[w]), 9);
    }
  }
}

TEST(MeshVirtualTest, CommitsWhenApplyIsOver) {
  MeshJob job(2, kExact, kAhead, Patient(kDirect));
  SetAll(&job, {2, 6});
  const Group group = job.MakeGroup(GroupKind::kTrain, 0, {0, 1}, {0.5, 0.5});
  for (std::size_t w = 0; w < 2; ++w) job.Start(w, group);
  Boundary(&job[0], [&] {
    ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return job[1].node->reduced.has_value(); }));
    Add(&job[0], 1);
    EXPECT_FALSE(job[0].node->reduced.has_value());
  });
  EXPECT_EQ(Value(&job[0]), 3);
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return job[0].node->reduced.has_value(); }));
  EXPECT_EQ(Boundary(&job[0]), 1);
  EXPECT_EQ(Value(&job[0]), 5) << "1 + (4 - 2) more";
}

TEST(MeshVirtualTest, FailureLeavesEverything) {
  MeshJob job(3, EveryDType(3000), kAhead, Patient(kByRing));
  SetAll(&job, {2, 6, 8});
  job.ReduceOk(GroupKind::kTrain, 0, {0, 1}, {0.5, 0.5});
  const std::vector<std::byte> inbox = testing::Bytes(job[0].store().inbox.row);
  const Group group = job.MakeGroup(GroupKind::kTrain, 0, {0, 1, 2}, {0.25, 0.25, 0.5});
  for (std::size_t w = 0; w < 2; ++w) job.Start(w, group);
  for (int turn = 0; turn < 3; ++turn) {
    for (std::size_t w = 0; w < 2; ++w) job[w].mesh().Service(MeshNow());
  }
  job[2].node.reset();
  for (const Status& status : job.Finish({0, 1})) EXPECT_FALSE(status.ok());
  {
    const std::lock_guard lock(job[0].store().mutex);
    job[0].store().Unfold();
  }
  EXPECT_EQ(testing::Bytes(job[0].store().inbox.row), inbox);
  EXPECT_EQ(job[0].store().inbox.rounds, 1);
  EXPECT_EQ(Value(&job[0]), 2);
  job.ReduceOk(GroupKind::kTrain, 0, {0, 1}, {0.25, 0.75});
  for (std::size_t w = 0; w < 2; ++w) {
    EXPECT_EQ(Boundary(&job[w]), 2);
    EXPECT_EQ(Value(&job[w]), 4);
  }
}

TEST(MeshVirtualTest, CancelledGroupLeavesEverything) {
  MeshJob job(2, kExact, kAhead, Patient(kByRing));
  SetAll(&job, {2, 6});
  for (int turns = 0; turns < 6; ++turns) {
    const Group group = job.MakeGroup(GroupKind::kTrain, 0, {0, 1}, {0.5, 0.5});
    for (std::size_t w = 0; w < 2; ++w) job.Start(w, group);
    // The second one does not get through without what the first one has yet to forward.
    for (int i = 0; i < turns; ++i) job[1].mesh().Service(MeshNow());
    for (std::size_t w = 0; w < 2; ++w) job[w].mesh().CancelReduce();
  }
  for (std::size_t w = 0; w < 2; ++w) {
    EXPECT_EQ(job[w].store().inbox.rounds, 0);
    EXPECT_EQ(Value(&job[w]), w == 0 ? 2 : 6);
  }
  job.ReduceOk(GroupKind::kTrain, 0, {0, 1}, {0.5, 0.5});
  EXPECT_EQ(Boundary(&job[1]), 1);
  EXPECT_EQ(Value(&job[1]), 4);
}

// A peer's copy is of the model with the averages that wait for it.
TEST(MeshVirtualTest, ReplicaIsTheVirtualOne) {
  MeshJob job(2, kExact, kOverlap, Patient(kByRing));
  SetAll(&job, {2, 6});
  const Group group = job.MakeGroup(GroupKind::kTrain, 0, {0, 1}, {0.5, 0.5});
  for (std::size_t w = 0; w < 2; ++w) {
    job[w].store().iteration = 10;
    job[w].node->reduced.reset();
    job[w].mesh().StartReduce(MeshNow(), group, job.WhatReduces(group.kind), 7);
  }
  for (const Status& status : job.Finish({0, 1})) ASSERT_TRUE(status.ok()) << status.ToString();
  job.Add();
  const MeshNode::Fetched fetched = job.Fetch(2, 0);
  ASSERT_TRUE(fetched.status.ok()) << fetched.status.ToString();
  EXPECT_EQ(fetched.iteration, 17);
  EXPECT_EQ(job[2].store().iteration, 17);
  EXPECT_EQ(Value(&job[2]), 4);
  EXPECT_EQ(job[2].store().inbox.rounds, 0);
  EXPECT_EQ(Value(&job[0]), 2) << "only the caller's thread gives it its averages";
  EXPECT_EQ(job[0].store().inbox.rounds, 1);
}

// Whatever replaces the replica leaves no average behind that was made for the one before.
TEST(MeshVirtualTest, ANewReplicaHasNoInbox) {
  MeshJob job(2, kExact, kOverlap, Patient(kByRing));
  const auto fill = [&job] {
    SetAll(&job, {2, 6});
    job.ReduceOk(GroupKind::kTrain, 0, {0, 1}, {0.5, 0.5});
    for (std::size_t w = 0; w < 2; ++w) ASSERT_EQ(job[w].store().inbox.rounds, 1);
  };
  const auto expect_none = [&job](std::size_t w) {
    EXPECT_EQ(job[w].store().inbox.rounds, 0);
    EXPECT_EQ(job[w].store().inbox.gain, 0);
    const double before = Value(&job[w]);
    EXPECT_EQ(Boundary(&job[w]), 0);
    EXPECT_EQ(Value(&job[w]), before);
  };
  for (const GroupKind kind : {GroupKind::kInitial, GroupKind::kFinal}) {
    fill();
    job.ReduceOk(kind, 3, {0, 1}, {0.25, 0.75});
    EXPECT_EQ(job[0].store().iteration, 3);
    for (std::size_t w = 0; w < 2; ++w) {
      EXPECT_EQ(Value(&job[w]), 5) << "in place";
      expect_none(w);
    }
  }
  fill();
  ASSERT_TRUE(job.Fetch(0, 1).status.ok());
  expect_none(0);
  EXPECT_EQ(Boundary(&job[1]), 1);
  fill();
  job[0].mesh().JoinRun(2, kOverlap);
  expect_none(0);
  job[1].mesh().SetIncarnation(12345);
  expect_none(1);
}

TEST(MeshVirtualTest, AverageWithAReplicaThatWasReplacedIsDropped) {
  MeshJob job(3, kExact, kAhead, Patient(kByRing));
  SetAll(&job, {2, 6, 40});
  const Group group = job.MakeGroup(GroupKind::kTrain, 0, {0, 1}, {0.5, 0.5});
  job.Start(0, group);
  ASSERT_TRUE(job.Fetch(0, 2).status.ok());
  job.Start(1, group);
  const std::vector<Status> statuses = job.Finish({0, 1});
  EXPECT_EQ(statuses[0].code(), Code::kAborted) << statuses[0].ToString();
  EXPECT_EQ(job[0].store().inbox.rounds, 0);
  EXPECT_EQ(Value(&job[0]), 40);
}

// What is averaged comes to where the own part was: there is no row for results.
TEST(MeshVirtualTest, OneRowWithBackgroundAndNoneWithout) {
  for (const std::size_t direct : {kByRing, kDirect}) {
    MeshJob job(2, EveryDType(100), kAhead, Patient(direct));
    ReplicaStore& store = job[0].store();
    const std::size_t row = store.parameters.bytes();
    const auto held = [&store] { return store.memory->meter()->all().host; };
    const auto average = [&job] { job.ReduceOk(GroupKind::kTrain, 0, {0, 1}, {0.5, 0.5}); };
    EXPECT_EQ(held(), row);
    for (int i = 0; i < 3; ++i) {
      average();
      EXPECT_EQ(store.inbox.row.size(), row);
      EXPECT_EQ(Boundary(&job[0]), 1);
      EXPECT_EQ(held(), row);
    }
    average();
    average();
    EXPECT_EQ(held(), row);
    EXPECT_EQ(Boundary(&job[0]), 2);
    average();
    const Group group = job.MakeGroup(GroupKind::kTrain, 0, {0, 1}, {0.5, 0.5});
    job.Start(0, group);
    EXPECT_EQ(Boundary(&job[0]), -1) << "the group has folded it";
    EXPECT_EQ(held(), 2 * row) << "what the parameters were is kept";
    job.Start(1, group);
    for (const Status& status : job.Finish({0, 1})) ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(held(), row);
    EXPECT_EQ(Boundary(&job[0]), 2);
    for (const Plan& plan : {Plan{}, plans::kAhead, plans::kSchedule, plans::kGradients}) {
      job[0].mesh().JoinRun(1, plan);
      EXPECT_EQ(store.outbox.size() + store.inbox.row.size() + store.base.size(), 0u);
    }
  }
}

// Members of a group that may begin late keep their own count.
TEST(MeshVirtualTest, IterationsAreTheirOwnUnderAhead) {
  MeshJob job(2, kExact, plans::kAhead, Patient(kByRing));
  SetAll(&job, {2, 6});
  job[0].store().iteration = 5;
  job[1].store().iteration = 8;
  job.ReduceOk(GroupKind::kTrain, 3, {0, 1}, {0.5, 0.5});
  EXPECT_EQ(job[0].store().iteration, 5);
  EXPECT_EQ(job[1].store().iteration, 8);
  EXPECT_EQ(Value(&job[1]), 4);
  job.ReduceOk(GroupKind::kFinal, 8, {0, 1}, {0.5, 0.5});
  EXPECT_EQ(job[0].store().iteration, 8);
}

}  // namespace
}  // namespace prd::mesh_virtual_test
