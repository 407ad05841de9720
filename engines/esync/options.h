// Options of the engine `esync` (Li et al., ESync: an efficient synchronous parallel algorithm for
// distributed ML in heterogeneous clusters).
#ifndef PRD_ENGINES_ESYNC_OPTIONS_H_
#define PRD_ENGINES_ESYNC_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "engines/options.h"

namespace prd {

struct EsyncOptions {
  static constexpr EngineAbout kAbout = {
      .name = "esync",
      .paper = "ESync, Li et al.",
      .help =
          "Each worker trains on its own until the slowest has done one iteration, then all "
          "add the mean of what they have learned: as many local iterations as each has time "
          "for. For workers that are steadily unequal, and where every worker's data must "
          "count in every round."};

  enum class Mode : std::uint8_t { kBlocking, kDelayedAck };
  enum class Weights : std::uint8_t { kUniform, kSamples };

  Mode mode = Mode::kBlocking;
  std::int64_t margin_ms = 1;
  double global_lr = 1;
  std::int64_t stall_factor = 8;
  Weights weights = Weights::kSamples;

  void Describe(Fields& fields) {
    fields.Choice("mode", &mode, {"blocking", "delayed-ack"},
                  "\"blocking\" (section 4.1): a worker asks after each local iteration whether to "
                  "go on, and waits for the answer. \"delayed-ack\" (section 4.2): it goes on "
                  "meanwhile and is told when to stop; for networks whose round trip is long "
                  "beside an iteration.");
    fields.Whole("margin_ms", &margin_ms, {0, 3'600'000, "ms", {0, 5}},
                 "Epsilon of Algorithm 2, line 9: by how much a worker must be able to end another "
                 "iteration before the slowest ends its own, or it begins none. Larger forgives "
                 "more variation, and lets workers wait longer.");
    fields.Real("global_lr", &global_lr, {0, 10, {0.25, 1}},
                "Epsilon of Eq. 8, above 0: the share of the mean of all workers' changes that is "
                "added to the model.");
    fields.Whole("stall_factor", &stall_factor, {0, 1000, "iterations", {0, 10}},
                 "A worker that all others wait for is taken out of the round after this many "
                 "times its longest local iteration of late without a sign of life, 2 or more, and "
                 "copies the model when it is back. 0: never.");
    fields.Choice(
        "weights", &weights, {"uniform", "samples"},
        "Of the workers' changes in their mean (Eq. 7). \"samples\": in proportion to the "
        "samples in a local iteration's batch, on average over the round; equal where "
        "batches are, however many local iterations each worker has done, or where a "
        "worker has not told its samples. \"uniform\": equal, as in the paper.");
  }
  Status Check(int workers) const;
  std::string Paces(int) const { return {}; }
  std::unique_ptr<Engine> Make() const;
  std::unique_ptr<EngineRules> Rules() const;

  friend bool operator==(const EsyncOptions&, const EsyncOptions&) = default;
};

}  // namespace prd

#endif  // PRD_ENGINES_ESYNC_OPTIONS_H_
