// Launches against HostMemory, bit for bit.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "common/base/prng.h"
#include "tests/gpu/gpu_test.h"
#include "worker/memory/memory.h"

namespace prd::testing::launch_test {
namespace {

Weight One(double weight) { return {weight, static_cast<float>(weight)}; }

struct TensorSpec {
  DType dtype;
  std::size_t count;
  std::size_t past = 0;  // elements past a boundary of 256 bytes
};

// One NaN is as good as another.
template <typename Bits>
void MakeNansEqual(std::byte* data, std::size_t bytes, Bits infinity) {
  for (std::size_t at = 0; at + sizeof(Bits) <= bytes; at += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, data + at, sizeof(bits));
    const Bits rest = bits & static_cast<Bits>(~(Bits{1} << (8 * sizeof(Bits) - 1)));
    if (rest > infinity) {
      bits = std::numeric_limits<Bits>::max();
      std::memcpy(data + at, &bits, sizeof(bits));
    }
  }
}
void MakeNansEqual(DType dtype, std::byte* data, std::size_t bytes) {
  switch (dtype) {
    case DType::kF32:
      return MakeNansEqual<std::uint32_t>(data, bytes, 0x7f800000u);
    case DType::kF64:
      return MakeNansEqual<std::uint64_t>(data, bytes, 0x7ff0000000000000u);
    case DType::kF16:
      return MakeNansEqual<std::uint16_t>(data, bytes, 0x7c00u);
    case DType::kBF16:
      return MakeNansEqual<std::uint16_t>(data, bytes, 0x7f80u);
  }
}

// Bits at random, and often numbers of about 1, so that sums round.
void FillElements(DType dtype, std::byte* data, std::size_t bytes, Prng* random) {
  const std::size_t size = DTypeSize(dtype);
  for (std::size_t at = 0; at < bytes; at += size) {
    const double number = 4 * random->Unit() - 2;
    const std::uint64_t any = random->Next();
    std::uint64_t bits = any;
    const bool near_one = any % 16 != 0;
    if (near_one && dtype == DType::kF64) std::memcpy(&bits, &number, 8);
    const float single = static_cast<float>(number);
    std::uint32_t single_bits;
    std::memcpy(&single_bits, &single, 4);
    if (near_one && dtype == DType::kF32) bits = single_bits;
    if (near_one && dtype == DType::kBF16) bits = single_bits >> 16;
    if (near_one && dtype == DType::kF16) bits = (any & 0x83ffu) | (0x3800u + (any >> 60) * 0x100u);
    std::memcpy(data + at, &bits, size);
  }
}

// A model and some rows in one piece of memory, on the host and on the device, so that what is
// written where it should not be is found too.
class Scene {
 public:
  static constexpr std::size_t kRows = 10;

  // Rows begin `row_past` bytes past a boundary.
  Scene(Gpu& gpu, const std::vector<TensorSpec>& specs, std::size_t row_past, std::uint64_t seed)
      : stream_(gpu), gpu_(gpu) {
    std::size_t end = 0;
    std::vector<std::size_t> at;
    for (const TensorSpec& spec : specs) {
      const std::size_t begin = (end + 511) / 256 * 256 + spec.past * DTypeSize(spec.dtype);
      at.push_back(begin);
      end = begin + spec.count * DTypeSize(spec.dtype);
      row_bytes_ += spec.count * DTypeSize(spec.dtype);
    }
    for (std::size_t r = 0; r < kRows; ++r) {
      rows_.push_back((end + 511) / 256 * 256 + row_past);
      end = rows_.back() + row_bytes_;
    }
    bytes_ = std::make_unique<Bytes>(gpu, end + 256);
    expected_.resize(bytes_->size());
    std::vector<Tensor> host, device;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      host.push_back({expected_.data() + at[i], specs[i].count, specs[i].dtype});
      device.push_back({bytes_->device() + at[i], specs[i].count, specs[i].dtype});
    }
    host_layout = Layout(host);
    device_layout = Layout(device);
    Fill(seed);
  }

  void Fill(std::uint64_t seed) {
    Prng random(seed);
    for (std::byte& byte : expected_) byte = static_cast<std::byte>(random.Next());
    ForEachElementRun([&](DType dtype, std::byte* data,
                          std::size_t bytes) { FillElements(dtype, data, bytes, &random); },
                      expected_.data());
    std::memcpy(bytes_->host(), expected_.data(), expected_.size());
    ASSERT_OK(bytes_->Put(stream_));
  }

