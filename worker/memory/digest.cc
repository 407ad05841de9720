#include "worker/memory/digest.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace prd {
namespace {

constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15u;       // 2^64 over the golden ratio
constexpr std::uint64_t kOtherOdd = 0xd6e8feb86659fd93u;  // of no meaning

// Products move a difference up, the rotation brings it down again. With one product, a sign would
// become one other bit, which the next word could take back.
inline std::uint64_t Step(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * kOdd, 31) * kOtherOdd;
}

std::uint64_t Finished(std::uint64_t value) {
  for (int i = 0; i < 2; ++i) value = (value ^ (value >> 32)) * kOtherOdd;
  return value ^ (value >> 32);
}

}  // namespace

void Digest::Blocks(const std::byte* data, std::size_t blocks) {
  std::array<std::uint64_t, kLanes> lanes = lanes_;
  for (; blocks > 0; --blocks, data += kBlock) {
    std::array<std::uint64_t, kLanes> words;
    std::memcpy(words.data(), data, kBlock);
    for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = Step(lanes[i], words[i]);
  }
  lanes_ = lanes;
}

void Digest::Add(const std::byte* data, std::size_t bytes) {
  bytes_ += bytes;
  if (rested_ != 0) {
    const std::size_t more = std::min(bytes, kBlock - rested_);
    std::memcpy(rest_.data() + rested_, data, more);
    rested_ += more;
    data += more;
    bytes -= more;
    if (rested_ < kBlock) return;
    Blocks(rest_.data(), 1);
  }
  Blocks(data, bytes / kBlock);
  rested_ = bytes % kBlock;
  if (rested_ != 0) std::memcpy(rest_.data(), data + bytes - rested_, rested_);
}

std::uint64_t Digest::End() {
  if (rested_ != 0) {
    std::fill(rest_.begin() + static_cast<std::ptrdiff_t>(rested_), rest_.end(), std::byte{0});
    Blocks(rest_.data(), 1);
  }
  std::uint64_t digest = Finished(bytes_ + 1);
  for (const std::uint64_t lane : lanes_) digest = Finished(digest * kOdd + lane);
  return digest == 0 ? 1 : digest;
}

// ---- finite values ----

namespace {

// A value is not finite if all bits of its exponent are set: one more at the exponent's last place
// then carries into the sign's.
template <typename Word, Word kOne>
bool AllFinite(const std::byte* data, std::size_t count) {
  constexpr Word kSign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
  constexpr Word kRest = static_cast<Word>(~kSign);
  Word carries = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, data + i * sizeof word, sizeof word);
    carries = static_cast<Word>(carries | static_cast<Word>((word & kRest) + kOne));
  }
  return (carries & kSign) == 0;
}

// A block at a time, so that the search ends soon after what it finds.
template <typename Word, Word kOne>
std::optional<std::size_t> First(const std::byte* data, std::size_t bytes) {
  constexpr std::size_t kBlock = 4096 / sizeof(Word);
  const std::size_t count = bytes / sizeof(Word);
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t block = std::min(kBlock, count - begin);
    const std::byte* from = data + begin * sizeof(Word);
    if (AllFinite<Word, kOne>(from, block)) continue;
    std::size_t i = 0;
    while (AllFinite<Word, kOne>(from + i * sizeof(Word), 1)) ++i;
    return begin + i;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::size_t> FirstNonfinite(DType dtype, const std::byte* data, std::size_t bytes) {
  switch (dtype) {
    case DType::kF32:
      return First<std::uint32_t, 0x00800000u>(data, bytes);
    case DType::kF64:
      return First<std::uint64_t, 0x0010000000000000u>(data, bytes);
    case DType::kF16:
      return First<std::uint16_t, 0x0400u>(data, bytes);
    case DType::kBF16:
      return First<std::uint16_t, 0x0080u>(data, bytes);
  }
  return std::nullopt;
}

}  // namespace prd
