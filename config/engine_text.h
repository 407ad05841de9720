// An engine and its options in one line, as commands take and print it.
#ifndef PRD_CONFIG_ENGINE_TEXT_H_
#define PRD_CONFIG_ENGINE_TEXT_H_

#include <string>

#include "engines/any_engine.h"
#include "engines/job_spec.h"
#include "prd/status.h"

namespace prd {

// NAME or NAME:KEY=VALUE,...: the engine and its options, all others at their defaults. An error
// names the key, what was found and what is allowed.
Result<EngineOptions> ParseEngine(const std::string& text);
// The shortest such text.
std::string EngineText(const EngineOptions& engine);
// What stands after the colon in it: the options that are not at their defaults.
std::string OptionsText(const EngineOptions& engine);

// What a running job is switched to: `now` with another engine, or with other options of the same
// one, which keeps those that the text does not name. The text is as of ParseEngine; lease_ms and
// heartbeat_ms may stand among the options. With `text` set.
Result<JobSpec> SwitchedSpec(const JobSpec& now, const std::string& text);

}  // namespace prd

#endif  // PRD_CONFIG_ENGINE_TEXT_H_
