// State of replicas between meshes: reduced at the common start, copied with a replica once its
// worker is in a call, and left alone else; and digests of what reductions leave.
#include <gtest/gtest.h>

#include <vector>

#include "tests/worker/mesh_job.h"

namespace prd::testing::mesh_state_test {
namespace {

const Shapes kModel = EveryDType(4000);
constexpr std::size_t kChunk = 512;
const Shapes kMean = {{DType::kF32, 21}, {DType::kF64, 3}};
const Shapes kKept = {{DType::kBF16, 9}, {DType::kF32, 30}};

// A worker with state of both kinds.
class StatefulWorker : public MeshWorker {
 public:
  StatefulWorker(const Plan& plan, double value)
      : MeshWorker(kModel, Mesh::Options{.timeout = kSecond, .chunk_bytes = kChunk}),
        mean(MakeTensors(kMean)),
        kept(MakeTensors(kKept)) {
    Set(value);
    std::vector<StateTensor> state;
    for (const Tensor& tensor : ViewsOf(&kept))
      state.push_back({tensor.data, tensor.count, tensor.dtype});
    for (const Tensor& tensor : ViewsOf(&mean)) {
      state.push_back({tensor.data, tensor.count, tensor.dtype, true});
    }
    store().SetTensors(ViewsOf(&parameters), ViewsOf(&gradients), state);
    mesh().JoinRun(1, plan);
  }
  void Set(double value) {
    Fill(&parameters, [&] { return value; });
    Fill(&gradients, [&] { return value; });
    Fill(&mean, [&] { return value + 1; });
    Fill(&kept, [&] { return value + 2; });
  }
  void Give() {
    const std::lock_guard lock(store().mutex);
    store().GiveAveraged();
  }
  void Expect(double model, double of_mean, double of_kept) {
    for (const double each : ValuesOf(parameters)) ASSERT_EQ(each, model);
    for (const double each : ValuesOf(mean)) ASSERT_EQ(each, of_mean);
    for (const double each : ValuesOf(kept)) ASSERT_EQ(each, of_kept);
  }

