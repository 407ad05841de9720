// The files of the page, as they are in the program (tools/prdctl/page, embed.cmake).
#ifndef PRD_TOOLS_PRDCTL_PAGE_H_
#define PRD_TOOLS_PRDCTL_PAGE_H_

#include <string_view>
#include <vector>

namespace prd::ctl {

struct PageFile {
  const char* name;  // "" is the page itself
  const char* type;
  std::string_view content;
};

const std::vector<PageFile>& PageFiles();

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_PAGE_H_
