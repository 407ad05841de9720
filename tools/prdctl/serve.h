// `prdctl serve`: a page that shows runs in a browser.
//
// It is read-only and for this host: it listens on a loopback address, and every path begins with a
// token that is drawn at the start, so that other users of the host see nothing. The page is in
// the program, and asks no other host for anything.
#ifndef PRD_TOOLS_PRDCTL_SERVE_H_
#define PRD_TOOLS_PRDCTL_SERVE_H_

#include <string>

#include "tools/prdctl/commands.h"
#include "tools/prdctl/source.h"

namespace prd::ctl {

// "127.0.0.1:8270", "[::1]:0"; port 0: any free one. Prints the page's address, and serves it until
// console.stop() is true.
Status Serve(HistorySource& source, const std::string& listen, const Console& console);

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_SERVE_H_
