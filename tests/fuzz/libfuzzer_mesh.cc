// The scripts of mesh_feed.h for libFuzzer: PRD_FEED says which.
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/mesh_feed.h"

namespace {

prd::MeshTally tally;

void Tell() {
  std::fprintf(stderr, "%llu knocks, %llu admitted; %llu frames, %llu counted, %llu forged\n",
               static_cast<unsigned long long>(tally.knocks),
               static_cast<unsigned long long>(tally.admitted),
               static_cast<unsigned long long>(tally.frames),
               static_cast<unsigned long long>(tally.counted),
               static_cast<unsigned long long>(tally.forged));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  static const int told = std::atexit(Tell);
  (void)told;
  const std::string fault = prd::PRD_FEED({reinterpret_cast<const char*>(data), size}, &tally);
  if (!fault.empty()) {
    std::fprintf(stderr, "%s\n", fault.c_str());
    std::abort();
  }
  return 0;
}
