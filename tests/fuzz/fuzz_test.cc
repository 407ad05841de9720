// A few million random and mutated messages for every decoder together: none crashes it, leaks,
// is refused without a reason, or is accepted and then changes.
//   PRD_FUZZ_ITERATIONS  messages (default 3 million; 200 thousand under sanitizers)
//   PRD_FUZZ_SEED        where they start (default 1); a failure names it
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/fuzz/feed.h"

namespace prd {
namespace {

#if defined(PRD_ADDRESS_SANITIZER) || defined(PRD_THREAD_SANITIZER)
constexpr std::uint64_t kIterations = 200'000;
#else
constexpr std::uint64_t kIterations = 3'000'000;
#endif

std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

std::string Hex(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

TEST(Fuzz, DecodersLiveThroughAnything) {
  const std::uint64_t iterations = FromEnvironment("PRD_FUZZ_ITERATIONS", kIterations);
  const std::uint64_t seed = FromEnvironment("PRD_FUZZ_SEED", 1);
  Prng prng(seed);
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;
  std::uint64_t open = 0;  // fed to decoders whose messages anybody can make
  std::size_t in_use = 0;
  std::size_t decoder = 0;
  std::string bytes;
  for (std::uint64_t i = 0; i < iterations; ++i) {
    if (i == iterations / 10) in_use = mallinfo2().uordblks;
    if (i % 4 == 0) {  // then three more generations of mutants
      decoder = prng.Below(kDecoders);
      bytes = ValidBytes(decoder, prng);
    }
    Mutate(prng, &bytes);
    const Fed fed = Feed(prng.Below(8) == 0 ? prng.Below(kDecoders) : decoder, bytes);
    ASSERT_EQ(fed.fault, "") << "message " << i << " of seed " << seed << ": " << Hex(bytes);
    ++(fed.accepted ? accepted : refused);
    // What is sealed does not open once it has been changed.
    open += decoder < kDecoders - 2 ? 1 : 0;
  }
  // Both happened often, or the mutations prove little.
  EXPECT_GT(accepted, open / 10);
  EXPECT_GT(refused, iterations / 10);
  EXPECT_LT(mallinfo2().uordblks, in_use + (1 << 20)) << "memory grows with refused messages";
  std::printf("%llu accepted, %llu refused\n", static_cast<unsigned long long>(accepted),
              static_cast<unsigned long long>(refused));
}

// Where libFuzzer begins: a small message of each kind. PRD_REWRITE=1 writes those that are missing
// or that the decoder does not take any more.
TEST(Corpus, HasEveryKindOfEveryDecoder) {
  const std::filesystem::path folder = PRD_SOURCE_DIR "/tests/fuzz/corpus/codec";
  const bool rewrite = std::getenv("PRD_REWRITE") != nullptr;
  std::size_t all = 0;
  for (std::size_t decoder = 0; decoder < kDecoders; ++decoder) {
    const DecoderKinds kinds = KindsOf(decoder);
    for (std::size_t kind = 0; kind < kinds.kinds; ++kind) {
      const auto file = folder / (kinds.name + ("-" + std::to_string(kind)));
      std::ostringstream bytes;
      bytes << std::ifstream(file, std::ios::binary).rdbuf();
      std::string seed = bytes.str();
      if (rewrite && !Feed(decoder, seed).accepted) {
        Prng prng(1 + kind);
        seed = ValidBytes(decoder, kind, prng);
        for (int i = 0; i < 100; ++i) {
          const std::string other = ValidBytes(decoder, kind, prng);
          if (other.size() < seed.size()) seed = other;
        }
        std::ofstream(file, std::ios::binary) << seed;
      }
      EXPECT_TRUE(Feed(decoder, seed).accepted) << "PRD_REWRITE=1 fuzz_test writes " << file;
      all += seed.size();
    }
  }
  EXPECT_LT(all, 200'000u);
}

}  // namespace
}  // namespace prd
