// The pairs that synchronised, and how fast an update spreads that way.
//
// The spectral gap (Miao et al., section 3.2, Assumption 1.3). A group with members S and weights w
// is the matrix W_k that is the identity but for the rows of S, which hold w. The mean over the
// groups that succeeded is E[W_k], and
//   rho = max(|lambda_2|, |lambda_N|) of E[W_k],
// 0 when every group is everybody (a plain all-reduce), 1 when some workers never hear of the
// others. The smaller rho, the better updates spread: the gap is 1 - rho. Figure 4: N = 3, P = 2,
// all equally fast, each pair 1/3 of the groups: 0.5; one worker half as fast, the pair of the fast
// ones 1/2 and the others 1/4 each: 0.625.
//
// Constant weights make E[W_k] symmetric, as the paper has it. Dynamic weights do not; its rows
// still sum to 1, so 1 is its largest eigenvalue and rho is the second largest modulus of the
// others, which is the same number in the symmetric case. Where the initial model has a share of a
// group, the members' weights are scaled to sum to 1: that share pulls all of them to one point,
// which is not disagreement.
//
// Rounds of gradients give the same sum to every member, while only contributors give; they
// mix nobody's parameters with anybody's. The graph shows whose gradients met: an edge for two that
// both contributed; who only received is nobody's neighbour there. A spectral gap is refused: what
// a round does is no average (its matrix would not be doubly stochastic, nor its rows sum to 1),
// and rho would not say how far replicas are apart. So it is where all workers hold one model and a
// round leaves workers out: who was late copies the result, so that a round reaches everybody
// although its group is not everybody.
//
// Workers that draw their groups themselves report none: there the schedule is
// what counts, W_k is what a slot does (its groups are disjoint), and E[W_k] the mean over the four
// phases.
#ifndef PRD_TOOLS_PRDCTL_SYNC_H_
#define PRD_TOOLS_PRDCTL_SYNC_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "prd/status.h"
#include "tools/prdctl/meters.h"
#include "tools/prdctl/schedule.h"

namespace prd::ctl {

struct SpectralGap {
  double rho = 0;
  std::uint64_t groups = 0;  // of a schedule, those of its phases
  std::size_t workers = 0;
  bool symmetric = true;
};

// Takes the records of a run in order; counts the training groups, rounds and averages that
// succeeded, the last `window` of them (0: all).
class SyncMeter {
 public:
  explicit SyncMeter(std::size_t window) : window_(window) {}
  void Add(const Record& record);

  std::uint64_t groups() const { return groups_; }
  // That counts instead of groups; null: groups count.
  const ScheduleRow* schedule() const { return schedules_.Shown(); }
  // True if there are rounds among them, of which contributors alone count.
  bool rounds() const { return rounds_; }
  // Workers in a counted group, and those who take part now.
  std::set<Rank> Workers() const;
  // Groups, or phases of the schedule, that a pair shared; the smaller rank first.
  std::map<std::pair<Rank, Rank>, std::uint64_t> Pairs() const;
  // kFailedPrecondition when no group has succeeded, or the engine's groups have no such number;
  // kResourceExhausted for over kMaxWorkers.
  Result<SpectralGap> Gap() const;

  static constexpr std::size_t kMaxWorkers = 2000;  // the time grows with the cube

 private:
  using Shares = std::vector<std::pair<Rank, double>>;  // by rank, summing to 1

  // Equal groups, and how many of them there are.
  using GroupCounts = std::map<Shares, std::uint64_t>;
  GroupCounts Counted() const;

  RunView view_;
  ScheduleTracker schedules_;
  std::size_t window_;
  bool left_out_ = false;  // a training group was without a worker that was there
  std::uint64_t groups_ = 0;
  bool rounds_ = false;
  GroupCounts counts_;
  std::deque<Shares> recent_;  // the counted ones, when there is a window
};

// An undirected graph for graphviz: a node per worker, an edge per pair, labelled and drawn by the
// groups it shared.
std::string ToDot(const SyncMeter& meter, const std::string& title);

// How fast an update spreads over a graph of neighbours.
struct GraphGap {
  // For the weights in use: 1 - the second largest modulus of their matrix' eigenvalues.
  double of_weights = 0;
  // As Hop's Figure 21 has it: 1 - the second largest eigenvalue (its real part, where edges lead
  // one way) of the walk over the graph without its self-loops, 1/degree each.
  double of_walk = 0;
  std::size_t workers = 0;
  bool symmetric = true;  // the weights
};
// kFailedPrecondition: no graph; kResourceExhausted: over SyncMeter::kMaxWorkers.
Result<GraphGap> GapOf(const ExchangeMeter::Graph& graph);

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_SYNC_H_
