// A small seeded generator with the same sequence on every platform (splitmix64: Steele, Lea and
// Flood, OOPSLA 2014). For engines, simulations and tests; never for secrets.
#ifndef PRD_COMMON_BASE_PRNG_H_
#define PRD_COMMON_BASE_PRNG_H_

#include <cstdint>

namespace prd {

class Prng {
 public:
  explicit Prng(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // Uniform in [0, bound). REQUIRES: bound > 0.
  std::uint64_t Below(std::uint64_t bound) {
    const std::uint64_t limit = -bound % bound;  // values under it would favour small results
    std::uint64_t value = Next();
    while (value < limit) value = Next();
    return value % bound;
  }

  // Uniform in [0, 1), 53 bits.
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

 private:
  std::uint64_t state_;
};

// Spreads a value over all 64 bits, the same way in every run.
inline std::uint64_t Mixed(std::uint64_t value) { return Prng(value).Next(); }

}  // namespace prd

#endif  // PRD_COMMON_BASE_PRNG_H_
