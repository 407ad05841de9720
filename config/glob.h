// Patterns of job names.
#ifndef PRD_CONFIG_GLOB_H_
#define PRD_CONFIG_GLOB_H_

#include <string_view>

namespace prd {

// True when the whole text matches: * is any run of characters, ? any one, all others themselves.
// Time is at most the product of the lengths, whatever the pattern.
bool GlobMatches(std::string_view pattern, std::string_view text);
// True only when all that the second pattern matches is matched by the first.
bool GlobCovers(std::string_view pattern, std::string_view other);

}  // namespace prd

#endif  // PRD_CONFIG_GLOB_H_
