// The engines there are, by name. The only place that names them all: adding an engine means its
// folder, one line in EngineOptions, and one each in the three functions below.
#ifndef PRD_ENGINES_REGISTRY_H_
#define PRD_ENGINES_REGISTRY_H_

#include <memory>
#include <string_view>
#include <variant>
#include <vector>

#include "engines/ad_psgd/options.h"
#include "engines/all_reduce/options.h"
#include "engines/backup/options.h"
#include "engines/eager/options.h"
#include "engines/engine.h"
#include "engines/esync/options.h"
#include "engines/hop/options.h"
#include "engines/p_reduce/options.h"
#include "engines/prague/options.h"
#include "engines/ssp/options.h"

namespace prd {

using EngineOptions =
    std::variant<AllReduceOptions, PReduceOptions, EagerOptions, BackupOptions, EsyncOptions,
                 PragueOptions, AdPsgdOptions, HopOptions, SspOptions>;

// The engine's name in config files, commands and history: "all-reduce", "p-reduce", "eager", ...
std::string_view EngineName(const EngineOptions& options);

// Every engine with its default options, in the order in which help texts list them.
std::vector<EngineOptions> AllEngines();

// REQUIRES: Validate(options, workers) is ok.
Status Validate(const EngineOptions& options, int workers);
std::unique_ptr<Engine> MakeEngine(const EngineOptions& options);

}  // namespace prd

#endif  // PRD_ENGINES_REGISTRY_H_
