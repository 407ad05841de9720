// Engine `eager`: eager-SGD (Li et al., Taming Unbalanced Training Workloads in Deep Learning with
// Partial Collective Operations, PPoPP 2020, sections 4 and 5).
//
//  - Gradients are summed in rounds, numbered without a hole, one at a time. All joined workers are
//    members of each, and all get its result. Those who owe gradients (in no round yet) contribute
//    them, arrived or not; the others contribute nothing ("null gradients"). The sum is divided by
//    all workers, not by the contributors (Algorithm 5, line 7): each has its share of 1 by the
//    samples in its newest batch (options.h, weights), and a contributor's weight is its share.
//  - A worker that finishes keeps its share for the next max_stale_rounds rounds, as if it was
//    passed over in them. Otherwise the gradients of the last few workers would move the model many
//    times as far as before.
//  - A worker arrives at round r with a signal that waits and has iteration r. Its gradient may be
//    late for the round that its signal names: it is owed then, and goes into the next one.
//  - Who starts a round is options.h, quorum. With "majority" the draw depends on the seed, the
//    round and the joined workers alone; who leaves when drawn is replaced by another draw.
//  - A worker that max_stale_rounds succeeded without holds the next round up until it owes a
//    gradient or has arrived (Lemma 5.1 (4)).
//  - Every sync_every rounds, the next round waits until all workers have arrived, and their models
//    are averaged first (section 5, last paragraph before 5.1).
//
// A round that failed has not been: its number is given to the next one, and who had arrived at it
// has arrived again.
#ifndef PRD_ENGINES_EAGER_EAGER_H_
#define PRD_ENGINES_EAGER_EAGER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engines/eager/options.h"
#include "engines/engine.h"
#include "engines/ring_order.h"
#include "engines/samples.h"

namespace prd {

class Eager final : public Engine {
 public:
  // REQUIRES: Validate(options, 0) is ok.
  explicit Eager(const EagerOptions& options) : options_(options) {}

  Plan plan() const override;
  Joining joining() const override { return Joining::kPause; }
  Batches batches() const override {
    const bool weighs = options_.weights == EagerOptions::Weights::kSamples;
    return weighs ? Batches::kParts : Batches::kNone;
  }
  void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) override;
  std::optional<Instant> NextDeadline() const override { return std::nullopt; }
  std::string Explain(Instant now, Rank rank) const override;
  void Archive(StateArchive& ar) override;

 private:
  struct Worker {
    Iteration iteration = 0;  // of its last signal, or of its join
    Iteration last_in = 0;    // the newest round that it was not passed over in
    std::uint32_t owed = 0;
    std::uint32_t samples = 0;  // of its newest gradient; 0: not told
    std::int32_t host = 0;
    bool joined = false;
    bool waiting = false;   // its last signal waits for the round of its iteration
    bool in_round = false;  // the running round does not pass it over
    void Archive(StateArchive& ar) {
      ar(iteration, last_in, owed, samples, host, joined, waiting, in_round);
    }
  };
  // A worker that has finished.
  struct Finisher {
    Iteration last_in = 0;  // the newest round when it did
    std::uint32_t samples = 0;
    void Archive(StateArchive& ar) { ar(last_in, samples); }
  };

  Worker& At(Rank rank) { return workers_[static_cast<std::size_t>(rank)]; }
  const Worker& At(Rank rank) const { return workers_[static_cast<std::size_t>(rank)]; }
  bool Joined(Rank rank) const;
  // The worker has arrived at the next round.
  bool Arrived(const Worker& worker) const;
  // The next round must not pass the worker over.
  bool Overdue(const Worker& worker) const;
  bool SyncDue() const;

  void OnJoined(const JoinedEvent& event);
  void OnReady(const ReadyEvent& event);
  void OnFinished(const FinishedEvent& event);
  void OnEnded(const EndedEvent& event);
  void OnLeft(const LeftEvent& event);

  // Takes a worker out of the counts below, before it is changed, or into them, after.
  void Count(const Worker& worker, int by);
  void CountAll();

  void FormNext(GroupId* next_group, Effects* out);
  // Why the next round may start now; empty while it may not.
  std::string Starter();
  // Draws the initiator of the next round, unless there is one.
  void DrawInitiator();
  // The workers' shares in the next round.
  SampleShares Shares();
  void FormRound(const std::string& why, GroupId* next_group, Effects* out);
  void FormAverage(GroupId* next_group, Effects* out);
  void SortRing();

  std::vector<Rank> Those(bool (Eager::*are)(const Worker&) const, bool yes) const;
  std::string WhyNoRound() const;
  bool Consistent() const;

  const EagerOptions options_;
  std::vector<Worker> workers_;  // by rank
  HostTable hosts_;
  Iteration formed_ = 0;             // the running round, or the last one that succeeded
  Iteration last_sync_ = 0;          // the round after which models were averaged last
  GroupId running_ = kNoGroup;       // a round or an average
  bool averaging_ = false;           // the running group is an average
  Rank initiator_ = kNoRank;         // drawn for the next round ("majority")
  std::vector<Finisher> finishers_;  // that have a share yet

  // Derived, of joined workers.
  std::int64_t joined_ = 0;
  std::int64_t arrived_ = 0;
  std::int64_t owing_ = 0;
  std::int64_t overdue_ = 0;
  std::vector<Rank> ring_;  // in ring order; empty = to be made
};

}  // namespace prd

#endif  // PRD_ENGINES_EAGER_EAGER_H_
