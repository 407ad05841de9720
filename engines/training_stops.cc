#include "engines/training_stops.h"

#include <string>

namespace prd {

std::string TrainingStops::OnStop(Rank rank, StopReason stop) {
  Roster& roster = run_.roster;
  const RunWorker& worker = roster[rank];
  const bool finishes = stop == StopReason::kFinish;
  const bool drains = orders_.Drains(rank) && worker.state == WorkerState::kPaused;
  if (drains && !finishes) return {};
  const std::string where = " at iteration " + std::to_string(worker.iteration);
  if (worker.state == WorkerState::kPaused && finishes) {
    roster.SetState(rank, WorkerState::kFinishing);
    run_.log.Write(WorkerLeft{.rank = rank,
                              .incarnation = worker.incarnation,
                              .why = LeftReason::kFinished,
                              .reason = "finished after a pause" + where,
                              .gradients = worker.owed});
    return {};
  }
  const bool starts =
      worker.state == WorkerState::kStarting && worker.group == kNoGroup && !worker.Waits();
  // Said before an order to copy got there: it counts once the copy is there.
  const bool copies = worker.state == WorkerState::kActive && worker.group == kNoGroup &&
                      (worker.source != kNoRank || worker.copies_after);
  if (starts || copies || worker.outdated || worker.resumes) {
    roster.HoldStop(rank, stop);
    return {};
  }
  roster.HoldStop(rank, StopReason::kNone);
  const bool in_round =
      (TrainsInRounds(run_.plan) || DrawnAhead(run_.plan)) && worker.group != kNoGroup;
  const bool waits = worker.Waits() && !(TrainsInRounds(run_.plan) && in_round);
  if (worker.state != WorkerState::kActive || (worker.group != kNoGroup && !in_round) || waits ||
      worker.Held(ReadySlot::kForReplica)) {
    return (finishes ? "finished while " : "paused while ") + run_.run.Explain(run_.now(), rank);
  }
  Stop(rank, finishes ? LeftReason::kFinished : LeftReason::kPaused,
       (finishes ? "finished" : "pauses") + where);
  return {};
}

std::string TrainingStops::TakeHeld(Rank rank) {
  const StopReason held = run_.roster[rank].stop_held;
  return held == StopReason::kNone ? std::string() : OnStop(rank, held);
}

std::string TrainingStops::OnResume(Rank rank) {
  Roster& roster = run_.roster;
  const RunWorker& worker = roster[rank];
  const bool held = worker.stop_held == StopReason::kPause;
  roster.HoldStop(rank, StopReason::kNone);
  if ((worker.state != WorkerState::kPaused && !held) || worker.resumes) {
    return "resumed while " + run_.run.Explain(run_.now(), rank);
  }
  roster.SetResumes(rank, true);
  if (worker.state == WorkerState::kPaused) roster.SetState(rank, WorkerState::kJoining);
  return {};
}

void TrainingStops::Stop(Rank rank, LeftReason why, const std::string& reason) {
  Roster& roster = run_.roster;
  ready_.Clear(rank);
  roster.SetStopped(rank, run_.now(), clock_.gained().steps);
  roster.SetState(rank,
                  why == LeftReason::kFinished ? WorkerState::kFinishing : WorkerState::kPaused);
  run_.log.Write(WorkerLeft{.rank = rank,
                            .incarnation = roster[rank].incarnation,
                            .why = why,
                            .reason = reason,
                            .gradients = roster[rank].owed});
  run_.run.ToEngine(LeftEvent{.rank = rank, .why = why});
}

}  // namespace prd
