#include "worker/cuda/combine.h"
#include "worker/cuda/element.h"

namespace prd::cuda {
namespace {

constexpr unsigned kThreads = 256;

// prd::DType's values; cuda_gpu.cc holds them together.
constexpr std::uint32_t kF32 = 0, kF64 = 1, kF16 = 2, kBF16 = 3;

// The operands of one chunk, at its first byte.
template <int K>
struct Operands {
  const std::byte* from[K];
  std::byte* to[kMaxOutputs];
};

template <typename T>
__device__ __forceinline__ typename T::Wide WeightOf(const Combine& combine, int k);
template <>
__device__ __forceinline__ float WeightOf<F32>(const Combine& combine, int k) {
  return combine.single[k];
}
template <>
__device__ __forceinline__ float WeightOf<F16>(const Combine& combine, int k) {
  return combine.single[k];
}
template <>
__device__ __forceinline__ float WeightOf<BF16>(const Combine& combine, int k) {
  return combine.single[k];
}
template <>
__device__ __forceinline__ double WeightOf<F64>(const Combine& combine, int k) {
  return combine.exact[k];
}

template <typename T>
__device__ __forceinline__ typename T::Wide FactorOf(const Combine& combine) {
  if constexpr (sizeof(typename T::Wide) == sizeof(double)) {
    return combine.exact_factor;
  } else {
    return combine.single_factor;
  }
}

// The elements of one load of each input; K bounds combine.inputs, so that all is in registers.
template <typename T, typename Unit, int K>
__device__ __forceinline__ Unit CombineUnit(const Unit (&inputs)[K], const Combine& combine) {
  using Raw = typename T::Raw;
  constexpr int kElements = sizeof(Unit) / sizeof(Raw);
  if constexpr (K == 1) {  // a copy
    if (combine.inputs == 1 && combine.first_one && combine.factor_one) return inputs[0];
  }
  Raw in[K][kElements];
#pragma unroll
  for (int k = 0; k < K; ++k) memcpy(in[k], &inputs[k], sizeof(Unit));
  Raw out[kElements];
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    Raw sum = First<T>(in[0][e], WeightOf<T>(combine, 0), combine.first_one);
#pragma unroll
    for (int k = 1; k < K; ++k) {
      if (k < combine.inputs) sum = Next<T>(sum, in[k][e], WeightOf<T>(combine, k));
    }
    out[e] = Last<T>(sum, FactorOf<T>(combine), combine.factor_one);
    if (combine.inputs == 0) out[e] = Raw(0);
  }
  Unit unit;
  memcpy(&unit, out, sizeof(unit));
  return unit;
}

// All operands are in memory of the device: else a load would first find out where it goes.
__device__ __forceinline__ void AssumeGlobal([[maybe_unused]] const void* data) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(data));
#endif
}

// Units of a thread that are on their way at once: 64 bytes, as far as there are registers for
// them, with few inputs and with small units too.
template <typename Unit, int K>
constexpr int kUnitsAtOnce = sizeof(Unit) <= 4       ? 16 / K
                             : K * sizeof(Unit) < 64 ? 64 / (K * static_cast<int>(sizeof(Unit)))
                                                     : 1;

__device__ __forceinline__ std::uint32_t Past(const std::byte* data, std::uint32_t boundary) {
  return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(data) % boundary);
}

// `count` units, one behind the other. An output may be the first input: every thread reads a unit
// before it writes it, and no other thread touches it. Loads and stores are streaming ones: a row
// is read once.
template <typename T, typename Unit, int K, int kAtOnce>
__device__ __forceinline__ void CombineUnits(const Operands<K>& at, std::uint32_t count,
                                             const Combine& combine) {
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads * kAtOnce) {
    Unit inputs[kAtOnce][K];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const std::uint32_t unit = i + u * kThreads;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        inputs[u][k] = Unit{};
        if (unit < count && k < combine.inputs) {
          AssumeGlobal(at.from[k]);
          inputs[u][k] = __ldcs(reinterpret_cast<const Unit*>(at.from[k]) + unit);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const std::uint32_t unit = i + u * kThreads;
      if (unit >= count) break;
      const Unit sum = CombineUnit<T, Unit, K>(inputs[u], combine);
      AssumeGlobal(at.to[0]);
      __stcs(reinterpret_cast<Unit*>(at.to[0]) + unit, sum);
      if (combine.second) {
        AssumeGlobal(at.to[1]);
        __stcs(reinterpret_cast<Unit*>(at.to[1]) + unit, sum);
      }
    }
  }
}

