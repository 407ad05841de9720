// The stand-in as a module, between processes.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "worker/device/gpu.h"

namespace prd::testing {
namespace {

const std::string kModule = std::string(PRD_BIN_DIR) + "/libprd_standin_module.so";

std::unique_ptr<Gpu> Open() {
  void* module = dlopen(kModule.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) return nullptr;
  const auto open = reinterpret_cast<GpuOpen>(dlsym(module, "prd_gpu_open"));
  char error[256] = "";
  return std::unique_ptr<Gpu>(open(kGpuInterface, PRD_VERSION, 0, error, sizeof error));
}

// One rank: sums rank + 1 with the others on a thread-driven device, as often as asked. Returns 0
// if the sums were right.
int Sums(Gpu* gpu, const Gpu::UniqueId& id, int ranks, int rank, int times) {
  const Gpu::Comm comm = gpu->CommInit(ranks, id, rank);
  while (gpu->CommBusy(comm).value()) std::this_thread::yield();
  const Gpu::Stream stream = gpu->CreateStream().value();
  const Gpu::Event event = gpu->CreateEvent().value();
  std::byte* device = gpu->Malloc(64).value();
  std::byte* pinned = gpu->MallocHost(64).value();
  bool right = true;
  for (int i = 0; i < times && right; ++i) {
    const float own = static_cast<float>(rank + 1 + i);
    std::memcpy(pinned, &own, sizeof own);
    right = gpu->Copy(device, pinned, 4, stream).ok() &&
            gpu->AllReduce(comm, device, device, 1, DType::kF32, Weight{1, 1}, stream).ok() &&
            gpu->Copy(pinned, device, 4, stream).ok() && gpu->Record(event, stream).ok() &&
            gpu->Synchronize(event).ok();
    float sum = 0;
    std::memcpy(&sum, pinned, sizeof sum);
    right = right && sum == static_cast<float>(ranks * (ranks + 1) / 2 + i * ranks);
  }
  gpu->CommAbort(comm);
  gpu->DestroyStream(stream);
  gpu->DestroyEvent(event);
  gpu->Free(device);
  gpu->FreeHost(pinned);
  while (gpu->aborting() != 0) std::this_thread::yield();
  return right ? 0 : 1;
}

pid_t Fork(const Gpu::UniqueId& id, int ranks, int rank, int times) {
  const pid_t child = fork();
  if (child != 0) return child;
  // A process of its own begins with a program of its own: threads are not there after fork.
  std::string text;
  for (const std::byte byte : id) text += std::to_string(static_cast<int>(byte)) + ",";
  setenv("PRD_STANDIN_TEST_ID", text.c_str(), 1);
  const std::string numbers =
      std::to_string(ranks) + "," + std::to_string(rank) + "," + std::to_string(times);
  setenv("PRD_STANDIN_TEST_RANK", numbers.c_str(), 1);
  execl("/proc/self/exe", "standin_module_test", "--gtest_filter=Rank.OfAnotherProcess", nullptr);
  _exit(2);
}

std::vector<int> Numbers(const char* text) {
  std::vector<int> numbers;
  for (char* at = nullptr; *text != '\0'; text = *at == ',' ? at + 1 : at) {
    numbers.push_back(static_cast<int>(std::strtol(text, &at, 10)));
  }
  return numbers;
}

// What Fork runs; nothing where it is run as a test.
TEST(Rank, OfAnotherProcess) {
  const char* rank = std::getenv("PRD_STANDIN_TEST_RANK");
  if (rank == nullptr) GTEST_SKIP() << "run by the other tests";
  Gpu::UniqueId id{};
  const std::vector<int> bytes = Numbers(std::getenv("PRD_STANDIN_TEST_ID"));
  for (std::size_t i = 0; i < id.size(); ++i) id[i] = static_cast<std::byte>(bytes[i]);
  const std::vector<int> numbers = Numbers(rank);
  const std::unique_ptr<Gpu> gpu = Open();
  ASSERT_NE(gpu, nullptr);
  EXPECT_EQ(Sums(gpu.get(), id, numbers[0], numbers[1], numbers[2]), 0);
}

Gpu::UniqueId MakeId(Gpu* gpu) {
  gpu->MakeUniqueId();
  std::unique_ptr<Gpu::Id> id;
  while ((id = gpu->TakeUniqueId()) == nullptr) std::this_thread::yield();
  EXPECT_TRUE(id->status.ok());
  return id->id;
}

int StatusOf(pid_t child) {
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(StandInModuleTest, SumsBetweenProcesses) {
  const std::unique_ptr<Gpu> gpu = Open();
  ASSERT_NE(gpu, nullptr);
  EXPECT_NE(gpu->name().find("stand-in"), std::string::npos);
  const Gpu::UniqueId id = MakeId(gpu.get());
  const pid_t one = Fork(id, 3, 1, 50);
  const pid_t two = Fork(id, 3, 2, 50);
  EXPECT_EQ(Sums(gpu.get(), id, 3, 0, 50), 0);
  EXPECT_EQ(StatusOf(one), 0);
  EXPECT_EQ(StatusOf(two), 0);
}

TEST(StandInModuleTest, AProcessThatIsGoneIsNotMissedUntilTheOthersAbort) {
  const std::unique_ptr<Gpu> gpu = Open();
  ASSERT_NE(gpu, nullptr);
  const Gpu::UniqueId id = MakeId(gpu.get());
  const pid_t child = Fork(id, 2, 1, 1'000'000);
  const Gpu::Comm comm = gpu->CommInit(2, id, 0);
  while (gpu->CommBusy(comm).value()) std::this_thread::yield();
  kill(child, SIGKILL);
  (void)StatusOf(child);
  const Gpu::Stream stream = gpu->CreateStream().value();
  const Gpu::Event event = gpu->CreateEvent().value();
  std::byte* device = gpu->Malloc(64).value();
  // Its first call may have been made; not the second.
  ASSERT_TRUE(gpu->AllReduce(comm, device, device, 1, DType::kF32, Weight{1, 1}, stream).ok());
  ASSERT_TRUE(gpu->AllReduce(comm, device, device, 1, DType::kF32, Weight{1, 1}, stream).ok());
  ASSERT_TRUE(gpu->Record(event, stream).ok());
  EXPECT_FALSE(gpu->Done(event).value());
  EXPECT_FALSE(gpu->CommBusy(comm).value());
  gpu->CommAbort(comm);
  EXPECT_TRUE(gpu->Synchronize(event).ok());
  gpu->DestroyStream(stream);
  gpu->DestroyEvent(event);
  gpu->Free(device);
}

TEST(StandInModuleTest, MemoryOfOneGpuIsValidInAnother) {
  const std::unique_ptr<Gpu> one = Open();
  const std::unique_ptr<Gpu> other = Open();
  ASSERT_NE(one, nullptr);
  ASSERT_NE(other, nullptr);
  std::byte* data = one->Malloc(64).value();
  EXPECT_TRUE(other->CheckPointer(data).ok());
  EXPECT_TRUE(other->Zero(data, 64, nullptr).ok());
  const Gpu::Event event = other->CreateEvent().value();
  EXPECT_TRUE(other->Record(event, nullptr).ok());
  EXPECT_TRUE(other->Synchronize(event).ok());
  other->DestroyEvent(event);
  one->Free(data);
}

}  // namespace
}  // namespace prd::testing
