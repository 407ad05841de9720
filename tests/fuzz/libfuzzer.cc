// The same decoders for libFuzzer, which looks for inputs that reach new code.
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/feed.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (std::size_t decoder = 0; decoder < prd::kDecoders; ++decoder) {
    const prd::Fed fed = prd::Feed(decoder, bytes);
    if (!fed.fault.empty()) {
      std::fprintf(stderr, "decoder %zu: %s\n", decoder, fed.fault.c_str());
      std::abort();
    }
  }
  return 0;
}