// The same, so far from there.
template <int K>
__device__ __forceinline__ Operands<K> Further(const Operands<K>& at, std::uint32_t bytes,
                                               const Combine& combine) {
  Operands<K> further = at;
#pragma unroll
  for (int k = 0; k < K; ++k) further.from[k] += k < combine.inputs ? bytes : 0;
  further.to[0] += bytes;
  further.to[1] += combine.second ? bytes : 0;
  return further;
}

// 16 bytes at a time where all operands are equally far from such a boundary; what is before the
// first and behind the last of them, or all, by elements.
template <typename T, int K>
__device__ __forceinline__ void CombineChunk(const Operands<K>& at, std::uint32_t bytes,
                                             const Combine& combine) {
  using Raw = typename T::Raw;
  constexpr std::uint32_t kSize = sizeof(Raw);
  const std::uint32_t past = Past(at.to[0], 16);
  bool congruent = !combine.second || Past(at.to[1], 16) == past;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (k < combine.inputs) congruent = congruent && Past(at.from[k], 16) == past;
  }
  if (!congruent) return CombineUnits<T, Raw, K, kUnitsAtOnce<Raw, K>>(at, bytes / kSize, combine);
  const std::uint32_t head = min(bytes, (16 - past) % 16);
  const std::uint32_t body = (bytes - head) / 16 * 16;
  const std::uint32_t tail = bytes - head - body;
  if (body != 0) {
    CombineUnits<T, uint4, K, kUnitsAtOnce<uint4, K>>(Further(at, head, combine), body / 16,
                                                      combine);
  }
  // Both are shorter than one of those.
  if (head != 0) CombineUnits<T, Raw, K, 1>(at, head / kSize, combine);
  const std::uint32_t through = head + body;
  if (tail != 0) CombineUnits<T, Raw, K, 1>(Further(at, through, combine), tail / kSize, combine);
}

// A boundary between two chunks of a tensor, at `at` of the row: moved down to where the first
// output is at a line of the cache, so that no two blocks write into one.
__device__ __forceinline__ std::uint64_t ToLine(std::uint64_t at, const std::byte* output,
                                                std::uint64_t least) {
  const std::uint64_t past = Past(output, 128);
  return at - least < past ? least : at - past;
}

// The part of a chunk in the range: its operands, and its bytes. `lines`: boundaries are moved.
template <int K>
__device__ __forceinline__ std::uint32_t Find(const Chunk& chunk, const Combine& combine,
                                              bool lines, Operands<K>* at) {
  std::uint64_t begin = max(chunk.begin, combine.begin);
  std::uint64_t end = min(chunk.begin + chunk.bytes, combine.end);
  if (lines) {
    const auto output = [&](std::uint64_t row) {
      return combine.to[0] != nullptr ? combine.to[0] + (row - combine.begin)
                                      : chunk.data + (row - chunk.begin);
    };
    const bool is_first = chunk.first || begin == combine.begin;
    const bool is_last = chunk.last || end == combine.end;
    if (!is_first) begin = ToLine(begin, output(begin), combine.begin);
    if (!is_last) end = ToLine(end, output(end), combine.begin);
  }
  std::byte* tensor = chunk.data + static_cast<std::int64_t>(begin - chunk.begin);
  const std::uint64_t row = begin - combine.begin;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const bool is_row = k < combine.inputs && combine.from[k] != nullptr;
    at->from[k] = is_row ? combine.from[k] + row : tensor;
  }
#pragma unroll
  for (int j = 0; j < kMaxOutputs; ++j) {
    at->to[j] = combine.to[j] != nullptr ? combine.to[j] + row : tensor;
  }
  return static_cast<std::uint32_t>(end - begin);
}

// A block computes a chunk. combine.inputs is at most K.
template <int K>
__global__ void __launch_bounds__(kThreads) CombineKernel(const __grid_constant__ Combine combine) {
  if (combine.skip != nullptr && *combine.skip != 0) return;
  const Chunk chunk = combine.chunks[blockIdx.x];
  Operands<K> at;
  const std::uint32_t bytes = Find<K>(chunk, combine, true, &at);
  switch (chunk.dtype) {
    case kF32:
      return CombineChunk<F32, K>(at, bytes, combine);
    case kF64:
      return CombineChunk<F64, K>(at, bytes, combine);
    case kF16:
      return CombineChunk<F16, K>(at, bytes, combine);
    case kBF16:
      return CombineChunk<BF16, K>(at, bytes, combine);
  }
}

