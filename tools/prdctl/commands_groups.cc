#include <algorithm>
#include <set>

#include "common/base/static_schedule.h"
#include "engines/words.h"
#include "tools/prdctl/commands.h"
#include "tools/prdctl/follow.h"
#include "tools/prdctl/json.h"
#include "tools/prdctl/replay.h"
#include "tools/prdctl/schedule.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

using Align = Table::Align;

// "3 of 8 contribute"
std::string Contributing(const GroupRow& group) {
  return std::to_string(group.Contributors()) + " of " + std::to_string(group.members.size()) +
         " contribute";
}

// "0 1 2"
std::string RanksOf(const std::vector<Rank>& ranks) {
  constexpr std::size_t kShown = 12;
  std::string text;
  for (std::size_t i = 0; i < ranks.size() && i < kShown; ++i) {
    text += (i > 0 ? " " : "") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kShown) text += " and " + std::to_string(ranks.size() - kShown) + " more";
  return text;
}

// "3, passive 5 7"
std::string Members(const std::vector<Rank>& active, const std::vector<Rank>& passive) {
  if (passive.empty()) return RanksOf(active);
  return RanksOf(active) + (active.empty() ? "" : ", ") + "passive " + RanksOf(passive);
}

// For a round "2 of 3 contribute: 0 1", since all are members.
std::string Members(const GroupRow& group) {
  const bool round = group.kind == GroupKind::kRound;
  std::vector<Rank> active, passive;
  for (const MemberRow& member : group.members) {
    if (round && !(member.weight > 0)) continue;
    (member.passive ? passive : active).push_back(member.rank);
  }
  const std::string text = Members(active, passive);
  return round ? Contributing(group) + (text.empty() ? "" : ": " + text) : text;
}

std::string Members(const Engine::Drawn& drawn) {
  std::vector<Rank> active, passive;
  for (const GroupShare& share : drawn.members) {
    (share.passive ? passive : active).push_back(share.rank);
  }
  return Members(active, passive);
}

// "waits for rank 5 (computes for 320 ms); ", or empty.
std::string WaitsFor(const GroupRow& group, Instant now) {
  std::string text;
  for (const MemberRow* m : group.Missing()) {
    text += (text.empty() ? "waits for rank " : ", rank ") + std::to_string(m->rank);
    if (m->computing) text += " (computes for " + words::Duration(now - *m->computing) + ")";
  }
  return text.empty() ? text : text + "; ";
}

std::string Weight(const GroupRow& group, const MemberRow& member) {
  if (member.passive) return Number(member.weight, 4) + " passive";
  if (group.kind == GroupKind::kRound && member.weight == 0) return "passive";
  return Number(member.weight, 4);
}

std::string OutcomeOf(const GroupRow& group, const MemberRow& member) {
  const std::string from = " from rank " + std::to_string(member.fetched_from);
  const bool fetched = member.fetched_from != kNoRank;
  if (!member.outcome) return group.held && !group.ended && !member.came ? "computes still" : "";
  if (*member.outcome == Outcome::kOk) return fetched ? "ok, result fetched" + from : "ok";
  const std::string how =
      *member.outcome == Outcome::kAborted ? "called off" : "failed: " + member.detail;
  return fetched ? how + "; fetches the result" + from : how;
}

// The longest of its members, once any has reported.
std::string Longest(const GroupRow& group, DurationNs MemberRow::*length) {
  std::optional<DurationNs> longest;
  for (const MemberRow& member : group.members) {
    if (member.reported) longest = std::max(longest.value_or(0), member.*length);
  }
  return longest ? words::Duration(*longest) : std::string();
}

std::string At(Instant at, Instant start) { return Number(Seconds(at - start), 3) + " s"; }

// The groups of a run as they come, the last ones kept.
class GroupsView {
 public:
  GroupsView(const GroupsQuery& query, const Console& console) : query_(query), console_(console) {}

  void Add(const Record& record) {
    now_ = record.now;
    next_ = record.index + 1;
    if (const auto* ended = std::get_if<RunEnded>(&record.body)) {
      over_ = true;
      next_run_ = ended->next;
    }
    schedules_.Add(record);
    RunView::Change change = view_.Apply(record);
    if (change.came != nullptr) ranks_.insert(change.came->rank);
    if (live_) {
      if (change.formed != nullptr) Tell("formed", *change.formed);
      if (change.ended) Tell("ended", *change.ended);
    } else if (change.ended && query_.filter.Lets(*change.ended)) {
      kept_[change.ended->id] = std::move(*change.ended);
      Prune();
    }
  }

