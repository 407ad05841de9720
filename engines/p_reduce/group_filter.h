// The group filter of P-Reduce (Figure 6 and section 4 of the paper): FIFO, unless that would keep
// the sync-graph of the last T groups split.
//
// When the last window of T groups fell into several components (sync_graph.h), the filter bridges:
//  - a FIFO group that joins two components is formed as it is;
//  - when the P at the head of the queue are all of one component C and the queue holds a worker of
//    another, the earliest such worker takes the place of the head's last;
//  - when the queue holds none, the filter may hold the head until one comes.
//
// Holding is what can go wrong: a component that is merely slow looks like one that is frozen, and
// who waits for it loses more than the bridge is worth. (Waiting unconditionally, eight workers of
// which one is five times slower fall to 0.70 of the possible updates per second, 64 of which eight
// are slow to 0.31.) So the head is held only if both of these hold:
//  1. The wait to expect is no longer than the head's own mean step: the window's duration over the
//     signals that all other components sent in it. So the slow side waits for the fast one, which
//     comes by often, and never the reverse.
//  2. It fits the budget: workers have been held for at most 1/150 of the time that the
//     members of all groups have spent on their steps, plus one step of one group. So the cost is
//     bounded whatever the pattern.
// A hold ends when a worker of another component is there, after twice the expected wait (at most
// one own step), or when 2P signals wait; then the head goes as it is.
//
// Measured in virtual time (tests/engines/p_reduce_speed_test.cc): at least 0.98 of plain FIFO's
// updates per second, mostly 0.99 to 1.00, for 8 to 64 workers with and without slow ones and T at
// 1x to 4x the minimum. One cost is not the filter's to avoid: frozen groups of equally fast
// workers never wait for anybody, so that FIFO itself gives fewer updates once the freeze is
// broken. It shows where whole speed classes freeze at once (three classes of four workers at
// 1:3:9, P = 4, steps that hardly vary: 0.77 to 0.99 of the frozen rate).
//
// All times are the controller's own: a step is the time from a worker's release to its signal.
// Pure; O(P) per group and O(1) amortised per signal, whatever the number of workers.
#ifndef PRD_ENGINES_P_REDUCE_GROUP_FILTER_H_
#define PRD_ENGINES_P_REDUCE_GROUP_FILTER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/time.h"
#include "engines/p_reduce/sync_graph.h"

namespace prd {

// A waiting ready signal.
struct Signal {
  Rank rank = kNoRank;
  std::int32_t host = 0;
  Iteration iteration = 0;
  Instant at;                 // when it came
  DurationNs step = 0;        // the worker's last step by the controller's clock
  std::uint32_t samples = 0;  // in that step's batch; 0: not told
  void Archive(StateArchive& ar) { ar(rank, host, iteration, at, step, samples); }
};

class GroupFilter {
 public:
  static constexpr std::int64_t kHoldShareInverse = 150;  // held time : step time = 1 : 150
  // The budget keeps at most this many groups' steps for later: an hour of good luck is no licence
  // for a bad minute.
  static constexpr std::int64_t kSavedSteps = 8;

  struct Choice {
    bool hold = false;
    // When not held: without outsider (0), the queue's first P; with, the first P - 2, `kept` and
    // `outsider`, which are of different components (kept is the last place but one if that will
    // do, else the last).
    std::size_t kept = 0;
    std::size_t outsider = 0;
    std::string
        note;  // for the reason, after "fifo: 3 of 3 ready"; or the whole of it for a bridge
  };

  void Grow(std::size_t ranks) { graph_.Grow(ranks); }
  void Prefetch(Rank rank) const { graph_.Prefetch(rank); }
  std::size_t size() const { return graph_.size(); }
  // Signals of the queue that a hold has looked at; 0 without a hold.
  std::size_t held() const { return static_cast<std::size_t>(hold_.seen); }

  // What to do with the head of the queue, now that it has P signals or more. A hold that began in
  // an earlier call goes on; signals may have been appended since, not removed.
  // REQUIRES: 2 <= p <= queue.size().
  Choice Choose(Instant now, const std::vector<Signal>& queue, std::size_t p);

  // Ends a hold, if there is one: before the queue or P changes otherwise.
  void EndHold(Instant now);

  // A group was formed; its members' steps took step_sum ns together. `window` is T.
  void Formed(Instant now, const std::vector<GroupShare>& members, DurationNs step_sum,
              std::int64_t window);

  // A worker has left: ends a hold and forgets the sync-graph.
  void Left(Instant now);

  // When the hold ends by itself.
  std::optional<Instant> Deadline() const;

  // What the hold is for, or empty.
  std::string Explain(Instant now) const;

  void Archive(StateArchive& ar);

 private:
  struct Hold {
    bool active = false;
    Rank component = kNoRank;  // of those held
    std::uint64_t seen = 0;    // signals of the queue known to be no outsiders
    std::int64_t size = 0;     // workers held
    Instant since;
    Instant until;
    void Archive(StateArchive& ar) { ar(active, component, seen, size, since, until); }
  };

  Choice Continue(Instant now, const std::vector<Signal>& queue, std::size_t p);
  Choice Isolated(Instant now, const std::vector<Signal>& queue, std::size_t p, Rank component);
  Choice Bridge(const std::vector<Signal>& queue, std::size_t p, std::size_t inside,
                std::size_t outsider, DurationNs held) const;
  std::size_t NextInComponent(const std::vector<Signal>& queue, std::size_t from,
                              Rank other_than) const;

  SyncGraph graph_;
  Hold hold_;
  DurationNs saved_ = 0;  // the budget: what accrued less what was spent, worker-ns
};

}  // namespace prd

#endif  // PRD_ENGINES_P_REDUCE_GROUP_FILTER_H_
