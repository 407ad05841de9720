// The kernels of one device, each beside a copy of as many bytes, in turns.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <utility>

#include "tools/prdbench/device.h"
#include "tools/prdbench/device_line.h"
#include "worker/device/device_memory.h"

namespace prd::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 9;  // of a case, and of its copy, in turns
// Sizes of tensors as a ResNet-50 has them, from a bias to its largest kernel, in elements.
constexpr std::size_t kTensors[] = {64,     256,  9408,   4096,   36864, 64,      16384,
                                    512,    512,  147456, 65536,  1024,  1000,    589824,
                                    262144, 2048, 2048,   524288, 128,   1048576, 2359296};
constexpr std::size_t kMaxOperands = 9;  // rows of the widest case: 8 read, 1 written

double SecondsSince(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

struct Case {
  std::string name;
  double bytes = 0;  // read and written, each time
  std::size_t tensors = 0;
  std::function<Status()> enqueue;
  std::function<Status()> beside;  // the copy, of as many bytes read and written
};

// The device, its memory for the operands of all cases, and the clock.
class KernelBench {
 public:
  explicit KernelBench(const DeviceOptions& options) : options_(options) {}
  ~KernelBench() {
    if (event_ != nullptr) gpu_->DestroyEvent(event_);
    if (pool_ != nullptr) gpu_->Free(pool_);
  }

  Status Open() {
    const Result<std::optional<int>> device = ParseDevice(options_.device);
    if (!device.ok()) return device.status();
    if (!device->has_value()) {
      return Status(Code::kInvalidArgument, "found '" + options_.device + "', needed is cuda:N");
    }
    Result<std::shared_ptr<Gpu>> gpu = OpenGpu(**device);
    if (!gpu.ok()) return gpu.status();
    gpu_ = std::move(*gpu);
    Result<std::unique_ptr<DeviceMemory>> memory = DeviceMemory::Create(gpu_, -1);
    if (!memory.ok()) return memory.status();
    memory_ = std::move(*memory);
    Result<Gpu::Event> event = gpu_->CreateEvent();
    if (!event.ok()) return event.status();
    event_ = *event;
    const std::size_t rows = (kMaxOperands + 1) * row_stride();
    const Result<std::size_t> free = gpu_->FreeMemory();
    if (!free.ok()) return free.status();
    if (*free < rows) {
      return Status(Code::kResourceExhausted,
                    "needed are " + std::to_string(rows) + " bytes of the device, free are " +
                        std::to_string(*free) + ": --bytes asks for less");
    }
    Result<std::byte*> pool = gpu_->Malloc(rows);
    if (!pool.ok()) return pool.status();
    pool_ = *pool;
    PRD_RETURN_IF_ERROR(gpu_->Zero(pool_, rows, memory_->stream()));
    return Finish();
  }

  // A row of the case's bytes, so many of them; beside it is place for what is misaligned.
  std::byte* row(std::size_t index) { return pool_ + index * row_stride(); }
  std::size_t row_stride() const { return (options_.bytes / 4096 + 2) * 4096; }
  Gpu& gpu() { return *gpu_; }
  DeviceMemory& memory() { return *memory_; }
  Gpu::Stream stream() { return memory_->stream(); }

  // All of it is done.
  Status Finish() {
    PRD_RETURN_IF_ERROR(gpu_->Record(event_, stream()));
    PRD_RETURN_IF_ERROR(gpu_->Synchronize(event_));
    return memory_->failure();
  }

  Status Measure(const Case& one) {
    int times = 0;
    int beside_times = 0;
    PRD_RETURN_IF_ERROR(Calibrate(one.enqueue, &times));
    PRD_RETURN_IF_ERROR(Calibrate(one.beside, &beside_times));
    std::vector<double> ours;
    std::vector<double> copies;
    for (int round = 0; round < kRounds; ++round) {
      PRD_RETURN_IF_ERROR(Time(one.enqueue, times, &ours));
      PRD_RETURN_IF_ERROR(Time(one.beside, beside_times, &copies));
    }
    nlohmann::ordered_json line = DeviceLine("bench", "device", About(*gpu_));
    line["case"] = one.name;
    line["bytes"] = static_cast<std::uint64_t>(one.bytes);
    line["tensors"] = one.tensors;
    line["gb_per_s"] = one.bytes / Median(ours) * 1e-9;
    line["copy_gb_per_s"] = one.bytes / Median(copies) * 1e-9;
    line["ratio"] = Median(copies) / Median(ours);
    PrintLine(line);
    return Status::Ok();
  }

 private:
  // Seconds of one of so many, one after another without the processor between them.
  Status Time(const std::function<Status()>& enqueue, int times, std::vector<double>* seconds) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < times; ++i) PRD_RETURN_IF_ERROR(enqueue());
    PRD_RETURN_IF_ERROR(Finish());
    seconds->push_back(SecondsSince(start) / times);
    return Status::Ok();
  }

  Status Calibrate(const std::function<Status()>& enqueue, int* times) {
    std::vector<double> seconds;
    PRD_RETURN_IF_ERROR(Time(enqueue, 1, &seconds));  // the first one of a kernel is slow
    PRD_RETURN_IF_ERROR(Time(enqueue, 1, &seconds));
    *times = static_cast<int>(
        std::clamp(options_.seconds / (2 * kRounds) / std::max(seconds.back(), 1e-7), 1.0, 1e4));
    return Status::Ok();
  }

  const DeviceOptions& options_;
  std::shared_ptr<Gpu> gpu_;
  std::unique_ptr<DeviceMemory> memory_;
  Gpu::Event event_ = nullptr;
  std::byte* pool_ = nullptr;
};

