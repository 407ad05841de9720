// A replica on a device against the same one in host memory, bit for bit, on a stand-in for CUDA:
// whatever may run next, runs next.
#include "worker/device/device_memory.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>

#include "common/base/prng.h"
#include "tests/standin/standin_gpu.h"

namespace prd::testing {
namespace {

constexpr std::size_t kPiece = 192;
constexpr std::size_t kRows = 4;

std::shared_ptr<StandInGpu> MakeGpu(std::uint64_t seed) {
  StandInOptions options;
  options.make.memory = 64 << 20;
  options.make.seed = seed;
  return StandInGpu::Create(options).value();
}

// Bytes that are numbers in all dtypes, of any size.
std::vector<std::byte> SomeBytes(Prng* random, std::size_t bytes) {
  std::vector<std::byte> some(bytes);
  for (std::byte& byte : some) byte = static_cast<std::byte>(random->Below(256));
  return some;
}

// NaN of any kind is as good as another: what is compared has none.
std::vector<std::byte> SomeNumbers(Prng* random, const Layout& layout) {
  std::vector<std::byte> some = SomeBytes(random, layout.bytes());
  layout.ForEach(0, layout.bytes(),
                 [&](DType dtype, const std::byte*, std::size_t run, std::size_t at) {
                   const std::size_t size = DTypeSize(dtype);
                   for (std::size_t i = at; i < at + run; i += size) {
                     some[i + size - 1] &= std::byte{0xbf};  // no exponent is the highest
                   }
                 });
  return some;
}

// The same tensors and rows, in host memory and on the device.
class Twins {
 public:
  Twins(std::uint64_t seed, std::shared_ptr<StandInGpu> gpu, int wake = -1)
      : random(seed), gpu_(std::move(gpu)) {
    memory = DeviceMemory::Create(gpu_, wake, kPiece).value();
    user = gpu_->CreateStream().value();
    memory->SetCallerStream(user);
    MakeTensors();
    for (std::size_t i = 0; i < kRows; ++i) {
      here.push_back(host.Allocate(MemoryUse::kResults, layout.bytes()));
      there.push_back(memory->Allocate(MemoryUse::kResults, layout.bytes()));
      if (there.back().data() == nullptr) continue;
      const std::vector<std::byte> bytes = SomeNumbers(&random, layout);
      std::memcpy(here.back().data(), bytes.data(), bytes.size());
      gpu_->Write(there.back().data(), bytes.data(), bytes.size());
    }
  }
  ~Twins() {
    there.clear();
    memory.reset();
    gpu_->DestroyStream(user);
    if (gpu_->device().queued() != 0) gpu_->device().Advance();
    for (const Tensor& tensor : device_tensors_) gpu_->Free(static_cast<std::byte*>(tensor.data));
  }
  Twins(const Twins&) = delete;
  Twins& operator=(const Twins&) = delete;

  StandInGpu& gpu() { return *gpu_; }
  const std::shared_ptr<StandInGpu>& shared_gpu() const { return gpu_; }
  StandInDevice& device() { return gpu_->device(); }
  void ExpectSame() {
    device().Advance();
    for (std::size_t i = 0; i < kRows; ++i) {
      EXPECT_EQ(std::vector<std::byte>(here[i].data(), here[i].data() + here[i].size()),
                gpu_->Read(there[i].data(), there[i].size()))
          << "row " << i;
    }
    std::vector<std::byte> tensors(layout.bytes());
    layout.Read(0, layout.bytes(), tensors.data());
    std::vector<std::byte> found;
    for (const Layout::Piece& piece : on_device.pieces()) {
      const std::vector<std::byte> part = gpu_->Read(piece.data, piece.end - piece.begin);
      found.insert(found.end(), part.begin(), part.end());
    }
    EXPECT_EQ(tensors, found) << "tensors";
    EXPECT_EQ(memory->failure(), Status::Ok());
    EXPECT_EQ(gpu_->problems(), std::vector<std::string>());
  }

  Prng random;
  HostMemory host;
  std::unique_ptr<DeviceMemory> memory;
  Gpu::Stream user = nullptr;
  Layout layout, on_device;
  std::vector<Row> here, there;

