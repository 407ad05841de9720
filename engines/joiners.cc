#include "engines/joiners.h"

#include <algorithm>
#include <string>
#include <vector>

namespace prd {

// ---- copies that have ended ----

void Joiners::EndCopy(Rank rank, const Adopted& adopted) {
  const RunWorker& worker = run_.roster[rank];
  const Rank source = copies_.End(rank);
  run_.roster.Touch(rank);
  ready_.Drop(rank);  // sent before the order arrived; after a failure the worker signals again
  if (!adopted.ok) return Fail(rank, source);
  const bool forked = copies_.Forked(rank, adopted.iteration);
  copies_.ClearFailed(rank);
  run_.roster.SetIteration(rank, adopted.iteration);
  ready_.Release(rank, ReadySlot::kForReplica);
  copies_.SetReplica(rank, false, worker.outdated);
  if (worker.state != WorkerState::kAdopting) {
    if (forked) {
      copies_.Order(rank, copies_.SourceFor(rank, kNoRank),
                    "others have gone on without rank " + std::to_string(source));
    } else {
      LeaveOlderBehind();
    }
    return;
  }
  if (worker.owed > 0) {
    run_.log.Write(
        UpdateDropped{.rank = rank,
                      .iteration = worker.iteration,
                      .reason = std::to_string(worker.owed) +
                                " of its gradients were in no round when it copied a model"});
    ready_.Count(rank, worker.owed);
  }
  // A round may have formed although signals were held back, because a worker left. A worker that
  // joins at any time catches up with those that train, but not with one that has stopped with a
  // newer replica.
  const bool late =
      run_.joining == Engine::Joining::kAnytime
          ? run_.AllOrNone(GroupKind::kTrain) && adopted.iteration < copies_.NewestStopped()
          : !NothingRuns() || adopted.iteration < copies_.Newest();
  if (late || forked || !shares_.MayJoin(rank)) {
    copies_.SetReplica(rank, !worker.resumes, !worker.resumes);
    run_.roster.MarkReturning(rank);  // a common start may take this copy, if none is better
    run_.roster.SetState(rank, WorkerState::kJoining);
  } else {
    copies_.SetReplica(rank, false, false);
    run_.run.Activate(rank, adopted.iteration,
                      "adopted the model of rank " + std::to_string(source));
    LeaveOlderBehind();
  }
}

// The worker could not copy the replica of `source`.
void Joiners::Fail(Rank rank, Rank source) {
  const RunWorker& worker = run_.roster[rank];
  const bool pauses = worker.stop_held == StopReason::kPause;  // it copies when it resumes
  if (pauses && worker.state == WorkerState::kActive && !worker.outdated) {
    ready_.Release(rank, ReadySlot::kForReplica);
    return run_.run.TakeHeldStop(rank);
  }
  if (pauses && worker.state == WorkerState::kAdopting) {
    return run_.roster.SetState(rank, WorkerState::kJoining);
  }
  const bool first = worker.failed_source == kNoRank;
  copies_.SetFailed(rank, source);
  const Rank other = copies_.SourceFor(rank, source);
  if (first && other != kNoRank && other != source && !copies_.OutOfReach(rank, other)) {
    copies_.Order(rank, other, RankName(source) + " did not answer");
    return;
  }
  if (worker.state == WorkerState::kAdopting) {
    run_.roster.SetState(rank, WorkerState::kJoining);  // Admit gives it another source
  } else if (copies_.Stranded(rank)) {
    copies_.AddStranded(1);  // HelpStranded does, and until then its signal is held back
  } else if (other == kNoRank && !Forks(rank)) {
    ready_.Release(rank, ReadySlot::kForReplica);  // no replica is better than its own
    return;
  }
  copies_.Later(rank);
}

bool Joiners::Forks(Rank rank) const {
  if (!run_.AllOrNone(GroupKind::kTrain)) return false;
  return std::any_of(groups_.all().begin(), groups_.all().end(), [&](const auto& running) {
    const RunningGroup& group = running.second;
    const auto is_member = [rank](const GroupShare& share) { return share.rank == rank; };
    return group.kind == GroupKind::kTrain && group.iteration == run_.roster[rank].iteration &&
           std::none_of(group.members.begin(), group.members.end(), is_member);
  });
}

void Joiners::RetryCopies() {
  if (!copies_.AnyDue()) return;
  for (Rank rank = 0; rank < run_.roster.size(); ++rank) {
    if (!copies_.Due(rank)) continue;
    const RunWorker& worker = run_.roster[rank];
    if (worker.state == WorkerState::kJoining || copies_.Stranded(rank)) continue;
    const Rank failed = worker.failed_source;
    const Rank source = copies_.SourceFor(rank, failed);
    if (copies_.CutOff(rank)) {
      copies_.Later(rank);
      if (worker.state == WorkerState::kActive && run_.AllOrNone(GroupKind::kTrain)) Part(rank);
      continue;
    }
    if (source != kNoRank) {
      copies_.Order(
          rank, source,
          failed == kNoRank ? "others have gone on" : RankName(failed) + " did not answer");
      continue;
    }
    if (Forks(rank)) {
      copies_.Later(rank);
      continue;
    }
    ready_.Release(rank, ReadySlot::kForReplica);  // no replica is better than its own
    if (worker.stop_held != StopReason::kNone) {
      ready_.Drop(rank);
      run_.run.TakeHeldStop(rank);
    } else {
      run_.run.DeliverReady(rank);
    }
  }
}

// Workers that have the newest replica and workers that lack it do not reach each other, and can
// train on only apart. The larger side goes on; where they are equal, the one with the replica.
// Workers that have stopped with it wait, and give it once they are reached.
void Joiners::Part(Rank rank) {
  const Iteration newest = copies_.Newest();
  std::vector<Rank> have, lack;
  for (Rank r = 0; r < run_.roster.size(); ++r) {
    const RunWorker& worker = run_.roster[r];
    const bool active = worker.state == WorkerState::kActive && !worker.no_replica;
    if (worker.iteration == newest && copies_.MayGive(r)) {
      if (!active) return;
      have.push_back(r);
    } else if (active && (worker.source != kNoRank || worker.Held(ReadySlot::kForReplica))) {
      lack.push_back(r);
    }
  }
  for (const Rank other : lack) {  // one that copies, or can, passes the replica on
    if (run_.roster[other].source != kNoRank || !copies_.CutOff(other)) return;
  }
  if (lack.size() <= have.size()) {
    return run_.LeaveBehind(rank, "it reaches no worker that has the newest model");
  }
  for (const Rank r : have) run_.LeaveBehind(r, "most workers lack its model, and do not reach it");
}

// Where all workers share every round, their replicas are equal between two rounds. But a worker
// may bring a newer replica: it has paused, or copied from a worker that has gone since. Workers
// with an older replica come back as new incarnations, and copy the newest.
void Joiners::LeaveOlderBehind() {
  if (run_.joining == Engine::Joining::kAnytime || !NothingRuns()) return;
  const auto trains = [](const RunWorker& worker) {
    return worker.state == WorkerState::kActive && !worker.no_replica && worker.source == kNoRank;
  };
  Iteration newest = 0;
  for (const RunWorker& worker : run_.roster.rows()) {
    if (trains(worker)) newest = std::max(newest, worker.iteration);
  }
  for (Rank rank = 0; rank < run_.roster.size(); ++rank) {
    const RunWorker& worker = run_.roster[rank];
    if (!trains(worker) || worker.iteration == newest) continue;
    run_.LeaveBehind(rank, "its model is of iteration " + std::to_string(worker.iteration) +
                               ", others have one of " + std::to_string(newest));
  }
}

// ---- workers that come ----

void Joiners::Admit() {
  // Where all workers share every round, replicas stand still while no round runs. Either the
  // joiner is part of the barrier from now on, so that no round begins before it has caught up; or
  // signals are held back meanwhile.
  if (run_.joining != Engine::Joining::kAnytime && !NothingRuns()) return;
  Roster& roster = run_.roster;
  bool source_found = true;
  int left = roster.Count(WorkerState::kJoining);
  for (Rank rank = 0; rank < roster.size() && left > 0; ++rank) {
    if (roster[rank].state != WorkerState::kJoining) continue;
    --left;
    const bool resumes = roster[rank].resumes;
    if (resumes && roster[rank].group != kNoGroup) continue;
    if (roster[rank].stop_held == StopReason::kPause) continue;  // it refuses
    if (!shares_.MayJoin(rank)) continue;
    const Rank source = copies_.SourceFor(rank, roster[rank].failed_source);
    if (source == kNoRank && resumes) continue;  // its own replica may be the newest
    source_found = source != kNoRank;
    if (!source_found) break;
    // What this worker probes may answer later. Others train on meanwhile.
    if (copies_.Waits(rank) || copies_.CutOff(rank)) continue;
    const std::string reason = copies_.JoinReason(rank);
    if (run_.joining == Engine::Joining::kBarrier && !resumes) {
      run_.run.Activate(rank, roster[source].iteration, reason);
    } else {
      roster.SetState(rank, WorkerState::kAdopting);
    }
    copies_.Order(rank, source, reason);
  }
  const bool all_join = roster.Count(WorkerState::kJoining) == roster.live();
  if (!source_found && all_join && roster.resuming() == 0) start_.Undo();
}

void Joiners::AdmitResuming(bool switching) {
  Roster& roster = run_.roster;
  Iteration newest = 0;  // workers with an older replica copy before they go on
  if (ReplicasAreEqual(run_.plan)) {
    newest = copies_.Newest();
    for (const RunWorker& worker : roster.rows()) {
      if (worker.resumes) newest = std::max(newest, worker.iteration);
    }
  }
  for (Rank rank = 0; rank < roster.size() && roster.resuming() > 0; ++rank) {
    const RunWorker& worker = roster[rank];
    if (!worker.resumes) continue;
    const bool between = !switching && (run_.joining == Engine::Joining::kAnytime || NothingRuns());
    const bool copies = worker.iteration < newest || !shares_.MayJoin(rank);
    if (worker.state == WorkerState::kJoining && worker.group == kNoGroup && between && !copies) {
      copies_.EndWait(rank);
      copies_.ClearFailed(rank);
      copies_.HasReplica(rank);  // a copy that came late, say: nobody has a newer one by now
      ready_.Release(rank, ReadySlot::kForReplica);  // held for a copy that failed
      run_.run.Activate(rank, worker.iteration, "goes on with its own model after a pause");
      LeaveOlderBehind();
    }
    if (worker.state != WorkerState::kActive || worker.source != kNoRank || worker.copies_after) {
      continue;
    }
    roster.SetResumes(rank, false);
    roster.Send(rank, Resumed{});
    run_.run.TakeHeldStop(rank);
  }
}

void Joiners::HelpStranded() {
  Roster& roster = run_.roster;
  const bool hopeless = copies_.stranded() + roster.Count(WorkerState::kJoining) == roster.live();
  for (Rank rank = 0; rank < roster.size() && copies_.stranded() > 0; ++rank) {
    if (!copies_.Stranded(rank)) continue;
    const Rank source = copies_.SourceFor(rank, roster[rank].failed_source);
    if (source == kNoRank && !hopeless) return;
    const bool cut = copies_.CutOff(rank);
    if (source != kNoRank && !cut && copies_.Waits(rank)) continue;
    copies_.AddStranded(-1);
    if (source != kNoRank && !cut) {
      copies_.Order(rank, source, copies_.JoinReason(rank));
      continue;
    }
    roster.SetState(rank, WorkerState::kJoining);
    roster.SetIteration(rank, roster[rank].brought);  // it has no other replica
    ready_.Release(rank, ReadySlot::kForReplica);
    run_.log.Write(
        WorkerLeft{.rank = rank,
                   .incarnation = roster[rank].incarnation,
                   .why = LeftReason::kLeft,
                   .reason = cut ? "reaches no worker that has a model: waits for one"
                                 : "nobody has a model to copy: waits for a common start"});
    run_.run.ToEngine(LeftEvent{.rank = rank, .why = LeftReason::kLeft});
  }
}

void Joiners::Rejoin() {
  for (const Rank rank : copies_.TakeBehind()) {
    const RunWorker& worker = run_.roster[rank];
    if (worker.state != WorkerState::kActive || worker.group != kNoGroup ||
        worker.source != kNoRank) {
      continue;
    }
    run_.log.Write(WorkerLeft{.rank = rank,
                              .incarnation = worker.incarnation,
                              .why = LeftReason::kLeft,
                              .reason = "nobody has a newer model: joins anew with its own"});
    run_.run.ToEngine(LeftEvent{.rank = rank, .why = LeftReason::kLeft});
    run_.run.Activate(rank, worker.iteration, "goes on with its own model");
    if (!worker.Held(ReadySlot::kForReplica)) run_.run.DeliverReady(rank);
  }
}

}  // namespace prd