  std::byte* HostRow(std::size_t r) { return expected_.data() + rows_[r]; }
  std::byte* DeviceRow(std::size_t r) { return bytes_->device() + rows_[r]; }
  std::size_t row_bytes() const { return row_bytes_; }
  OnStream& stream() { return stream_; }

  // Whether all of it is as expected.
  void ExpectSame(const std::string& what) {
    ASSERT_OK(bytes_->Get(stream_));
    std::vector<std::byte> found(bytes_->host(), bytes_->host() + bytes_->size());
    std::vector<std::byte> expected = expected_;
    for (auto* all : {&found, &expected}) {
      ForEachElementRun([](DType dtype, std::byte* data,
                           std::size_t bytes) { MakeNansEqual(dtype, data, bytes); },
                        all->data());
    }
    const auto [f, e] = std::mismatch(found.begin(), found.end(), expected.begin());
    ASSERT_TRUE(f == found.end()) << what << ": differs first at byte " << f - found.begin()
                                  << " of " << found.size() << Where(f - found.begin());
  }

  Layout host_layout, device_layout;

 private:
  // Visits tensors and rows, in memory like expected_.
  template <typename F>
  void ForEachElementRun(F&& f, std::byte* memory) {
    for (const Layout::Piece& piece : host_layout.pieces()) {
      f(piece.dtype, memory + (piece.data - expected_.data()), piece.end - piece.begin);
    }
    for (const std::size_t row : rows_) {
      for (const Layout::Piece& run : host_layout.Runs()) {
        f(run.dtype, memory + row + run.begin, run.end - run.begin);
      }
    }
  }

  std::string Where(std::ptrdiff_t at) const {
    const auto offset = static_cast<std::size_t>(at);
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      if (offset >= rows_[r] && offset < rows_[r] + row_bytes_) {
        return ", byte " + std::to_string(offset - rows_[r]) + " of row " + std::to_string(r);
      }
    }
    return ", not in a row";
  }

  OnStream stream_;
  Gpu& gpu_;
  std::size_t row_bytes_ = 0;
  std::vector<std::size_t> rows_;
  std::unique_ptr<Bytes> bytes_;
  std::vector<std::byte> expected_;
};

constexpr int kTensors = -1;  // where a row's number stands

struct Operation {
  std::size_t offset = 0, length = 0;
  std::vector<int> to;
  std::vector<std::pair<int, double>> from;  // and its weight
  double factor = 1;
};

void OnHost(Scene* scene, const Operation& operation) {
  std::vector<Memory::Place> to;
  std::vector<Memory::Input> from;
  const auto place = [&](int row) {
    return row == kTensors
               ? Memory::Tensors()
               : Memory::In(scene->HostRow(static_cast<std::size_t>(row)) + operation.offset);
  };
  for (const int row : operation.to) to.push_back(place(row));
  for (const auto& [row, weight] : operation.from) from.push_back({place(row), One(weight)});
  HostMemory().Combine(scene->host_layout, operation.offset, operation.length, to, from,
                       One(operation.factor));
}

Status OnDevice(Gpu& gpu, Scene* scene, const Gpu::Table* table, const Operation& operation,
                const std::uint32_t* skip = nullptr) {
  std::vector<std::byte*> to;
  std::vector<Gpu::Input> from;
  const auto place = [&](int row) {
    return row == kTensors ? nullptr
                           : scene->DeviceRow(static_cast<std::size_t>(row)) + operation.offset;
  };
  for (const int row : operation.to) to.push_back(place(row));
  for (const auto& [row, weight] : operation.from) {
    if (weight != 0) from.push_back({place(row), One(weight)});
  }
  if (operation.factor == 0) from.clear();
  Gpu::Combine combine{.table = table,
                       .offset = operation.offset,
                       .length = operation.length,
                       .to = to,
                       .from = from,
                       .factor = One(operation.factor == 0 ? 1 : operation.factor),
                       .skip = skip};
  return gpu.Launch(combine, scene->stream());
}

std::string Text(const Operation& operation) {
  std::string text =
      "[" + std::to_string(operation.offset) + ", +" + std::to_string(operation.length) + ") to";
  for (const int row : operation.to) text += " " + std::to_string(row);
  for (const auto& [row, weight] : operation.from) {
    text += " + " + std::to_string(weight) + " * " + std::to_string(row);
  }
  return text + " times " + std::to_string(operation.factor);
}