// Tensors one after another in a row's memory, `shift` elements from where they would be aligned
// and that far apart; about `bytes` of them.
std::vector<Tensor> Tensors(std::byte* memory, std::size_t bytes, const std::vector<DType>& dtypes,
                            bool many, std::size_t shift) {
  std::vector<Tensor> tensors;
  for (std::size_t at = 0, i = 0;; ++i) {
    const DType dtype = dtypes[i % dtypes.size()];
    const std::size_t size = DTypeSize(dtype);
    at = (at + size - 1) / size * size + shift * size;
    if (at + size > bytes) return tensors;
    const std::size_t left = (bytes - at) / size;
    std::size_t count = many ? kTensors[i % std::size(kTensors)] : bytes / size / dtypes.size();
    count = std::min(count, left);
    tensors.push_back({memory + at, count, dtype});
    at += count * size;
  }
}

// One launch over a whole layout, between its tensors and rows.
struct Shape {
  const char* name;
  std::size_t inputs;
  bool read_tensors = false;   // the first input is the tensors
  bool write_tensors = false;  // the output is
  bool in_place = false;       // the output is the first input
  bool weighted = false;
  bool many = true;
  std::size_t shift = 0;
  std::vector<DType> dtypes = {DType::kF32};
};

std::vector<Shape> Shapes() {
  const std::vector<DType> all = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
  return {
      {.name = "gather", .inputs = 1, .read_tensors = true},
      {.name = "gather-misaligned", .inputs = 1, .read_tensors = true, .shift = 1},
      {.name = "gather-mixed", .inputs = 1, .read_tensors = true, .dtypes = all},
      {.name = "scatter", .inputs = 1, .write_tensors = true},
      {.name = "scatter-misaligned", .inputs = 1, .write_tensors = true, .shift = 1},
      {.name = "add", .inputs = 2, .in_place = true, .many = false},
      {.name = "add-tensors",
       .inputs = 2,
       .read_tensors = true,
       .write_tensors = true,
       .in_place = true},
      {.name = "sum-2", .inputs = 2, .weighted = true, .many = false},
      {.name = "sum-4", .inputs = 4, .weighted = true, .many = false},
      {.name = "sum-8", .inputs = 8, .weighted = true, .many = false},
      {.name = "sum-2-bf16",
       .inputs = 2,
       .weighted = true,
       .many = false,
       .dtypes = {DType::kBF16}},
      {.name = "sum-2-f16", .inputs = 2, .weighted = true, .many = false, .dtypes = {DType::kF16}},
      {.name = "sum-2-mixed", .inputs = 2, .read_tensors = true, .weighted = true, .dtypes = all},
      {.name = "sum-4-misaligned", .inputs = 4, .read_tensors = true, .weighted = true, .shift = 1},
  };
}

