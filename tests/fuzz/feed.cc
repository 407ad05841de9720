#include "tests/fuzz/feed.h"

#include <cstring>

#include "common/io/codec.h"
#include "tests/io/random_messages.h"

namespace prd {
namespace {

// Encodings are compared, not values, because a record may hold a NaN.
template <typename T>
Fed Check(Result<T> (*decode)(std::string_view), std::string_view bytes) {
  const Result<T> first = decode(bytes);
  if (!first.ok()) {
    const bool good =
        first.status().code() == Code::kInvalidArgument && !first.status().message().empty();
    return {.accepted = false, .fault = good ? "" : "refused as " + first.status().ToString()};
  }
  const std::string encoded = Encode(*first);
  const Result<T> second = decode(encoded);
  if (!second.ok()) {
    return {.accepted = true, .fault = "its encoding is refused: " + second.status().ToString()};
  }
  return {.accepted = true,
          .fault = Encode(*second) == encoded ? "" : "it changes when encoded once more"};
}

}  // namespace

Fed Feed(std::size_t decoder, std::string_view bytes) {
  switch (decoder) {
    case 0:
      return Check(DecodeWorkerEnvelope, bytes);
    case 1:
      return Check(DecodeControllerEnvelope, bytes);
    case 2:
      return Check(DecodeRecord, bytes);
    case 3:
      return Check(DecodeAdminRequest, bytes);
    default:
      return Check(DecodeAdminReply, bytes);
  }
}

std::string ValidBytes(std::size_t decoder, Prng& prng) {
  const std::size_t kind = prng.Below(16);
  switch (decoder) {
    case 0:
      return Encode(RandomWorkerEnvelope(prng, kind));
    case 1:
      return Encode(RandomControllerEnvelope(prng, kind));
    case 2:
      return Encode(RandomRecord(prng, kind));
    case 3:
      return Encode(RandomAdminRequest(prng, kind));
    default:
      return Encode(RandomAdminReply(prng, kind));
  }
}

void Mutate(Prng& prng, std::string* bytes) {
  if (bytes->empty() || prng.Below(16) == 0) {
    bytes->resize(8 * prng.Below(40) + (prng.Below(4) == 0 ? prng.Below(8) : 0));
    for (char& c : *bytes) c = static_cast<char>(prng.Next());
    // Most noise fails at the segment table; let half of it pass there.
    const std::uint64_t table = (bytes->size() / 8 - 1) << 32;
    if (bytes->size() >= 8 && prng.Below(2) == 0) std::memcpy(bytes->data(), &table, 8);
    return;
  }
  for (std::uint64_t changes = 1 + prng.Below(4); changes > 0; --changes) {
    const std::size_t at = prng.Below(bytes->size());
    switch (prng.Below(7)) {
      case 0:
        (*bytes)[at] ^= static_cast<char>(1 << prng.Below(8));
        break;
      case 1:
        (*bytes)[at] = static_cast<char>(prng.Next());
        break;
      case 2: {  // pointers and counts are words and half words
        const std::uint64_t word = prng.Below(2) == 0 ? prng.Next() : ~0ull >> prng.Below(64);
        const std::size_t size = prng.Below(2) == 0 ? 8 : 4;
        if (bytes->size() < size) break;
        std::memcpy(bytes->data() + prng.Below(bytes->size() / size) * size, &word, size);
        break;
      }
      case 3:  // another word of the same message: pointers that share targets, cycles
        if (bytes->size() >= 16) {
          const std::size_t from = prng.Below(bytes->size() / 8) * 8;
          const std::size_t to = prng.Below(bytes->size() / 8) * 8;
          std::memmove(bytes->data() + to, bytes->data() + from, 8);
        }
        break;
      case 4:
        bytes->resize(bytes->size() / 8 * 8 + 8 * prng.Below(8));
        break;
      case 5:
        bytes->resize(1 + at);
        break;
      default: {  // a small signed step of a pointer's offset or a size
        std::uint32_t half;
        if (bytes->size() >= 4) {
          char* place = bytes->data() + prng.Below(bytes->size() / 4) * 4;
          std::memcpy(&half, place, 4);
          half += static_cast<std::uint32_t>(prng.Below(64)) - 32;
          std::memcpy(place, &half, 4);
        }
      }
    }
    if (bytes->empty()) return;
  }
}

}  // namespace prd