  // Groups that are drawn and not formed yet, as of the newest record.
  void SetDrawn(std::vector<Engine::Drawn> drawn) {
    for (Engine::Drawn& group : drawn) {
      const auto has = [this](const GroupShare& share) { return share.rank == query_.filter.rank; };
      const auto& members = group.members;
      if (query_.filter.rank && std::none_of(members.begin(), members.end(), has)) continue;
      if (query_.filter.failed ||
          query_.filter.kind.value_or(GroupKind::kTrain) != GroupKind::kTrain)
        continue;
      if (query_.last == 0 || drawn_.size() < query_.last) drawn_.push_back(std::move(group));
    }
  }
  // The controller's clock.
  void SetNow(Instant now) { now_ = std::max(now_, now); }

  // The groups so far, by id.
  void Print(const RunInfo& run) {
    for (const auto& [id, group] : view_.running()) {
      if (query_.filter.Lets(group)) kept_[id] = group;
    }
    Prune();
    if (query_.follow) {
      live_ = true;
      for (const auto& [id, group] : kept_) {
        if (!group.ended || group.ok) Tell("formed", group);
        if (group.ended) Tell("ended", group);
      }
    } else if (console_.json) {
      PrintJson(run);
    } else {
      PrintTable();
      PrintSummary();
    }
    kept_.clear();
  }

  const Plan& plan() const { return view_.plan(); }

  // Ranks that workers have had.
  const std::set<Rank>& ranks() const { return ranks_; }

  std::uint64_t next() const { return next_; }
  bool over() const { return over_; }
  RunId next_run() const { return next_run_; }

 private:
  void Prune() {
    if (query_.since) {
      const Instant since = now_ - *query_.since;
      std::erase_if(kept_, [&](const auto& entry) { return entry.second.formed < since; });
    }
    while (query_.last > 0 && kept_.size() > query_.last) kept_.erase(kept_.begin());
  }

  void PrintJson(const RunInfo& run) const {
    Json groups = Json::array();
    for (const auto& [id, group] : kept_) groups.push_back(ToJson(group, view_.start()));
    for (const Engine::Drawn& group : drawn_) groups.push_back(ToJson(group));
    Json all = {{"run", ToJson(run)}, {"groups", std::move(groups)}};
    if (DrawnAhead(plan()) && !FollowsSchedule(plan())) {
      all["train_groups"] = view_.train_groups();
      all["conflicts"] = view_.conflicts();
    }
    if (const ScheduleRow* schedule = schedules_.Shown()) {
      all["schedule"] = ToJson(*schedule, view_.start());
    }
    console_.out << Dump(all) << '\n';
  }

  void PrintSummary() const {
    const std::uint64_t formed = view_.train_groups();
    if (DrawnAhead(plan()) && formed > 0) {
      const double share = static_cast<double>(view_.conflicts()) / static_cast<double>(formed);
      console_.out << view_.conflicts() << " of " << formed << " training groups so far ("
                   << Number(100 * share, 1)
                   << "%) had a member in another group as they were drawn (conflicts)\n";
    }
    if (!TrainsInGroups(plan())) {
      console_.out << "no groups train under this engine: prdctl graph --table shows "
                   << (HasNeighbours(plan()) ? "the neighbours" : "where the shards are")
                   << ", prdctl workers what each worker is at\n";
    }
    if (const ScheduleRow* schedule = schedules_.Shown()) return PrintSchedule(*schedule);
    if (FollowsSchedule(plan()))
      console_.out << "no schedule yet: workers draw their groups by it\n";
  }

  void PrintSchedule(const ScheduleRow& schedule) const {
    console_.out << "schedule of " << schedule.set.members.size() << " workers, in force since "
                 << At(schedule.since, view_.start())
                 << (schedule.until ? " until " + At(*schedule.until, view_.start())
                                    : std::string())
                 << ": " << Harmless(schedule.set.reason)
                 << "\nthe workers draw these groups themselves, slot by slot, and report none:\n";
    Table table({{"PHASE", Align::kRight}, {"GROUPS"}, {"DO NOT SYNCHRONISE"}});
    for (int phase = 0; phase < kStaticPhases; ++phase) {
      std::string groups;
      for (const std::vector<Rank>& group : schedule.Groups(phase)) {
        groups += (groups.empty() ? "" : " | ") + RanksOf(group);
      }
      table.Add({std::to_string(phase), groups, RanksOf(schedule.Idle(phase))});
    }
    table.Print(console_.out);
  }

