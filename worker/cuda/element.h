// One element of a reduction, for the kernels; and for the host's compiler, so that a test may hold
// it to worker/memory/kernels.h without a device.
//
// A product, then a sum, each rounded to nearest even by itself; f16 and bf16 are widened to f32,
// and rounded back after the first product and after every addition. The bits are those of
// kernels.h, but for what a NaN carries besides being one.
#ifndef PRD_WORKER_CUDA_ELEMENT_H_
#define PRD_WORKER_CUDA_ELEMENT_H_

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define PRD_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define PRD_HOST_DEVICE inline
#endif

namespace prd::cuda {

template <typename To, typename From>
PRD_HOST_DEVICE To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// No contraction into fused multiply-add: on the host by its compiler's flags.
PRD_HOST_DEVICE float Multiply(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
PRD_HOST_DEVICE float Add(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
PRD_HOST_DEVICE double Multiply(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
PRD_HOST_DEVICE double Add(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

// What is in memory (Raw), and what is calculated with (Wide).

struct F32 {
  using Raw = float;
  using Wide = float;
  static PRD_HOST_DEVICE float Widen(float raw) { return raw; }
  static PRD_HOST_DEVICE float Round(float wide) { return wide; }
};

struct F64 {
  using Raw = double;
  using Wide = double;
  static PRD_HOST_DEVICE double Widen(double raw) { return raw; }
  static PRD_HOST_DEVICE double Round(double wide) { return wide; }
};

struct F16 {
  using Raw = std::uint16_t;
  using Wide = float;

  static PRD_HOST_DEVICE float Widen(std::uint16_t raw) {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(raw));
#else
    const std::uint32_t sign = static_cast<std::uint32_t>(raw & 0x8000u) << 16;
    const std::uint32_t rest = raw & 0x7fffu;
    if (rest >= 0x7c00u) {
      const std::uint32_t quiet = rest > 0x7c00u ? 0x400000u : 0u;
      return BitCast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13 | quiet);
    }
    if (rest >= 0x400u) return BitCast<float>(sign | ((rest << 13) + 0x38000000u));
    const float magnitude = static_cast<float>(rest) * 0x1p-24f;  // zero and subnormal
    return BitCast<float>(sign | BitCast<std::uint32_t>(magnitude));
#endif
  }

  static PRD_HOST_DEVICE std::uint16_t Round(float wide) {
#if defined(__CUDA_ARCH__)
    return __half_as_ushort(__float2half_rn(wide));
#else
    const std::uint32_t bits = BitCast<std::uint32_t>(wide);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t rest = bits & 0x7fffffffu;
    std::uint32_t half = 0;
    if (rest > 0x7f800000u) {
      half = 0x7e00u | ((rest >> 13) & 0x3ffu);
    } else if (rest >= 0x477ff000u) {  // rounds to more than the largest
      half = 0x7c00u;
    } else if (rest < 0x38800000u) {  // a subnormal half: the sum rounds at its last place
      half = BitCast<std::uint32_t>(BitCast<float>(rest) + 0.5f) - 0x3f000000u;
    } else {
      half = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;
    }
    return static_cast<std::uint16_t>(sign | half);
#endif
  }
};

struct BF16 {
  using Raw = std::uint16_t;
  using Wide = float;

  static PRD_HOST_DEVICE float Widen(std::uint16_t raw) {
    return BitCast<float>(static_cast<std::uint32_t>(raw) << 16);
  }

  static PRD_HOST_DEVICE std::uint16_t Round(float wide) {
#if defined(__CUDA_ARCH__)
    return __bfloat16_as_ushort(__float2bfloat16_rn(wide));
#else
    const std::uint32_t bits = BitCast<std::uint32_t>(wide);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const std::uint32_t quiet_nan = (bits >> 16) | 0x40u;
    return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
#endif
  }
};

// The steps of factor * (sum of weight * input). `one`: the weight or factor is exactly 1, and what
// it would multiply is left as it is.

template <typename T>
PRD_HOST_DEVICE typename T::Raw First(typename T::Raw input, typename T::Wide weight, bool one) {
  return one ? input : T::Round(Multiply(T::Widen(input), weight));
}

template <typename T>
PRD_HOST_DEVICE typename T::Raw Next(typename T::Raw sum, typename T::Raw input,
                                     typename T::Wide weight) {
  return T::Round(Add(T::Widen(sum), Multiply(T::Widen(input), weight)));
}

template <typename T>
PRD_HOST_DEVICE typename T::Raw Last(typename T::Raw sum, typename T::Wide factor, bool one) {
  return First<T>(sum, factor, one);
}

}  // namespace prd::cuda

#endif  // PRD_WORKER_CUDA_ELEMENT_H_
