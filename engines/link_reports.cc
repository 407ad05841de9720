#include "engines/link_reports.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engines/run_limits.h"
#include "engines/words.h"

namespace prd {
namespace {

constexpr const char* kUnknown = " is not known to reach ";

}  // namespace

std::string LinkReports::OnNoGroup(Rank rank, const Finished& finished) {
  const bool unreported = !TrainsInGroups(run_.plan) || FollowsSchedule(run_.plan);
  const std::vector<Rank>& unreachable = finished.unreachable;
  if (!unreported || finished.outcome != Outcome::kFailed || unreachable.empty() ||
      std::ssize(unreachable) > run_.roster.size()) {
    return "a report on group 0 while " + run_.run.Explain(run_.now(), rank);
  }
  for (const Rank other : unreachable) {
    if (other < 0 || other >= run_.roster.size() || other == rank) {
      return "a report that rank " + std::to_string(other) + " is unreachable";
    }
  }
  Break(rank, unreachable, "");
  return {};
}

std::string LinkReports::OnGroup(Rank rank, const Finished& finished) {
  if (finished.unreachable.empty()) return {};
  const auto id = std::to_string(finished.group);
  std::vector<Rank> members;
  for (const GroupShare& share : groups_.At(finished.group).members) members.push_back(share.rank);
  std::sort(members.begin(), members.end());
  const bool others =
      std::all_of(finished.unreachable.begin(), finished.unreachable.end(), [&](Rank other) {
        return other != rank && std::binary_search(members.begin(), members.end(), other);
      });
  if (!others || finished.unreachable.size() >= members.size() ||
      finished.outcome == Outcome::kOk) {
    return "a report on group " + id + " that " + words::Ranks(finished.unreachable) +
           (finished.unreachable.size() == 1 ? " is" : " are") + " unreachable";
  }
  if (finished.outcome != Outcome::kFailed) return {};  // called off before it could be known
  // A worker that has come back since was not in that group.
  std::vector<Rank> same = finished.unreachable;
  std::erase_if(same, [&](Rank other) { return run_.roster[other].first_group > finished.group; });
  if (Break(rank, same, " in group " + id)) held_.NoteDoubt();
  return {};
}

std::string LinkReports::OnProbed(Rank rank, const Probed& probed) {
  if (probed.rank < 0 || probed.rank >= run_.spec.max_workers || probed.rank == rank) {
    return "a probe of rank " + std::to_string(probed.rank) + " that was not asked for";
  }
  // The answer may have crossed a newer Probe.
  if (!links_.Probes(rank, probed.rank) ||
      run_.roster[probed.rank].incarnation != probed.incarnation) {
    return {};
  }
  Mend(rank, probed.rank, RankName(rank) + " reaches " + RankName(probed.rank) + " again");
  SendProbe(rank);
  return {};
}

void LinkReports::Meet(Rank rank) {
  if (!links_.Apart(rank)) return;
  std::vector<Rank> others;
  for (Rank other = 0; other < run_.roster.size() && others.size() < kMaxBrokenLinks; ++other) {
    if (other != rank && run_.roster.Present(other)) others.push_back(other);
  }
  Break(rank, others, " since it was left behind", kUnknown);
}

void LinkReports::Survey() {
  std::map<std::string, std::vector<Rank>> hosts;
  for (Rank rank = 0; rank < run_.roster.size(); ++rank) {
    const RunWorker& worker = run_.roster[rank];
    if (worker.state == WorkerState::kActive) hosts[worker.host].push_back(rank);
  }
  const BrokenLinks before = links_.broken();
  for (const auto& [host, ranks] : hosts) {
    std::vector<Rank> others;
    for (const auto& [name, outside] : hosts) {
      if (name != host) others.insert(others.end(), outside.begin(), outside.end());
    }
    const bool whole = std::all_of(ranks.begin(), ranks.end(),
                                   [&](Rank rank) { return before.Reaches(rank, others); });
    if (whole) continue;
    for (const Rank rank : ranks) {
      std::vector<Rank> asked = others;
      const std::size_t most =
          kMaxBrokenLinks - std::min(kMaxBrokenLinks, links_.ProbedBy(rank).size());
      asked.resize(std::min(asked.size(), most));
      Break(rank, asked, ", as its host does not reach another", kUnknown);
    }
  }
}

void LinkReports::Forget(Rank rank) {
  for (const Rank other : links_.Forget(rank)) SendProbe(other);
}

void LinkReports::Tell(Rank rank) {
  held_.NoteChange();
  links_.Rejoin(rank);
  for (const Rank other : links_.broken().Of(rank)) ToEngine(rank, other, false);
}

bool LinkReports::Break(Rank asks, const std::vector<Rank>& others, const std::string& where,
                        const std::string& verb) {
  bool changed = false;
  for (const Rank other : others) {
    if (!run_.roster.Present(other) || links_.broken().Has(asks, other)) continue;
    changed = true;
    if (const auto oldest = links_.OldestInExcess(asks)) {
      Mend(asks, *oldest, "taken for whole: " + RankName(asks) + " has newer broken ones");
    }
    const std::string reason = RankName(asks) + verb + RankName(other) + where;
    links_.Break(asks, other, run_.now(), reason);
    const auto [a, b] = std::minmax(asks, other);
    run_.log.Write(LinkChanged{.a = a, .b = b, .works = false, .reason = reason});
    run_.roster.Introduce(asks, other, false);
    ToEngine(a, b, false);
  }
  if (changed) SendProbe(asks);
  return changed;
}

void LinkReports::Mend(Rank one, Rank other, const std::string& reason) {
  links_.Mend(one, other);
  const auto [a, b] = std::minmax(one, other);
  run_.log.Write(LinkChanged{.a = a, .b = b, .works = true, .reason = reason});
  ToEngine(a, b, true);
}

void LinkReports::SendProbe(Rank rank) {
  Probe probe;
  for (const Rank other : links_.ProbedBy(rank)) {
    probe.targets.push_back(run_.roster.Describe(other));
  }
  run_.roster.Send(rank, std::move(probe));
}

void LinkReports::ToEngine(Rank a, Rank b, bool works) {
  held_.NoteChange();
  const Roster& roster = run_.roster;
  if (roster[a].state != WorkerState::kActive || roster[b].state != WorkerState::kActive) return;
  run_.run.ToEngine(LinkEvent{.a = std::min(a, b), .b = std::max(a, b), .works = works});
}

}  // namespace prd