// A range of the row, a first input that may be an output, other inputs that are not, with weights
// of every kind.
Operation AtRandom(const Scene& scene, Prng* random) {
  Operation operation;
  const std::size_t units = scene.row_bytes() / 8;
  if (random->Below(3) == 0 || units == 0) {
    operation.length = scene.row_bytes();
  } else {
    operation.offset = 8 * random->Below(units);
    operation.length = random->Below(2) == 0 ? scene.row_bytes() - operation.offset
                                             : 8 * random->Below(units - operation.offset / 8 + 1);
  }
  const std::array<double, 8> weights = {1, 1.0 / 3, 0, -0.5, 0.7, 1, 1e-3, 3};
  std::vector<int> places = {kTensors};
  for (std::size_t r = 0; r < Scene::kRows; ++r) places.push_back(static_cast<int>(r));
  for (std::size_t i = places.size() - 1; i > 0; --i) {
    std::swap(places[i], places[random->Below(i + 1)]);
  }
  const std::size_t inputs = random->Below(Gpu::kMaxInputs + 1);
  const std::size_t outputs = 1 + random->Below(Gpu::kMaxOutputs);
  for (std::size_t i = 0; i < inputs; ++i) {
    operation.from.emplace_back(places[i], weights[random->Below(weights.size())]);
  }
  for (std::size_t i = 0; i < outputs; ++i) operation.to.push_back(places[inputs + i]);
  if (inputs > 0 && random->Below(2) == 0) {  // in place; its weight is not 0, or it is no input
    if (operation.from[0].second == 0) operation.from[0].second = 0.25;
    operation.to[random->Below(outputs)] = operation.from[0].first;
  }
  const std::array<double, 4> factors = {1, 1, 1.0 / 7, 0};
  operation.factor = factors[random->Below(factors.size())];
  return operation;
}

void ExpectRandomOperationsSame(const std::vector<TensorSpec>& specs, std::size_t row_past,
                                std::uint64_t seed, int operations) {
  Gpu& gpu = *TheGpu();
  Scene scene(gpu, specs, row_past, seed);
  const auto table = gpu.MakeTable(scene.device_layout);
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  Prng random(seed);
  for (int i = 0; i < operations; ++i) {
    const Operation operation = AtRandom(scene, &random);
    OnHost(&scene, operation);
    ASSERT_OK(OnDevice(gpu, &scene, table->get(), operation));
    ASSERT_NO_FATAL_FAILURE(
        scene.ExpectSame("operation " + std::to_string(i) + ": " + Text(operation)));
    if (i % 8 == 7) scene.Fill(random.Next());  // sums do not grow for ever
  }
}

