// Heads of HTTP requests, those kept in corpus/http and mutants of them: what the server of
// metrics, probes and page must live through.
//   PRD_FUZZ_SEED        where the mutants start (default 1); a failure names the mutant's
//   PRD_FUZZ_ITERATIONS  how many
#include <gtest/gtest.h>
#include <malloc.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/base/prng.h"
#include "tests/fuzz/http_feed.h"

namespace prd {
namespace {

constexpr std::array<std::string_view, 24> kWords{"\r\n",
                                                  "\r\n\r\n",
                                                  "\n",
                                                  "\r",
                                                  " ",
                                                  "\t",
                                                  ":",
                                                  "?",
                                                  "&",
                                                  "=",
                                                  "%",
                                                  "%00",
                                                  "%2e%2e/",
                                                  "GET ",
                                                  "HEAD ",
                                                  "POST ",
                                                  " HTTP/1.1\r\n",
                                                  " HTTP/1.0\r\n",
                                                  "Host: x\r\n",
                                                  "Content-Length: 1\r\n",
                                                  "Content-Length: 18446744073709551616\r\n",
                                                  "Transfer-Encoding: chunked\r\n",
                                                  "Connection: close\r\n",
                                                  "Expect: 100-continue\r\n"};

std::vector<std::string> Corpus() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(PRD_SOURCE_DIR "/tests/fuzz/corpus/http")) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const auto& path : paths) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    seeds.push_back(text.str());
  }
  return seeds;
}

void Mutate(Prng& prng, std::string* bytes) {
  const std::size_t at = prng.Below(bytes->size() + 1);
  switch (prng.Below(7)) {
    case 0:
    case 1:
    case 2:
      bytes->insert(at, kWords[prng.Below(kWords.size())]);
      return;
    case 3:
      bytes->erase(at, 1 + prng.Below(8));
      return;
    case 4:
      if (at < bytes->size()) (*bytes)[at] = static_cast<char>(prng.Next());
      return;
    case 5:
      bytes->insert(at, bytes->substr(prng.Below(bytes->size() + 1), prng.Below(64)));
      return;
    default:  // long, now and then
      bytes->insert(at, prng.Below(prng.Below(16) == 0 ? 40'000 : 40), 'a');
  }
}

std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

TEST(HttpFuzz, TheServerLivesThroughAnyHead) {
  const std::vector<std::string> seeds = Corpus();
  ASSERT_GE(seeds.size(), 6u);
  HttpTally tally;
  for (const std::string& seed : seeds) EXPECT_EQ(FeedHttp(seed, &tally), "") << seed;
  EXPECT_GE(tally.asked, 5u);
  const std::uint64_t first = FromEnvironment("PRD_FUZZ_SEED", 1);
  const std::uint64_t mutants = FromEnvironment("PRD_FUZZ_ITERATIONS", 4000);
  std::size_t in_use = 0;
  for (std::uint64_t seed = first; seed < first + mutants; ++seed) {
    if (seed == first + mutants / 10) in_use = mallinfo2().uordblks;
    Prng prng(seed);
    std::string bytes = seeds[prng.Below(seeds.size())];
    for (std::uint64_t n = 1 + prng.Below(4); n > 0; --n) Mutate(prng, &bytes);
    ASSERT_EQ(FeedHttp(bytes, &tally), "") << "seed " << seed << ":\n" << bytes;
  }
  // All three happened often, or the mutants prove little.
  EXPECT_GT(tally.asked, mutants / 8);
  EXPECT_GT(tally.refused, mutants / 8);
  EXPECT_GT(tally.silent, mutants / 50);
  EXPECT_LT(mallinfo2().uordblks, in_use + (1 << 20)) << "memory grows with what is refused";
  std::printf("%llu asked, %llu refused, %llu silent\n",
              static_cast<unsigned long long>(tally.asked),
              static_cast<unsigned long long>(tally.refused),
              static_cast<unsigned long long>(tally.silent));
}

}  // namespace
}  // namespace prd
