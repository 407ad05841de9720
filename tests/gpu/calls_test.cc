// Memory, streams and events.
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

#include "common/base/prng.h"
#include "tests/gpu/gpu_test.h"

namespace prd::testing::calls_test {
namespace {

void Fill(std::byte* data, std::size_t bytes, std::uint64_t seed) {
  Prng random(seed);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(random.Next());
}

TEST(CallsTest, SaysWhatItIs) {
  Gpu& gpu = *TheGpu();
  EXPECT_NE(gpu.name().find("(cuda:"), std::string::npos) << gpu.name();
  EXPECT_FALSE(gpu.cuda_version().empty());
  EXPECT_EQ(gpu.nccl().ok(), !gpu.nccl_version().empty());
}

TEST(CallsTest, KnowsMemoryOfTheDeviceFromOther) {
  Gpu& gpu = *TheGpu();
  Bytes bytes(gpu, 4096);
  EXPECT_TRUE(gpu.CheckPointer(bytes.device()).ok());
  EXPECT_TRUE(gpu.CheckPointer(bytes.device() + 4095).ok());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes.device()) % 256, 0u);
  EXPECT_FALSE(gpu.CheckPointer(bytes.host()).ok());
  int here = 0;
  EXPECT_FALSE(gpu.CheckPointer(&here).ok());
  EXPECT_FALSE(gpu.CheckPointer(nullptr).ok());
}

TEST(CallsTest, CopiesThereWithinAndBack) {
  Gpu& gpu = *TheGpu();
  OnStream stream(gpu);
  for (const std::size_t size : {1u, 7u, 4096u, (8u << 20) + 3}) {
    Bytes first(gpu, size), second(gpu, size);
    Fill(first.host(), size, size);
    ASSERT_OK(first.Put(stream));
    ASSERT_OK(gpu.Copy(second.device(), first.device(), size, stream));
    ASSERT_OK(second.Get(stream));
    EXPECT_EQ(std::memcmp(first.host(), second.host(), size), 0) << size;
    ASSERT_OK(gpu.Zero(second.device(), size / 2, stream));
    ASSERT_OK(second.Get(stream));
    std::memset(first.host(), 0, size / 2);
    EXPECT_EQ(std::memcmp(first.host(), second.host(), size), 0) << size;
    ASSERT_OK(gpu.Copy(second.device(), first.device(), 0, stream));
    ASSERT_OK(stream.Wait());
  }
}

// The second stream's copies come after the event of the first.
TEST(CallsTest, EventsOrderStreams) {
  Gpu& gpu = *TheGpu();
  constexpr std::size_t kSize = 32 << 20;
  OnStream first(gpu), second(gpu);
  Bytes from(gpu, kSize), to(gpu, kSize);
  const Gpu::Event event = gpu.CreateEvent().value();
  EXPECT_TRUE(gpu.Done(event).value()) << "one never recorded";
  for (std::uint64_t round = 1; round <= 5; ++round) {
    Fill(from.host(), kSize / 64, round);
    ASSERT_OK(gpu.Copy(from.device(), from.host(), kSize, first));
    ASSERT_OK(gpu.Record(event, first));
    ASSERT_OK(gpu.Wait(second, event));
    ASSERT_OK(gpu.Copy(to.device(), from.device(), kSize, second));
    ASSERT_OK(to.Get(second));
    EXPECT_TRUE(gpu.Done(event).value());
    EXPECT_EQ(std::memcmp(from.host(), to.host(), kSize), 0) << round;
  }
  gpu.DestroyEvent(event);
}

TEST(CallsTest, WritesAnEventfdWhenTheStreamGetsThere) {
  Gpu& gpu = *TheGpu();
  OnStream stream(gpu);
  Bytes bytes(gpu, 1 << 20);
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  ASSERT_GE(fd, 0);
  const Gpu::Event event = gpu.CreateEvent().value();
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK(gpu.Zero(bytes.device(), bytes.size(), stream));
    ASSERT_OK(gpu.Record(event, stream));
    ASSERT_OK(gpu.Notify(stream, fd));
    pollfd wait = {.fd = fd, .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&wait, 1, 60'000), 1);
    EXPECT_TRUE(gpu.Done(event).value()) << "what was before it is done";
    std::uint64_t count = 0;
    ASSERT_EQ(read(fd, &count, sizeof(count)), static_cast<ssize_t>(sizeof(count)));
    EXPECT_EQ(count, 1u);
  }
  ASSERT_OK(stream.Wait());
  gpu.DestroyEvent(event);
  close(fd);
}

TEST(CallsTest, AnyThreadMayCall) {
  Gpu& gpu = *TheGpu();
  std::vector<std::thread> threads;
  std::vector<int> right(4, 0);
  for (std::size_t t = 0; t < right.size(); ++t) {
    threads.emplace_back([&gpu, &right, t] {
      OnStream stream(gpu);
      Bytes bytes(gpu, 100'000);
      Fill(bytes.host(), bytes.size(), t);
      const std::vector<std::byte> put(bytes.host(), bytes.host() + bytes.size());
      if (!bytes.Put(stream).ok()) return;
      std::memset(bytes.host(), 0, bytes.size());
      if (!bytes.Get(stream).ok()) return;
      right[t] = std::memcmp(put.data(), bytes.host(), put.size()) == 0 ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, std::vector<int>(4, 1));
}

TEST(CallsTest, TooMuchMemoryIsRefusedAndNoHarmDone) {
  Gpu& gpu = *TheGpu();
  const auto free = gpu.FreeMemory();
  ASSERT_TRUE(free.ok());
  const auto much = gpu.Malloc(*free + (std::size_t{1} << 40));
  EXPECT_EQ(much.status().code(), Code::kResourceExhausted) << much.status().ToString();
  OnStream stream(gpu);
  Bytes bytes(gpu, 64);
  EXPECT_TRUE(bytes.Put(stream).ok());
}

}  // namespace
}  // namespace prd::testing::calls_test
