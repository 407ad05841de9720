// Options of the engine `ssp`: Stale Synchronous Parallel (Ho et al., More Effective Distributed ML
// via a Stale Synchronous Parallel Parameter Server, NIPS 2013), with the parameters in shards that
// live in the workers.
#ifndef PRD_ENGINES_SSP_OPTIONS_H_
#define PRD_ENGINES_SSP_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "engines/options.h"

namespace prd {

struct SspOptions {
  static constexpr EngineAbout kAbout = {
      .name = "ssp",
      .paper = "Stale Synchronous Parallel, Ho et al., NIPS 2013",
      .help =
          "The model is shared, in shards that live in the workers. Each adds its updates to "
          "it and reads it again after each step, and may be ahead of the slowest by a bounded "
          "number of steps. For workers that are slow in turns, and models of any size."};

  enum class LearningRate : std::uint8_t { kConstant, kStalenessAware };

  int staleness = 3;
  LearningRate learning_rate = LearningRate::kConstant;
  int replicas = 1;
  int shards = 0;

  void Describe(Fields& fields) {
    fields.Whole("staleness", &staleness, {-1, 1'000'000, "clocks", {-1, 2}},
                 "s: steps that a worker may be ahead of the slowest, and updates of others that "
                 "it may not see yet: at clock c it reads all updates up to c - s - 1. 0: "
                 "everybody waits for everybody in each step, with the result of bulk-synchronous "
                 "training. -1: no bound; a slow worker's updates may then be of any age.");
    fields.Choice("learning_rate", &learning_rate, {"constant", "staleness-aware"},
                  "What an update counts. \"constant\": one over the workers (Jiang et al., "
                  "SIGMOD 2017). \"staleness-aware\": or, where more updates than there are "
                  "workers have come since its model was read, one over those; steadier with much "
                  "staleness.");
    // What places all shards goes to every worker in one message, which has to stay below its bound
    // of 4 MiB: hence the bounds of these two.
    fields.Whole("replicas", &replicas, {0, 16, "copies", {0, 2}},
                 "Copies of each shard on other workers: so many may die at once, and no update "
                 "that was stored is lost. Each is sent every update too. As far as there are "
                 "workers; 0: what is on a worker dies with it.");
    fields.Whole("shards", &shards, {0, 10'000, "shards", {0, 20}},
                 "Into how many shards the parameters are cut. More are spread more evenly when "
                 "workers come and go, and are more messages per step. 0: two per worker of the "
                 "start, 4096 at most.");
  }
  Status Check(int) const { return Status::Ok(); }
  std::string Paces(int workers) const;
  std::unique_ptr<Engine> Make() const;
  std::unique_ptr<EngineRules> Rules() const;

  friend bool operator==(const SspOptions&, const SspOptions&) = default;
};

}  // namespace prd

#endif  // PRD_ENGINES_SSP_OPTIONS_H_
