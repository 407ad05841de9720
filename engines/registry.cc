#include "engines/registry.h"

#include <algorithm>

namespace prd {
namespace {

std::vector<EngineOptions>& Engines() {
  static std::vector<EngineOptions> engines = BuiltIn::Defaults();
  return engines;
}

std::vector<EngineOptions>::const_iterator Find(std::string_view name) {
  return std::find_if(Engines().begin(), Engines().end(),
                      [name](const EngineOptions& engine) { return EngineName(engine) == name; });
}

}  // namespace

EngineOptions::EngineOptions() : EngineOptions(AllEngines().front()) {}

const std::vector<EngineOptions>& AllEngines() { return Engines(); }

void RegisterEngine(EngineOptions defaults) {
  PRD_CHECK(Find(EngineName(defaults)) == Engines().end());
  Engines().push_back(std::move(defaults));
}

const EngineOptions& Defaults(const EngineOptions& of) {
  const auto found = Find(EngineName(of));
  PRD_CHECK(found != Engines().end());
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
