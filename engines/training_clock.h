// What a run's workers have trained: how far the job is, and whether it is done.
//
// Each worker tells what it has trained so far, over its whole life. The clock keeps a tally for
// each rank, which outlives the worker that held the rank, and the sum of what the tallies have
// grown. Pure; not thread safe.
#ifndef PRD_ENGINES_TRAINING_CLOCK_H_
#define PRD_ENGINES_TRAINING_CLOCK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"

namespace prd {

// What was trained under one rank in this run, whoever held it.
struct RankTally {
  bool known = false;           // a worker has held the rank
  Trained first;                // what the first of them brought,
  Trained last;                 // and the newest told, both counted over its whole life
  std::uint64_t nonfinite = 0;  // steps that were not all finite
  Instant nonfinite_at;         // when such a step was told last
  Incarnation gone = 0;         // the newest that has left, or was lost
  HeldMemory memory;            // that the newest holds, as it last told
  void Archive(StateArchive& ar) {
    ar(known, first, last, nonfinite, nonfinite_at, gone);
    ar(memory.host, memory.host_peak, memory.device, memory.device_peak);
  }
};

class TrainingClock {
 public:
  // goal 0: none yet.
  explicit TrainingClock(const Trained& goal) : goal_(goal) {}

  // Continues the count of the run before.
  void TakeOver(const FormerRun& former);
  // Ranks are below this from now on. REQUIRES: not fewer than before.
  void Grow(std::size_t ranks) { tallies_.resize(ranks); }

  // Counts what a worker brings, and returns what the worker has trained so far: what it says, or
  // what was last told under its rank, if that is more. Training that the worker did while its
  // controller did not hear it is counted now.
  Trained CountHello(Rank rank, const Trained& own);
  // Counts a report. Returns what is wrong with it, and counts nothing; or empty.
  std::string CountReport(Instant now, Rank rank, const Trained& own, std::uint32_t nonfinite);
  void NoteGone(Rank rank, Incarnation incarnation) {
    tallies_[RankIndex(rank)].gone = incarnation;
    tallies_[RankIndex(rank)].memory = {};
  }
  // What a worker says that it holds; it may have told it before.
  void NoteMemory(Rank rank, const HeldMemory& memory) {
    if (memory != HeldMemory{}) tallies_[RankIndex(rank)].memory = memory;
  }

  // The part of `told`, the job's total as a worker knows it, that was trained before this run. The
  // rest is of this run: if a common start failed for that worker, others may have trained since.
  Trained BeforeRun(const Trained& told) const;
  // At least this was trained before this run.
  void Bring(const Trained& before);

  void SetGoal(const Trained& goal) { goal_ = goal; }
  // A worker ends training: wherever the job is now is the goal. Only the first one counts.
  void Stop(Rank rank, const std::string& reason);
  // Whether the job becomes done now: once. REQUIRES: the run has begun.
  bool ReachGoal();
  // The job is done, whatever its goal.
  void End() { done_ = true; }
  // A group that is the last of its members has a result.
  void NoteLastResult() { last_result_ = true; }

  const Trained& goal() const { return goal_; }
  bool done() const { return done_; }
  bool last_result() const { return last_result_; }
  Trained trained() const;                           // by the job
  const Trained& gained() const { return gained_; }  // in this run
  std::uint64_t nonfinite() const;                   // steps of all ranks
  // "stopped by rank 0: REASON"; empty: no worker has stopped the job.
  const std::string& stopped_by() const { return stopped_by_; }
  const std::vector<RankTally>& tallies() const { return tallies_; }  // by rank

  // "; the job has trained 80 steps; stopped by rank 0": for the end of a sentence. May be empty.
  std::string TrainedWords() const;
  // "; 3 of its steps were not finite, the last told 2 s ago". Empty: all were finite.
  std::string NonfiniteWords(Instant now, Rank rank) const;

  void Archive(StateArchive& ar) {
    ar(tallies_, before_, gained_, goal_, done_, stopped_by_, last_result_);
  }

 private:
  std::vector<RankTally> tallies_;
  Trained before_;  // by the job before this run, as the workers of the first start said
  Trained gained_;
  Trained goal_;
  bool done_ = false;
  std::string stopped_by_;
  bool last_result_ = false;
};

}  // namespace prd

#endif  // PRD_ENGINES_TRAINING_CLOCK_H_
