// A replica on a device against the same one in host memory, bit for bit, on a stand-in for CUDA:
// whatever may run next, runs next.
#include "worker/device/device_memory.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

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
      here.push_back(host.Allocate(layout.bytes()));
      there.push_back(memory->Allocate(layout.bytes()));
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
    for (const Tensor& tensor : device_tensors_) gpu_->Free(static_cast<std::byte*>(tensor.data));
  }
  Twins(const Twins&) = delete;
  Twins& operator=(const Twins&) = delete;

  StandInGpu& gpu() { return *gpu_; }
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
      const std::size_t count = 1 + random.Below(60);
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

// Rows of pinned memory beside the same in plain memory, with owners that are counted.
struct Staged {
  std::vector<std::byte> plain;
  Row row;
  std::shared_ptr<int> owner = std::make_shared<int>(0);
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
      if (staged.transfer == nullptr) continue;
      if (random_.Below(2) == 0) {
        staged.transfer->Wait();
        EXPECT_EQ(staged.transfer->ready(), staged.plain.size());
      }
      const std::size_t ready = staged.transfer->ready();
      ASSERT_LE(ready, staged.plain.size());
      EXPECT_TRUE(std::equal(staged.plain.begin(),
                             staged.plain.begin() + static_cast<std::ptrdiff_t>(ready),
                             staged.row.data()));
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
    staged.row = twins_.memory->AllocateHost(std::max<std::size_t>(bytes, 1));
    staged.plain.resize(bytes);
    return &staged;
  }

  void Combine() {
    const auto [offset, length] = Range();
    std::vector<Memory::Place> to_here, to_there;
    std::vector<Memory::Input> from_here, from_there;
    Staged* out = nullptr;
    std::vector<std::size_t> rows = {0, 1, 2, 3, kRows};  // the last: the tensors
    std::swap(rows[0], rows[random_.Below(5)]);
    std::swap(rows[1], rows[1 + random_.Below(4)]);
    const auto place = [&](std::size_t row, bool here) {
      if (row == kRows) return Memory::Tensors();
      return Memory::In((here ? twins_.here : twins_.there)[row].data() + offset);
    };
    const std::size_t outputs = 1 + random_.Below(2);
    const std::size_t host_output = random_.Below(4);  // of which one, or none
    for (std::size_t i = 0; i < outputs; ++i) {
      if (i == host_output) {
        out = Stage(length);
        to_here.push_back(Memory::In(out->plain.data()));
        to_there.push_back(Memory::InHost(out->row.data(), out->owner));
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
        Staged* staged = Stage(length);
        const std::vector<std::byte> bytes = SomeNumbers(&random_, twins_.layout);
        std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), length,
                    staged->plain.begin());
        std::copy_n(staged->plain.begin(), length, staged->row.data());
        from_here.push_back({Memory::In(staged->plain.data()), weight});
        from_there.push_back({Memory::InHost(staged->row.data(), staged->owner), weight});
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
  }

  void Zero() {
    const std::size_t row = random_.Below(kRows);
    twins_.host.Zero(twins_.here[row].data(), twins_.here[row].size());
    twins_.memory->Zero(twins_.there[row].data(), twins_.there[row].size());
  }

  // Gone while it is in use, and another one instead.
  void Resize() {
    const std::size_t row = random_.Below(kRows);
    twins_.memory->Size(&twins_.there[row], 0);
    twins_.memory->Size(&twins_.there[row], twins_.layout.bytes());
    twins_.host.Zero(twins_.here[row].data(), twins_.here[row].size());
    twins_.memory->Zero(twins_.there[row].data(), twins_.there[row].size());
  }

  // The caller's own work on the tensors, ordered by nothing but these two calls.
  void CallersTurn() {
    twins_.memory->GiveToCaller();
    for (const Layout::Piece& piece : twins_.on_device.pieces()) {
      if (random_.Below(2) == 0) continue;
      ASSERT_TRUE(twins_.gpu().Zero(piece.data, piece.end - piece.begin, twins_.user).ok());
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
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
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

}  // namespace
}  // namespace prd::testing
