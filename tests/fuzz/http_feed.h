// Hostile bytes for an HTTP server: what comes over a connection, in one piece and in many.
#ifndef PRD_TESTS_FUZZ_HTTP_FEED_H_
#define PRD_TESTS_FUZZ_HTTP_FEED_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace prd {

// How often it has come to something; if never, bytes prove little.
struct HttpTally {
  std::uint64_t asked = 0;    // requests that the handler was given
  std::uint64_t refused = 0;  // connections that heard of an error
  std::uint64_t silent = 0;   // connections that heard nothing
};

// Returns what should not have happened, or nothing: the handler was given a head over its bound,
// or another request when the same bytes came in other pieces; an answer is none of HTTP; a
// connection outlived its deadlines.
std::string FeedHttp(std::string_view bytes, HttpTally* tally);

}  // namespace prd

#endif  // PRD_TESTS_FUZZ_HTTP_FEED_H_
