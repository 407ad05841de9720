// The stand-in finds what it is there to find.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/standin/standin_gpu.h"

namespace prd::testing {
namespace {

struct Rank {
  explicit Rank(const std::shared_ptr<Hub>& hub, std::uint64_t seed = 0) {
    StandInOptions options;
    options.make.seed = seed;
    options.hub = hub;
    gpu = StandInGpu::Create(options).value();
    stream = gpu->CreateStream().value();
    data = gpu->Malloc(1024).value();
  }
  ~Rank() {
    gpu->DestroyStream(stream);
    gpu->Free(data);
  }
  std::shared_ptr<StandInGpu> gpu;
  Gpu::Stream stream = nullptr;
  std::byte* data = nullptr;
};

bool Has(const std::vector<std::string>& problems, const std::string& words) {
  for (const std::string& problem : problems) {
    if (problem.find(words) != std::string::npos) return true;
  }
  return false;
}

TEST(StandInTest, RunsAStreamInOrderAndNothingBeforeItsEvent) {
  Rank rank(nullptr);
  StandInGpu& gpu = *rank.gpu;
  std::byte* host = gpu.MallocHost(8).value();
  const double three = 3;
  gpu.Write(host, &three, 8);
  const Gpu::Stream other = gpu.CreateStream().value();
  const Gpu::Event event = gpu.CreateEvent().value();
  ASSERT_TRUE(gpu.Copy(rank.data, host, 8, rank.stream).ok());
  ASSERT_TRUE(gpu.Record(event, rank.stream).ok());
  ASSERT_TRUE(gpu.Wait(other, event).ok());
  ASSERT_TRUE(gpu.Copy(rank.data + 8, rank.data, 8, other).ok());
  EXPECT_FALSE(gpu.Done(event).value());
  gpu.device().Advance();
  EXPECT_TRUE(gpu.Done(event).value());
  EXPECT_EQ(gpu.Read(rank.data + 8, 8), gpu.Read(host, 8));
  gpu.DestroyEvent(event);
  gpu.DestroyStream(other);
  gpu.FreeHost(host);
  EXPECT_EQ(gpu.problems(), std::vector<std::string>());
}

// What one wrong thing gives: a problem with these words.
void ExpectProblem(const StandInGpu& gpu, const std::string& words) {
  EXPECT_TRUE(Has(gpu.problems(), words)) << words << ::testing::PrintToString(gpu.problems());
}

TEST(StandInTest, FindsOperandsThatAreNotWhereTheyMustBe) {
  Rank rank(nullptr);
  StandInGpu& gpu = *rank.gpu;
  std::byte here[8] = {};
  EXPECT_EQ(gpu.Copy(rank.data, here, 8, rank.stream).code(), Code::kInternal);
  ExpectProblem(gpu, "Copy's source is not inside memory");
  EXPECT_FALSE(gpu.Copy(rank.data + 1020, rank.data, 8, rank.stream).ok());
  ExpectProblem(gpu, "Copy's target is not inside memory");
  EXPECT_FALSE(gpu.CheckPointer(here).ok());
  EXPECT_TRUE(gpu.CheckPointer(rank.data).ok());
  std::byte* gone = gpu.Malloc(8).value();
  ASSERT_TRUE(gpu.Zero(gone, 8, rank.stream).ok());
  gpu.Free(gone);
  ExpectProblem(gpu, "freed that queued work uses");
  EXPECT_FALSE(gpu.Zero(gone, 8, rank.stream).ok());
}

TEST(StandInTest, LaunchesWhatHostMemoryDoesAndRefusesOverlaps) {
  Rank rank(nullptr);
  StandInGpu& gpu = *rank.gpu;
  const std::vector<float> values = {1, 2, 3, 4};
  gpu.Write(rank.data, values.data(), 16);
  const Layout layout({{rank.data, 4, DType::kF32}});
  const std::shared_ptr<Gpu::Table> table = gpu.MakeTable(layout).value();
  std::byte* const to[] = {rank.data + 64};
  const Gpu::Input from[] = {{nullptr, {0.5, 0.5F}}, {rank.data, {1, 1}}};
  Gpu::Combine combine{.table = table.get(), .length = 16, .to = to, .from = from};
  ASSERT_TRUE(gpu.Launch(combine, rank.stream).ok());
  gpu.device().Advance();
  const std::vector<std::byte> sum = gpu.Read(rank.data + 64, 16);
  const std::vector<float> expected = {1.5, 3, 4.5, 6};
  EXPECT_EQ(std::memcmp(sum.data(), expected.data(), 16), 0);
  EXPECT_EQ(gpu.problems(), std::vector<std::string>());
  combine.length = 12;
  EXPECT_FALSE(gpu.Launch(combine, rank.stream).ok());
  ExpectProblem(gpu, "no range of the layout");
  std::byte* const over[] = {rank.data + 8};
  combine.length = 16;
  combine.to = over;
  EXPECT_FALSE(gpu.Launch(combine, rank.stream).ok());
  ExpectProblem(gpu, "overlaps another operand");
}

TEST(StandInTest, FindsWhatUsesTheSameBytesInNoOrder) {
  const std::shared_ptr<StandInGpu> gpu = StandInGpu::Create().value();
  const Gpu::Stream one = gpu->CreateStream().value();
  const Gpu::Stream other = gpu->CreateStream().value();
  const Gpu::Event event = gpu->CreateEvent().value();
  std::byte* data = gpu->Malloc(64).value();
  // An event orders them, or who saw it done.
  ASSERT_TRUE(gpu->Zero(data, 32, one).ok());
  ASSERT_TRUE(gpu->Record(event, one).ok());
  ASSERT_TRUE(gpu->Zero(data + 32, 32, other).ok());
  ASSERT_TRUE(gpu->Wait(other, event).ok());
  ASSERT_TRUE(gpu->Copy(data + 32, data, 32, other).ok());
  ASSERT_TRUE(gpu->Record(event, other).ok());
  ASSERT_TRUE(gpu->Copy(data + 16, data, 16, other).ok());
  ASSERT_TRUE(gpu->Synchronize(event).ok());
  ASSERT_TRUE(gpu->Zero(data + 48, 8, one).ok());
  EXPECT_EQ(gpu->problems(), std::vector<std::string>());
  // It has not seen the last one.
  gpu->device().Advance();
  ASSERT_TRUE(gpu->Zero(data + 8, 16, one).ok());
  ExpectProblem(*gpu, "Zero and Copy use the same bytes in no order");
  gpu->DestroyEvent(event);
  gpu->DestroyStream(one);
  gpu->DestroyStream(other);
}

TEST(StandInTest, AnOrderedErrorStays) {
  Rank rank(nullptr);
  StandInGpu& gpu = *rank.gpu;
  ASSERT_TRUE(gpu.Zero(rank.data, 8, rank.stream).ok());
  gpu.device().FailOperation(1);
  gpu.device().Advance();
  EXPECT_EQ(gpu.Zero(rank.data, 8, rank.stream), StandInDevice::Broken());
  EXPECT_EQ(gpu.device().queued(), 0U);
}

// ---- NCCL ----

struct Ranks {
  explicit Ranks(std::size_t count, std::uint64_t seed = 0) {
    for (std::size_t i = 0; i < count; ++i) all.push_back(std::make_unique<Rank>(hub, seed));
  }
  ~Ranks() {
    for (std::size_t i = 0; i < comms.size(); ++i) all[i]->gpu->CommAbort(comms[i]);
    Advance();
  }
  // A communicator of all.
  std::vector<Gpu::Comm> Make() {
    all[0]->gpu->MakeUniqueId();
    Advance();
    const Gpu::UniqueId id = all[0]->gpu->TakeUniqueId()->id;
    std::vector<Gpu::Comm> made;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const int ranks = static_cast<int>(all.size());
      made.push_back(all[i]->gpu->CommInit(ranks, id, static_cast<int>(i)));
      EXPECT_EQ(all[i]->gpu->CommBusy(made[i]).value(), i + 1 < all.size());
    }
    return made;
  }
  void Advance() {
    for (bool any = true; any;) {
      any = false;
      for (const auto& rank : all) any = rank->gpu->device().Turn() || any;
    }
  }
  Status Sum(const std::vector<Gpu::Comm>& on, std::size_t i, std::size_t count,
             std::optional<Weight> weight = Weight{1, 1}) {
    return all[i]->gpu->AllReduce(on[i], all[i]->data, all[i]->data + 64, count, DType::kF32,
                                  weight, all[i]->stream);
  }
  float First(std::size_t i) {
    float value = 0;
    std::memcpy(&value, all[i]->gpu->Read(all[i]->data + 64, 4).data(), 4);
    return value;
  }
  std::shared_ptr<LocalHub> hub = std::make_shared<LocalHub>();
  std::vector<std::unique_ptr<Rank>> all;
  std::vector<Gpu::Comm> comms;
};

TEST(StandInTest, SumsWhenAllHaveCome) {
  Ranks ranks(3);
  ranks.comms = ranks.Make();
  for (std::size_t i = 0; i < 3; ++i) {
    const float value = static_cast<float>(i + 1);
    ranks.all[i]->gpu->Write(ranks.all[i]->data, &value, 4);
    ranks.Advance();
    ASSERT_TRUE(ranks.Sum(ranks.comms, i, 1, Weight{0.5, 0.5F}).ok());
  }
  ranks.Advance();
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(ranks.First(i), 3);
  EXPECT_EQ(ranks.hub->problems().list(), std::vector<std::string>());
}

TEST(StandInTest, WaitsForAMemberThatIsGoneUntilItAborts) {
  Ranks ranks(2);
  ranks.comms = ranks.Make();
  ASSERT_TRUE(ranks.Sum(ranks.comms, 0, 4).ok());
  ranks.all[1]->gpu->CommAbort(ranks.comms[1]);
  ranks.Advance();
  EXPECT_GT(ranks.all[0]->gpu->device().queued(), 0U);
  ranks.all[0]->gpu->CommAbort(ranks.comms[0]);
  ranks.Advance();
  EXPECT_EQ(ranks.all[0]->gpu->device().queued(), 0U);
  EXPECT_NE(ranks.First(0), ranks.First(0));  // anything
  ranks.comms.clear();
}

TEST(StandInTest, FindsMembersThatDoNotFit) {
  using Ask = std::pair<std::size_t, std::optional<Weight>>;
  const Ask others[] = {{2, Weight{1, 1}}, {1, std::nullopt}};
  for (const auto& [count, weight] : others) {
    Ranks ranks(2);
    ranks.comms = ranks.Make();
    ASSERT_TRUE(ranks.Sum(ranks.comms, 0, 1).ok());
    ASSERT_TRUE(ranks.Sum(ranks.comms, 1, count, weight).ok());
    ranks.Advance();
    EXPECT_TRUE(Has(ranks.hub->problems().list(), "differ in dtype, size or kind of operator"));
  }
}

TEST(StandInTest, FindsDeadlocks) {
  Ranks ranks(2);
  ranks.comms = ranks.Make();
  Rank& one = *ranks.all[1];
  ASSERT_TRUE(ranks.Sum(ranks.comms, 0, 1).ok());
  ASSERT_TRUE(one.gpu->Receive(ranks.comms[1], one.data, 4, 0, one.stream).ok());
  ranks.Advance();
  EXPECT_TRUE(Has(ranks.hub->problems().list(), "wait for each other in different calls"));
}

TEST(StandInTest, FindsCommunicatorsInDifferentOrders) {
  Ranks ranks(2);
  ranks.comms = ranks.Make();
  const std::vector<Gpu::Comm> others = ranks.Make();
  ASSERT_TRUE(ranks.Sum(ranks.comms, 0, 1).ok());
  ASSERT_TRUE(ranks.Sum(others, 0, 1).ok());
  ASSERT_TRUE(ranks.Sum(others, 1, 1).ok());
  EXPECT_FALSE(Has(ranks.hub->problems().list(), "different orders"));
  ASSERT_TRUE(ranks.Sum(ranks.comms, 1, 1).ok());
  EXPECT_TRUE(Has(ranks.hub->problems().list(), "different orders"));
  for (std::size_t i = 0; i < 2; ++i) ranks.all[i]->gpu->CommAbort(others[i]);
}

TEST(StandInTest, FindsWhatIsAskedOfACommunicatorThatIsBusyOrGone) {
  const auto hub = std::make_shared<LocalHub>();
  StandInOptions options;
  options.hub = hub;
  options.busy_polls_of_first_collective = 2;
  const std::shared_ptr<StandInGpu> gpu = StandInGpu::Create(options).value();
  const Gpu::Stream stream = gpu->CreateStream().value();
  std::byte* data = gpu->Malloc(16).value();
  const Gpu::Comm comm = gpu->CommInit(1, hub->MakeId().value(), 0);
  ASSERT_FALSE(gpu->CommBusy(comm).value());
  const auto sum = [&] {
    return gpu->AllReduce(comm, data, data, 4, DType::kF32, Weight{1, 1}, stream);
  };
  ASSERT_TRUE(sum().ok());
  EXPECT_FALSE(sum().ok());
  ExpectProblem(*gpu, "a call on a communicator that is busy");
  ASSERT_TRUE(gpu->Zero(data, 16, stream).ok());
  ExpectProblem(*gpu, "Zero on the stream of a communicator that is busy");
  EXPECT_TRUE(gpu->CommBusy(comm).value());
  EXPECT_TRUE(gpu->CommBusy(comm).value());
  EXPECT_FALSE(gpu->CommBusy(comm).value());
  gpu->CommAbort(comm);
  EXPECT_FALSE(sum().ok());
  ExpectProblem(*gpu, "used after CommAbort");
  gpu->DestroyStream(stream);
}

TEST(StandInTest, FindsWhatIsLeftBehind) {
  const auto problems = std::make_shared<Problems>();
  StandInOptions options;
  options.make.problems = problems;
  options.hub = std::make_shared<LocalHub>();
  std::shared_ptr<StandInGpu> gpu = StandInGpu::Create(options).value();
  (void)gpu->CreateEvent();
  (void)gpu->CommInit(1, options.hub->MakeId().value(), 0);
  gpu.reset();
  EXPECT_TRUE(Has(problems->list(), "never aborted"));
  EXPECT_TRUE(Has(problems->list(), "never destroyed"));
}

TEST(StandInTest, RunsOnAThread) {
  StandInOptions options;
  options.make.threaded = true;
  const std::shared_ptr<StandInGpu> gpu = StandInGpu::Create(options).value();
  const Gpu::Stream stream = gpu->CreateStream().value();
  const Gpu::Event event = gpu->CreateEvent().value();
  std::byte* data = gpu->Malloc(64).value();
  ASSERT_TRUE(gpu->Zero(data, 64, stream).ok());
  ASSERT_TRUE(gpu->Record(event, stream).ok());
  ASSERT_TRUE(gpu->Synchronize(event).ok());
  EXPECT_EQ(gpu->Read(data, 64), std::vector<std::byte>(64));
  gpu->DestroyEvent(event);
  gpu->DestroyStream(stream);
  EXPECT_EQ(gpu->problems(), std::vector<std::string>());
}

TEST(StandInDeathTest, TheProcessorCannotTouchItsMemory) {
  Rank rank(nullptr);
  EXPECT_DEATH(*const_cast<volatile std::byte*>(rank.data) = std::byte{1}, "");
}

}  // namespace
}  // namespace prd::testing
