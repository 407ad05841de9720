// Options of the engine `p-reduce` (Miao et al., SIGMOD 2021).
#ifndef PRD_ENGINES_P_REDUCE_OPTIONS_H_
#define PRD_ENGINES_P_REDUCE_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "engines/options.h"

namespace prd {

struct PReduceOptions {
  static constexpr EngineAbout kAbout = {
      .name = "p-reduce",
      .paper = "Partial reduce, Miao et al., SIGMOD 2021",
      .help =
          "The first P ready workers average their models at once, and nobody waits for a slow "
          "worker. For unequal workers with alike shards."};

  enum class Weights : std::uint8_t { kConstant, kDynamic, kSamples };
  enum class Missing : std::uint8_t { kInitial, kNearest, kRenormalize };

  int group_size = 0;
  Weights weights = Weights::kConstant;
  double alpha = 0.5;
  Missing missing = Missing::kNearest;
  int history_window = 0;
  std::int64_t max_wait_ms = 0;
  bool overlap = false;
  int overlap_steps = 2;

  void Describe(Fields& fields) {
    fields.Whole("group_size", &group_size, {0, 100'000, "workers", {1, 5}},
                 "P, workers per group, 2 or more. Larger groups mix models more per step and wait "
                 "more: with P near the number of workers it becomes all-reduce. 0: by the number "
                 "of live workers, 2 up to 7 of them and 3 from 8 on, which is enough for tens of "
                 "workers. Up to 12 workers a group then waits a moment for one that would be left "
                 "over, and may have up to 2P - 1 members.");
    fields.Choice(
        "weights", &weights, {"constant", "dynamic", "samples"},
        "\"constant\" (section 3.1): 1/P each. \"dynamic\" (section 3.3): members that are behind "
        "in "
        "iterations count for less (Eq. 9), so that a straggler's old model does not pull the "
        "others "
        "back. With shards that are alike, dynamic weights gain up to 0.4 points of accuracy. With "
        "shards that differ, they lose 1 to 4 points: what only a straggler has is then hardly "
        "learned. \"samples\": in proportion to the samples in the batch of the step that each has "
        "signalled; 1/P where a member did not tell them.");
    fields.Real("alpha", &alpha, {0, 1, {0, 1}},
                "The decay of Eq. 9: nearer to 1 forgets older iterations more slowly, and so "
                "comes nearer to constant weights.");
    fields.Choice("missing", &missing, {"initial", "nearest", "renormalize"},
                  "With dynamic weights: who gets the share of a relative iteration at which no "
                  "member is. \"nearest\": the member nearest to it. \"renormalize\": nobody; the "
                  "others' shares are scaled up. \"initial\": the initial model, as section 3.3.3 "
                  "of the paper has it; it pulls towards the start, and in measurements trained "
                  "slowest by far.");
    fields.Whole("history_window", &history_window, {0, 10'000'000, "groups", {0, 20}},
                 "T: the groups over which all workers must have been connected, directly or not; "
                 "if they are not, the next groups bridge (section 4, group frozen avoidance). At "
                 "least ceil((N-1)/(P-1)). 0: chosen by the number of live workers.");
    fields.Whole("max_wait_ms", &max_wait_ms, {0, 86'400'000, "ms", {0, 100}},
                 "How long the queue may wait for a full group before a smaller one, of two or "
                 "more, is formed. 0: for ever. For jobs whose workers all are slow now and then.");
    fields.Flag(
        "overlap", &overlap,
        "true: a worker trains on while it waits for its group and while that reduces, and "
        "adds what the average changed at its next step. Nobody waits for communication as "
        "long as it is not slower than training; the price is what the library keeps, one "
        "more copy of the parameters (two where a group begins before the result of the one "
        "before is added), and averages that are a step old.");
    fields.Whole("overlap_steps", &overlap_steps, {1, 1000, "steps", {1, 5}},
                 "With overlap: steps that a worker may be ahead of the one it has signalled; then "
                 "it waits. 1 is enough where a reduction is shorter than a step; more forgives "
                 "longer ones.");
  }
  Status Check(int workers) const;
  void Fit(Prng* prng, int workers);
  std::string Paces(int workers) const;
  std::unique_ptr<Engine> Make() const;
  std::unique_ptr<EngineRules> Rules() const;

  friend bool operator==(const PReduceOptions&, const PReduceOptions&) = default;
};

}  // namespace prd

#endif  // PRD_ENGINES_P_REDUCE_OPTIONS_H_
