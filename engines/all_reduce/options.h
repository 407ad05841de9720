// Options of the engine `all-reduce`.
#ifndef PRD_ENGINES_ALL_REDUCE_OPTIONS_H_
#define PRD_ENGINES_ALL_REDUCE_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "engines/options.h"

namespace prd {

struct AllReduceOptions {
  static constexpr EngineAbout kAbout = {
      .name = "all-reduce",
      .paper = "",
      .help =
          "Bulk-synchronous training: every iteration reduces the gradients of all live "
          "workers at once. The baseline; as fast as the slowest worker."};

  enum class Weights : std::uint8_t { kUniform, kSamples };

  Weights weights = Weights::kSamples;

  void Describe(Fields& fields) {
    fields.Choice("weights", &weights, {"uniform", "samples"},
                  "\"samples\": each gradient counts in proportion to the samples in its batch, "
                  "which is right also when batches are unequal (and the same as uniform when they "
                  "are equal, or when a worker does not tell). \"uniform\": 1/N each.");
  }
  Status Check(int) const { return Status::Ok(); }
  // By design, whatever they are.
  std::string Paces(int) const { return {}; }
  std::unique_ptr<Engine> Make() const;
  std::unique_ptr<EngineRules> Rules() const;

  friend bool operator==(const AllReduceOptions&, const AllReduceOptions&) = default;
};

}  // namespace prd

#endif  // PRD_ENGINES_ALL_REDUCE_OPTIONS_H_
