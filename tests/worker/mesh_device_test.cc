// The data plane with replicas on devices: the same job as on hosts. On a stand-in for CUDA and
// NCCL, which shows that the calls are made as they must be, and proves nothing about GPUs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/prng.h"
#include "tests/plans.h"
#include "tests/worker/mesh_devices.h"

namespace prd::testing {
namespace {

// Where the workers of a job are, and what may differ from the job on hosts.
struct Setting {
  const char* name;
  std::vector<bool> on_device;
  bool nccl;
  bool exact;  // every group goes the staged way, which gives the same bits
};

const Setting kSettings[] = {
    {"Devices", {true, true, true, true}, true, false},
    {"DevicesWithoutNccl", {true, true, true, true}, false, true},
    {"TwoDevicesTwoHosts", {true, false, true, false}, true, false},
    {"HostLeads", {false, true, true, true}, true, false},
};

enum class Kind { kAverage, kLate, kBackground, kGradients, kEager, kLocal };

Plan PlanOf(Kind kind) {
  Plan plan;
  switch (kind) {
    case Kind::kAverage:
      plan.by = GroupPlan{.keep_initial = true};
      break;
    case Kind::kLate:
      plan.by = GroupPlan{.members = Membership::kAhead, .keep_initial = true};
      break;
    case Kind::kBackground:
      plan = plans::Background(0);
      break;
    case Kind::kGradients:
      plan = plans::kGradients;
      break;
    case Kind::kEager:
      plan = plans::kRounds;
      break;
    case Kind::kLocal:
      plan.by = GroupPlan{.payload = Payload::kChange, .asks = true, .outer_rate = 0.5};
      break;
  }
  return plan;
}

// Rings, and rows that go directly.
Shapes ShapesOf(std::uint64_t seed) { return seed % 2 == 0 ? EveryDType(9) : EveryDType(9000); }

// One job, step by step, as the seed says. Two of them with equal seeds do the same, wherever their
// workers are.
class Script {
 public:
  Script(const Setting& setting, bool hosts, Kind kind, std::uint64_t seed)
      : kind_(kind),
        prng_(seed),
        job(hosts ? std::vector<bool>(setting.on_device.size(), false) : setting.on_device,
            ShapesOf(seed), PlanOf(kind), seed + 1, setting.nccl) {
    for (std::size_t i = 0; i < job.size(); ++i) {
      Fill(&job[i].parameters, [&] { return Draw(); });
      job[i].Write(&job[i].parameters);
      Fill(&job[i].gradients, [&] { return Draw(); });
      job[i].Write(&job[i].gradients);
    }
    std::vector<double> first(job.size(), 0.0);
    first[0] = 1;
    job.ReduceOk(GroupKind::kInitial, 0, All(), first);
    job.Settle();
  }

  void Step(int step) {
    std::vector<std::size_t> members = Members();
    std::vector<double> weights;
    for (std::size_t i = 0; i < members.size(); ++i) {
      weights.push_back(1.0 / static_cast<double>(members.size()));
    }
    for (const std::size_t m : members) LocalStep(m);
    switch (kind_) {
      case Kind::kAverage:
      case Kind::kLate: {
        const double initial = prng_.Below(3) == 0 ? 0.25 : 0;
        for (double& weight : weights) weight *= 1 - initial;
        return job.ReduceOk(GroupKind::kTrain, step, members, weights, 0, initial);
      }
      case Kind::kBackground:
        job.ReduceOk(GroupKind::kTrain, step, members, weights, 1);
        for (const std::size_t m : members) {
          const std::lock_guard lock(job[m].store().mutex);
          EXPECT_EQ(job[m].store().AddInbox(), 1);
        }
        return;
      case Kind::kGradients:
        return job.ReduceOk(GroupKind::kTrain, step, members, weights);
      case Kind::kEager:
        return Round(step, members);
      case Kind::kLocal:
        return job.ReduceOk(GroupKind::kTrain, step, All(), std::vector<double>(job.size(), 0.25));
    }
  }

