// What prdctl's commands print of a run that is given as records.
#ifndef PRD_TESTS_TOOLS_PRDCTL_PRINTED_H_
#define PRD_TESTS_TOOLS_PRDCTL_PRINTED_H_

#include <gtest/gtest.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/prdctl/story.h"
#include "tools/prdctl/commands.h"
#include "tools/prdctl/json.h"

namespace prd::ctl {

inline MemorySource SourceOf(const std::vector<Record>& records) {
  MemorySource source;
  source.Add(InfoOf(records), records);
  return source;
}

inline std::string Text(const std::function<Status(const Console&)>& command) {
  std::ostringstream out;
  const Status status = command({.out = out, .json = false, .stop = nullptr});
  return status.ok() ? out.str() : status.ToString();
}

inline Json Printed(const std::function<Status(const Console&)>& command) {
  std::ostringstream out;
  const Status status = command({.out = out, .json = true, .stop = nullptr});
  EXPECT_TRUE(status.ok()) << status.ToString();
  return Json::parse(out.str());
}

}  // namespace prd::ctl

#endif  // PRD_TESTS_TOOLS_PRDCTL_PRINTED_H_