 private:
  void MakeTensors() {
    const DType dtypes[] = {DType::kF32, DType::kBF16, DType::kF64, DType::kF16, DType::kF32};
    for (const DType dtype : dtypes) {
      const std::size_t count = 1 + random.Below(120);
      tensors_.push_back(std::vector<std::byte>(count * DTypeSize(dtype)));
      host_tensors_.push_back({tensors_.back().data(), count, dtype});
      device_tensors_.push_back({gpu_->Malloc(tensors_.back().size()).value(), count, dtype});
    }
    layout = Layout(host_tensors_);
    on_device = Layout(device_tensors_);
    const std::vector<std::byte> bytes = SomeNumbers(&random, layout);
    layout.Write(0, bytes.size(), bytes.data());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      gpu_->Write(device_tensors_[i].data, tensors_[i].data(), tensors_[i].size());
    }
  }

  std::shared_ptr<StandInGpu> gpu_;
  std::vector<std::vector<std::byte>> tensors_;
  std::vector<Tensor> host_tensors_, device_tensors_;
};

// Pinned memory beside the same in plain memory. Its owner gives it back at once when it is let go,
// so that the stand-in finds it if that is too early.
struct Staged {
  std::vector<std::byte> plain;
  std::byte* data = nullptr;
  std::shared_ptr<const void> owner;
  std::shared_ptr<Transfer> transfer;
};

class Program {
 public:
  Program(std::uint64_t seed, Twins* twins) : random_(seed), twins_(*twins) {}

  void Step() {
    const std::uint64_t what = random_.Below(10);
    if (what == 0) return Zero();
    if (what == 1) return Resize();
    if (what == 2) return CallersTurn();
    if (what == 3) return Settle();
    Combine();
  }

  // What is in host memory, once it is said to be there.
  void Settle() {
    for (Staged& staged : staged_) {
      if (staged.transfer == nullptr || staged.plain.empty()) continue;
      if (random_.Below(2) == 0) {
        staged.transfer->Wait();
        const bool all = staged.transfer->ready() == staged.plain.size();
        EXPECT_TRUE(all || !twins_.memory->failure().ok());
      }
      const std::size_t ready = staged.transfer->ready();
      ASSERT_LE(ready, staged.plain.size());
      EXPECT_EQ(std::memcmp(staged.plain.data(), staged.data, ready), 0);  // failed, or not
    }
    staged_.clear();
  }

 private:
  Weight AnyWeight() {
    const double some[] = {1, 1, 0.5, -1, 0.3, 0, 1.7};
    const double weight = some[random_.Below(7)];
    return {weight, static_cast<float>(weight)};
  }

  // A range as layout.h wants it; often all.
  std::pair<std::size_t, std::size_t> Range() {
    const std::size_t bytes = twins_.layout.bytes();
    if (random_.Below(2) == 0) return {0, bytes};
    const std::size_t begin = random_.Below(bytes / 8 + 1) * 8;
    const std::size_t end = std::min(bytes, begin + random_.Below(bytes / 8 + 2) * 8);
    return {begin, end - begin};
  }

  Staged* Stage(std::size_t bytes) {
    Staged& staged = staged_.emplace_back();
    staged.plain.resize(bytes);
    if (random_.Below(2) == 0) {
      auto row = std::make_shared<Row>(twins_.memory->AllocateHost(MemoryUse::kResults, bytes + 8));
      staged.data = row->data();
      staged.owner = std::move(row);
    } else {
      const Result<std::byte*> data = twins_.gpu().MallocHost(bytes + 8);
      if (!data.ok()) return nullptr;
      staged.data = *data;
      staged.owner =
          std::shared_ptr<const void>(*data, [gpu = twins_.shared_gpu()](const void* used) {
            gpu->FreeHost(static_cast<std::byte*>(const_cast<void*>(used)));
          });
    }
    return &staged;
  }

