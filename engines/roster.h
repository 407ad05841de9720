// The workers of a run: ranks, incarnations, states, and the links to them.
//
// A rank has one worker at a time; its row is empty (kAbsent) while no worker holds it. Pure; not
// thread safe.
#ifndef PRD_ENGINES_ROSTER_H_
#define PRD_ENGINES_ROSTER_H_

#include <array>
#include <map>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "engines/run_journal.h"
#include "engines/run_worker.h"

namespace prd {

class Roster {
 public:
  explicit Roster(RunJournal* log) : log_(*log) {}

  // ---- read ----
  const std::vector<RunWorker>& rows() const { return rows_; }  // by rank
  const RunWorker& operator[](Rank rank) const { return rows_[RankIndex(rank)]; }
  Rank size() const { return static_cast<Rank>(rows_.size()); }  // ranks are below this
  bool Present(Rank rank) const;
  Rank RankOf(Incarnation incarnation) const;  // kNoRank: it is not there
  Rank Free() const;                           // the lowest rank that no worker holds
  int live() const { return live_; }           // workers that are present
  int resuming() const { return resuming_; }   // workers that said Resume, and have no answer
  int Count(WorkerState state) const { return counts_[static_cast<std::size_t>(state)]; }
  std::vector<Rank> RanksIn(WorkerState state) const;
  // What others need to reach the worker.
  GroupMember Describe(Rank rank) const;

  // ---- membership ----
  void Grow(Rank size) { rows_.resize(static_cast<std::size_t>(size)); }
  // A worker takes the rank, which is free and below size(). `continues`, `job_trained`: see
  // MemberSlot.
  void Enter(Rank rank, const WorkerEnvelope& envelope, bool continues, const Trained& job_trained);
  // The worker is gone. Gives its row as it was; the rank is free again.
  RunWorker Leave(Rank rank);
  void SetState(Rank rank, WorkerState state);  // and the time of its last input

  // ---- what a worker does ----
  void Touch(Rank rank) { Member(rank).since = log_.now(); }
  void SetIteration(Rank rank, Iteration iteration) { Member(rank).iteration = iteration; }
  void MarkReturning(Rank rank) { Member(rank).returns = true; }
  void HoldStop(Rank rank, StopReason stop) { Member(rank).stop_held = stop; }
  void SetResumes(Rank rank, bool resumes);
  void SetStopped(Rank rank, Instant when, std::int64_t steps) {
    Member(rank).stopped_at = steps;
    Member(rank).stopped_when = when;
  }
  // The worker tells of so many steps more, as if made evenly since it told last. Those from before
  // another worker stopped are not what that one's replica lacks.
  void NoteTold(Rank rank, Instant now, std::int64_t steps);

  // ---- messages ----
  void Receive(Rank rank, Seq seq, Seq ack);
  bool Acknowledge(Rank rank, Seq ack) { return Member(rank).link.OnAck(ack); }
  void Send(Rank rank, ControllerBody body);
  // Outside the order of messages: the incarnation is over.
  void Refuse(Rank rank, Code code, const std::string& reason);
  // Tells a worker that another one may turn to it, or copy from it, from now on.
  void Introduce(Rank asks, Rank asked, bool copies);

  // The rows, for the part that owns this slot and for the snapshot.
  template <typename Slot>
  SlotColumn<Slot> Of() {
    return SlotColumn<Slot>(&rows_);
  }
  void Archive(StateArchive& ar) { ar(rows_); }
  void Restore();  // after a load

 private:
  MemberSlot& Member(Rank rank) { return rows_[RankIndex(rank)]; }

  RunJournal& log_;
  std::vector<RunWorker> rows_;
  // Derived from the rows.
  std::map<Incarnation, Rank> by_incarnation_;
  std::array<int, 8> counts_{};  // by state
  int live_ = 0;
  int resuming_ = 0;
};

}  // namespace prd

#endif  // PRD_ENGINES_ROSTER_H_