 private:
  double Draw() { return static_cast<double>(prng_.Below(2001)) / 1000 - 1; }
  std::vector<std::size_t> All() const {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < job.size(); ++i) all.push_back(i);
    return all;
  }
  // Two sets recur; others come now and then.
  std::vector<std::size_t> Members() {
    const std::uint64_t which = prng_.Below(8);
    if (which < 3) return {0, 1, 2, 3};
    if (which < 5) return {2, 3};
    if (which < 7) return {1, 2, 3};
    std::vector<std::size_t> some = {prng_.Below(2), 2 + prng_.Below(2)};
    return some;
  }
  void LocalStep(std::size_t m) {
    PlacedWorker& worker = job[m];
    Tensors* tensors =
        kind_ == Kind::kGradients || kind_ == Kind::kEager ? &worker.gradients : &worker.parameters;
    const bool add = tensors == &worker.parameters;
    worker.Read(tensors);
    for (Numbers& numbers : *tensors) {
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        numbers.Set(i, (add ? numbers.Get(i) : 0) + Draw() / 8);
      }
    }
    worker.Write(tensors);
  }
  // One of them brings nothing.
  void Round(int step, const std::vector<std::size_t>& members) {
    std::vector<double> weights;
    const std::size_t null = prng_.Below(members.size());
    for (std::size_t i = 0; i < members.size(); ++i) {
      weights.push_back(i == null ? 0 : 1.0 / static_cast<double>(members.size() - 1));
      if (i != null) job[members[i]].store().Deposit();
    }
    job.ReduceOk(GroupKind::kRound, step, members, weights);
    for (const std::size_t m : members) {
      const std::lock_guard lock(job[m].store().mutex);
      EXPECT_TRUE(job[m].store().TakeInbox());
    }
  }

  Kind kind_;
  Prng prng_;

 public:
  PlacedJob job;
};

void ExpectEqual(Tensors expected, Tensors found, bool exact, const std::string& where) {
  ASSERT_EQ(expected.size(), found.size());
  for (std::size_t t = 0; t < expected.size(); ++t) {
    const DType dtype = expected[t].tensor().dtype;
    for (std::size_t i = 0; i < expected[t].size(); ++i) {
      const double a = expected[t].Get(i);
      const double b = found[t].Get(i);
      const double slack = exact ? 0 : 32 * Epsilon(dtype);
      ASSERT_LE(std::fabs(a - b), slack) << where << ": tensor " << t << ", element " << i << ": "
                                         << a << " on the host, " << b << " on the device";
    }
  }
}

class MeshDeviceTest : public ::testing::TestWithParam<std::tuple<std::size_t, Kind>> {};

TEST_P(MeshDeviceTest, IsTheJobOnHosts) {
  const auto& [which, kind] = GetParam();
  const Setting& setting = kSettings[which];
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Script hosts(setting, true, kind, seed);
    Script devices(setting, false, kind, seed);
    for (int step = 1; step <= 12 && !HasFatalFailure(); ++step) {
      hosts.Step(step);
      devices.Step(step);
      if (HasFatalFailure()) return;
      const bool gradients = kind == Kind::kGradients || kind == Kind::kEager;
      for (std::size_t i = 0; i < hosts.job.size(); ++i) {
        PlacedWorker& host = hosts.job[i];
        PlacedWorker& device = devices.job[i];
        const std::string where = "step " + std::to_string(step) + ", rank " + std::to_string(i);
        ExpectEqual(host.Read(gradients ? &host.gradients : &host.parameters),
                    device.Read(gradients ? &device.gradients : &device.parameters), setting.exact,
                    where);
        EXPECT_EQ(host.store().iteration, device.store().iteration);
        if (HasFatalFailure()) return;
      }
      if (step == 6) devices.job.Settle();
    }
    const bool all = std::count(setting.on_device.begin(), setting.on_device.end(), true) == 4;
    const std::uint64_t on_devices =
        devices.job.groups(Way::kCollective) + devices.job.groups(Way::kExchange);
    if (setting.exact) {
      EXPECT_EQ(on_devices, 0u);
    } else if (all) {
      EXPECT_GT(on_devices, 0u);
    }
  }
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<std::size_t, Kind>>& info) {
  static const char* const kNames[] = {"Average",   "Late",  "Background",
                                       "Gradients", "Eager", "Local"};
  return std::string(kNames[static_cast<int>(std::get<1>(info.param))]) + "On" +
         kSettings[std::get<0>(info.param)].name;
}

INSTANTIATE_TEST_SUITE_P(StandIn, MeshDeviceTest,
                         ::testing::Combine(::testing::Range(std::size_t{0}, std::size(kSettings)),
                                            ::testing::Values(Kind::kAverage, Kind::kLate,
                                                              Kind::kBackground, Kind::kGradients,
                                                              Kind::kEager, Kind::kLocal)),
                         NameOf);