  void Combine() {
    for (const Row& row : twins_.there) {
      if (row.data() == nullptr) return;  // its allocation has failed
    }
    const auto [offset, length] = Range();
    std::vector<Memory::Place> to_here, to_there;
    std::vector<Memory::Input> from_here, from_there;
    Staged* out = nullptr;
    std::vector<std::size_t> rows = {0, 1, 2, 3, kRows};  // the last: the tensors
    std::swap(rows[0], rows[random_.Below(5)]);
    std::swap(rows[1], rows[1 + random_.Below(4)]);
    const auto place = [&, offset = offset](std::size_t row, bool here) {
      if (row == kRows) return Memory::Tensors();
      return Memory::In((here ? twins_.here : twins_.there)[row].data() + offset);
    };
    const std::size_t outputs = 1 + random_.Below(2);
    const std::size_t host_output = random_.Below(4);  // of which one, or none
    for (std::size_t i = 0; i < outputs; ++i) {
      if (i == host_output) {
        out = Stage(length);
        if (out == nullptr) return;
        to_here.push_back(Memory::In(out->plain.data()));
        to_there.push_back(Memory::InHost(out->data, out->owner));
      } else {
        to_here.push_back(place(rows[i], true));
        to_there.push_back(place(rows[i], false));
      }
    }
    const std::size_t inputs = random_.Below(4) == 0 ? random_.Below(20) : random_.Below(4);
    for (std::size_t i = 0; i < inputs; ++i) {
      const Weight weight = AnyWeight();
      // The first may be an output; none of the others.
      const bool same = i == 0 && random_.Below(2) == 0;
      if (!same && random_.Below(3) == 0) {
        Staged* staged = StageInput(offset, length, out);
        if (staged == nullptr) return;
        from_here.push_back({Memory::In(staged->plain.data()), weight});
        from_there.push_back({Memory::InHost(staged->data, staged->owner), weight});
        continue;
      }
      const std::size_t row = same ? rows[0] : rows[2 + random_.Below(3)];
      from_here.push_back({place(row, true), weight});
      from_there.push_back({place(row, false), weight});
    }
    const Weight factor = random_.Below(2) == 0 ? Weight{1, 1} : AnyWeight();
    twins_.host.Combine(twins_.layout, offset, length, to_here, from_here, factor);
    const std::shared_ptr<Transfer> transfer =
        twins_.memory->Combine(twins_.on_device, offset, length, to_there, from_there, factor);
    EXPECT_EQ(transfer != nullptr, out != nullptr && length != 0);
    if (out != nullptr) out->transfer = transfer;
    // The caller need not keep the host memory that it gives.
    std::erase_if(staged_, [&](const Staged& staged) {
      return staged.transfer == nullptr || random_.Below(8) == 0;
    });
  }

  // Some numbers; or what an earlier call has put, or will put, into host memory.
  Staged* StageInput(std::size_t offset, std::size_t length, const Staged* out) {
    for (Staged& staged : staged_) {
      const bool here = &staged != out && staged.transfer != nullptr;
      if (here && staged.plain.size() == length && random_.Below(2) == 0) return &staged;
    }
    Staged* staged = Stage(length);
    if (staged == nullptr || length == 0) return staged;
    const std::vector<std::byte> bytes = SomeNumbers(&random_, twins_.layout);
    std::memcpy(staged->plain.data(), bytes.data() + offset, length);
    std::memcpy(staged->data, bytes.data() + offset, length);
    return staged;
  }

  void Zero() {
    const std::size_t row = random_.Below(kRows);
    twins_.host.Zero(twins_.here[row].data(), twins_.here[row].size());
    twins_.memory->Zero(twins_.there[row].data(), twins_.there[row].size());
  }

  // Gone while it is in use, and another one instead.
  void Resize() {
    const std::size_t row = random_.Below(kRows);
    twins_.memory->Size(&twins_.there[row], MemoryUse::kResults, 0);
    twins_.memory->Size(&twins_.there[row], MemoryUse::kResults, twins_.layout.bytes());
    twins_.host.Zero(twins_.here[row].data(), twins_.here[row].size());
    twins_.memory->Zero(twins_.there[row].data(), twins_.there[row].size());
  }

  // The caller's own work on the tensors, ordered by nothing but these two calls.
  void CallersTurn() {
    twins_.memory->GiveToCaller();
    for (const Layout::Piece& piece : twins_.on_device.pieces()) {
      if (random_.Below(2) == 0) continue;
      (void)twins_.gpu().Zero(piece.data, piece.end - piece.begin, twins_.user);
      for (const Layout::Piece& here : twins_.layout.pieces()) {
        if (here.begin == piece.begin) std::memset(here.data, 0, here.end - here.begin);
      }
    }
    twins_.memory->TakeFromCaller();
  }

  Prng random_;
  Twins& twins_;
  std::deque<Staged> staged_;
};

TEST(DeviceMemoryTest, RandomProgramsGiveTheBitsOfHostMemory) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    Twins twins(seed, MakeGpu(seed));
    Program program(seed, &twins);
    for (int i = 0; i < 60; ++i) {
      program.Step();
      for (std::uint64_t turns = twins.random.Below(12); turns > 0; --turns) twins.device().Turn();
    }
    program.Settle();
    twins.ExpectSame();
    if (HasFailure()) return;
  }
}

