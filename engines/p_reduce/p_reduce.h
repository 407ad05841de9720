// Engine `p-reduce`: Partial Reduce (Miao et al., Heterogeneity-Aware Distributed Machine Learning
// Training via Partial Reduce, SIGMOD 2021): the controller of Algorithm 2 with the group filter of
// section 4 (group_filter.h) and the weight generator of section 3.3 (weights.h).
//
//  - Ready signals queue up first in, first out; when P wait, they are a group (Algorithm 2,
//    controller lines 3-5). Groups are disjoint, and several may be in flight.
//  - P is the option group_size, or follows the number of joined workers where that is 0. When
//    fewer have joined, P is their number, so that the last workers of a job go on: the last one in
//    groups of one.
//  - Members continue at the group's largest iteration, "because all of their models are the
//    latest" (section 3.3.3). With constant weights, too: the result is the same model for all of
//    them, so one count is the only one that says anything about it.
//  - Where P is not given, and with few workers, those that could be a group wait a moment for one
//    that is about to be ready and would be left over: without a group until others have made
//    another step (README.md, group_size). A group may have up to 2P - 1 members then.
//  - With max_wait_ms, a queue whose head has waited that long is closed as a smaller group of at
//    least two (one alone has nobody to reduce with, and goes on waiting).
//  - While a worker waits that does not reach all others, signals are taken in their order and, for
//    each, those after and before it that reach all taken so far, up to P. Fewer than P are a group
//    if all whom the first one reaches wait, or if as many groups as take everybody once have
//    passed it over. Who reaches nobody trains alone. The group filter does not act meanwhile.
//  - With overlap, workers compute on meanwhile (AveragesInBackground). No decision depends on it:
//  a
//    worker has one signal at a time, and its next one follows its group's end.
#ifndef PRD_ENGINES_P_REDUCE_P_REDUCE_H_
#define PRD_ENGINES_P_REDUCE_P_REDUCE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engines/engine.h"
#include "engines/links.h"
#include "engines/p_reduce/group_filter.h"
#include "engines/p_reduce/options.h"
#include "engines/ring_order.h"

namespace prd {

// P where at least so many workers have joined, and `workers` have (options.h, group_size).
std::int64_t FullGroup(const PReduceOptions& options, std::int64_t workers);

// ceil((N-1)/(P-1)): the fewest groups of P that can connect N workers (section 4).
// REQUIRES: group_size >= 2.
std::int64_t SmallestWindow(std::int64_t workers, std::int64_t group_size);

// T for this many live workers (options.h, history_window).
std::int64_t EffectiveWindow(const PReduceOptions& options, std::int64_t workers);

class PReduce final : public Engine {
 public:
  // REQUIRES: Validate(options, 0) is ok.
  explicit PReduce(const PReduceOptions& options) : options_(options) {}

  Plan plan() const override;
  void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) override;
  std::optional<Instant> NextDeadline() const override;
  std::string Explain(Instant now, Rank rank) const override;
  void Archive(StateArchive& ar) override;

 private:
  enum class State : std::uint8_t { kAbsent, kComputing, kWaiting, kReducing };

  struct Worker {
    Instant released;      // since when it computes
    DurationNs step = 0;   // its last step by the controller's clock, kLongestStep at most
    DurationNs usual = 0;  // of its steps, the last ones count most; 0: it has made none
    std::int32_t host = 0;
    State state = State::kAbsent;
    // Its last group failed: it signals again at once, having computed nothing.
    bool repeats = false;
    void Archive(StateArchive& ar) { ar(released, step, usual, host, state, repeats); }
  };

  Worker& At(Rank rank) { return workers_[static_cast<std::size_t>(rank)]; }
  const Worker& Of(Rank rank) const { return workers_[static_cast<std::size_t>(rank)]; }
  bool Joined(Rank rank) const;
  void OnJoined(Instant now, const JoinedEvent& event);
  void OnReady(Instant now, const ReadyEvent& event);
  void OnFinished(Instant now, const FinishedEvent& event);
  void OnLeft(Instant now, const LeftEvent& event);
  void OnLink(const LinkEvent& event);
  // After a change of the number of joined workers.
  void Resize();
  bool Overdue(Instant now) const;
  // Somebody waits who does not reach all others.
  bool Impaired() const { return !links_.empty() && AnyImpaired(); }
  bool AnyImpaired() const;
  // Places in the queue of a group around this one, whose members reach each other.
  std::vector<std::size_t> Around(std::size_t place) const;
  // All joined workers that it reaches wait.
  bool HasAllItReaches(Rank rank) const;
  // A group may have more than P members.
  bool Gathers() const;
  // Whom the queue's P or more wait for, and until when; nullopt: they are a group now.
  struct Leftover {
    Rank rank = kNoRank;
    Instant until;
    void Archive(StateArchive& ar) { ar(rank, until); }
  };
  std::optional<Leftover> NextLeftover(Instant now) const;
  bool FormAround(Instant now, GroupId* next_group, Effects* out);
  void FormAll(Instant now, GroupId* next_group, Effects* out);
  // Forms the group of the queue's first `size`, or the one chosen.
  void Form(Instant now, std::size_t size, const GroupFilter::Choice& choice, std::string reason,
            GroupId* next_group, Effects* out);
  std::string FifoReason() const;
  bool Consistent() const;

  const PReduceOptions options_;
  std::vector<Worker> workers_;  // by rank
  std::vector<Signal>
      queue_;  // waiting, in the order of arrival; fewer than 2P but for broken links
  GroupFilter filter_;
  HostTable hosts_;
  BrokenLinks links_;
  // By waiting worker: the groups that formed of later signals, as this worker could not have one.
  std::map<Rank, std::uint32_t> passed_;
  std::optional<Leftover> leftover_;  // P or more wait for it
  std::int64_t joined_ = 0;
  std::int64_t full_ = 2;    // P where enough workers have joined (derived from joined_)
  std::size_t size_ = 0;     // the effective P; 0 without workers (derived from joined_)
  std::int64_t window_ = 1;  // the effective T (derived)
};

}  // namespace prd

#endif  // PRD_ENGINES_P_REDUCE_P_REDUCE_H_