// ---- what goes wrong ----

std::vector<double> Equal(std::size_t members) {
  return std::vector<double>(members, 1.0 / static_cast<double>(members));
}

// A job of four devices with communicators of all of them, and of the first two.
void MakeCommunicators(PlacedJob* job) {
  for (std::size_t i = 0; i < job->size(); ++i) {
    Fill(&(*job)[i].parameters, [&] { return static_cast<double>(i + 1); });
    (*job)[i].Write(&(*job)[i].parameters);
  }
  job->ReduceOk(GroupKind::kInitial, 0, {0, 1, 2, 3}, {1, 0, 0, 0});
  for (int i = 0; i < 3; ++i) {
    job->Settle();
    job->ReduceOk(GroupKind::kTrain, 1, {0, 1}, Equal(2));
  }
  job->Settle();
}

// This worker's communicator of so many members; 0 where there is none.
CommId CommOf(PlacedWorker& worker, std::size_t members) {
  for (const auto& [id, set] : worker.mesh().communicators().Usable()) {
    if (set.size() == members) return id;
  }
  return {};
}

TEST(MeshDeviceFaultTest, AMemberThatVanishesFailsItsGroupAndNoOtherCommunicator) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    PlacedJob job({true, true, true, true}, ShapesOf(seed), {}, seed, true, 60 * kSecond);
    MakeCommunicators(&job);
    job.ReduceOk(GroupKind::kTrain, 2, {0, 1, 2, 3}, Equal(4));
    const Tensors before = job[0].Read(&job[0].parameters);
    const CommId pair = CommOf(job[0], 2);
    const std::uint64_t collectives = job.groups(Way::kCollective);
    EXPECT_GT(collectives, 0u);
    EXPECT_NE(pair, CommId());

    // It begins, in every second seed, and goes; long before any time limit.
    const Group group = job.MakeGroup(GroupKind::kTrain, 3, {0, 1, 2, 3}, Equal(4));
    for (const std::size_t m : {0, 1, 2}) job.Start(m, group);
    if (seed % 2 == 0) job.Start(3, group);
    job.RunUntil([&, turns = 0]() mutable { return ++turns == static_cast<int>(seed); });
    job.Kill(3);
    int failed = 0;
    for (const Status& status : job.Finish({0, 1, 2})) failed += status.ok() ? 0 : 1;
    EXPECT_TRUE(failed == 3 || seed % 2 == 0) << failed;
    if (failed == 3) {
      ExpectEqual(before, job[0].Read(&job[0].parameters), true, "after the failure");
    }

    job.ReduceOk(GroupKind::kTrain, 4, {0, 1}, Equal(2));
    EXPECT_EQ(CommOf(job[0], 2), pair) << "theirs was not touched";
    EXPECT_GT(job.groups(Way::kCollective), collectives);
    job.ReduceOk(GroupKind::kTrain, 5, {0, 1, 2}, Equal(3));
  }
}

TEST(MeshDeviceFaultTest, AGroupThatIsCancelledLeavesTheParametersAndTheDeviceUsable) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    PlacedJob job({true, true, true, true}, ShapesOf(seed), {}, seed, seed % 3 != 0);
    MakeCommunicators(&job);
    const Tensors before = job[1].Read(&job[1].parameters);
    const Group group = job.MakeGroup(GroupKind::kTrain, 3, {0, 1}, Equal(2));
    job.Start(1, group);
    job.RunUntil([&, turns = 0]() mutable { return ++turns == static_cast<int>(seed); });
    job[1].mesh().CancelReduce();
    job.RunUntil([&, turns = 0]() mutable { return ++turns == 5; });
    EXPECT_FALSE(job[1].node->reduced.has_value());
    ExpectEqual(before, job[1].Read(&job[1].parameters), true, "cancelled");
    job.ReduceOk(GroupKind::kTrain, 4, {0, 1, 2, 3}, Equal(4));
    job.ReduceOk(GroupKind::kTrain, 5, {0, 1}, Equal(2));
  }
}

