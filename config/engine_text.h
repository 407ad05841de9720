// An engine and its options in one line, as commands take and print it.
#ifndef PRD_CONFIG_ENGINE_TEXT_H_
#define PRD_CONFIG_ENGINE_TEXT_H_

#include <string>

#include "engines/registry.h"
#include "prd/status.h"

namespace prd {

// NAME or NAME:KEY=VALUE,...: the engine and its options, all others at their defaults. An error
// names the key, what was found and what is allowed.
Result<EngineOptions> ParseEngine(const std::string& text);
// The shortest such text.
std::string EngineText(const EngineOptions& engine);
// What stands after the colon in it: the options that are not at their defaults.
std::string OptionsText(const EngineOptions& engine);

}  // namespace prd

#endif  // PRD_CONFIG_ENGINE_TEXT_H_
