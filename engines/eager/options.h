// Options of the engine `eager` (eager-SGD: Li et al., PPoPP 2020).
#ifndef PRD_ENGINES_EAGER_OPTIONS_H_
#define PRD_ENGINES_EAGER_OPTIONS_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "engines/options.h"

namespace prd {

struct EagerOptions {
  static constexpr EngineAbout kAbout = {
      .name = "eager",
      .paper = "Eager-SGD, Li et al., PPoPP 2020",
      .help =
          "Gradients are summed in rounds that a quorum of workers starts and in which all "
          "take part at once, whatever they compute; a gradient that comes late goes into the "
          "next round. For workers of about equal mean speed whose steps vary (sequences of "
          "unequal length, noise)."};

  // Values of quorum that have a name. Any other is a number of workers.
  static constexpr std::int64_t kMajority = 0;
  static constexpr std::int64_t kSolo = 1;
  enum class Missed : std::uint8_t { kSum, kLatest };
  enum class Weights : std::uint8_t { kUniform, kSamples };

  std::int64_t quorum = kMajority;
  std::int64_t seed = 1;
  std::int64_t max_stale_rounds = 16;
  std::int64_t sync_every = 500;
  Missed missed = Missed::kSum;
  Weights weights = Weights::kSamples;

  void Describe(Fields& fields) {
    fields.NamedWhole(
        "quorum", &quorum, {1, 1'000'000, "workers", {1, 6}},
        {{"solo", kSolo}, {"majority", kMajority}},
        "Who starts a round. \"solo\" (section 4.1): the first worker to arrive; nobody waits, and "
        "few gradients are in a round. \"majority\" (section 4.2): a worker drawn by lot for each "
        "round; half of the workers have arrived by then on average, and no worker is always late: "
        "the paper's choice where accuracy must hold. A number Q: the Qth worker to arrive; the "
        "number of workers, or more, makes it synchronous.");
    fields.Whole("seed", &seed, {0, std::numeric_limits<std::int64_t>::max(), "", {0, 1000}},
                 "Of the lots. The same seed draws the same workers.");
    fields.Whole(
        "max_stale_rounds", &max_stale_rounds, {0, 1'000'000'000, "rounds", {0, 8}},
        "Rounds in a row that may succeed without a gradient of a worker; then the next round "
        "waits for one. The convergence theorem needs a bound (Lemma 5.1, tau), and the rounds to "
        "convergence grow with it; with one far below how many rounds the slowest worker's step "
        "takes, the slowest sets the pace. 0: no bound.");
    fields.Whole("sync_every", &sync_every, {0, 1'000'000'000, "rounds", {0, 12}},
                 "Rounds after which the models of all workers are averaged. Workers apply the "
                 "same rounds, but in different portions, so that momentum and rounding let their "
                 "models drift apart (section 5). 0: never.");
    fields.Choice("missed", &missed, {"sum", "latest"},
                  "What a worker applies when several rounds have completed since its last step. "
                  "\"sum\": all of them, so that every gradient moves every model. \"latest\": the "
                  "newest alone, as in the paper, whose receive buffer is overwritten; the others "
                  "do not reach that worker's model before it is averaged.");
    fields.Choice("weights", &weights, {"uniform", "samples"},
                  "\"samples\": a gradient counts for the samples in its batch, over those in all "
                  "workers' newest batches, contributed or not; the same as uniform where batches "
                  "are equal, or where a worker has not told its samples yet. \"uniform\" "
                  "(Algorithm 5, line 7): one over the workers.");
  }
  Status Check(int) const { return Status::Ok(); }
  std::string Paces(int workers) const;
  std::unique_ptr<Engine> Make() const;
  std::unique_ptr<EngineRules> Rules() const;

  friend bool operator==(const EagerOptions&, const EagerOptions&) = default;
};

}  // namespace prd

#endif  // PRD_ENGINES_EAGER_OPTIONS_H_