// Everything that the device does, and everything that is asked of it, may be what fails.
class Failing {
 public:
  explicit Failing(std::function<void(StandInDevice&, std::uint64_t)> order)
      : order_(std::move(order)) {}

  // Whether the k-th is one of the program's.
  bool At(std::uint64_t k) {
    const int wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    const std::shared_ptr<StandInGpu> gpu = MakeGpu(k);
    bool failed = false;
    {
      Twins twins(k % 5, gpu, wake);
      order_(twins.device(), k);
      Program program(k % 5, &twins);
      for (int i = 0; i < 12; ++i) {
        program.Step();
        twins.device().Turn();
      }
      twins.device().Advance();
      twins.memory->Sweep();
      program.Settle();
      (void)twins.memory->WaitForCaller();
      failed = !twins.memory->failure().ok();
      std::uint64_t told = 0;
      EXPECT_TRUE(!failed || read(wake, &told, sizeof told) == sizeof told);
    }
    EXPECT_EQ(gpu->problems(), std::vector<std::string>());
    close(wake);
    return failed;
  }

 private:
  std::function<void(StandInDevice&, std::uint64_t)> order_;
};

void ExpectFailures(const std::function<void(StandInDevice&, std::uint64_t)>& order,
                    std::uint64_t most) {
  Failing failing(order);
  std::uint64_t failures = 0;
  for (std::uint64_t k = 1; k <= most; ++k) {
    SCOPED_TRACE(k);
    failures += failing.At(k) ? 1 : 0;
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(failures, 0U);
}

TEST(DeviceMemoryTest, AnyCallMayFail) {
  ExpectFailures([](StandInDevice& device, std::uint64_t k) { device.FailCall(k); }, 400);
}

TEST(DeviceMemoryTest, AnyOperationMayFail) {
  ExpectFailures([](StandInDevice& device, std::uint64_t k) { device.FailOperation(k); }, 200);
}

TEST(DeviceMemoryTest, AnyAllocationMayFindNoMemory) {
  ExpectFailures([](StandInDevice& device, std::uint64_t k) { device.FailMalloc(k); }, 60);
}

TEST(DeviceMemoryTest, SaysWhatItHadNoMemoryFor) {
  Twins twins(1, MakeGpu(0));
  twins.device().FailMalloc(1);
  const Row row = twins.memory->Allocate(MemoryUse::kResults, 1000);
  EXPECT_EQ(row.data(), nullptr);
  EXPECT_EQ(row.size(), 1000U);
  EXPECT_EQ(twins.memory->failure().code(), Code::kResourceExhausted);
  const std::string message = twins.memory->failure().message();
  EXPECT_NE(message.find("stand-in for a GPU"), std::string::npos) << message;
  EXPECT_NE(message.find("has no place for 1000 bytes of \"results\""), std::string::npos)
      << message;
  Row pinned = twins.memory->AllocateHost(MemoryUse::kResults, 8);
  std::memset(pinned.data(), 0, 8);  // whatever is done with it on the processor
}

TEST(DeviceMemoryTest, TellsOfEachPieceThatIsInHostMemory) {
  const int wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Twins twins(3, MakeGpu(seed), wake);
    const std::size_t bytes = twins.layout.bytes();
    const Row row = twins.memory->AllocateHost(MemoryUse::kResults, bytes);
    const std::shared_ptr<Transfer> transfer =
        twins.memory->Combine(twins.on_device, Memory::InHost(row.data()), {{Memory::Tensors()}});
    std::uint64_t told = 0, pieces = 0;
    EXPECT_EQ(transfer->ready(), 0U);
    while (twins.device().Turn()) {
      if (read(wake, &told, sizeof told) != sizeof told) continue;
      EXPECT_EQ(told, 1U);
      EXPECT_GE(transfer->ready(), std::min(bytes, ++pieces * kPiece));
    }
    EXPECT_EQ(pieces, (bytes + kPiece - 1) / kPiece);
    EXPECT_GT(pieces, 2U);
    twins.ExpectSame();
  }
  close(wake);
}

