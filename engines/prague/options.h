// Options of the engine `prague` (Luo et al., Prague: High-Performance Heterogeneity-Aware
// Asynchronous Decentralized Training, ASPLOS 2020).
#ifndef PRD_ENGINES_PRAGUE_OPTIONS_H_
#define PRD_ENGINES_PRAGUE_OPTIONS_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "engines/options.h"

namespace prd {

struct PragueOptions {
  static constexpr EngineAbout kAbout = {
      .name = "prague",
      .paper = "Prague, Luo et al., ASPLOS 2020",
      .help =
          "Workers average their models in groups that are drawn before they ask, as soon as "
          "all of a group have come to the end of their steps. For workers of about equal "
          "speed of which some may be slow for long, and for hosts with several workers each."};

  enum class Generator : std::uint8_t { kRandom, kStatic, kSmart };

  Generator generator = Generator::kSmart;
  int group_size = 3;
  std::int64_t section_length = 1;
  std::int64_t slowdown_threshold = 8;
  bool inter_intra = true;
  bool request_ahead = true;
  int workers_per_host = 0;
  bool overlap = false;
  int overlap_steps = 4;
  std::int64_t seed = 1;

  void Describe(Fields& fields) {
    fields.Choice("generator", &generator, {"random", "static", "smart"},
                  "Where groups come from. \"random\" (section 4.1): one for each request, of the "
                  "worker that asks and others drawn by lot; groups that share a worker wait for "
                  "one another, several steps long without overlap. \"smart\" (section 5): a "
                  "request divides all workers that are in no group, so that none shares a worker, "
                  "and leaves out those that are far behind. \"static\" (section 4.2): rules that "
                  "need no controller, and wait for a slow worker.");
    fields.Whole("group_size", &group_size, {2, 100'000, "workers", {2, 5}},
                 "Workers per group, or all where they are fewer. \"smart\" makes floor(n / "
                 "group_size) groups of n workers: fewer than twice group_size are one group of "
                 "all, at the slowest worker's pace without overlap. Larger groups mix models more "
                 "per step and wait more, for members or for other groups. 3 is the paper's "
                 "(section 7.1.3). \"static\" has sizes of its own.");
    fields.Whole("section_length", &section_length, {1, 100'000, "steps", {1, 2}},
                 "Every how many steps a worker asks for a group. More spend less time on averages "
                 "and let the models drift apart further (section 7.2, Figure 17).");
    fields.Whole("slowdown_threshold", &slowdown_threshold, {1, 1'000'000'000, "groups", {1, 4}},
                 "\"smart\": C_thres (section 5.3). Groups that a worker may have requested fewer "
                 "than another that still draws it into its own. Lower tells slow workers sooner; "
                 "it must be more than workers of equal speed come apart by chance, and more than "
                 "overlap_steps with overlap.");
    fields.Flag("inter_intra", &inter_intra,
                "\"smart\", with workers on several hosts: true lets one worker of each host "
                "average with those of other hosts while the rest do so within theirs, then all of "
                "a host (section 5.2): less traffic between hosts.");
    fields.Flag("request_ahead", &request_ahead,
                "\"random\": true draws a worker's next group when it is through with the last "
                "one, so that it need not wait for the controller at the end of its step. false: "
                "when it asks.");
    fields.Whole("workers_per_host", &workers_per_host, {0, 1'000'000, "workers", {0, 5}},
                 "Which workers share a host. 0: those that say so. n: ranks 0 to n-1, n to 2n-1, "
                 "...; for containers that hide their host, and to try a layout out.");
    fields.Flag(
        "overlap", &overlap,
        "true: a worker trains on while its group waits and reduces, and adds what the "
        "average changed at its next step. It keeps one more copy of the parameters (two where "
        "a group begins before the result of the one before is added), and averages are a "
        "step or more old.");
    fields.Whole("overlap_steps", &overlap_steps, {1, 1000, "steps", {1, 5}},
                 "With overlap: steps that a worker may be ahead of the one that it has signalled; "
                 "then it waits. A group may have to wait for others that share a worker, hence "
                 "more than where groups never overlap.");
    fields.Whole("seed", &seed, {0, std::numeric_limits<std::int64_t>::max(), "", {0, 1000}},
                 "Of the draws. The same seed draws the same groups.");
  }
  Status Check(int) const { return Status::Ok(); }
  std::string Paces(int workers) const;
  std::unique_ptr<Engine> Make() const;
  std::unique_ptr<EngineRules> Rules() const;

  friend bool operator==(const PragueOptions&, const PragueOptions&) = default;
};

}  // namespace prd

#endif  // PRD_ENGINES_PRAGUE_OPTIONS_H_