  void PrintTable() const {
    Table table({{"GROUP", Align::kRight},
                 {"AT", Align::kRight},
                 {"KIND"},
                 {"STATE"},
                 {"ITERATION", Align::kRight},
                 {"MEMBERS"},
                 {"WAIT", Align::kRight},
                 {"REDUCE", Align::kRight},
                 {"REASON"}});
    for (const auto& [id, group] : kept_) {
      table.Add({std::to_string(id), At(group.formed, view_.start()), KindName(group.kind),
                 group.State(), std::to_string(group.iteration), Members(group),
                 Longest(group, &MemberRow::wait_ns), Longest(group, &MemberRow::reduce_ns),
                 WaitsFor(group, now_) + (group.failure.empty() ? group.reason : group.failure)});
    }
    for (const Engine::Drawn& group : drawn_) {
      table.Add({std::to_string(group.id), "", KindName(GroupKind::kTrain), DrawnWord(group), "",
                 Members(group), "", "", group.reason});
    }
    table.Print(console_.out);
  }

  void Tell(const char* event, const GroupRow& group) {
    if (!query_.filter.Lets(group)) return;
    if (console_.json) {
      Json json = {{"event", event}};
      json.update(ToJson(group, view_.start()));
      console_.out << Dump(json) << '\n';
    } else if (event == std::string("formed")) {
      console_.out << At(group.formed, view_.start()) << "  group " << group.id << "  "
                   << KindName(group.kind) << "  members " << Members(group) << "  "
                   << WaitsFor(group, now_) << Harmless(group.reason) << '\n';
    } else if (group.State() == std::string("partial")) {
      console_.out << At(*group.ended, view_.start()) << "  group " << group.id
                   << "  done, but not on all  " << Harmless(group.failure) << '\n';
    } else if (!group.ok) {
      console_.out << At(*group.ended, view_.start()) << "  group " << group.id << "  FAILED  "
                   << Harmless(group.failure) << '\n';
    }
  }

  const GroupsQuery& query_;
  const Console& console_;
  RunView view_;
  ScheduleTracker schedules_;
  std::set<Rank> ranks_;
  std::map<GroupId, GroupRow> kept_;
  std::vector<Engine::Drawn> drawn_;
  Instant now_;
  std::uint64_t next_ = 0;
  bool over_ = false;  // the run has ended
  RunId next_run_ = kNoRun;
  bool live_ = false;  // changes are told as they come
};

// Adds what only the controller's state tells: groups that are drawn and not formed yet, and what
// time it is.
Status AddPresent(HistorySource& source, const RunInfo& run, GroupsView* view) {
  if (!DrawnAhead(view->plan()) || view->over()) return Status::Ok();
  Replayer replayer;
  PRD_RETURN_IF_ERROR(ReplayToPresent(source, run.run, &replayer, [&](const Record& record) {
    if (record.index == view->next()) view->Add(record);  // written since
  }));
  view->SetDrawn(replayer.run()->engine().DrawnGroups());
  if (const Result<DaemonStatus> daemon = source.Daemon(); daemon.ok()) view->SetNow(daemon->now);
  return Status::Ok();
}

// `next`: the run in which the job goes on, once this one has been followed to its end.
Status ShowGroupsOf(HistorySource& source, const RunInfo& info, const GroupsQuery& query,
                    const Console& console, RunId* next) {
  GroupsView view(query, console);
  PRD_RETURN_IF_ERROR(ForEachRecord(source, info.run, 0, [&](const Record& record) {
    view.Add(record);
    return true;
  }));
  // Without its first records a run does not tell who was there.
  if (query.filter.rank && !query.follow && info.first == 0 &&
      !view.ranks().contains(*query.filter.rank)) {
    const std::vector<Rank> ranks(view.ranks().begin(), view.ranks().end());
    return Status(Code::kNotFound, "rank: found " + std::to_string(*query.filter.rank) +
                                       ", in run " + std::to_string(info.run) +
                                       (ranks.empty() ? " nobody has come yet"
                                                      : " there are " + words::Ranks(ranks)));
  }
  // What the records tell is shown in any case.
  Status present;
  if (!query.follow) {
    present = AddPresent(source, info, &view);
    PRD_RETURN_IF_ERROR(PrintInTurn(source, info, console));
  }
  view.Print(info);
  if (query.follow) PRD_RETURN_IF_ERROR(FollowRun(source, info.run, console, &view, next));
  return present;
}

