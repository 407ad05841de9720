// What values are, in short: a digest of their bits, and whether they are all finite. Both at about
// the speed at which memory is read.
#ifndef PRD_WORKER_MEMORY_DIGEST_H_
#define PRD_WORKER_MEMORY_DIGEST_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "prd/replica.h"

namespace prd {

// The digest of a sequence of bytes, however it is cut. Two that differ have the same digest with a
// probability of about 2^-64. Not for bytes that somebody chose.
class Digest {
 public:
  void Add(const std::byte* data, std::size_t bytes);
  // The digest of all that was added; never 0. Once.
  std::uint64_t End();

 private:
  static constexpr std::size_t kLanes = 8;
  static constexpr std::size_t kBlock = kLanes * sizeof(std::uint64_t);

  void Blocks(const std::byte* data, std::size_t blocks);

  std::array<std::uint64_t, kLanes> lanes_{1, 2, 3, 4, 5, 6, 7, 8};
  std::array<std::byte, kBlock> rest_{};  // less than a block
  std::size_t rested_ = 0;
  std::uint64_t bytes_ = 0;
};

// The place of the first of these elements that is infinite or no number; nullopt: all are finite.
// `data` may be misaligned; `bytes` is a multiple of the element size.
std::optional<std::size_t> FirstNonfinite(DType dtype, const std::byte* data, std::size_t bytes);

}  // namespace prd

#endif  // PRD_WORKER_MEMORY_DIGEST_H_
