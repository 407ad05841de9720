#include "common/io/process_growth.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

namespace prd {

ProcessGrowth::ProcessGrowth(long bytes)
    : growth_(bytes / ::sysconf(_SC_PAGESIZE)),
      memory_(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC)) {}

ProcessGrowth::~ProcessGrowth() {
  if (memory_ >= 0) ::close(memory_);
}

bool ProcessGrowth::Grown() {
  char text[128] = {};
  if (memory_ < 0 || ::pread(memory_, text, sizeof text - 1, 0) <= 0) return true;
  char* rest = nullptr;
  (void)std::strtol(text, &rest, 10);
  const long pages = std::strtol(rest, nullptr, 10);
  const bool grown = pages - pages_ > growth_;
  if (grown || pages < pages_) pages_ = pages;
  return grown;
}

}  // namespace prd
