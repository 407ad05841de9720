// Options of the engine `toy`, "pairs by rank": the least that an engine is. It is in no daemon;
// toy_test.cc registers it.
#ifndef PRD_TESTS_ENGINES_TOY_OPTIONS_H_
#define PRD_TESTS_ENGINES_TOY_OPTIONS_H_

#include <memory>
#include <string>

#include "engines/options.h"

namespace prd {

struct ToyOptions {
  static constexpr EngineAbout kAbout = {
      .name = "toy",
      .paper = "",
      .help =
          "Two workers with successive ranks average their models, once both are ready. A worker "
          "whose partner is not there goes on alone."};

  int shift = 0;

  void Describe(Fields& fields) {
    fields.Whole("shift", &shift, {0, 1, "ranks", {0, 1}},
                 "The lowest rank that has a partner: 0 pairs 0 with 1, and 2 with 3; 1 pairs 1 "
                 "with 2, and 3 with 4.");
  }
  Status Check(int) const { return Status::Ok(); }
  std::string Paces(int) const { return {}; }
  std::unique_ptr<Engine> Make() const;
  std::unique_ptr<EngineRules> Rules() const;

  friend bool operator==(const ToyOptions&, const ToyOptions&) = default;
};

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_TOY_OPTIONS_H_
