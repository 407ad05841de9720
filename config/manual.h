// The files that explain the configuration, made from the descriptions of its keys. config/*.toml
// are what these functions give; tests/config/manual_test holds them to it.
#ifndef PRD_CONFIG_MANUAL_H_
#define PRD_CONFIG_MANUAL_H_

#include <string>

#include "engines/any_engine.h"

namespace prd {

// prd.toml: every key there is, with its default, what is allowed and what it is for.
std::string ConfigManual();

// NAME.toml: a job of eight workers under the engine, every option of it at its default.
std::string ConfigSample(const EngineOptions& engine);

}  // namespace prd

#endif  // PRD_CONFIG_MANUAL_H_
