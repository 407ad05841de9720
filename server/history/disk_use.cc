#include "server/history/disk_use.h"

#include <filesystem>
#include <system_error>

namespace prd {

DiskUse DiskUseOf(const std::string& dir) {
  namespace fs = std::filesystem;
  DiskUse use;
  std::error_code error;
  // RocksDB removes files meanwhile.
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;
    const std::uintmax_t bytes = at->file_size(gone);
    if (!gone) use.bytes += bytes;
  }
  const fs::space_info space = fs::space(dir, error);
  if (!error) use.free = space.available;
  return use;
}

}  // namespace prd
