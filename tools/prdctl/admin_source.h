// The history of a running daemon, through its admin socket.
#ifndef PRD_TOOLS_PRDCTL_ADMIN_SOURCE_H_
#define PRD_TOOLS_PRDCTL_ADMIN_SOURCE_H_

#include <memory>
#include <string>

#include "tools/prdctl/source.h"

namespace prd::ctl {

struct AdminOptions {
  std::string endpoint;
  DurationNs timeout_ns = 3 * kSecond;  // for an answer, besides the time that was asked for
  int stop_fd = -1;                     // becomes readable when the user wants to end; -1: never
};

// Does not connect yet. Its calls fail with kUnavailable when no daemon answers, and with
// kCancelled once stop_fd is readable.
std::unique_ptr<HistorySource> MakeAdminSource(AdminOptions options);

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_ADMIN_SOURCE_H_