// Without an end of the collective: it is the stream that waits for the result, not the caller.
// S18: NCCL protects nothing of what it sends, nor who may take part.
TEST(MeshDeviceTest, NcclIsUsedUnderProtectionOnlyWhereItsNetworkIsTrusted) {
  using Protection = MeshProtection;
  for (const Protection& protection :
       {Protection{}, Protection{MeshSecurity::kAead, false}, Protection{MeshSecurity::kAead, true},
        Protection{MeshSecurity::kCurve, false}}) {
    PlacedJob job({true, true}, {{DType::kF32, 1000}}, plans::kModels, 7);
    for (std::size_t w = 0; w < 2; ++w) {
      job[w].mesh().JoinRun(1, plans::kModels, Mesh::kDefaultLease, protection);
    }
    for (Iteration i = 1; i <= 6; ++i) {
      job.ReduceOk(i == 1 ? GroupKind::kInitial : GroupKind::kTrain, i, {0, 1}, {0.5, 0.5});
      job.Settle();
    }
    const bool nccl = job.groups(Way::kCollective) + job.groups(Way::kExchange) > 0;
    EXPECT_EQ(nccl, protection.MayUseNccl());
    EXPECT_EQ(job[0].mesh().communicators().counters().made > 0, protection.MayUseNccl());
  }
}

TEST(MeshDeviceTest, WhatIsEnqueuedIsHandedOverBeforeItIsThrough) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    PlacedJob job({true, true, true, true}, ShapesOf(seed), {}, seed, true, 60 * kSecond);
    MakeCommunicators(&job);
    const Tensors before = job[0].Read(&job[0].parameters);
    job[0].gpu->HangCollectives();
    const Group group = job.MakeGroup(GroupKind::kTrain, 3, {0, 1}, Equal(2));
    for (const std::size_t m : {0, 1}) job.Start(m, group);
    ASSERT_TRUE(job.RunUntil([&] { return job[0].node->handed_over == group.id; }));
    EXPECT_FALSE(job[0].node->reduced.has_value());

    // Its caller goes; the other member, too, for good.
    job[0].store().away = true;
    job.Kill(1);
    EXPECT_FALSE(job.Finish({0}).front().ok());
    ExpectEqual(before, job[0].Read(&job[0].parameters), true, "after the failure");
    job[0].gpu->HangCollectives(false);

    // What is tried next waits for the caller.
    const Group next = job.MakeGroup(GroupKind::kTrain, 4, {0, 2}, Equal(2));
    for (const std::size_t m : {0, 2}) job.Start(m, next);
    EXPECT_TRUE(job.RunUntil([turns = 0]() mutable { return ++turns == 100; }));
    EXPECT_FALSE(job[0].node->reduced || job[2].node->reduced);
    ExpectEqual(before, job[0].Read(&job[0].parameters), true, "while the caller is away");
    job[0].store().away = false;
    for (const Status& status : job.Finish({0, 2})) EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(job[0].store().iteration, 4);
  }
}

// The same with one who leaves as soon as it is handed over, and one who waits until the end.
TEST(MeshDeviceTest, WhatIsHandedOverIsCommittedOnce) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    PlacedJob job({true, true, true, true}, ShapesOf(seed), {}, seed, true, 60 * kSecond);
    MakeCommunicators(&job);
    Fill(&job[1].parameters, [] { return 5.0; });
    job[1].Write(&job[1].parameters);
    const Group group = job.MakeGroup(GroupKind::kTrain, 3, {0, 1}, {0.75, 0.25});
    for (const std::size_t m : {0, 1}) job.Start(m, group);
    ASSERT_TRUE(job.RunUntil([&] { return job[0].node->handed_over == group.id; }));
    job[0].store().away = true;
    for (const Status& status : job.Finish({0, 1})) EXPECT_TRUE(status.ok()) << status.ToString();
    Tensors expected = job[0].parameters;
    Fill(&expected, [] { return 0.75 * 1 + 0.25 * 5; });  // exact in every dtype
    ExpectEqual(expected, job[0].Read(&job[0].parameters), true, "rank 0");
    ExpectEqual(expected, job[1].Read(&job[1].parameters), true, "rank 1");
  }
}

