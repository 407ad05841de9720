// Random bits by number instead of in a row: any process computes any of them.
#ifndef PRD_WORKER_EXAMPLES_RANDOM_BITS_H_
#define PRD_WORKER_EXAMPLES_RANDOM_BITS_H_

#include <cstdint>

namespace example {

// SplitMix64's output function (Steele, Lea and Flood, OOPSLA 2014): a bijection that passes for
// random. Mix64(key + counter) is number `counter` of the sequence of `key`.
constexpr std::uint64_t Mix64(std::uint64_t counter) {
  std::uint64_t bits = counter * 0x9e3779b97f4a7c15U;
  bits = (bits ^ (bits >> 30U)) * 0xbf58476d1ce4e5b9U;
  bits = (bits ^ (bits >> 27U)) * 0x94d049bb133111ebU;
  return bits ^ (bits >> 31U);
}

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_RANDOM_BITS_H_
