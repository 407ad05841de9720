// The history of a stopped daemon, from the files in its state directory.
#ifndef PRD_TOOLS_PRDCTL_FILES_SOURCE_H_
#define PRD_TOOLS_PRDCTL_FILES_SOURCE_H_

#include <memory>
#include <string>

#include "tools/prdctl/source.h"

namespace prd::ctl {

// Opens them for reading only; a daemon may run beside, what it records later is not seen.
// kNotFound when there is no history in the directory.
Result<std::unique_ptr<HistorySource>> OpenFilesSource(const std::string& state_dir);

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_FILES_SOURCE_H_
