// Options of the engine `prague` (Luo et al., Prague: High-Performance Heterogeneity-Aware
// Asynchronous Decentralized Training, ASPLOS 2020).
#ifndef PRD_ENGINES_PRAGUE_OPTIONS_H_
#define PRD_ENGINES_PRAGUE_OPTIONS_H_

#include <cstdint>

#include "prd/status.h"

namespace prd {

struct PragueOptions {
  // Where groups come from. kRandom (section 4.1): a random group for each request. kStatic
  // (section 4.2): rules that each worker follows by itself (common/base/static_schedule.h).
  // kSmart (section 5): each request divides all idle workers into random groups.
  enum class Generator : std::uint8_t { kRandom, kStatic, kSmart };
  // Sketched in virtual time, steps that vary by +-50%, reductions of 2% of a step, without
  // overlap: a worker's step and wait together, in steps:
  //              8 workers   16    64
  //   kSmart:    1.31        1.37  1.39
  //   kRandom:   3.6         4.5   6.2   (request_ahead: 3.9, 4.2, 5.6)
  // Nearly all random groups conflict, and each waits for members that wait or compute in turn.
  Generator generator = Generator::kSmart;
  // Workers per group, >= 2; fewer joined workers are one group. 3 is the paper's (section 7.1.3).
  // Not for kStatic, whose rules give the sizes.
  int group_size = 3;
  // Steps of a worker from one synchronisation to the next, >= 1 (section 7.2, Figure 17).
  std::int64_t section_length = 1;
  // kSmart: C_thres of section 5.3, >= 1. A division takes no worker that has requested so many
  // groups fewer than its initiator. The paper gives no figure. It must be more than workers of
  // equal speed come apart by chance: who is in groups with others stays within a few requests of
  // them, and overlap_steps more with overlap. It costs about so many steps, once, at which the
  // others still wait for a worker that has become slow. 8 is twice overlap_steps.
  std::int64_t slowdown_threshold = 8;
  // kSmart: two groups for each worker of a division, one of which crosses hosts only at the hosts'
  // head workers (section 5.2). Only where the divided workers are on more than one host.
  bool inter_intra = true;
  // kRandom: a worker's next group is drawn when it is through with the last one, so that it is
  // known by the time that the step ends ("at the beginning of an iteration", section 4.1). False:
  // when it asks.
  bool request_ahead = true;
  // Which workers are on one host. 0: as they say themselves. n: ranks with equal rank / n are.
  int workers_per_host = 0;
  // Workers train on while their group waits and reduces, and add what it changed at their next
  // step boundary.
  bool overlap = false;
  // With overlap: steps that a worker may complete beyond the one whose signal stands, >= 1. A
  // group may have to wait for another one that shares a worker, and that for a third: more than
  // where groups never overlap.
  int overlap_steps = 4;
  std::int64_t seed = 1;  // of the draws, >= 0

  friend bool operator==(const PragueOptions&, const PragueOptions&) = default;
};

// Ok, or what is wrong: "KEY: found X, allowed is Y". workers = those the job starts with, 0 if not
// known.
Status Validate(const PragueOptions& options, int workers);

}  // namespace prd

#endif  // PRD_ENGINES_PRAGUE_OPTIONS_H_
