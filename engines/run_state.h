// The state of a run, to read: what prdctl, the daemon and tests see of a Run, and what its
// explanations and checks are made from.
//
// The parts own the state. Each is wired here to those that it works with.
#ifndef PRD_ENGINES_RUN_STATE_H_
#define PRD_ENGINES_RUN_STATE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engines/admissions.h"
#include "engines/batch_shares.h"
#include "engines/divergence_check.h"
#include "engines/engine.h"
#include "engines/gone_notices.h"
#include "engines/group_table.h"
#include "engines/held_groups.h"
#include "engines/job_spec.h"
#include "engines/link_table.h"
#include "engines/number_calls.h"
#include "engines/operator_orders.h"
#include "engines/ready_queue.h"
#include "engines/replica_copies.h"
#include "engines/roster.h"
#include "engines/run_context.h"
#include "engines/run_journal.h"
#include "engines/run_switch.h"
#include "engines/run_worker.h"
#include "engines/start_barrier.h"
#include "engines/training_clock.h"

namespace prd {

class RunState {
 public:
  // ---- the run ----
  RunId id() const { return log_.run(); }
  const RunIdentity& identity() const { return identity_; }
  const JobSpec& spec() const { return spec_; }
  const Plan& plan() const { return plan_; }
  const Engine& engine() const { return *engine_; }
  int start_workers() const { return start_.workers(); }
  bool ended() const { return end_ != End::kNone; }  // the run takes nothing more
  // It has ended, and its workers ended it themselves (RunEnded).
  bool finished() const { return end_ == End::kFinished; }
  // Unix time at this time of the controller's clock, as it was when the run began.
  std::int64_t WallAt(Instant now) const { return wall_ns_ + (now - started_at_); }
  std::uint64_t next_index() const { return log_.next_index(); }  // of the next record
  Instant last_now() const { return log_.now(); }                 // of the last input
  // The engine, or other settings, are about to be switched.
  const std::optional<SwitchOrder>& switching() const { return switch_.switching(); }
  // The run has ended, and the job goes on in the run switching()->next, which takes this over.
  // Null: it does not.
  const FormerRun* next() const { return switch_.next().known() ? &switch_.next() : nullptr; }

  // ---- workers ----
  // By rank; absent ones have state kAbsent.
  const std::vector<RunWorker>& workers() const { return roster_.rows(); }
  int live() const { return roster_.live(); }
  // kNoRank: it is not there.
  Rank RankOf(Incarnation incarnation) const { return roster_.RankOf(incarnation); }
  // The link of a worker that is there, for retransmission.
  const LinkEnd<ControllerBody>& link(Rank rank) const { return roster_[rank].link; }
  // Running groups, by id.
  const std::map<GroupId, RunningGroup>& groups() const { return groups_.all(); }
  // The newest workers that were not admitted, the newest last, without those that have joined
  // since.
  const std::vector<RefusedHello>& refusals() const { return admissions_.refusals(); }
  // The links between present workers that are broken, by lower and higher rank.
  const std::map<LinkTable::Pair, BrokenLink>& broken_links() const { return links_.all(); }
  const NumberRounds& numbers() const { return numbers_.rounds(); }

  // ---- training ----
  const std::vector<RankTally>& tallies() const {
    return clock_.tallies();
  }  // as long as workers()
  // How far the job is, as its workers are told.
  JobProgress progress() const;
  // The worker that has stopped the job, and why: "stopped by rank 0: REASON"; empty: nobody.
  const std::string& stopped_by() const { return clock_.stopped_by(); }
  const Divergence& divergence() const { return divergence_.divergence(); }

  // ---- operators ----
  const std::optional<PauseOrder>& paused() const { return orders_.paused(); }
  // The operator that has paused the run, since when and why; empty: nobody.
  std::string PauseWords(Instant now) const { return orders_.PauseWords(now); }
  // Workers that leave once they are in no group any more, and why.
  const std::map<Rank, std::string>& draining() const { return orders_.draining(); }
  // The newest ones, the newest last.
  const std::vector<Dismissal>& dismissed() const { return orders_.dismissed(); }

  // ---- the parts ----
  const Roster& roster() const { return roster_; }
  const ReplicaCopies& copies() const { return copies_; }
  const HeldGroups& held() const { return held_; }
  const LinkTable& links() const { return links_; }
  const DivergenceCheck& divergence_check() const { return divergence_; }
  const TrainingClock& clock() const { return clock_; }
  const OperatorOrders& orders() const { return orders_; }
  const NumberCalls& number_calls() const { return numbers_; }
  const Admissions& admissions() const { return admissions_; }
  const StartBarrier& start() const { return start_; }
  const RunSwitch& switches() const { return switch_; }
  const BatchShares& shares() const { return shares_; }
  // The common start waits for workers of the run before.
  bool Awaits(Instant now) const { return !start_.begun() && switch_.Awaits(now); }

 protected:
  enum class End : std::uint8_t { kNone, kEnded, kFinished };

  RunState(RunId run, JobSpec spec, RunActions* actions);

  // In the order of the snapshot's format.
  void Archive(StateArchive& ar);
  // Why a snapshot cannot be loaded that is of another kStateVersion; empty: it is of this one.
  static std::string OtherVersion(std::string_view state);
  // After Archive has loaded: derives what a snapshot leaves out. False: the parts do not fit.
  bool Restore();

  const JobSpec spec_;
  const std::unique_ptr<Engine> engine_;
  const Plan plan_;
  RunIdentity identity_;
  std::int64_t wall_ns_ = 0;  // when the run began, and what time it was then
  Instant started_at_;
  End end_ = End::kNone;
  RunJournal log_;
  Roster roster_;
  const RunContext context_;
  Admissions admissions_;
  StartBarrier start_;
  RunSwitch switch_;
  TrainingClock clock_;
  OperatorOrders orders_;
  DivergenceCheck divergence_;
  LinkTable links_;
  ReadyQueue ready_;
  ReplicaCopies copies_;
  BatchShares shares_;
  GroupTable groups_;
  HeldGroups held_;
  NumberCalls numbers_;
  GoneNotices gone_;
};

}  // namespace prd

#endif  // PRD_ENGINES_RUN_STATE_H_
