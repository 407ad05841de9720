// Records and groups as JSON, for --json and export. Times are ns on the controller's clock.
#ifndef PRD_TOOLS_PRDCTL_JSON_H_
#define PRD_TOOLS_PRDCTL_JSON_H_

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/admin.h"
#include "common/base/history.h"
#include "engines/engine.h"
#include "tools/prdctl/meters.h"
#include "tools/prdctl/schedule.h"

namespace prd::ctl {

using Json = nlohmann::ordered_json;  // keys stay in the order in which they are written

// "starting", "running", "finished", "left", "switched", "lost", "never began"; "ended" of runs of
// older versions.
const char* StateOfRun(const RunInfo& run);
Json ToJson(const RunInfo& run);
Json ToJson(const Record& record);
// Times also as seconds since `start`.
Json ToJson(const GroupRow& group, Instant start);
// Not formed yet; "state" is DrawnWord.
Json ToJson(const Engine::Drawn& group);
Json ToJson(const ScheduleRow& schedule, Instant start);

// "pending" (a member has asked for it) or "buffered" (there for when they ask).
const char* DrawnWord(const Engine::Drawn& group);

// One line without line breaks; bytes from workers that are not UTF-8 are replaced.
std::string Dump(const Json& json);

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_JSON_H_
