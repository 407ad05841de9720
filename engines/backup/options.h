// Options of the engine `backup` (Chen et al., Revisiting Distributed Synchronous SGD, 2016).
#ifndef PRD_ENGINES_BACKUP_OPTIONS_H_
#define PRD_ENGINES_BACKUP_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "engines/options.h"

namespace prd {

struct BackupOptions {
  static constexpr EngineAbout kAbout = {
      .name = "backup",
      .paper = "Chen et al., 2016",
      .help =
          "Synchronous SGD with backup workers: each round takes the first N - b gradients and "
          "drops the others, whose workers copy the new model and go on from it. For workers "
          "of equal speed of which any may be slow now and then; a worker that is always slow "
          "hardly contributes, and what only it has among its data is hardly learned."};

  enum class Weights : std::uint8_t { kUniform, kSamples };

  int backups = 1;
  Weights weights = Weights::kSamples;

  void Describe(Fields& fields) {
    fields.Whole(
        "backups", &backups, {0, 100'000, "workers", {0, 4}},
        "b, fewer than the workers: how many of them a round does without. A round waits "
        "for one worker at least, however few are left. More wait less and drop more of "
        "what is computed; 0 waits for all. Who was dropped has to copy the model first; a round "
        "waits for its signal up to an eighth of a step, so that it is not dropped again for "
        "that.");
    fields.Choice(
        "weights", &weights, {"uniform", "samples"},
        "Of the gradients that a round takes. \"samples\": in proportion to the samples in "
        "each one's batch; equal where batches are, or where a worker in the round did "
        "not tell its samples. \"uniform\": equal.");
  }
  Status Check(int workers) const;
  std::string Paces(int workers) const;
  std::unique_ptr<Engine> Make() const;
  std::unique_ptr<EngineRules> Rules() const;

  friend bool operator==(const BackupOptions&, const BackupOptions&) = default;
};

}  // namespace prd

#endif  // PRD_ENGINES_BACKUP_OPTIONS_H_
