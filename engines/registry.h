// The engines that prd has. The only place that names them all: adding an engine means its folder,
// and its #include and its word in BuiltIn here. Code that can do with any engine includes
// any_engine.h instead.
#ifndef PRD_ENGINES_REGISTRY_H_
#define PRD_ENGINES_REGISTRY_H_

#include "engines/ad_psgd/options.h"
#include "engines/all_reduce/options.h"
#include "engines/any_engine.h"  // IWYU pragma: export
#include "engines/backup/options.h"
#include "engines/eager/options.h"
#include "engines/esync/options.h"
#include "engines/hop/options.h"
#include "engines/p_reduce/options.h"
#include "engines/prague/options.h"
#include "engines/ssp/options.h"

namespace prd {

template <typename... T>
struct EngineList {
  // Calls `visit` with the options as what they are. False, and no call: they are of none of these.
  template <typename Visitor>
  static bool Visit(EngineOptions& options, Visitor visit) {
    const auto as = [&](auto* of) {
      if (of != nullptr) visit(*of);
      return of != nullptr;
    };
    return (as(options.As<T>()) || ...);
  }
  static std::vector<EngineOptions> Defaults() { return {EngineOptions(T{})...}; }
};

// In the order in which help texts list them.
using BuiltIn = EngineList<AllReduceOptions, PReduceOptions, EagerOptions, BackupOptions,
                           EsyncOptions, PragueOptions, AdPsgdOptions, HopOptions, SspOptions>;

}  // namespace prd

#endif  // PRD_ENGINES_REGISTRY_H_