TEST(LaunchTest, EveryDtypeByItself) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    SCOPED_TRACE(static_cast<int>(dtype));
    ExpectRandomOperationsSame({{dtype, 5000}, {dtype, 1}, {dtype, 40'000}}, 0, 1, 40);
  }
}

// Odd sizes: rows and tensors are differently aligned, which no 16-byte loads can serve.
TEST(LaunchTest, MixedDtypesAndOddSizes) {
  ExpectRandomOperationsSame({{DType::kBF16, 77},
                              {DType::kF32, 10'007},
                              {DType::kF16, 3},
                              {DType::kF64, 1},
                              {DType::kF32, 3},
                              {DType::kF64, 2051},
                              {DType::kF16, 30'001},
                              {DType::kBF16, 8193}},
                             0, 2, 120);
}

TEST(LaunchTest, TensorsThatBeginAnywhere) {
  for (std::uint64_t seed = 3; seed < 11; ++seed) {
    Prng random(seed);
    std::vector<TensorSpec> specs;
    for (int i = 0; i < 6; ++i) {
      const std::array<DType, 4> dtypes = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};
      specs.push_back({dtypes[random.Below(4)], 1 + random.Below(20'000), random.Below(16)});
    }
    SCOPED_TRACE(seed);
    ExpectRandomOperationsSame(specs, 8 * random.Below(4), seed, 30);
  }
}

// No element is where its size wants it.
TEST(LaunchTest, RowsAtAnyByte) {
  for (const std::size_t past : {1u, 2u, 3u, 4u, 7u}) {
    SCOPED_TRACE(past);
    ExpectRandomOperationsSame(
        {{DType::kF32, 3001}, {DType::kF64, 500}, {DType::kF16, 999}, {DType::kBF16, 5}}, past,
        20 + past, 20);
  }
}

TEST(LaunchTest, ManySmallTensorsAndFewLargeOnes) {
  std::vector<TensorSpec> small;
  for (std::size_t i = 0; i < 2000; ++i) {
    small.push_back({i % 3 == 0 ? DType::kF16 : DType::kF32, 1 + i % 97, i % 5});
  }
  ExpectRandomOperationsSame(small, 0, 30, 20);
  ExpectRandomOperationsSame({{DType::kF32, 3'000'001}, {DType::kBF16, 1'000'003}}, 0, 31, 5);
}

// Every 16-bit value through the conversions of the hardware.
TEST(LaunchTest, EveryHalfIsConvertedAsOnTheHost) {
  Gpu& gpu = *TheGpu();
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    Scene scene(gpu, {{dtype, 65'536}}, 0, 40);
    const auto table = gpu.MakeTable(scene.device_layout);
    ASSERT_TRUE(table.ok());
    std::vector<std::uint16_t> all(65'536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    Bytes values(gpu, 2 * all.size());
    std::memcpy(values.host(), all.data(), values.size());
    ASSERT_OK(values.Put(scene.stream()));
    for (const double weight : {1.0, 0.5, 1.0 / 3, 0x1p-14, 1000.0}) {
      std::memcpy(scene.HostRow(0), all.data(), values.size());
      ASSERT_OK(gpu.Copy(scene.DeviceRow(0), values.device(), values.size(), scene.stream()));
      const Operation scale{.length = scene.row_bytes(), .to = {1}, .from = {{0, weight}}};
      const Operation add{.length = scene.row_bytes(), .to = {2}, .from = {{3, 1}, {0, weight}}};
      for (const Operation& operation : {scale, add}) {
        OnHost(&scene, operation);
        ASSERT_OK(OnDevice(gpu, &scene, table->get(), operation));
        ASSERT_NO_FATAL_FAILURE(scene.ExpectSame(Text(operation)));
      }
    }
  }
}

TEST(LaunchTest, NothingIsDoneWithoutOutputsOrLength) {
  Gpu& gpu = *TheGpu();
  Scene scene(gpu, {{DType::kF32, 100}}, 0, 50);
  const auto table = gpu.MakeTable(scene.device_layout);
  ASSERT_TRUE(table.ok());
  ASSERT_OK(OnDevice(gpu, &scene, table->get(), {.length = 400, .to = {}, .from = {{0, 1}}}));
  ASSERT_OK(OnDevice(gpu, &scene, table->get(), {.length = 0, .to = {1}, .from = {{0, 1}}}));
  scene.ExpectSame("nothing");
  EXPECT_TRUE(gpu.MakeTable(Layout()).ok());
}

TEST(LaunchTest, OffsetsBeyond4GiB) {
  Gpu& gpu = *TheGpu();
  constexpr std::size_t kBytes = (std::size_t{4} << 30) + (64 << 20);
  const auto free = gpu.FreeMemory();
  ASSERT_TRUE(free.ok());
  if (*free < kBytes + (std::size_t{1} << 30)) GTEST_SKIP() << "the device has not 5 GiB free";
  OnStream stream(gpu);
  const auto data = gpu.Malloc(kBytes);
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  const auto table = gpu.MakeTable(Layout({{*data, kBytes / 4, DType::kF32}}));
  ASSERT_TRUE(table.ok());
  ASSERT_OK(gpu.Zero(*data, kBytes, stream));
  Bytes edge(gpu, 4096);
  const auto ones = [&](float value) {
    for (std::size_t i = 0; i < 1024; ++i) std::memcpy(edge.host() + 4 * i, &value, 4);
  };
  const std::size_t at = (std::size_t{4} << 30) - 2048;
  ones(3);
  ASSERT_OK(gpu.Copy(*data + at, edge.host(), 4096, stream));
  ASSERT_OK(stream.Wait());
  const std::vector<std::byte*> to = {nullptr};
  const std::vector<Gpu::Input> all = {{nullptr, One(2)}};
  ASSERT_OK(gpu.Launch(
      {.table = table->get(), .offset = 0, .length = kBytes, .to = to, .from = all}, stream));
  ASSERT_OK(gpu.Launch({.table = table->get(), .offset = at, .length = 4096, .to = to, .from = all},
                       stream));
  ASSERT_OK(gpu.Copy(edge.device(), *data + at, 4096, stream));
  ASSERT_OK(edge.Get(stream));
  const std::vector<std::byte> found(edge.host(), edge.host() + 4096);
  ones(12);
  EXPECT_EQ(std::memcmp(found.data(), edge.host(), 4096), 0);
  gpu.Free(*data);
}

// ---- called off ----

// The words of a decision, and launches that depend on it.
class DecideTest : public ::testing::Test {
 protected:
  DecideTest() : scene_(gpu_, {{DType::kF32, 70'000}, {DType::kF16, 501}}, 0, 60) {
    table_ = gpu_.MakeTable(scene_.device_layout).value();
    std::memset(words_.host(), 0, words_.size());
  }
  std::uint32_t* flag() { return reinterpret_cast<std::uint32_t*>(words_.host()); }
  std::uint32_t* said() { return flag() + 1; }
  std::uint32_t* word() { return reinterpret_cast<std::uint32_t*>(words_.device()); }
  // As another thread, or the device, may change it.
  static std::uint32_t Load(const std::uint32_t* at) {
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
  }

  Gpu& gpu_ = *TheGpu();
  Scene scene_;
  std::shared_ptr<Gpu::Table> table_;
  Bytes words_{gpu_, 64};
  const Operation operation_{
      .length = 70'000 * 4 + 501 * 2, .to = {kTensors, 4}, .from = {{kTensors, 0.5}, {1, 0.5}}};
};

TEST_F(DecideTest, WhatIsNotCalledOffIsWritten) {
  ASSERT_OK(gpu_.Decide(flag(), word(), said(), scene_.stream()));
  ASSERT_OK(OnDevice(gpu_, &scene_, table_.get(), operation_, word()));
  ASSERT_TRUE(Within(std::chrono::seconds(60), [&] { return Load(said()) != 0; }));
  EXPECT_EQ(Load(said()), 1u);
  __atomic_store_n(flag(), 1, __ATOMIC_RELEASE);  // too late
  OnHost(&scene_, operation_);
  scene_.ExpectSame("decided");
}

TEST_F(DecideTest, WhatIsCalledOffBeforeIsNot) {
  __atomic_store_n(flag(), 1, __ATOMIC_RELEASE);
  ASSERT_OK(gpu_.Decide(flag(), word(), said(), scene_.stream()));
  ASSERT_OK(OnDevice(gpu_, &scene_, table_.get(), operation_, word()));
  ASSERT_TRUE(Within(std::chrono::seconds(60), [&] { return Load(said()) != 0; }));
  EXPECT_EQ(Load(said()), 2u);
  scene_.ExpectSame("called off");
}

// Whoever calls off at any time learns what has become of it.
TEST_F(DecideTest, AllOrNothingWheneverItIsCalledOff) {
  int written = 0;
  for (int round = 0; round < 50; ++round) {
    __atomic_store_n(flag(), 0, __ATOMIC_RELEASE);
    __atomic_store_n(said(), 0, __ATOMIC_RELEASE);
    // The more there is before it, the later is the decision.
    for (int i = 0; i < round % 5; ++i) {
      ASSERT_OK(OnDevice(gpu_, &scene_, table_.get(),
                         {.length = operation_.length, .to = {5}, .from = {{6, 1}}}));
    }
    ASSERT_OK(gpu_.Decide(flag(), word(), said(), scene_.stream()));
    ASSERT_OK(OnDevice(gpu_, &scene_, table_.get(), operation_, word()));
    __atomic_store_n(flag(), 1, __ATOMIC_SEQ_CST);
    ASSERT_TRUE(Within(std::chrono::seconds(60), [&] { return Load(said()) != 0; }));
    if (round % 5 != 0) {
      OnHost(&scene_, {.length = operation_.length, .to = {5}, .from = {{6, 1}}});
    }
    if (Load(said()) == 1) {
      ++written;
      OnHost(&scene_, operation_);
    }
    ASSERT_NO_FATAL_FAILURE(scene_.ExpectSame("round " + std::to_string(round)));
  }
  RecordProperty("written", written);
}

}  // namespace
}  // namespace prd::testing::launch_test
