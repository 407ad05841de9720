#include "engines/announcer.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/base/check.h"

namespace prd {

void Announcer::Announce(Effect effect) {
  std::visit([this](auto& decided) { Announce(std::move(decided)); }, effect);
}

void Announcer::Announce(GroupFormed form) {
  // The engine has not seen signals that are held back or already answered.
  if (DrawnAhead(run_.plan)) {
    for (GroupShare& share : form.members) {
      share.iteration = std::max(share.iteration, run_.roster[share.rank].iteration);
    }
  }
  held_.Announce(std::move(form));
}

void Announcer::Announce(QueryAnswered answer) {
  const Rank rank = answer.rank;
  const RunWorker& worker = run_.roster[rank];
  PRD_CHECK(worker.state == WorkerState::kActive && worker.signal);
  answer.iteration = worker.signal->iteration;
  answer.local_steps = worker.signal->local_steps;
  if (!answer.ready || !worker.signal->waiting) ready_.Drop(rank);
  if (!TrainsInGroups(run_.plan)) {
    run_.roster.SetIteration(rank, answer.next);
    run_.roster.Touch(rank);
  }
  const QueryReply reply{.iteration = answer.iteration,
                         .local_steps = answer.local_steps,
                         .ready = answer.ready,
                         .next = answer.next,
                         .workers = std::exchange(answer.workers, 0)};
  run_.log.Write(std::move(answer));
  run_.roster.Send(rank, reply);
}

void Announcer::Announce(UpdateDropped late) {
  const Rank rank = late.rank;
  const RunWorker& worker = run_.roster[rank];
  PRD_CHECK(worker.state == WorkerState::kActive && worker.group == kNoGroup);
  run_.log.Write(std::move(late));
  // A worker that is already copying, to repair its replica, will signal with the copied iteration.
  if (worker.source == kNoRank) copies_.CatchUp(rank);
}

void Announcer::Announce(ScheduleSet set) {
  Schedule schedule{.first = set.first, .members = {}, .hosts = set.hosts, .reason = set.reason};
  for (const Rank rank : set.members) schedule.members.push_back(run_.roster.Describe(rank));
  for (const Rank rank : set.members) run_.roster.Send(rank, schedule);
  run_.log.Write(std::move(set));
}

void Announcer::Announce(NeighboursSet set) {
  const Rank rank = set.rank;
  const RunWorker& worker = run_.roster[rank];
  PRD_CHECK(worker.state == WorkerState::kActive && set.at >= worker.iteration);
  run_.roster.SetIteration(rank, set.at);
  Neighbourhood hood{.in = {},
                     .from = {},
                     .out = {},
                     .own_weight = set.own_weight,
                     .slots = set.slots,
                     .at = set.at,
                     .reason = set.reason};
  for (const InEdge& edge : set.in) {
    GroupMember member = run_.roster.Describe(edge.rank);
    member.weight = edge.weight;
    hood.in.push_back(std::move(member));
    hood.from.push_back(edge.from);
  }
  for (const Rank to : set.out) hood.out.push_back(run_.roster.Describe(to));
  run_.log.Write(std::move(set));
  run_.roster.Send(rank, std::move(hood));
}

void Announcer::Announce(PlacementSet set) {
  Placement placement{
      .epoch = set.epoch, .members = {}, .shards = set.shards, .at = 0, .reason = set.reason};
  for (const Rank rank : set.members) placement.members.push_back(run_.roster.Describe(rank));
  for (std::size_t i = 0; i < set.members.size(); ++i) {
    const Rank rank = set.members[i];
    const RunWorker& worker = run_.roster[rank];
    PRD_CHECK(worker.state != WorkerState::kAbsent);
    placement.at = set.at[i];
    // A worker in another state may have the final average's iteration.
    if (worker.state == WorkerState::kActive) {
      PRD_CHECK(set.at[i] >= worker.iteration);
      run_.roster.SetIteration(rank, set.at[i]);
    }
    run_.roster.Send(rank, placement);
  }
  run_.log.Write(std::move(set));
}

void Announcer::Announce(PlacementOpened opened) {
  for (const Rank rank : opened.members) {
    run_.roster.Send(rank, Opened{.epoch = opened.epoch});
  }
  run_.log.Write(std::move(opened));
}

}  // namespace prd
