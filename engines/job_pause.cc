// Job: workers that stop training, for a time or for good, and those that resume.
#include <algorithm>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "engines/job.h"

namespace prd {

// REQUIRES of workers: none of their signals that wait is unanswered.
std::string Job::OnStop(Rank rank, Stop stop) {
  Worker& worker = At(rank);
  const bool finishes = stop == Stop::kFinish;
  const bool drains = orders_.Drains(rank) && worker.state == State::kPaused;
  if (drains && !finishes) return {};
  const std::string where = " at iteration " + std::to_string(worker.iteration);
  if (worker.state == State::kPaused && finishes) {
    SetState(rank, State::kFinishing);
    Write(WorkerLeft{.rank = rank,
                     .incarnation = worker.incarnation,
                     .why = LeftReason::kFinished,
                     .reason = "finished after a pause" + where,
                     .gradients = worker.owed});
    return {};
  }
  const bool stands = worker.signal && worker.signal->waiting;
  const bool starts = worker.state == State::kStarting && worker.group == kNoGroup && !stands;
  // Said before an order to copy got there: it counts once the copy is there.
  const bool copies = worker.state == State::kActive && worker.group == kNoGroup &&
                      (worker.source != kNoRank || worker.copies_after);
  if (starts || copies || worker.outdated || worker.resumes) {
    worker.stop_held = stop;
    return {};
  }
  worker.stop_held = Stop::kNone;
  const bool in_round = (TrainsInRounds(plan_) || DrawnAhead(plan_)) && worker.group != kNoGroup;
  const bool waits = stands && !(TrainsInRounds(plan_) && in_round);
  if (worker.state != State::kActive || (worker.group != kNoGroup && !in_round) || waits ||
      worker.signal_held) {
    return (finishes ? "finished while " : "paused while ") + Explain(now_, rank);
  }
  worker.signal.reset();
  SetWithheld(rank, false);
  worker.stopped_at = clock_.gained().steps;
  SetState(rank, finishes ? State::kFinishing : State::kPaused);
  const LeftReason why = finishes ? LeftReason::kFinished : LeftReason::kPaused;
  Write(WorkerLeft{.rank = rank,
                   .incarnation = worker.incarnation,
                   .why = why,
                   .reason = (finishes ? "finished" : "pauses") + where,
                   .gradients = worker.owed});
  ToEngine(LeftEvent{.rank = rank, .why = why});
  return {};
}

std::string Job::OnResume(Rank rank) {
  Worker& worker = At(rank);
  const bool held = std::exchange(worker.stop_held, Stop::kNone) == Stop::kPause;
  if ((worker.state != State::kPaused && !held) || worker.resumes) {
    return "resumed while " + Explain(now_, rank);
  }
  worker.resumes = true;
  ++resuming_;
  if (worker.state == State::kPaused) SetState(rank, State::kJoining);
  return {};
}

// Whoever need not copy first goes on with its own replica; whoever is back is told.
void Job::AdmitResuming() {
  Iteration newest = 0;  // workers with an older replica copy before they go on
  if (ReplicasAreEqual(plan_)) {
    newest = Newest();
    for (const Worker& worker : workers_) {
      if (worker.resumes) newest = std::max(newest, worker.iteration);
    }
  }
  for (Rank rank = 0; Index(rank) < workers_.size() && resuming_ > 0; ++rank) {
    Worker& worker = At(rank);
    if (!worker.resumes) continue;
    // A worker that comes back now comes back to the next run.
    const bool between = !switching() && (joining_ == Engine::Joining::kAnytime || NothingRuns());
    const bool copies = worker.iteration < newest;
    if (worker.state == State::kJoining && worker.group == kNoGroup && between && !copies) {
      worker.copies_after.reset();
      worker.failed_source = kNoRank;
      worker.signal_held = false;  // of a copy that failed
      Activate(rank, worker.iteration, "goes on with its own model after a pause");
      LeaveOlderBehind();
    }
    if (worker.state != State::kActive || worker.source != kNoRank || worker.copies_after) continue;
    worker.resumes = false;
    --resuming_;
    Send(rank, Resumed{});
    if (worker.stop_held != Stop::kNone) PRD_CHECK(OnStop(rank, worker.stop_held).empty());
  }
}

// Workers with a replica that is of use to others: none that copies one itself.
std::string Job::OnAskMembers(Rank rank) {
  Members members;
  for (Rank r = 0; Index(r) < workers_.size(); ++r) {
    const Worker& worker = At(r);
    const bool has_replica = worker.state == State::kJoining ? worker.resumes : !worker.no_replica;
    const bool copies = worker.source != kNoRank && worker.group == kNoGroup;
    if (Present(r) && has_replica && !copies && !worker.outdated) {
      members.members.push_back(Describe(r));
      if (r != rank) Introduce(rank, r, true);
    }
  }
  Send(rank, std::move(members));
  return {};
}

}  // namespace prd
