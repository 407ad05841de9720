#include "engines/group_table.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "engines/run_limits.h"

namespace prd {

void RunningGroup::Archive(StateArchive& ar) {
  ar(kind, members, pending, ok, failed, iteration, compares, last, digests, aborted, failure,
     since);
}

// ---- announce ----

void GroupTable::Announce(GroupFormed form, bool ring_only) {
  const GroupKind kind = form.kind;
  const bool last = clock_.done() && OfEngine(kind);
  Group group{.id = form.id,
              .kind = kind,
              .members = {},
              .iteration = form.iteration,
              .initial_weight = form.initial_weight,
              .ring_only = ring_only,
              .digest = divergence_.Begin(run_.now(), kind, form.members.size()),
              .last = last,
              .reason = form.reason};
  RunningGroup running{.kind = kind,
                       .members = form.members,
                       .pending = {},
                       .ok = {},
                       .failed = {},
                       .iteration = form.iteration,
                       .compares = group.digest,
                       .last = last,
                       .digests = {},
                       .failure = {},
                       .since = run_.now()};
  const bool ahead = kind == GroupKind::kTrain && DrawnAhead(run_.plan);
  for (const GroupShare& share : form.members) {
    const RunWorker& worker = run_.roster[share.rank];
    PRD_CHECK(worker.state != WorkerState::kAbsent && worker.group == kNoGroup);
    PRD_CHECK(!OfEngine(kind) ||
              (worker.state == WorkerState::kActive && !worker.Held(ReadySlot::kForReplica)));
    PRD_CHECK(worker.Waits() || ahead ||
              (kind != GroupKind::kTrain && kind != GroupKind::kAverage));
    slots_[share.rank].group = form.id;
    // A round, and a group formed ahead, answers waiting members once they have its result. An
    // average answers no signal.
    if (kind != GroupKind::kRound && kind != GroupKind::kAverage && !ahead) {
      ready_.Drop(share.rank);
    }
    run_.roster.Touch(share.rank);
    running.pending.push_back(share.rank);
    GroupMember member = run_.roster.Describe(share.rank);
    member.weight = share.weight;
    member.passive = share.passive;
    group.members.push_back(std::move(member));
  }
  groups_.emplace_hint(groups_.end(), form.id, std::move(running));
  for (const GroupMember& member : group.members) run_.roster.Send(member.rank, group);
  run_.log.Write(std::move(form));
}

// ---- reports ----

// The group's success answers this member's signal.
bool GroupTable::AnsweredByEnd(const RunningGroup& group, Rank rank) const {
  if (!DrawnAhead(run_.plan) || group.kind != GroupKind::kTrain) return false;
  for (const GroupShare& share : group.members) {
    if (share.rank == rank) return !share.passive;
  }
  return false;
}

void GroupTable::Report(Rank rank, const Finished& finished) {
  const RunWorker& worker = run_.roster[rank];
  const GroupId id = finished.group;
  RunningGroup& group = groups_.at(id);
  const bool ok = finished.outcome == Outcome::kOk;
  const bool round = group.kind == GroupKind::kRound;
  ready_.Count(rank, finished.included);
  std::erase(group.pending, rank);
  (ok ? group.ok : group.failed).push_back(rank);
  slots_[rank].group = kNoGroup;
  slots_[rank].last_group = id;
  slots_[rank].last_ok = ok;
  run_.roster.Touch(rank);
  if (ok) {
    if (AnsweredByEnd(group, rank)) ready_.Drop(rank);
    if (!DrawnAhead(run_.plan) || group.kind != GroupKind::kTrain) {
      run_.roster.SetIteration(rank, group.iteration);
    }
    copies_.HasReplica(rank);
    if (group.compares && finished.digest != 0) {
      group.digests.push_back({.rank = rank, .value = finished.digest});
      if (run_.spec.on_divergence == JobSpec::OnDivergence::kRepair) {
        ready_.Hold(rank, ReadySlot::kForComparison);
      } else {
        ready_.Release(rank, ReadySlot::kForComparison);
      }
    }
    if (round) ready_.DropUpTo(rank, group.iteration);
  }
  // Until the last member has reported, it is open whether members for whom the group failed go on
  // from where they are or from the others' result. No worker trains before the common start.
  if (group.kind == GroupKind::kInitial || (!ok && run_.AllOrNone(group.kind))) {
    ready_.Hold(rank, ReadySlot::kForReplica);
  }
  // A worker that has said Finish may be in a round that was announced before: the engine does not
  // know it any more.
  if (OfEngine(group.kind) && worker.state == WorkerState::kActive) {
    run_.run.ToEngine(FinishedEvent{.rank = rank, .group = id, .ok = ok, .owed = worker.owed});
  }
  if (!ok) Fail(id, "it failed on rank " + std::to_string(rank) + ": " + finished.detail);
  EndIfDone(id);
}

std::string GroupTable::ReportResult(Rank rank, const Adopted& adopted) {
  const RunWorker& worker = run_.roster[rank];
  const GroupId id = worker.group;
  RunningGroup& group = groups_.at(id);
  if (adopted.included > (adopted.ok ? worker.owed : 0)) {
    return "the result of round " + std::to_string(id) + " with " +
           std::to_string(adopted.included) + " gradients, owing " + std::to_string(worker.owed);
  }
  ready_.Count(rank, adopted.included);
  slots_[rank].group = kNoGroup;
  run_.roster.Touch(rank);
  std::erase(group.pending, rank);
  const int failures = copies_.EndFetch(rank, adopted.ok);
  if (adopted.ok) {
    run_.roster.SetIteration(rank, group.iteration);
    ready_.DropUpTo(rank, group.iteration);
    group.ok.push_back(rank);
    if (worker.state == WorkerState::kActive) {
      run_.run.ToEngine(FinishedEvent{.rank = rank, .group = id, .ok = true, .owed = worker.owed});
    }
  } else {
    group.failed.push_back(rank);
    if (failures >= kMaxFetches) GiveUpFetch(id, rank, adopted.detail);
  }
  EndIfDone(id);
  return {};
}

void GroupTable::Leave(Rank rank, const RunWorker& gone, const std::string& reason) {
  if (gone.group == kNoGroup) return;
  std::erase(groups_.at(gone.group).pending, rank);
  Fail(gone.group, RankName(rank) + " is gone: " + reason);
  EndIfDone(gone.group);
}

bool GroupTable::AnyWith(Rank rank) const {
  for (const auto& [id, group] : groups_) {
    for (const GroupShare& member : group.members) {
      if (member.rank == rank) return true;
    }
  }
  return false;
}

// ---- ends ----

void GroupTable::EndAll() {
  for (const auto& [id, group] : groups_) {
    run_.log.Write(GroupEnded{.id = id, .ok = false, .reason = "the run ends"});
  }
  groups_.clear();
}

void GroupTable::Fail(GroupId id, const std::string& why) {
  RunningGroup& group = groups_.at(id);
  if (group.aborted) return;
  group.aborted = true;
  group.failure = why;
  for (const Rank rank : group.pending) run_.roster.Send(rank, Abort{.group = id, .reason = why});
}

// A worker that reported and then left, or came back as another incarnation, is not.
std::vector<Rank> GroupTable::StillHere(GroupId id, const std::vector<Rank>& ranks) const {
  std::vector<Rank> here = ranks;
  std::erase_if(
      here, [&](Rank rank) { return !run_.roster.Present(rank) || slots_[rank].last_group != id; });
  return here;
}

void GroupTable::EndIfDone(GroupId id) {
  const auto it = groups_.find(id);
  if (!it->second.pending.empty() || Repair(id)) return;
  const RunningGroup group = std::move(it->second);
  groups_.erase(it);
  std::vector<Rank> have = StillHere(id, group.ok);
  const std::vector<Rank> lack = StillHere(id, group.failed);
  const bool ok = group.ok.size() == group.members.size();
  if (ok && OfEngine(group.kind)) worked_at_ = run_.now();
  if (group.last && !group.ok.empty()) clock_.NoteLastResult();
  run_.log.Write(GroupEnded{.id = id, .ok = ok, .reason = ok ? std::string() : group.failure});
  if (group.kind == GroupKind::kRound) {
    for (const Rank rank : lack) {
      run_.roster.Send(rank, Abort{.group = id, .reason = "nobody has its result", .undone = true});
    }
  }
  const std::vector<Rank> differ = Compare(id, group);
  // The first of these is the source for members without the result.
  std::stable_partition(have.begin(), have.end(), [&differ](Rank rank) {
    return !std::binary_search(differ.begin(), differ.end(), rank);
  });
  const bool all_or_none = run_.AllOrNone(group.kind);
  // Members that have gone may have had the result, and others have copied it from them.
  const bool copied =
      all_or_none && group.kind == GroupKind::kTrain && copies_.Newest() >= group.iteration;
  if (OfEngine(group.kind)) {
    const bool shared = all_or_none || group.kind == GroupKind::kRound;
    run_.run.ToEngine(EndedEvent{.group = id, .ok = shared ? !have.empty() || copied : ok});
  }
  if (all_or_none) Settle(group, have, lack, copied);
  EndComparison(group, have);
}

// Lets members for whom a round failed fetch its result from those that have it. False: there is
// nothing to repair.
bool GroupTable::Repair(GroupId id) {
  RunningGroup& group = groups_.at(id);
  if (group.kind != GroupKind::kRound) return false;
  const std::vector<Rank> have = StillHere(id, group.ok);
  if (have.empty()) return false;
  // A worker that has fetched the result itself cannot pass it on.
  std::vector<Rank> sources = have;
  std::erase_if(sources, [this](Rank rank) { return !slots_[rank].last_ok; });
  std::vector<Rank> lack;
  lack.swap(group.failed);
  for (const Rank rank : lack) {
    if (StillHere(id, {rank}).empty()) continue;
    if (sources.empty()) {
      run_.LeaveBehind(rank, "nobody is left to give the result of round " + std::to_string(id));
      continue;
    }
    const auto tried = static_cast<std::size_t>(run_.roster[rank].fetches);
    OrderResult(rank, sources[(RankIndex(rank) + tried) % sources.size()], id);
    group.pending.push_back(rank);
  }
  return !group.pending.empty();
}

// A member cannot get the result of its round. Most members go on: with the result, without this
// member; or without those that have it.
void GroupTable::GiveUpFetch(GroupId id, Rank rank, const std::string& detail) {
  const RunningGroup& group = groups_.at(id);
  const std::vector<Rank> have = StillHere(id, group.ok);
  const std::size_t lack = group.pending.size() + StillHere(id, group.failed).size();
  const std::string round = "the result of round " + std::to_string(id);
  if (have.size() >= lack) {
    return run_.LeaveBehind(rank, "could not get " + round + ": " + detail);
  }
  for (const Rank other : have) {
    run_.LeaveBehind(other, "most members lack " + round + ", and do not reach it");
  }
}

void GroupTable::OrderResult(Rank rank, Rank source, GroupId group) {
  const std::string reason = RankName(source) + " has the result of round " +
                             std::to_string(group) + ", which failed here";
  copies_.BeginFetch(rank, source);
  slots_[rank].group = group;
  run_.roster.Touch(rank);
  run_.log.Write(AdoptOrdered{.rank = rank, .source = source, .reason = reason, .result = group});
  run_.roster.Send(
      rank, Adopt{.source = run_.roster.Describe(source), .reason = reason, .result = group});
}

// An all-or-none group has ended: its result, if any member has it, is what all go on from.
void GroupTable::Settle(const RunningGroup& group, const std::vector<Rank>& ok,
                        const std::vector<Rank>& failed, bool copied) {
  if (group.kind == GroupKind::kInitial) {
    run_.run.EndCommonStart(group.iteration, ok, failed);
    return;
  }
  for (const Rank rank : failed) {
    if (!ok.empty()) {
      const auto source = std::find_if(
          ok.begin(), ok.end(), [&](Rank other) { return !copies_.OutOfReach(rank, other); });
      if (source == ok.end()) {
        ready_.Hold(rank, ReadySlot::kForReplica);
        copies_.Later(rank);
      } else {
        copies_.Order(rank, *source, "others have the result of the group that failed here");
      }
      continue;
    }
    if (copied) {
      copies_.CatchUp(rank);
      continue;
    }
    ready_.Release(rank, ReadySlot::kForReplica);
    if (group.kind == GroupKind::kFinal) {
      run_.roster.SetState(rank, WorkerState::kFinishing);
    } else {
      run_.run.DeliverReady(rank);
    }
  }
}

// ---- replicas that should be equal ----

// Returns those of the members that differ from most. Members that have gone do not count.
std::vector<Rank> GroupTable::Compare(GroupId id, const RunningGroup& group) {
  std::vector<ReplicaDigest> digests = group.digests;
  std::erase_if(digests, [&](const ReplicaDigest& digest) {
    return !run_.roster.Present(digest.rank) || slots_[digest.rank].last_group != id;
  });
  DivergenceCheck::Result result = divergence_.Compare(run_.now(), id, group.iteration, digests);
  if (result.change) run_.log.Write(*std::move(result.change));
  return std::move(result.differ);
}

// Signals that were held back for the comparison go on to the engine. To repair, a worker that
// differs copies a replica of one that does not.
void GroupTable::EndComparison(const RunningGroup& group, const std::vector<Rank>& have) {
  if (!group.compares || run_.spec.on_divergence != JobSpec::OnDivergence::kRepair) return;
  const auto usable = [this](Rank rank) {
    const Roster& roster = run_.roster;
    return roster.Present(rank) && roster[rank].state == WorkerState::kActive &&
           roster[rank].source == kNoRank && !roster[rank].Held(ReadySlot::kForReplica);
  };
  Rank source = kNoRank;
  for (const Rank rank : have) {
    if (source == kNoRank && usable(rank) && !divergence_.Differs(rank)) source = rank;
  }
  for (const Rank rank : have) {
    if (!run_.roster.Present(rank)) continue;
    ready_.Release(rank, ReadySlot::kForComparison);
    if (!usable(rank) || !divergence_.Differs(rank) || source == kNoRank) {
      if (!run_.roster[rank].Held(ReadySlot::kForReplica)) run_.run.DeliverReady(rank);
    } else if (TrainsInRounds(run_.plan)) {
      run_.LeaveBehind(rank, "its replica differs from those of most members");
    } else {
      copies_.Order(rank, source, "its replica differs from those of most members");
    }
  }
}

}  // namespace prd
