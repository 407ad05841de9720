#include "worker/examples/inject.h"

#include <charconv>
#include <cmath>

#include "worker/examples/random_bits.h"

namespace example {
namespace {

constexpr double kMaxMs = 3'600'000;

bool ReadNumber(const char** from, const char* end, double low, double high, double* number) {
  if (*from == end || **from != ':') return false;
  const auto read = std::from_chars(*from + 1, end, *number);
  *from = read.ptr;
  return read.ec == std::errc() && *number >= low && *number <= high;
}

bool ReadMs(const char** from, const char* end, double* ms) {
  return ReadNumber(from, end, 0, kMaxMs, ms);
}

std::int64_t Ns(double ms) { return std::llround(ms * 1e6); }

}  // namespace

std::string ParseInjection(const std::string& text, Injection* injection) {
  const std::string name = text.substr(0, text.find(':'));
  const char* from = text.data() + name.size();
  const char* end = text.data() + text.size();
  Injection read;
  bool right = false;
  if (name == "one") {
    read.kind = Injection::Kind::kOne;
    right = ReadMs(&from, end, &read.max_ms);
  } else if (name == "shifted") {
    read.kind = Injection::Kind::kShifted;
    right = ReadMs(&from, end, &read.min_ms) && ReadMs(&from, end, &read.max_ms) &&
            read.min_ms <= read.max_ms;
  } else if (name == "random") {
    read.kind = Injection::Kind::kRandom;
    right =
        ReadNumber(&from, end, 1, 1000, &read.factor) &&
        (from == end || (ReadNumber(&from, end, 0, 1, &read.probability) && read.probability > 0));
  }
  if (!right || from != end) {
    return "found '" + text +
           "', allowed is one:MS or shifted:MIN:MAX with milliseconds from 0 to 3600000, MIN <= "
           "MAX, or random:FACTOR or random:FACTOR:P with FACTOR 1 to 1000, P up to 1";
  }
  *injection = read;
  return "";
}

std::int64_t DelayNs(const Injection& injection, std::uint64_t seed, int rank, int workers,
                     std::int64_t step, std::int64_t step_ns) {
  switch (injection.kind) {
    case Injection::Kind::kNone:
      return 0;
    case Injection::Kind::kOne: {
      const std::uint64_t bits = Mix64(Mix64(seed) + static_cast<std::uint64_t>(step));
      const bool drawn =
          bits % static_cast<std::uint64_t>(workers) == static_cast<std::uint64_t>(rank);
      return drawn ? Ns(injection.max_ms) : 0;
    }
    case Injection::Kind::kShifted: {
      const auto place = static_cast<double>((rank + step) % workers);
      const double share = workers > 1 ? place / (workers - 1) : 0;
      return Ns(injection.min_ms + share * (injection.max_ms - injection.min_ms));
    }
    case Injection::Kind::kRandom: {
      const std::uint64_t own = Mix64(Mix64(seed) + static_cast<std::uint64_t>(rank));
      const std::uint64_t bits = Mix64(own + static_cast<std::uint64_t>(step)) >> 11U;
      const double p = injection.probability > 0 ? injection.probability : 1.0 / workers;
      const bool drawn = static_cast<double>(bits) * 0x1p-53 < p;
      return drawn ? std::llround((injection.factor - 1) * static_cast<double>(step_ns)) : 0;
    }
  }
  return 0;
}

}  // namespace example
