#include "engines/esync/options.h"

#include <string>

namespace prd {

namespace {

constexpr std::int64_t kLongestMarginMs = 3'600'000;
constexpr std::int64_t kLargestStallFactor = 1000;
constexpr double kMostGlobalLr = 10;

Status Wrong(const std::string& key, const std::string& found, const std::string& allowed) {
  return Status(Code::kInvalidArgument, key + ": found " + found + ", allowed is " + allowed);
}

}  // namespace

Status Validate(const EsyncOptions& options, int) {
  if (options.margin_ms < 0 || options.margin_ms > kLongestMarginMs) {
    return Wrong("margin_ms", std::to_string(options.margin_ms),
                 "0 to " + std::to_string(kLongestMarginMs));
  }
  if (!(options.global_lr > 0 && options.global_lr < kMostGlobalLr)) {
    return Wrong("global_lr", std::to_string(options.global_lr), "more than 0 and less than 10");
  }
  if (options.stall_factor != 0 &&
      (options.stall_factor < 2 || options.stall_factor > kLargestStallFactor)) {
    return Wrong("stall_factor", std::to_string(options.stall_factor),
                 "0 (off) or 2 to " + std::to_string(kLargestStallFactor));
  }
  return Status::Ok();
}

}  // namespace prd
