#include "engines/rules.h"

#include "engines/ad_psgd/rules.h"
#include "engines/all_reduce/rules.h"
#include "engines/backup/rules.h"
#include "engines/eager/rules.h"
#include "engines/esync/rules.h"
#include "engines/hop/rules.h"
#include "engines/p_reduce/rules.h"
#include "engines/prague/rules.h"
#include "engines/ssp/rules.h"

namespace prd {

std::unique_ptr<EngineRules> MakeRules(const EngineOptions& options) {
  return std::visit([](const auto& of) -> std::unique_ptr<EngineRules> { return MakeRules(of); },
                    options);
}

}  // namespace prd
