// What the history takes of its disk.
#ifndef PRD_SERVER_HISTORY_DISK_USE_H_
#define PRD_SERVER_HISTORY_DISK_USE_H_

#include <cstdint>
#include <string>

namespace prd {

struct DiskUse {
  std::uint64_t bytes = 0;  // of the files in the directory
  std::uint64_t free = 0;   // on its disk, for this process
};

// 0 where the file system does not say.
DiskUse DiskUseOf(const std::string& dir);

}  // namespace prd

#endif  // PRD_SERVER_HISTORY_DISK_USE_H_
