// The kernels, compiled by the host's compiler. They share nothing between threads, so that one
// thread after the other does the same.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#define __launch_bounds__(threads)

namespace {
thread_local dim3 blockIdx, threadIdx;
void __threadfence_system() {}
template <typename T>
T __ldcs(const T* from) {
  return *from;
}
template <typename T>
void __stcs(T* to, T value) {
  *to = value;
}
}  // namespace

namespace prd::cuda {
using std::max;
using std::min;
}  // namespace prd::cuda

#include "worker/cuda/combine.cu"

extern "C" cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block,
                                        void** arguments, std::size_t, cudaStream_t) {
  using namespace prd::cuda;
  for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < block.x; ++threadIdx.x) {
      if (function == reinterpret_cast<const void*>(&DecideKernel)) {
        DecideKernel(*static_cast<const std::uint32_t**>(arguments[0]),
                     *static_cast<std::uint32_t**>(arguments[1]),
                     *static_cast<std::uint32_t**>(arguments[2]));
      } else {
        const auto kernel = reinterpret_cast<Kernel>(const_cast<void*>(function));
        kernel(*static_cast<const Combine*>(arguments[0]));
      }
    }
  }
  return cudaSuccess;
}
