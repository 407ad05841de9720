// Options of the engine `ad-psgd` (Lian et al., Asynchronous Decentralized Parallel Stochastic
// Gradient Descent, ICML 2018).
#ifndef PRD_ENGINES_AD_PSGD_OPTIONS_H_
#define PRD_ENGINES_AD_PSGD_OPTIONS_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "engines/graph.h"
#include "engines/options.h"

namespace prd {

struct AdPsgdOptions {
  static constexpr EngineAbout kAbout = {
      .name = "ad-psgd",
      .paper = "AD-PSGD, Lian et al., ICML 2018",
      .help =
          "After a step, a worker averages its model with that of a random neighbour, which "
          "takes part in the background, whatever it computes. A slow worker delays nobody but "
          "those that draw it. For workers of unequal speed on a network where pairs are cheap "
          "and groups dear."};

  Graph graph{.kind = Graph::Kind::kComplete, .edges = {}};
  std::int64_t section_length = 1;
  bool overlap = false;
  int overlap_steps = 2;
  std::int64_t seed = 1;

  void Describe(Fields& fields) {
    static constexpr Graph::Kind kKinds[] = {Graph::Kind::kRing, Graph::Kind::kComplete};
    DescribeGraph(fields, kKinds, &graph,
                  "Who may be averaged with whom. \"complete\": everybody; models mix fastest. "
                  "\"ring\": each rank with the two next to it among those present. Or a list of "
                  "edges between ranks, as [[0, 1], [1, 2]], with a path between any two; a worker "
                  "none of whose neighbours is there goes on alone. No graph can deadlock.");
    fields.Whole("section_length", &section_length, {1, 100'000, "steps", {1, 4}},
                 "Every how many steps a worker asks for an average. More spend less time on "
                 "averages and let the models drift apart further.");
    fields.Flag("overlap", &overlap,
                "true: a worker trains on while the average it asked for is not through, and adds "
                "what that changed at its next step. false: it waits, and its model is up to date "
                "when it goes on.");
    fields.Whole("overlap_steps", &overlap_steps, {1, 1000, "steps", {1, 5}},
                 "With overlap: steps that a worker may complete meanwhile; then it waits. 2 rides "
                 "out a pair that has to wait for another one as long as both take less than a "
                 "step each.");
    fields.Whole("seed", &seed, {0, std::numeric_limits<std::int64_t>::max(), "", {0, 1000}},
                 "Of the draws. The same seed draws the same neighbours.");
  }
  Status Check(int workers) const;
  std::string Paces(int) const { return {}; }
  std::unique_ptr<Engine> Make() const;
  std::unique_ptr<EngineRules> Rules() const;

  friend bool operator==(const AdPsgdOptions&, const AdPsgdOptions&) = default;
};

}  // namespace prd

#endif  // PRD_ENGINES_AD_PSGD_OPTIONS_H_
