#include "engines/registry.h"

#include <algorithm>

namespace prd {
namespace {

std::vector<EngineOptions>& Engines() {
  static std::vector<EngineOptions> engines = BuiltIn::Defaults();
  return engines;
}

}  // namespace

EngineOptions::EngineOptions() : EngineOptions(AllEngines().front()) {}

const std::vector<EngineOptions>& AllEngines() { return Engines(); }

void RegisterEngine(EngineOptions defaults) { Engines().push_back(std::move(defaults)); }

const EngineOptions& Defaults(const EngineOptions& of) {
  const auto& all = AllEngines();
  const auto found = std::find_if(all.begin(), all.end(), [&](const EngineOptions& engine) {
    return EngineName(engine) == EngineName(of);
  });
  PRD_CHECK(found != all.end());
  return *found;
}

Status Validate(const EngineOptions& options, int workers) {
  RangeChecker ranges;
  EngineOptions copy = options;  // a Fields may write what it is shown
  copy.Describe(ranges);
  PRD_RETURN_IF_ERROR(ranges.status());
  return options.Check(workers);
}

std::string SlowestSetsPace(const EngineOptions& options, int workers) {
  return workers < 2 ? std::string() : options.Paces(workers);
}

}  // namespace prd
