// What can be done with the options of any engine. Included by engines/registry.h, which says which
// engines there are; include that one.
#ifndef PRD_ENGINES_ANY_ENGINE_H_
#define PRD_ENGINES_ANY_ENGINE_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engines/engine.h"
#include "engines/options.h"

namespace prd {

const EngineAbout& About(const EngineOptions& options);
inline std::string_view EngineName(const EngineOptions& options) { return About(options).name; }

// Every engine with its default options, in the order in which help texts list them.
std::vector<EngineOptions> AllEngines();
// The same engine with its default options.
EngineOptions Defaults(const EngineOptions& of);

void Describe(EngineOptions* options, Fields& fields);

// Ok or "KEY: found X, allowed is Y". `workers` that the job starts with, 0: not known.
Status Validate(const EngineOptions& options, int workers);

// Why one slow worker of so many sets the pace of all with these options (options.h, Paces): a
// sentence, with what would change that. Empty: nothing in the options says so; always so for fewer
// than two workers.
std::string SlowestSetsPace(const EngineOptions& options, int workers);

// REQUIRES: Validate(options, workers) is ok.
std::unique_ptr<Engine> MakeEngine(const EngineOptions& options);

}  // namespace prd

#endif  // PRD_ENGINES_ANY_ENGINE_H_