// What is asked about values gets the answer of the same tensors in host memory.
TEST(DeviceMemoryTest, ReadsValuesThroughTheHost) {
  HostMemory host;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    Twins twins(seed, MakeGpu(seed));
    EXPECT_EQ(twins.memory->DigestOf(twins.on_device), host.DigestOf(twins.layout));
    EXPECT_EQ(twins.memory->FirstNonfinite(twins.on_device), std::nullopt);
  }
  // More than is on its way at once, in tensors of several dtypes.
  const std::shared_ptr<StandInGpu> gpu = MakeGpu(1);
  const std::unique_ptr<DeviceMemory> memory = DeviceMemory::Create(gpu, -1).value();
  const std::size_t counts[] = {900'003, 1, 1'500'001};
  const DType dtypes[] = {DType::kF32, DType::kBF16, DType::kF64};
  std::vector<std::vector<std::byte>> here;
  std::vector<Tensor> on_host, on_device;
  Prng random(3);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::size_t bytes = counts[i] * DTypeSize(dtypes[i]);
    here.emplace_back(bytes);
    for (std::size_t at = 0; at < bytes; ++at) here[i][at] = std::byte(at % 61);
    std::byte* there = gpu->Malloc(bytes).value();
    gpu->Write(there, here[i].data(), bytes);
    on_host.push_back({here[i].data(), counts[i], dtypes[i]});
    on_device.push_back({there, counts[i], dtypes[i]});
  }
  const Layout there(on_device);
  EXPECT_EQ(memory->DigestOf(there), host.DigestOf(Layout(on_host)));
  EXPECT_EQ(memory->FirstNonfinite(there), std::nullopt);
  const float infinite = std::numeric_limits<float>::infinity();
  for (const std::size_t place : {counts[0] - 1, std::size_t{77'777}}) {
    gpu->Write(static_cast<std::byte*>(on_device[0].data) + 4 * place, &infinite, 4);
    EXPECT_EQ(memory->FirstNonfinite(there), (Layout::Element{0, place}));
    std::memcpy(here[0].data() + 4 * place, &infinite, 4);
    EXPECT_EQ(memory->DigestOf(there), host.DigestOf(Layout(on_host)));
  }
  for (const Tensor& tensor : on_device) gpu->Free(static_cast<std::byte*>(tensor.data));
}

TEST(DeviceMemoryTest, WaitsForTheCallersStream) {
  Twins twins(4, MakeGpu(7));
  const Layout::Piece& piece = twins.on_device.pieces().front();
  const std::size_t bytes = piece.end - piece.begin;
  ASSERT_TRUE(twins.gpu().Zero(piece.data, bytes, twins.user).ok());
  EXPECT_TRUE(twins.memory->WaitForCaller().ok());
  EXPECT_EQ(twins.gpu().Read(piece.data, bytes), std::vector<std::byte>(bytes));
}

TEST(DeviceMemoryTest, TheDefaultStreamIsTheCallersUnlessItNamesOne) {
  Twins twins(5, MakeGpu(8));
  twins.memory->SetCallerStream(nullptr);
  const Layout::Piece& piece = twins.on_device.pieces().front();
  const std::size_t bytes = piece.end - piece.begin;
  ASSERT_TRUE(twins.gpu().Zero(piece.data, bytes, nullptr).ok());
  twins.memory->TakeFromCaller();
  const Row row = twins.memory->AllocateHost(MemoryUse::kResults, twins.layout.bytes());
  twins.memory->Combine(twins.on_device, Memory::InHost(row.data()), {{Memory::Tensors()}})->Wait();
  EXPECT_EQ(std::vector<std::byte>(row.data(), row.data() + bytes), std::vector<std::byte>(bytes));
}

TEST(DeviceMemoryTest, RowsAndTransfersOutliveIt) {
  const std::shared_ptr<StandInGpu> gpu = MakeGpu(9);
  Row device, host;
  std::shared_ptr<Transfer> transfer;
  {
    Twins twins(6, gpu);
    device = twins.memory->Allocate(MemoryUse::kResults, 64);
    host = twins.memory->AllocateHost(MemoryUse::kResults, twins.layout.bytes());
    transfer =
        twins.memory->Combine(twins.on_device, Memory::InHost(host.data()), {{Memory::Tensors()}});
  }
  transfer->Wait();
  EXPECT_EQ(transfer->ready(), host.size());
  device = Row();
  host = Row();
  transfer.reset();
  EXPECT_EQ(gpu->device().allocations(), 0U);
  EXPECT_EQ(gpu->handles(), 0U);
  EXPECT_EQ(gpu->problems(), std::vector<std::string>());
}

TEST(DeviceMemoryTest, LetsGoOfHostPlacesWhenTheyAreCopied) {
  Twins twins(7, MakeGpu(0));
  const std::size_t bytes = twins.layout.bytes();
  const auto in = std::make_shared<Row>(twins.memory->AllocateHost(MemoryUse::kResults, bytes));
  const auto out = std::make_shared<Row>(twins.memory->AllocateHost(MemoryUse::kResults, bytes));
  const auto skipped =
      std::make_shared<Row>(twins.memory->AllocateHost(MemoryUse::kResults, bytes));
  std::memset(in->data(), 0, bytes);
  (void)twins.memory->Combine(
      twins.on_device, Memory::InHost(out->data(), out),
      {{Memory::InHost(in->data(), in)}, {Memory::InHost(skipped->data(), skipped), {0, 0}}});
  twins.memory->Sweep();
  EXPECT_EQ(in.use_count(), 2);
  EXPECT_EQ(out.use_count(), 2);
  EXPECT_EQ(skipped.use_count(), 1);
  twins.device().Advance();
  EXPECT_EQ(in.use_count(), 2);  // by a call
  twins.memory->Sweep();
  EXPECT_EQ(in.use_count(), 1);
  EXPECT_EQ(out.use_count(), 1);
}

TEST(DeviceMemoryTest, ForgetsLayoutsThatAreNotUsed) {
  Twins twins(8, MakeGpu(10));
  std::byte* tensor = static_cast<std::byte*>(twins.on_device.pieces().front().data);
  std::vector<const Gpu::Table*> tables;
  for (std::size_t count = 1; count <= 8; ++count) {
    const Layout layout({{tensor, count % 2 + 1, DType::kF16}, {tensor, count, DType::kBF16}});
    tables.push_back(twins.memory->TableOf(layout));
    EXPECT_NE(tables.back(), nullptr);
    EXPECT_EQ(twins.memory->TableOf(layout), tables.back());
  }
  for (int i = 0; i < 100; ++i) {
    twins.memory->TableOf(twins.on_device);
    twins.memory->Combine(twins.on_device, Memory::In(twins.there[0].data()), {});
    const Layout other({{tensor, 1 + static_cast<std::size_t>(i) % 12, DType::kF16}});
    twins.memory->Combine(other, Memory::In(twins.there[0].data()), {});
  }
  twins.host.Zero(twins.here[0].data(), twins.here[0].size());
  twins.ExpectSame();
}

// As in a session: one thread steps, another looks after what is on its way.
TEST(DeviceMemoryTest, IsUsedByTwoThreads) {
  StandInOptions options;
  options.make.threaded = true;
  options.make.seed = 3;
  Twins twins(9, StandInGpu::Create(options).value());
  const std::size_t bytes = twins.layout.bytes();
  std::mutex mutex;
  std::deque<std::pair<std::shared_ptr<Row>, std::shared_ptr<Transfer>>> copies;
  std::atomic<bool> over = false;
  std::thread other([&] {
    while (true) {
      const bool last = over;
      std::pair<std::shared_ptr<Row>, std::shared_ptr<Transfer>> copy;
      {
        const std::lock_guard lock(mutex);
        if (copies.empty() && last) return;
        if (copies.empty()) continue;
        copy = std::move(copies.front());
        copies.pop_front();
      }
      while (copy.second->ready() < bytes / 2) std::this_thread::yield();
      copy.second->Wait();
      EXPECT_EQ(copy.second->ready(), bytes);
      EXPECT_EQ(copy.first->data()[0], copy.first->data()[bytes]);
    }
  });
  const Layout::Piece& first = twins.on_device.pieces().front();
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(twins.memory->WaitForCaller().ok());
    twins.memory->TakeFromCaller();
    const auto row =
        std::make_shared<Row>(twins.memory->AllocateHost(MemoryUse::kResults, bytes + 1));
    row->data()[bytes] = std::byte{0};
    if (i == 0) twins.memory->Zero(first.data, first.end - first.begin);
    std::shared_ptr<Transfer> transfer = twins.memory->Combine(
        twins.on_device, Memory::InHost(row->data(), row), {{Memory::Tensors()}});
    twins.memory->GiveToCaller();
    const std::lock_guard lock(mutex);
    copies.emplace_back(row, std::move(transfer));
  }
  over = true;
  other.join();
  EXPECT_EQ(twins.memory->failure(), Status::Ok());
  EXPECT_EQ(twins.gpu().problems(), std::vector<std::string>());
}

}  // namespace
}  // namespace prd::testing