  Tensors mean, kept;
};

class StatefulJob : public MeshJob {
 public:
  StatefulJob(const Plan& plan, const std::vector<double>& values) : MeshJob(0, kModel, plan) {
    for (const double value : values) {
      workers_.push_back(std::make_unique<StatefulWorker>(plan, value));
    }
  }
  StatefulWorker& operator[](std::size_t i) { return static_cast<StatefulWorker&>(*workers_[i]); }
  void Give() {
    for (std::size_t i = 0; i < size(); ++i) (*this)[i].Give();
  }
};

TEST(MeshStateTest, TheCommonStartHasAllOfIt) {
  StatefulJob job(plans::kModels, {16, 64});
  job.ReduceOk(GroupKind::kInitial, 0, {0, 1}, {0, 1});
  job.Give();
  for (const std::size_t i : {0, 1}) job[i].Expect(64, 65, 66);
  StatefulJob averaged(plans::kModels, {16, 64});
  averaged.ReduceOk(GroupKind::kInitial, 0, {0, 1}, {0.5, 0.5});
  averaged.Give();
  for (const std::size_t i : {0, 1}) averaged[i].Expect(40, 41, 42);
}

TEST(MeshStateTest, OtherGroupsAverageWhatIsToBeAveraged) {
  for (const GroupKind kind : {GroupKind::kTrain, GroupKind::kFinal}) {
    StatefulJob job(plans::kModels, {16, 64});
    job.ReduceOk(kind, 1, {0, 1}, {0.5, 0.5});
    for (const std::size_t i : {0, 1}) job[i].Expect(40, i == 0 ? 17 : 65, i == 0 ? 18 : 66);
    job.Give();
    for (const std::size_t i : {0, 1}) job[i].Expect(40, 41, i == 0 ? 18 : 66);
  }
  StatefulJob gradients(plans::kGradients, {16, 64});
  gradients.ReduceOk(GroupKind::kTrain, 1, {0, 1}, {0.5, 0.5});
  gradients.Give();
  gradients[0].Expect(16, 17, 18);
  for (const double each : ValuesOf(gradients[1].gradients)) ASSERT_EQ(each, 40);
}

// While its caller is in no call, the kept state may be anything.
TEST(MeshStateTest, ACopyWaitsForTheSourcesCall) {
  StatefulJob job(plans::kModels, {16, 64});
  job.StartFetch(0, 1);
  const Instant from = MeshNow();
  EXPECT_TRUE(job.RunUntil([&] { return MeshNow() - from > 3 * kSecond / 2; }))
      << "over its timeout";
  EXPECT_FALSE(job[0].node->fetched.has_value()) << "the source answers, and is waited for";
  job[0].Expect(16, 17, 18);
  job[1].Set(128);
  {
    const std::lock_guard lock(job[1].store().mutex);
    job[1].store().TakeAveraged();
  }
  job[1].store().kept.lent = true;
  job[1].mesh().ServeWaiting(MeshNow());
  job[1].store().GiveBack();
  job[1].Set(1);  // the copy is there
  const MeshNode::Fetched fetched = job.FinishFetch(0);
  EXPECT_TRUE(fetched.status.ok()) << fetched.status.ToString();
  job.Give();
  job[0].Expect(128, 129, 130);
  job[1].Expect(1, 2, 3);
}

// Once somebody has asked, calls leave a copy at their end, for a while.
TEST(MeshStateTest, LaterCopiesNeedNotWait) {
  StatefulJob job(plans::kModels, {16, 64});
  ReplicaStore& store = job[1].store();
  const auto call = [&] {
    const std::lock_guard lock(store.mutex);
    store.BeginCall(true);
    EXPECT_FALSE(store.kept.copied());
    store.EndCall();
  };
  call();
  EXPECT_FALSE(store.kept.holds_copy()) << "nobody has asked";
  store.kept.lent = true;
  EXPECT_TRUE(job.Fetch(0, 1).status.ok());
  store.GiveBack();
  job[1].Set(128);
  call();
  Fill(&job[1].kept, [] { return -1.0; });  // as the training loop may between calls
  EXPECT_TRUE(job.Fetch(0, 1).status.ok());
  job.Give();
  job[0].Expect(128, 129, 130);
  for (int i = 0; i < KeptState::kCopiesDue; ++i) call();
  EXPECT_FALSE(store.kept.copied());
  EXPECT_FALSE(store.kept.holds_copy());
}

MemoryHeld Copies(const ReplicaStore& store) {
  for (const MemoryHeld& held : store.memory->meter()->Uses()) {
    if (held.use == "copies") return held;
  }
  return {};
}

// While nothing changes, the source holds what is on its way.
TEST(MeshStateTest, AReplicaIsSentFromWhereItStands) {
  StatefulJob job(plans::kModels, {16, 64});
  job[1].store().kept.SetChangesInCalls(true);
  EXPECT_TRUE(job.Fetch(0, 1).status.ok());
  job.Give();
  job[0].Expect(64, 65, 66);
  const std::size_t most = 4 * Transport::kFrames * kChunk;
  ASSERT_LT(2 * most, job[1].store().whole.bytes());
  EXPECT_GT(Copies(job[1].store()).host_peak, 0);
  EXPECT_LE(Copies(job[1].store()).host_peak, static_cast<std::int64_t>(most));
}

// The source copies what changes before it is sent. The next copy is likely to come soon, or not
// for long.
TEST(MeshStateTest, MemoryOfACopyIsKeptForAWhile) {
  StatefulJob job(plans::kModels, {16, 64});
  const auto copies = [&job](std::size_t worker) { return Copies(job[worker].store()); };
  const auto whole = static_cast<std::int64_t>(job[1].store().whole.bytes());
  job[1].store().kept.SetChangesInCalls(false);
  job.StartFetch(0, 1);
  job.RunUntil([turns = 0]() mutable { return ++turns > 10; });
  job[1].store().kept.SetChangesInCalls(true);
  job[1].mesh().ServeWaiting(MeshNow());
  EXPECT_EQ(copies(1).host, 0) << "it is sent from where it stands";
  {
    const std::lock_guard lock(job[1].store().mutex);
    job[1].store().BeforeApply();
  }
  EXPECT_EQ(copies(1).host, whole);
  job[1].Set(1);
  EXPECT_TRUE(job.FinishFetch(0).status.ok());
  job.Give();
  job[0].Expect(64, 65, 66);
  EXPECT_EQ(copies(0).host, 0) << "it is where it belongs";
  EXPECT_GE(copies(0).host_peak, whole);
  EXPECT_EQ(copies(1).host, whole);
  job[1].mesh().Service(MeshNow() + ReplicaServer::kKept);
  EXPECT_EQ(copies(1).host, 0);
}

// State that the program changes in calls alone is copied where it is, whenever a peer asks.
TEST(MeshStateTest, NoCopyWaitsForStateOfCallsAlone) {
  StatefulJob job(plans::kModels, {16, 64});
  ReplicaStore& store = job[1].store();
  store.kept.SetChangesInCalls(true);
  EXPECT_FALSE(store.kept.lent);
  EXPECT_TRUE(job.Fetch(0, 1).status.ok());
  job.Give();
  job[0].Expect(64, 65, 66);
  const std::lock_guard lock(store.mutex);
  store.BeginCall(true);
  store.EndCall();
  EXPECT_FALSE(store.kept.holds_copy());
}

TEST(MeshStateTest, ACopyOfOtherStateIsRefused) {
  StatefulJob job(plans::kModels, {16, 64});
  std::vector<Tensor> views = ViewsOf(&job[1].parameters);
  for (const Tensor& tensor : ViewsOf(&job[1].mean)) views.push_back(tensor);
  job[1].store().SetTensors(views, {}, {});
  EXPECT_EQ(job.Fetch(0, 1).status.code(), Code::kDataLoss);
  job[0].Expect(16, 17, 18);
  // The start is not over: memory is given back, and training's made, with one that succeeds.
  EXPECT_EQ(job[0].store().memory->meter()->all().host, job[0].store().averaged.bytes());
}

// ---- state that is written before a step averages (ReplicaStore) ----

TEST(MeshStateTest, WhatWasWrittenBeforeAnAverageIsAddedAfterIt) {
  StatefulJob job(plans::kModels, {16, 64});
  ReplicaStore& store = job[0].store();
  const std::lock_guard lock(store.mutex);
  const Row other = store.memory->Allocate(MemoryUse::kResults, store.parameters.bytes());
  store.memory->Combine(store.parameters, Memory::In(const_cast<std::byte*>(other.data())),
                        {{Memory::Tensors(), {2, 2}}});
  const ReplicaStore::Weighted others[] = {{Memory::In(other.data()), 0.5}};
  for (const bool mixes_first : {true, false}) {
    job[0].Set(16);
    store.TakeAveraged();
    store.averaged.SetMixesFirst(mixes_first);
    Fill(&job[0].mean, [] { return 19.0; });  // 2 more than before
    store.TakeAveraged(true);
    store.Mix(0.5, others);  // 17 or 19 and 34
    store.GiveAveraged();
    for (const double each : ValuesOf(job[0].mean)) ASSERT_EQ(each, mixes_first ? 27.5 : 26.5);
    store.TakeAveraged(true);
    store.GiveAveraged();  // nothing has changed
    for (const double each : ValuesOf(job[0].mean)) ASSERT_EQ(each, mixes_first ? 27.5 : 26.5);
  }
}

// ---- digests ----

TEST(MeshStateTest, AGroupTellsTheDigestOfWhatItLeaves) {
  const auto digests = [](const Plan& plan, GroupKind kind, bool asked) {
    StatefulJob job(plan, {16, 64});
    job.ReduceOk(GroupKind::kInitial, 0, {0, 1}, {1, 0});
    Fill(&job[0].parameters, [] { return 12.0; });
    Group group = job.MakeGroup(kind, 1, {0, 1}, {0.5, 0.5});
    group.digest = asked;
    for (const std::size_t i : {0, 1}) job.Start(i, group);
    for (const Status& status : job.Finish({0, 1})) EXPECT_TRUE(status.ok());
    // The digest is of the parameters alone, as they are.
    const std::uint64_t expected = job[1].store().memory->DigestOf(LayoutOf(&job[1].parameters));
    std::vector<bool> right;
    for (const std::size_t i : {0, 1}) {
      right.push_back(job[i].node->reduced->digest == (asked ? expected : 0));
    }
    return right;
  };
  const std::vector<bool> both = {true, true};
  EXPECT_EQ(digests(plans::kModels, GroupKind::kTrain, true), both);
  EXPECT_EQ(digests(plans::kModels, GroupKind::kTrain, false), both);
  EXPECT_EQ(digests(plans::kAsked, GroupKind::kTrain, true), both);
  EXPECT_EQ(digests(plans::kRounds, GroupKind::kAverage, true), both);
  // The result is not in the parameters before `apply`.
  StatefulJob gradients(plans::kGradients, {16, 16});
  Group group = gradients.MakeGroup(GroupKind::kTrain, 1, {0, 1}, {0.5, 0.5});
  group.digest = true;
  for (const std::size_t i : {0, 1}) gradients.Start(i, group);
  for (const Status& status : gradients.Finish({0, 1})) EXPECT_TRUE(status.ok());
  EXPECT_EQ(gradients[0].node->reduced->digest, 0u);
}

}  // namespace
}  // namespace prd::testing::mesh_state_test
