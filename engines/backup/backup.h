// Engine `backup`: synchronous SGD with backup workers (Chen et al., Revisiting Distributed
// Synchronous SGD, 2016; Luo et al., Hop, ASPLOS 2019, section 3.4): of N workers, a round takes
// the first N - b gradients of its iteration and does not wait for the others, whose gradients are
// dropped when they come.
//
//  - The round of iteration i + 1, i being the newest that is committed, forms as soon as
//    max(1, joined - b) signals for it wait, with all that wait then. Their gradients are weighted
//    by the samples in their batches (options.h, weights). Signals that come while it runs wait for
//    its end.
//  - When it has ended with a result, i + 1 is committed, and whatever others have computed, or are
//    computing, on an older replica is dropped (UpdateDropped). Members for which the round failed
//    copy the result by the job's order.
//  - A worker that copies the result begins its next step after the others, and would be late for
//    that alone, round after round. So the next round waits for such a worker when enough have
//    come, if its signal is due soon: going by the last time that it copied, within kWaitShare of
//    what that took. The round waits until then at most.
//  - A worker that copied, and signals after its round has formed all the same, would begin late
//    again. If it would be late for the next round, too, it copies when that one has ended, and
//    begins with the others. It waits for that until the next round is kWaitShare later than the
//    last one was, and then copies; so it waits for less than its own step takes, and for no slow
//    worker.
//  - If nobody has the result, everything that waits still counts.
//  - A signal for an older iteration (its worker copied a replica that was outdated when it got
//    there) is dropped, too. When the newest replica is gone with its workers, the newest of the
//    others is what training goes on from.
#ifndef PRD_ENGINES_BACKUP_BACKUP_H_
#define PRD_ENGINES_BACKUP_BACKUP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engines/backup/options.h"
#include "engines/engine.h"
#include "engines/ring_order.h"

namespace prd {

class Backup final : public Engine {
 public:
  // REQUIRES: Validate(options, 0) is ok.
  explicit Backup(const BackupOptions& options) : options_(options) {}

  Plan plan() const override { return {.by = GroupPlan{.payload = Payload::kGradients}}; }
  Joining joining() const override { return Joining::kAnytime; }
  Batches batches() const override {
    const bool weighs = options_.weights == BackupOptions::Weights::kSamples;
    return weighs ? Batches::kParts : Batches::kNone;
  }
  void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) override;
  std::optional<Instant> NextDeadline() const override;
  std::string Explain(Instant now, Rank rank) const override;
  void Archive(StateArchive& ar) override;

  // A share of the time from the order to copy to the next signal, or from one round to the next.
  static constexpr double kWaitShare = 1.0 / 8;

 private:
  enum class State : std::uint8_t {
    kAbsent,
    kComputing,
    kWaiting,     // with a signal
    kReducing,    // in the running round, not reported yet
    kFailed,      // the running round failed for it
    kCatchingUp,  // copies a replica, or computes on the copy: silent until its next signal
    kOutdated,    // with a signal for an iteration that is past; to be dropped
  };
  struct Worker {
    Iteration model = 0;  // its replica's iteration; not known while it catches up
    Instant since;        // when it signalled, began to compute, or was to copy a replica
    DurationNs turn = 0;  // the last time that it copied: from then to its next signal; 0: never
    std::uint32_t samples = 0;  // of its newest signal; 0: not told
    std::int32_t host = 0;
    State state = State::kAbsent;
    bool listed = false;   // its rank is in current_
    bool awaited = false;  // the next round, for which enough have come, waits for it
    void Archive(StateArchive& ar) {
      ar(model, since, turn, samples, host, state, listed, awaited);
    }
  };

  Worker& At(Rank rank) { return workers_[static_cast<std::size_t>(rank)]; }
  const Worker& At(Rank rank) const { return workers_[static_cast<std::size_t>(rank)]; }
  bool Joined(Rank rank) const;
  // Its replica's iteration is known.
  bool Known(Rank rank) const;
  bool Running() const { return running_ != kNoGroup; }
  std::size_t Needed() const;

  void OnJoined(Instant now, const JoinedEvent& event, Effects* out);
  void OnReady(Instant now, const ReadyEvent& event, Effects* out);
  void OnFinished(Instant now, const FinishedEvent& event);
  void OnEnded(Instant now, const EndedEvent& event, Effects* out);
  void OnLeft(const LeftEvent& event);
  void List(Rank rank);
  // Finds the newest replica there is, which has `committed` at least, and drops what is computed
  // on older ones. REQUIRES: no round runs.
  void Settle(Instant now, Iteration committed, Effects* out);
  void Drop(Instant now, Rank rank, Effects* out);
  std::string WhyDropped(Instant now, const Worker& worker) const;
  void Set(Worker* worker, State state);
  static DurationNs Share(DurationNs of);
  // When the next round has formed, going by the time between the last two.
  Instant Expected() const;
  // Workers that neither copy nor are outdated.
  std::int64_t UpToDate() const { return joined_ - catching_up_ - outdated_; }
  // The worker, whose outdated signal has come, is to be dropped when the next round has ended.
  bool BeginsWithTheOthers(Instant now, const Worker& worker) const;
  void DropOutdated(Instant now, Effects* out);
  // The worker is to copy a replica.
  void BeginCopy(Instant now, Rank rank);
  void NotAwaited(Worker* worker);
  bool Enough() const { return !waiting_.empty() && waiting_.size() >= Needed(); }
  // Looks, when enough have come, who else is due soon.
  void LookWhoIsDue(Instant now);
  void FormIfEnough(Instant now, GroupId* next_group, Effects* out);
  // The waiting ranks in ring order.
  std::vector<Rank> WaitingInRingOrder();
  bool Consistent() const;

  const BackupOptions options_;
  std::vector<Worker> workers_;  // by rank
  HostTable hosts_;
  std::int64_t joined_ = 0;
  Iteration newest_ = 0;       // the newest committed iteration
  std::vector<Rank> waiting_;  // in the order of their signals
  // Every joined worker that does not catch up (and some that have gone): who may be behind when a
  // round has ended. Once it has, only those with its result are left, so that finding the others
  // costs no more than the signals that there were.
  std::vector<Rank> current_;
  GroupId running_ = kNoGroup;  // the round that runs
  GroupId last_ = kNoGroup;     // the last round that formed, its iteration, and when it did
  Iteration last_iteration_ = 0;
  Instant last_formed_;
  std::vector<Rank> copying_;      // who were to copy since the last round formed
  std::optional<Instant> enough_;  // when enough had come for the next one
  Instant wait_until_;             // for those awaited
  DurationNs period_ = 0;          // between the last two rounds that formed; 0: not known
  std::int64_t awaited_ = 0;       // derived
  std::int64_t catching_up_ = 0;   // derived
  std::int64_t outdated_ = 0;      // derived
  std::vector<Rank> ring_;  // the joined ranks in ring order; empty = to be made (derived state)
};

}  // namespace prd

#endif  // PRD_ENGINES_BACKUP_BACKUP_H_
