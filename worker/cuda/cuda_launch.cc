// Tables and launches of CudaGpu: from layouts and operands to what the kernels take.
#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "worker/cuda/combine.h"
#include "worker/cuda/cuda_calls.h"
#include "worker/cuda/cuda_gpu.h"

namespace prd::cuda {
namespace {

static_assert(kMaxInputs == Gpu::kMaxInputs && kMaxOutputs == Gpu::kMaxOutputs);
static_assert(static_cast<int>(DType::kF32) == 0 && static_cast<int>(DType::kF64) == 1 &&
              static_cast<int>(DType::kF16) == 2 && static_cast<int>(DType::kBF16) == 3);

std::size_t Past(const void* data, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(data) % alignment;
}

std::vector<Chunk> ChunksOf(const Layout& layout) {
  std::vector<Chunk> chunks;
  for (const Layout::Piece& piece : layout.pieces()) {
    for (std::size_t at = piece.begin; at < piece.end; at += kChunkBytes) {
      const std::size_t bytes = std::min<std::size_t>(kChunkBytes, piece.end - at);
      chunks.push_back({at, piece.data + (at - piece.begin), static_cast<std::uint32_t>(bytes),
                        static_cast<std::uint16_t>(piece.dtype), at == piece.begin,
                        at + bytes == piece.end});
    }
  }
  return chunks;
}

}  // namespace

// The chunks of all tensors, in the order of the row, here and on the device.
class CudaTable : public Gpu::Table {
 public:
  CudaTable(std::shared_ptr<DevicePool> pool, const Layout& layout)
      : pool_(std::move(pool)), chunks_(ChunksOf(layout)) {
    for (const Layout::Piece& piece : layout.pieces()) {
      const std::size_t size = DTypeSize(piece.dtype);
      largest_ = std::max(largest_, size);
      aligned_ = aligned_ && Past(piece.data, size) == 0;
    }
  }
  ~CudaTable() override { pool_->Free(on_device_); }

  // Short: waits until they are there.
  Status Upload(cudaStream_t stream) {
    const std::size_t bytes = chunks_.size() * sizeof(Chunk);
    if (bytes == 0) return Status::Ok();
    const Result<std::byte*> data = pool_->Malloc(bytes);
    if (!data.ok()) return data.status();
    on_device_ = *data;
    PRD_RETURN_IF_ERROR(
        ToStatus(cudaMemcpyAsync(on_device_, chunks_.data(), bytes, cudaMemcpyHostToDevice, stream),
                 "cudaMemcpyAsync of a table"));
    return ToStatus(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }

  // Those that [begin, end) touches.
  std::pair<const Chunk*, std::uint32_t> Touched(std::size_t begin, std::size_t end) const {
    const auto first =
        std::upper_bound(chunks_.begin(), chunks_.end(), begin,
                         [](std::size_t at, const Chunk& c) { return at < c.begin + c.bytes; });
    const auto last = std::lower_bound(first, chunks_.end(), end,
                                       [](const Chunk& c, std::size_t at) { return c.begin < at; });
    return {reinterpret_cast<const Chunk*>(on_device_) + (first - chunks_.begin()),
            static_cast<std::uint32_t>(last - first)};
  }

  // The bytes of its largest element; and whether all tensors are aligned to theirs.
  std::size_t largest() const { return largest_; }
  bool aligned() const { return aligned_; }

 private:
  const std::shared_ptr<DevicePool> pool_;
  const std::vector<Chunk> chunks_;
  std::size_t largest_ = 1;
  bool aligned_ = true;
  std::byte* on_device_ = nullptr;
};

Result<std::shared_ptr<Gpu::Table>> CudaGpu::MakeTable(const Layout& layout) {
  auto table = std::make_shared<CudaTable>(pool_, layout);
  const OnDevice on(device_);
  PRD_RETURN_IF_ERROR(table->Upload(tables_));
  return std::shared_ptr<Table>(std::move(table));
}

Status CudaGpu::Launch(const Gpu::Combine& asked, Stream stream) {
  if (asked.to.empty() || asked.length == 0) return Status::Ok();
  if (asked.to.size() > Gpu::kMaxOutputs || asked.from.size() > Gpu::kMaxInputs) {
    return Status(Code::kInternal, "a launch has too many operands");
  }
  const CudaTable& table = static_cast<const CudaTable&>(*asked.table);
  cuda::Combine combine = {};
  combine.begin = asked.offset;
  combine.end = asked.offset + asked.length;
  std::tie(combine.chunks, combine.chunk_count) = table.Touched(combine.begin, combine.end);
  combine.skip = asked.skip;
  bool aligned = true;
  const auto note = [&](const std::byte* data) {
    aligned = aligned && (data != nullptr ? Past(data, table.largest()) == 0 : table.aligned());
  };
  for (std::size_t i = 0; i < asked.to.size(); ++i) note(combine.to[i] = asked.to[i]);
  combine.second = asked.to.size() > 1;
  for (const Input& input : asked.from) {
    if (asked.factor.exact == 0 || input.weight.exact == 0) continue;
    const int i = combine.inputs++;
    note(combine.from[i] = input.data);
    combine.exact[i] = input.weight.exact;
    combine.single[i] = input.weight.single;
    if (i == 0) combine.first_one = input.weight.exact == 1;
  }
  combine.exact_factor = asked.factor.exact;
  combine.single_factor = asked.factor.single;
  combine.factor_one = asked.factor.exact == 1;
  const OnDevice on(device_);
  return ToStatus(LaunchCombine(combine, aligned, static_cast<cudaStream_t>(stream)),
                  "a launch over " + std::to_string(asked.length) + " bytes");
}

Status CudaGpu::Decide(const std::uint32_t* flag, std::uint32_t* word, std::uint32_t* said,
                       Stream stream) {
  const OnDevice on(device_);
  return ToStatus(LaunchDecide(flag, word, said, static_cast<cudaStream_t>(stream)),
                  "a launch of the decision");
}

}  // namespace prd::cuda
