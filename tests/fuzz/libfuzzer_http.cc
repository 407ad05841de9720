// The same for libFuzzer: http_feed.h says what is held to what.
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/http_feed.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  static prd::HttpTally tally;
  const std::string fault = prd::FeedHttp({reinterpret_cast<const char*>(data), size}, &tally);
  if (!fault.empty()) {
    std::fprintf(stderr, "%s\n", fault.c_str());
    std::abort();
  }
  return 0;
}