// A member that is late for its group copies the replicas of those who wait for it, as in
// Session::Average.
TEST(MeshDeviceTest, WhoIsWaitedForMayCopyFirst) {
  for (const bool nccl : {true, false}) {
    SCOPED_TRACE(nccl ? "with NCCL" : "without");
    PlacedJob job({true, true, true, true}, ShapesOf(1), plans::kAhead, 1, nccl, 60 * kSecond);
    MakeCommunicators(&job);
    const Group group = job.MakeGroup(GroupKind::kTrain, 3, {0, 1}, Equal(2));
    job.Start(0, group);
    EXPECT_TRUE(job.RunUntil([turns = 0]() mutable { return ++turns == 100; }));
    const Tensors before = job[0].Read(&job[0].parameters);
    ASSERT_TRUE(job.Fetch(1, 0).status.ok());
    ExpectEqual(before, job[1].Read(&job[1].parameters), true, "the copy");
    job.Start(1, group);
    for (const Status& status : job.Finish({0, 1})) EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

// How many bytes of the row are as after the reduction, window by window. It is an error if the
// windows behind these are not as before it.
std::size_t Landed(const std::vector<std::byte>& before, const std::vector<std::byte>& after,
                   const std::vector<std::byte>& found) {
  std::size_t landed = 0;
  for (std::size_t begin = 0, end = 0; begin < found.size(); begin = end) {
    end = std::min(begin + PlacedWorker::kWindowBytes, found.size());
    const auto is = [&](const std::vector<std::byte>& row) {
      return std::memcmp(&row[begin], &found[begin], end - begin) == 0;
    };
    if (landed == begin && is(after)) {
      landed = end;
    } else {
      EXPECT_TRUE(is(before)) << "from byte " << begin;
    }
  }
  return landed;
}

// Called off at any time after that, it is told to have ended as it did on the device: whole, or
// after some windows.
TEST(MeshDeviceTest, WhatIsHandedOverAndCalledOffEndsAsTheDeviceSays) {
  int committed = 0;
  int called_off = 0;
  int in_part = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    PlacedJob job({true, true, true, true}, ShapesOf(1), {}, seed, true, 60 * kSecond);
    MakeCommunicators(&job);
    Fill(&job[1].parameters, [] { return 5.0; });
    job[1].Write(&job[1].parameters);
    Fill(&job[0].parameters, [] { return 0.75 * 1 + 0.25 * 5; });
    job[0].Write(&job[0].parameters);
    const std::vector<std::byte> after = job[0].ReadRow();
    Fill(&job[0].parameters, [] { return 1.0; });
    job[0].Write(&job[0].parameters);
    const std::vector<std::byte> before = job[0].ReadRow();
    const Iteration was = job[0].store().iteration;
    const Group group = job.MakeGroup(GroupKind::kTrain, 3, {0, 1}, {0.75, 0.25});
    for (const std::size_t m : {0, 1}) job.Start(m, group);
    ASSERT_TRUE(job.RunUntil([&] {
      return job[0].node->handed_over == group.id && job[1].node->handed_over == group.id;
    }));
    if (job[0].node->reduced) continue;  // through at once
    for (std::uint64_t turn = 0; turn < 4 * seed * seed; ++turn) {
      for (const std::size_t m : {0, 1}) (void)job[m].gpu->device().Turn();
    }
    job[0].mesh().GiveUpReduce("rank 9 is gone");
    const Status end = job.Finish({0}).front();
    committed += end.ok() ? 1 : 0;
    called_off += end.ok() ? 0 : 1;
    const std::size_t landed = Landed(before, after, job[0].ReadRow());
    if (end.ok()) {
      EXPECT_EQ(landed, after.size());
    } else {
      EXPECT_EQ(end.code(), Code::kAborted) << end.ToString();
      in_part += landed > 0 ? 1 : 0;
    }
    EXPECT_EQ(job[0].store().iteration, end.ok() ? 3 : was);
    (void)job.Finish({1});
    job.ReduceOk(GroupKind::kTrain, 4, {0, 1, 2, 3}, Equal(4));
  }
  EXPECT_GT(committed, 0);
  EXPECT_GT(called_off, 0);
  EXPECT_GT(in_part, 0);
}

// At any of its operations: the others do not wait for a time limit, which is longer than what
// Finish waits.
TEST(MeshDeviceFaultTest, AMemberWhoseDeviceFailsTellsTheOthers) {
  int failed = 0;
  for (std::uint64_t operation = 1; operation <= 12; ++operation) {
    for (const bool nccl : {false, true}) {
      SCOPED_TRACE("operation " + std::to_string(operation) + (nccl ? " with NCCL" : ""));
      PlacedJob job({true, true, false}, ShapesOf(1), {}, operation, nccl, 60 * kSecond);
      job.ReduceOk(GroupKind::kInitial, 0, {0, 1, 2}, {1, 0, 0});
      job.Settle();
      const std::vector<std::size_t> members =
          nccl ? std::vector<std::size_t>{0, 1} : std::vector<std::size_t>{0, 1, 2};
      const Group group = job.MakeGroup(GroupKind::kTrain, 1, members, Equal(members.size()));
      job[1].gpu->device().FailOperation(operation);
      for (const std::size_t m : members) job.Start(m, group);
      (void)job.Finish(members);
      ASSERT_TRUE(job[1].node->reduced.has_value());
      if (job[1].node->reduced->status.ok()) continue;
      ++failed;
      EXPECT_FALSE(job[1].memory->failure().ok()) << "its session ends";
      EXPECT_TRUE(job.hub == nullptr || job.hub->problems().list().empty());
    }
  }
  EXPECT_GT(failed, 0);
}

// Whatever fails of it: its part of the result is its own, or there is no result. What stood where
// its part was to be copied is in none.
TEST(MeshDeviceFaultTest, WhatADeviceThatFailsHasNotGivenIsInNoResult) {
  int failed = 0;
  for (std::uint64_t k = 1; k <= 30; ++k) {
    for (const bool call : {false, true}) {
      SCOPED_TRACE((call ? "call " : "operation ") + std::to_string(k));
      PlacedJob job({false, true}, ShapesOf(1), {}, k, false, 60 * kSecond);
      job.ReduceOk(GroupKind::kInitial, 0, {0, 1}, {1, 0});
      for (const std::size_t m : {0, 1}) {
        Fill(&job[m].parameters, [m] { return m == 0 ? 1.0 : 5.0; });
        job[m].Write(&job[m].parameters);
      }
      const Group group = job.MakeGroup(GroupKind::kTrain, 1, {0, 1}, {0.75, 0.25});
      StandInDevice& device = job[1].gpu->device();
      call ? device.FailCall(k) : device.FailOperation(k);
      for (const std::size_t m : {0, 1}) job.Start(m, group);
      (void)job.RunUntil(
          [&] { return job[0].node->reduced.has_value() || !job[1].memory->failure().ok(); });
      for (int turn = 0; turn < 50; ++turn) job.RunUntil([] { return true; });
      failed += job[1].memory->failure().ok() ? 0 : 1;
      for (const Numbers& numbers : job[0].Read(&job[0].parameters)) {
        for (std::size_t i = 0; i < numbers.size(); ++i) {
          const double value = numbers.Get(i);
          ASSERT_TRUE(value == 1 || value == 2) << value;
        }
      }
    }
  }
  EXPECT_GT(failed, 10);
}

TEST(MeshDeviceFaultTest, AResultOnADeviceCanBeFetched) {
  const Plan plan = plans::kRounds;
  PlacedJob job({true, true, true, true}, EveryDType(5000), plan, 3);
  job.ReduceOk(GroupKind::kInitial, 0, {0, 1, 2, 3}, {0, 0, 0, 0});
  job.Settle();
  Fill(&job[0].gradients, [] { return 0.5; });
  job[0].Write(&job[0].gradients);
  job[0].store().Deposit();
  const Group group = job.MakeGroup(GroupKind::kRound, 4, {0, 1, 2}, {1, 0, 0});
  for (const std::size_t m : {0, 1, 2}) job.Start(m, group);
  for (const Status& status : job.Finish({0, 1, 2})) ASSERT_TRUE(status.ok()) << status.ToString();
  // A worker that was not in that round gets nothing.
  job[3].node->fetched.reset();
  job[3].mesh().StartFetch(MeshNow(), job[1].node->AsMember(0), group.id, false);
  ASSERT_TRUE(job.RunUntil([&] { return job[3].node->fetched.has_value(); }));
  EXPECT_EQ(job[3].node->fetched->status.code(), Code::kNotFound);
  const auto take = [&] {
    const std::lock_guard lock(job[2].store().mutex);
    EXPECT_TRUE(job[2].store().TakeInbox());
  };
  take();
  Fill(&job[2].gradients, [] { return 0.0; });
  job[2].Write(&job[2].gradients);
  job[2].node->fetched.reset();
  job[2].mesh().StartFetch(MeshNow(), job[1].node->AsMember(0), group.id, false);
  ASSERT_TRUE(job.RunUntil([&] { return job[2].node->fetched.has_value(); }));
  ASSERT_TRUE(job[2].node->fetched->status.ok()) << job[2].node->fetched->status.ToString();
  take();
  ExpectEqual(job[0].Read(&job[0].gradients), job[2].Read(&job[2].gradients), true, "fetched");
}

}  // namespace
}  // namespace prd::testing
