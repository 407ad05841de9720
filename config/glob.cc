#include "config/glob.h"

namespace prd {
namespace {

// `fits`: a character of the pattern, but *, takes one of the text.
template <typename Fits>
bool Matches(std::string_view pattern, std::string_view text, Fits fits) {
  // On a mismatch only the last star has to give: an earlier one could gain nothing by taking more.
  std::size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && fits(pattern[p], text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace

bool GlobMatches(std::string_view pattern, std::string_view text) {
  return Matches(pattern, text, [](char p, char t) { return p == '?' || p == t; });
}

bool GlobCovers(std::string_view pattern, std::string_view other) {
  // A * of the other one may be any run of characters, which a * alone takes.
  return Matches(pattern, other, [](char p, char o) { return o != '*' && (p == '?' || p == o); });
}

}  // namespace prd
