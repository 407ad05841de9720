// DeviceMemory against HostMemory, host operands and the caller's stream included.
#include <array>
#include <string>
#include <utility>

#include "common/base/prng.h"
#include "tests/gpu/gpu_test.h"
#include "worker/device/device_memory.h"

namespace prd::testing::memory_test {
namespace {

Weight One(double weight) { return {weight, static_cast<float>(weight)}; }

// Tensors, rows of the device and rows of host memory; and all of them again as HostMemory has
// them.
class Twins {
 public:
  static constexpr int kTensors = 0, kRows = 3, kHostRows = 2, kPlaces = 1 + kRows + kHostRows;

  explicit Twins(std::size_t piece_bytes)
      : memory(DeviceMemory::Create(TheGpu(), -1, piece_bytes).value()),
        tensors_(*TheGpu(), kBytes),
        look_(*TheGpu(), kBytes) {
    Prng random(11);
    for (auto& place : expected_) place = Numbers(&random);
    std::vector<Tensor> host, device;
    std::size_t at = 0;
    for (const auto& [dtype, count] : kModel) {
      host.push_back({expected_[kTensors].data() + at, count, dtype});
      device.push_back({tensors_.device() + at, count, dtype});
      at += count * DTypeSize(dtype);
    }
    host_layout = Layout(host);
    layout = Layout(device);
    for (int i = 0; i < kRows; ++i) rows_.push_back(memory->Allocate(MemoryUse::kResults, kBytes));
    for (int i = 0; i < kHostRows; ++i)
      rows_.push_back(memory->AllocateHost(MemoryUse::kResults, kBytes));
    for (int place = 0; place < kPlaces; ++place) Put(place);
  }
  // What is asked of it is done before its rows go.
  ~Twins() {
    for (int place = 0; place < kPlaces; ++place) Get(place);
    rows_.clear();
  }

  static bool IsHost(int place) { return place > kRows; }
  Memory::Place Device(int place, std::size_t offset) {
    if (place == kTensors) return Memory::Tensors();
    std::byte* data = Data(place) + offset;
    return IsHost(place) ? Memory::InHost(data) : Memory::In(data);
  }
  Memory::Place Host(int place, std::size_t offset) {
    if (place == kTensors) return Memory::Tensors();
    return Memory::In(expected_[static_cast<std::size_t>(place)].data() + offset);
  }

  void ExpectSame(const std::string& what) {
    for (int place = 0; place < kPlaces; ++place) {
      const std::vector<std::byte> found = Get(place);
      const auto& expected = expected_[static_cast<std::size_t>(place)];
      ASSERT_EQ(std::memcmp(found.data(), expected.data(), kBytes), 0)
          << what << ": differs in place " << place;
    }
    ASSERT_TRUE(memory->failure().ok()) << memory->failure().ToString();
  }

