// Small words for reasons: the same spelling in every engine, the log and prdctl.
#ifndef PRD_ENGINES_WORDS_H_
#define PRD_ENGINES_WORDS_H_

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/time.h"

namespace prd::words {

// "850 ns", "31.4 us", "3.1 ms", "2.5 s".
inline std::string Duration(DurationNs ns) {
  char text[32];
  const double value = static_cast<double>(ns);
  if (ns < kMicrosecond) {
    std::snprintf(text, sizeof text, "%lld ns", static_cast<long long>(ns));
  } else if (ns < kMillisecond) {
    std::snprintf(text, sizeof text, "%.1f us", value / 1e3);
  } else if (ns < kSecond) {
    std::snprintf(text, sizeof text, "%.1f ms", value / 1e6);
  } else {
    std::snprintf(text, sizeof text, "%.1f s", value / 1e9);
  }
  return text;
}

// "rank 3", "ranks 0, 2, 5", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more", "nobody". `count`: how
// many there are, where `ranks` is only the first of them.
inline std::string Ranks(const std::vector<Rank>& ranks, std::size_t count) {
  constexpr std::size_t kShown = 8;
  if (ranks.empty()) return "nobody";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < kShown; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
  }
  const std::size_t shown = std::min(ranks.size(), kShown);
  if (count > shown) text += " and " + std::to_string(count - shown) + " more";
  return text;
}
inline std::string Ranks(const std::vector<Rank>& ranks) { return Ranks(ranks, ranks.size()); }

}  // namespace prd::words

#endif  // PRD_ENGINES_WORDS_H_
