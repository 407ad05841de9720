#include "engines/registry.h"

#include <cstddef>
#include <utility>

namespace prd {
namespace {

template <std::size_t... kIndex>
std::vector<EngineOptions> AllOf(std::index_sequence<kIndex...>) {
  static_assert((OptionsOfAnEngine<std::variant_alternative_t<kIndex, EngineOptions>> && ...));
  return {EngineOptions(std::in_place_index<kIndex>)...};
}

}  // namespace

const EngineAbout& About(const EngineOptions& options) {
  return std::visit([](const auto& of) -> const EngineAbout& { return of.kAbout; }, options);
}

std::vector<EngineOptions> AllEngines() {
  return AllOf(std::make_index_sequence<std::variant_size_v<EngineOptions>>());
}

EngineOptions Defaults(const EngineOptions& of) { return AllEngines()[of.index()]; }

void Describe(EngineOptions* options, Fields& fields) {
  std::visit([&](auto& of) { of.Describe(fields); }, *options);
}

Status Validate(const EngineOptions& options, int workers) {
  RangeChecker ranges;
  EngineOptions copy = options;  // a Fields may write what it is shown
  Describe(&copy, ranges);
  PRD_RETURN_IF_ERROR(ranges.status());
  return std::visit([workers](const auto& of) { return of.Check(workers); }, options);
}

std::string SlowestSetsPace(const EngineOptions& options, int workers) {
  if (workers < 2) return {};
  return std::visit([workers](const auto& of) { return of.Paces(workers); }, options);
}

std::unique_ptr<Engine> MakeEngine(const EngineOptions& options) {
  return std::visit([](const auto& of) { return of.Make(); }, options);
}

}  // namespace prd