  static constexpr std::array<std::pair<DType, std::size_t>, 4> kModel = {
      {{DType::kF64, 1003}, {DType::kF32, 1'500'001}, {DType::kF16, 70'001}, {DType::kBF16, 9}}};
  static constexpr std::size_t kBytes = 8 * 1003 + 4 * 1'500'001 + 2 * 70'001 + 2 * 9;

  std::unique_ptr<DeviceMemory> memory;
  Layout host_layout, layout;

 private:
  // Near 1 in every dtype: no NaN.
  static std::vector<std::byte> Numbers(Prng* random) {
    std::vector<std::byte> row(kBytes);
    std::size_t at = 0;
    const auto put = [&](const auto& value) {
      std::memcpy(row.data() + at, &value, sizeof(value));
      at += sizeof(value);
    };
    for (const auto& [dtype, count] : kModel) {
      for (std::size_t i = 0; i < count; ++i) {
        const double number = random->Unit() + 0.25;
        const auto bits = static_cast<std::uint16_t>(random->Next() & 0x83ff);
        switch (dtype) {
          case DType::kF64:
            put(number);
            break;
          case DType::kF32:
            put(static_cast<float>(number));
            break;
          case DType::kF16:
          case DType::kBF16:
            put(static_cast<std::uint16_t>(bits | 0x3800));
            break;
        }
      }
    }
    return row;
  }

  std::byte* Data(int place) {
    return place == kTensors ? tensors_.device()
                             : rows_[static_cast<std::size_t>(place - 1)].data();
  }

  void Put(int place) {
    const auto& from = expected_[static_cast<std::size_t>(place)];
    if (IsHost(place)) {
      std::memcpy(Data(place), from.data(), kBytes);
      return;
    }
    std::memcpy(look_.host(), from.data(), kBytes);
    ASSERT_OK(TheGpu()->Copy(Data(place), look_.host(), kBytes, memory->stream()));
    WaitForStream();
  }

  std::vector<std::byte> Get(int place) {
    if (IsHost(place)) return {Data(place), Data(place) + kBytes};
    EXPECT_TRUE(TheGpu()->Copy(look_.host(), Data(place), kBytes, memory->stream()).ok());
    WaitForStream();
    return {look_.host(), look_.host() + kBytes};
  }

  void WaitForStream() {
    const Gpu::Event event = TheGpu()->CreateEvent().value();
    EXPECT_TRUE(TheGpu()->Record(event, memory->stream()).ok());
    EXPECT_TRUE(TheGpu()->Synchronize(event).ok());
    TheGpu()->DestroyEvent(event);
  }

  Bytes tensors_, look_;
  std::array<std::vector<std::byte>, kPlaces> expected_;
  std::vector<Row> rows_;  // those of the device, then those of host memory
};

void ExpectRandomCombinesSame(std::size_t piece_bytes, int operations) {
  Twins twins(piece_bytes);
  Prng random(piece_bytes);
  const std::array<double, 5> weights = {1, 0.5, 1.0 / 3, 0, 0.25};
  for (int i = 0; i < operations; ++i) {
    std::array<int, Twins::kPlaces> places;
    for (int p = 0; p < Twins::kPlaces; ++p) places[static_cast<std::size_t>(p)] = p;
    for (std::size_t p = places.size() - 1; p > 0; --p) {
      std::swap(places[p], places[random.Below(p + 1)]);
    }
    const std::size_t offset = 8 * random.Below(Twins::kBytes / 8);
    const std::size_t length = Twins::kBytes - offset;
    const std::size_t inputs = random.Below(4);
    std::vector<Memory::Place> to, host_to;
    std::vector<Memory::Input> from, host_from;
    for (std::size_t k = 0; k < inputs; ++k) {
      const Weight weight = One(weights[random.Below(weights.size())]);
      from.push_back({twins.Device(places[k], offset), weight});
      host_from.push_back({twins.Host(places[k], offset), weight});
    }
    const bool second = !Twins::IsHost(places[inputs]) || !Twins::IsHost(places[inputs + 1]);
    for (std::size_t k = 0; k < (second ? 2u : 1u); ++k) {
      to.push_back(twins.Device(places[inputs + k], offset));
      host_to.push_back(twins.Host(places[inputs + k], offset));
    }
    const Weight factor = One(random.Below(2) == 0 ? 1 : 0.75);
    const auto transfer = twins.memory->Combine(twins.layout, offset, length, to, from, factor);
    HostMemory().Combine(twins.host_layout, offset, length, host_to, host_from, factor);
    if (transfer != nullptr) {
      transfer->Wait();
      EXPECT_EQ(transfer->ready(), length);
    }
    ASSERT_NO_FATAL_FAILURE(twins.ExpectSame("operation " + std::to_string(i)));
  }
}

TEST(DeviceMemoryTest, InManySmallPieces) { ExpectRandomCombinesSame(64 << 10, 25); }
TEST(DeviceMemoryTest, InPiecesAsTheyAre) {
  ExpectRandomCombinesSame(DeviceMemory::kPieceBytes, 25);
}

// What the caller has enqueued is read, and what it enqueues then comes after what was done.
void ExpectOrderedWithTheCallers(Gpu::Stream caller) {
  const std::shared_ptr<Gpu>& gpu = TheGpu();
  constexpr std::size_t kCount = 8 << 20;
  Bytes tensor(*gpu, 4 * kCount), result(*gpu, 4 * kCount);
  auto memory = DeviceMemory::Create(gpu, -1).value();
  memory->SetCallerStream(caller);
  const Layout layout({{tensor.device(), kCount, DType::kF32}});
  Row row = memory->Allocate(MemoryUse::kResults, 4 * kCount);
  for (int round = 1; round <= 8; ++round) {
    const auto one = static_cast<float>(round);
    for (std::size_t i = 0; i < kCount; ++i) std::memcpy(tensor.host() + 4 * i, &one, 4);
    ASSERT_OK(gpu->Copy(tensor.device(), tensor.host(), 4 * kCount, caller));
    memory->TakeFromCaller();
    memory->Combine(layout, Memory::In(row.data()), {{Memory::Tensors(), One(0.5)}});
    memory->Combine(layout, Memory::Tensors(),
                    {{Memory::Tensors(), One(1)}, {Memory::In(row.data()), One(1)}});
    memory->GiveToCaller();
    ASSERT_OK(gpu->Copy(result.host(), tensor.device(), 4 * kCount, caller));
    ASSERT_OK(memory->WaitForCaller());
    const float expected = 1.5F * one;
    for (std::size_t i = 0; i < kCount; i += 997) {
      float found = 0;
      std::memcpy(&found, result.host() + 4 * i, 4);
      ASSERT_EQ(found, expected) << round << ", " << i;
    }
  }
  EXPECT_TRUE(memory->failure().ok());
}

TEST(DeviceMemoryTest, TheCallersStreamIsOrderedWithIt) {
  OnStream caller(*TheGpu());
  ExpectOrderedWithTheCallers(caller);
}

// The legacy default stream, on which a program that knows of no streams does all.
TEST(DeviceMemoryTest, TheDefaultStreamIsOrderedWithIt) { ExpectOrderedWithTheCallers(nullptr); }

}  // namespace
}  // namespace prd::testing::memory_test
