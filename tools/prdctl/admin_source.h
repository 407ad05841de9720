// The history of a running daemon, through its admin socket.
#ifndef PRD_TOOLS_PRDCTL_ADMIN_SOURCE_H_
#define PRD_TOOLS_PRDCTL_ADMIN_SOURCE_H_

#include <memory>
#include <optional>
#include <string>

#include "common/io/curve.h"
#include "tools/prdctl/source.h"

namespace prd::ctl {

struct AdminOptions {
  std::string endpoint;
  DurationNs timeout_ns = 3 * kSecond;  // for an answer, besides the time that was asked for
  int stop_fd = -1;                     // becomes readable when the user wants to end; -1: never
  // CURVE, for a daemon that listens on tcp: both or neither.
  std::optional<CurveKeys> keys;
  std::string server_key;  // the daemon's public key
};

// Does not connect yet. Its calls fail with kUnavailable when no daemon answers, with
// kFailedPrecondition when the daemon lets this user or this key not in, and with kCancelled once
// stop_fd is readable.
std::unique_ptr<HistorySource> MakeAdminSource(AdminOptions options);

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_ADMIN_SOURCE_H_
