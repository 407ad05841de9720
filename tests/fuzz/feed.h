// Hostile bytes for the codec, for what workers tell each other about communicators, for what they
// show at a mesh's door, and for sealed frames: what every decoder must live through.
#ifndef PRD_TESTS_FUZZ_FEED_H_
#define PRD_TESTS_FUZZ_FEED_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/prng.h"

namespace prd {

inline constexpr std::size_t kDecoders = 8;

struct Fed {
  bool accepted = false;
  // What should not have happened, or empty: a refusal without a reason or with another code, a
  // message that changes when it is encoded and decoded once more, or one beyond its limits.
  std::string fault;
};
Fed Feed(std::size_t decoder, std::string_view bytes);

// What it is called, and how many kinds of messages it has.
struct DecoderKinds {
  const char* name;
  std::size_t kinds;
};
DecoderKinds KindsOf(std::size_t decoder);

// A valid message of this kind for this decoder.
std::string ValidBytes(std::size_t decoder, std::size_t kind, Prng& prng);
// A message of any kind.
std::string ValidBytes(std::size_t decoder, Prng& prng);

// Bytes that may or may not be a message: pure noise, or *bytes with a few bits, bytes, words or
// ends changed.
void Mutate(Prng& prng, std::string* bytes);

}  // namespace prd

#endif  // PRD_TESTS_FUZZ_FEED_H_
