// The history of a running daemon, through its admin socket.
#ifndef PRD_TOOLS_PRDCTL_ADMIN_SOURCE_H_
#define PRD_TOOLS_PRDCTL_ADMIN_SOURCE_H_

#include <functional>
#include <memory>
#include <string>

#include "tools/prdctl/source.h"

namespace prd::ctl {

struct AdminOptions {
  std::string endpoint;
  DurationNs timeout_ns = 3 * kSecond;  // for an answer, besides the time that was asked for
  std::function<bool()> stop;           // asked when a signal interrupts the waiting; may be null
};

// Does not connect yet. Its calls fail with kUnavailable when no daemon answers, and with
// kCancelled when `stop` says so.
std::unique_ptr<HistorySource> MakeAdminSource(AdminOptions options);

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_ADMIN_SOURCE_H_
