// What an engine's options are made of. They are described once, in engines/NAME/options.h; the
// config and its manual, prdsim, prdctl and `prd --engines-json` all read that description.
#ifndef PRD_ENGINES_OPTIONS_H_
#define PRD_ENGINES_OPTIONS_H_

#include <concepts>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/fields.h"
#include "common/base/prng.h"
#include "prd/status.h"

namespace prd {

class Engine;
class EngineRules;

struct EngineAbout {
  std::string_view name;   // in config files, commands and the history
  std::string_view paper;  // "Chen et al., 2016"; empty: none
  std::string_view help;   // what the engine does, and for which jobs: for the manual
};

// The options of one engine: a struct whose members' initial values are the defaults, and
//
//   static constexpr EngineAbout kAbout = {...};
//   void Describe(Fields& fields);         names every key
//   Status Check(int workers) const;       what no key alone can say: ok or Wrong(). `workers` that
//                                          the job starts with, 0: not known
//   std::string Paces(int workers) const;  why, with these options, one of so many workers that is
//                                          always slow sets the pace of all, and what would change
//                                          that: a sentence; empty where nothing in them does
//   std::unique_ptr<Engine> Make() const;  REQUIRES: every key is in its range, Check is ok
//   std::unique_ptr<EngineRules> Rules() const;
//                                          its invariants, for the simulator and tests (rules.h)
//
// and, where keys that are drawn at random one by one do not go together,
//
//   void Fit(Prng* prng, int workers);     makes them go together
template <typename T>
concept OptionsOfAnEngine = std::equality_comparable<T> &&
    requires(T options, const T& of, Fields& fields, int workers) {
  { T::kAbout } -> std::convertible_to<EngineAbout>;
  options.Describe(fields);
  { of.Check(workers) } -> std::same_as<Status>;
  { of.Paces(workers) } -> std::same_as<std::string>;
  { of.Make() } -> std::same_as<std::unique_ptr<Engine>>;
  { of.Rules() } -> std::same_as<std::unique_ptr<EngineRules>>;
};

}  // namespace prd

#endif  // PRD_ENGINES_OPTIONS_H_
