// Engine `esync`: the State Server of ESync (Li et al., ESync: An Efficient Synchronous Parallel
// Algorithm for Distributed ML in Heterogeneous Clusters), Algorithm 2 and section 4.2. Workers
// train locally until the slowest has done an iteration, and then all reduce what they have
// learned.
//
//  - A signal is a state query. It is answered READY when the worker could not end another local
//    iteration before the slowest one ends its own (Algorithm 2, lines 5-12). When all that count
//    for the round are ready and wait, they are a group. Their weights are by the samples in their
//    batches (options.h, weights).
//  - All times are the controller's: a worker's capability c is the time from its round's start, or
//    from its last query, to its query, and so contains the query's round trip; with delayed ACK,
//    where it trains on meanwhile, the round trip that it has measured is added. No other clock is
//    read, and none is compared with another.
//  - While the slowest is still in a group, catches up, or has never signalled, no worker is ready.
//    The first iteration of all workers is the test that Algorithm 1, line 3, begins with.
//  - A worker that joins later counts from its first query on; until then it delays no other.
//  - With stall_factor, a worker that all others wait for is taken out of the round when it is
//    overdue, and while it catches up it does not keep others from being ready for longer than
//    that either. It counts again from its next query on. Its longest iteration then becomes the
//    time since it was dropped, but at most stall_factor times what it was: a worker that stays
//    slow is waited for again, and one long stall does not set the pace of the rounds that follow.
//  - A worker that makes no other local iteration (Ready::last) is ready.
//  - Rounds are committed, and what is older dropped (UpdateDropped), as in `backup`.
#ifndef PRD_ENGINES_ESYNC_ESYNC_H_
#define PRD_ENGINES_ESYNC_ESYNC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engines/engine.h"
#include "engines/esync/largest.h"
#include "engines/esync/options.h"
#include "engines/ring_order.h"

namespace prd {

class Esync final : public Engine {
 public:
  // REQUIRES: Validate(options, 0) is ok.
  explicit Esync(const EsyncOptions& options) : options_(options) {}

  Plan plan() const override;
  Joining joining() const override { return Joining::kAnytime; }
  void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) override;
  std::optional<Instant> NextDeadline() const override;
  std::string Explain(Instant now, Rank rank) const override;
  void Archive(StateArchive& ar) override;

 private:
  static constexpr DurationNs kUnknown = -1;

  enum class State : std::uint8_t {
    kAbsent,
    kTraining,
    kReady,       // was told READY, and is not at the barrier yet
    kWaiting,     // stands at the barrier, with a signal that waits
    kReducing,    // in the running group, not reported yet
    kFailed,      // the running group has failed for it
    kCatchingUp,  // copies a replica, or trains on the copy: silent until its next query
  };

  // The record of Algorithm 2, line 2.
  struct Worker {
    Iteration model = 0;  // the newest round in its base model; not known while it catches up
    DurationNs capability = kUnknown;  // c
    DurationNs longest = 0;            // its longest local iteration of late; fades by the round
    Instant last_finish;               // its last query, or the start of the round for it
    std::uint32_t local_steps = 0;     // k
    double samples = 0;                // in these
    std::int32_t host = 0;
    State state = State::kAbsent;
    bool counts = false;   // the round waits for it
    bool untimed = false;  // its next query does not tell how long an iteration takes
    bool untold = false;   // the samples of one of its local iterations are not known
    void Archive(StateArchive& ar) {
      ar(model, capability, longest, last_finish, local_steps, samples, host, state, counts,
         untimed, untold);
    }
    void BeginRound() {
      local_steps = 0;
      samples = 0;
      untold = false;
    }
    // Samples of a local iteration, on average; 0: not known.
    double MeanSamples() const { return untold || local_steps == 0 ? 0 : samples / local_steps; }
  };

  struct Decision {
    bool ready = false;
    std::string reason;
  };

  Worker& At(Rank rank) { return workers_[static_cast<std::size_t>(rank)]; }
  const Worker& At(Rank rank) const { return workers_[static_cast<std::size_t>(rank)]; }
  bool Joined(Rank rank) const;
  bool Running() const { return running_ != kNoGroup; }
  bool Delayed() const { return options_.mode == EsyncOptions::Mode::kDelayedAck; }

  void OnJoined(Instant now, const JoinedEvent& event, Effects* out);
  void OnReady(Instant now, const ReadyEvent& event, Effects* out);
  void OnFinished(Instant now, const FinishedEvent& event);
  void OnEnded(Instant now, const EndedEvent& event, Effects* out);
  void OnLeft(const LeftEvent& event);
  void OnDeadline(Instant now);

  // Sets how the worker takes part from now on, and all that depends on its record.
  void Set(Rank rank, State state, bool counts);
  // Line 3 of Algorithm 2, at the worker's query.
  void Update(Instant now, const Ready& ready, Worker* worker) const;
  void Query(Instant now, Rank rank, const Ready& ready, Effects* out);
  // Lines 4-12.
  Decision QueryState(Instant now, Rank rank) const;
  // When the worker, if others wait for it, is overdue; kNever if it is not to be taken out.
  std::int64_t OverdueAt(const Worker& worker) const;
  // Finds the newest replica there is, which has `committed` at least, and drops what is computed
  // on older ones. REQUIRES: no group runs.
  void Settle(Instant now, Iteration committed, Effects* out);
  void Drop(Instant now, Rank rank, Effects* out);
  std::string WhyDropped(Instant now, const Worker& worker) const;
  void FormIfAllWait(Instant now, GroupId* next_group, Effects* out);
  void SortRing();
  bool Consistent() const;
  void Derive();

  const EsyncOptions options_;
  std::vector<Worker> workers_;  // by rank
  HostTable hosts_;
  std::int64_t joined_ = 0;
  bool begun_ = false;          // somebody has queried: who joins now is late
  Iteration newest_ = 0;        // the newest committed round
  GroupId running_ = kNoGroup;  // the group that runs
  GroupId last_ = kNoGroup;     // the last group, its round, and when it formed
  Iteration last_iteration_ = 0;
  Instant last_formed_;
  std::string taken_out_;  // who is, for the reason of the group to form
  // Derived from the above.
  std::int64_t counted_ = 0;
  std::int64_t waiting_ = 0;  // of those that count
  Largest slowest_;           // by c, of those that count
  Largest missing_;           // by when they are overdue, of those that count and do not wait
  std::vector<Rank> ring_;    // the joined ranks in ring order; empty = to be made
};

}  // namespace prd

#endif  // PRD_ENGINES_ESYNC_ESYNC_H_