Status MeasureShape(KernelBench* bench, const DeviceOptions& options, const Shape& shape) {
  const Layout layout(Tensors(bench->row(0), options.bytes, shape.dtypes, shape.many, shape.shift));
  Result<std::shared_ptr<Gpu::Table>> table = bench->gpu().MakeTable(layout);
  if (!table.ok()) return table.status();
  std::vector<Gpu::Input> from(shape.inputs);
  for (std::size_t i = 0; i < shape.inputs; ++i) {
    if (i != 0 || !shape.read_tensors) from[i].data = bench->row(i + 1);
    const double weight = shape.weighted ? 1.0 / static_cast<double>(shape.inputs + 1) : 1;
    from[i].weight = {weight, static_cast<float>(weight)};
  }
  std::byte* to = shape.write_tensors ? nullptr
                  : shape.in_place    ? bench->row(1)
                                      : bench->row(kMaxOperands);
  Case one;
  one.name = shape.name;
  one.tensors = layout.pieces().size();
  one.bytes = static_cast<double>(layout.bytes() * (shape.inputs + 1));
  one.enqueue = [&] {
    return bench->gpu().Launch(
        {.table = table->get(), .length = layout.bytes(), .to = std::span(&to, 1), .from = from},
        bench->stream());
  };
  // As many bytes, half of them read and half written, all of them in different places.
  const std::size_t half = layout.bytes() * (shape.inputs + 1) / 2 / 512 * 512;
  one.beside = [&, half] {
    return bench->gpu().Copy(bench->row(0) + half, bench->row(0), half, bench->stream());
  };
  return bench->Measure(one);
}

// To and from host memory: what the staged way costs.
Status MeasureStaged(KernelBench* bench, const DeviceOptions& options, bool to_host) {
  const Layout layout(Tensors(bench->row(0), options.bytes, {DType::kF32}, true, 0));
  Row host = bench->memory().AllocateHost(MemoryUse::kReading, layout.bytes());
  if (host.data() == nullptr) return bench->memory().failure();
  Case one;
  one.name = to_host ? "staged-to-host" : "staged-from-host";
  one.tensors = layout.pieces().size();
  one.bytes = static_cast<double>(layout.bytes());
  const Memory::Place place = Memory::InHost(host.data());
  one.enqueue = [&] {
    const std::shared_ptr<Transfer> transfer = bench->memory().Combine(
        layout, to_host ? place : Memory::Tensors(), {{to_host ? Memory::Tensors() : place}});
    if (transfer != nullptr) transfer->Wait();
    return bench->memory().failure();
  };
  one.beside = [&] {
    std::byte* device = bench->row(1);
    if (!to_host) {
      return bench->gpu().Copy(device, host.data(), layout.bytes(), bench->stream());
    }
    PRD_RETURN_IF_ERROR(bench->gpu().Copy(host.data(), device, layout.bytes(), bench->stream()));
    return bench->Finish();
  };
  return bench->Measure(one);
}

Status MeasureAll(const DeviceOptions& options) {
  KernelBench bench(options);
  PRD_RETURN_IF_ERROR(bench.Open());
  for (const Shape& shape : Shapes()) {
    PRD_RETURN_IF_ERROR(MeasureShape(&bench, options, shape));
  }
  PRD_RETURN_IF_ERROR(MeasureStaged(&bench, options, true));
  return MeasureStaged(&bench, options, false);
}

}  // namespace

int BenchDevice(const DeviceOptions& options) {
  const Status status = MeasureAll(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "prdbench: device %s: %s\n", options.device.c_str(),
               status.ToString().c_str());
  return 1;
}

}  // namespace prd::bench
