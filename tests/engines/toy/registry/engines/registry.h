// engines/registry.h as it is for a tree with one engine more. The compiler finds this file before
// that one: see tests/engines/toy/CMakeLists.txt.
#ifndef PRD_ENGINES_REGISTRY_H_
#define PRD_ENGINES_REGISTRY_H_

#include <variant>

#include "engines/ad_psgd/options.h"
#include "engines/all_reduce/options.h"
#include "engines/backup/options.h"
#include "engines/eager/options.h"
#include "engines/esync/options.h"
#include "engines/hop/options.h"
#include "engines/p_reduce/options.h"
#include "engines/prague/options.h"
#include "engines/ssp/options.h"
#include "tests/engines/toy/options.h"

namespace prd {

// In the order in which help texts list them.
using EngineOptions =
    std::variant<AllReduceOptions, PReduceOptions, EagerOptions, BackupOptions, EsyncOptions,
                 PragueOptions, AdPsgdOptions, HopOptions, SspOptions, ToyOptions>;

}  // namespace prd

#include "engines/any_engine.h"  // IWYU pragma: export

#endif  // PRD_ENGINES_REGISTRY_H_