// A column for gradients in rounds alone, and one for local steps where there are any.
void PrintMembers(const GroupRow& group, const Console& console) {
  const bool round = group.kind == GroupKind::kRound;
  const bool local = std::any_of(group.members.begin(), group.members.end(),
                                 [](const MemberRow& m) { return m.local_steps > 0; });
  std::vector<Table::Column> columns = {
      {"RANK", Align::kRight}, {"WEIGHT", Align::kRight}, {"ITERATION", Align::kRight}};
  if (round) columns.push_back({"GRADIENTS", Align::kRight});
  if (local) columns.push_back({"LOCAL STEPS", Align::kRight});
  for (const char* title : {"STEP", "WAIT", "REDUCE", "SENT"}) {
    columns.push_back({title, Align::kRight});
  }
  columns.push_back({"OUTCOME"});
  Table table(std::move(columns));
  for (const MemberRow& m : group.members) {
    std::vector<std::string> cells = {std::to_string(m.rank), Weight(group, m),
                                      std::to_string(m.iteration)};
    if (round) cells.push_back(m.reported ? std::to_string(m.included) : "");
    if (local) cells.push_back(m.local_steps > 0 ? std::to_string(m.local_steps) : "");
    cells.push_back(m.ready ? words::Duration(m.step_ns) : "");
    cells.push_back(m.reported ? words::Duration(m.wait_ns) : "");
    cells.push_back(m.reported ? words::Duration(m.reduce_ns) : "");
    cells.push_back(m.reported ? std::to_string(m.bytes) : "");
    cells.push_back(OutcomeOf(group, m));
    table.Add(std::move(cells));
  }
  table.Print(console.out);
}

// For a group that formed before its members were there.
void PrintAhead(const GroupRow& group, Instant start, Instant now, const Console& console) {
  if (group.conflict) {
    console.out << "conflict: drawn while a member was in another group, which went first\n";
  }
  if (!group.held) return;
  if (const std::optional<Instant> started = group.Started()) {
    console.out << "all members there at " << At(*started, start) << ", "
                << words::Duration(*started - group.formed) << " after it was announced\n";
  } else if (!group.ended) {
    console.out << WaitsFor(group, now) << "it starts once all wait in their steps\n";
  }
}

}  // namespace

Status ShowGroups(HistorySource& source, const std::string& run, const GroupsQuery& query,
                  const Console& console) {
  return ShowInTurn(source, run, query.follow, console, [&](const RunInfo& info, RunId* next) {
    return ShowGroupsOf(source, info, query, console, next);
  });
}

Status ShowGroup(HistorySource& source, const std::string& run, GroupId id,
                 const Console& console) {
  Result<RunInfo> info = FindRun(source, run);
  if (!info.ok()) return info.status();
  RunView view;
  Instant now;
  GroupId oldest = kNoGroup;
  GroupId newest = kNoGroup;
  std::optional<GroupRow> group;
  PRD_RETURN_IF_ERROR(ForEachRecord(source, info->run, 0, [&](const Record& record) {
    now = record.now;
    RunView::Change change = view.Apply(record);
    if (change.formed != nullptr) {
      newest = change.formed->id;
      if (oldest == kNoGroup) oldest = newest;
    }
    if (change.ended && change.ended->id == id) group = std::move(change.ended);
    return !group;
  }));
  const auto running = view.running().find(id);
  if (!group && running != view.running().end()) group = running->second;
  if (!group) {
    return Status(
        Code::kNotFound,
        "group: found " + std::to_string(id) + ", in run " + std::to_string(info->run) +
            (newest == kNoGroup
                 ? " there is none yet"
                 : " there are " + std::to_string(oldest) + " to " + std::to_string(newest)) +
            (info->first > 0 ? "; " + TrimmedText(*info) : "") +
            (FollowsSchedule(view.plan())
                 ? "; training groups are drawn by the workers and not reported "
                   "(`prdctl groups` shows their schedule)"
             : DrawnAhead(view.plan()) ? "; `prdctl groups` shows those only drawn yet"
                                       : "") +
            (info->former != kNoRun ? "; it goes on from run " + std::to_string(info->former) +
                                          ", which has groups of its own (--run)"
                                    : ""));
  }
  if (console.json) {
    console.out << Dump({{"run", ToJson(*info)}, {"group", ToJson(*group, view.start())}}) << '\n';
    return Status::Ok();
  }
  console.out << "group " << group->id << " of run " << info->run << " (" << Harmless(info->job)
              << "): " << KindName(group->kind) << ", " << group->State() << "\nformed at "
              << At(group->formed, view.start());
  if (group->ended) {
    console.out << ", ended after " << words::Duration(*group->ended - group->formed);
  }
  if (group->kind == GroupKind::kRound) {
    console.out << "; round " << group->iteration << ", " << Contributing(*group);
  } else if (group->kind != GroupKind::kTrain || !DrawnAhead(view.plan())) {
    console.out << "; members continue at iteration " << group->iteration;
  }
  console.out << "\nreason: " << Harmless(group->reason) << '\n';
  if (!group->failure.empty()) console.out << "failure: " << Harmless(group->failure) << '\n';
  PrintAhead(*group, view.start(), now, console);
  if (group->initial_weight > 0) {
    console.out << "the initial model's weight: " << Number(group->initial_weight, 4) << '\n';
  }
  PrintMembers(*group, console);
  return Status::Ok();
}

}  // namespace prd::ctl