// Elements at any address: byte by byte.

template <typename Raw>
__device__ Raw Read(const std::byte* from) {
  Raw raw;
  std::byte* bytes = reinterpret_cast<std::byte*>(&raw);
  for (std::size_t i = 0; i < sizeof(Raw); ++i) bytes[i] = from[i];
  return raw;
}

template <typename Raw>
__device__ void Write(std::byte* to, Raw raw) {
  const std::byte* bytes = reinterpret_cast<const std::byte*>(&raw);
  for (std::size_t i = 0; i < sizeof(Raw); ++i) to[i] = bytes[i];
}

template <typename T>
__device__ void CombineBytes(const Operands<kMaxInputs>& at, std::uint32_t bytes,
                             const Combine& combine) {
  using Raw = typename T::Raw;
  for (std::uint32_t b = threadIdx.x * sizeof(Raw); b < bytes; b += kThreads * sizeof(Raw)) {
    Raw sum = Raw(0);
    for (int k = 0; k < combine.inputs; ++k) {
      const Raw in = Read<Raw>(at.from[k] + b);
      const typename T::Wide weight = WeightOf<T>(combine, k);
      sum = k == 0 ? First<T>(in, weight, combine.first_one) : Next<T>(sum, in, weight);
    }
    if (combine.inputs != 0) sum = Last<T>(sum, FactorOf<T>(combine), combine.factor_one);
    Write(at.to[0] + b, sum);
    if (combine.second) Write(at.to[1] + b, sum);
  }
}

__global__ void __launch_bounds__(kThreads)
    CombineBytesKernel(const __grid_constant__ Combine combine) {
  if (combine.skip != nullptr && *combine.skip != 0) return;
  const Chunk chunk = combine.chunks[blockIdx.x];
  Operands<kMaxInputs> at;
  const std::uint32_t bytes = Find<kMaxInputs>(chunk, combine, false, &at);
  switch (chunk.dtype) {
    case kF32:
      return CombineBytes<F32>(at, bytes, combine);
    case kF64:
      return CombineBytes<F64>(at, bytes, combine);
    case kF16:
      return CombineBytes<F16>(at, bytes, combine);
    case kBF16:
      return CombineBytes<BF16>(at, bytes, combine);
  }
}

__global__ void DecideKernel(const volatile std::uint32_t* flag, std::uint32_t* word,
                             volatile std::uint32_t* said) {
  const std::uint32_t called_off = *flag;
  *word = called_off;
  __threadfence_system();  // the word is there before the host hears of it
  *said = called_off + 1;
}

using Kernel = void (*)(Combine);
constexpr Kernel kKernels[] = {CombineKernel<1>, CombineKernel<2>, CombineKernel<4>,
                               CombineKernel<8>, CombineBytesKernel};

Kernel KernelFor(int inputs, bool aligned) {
  if (!aligned) return CombineBytesKernel;
  return kKernels[inputs <= 1 ? 0 : inputs == 2 ? 1 : inputs <= 4 ? 2 : 3];
}

}  // namespace

cudaError_t PrepareKernels() {
  // Loads them all: later, that would wait for what runs on the device. (CUDA programming guide,
  // Lazy Loading: this call does it.)
  cudaFuncAttributes loaded;
  cudaError_t error = cudaFuncGetAttributes(&loaded, reinterpret_cast<const void*>(DecideKernel));
  for (const Kernel kernel : kKernels) {
    if (error != cudaSuccess) break;
    error = cudaFuncGetAttributes(&loaded, reinterpret_cast<const void*>(kernel));
  }
  return error;
}

cudaError_t LaunchCombine(const Combine& combine, bool aligned, cudaStream_t stream) {
  if (combine.chunk_count == 0) return cudaSuccess;
  const Kernel kernel = KernelFor(combine.inputs, aligned);
  void* arguments[] = {const_cast<Combine*>(&combine)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(combine.chunk_count),
                          dim3(kThreads), arguments, 0, stream);
}

cudaError_t LaunchDecide(const std::uint32_t* flag, std::uint32_t* word, std::uint32_t* said,
                         cudaStream_t stream) {
  void* arguments[] = {&flag, &word, &said};
  return cudaLaunchKernel(reinterpret_cast<const void*>(DecideKernel), dim3(1), dim3(1), arguments,
                          0, stream);
}

}  // namespace prd::cuda
