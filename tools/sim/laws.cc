#include "tools/sim/laws.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "common/base/static_schedule.h"
#include "engines/batch_shares.h"
#include "engines/event.h"
#include "engines/violation.h"

namespace prd::sim {
namespace {

void CheckWeights(const GroupFormed& formed) {
  const bool round = formed.kind == GroupKind::kRound;
  const double share = 1.0 / static_cast<double>(formed.members.size());
  double sum = formed.initial_weight;
  bool wrong = !(formed.initial_weight >= 0);
  for (const GroupShare& member : formed.members) {
    sum += member.weight;
    wrong = wrong || !(member.weight >= 0);
    wrong = wrong || (formed.kind == GroupKind::kAverage && member.weight != share);
  }
  if (wrong || !(round ? sum < 1 + 1e-9 : std::abs(sum - 1) < 1e-9)) {
    throw Violation("weights", "those of group " + std::to_string(formed.id) + " sum to " +
                                   std::to_string(sum) + (wrong ? ", one is wrong" : ""));
  }
}

bool Has(const std::vector<Rank>& ranks, Rank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

Laws::Worker& Laws::At(Run* run, Rank rank) {
  const auto index = static_cast<std::size_t>(rank);
  if (index >= run->workers.size()) run->workers.resize(index + 1);
  return run->workers[index];
}

void Laws::Seen(const Record& record) {
  Run* run = &RunOf(record.run);
  if (const auto* started = std::get_if<RunStarted>(&record.body)) OnStarted(run, *started);
  if (const auto* from = std::get_if<FromWorker>(&record.body)) OnMessage(record, from->envelope);
  if (const auto* joined = std::get_if<WorkerJoined>(&record.body)) OnJoined(run, *joined);
  if (const auto* left = std::get_if<WorkerLeft>(&record.body)) OnLeft(run, record.now, *left);
  if (std::holds_alternative<HistoryLost>(record.body)) run->lost = true;
  if (std::holds_alternative<DeadlineReached>(record.body)) OnDeadline(run, record.now);
  if (const auto* link = std::get_if<LinkChanged>(&record.body)) {
    run->broken = run->broken || !link->works;
  }
  if (const auto* formed = std::get_if<GroupFormed>(&record.body)) OnFormed(run, *formed);
  if (const auto* ended = std::get_if<GroupEnded>(&record.body)) OnEnded(run, *ended);
  if (const auto* ordered = std::get_if<AdoptOrdered>(&record.body)) OnOrdered(run, *ordered);
  if (const auto* answered = std::get_if<QueryAnswered>(&record.body)) OnAnswered(run, *answered);
  if (const auto* set = std::get_if<ScheduleSet>(&record.body)) OnScheduled(run, *set);
  if (const auto* set = std::get_if<NeighboursSet>(&record.body)) OnNeighbours(run, *set);
  if (const auto* set = std::get_if<PlacementSet>(&record.body)) OnPlaced(run, *set);
  if (const auto* set = std::get_if<SharesSet>(&record.body)) OnShares(run, *set);
  if (const auto* opened = std::get_if<PlacementOpened>(&record.body)) {
    for (const Rank rank : opened->members) At(run, rank).opened = true;
  }
  if (std::holds_alternative<GoalReached>(record.body) && std::exchange(run->done, true)) {
    throw Violation("goal", "a job that is done reaches its goal");
  }
  if (const auto* dropped = std::get_if<UpdateDropped>(&record.body)) {
    Worker& worker = At(run, dropped->rank);
    if (worker.joined && worker.group != kNoGroup) {
      throw Violation("members",
                      "an update of " + RankName(dropped->rank) + " in a group is dropped");
    }
    if (!worker.joined) {  // it was done on a model that was outdated when it came
      worker.owed = 0;
      worker.waiting = worker.open = false;
      worker.signalled = 0;
    }
  }
  if (std::holds_alternative<RunEnded>(record.body) && !run->groups.empty()) {
    throw Violation("finished-once", "the run ends while a group runs");
  }
}

Laws::Run& Laws::RunOf(RunId run) {
  const auto [it, fresh] = runs_.try_emplace(run);
  if (fresh) it->second.plan = plan_;
  return it->second;
}

void Laws::OnStarted(Run* run, const RunStarted& started) {
  if (plan_of_) run->plan = plan_of_(started);
  run->before = started.former.trained.steps;
  for (const FormerRank& of : started.former.ranks) {
    run->told[of.rank] = {.known = true, .own = of.own.steps, .before = run->before};
  }
}

void Laws::OnMessage(const Record& record, const WorkerEnvelope& envelope) {
  Life& life = lives_[envelope.incarnation];
  const bool hello = std::holds_alternative<Hello>(envelope.body);
  if (hello && !life.there) life.seq = 0;
  if (envelope.seq != life.seq + 1) {
    throw Violation("messages-once", "message " + std::to_string(envelope.seq) +
                                         " of incarnation " + std::to_string(envelope.incarnation) +
                                         " is acted on after " + std::to_string(life.seq));
  }
  life.seq = envelope.seq;
  life.run = record.run;
  life.there = true;
  Run* run = &RunOf(record.run);
  OnTold(run, record.now, envelope.rank, envelope.body);
  if (hello) {
    At(run, std::get<Hello>(envelope.body).rank).more = 0;
    return;
  }
  life.rank = envelope.rank;
  Worker& worker = At(run, envelope.rank);
  if (std::holds_alternative<Resume>(envelope.body)) worker.stands = false;
  if (const auto* ready = std::get_if<Ready>(&envelope.body)) {
    worker.incarnation = envelope.incarnation;
    OnReady(run->plan, &worker, envelope.rank, *ready);
  }
  if (const auto* adopted = std::get_if<Adopted>(&envelope.body)) {
    OnAdopted(run, envelope.rank, *adopted);
  }
  if (const auto* finished = std::get_if<Finished>(&envelope.body)) {
    OnFinished(run, envelope.rank, *finished);
  }
}

void Laws::OnReady(const Plan& plan, Worker* worker, Rank rank, const Ready& ready) {
  // While it has rounds to apply, a worker signals for one of them; else for the next one.
  const Iteration least = !TrainsInRounds(plan) ? worker->iteration
                          : ready.waiting       ? std::max(worker->signalled, worker->iteration + 1)
                                                : worker->signalled;
  if (worker->joined && ready.iteration < least) {
    throw Violation("iterations", RankName(rank) + " is ready with iteration " +
                                      std::to_string(ready.iteration) + " after " +
                                      std::to_string(worker->iteration));
  }
  if (worker->joined && !TrainsInRounds(plan) && worker->open && worker->waiting) {
    throw Violation("one-signal", RankName(rank) + " signals iteration " +
                                      std::to_string(ready.iteration) + " while its signal for " +
                                      std::to_string(worker->signalled) + " stands");
  }
  worker->signalled = ready.iteration;
  if (DrawnAhead(plan)) worker->iteration = ready.iteration;
  const bool is_void = ready.iteration == worker->more_of && ready.made_up < worker->more;
  worker->waiting = ready.waiting && !is_void;
  worker->open = !is_void;
  worker->owed += ready.gradients;
}

void Laws::OnShares(Run* run, const SharesSet& set) {
  // The job goes back to a step: what was ordered of it before is void.
  if (set.reason.starts_with(BatchShares::kGoesOnElsewhere)) {
    for (Worker& worker : run->workers) worker.more = 0;
  }
  if (set.more) {
    for (const ShareGiven& share : set.shares) {
      Worker& worker = At(run, share.rank);
      if (worker.more_of != set.from) worker.more = 0;
      worker.more_of = set.from;
      ++worker.more;
      worker.waiting = worker.open = false;
    }
    return;
  }
  for (Worker& worker : run->workers) {
    if (set.from <= worker.more_of) worker.more = 0;
  }
}

void Laws::OnAdopted(Run* run, Rank rank, const Adopted& adopted) {
  Worker& worker = At(run, rank);
  if (worker.group != kNoGroup) {  // a round's result
    const GroupId id = worker.group;
    std::erase(run->groups.at(id).pending, rank);
    worker.group = kNoGroup;
    if (adopted.ok) return HasResult(run, rank, id, adopted.included);
    run->groups.at(id).lack.push_back(rank);
    return;
  }
  worker.waiting = worker.open = false;
  worker.signalled = 0;
  if (adopted.ok) worker.iteration = adopted.iteration;
}

void Laws::OnFinished(Run* run, Rank rank, const Finished& finished) {
  if (finished.group == kNoGroup && !finished.unreachable.empty()) return;  // of links alone
  const auto it = run->groups.find(finished.group);
  if (it == run->groups.end() || std::erase(it->second.pending, rank) != 1) {
    throw Violation("finished-once", RankName(rank) + " reports on group " +
                                         std::to_string(finished.group) +
                                         ", which does not wait for it");
  }
  At(run, rank).group = kNoGroup;
  if (finished.outcome == Outcome::kOk) {
    HasResult(run, rank, finished.group, finished.included);
  } else {
    it->second.lack.push_back(rank);
  }
}

void Laws::HasResult(Run* run, Rank rank, GroupId id, std::uint32_t included) {
  Running& group = run->groups.at(id);
  Worker& worker = At(run, rank);
  if (worker.joined && !Ahead(run->plan, group.kind) && group.iteration < worker.iteration) {
    throw Violation("iterations", RankName(rank) + " goes back from " +
                                      std::to_string(worker.iteration) + " to " +
                                      std::to_string(group.iteration));
  }
  if (included > worker.owed) {
    throw Violation("gradients", RankName(rank) + " has " + std::to_string(included) +
                                     " gradients in group " + std::to_string(id) + ", and owed " +
                                     std::to_string(worker.owed));
  }
  worker.owed -= included;
  group.have.push_back(rank);
  if (Ahead(run->plan, group.kind)) {
    if (!worker.passive) worker.waiting = worker.open = false;
    return;
  }
  worker.iteration = group.iteration;
  if (worker.signalled <= group.iteration && group.kind == GroupKind::kRound) {
    worker.waiting = worker.open = false;
  }
}

void Laws::OnJoined(Run* run, const WorkerJoined& joined) {
  At(run, joined.rank).more = 0;
  Worker& worker = At(run, joined.rank);
  // A worker that joins anew with its own replica brings its signal, if it has one.
  if (worker.incarnation != joined.incarnation) {
    worker.waiting = worker.open = false;
    worker.signalled = 0;
  }
  worker.incarnation = joined.incarnation;
  worker.iteration = joined.iteration;
  worker.joined = true;
  worker.paused = worker.stands = false;
  run->begun = true;
}

void Laws::OnDeadline(Run* run, Instant now) {
  constexpr int kMost = 100;
  run->deadlines = run->deadlines > 0 && run->deadline == now ? run->deadlines + 1 : 1;
  run->deadline = now;
  if (run->deadlines <= kMost) return;
  throw Violation("deadlines", std::to_string(kMost) + " deadlines have come, and the next is now");
}

void Laws::OnLeft(Run* run, Instant now, const WorkerLeft& left) {
  // A worker for whom a round, or a replica while rounds go on, cannot be repaired begins anew.
  const bool behind =
      left.reason.starts_with("its replica differs") ||
      left.reason.starts_with("its model is of iteration") ||
      left.reason.starts_with("could not get the result") ||
      left.reason.starts_with("evicted by ") ||  // an operator
      left.reason.starts_with("nobody is left to give the result") ||
      left.reason.starts_with("most members lack the result") ||
      (run->broken && (left.reason.starts_with("it reaches no worker") ||
                       left.reason.starts_with("most workers lack its model") ||
                       left.reason.starts_with("most others do not reach it") ||
                       left.reason.starts_with("the others have finished, and do not") ||
                       (!run->begun && left.reason.starts_with("most workers have not got"))));
  if (left.why == LeftReason::kEvicted && !behind) {
    throw Violation("no-evictions", RankName(left.rank) + ": " + left.reason);
  }
  Worker& worker = At(run, left.rank);
  if (left.gradients != worker.owed || (left.why == LeftReason::kFinished && worker.owed > 0)) {
    throw Violation("gradients",
                    RankName(left.rank) + " goes with " + std::to_string(left.gradients) +
                        " gradients in no round, where it owes " + std::to_string(worker.owed));
  }
  worker.joined = false;
  if (StaysInJob(left.why)) {
    if (!std::exchange(worker.paused, left.why == LeftReason::kPaused)) {
      worker.stopped = run->gained;
      worker.stopped_when = now;
    }
    worker.stands = true;
    worker.waiting = worker.open = false;
    return;
  }
  lives_[left.incarnation].there = false;
  if (worker.group != kNoGroup) std::erase(run->groups.at(worker.group).pending, left.rank);
  for (auto& [id, group] : run->groups) {
    std::erase(group.have, left.rank);
    std::erase(group.lack, left.rank);
  }
  // A message that was decided on before may still leave after it.
  worker = {.incarnation = worker.incarnation,
            .newest = worker.newest,
            .signalled = worker.signalled,
            .waiting = worker.waiting,
            .open = worker.open,
            .ordered = worker.ordered,
            .answered = worker.answered,
            .scheduled = worker.scheduled,
            .placed = worker.placed,
            .opened = worker.opened};
}

void Laws::OnFormed(Run* run, const GroupFormed& formed) {
  const std::string name = GroupName(formed.id);
  CheckId(*run, formed);
  for (GroupId id = run->last_group + 1; run->broken && id < formed.id; ++id) run->held.insert(id);
  run->held.erase(formed.id);
  run->last_group = std::max(run->last_group, formed.id);
  if (formed.members.empty()) throw Violation("members", name + " has none");
  CheckWeights(formed);
  CheckRound(*run, formed);
  CheckFinal(*run, formed);
  TakeStart(run, formed);
  const bool train = formed.kind == GroupKind::kTrain;
  Running& running = run->groups[formed.id];
  running.kind = formed.kind;
  running.iteration = formed.iteration;
  Iteration largest = 0;
  for (const GroupShare& share : formed.members) {
    Worker& worker = At(run, share.rank);
    largest = std::max(largest, share.iteration);
    CheckMember(run->plan, worker, formed, share);
    worker.group = worker.newest = formed.id;
    worker.passive = share.passive;
    if (formed.kind != GroupKind::kRound && formed.kind != GroupKind::kAverage &&
        !Ahead(run->plan, formed.kind)) {
      worker.waiting = worker.open = false;
    }
    running.pending.push_back(share.rank);
  }
  CheckBase(*run, formed);
  if (train && !DrawnAhead(run->plan) && formed.iteration != largest) {
    throw Violation("iterations", name + " goes on at " + std::to_string(formed.iteration) +
                                      ", the largest of its members is " + std::to_string(largest));
  }
}

// Where replicas are equal by design, all members train on from one.
void Laws::CheckBase(const Run& run, const GroupFormed& formed) {
  const bool trains = formed.kind == GroupKind::kTrain || formed.kind == GroupKind::kRound;
  if (!trains || !ReplicasAreEqual(run.plan)) return;
  const auto base = [&](const GroupShare& share) {
    return run.workers[static_cast<std::size_t>(share.rank)].iteration;
  };
  const GroupShare& first = formed.members.front();
  for (const GroupShare& share : formed.members) {
    if (base(share) == base(first)) continue;
    throw Violation("iterations",
                    "in group " + std::to_string(formed.id) + " " + RankName(first.rank) +
                        " has a model of iteration " + std::to_string(base(first)) + ", and " +
                        RankName(share.rank) + " one of " + std::to_string(base(share)));
  }
}

// Where groups are drawn ahead, some that are drawn never form, and others form in between.
void Laws::CheckId(const Run& run, const GroupFormed& formed) const {
  const std::string name = GroupName(formed.id);
  const bool train = formed.kind == GroupKind::kTrain;
  if (FollowsSchedule(run.plan) && train)
    throw Violation("schedule", name + " forms beside the schedule");
  const bool ahead = (run.broken && formed.id > run.last_group) || run.held.contains(formed.id);
  const bool follows = ahead || (DrawnAhead(run.plan) ? train || formed.id > run.last_group
                                                      : formed.id == run.last_group + 1);
  if (!follows) {
    throw Violation("history-whole", name + " follows group " + std::to_string(run.last_group));
  }
  for (const GroupShare& share : formed.members) {
    const auto index = static_cast<std::size_t>(share.rank);
    if (index >= run.workers.size() || formed.id > run.workers[index].newest) continue;
    throw Violation("group-order", RankName(share.rank) + " is put into " + name + " after group " +
                                       std::to_string(run.workers[index].newest));
  }
}

void Laws::OnScheduled(Run* run, const ScheduleSet& set) {
  const std::string name = "the schedule from " + std::to_string(set.first) + " on";
  if (!FollowsSchedule(run->plan) || set.first <= run->last_group) {
    throw Violation("schedule", name + " comes " +
                                    (FollowsSchedule(run->plan)
                                         ? "after group " + std::to_string(run->last_group)
                                         : "where workers draw no groups"));
  }
  run->last_group = set.first + kScheduleSpan - 1;
  std::vector<Rank> joined;
  for (std::size_t i = 0; i < run->workers.size(); ++i) {
    if (run->workers[i].joined) joined.push_back(static_cast<Rank>(i));
  }
  if (set.members != joined || set.hosts.size() != joined.size()) {
    throw Violation("schedule", name + " has " + std::to_string(set.members.size()) +
                                    " members and " + std::to_string(set.hosts.size()) +
                                    " hosts, where " + std::to_string(joined.size()) +
                                    " workers have joined");
  }
  for (const Rank rank : set.members) {
    Worker& worker = At(run, rank);
    worker.scheduled = true;
    worker.newest = run->last_group;
  }
}

void Laws::CheckMember(const Plan& plan, const Worker& worker, const GroupFormed& formed,
                       const GroupShare& share) {
  const std::string name = GroupName(formed.id);
  const bool train = formed.kind == GroupKind::kTrain;
  const bool signal = (train && !DrawnAhead(plan)) || formed.kind == GroupKind::kAverage;
  if (worker.group != kNoGroup) {
    throw Violation("one-group", RankName(share.rank) + " is in group " +
                                     std::to_string(worker.group) + " and put into " + name);
  }
  const bool trains = signal || train || formed.kind == GroupKind::kRound;
  if (trains && worker.paused) {
    throw Violation("pause", RankName(share.rank) + " pauses, and is put into " + name);
  }
  if (trains && !worker.joined) {
    throw Violation("members", RankName(share.rank) + " is put into " + name + ", and not there");
  }
  if (signal && !(worker.waiting && worker.open)) {
    throw Violation("members", RankName(share.rank) + " is put into " + name + " without a signal");
  }
  if (formed.kind == GroupKind::kRound && share.weight > 0 && worker.owed == 0) {
    throw Violation("members",
                    RankName(share.rank) + " contributes to " + name + " and owes nothing");
  }
  if (train && share.iteration < worker.iteration) {
    throw Violation("iterations", RankName(share.rank) + " enters " + name + " with iteration " +
                                      std::to_string(share.iteration) + " after " +
                                      std::to_string(worker.iteration));
  }
}

// What concerns a round, or an average, as a whole.
void Laws::CheckRound(const Run& run, const GroupFormed& formed) const {
  if (formed.kind != GroupKind::kRound && formed.kind != GroupKind::kAverage) return;
  const std::string name = GroupName(formed.id);
  if (!run.groups.empty()) {
    throw Violation("one-round", name + " forms while group " +
                                     std::to_string(run.groups.begin()->first) + " runs");
  }
  const auto joined = std::count_if(run.workers.begin(), run.workers.end(),
                                    [](const Worker& worker) { return worker.joined; });
  if (joined != static_cast<std::ptrdiff_t>(formed.members.size())) {
    throw Violation("members", name + " has " + std::to_string(formed.members.size()) + " of " +
                                   std::to_string(joined) + " workers");
  }
  Iteration newest = 0;  // what only those had who are gone has not been
  for (const Worker& worker : run.workers) {
    if (worker.joined) newest = std::max(newest, worker.iteration);
  }
  const Iteration due = newest + (formed.kind == GroupKind::kRound ? 1 : 0);
  if (formed.iteration != due) {
    throw Violation("iterations", name + " is round " + std::to_string(formed.iteration) +
                                      " where " + std::to_string(due) + " is due");
  }
}

void Laws::OnEnded(Run* run, const GroupEnded& ended) {
  const auto it = run->groups.find(ended.id);
  if (it != run->groups.end() && run->lost) {
    for (Worker& worker : run->workers) {
      if (worker.group == ended.id) worker.group = kNoGroup;
    }
    run->groups.erase(it);
    return;
  }
  if (it == run->groups.end() || !it->second.pending.empty()) {
    throw Violation("finished-once",
                    GroupName(ended.id) + " ends, and " +
                        (it == run->groups.end() ? "it does not run" : "not all have reported"));
  }
  const Running& group = it->second;
  if (group.kind == GroupKind::kRound && !group.have.empty() && !group.lack.empty()) {
    throw Violation("round-for-all", GroupName(ended.id) + " ends, " +
                                         RankName(group.have.front()) + " has the result, and " +
                                         RankName(group.lack.front()) + " has not");
  }
  run->groups.erase(it);
}

void Laws::OnOrdered(Run* run, const AdoptOrdered& ordered) {
  Worker& worker = At(run, ordered.rank);
  worker.ordered = true;
  if (ordered.result == kNoGroup) {
    worker.waiting = worker.open = false;
    return;
  }
  const auto it = run->groups.find(ordered.result);
  if (it == run->groups.end() || !Has(it->second.have, ordered.source) ||
      std::erase(it->second.lack, ordered.rank) != 1) {
    throw Violation("round-for-all", RankName(ordered.rank) + " is to copy the result of group " +
                                         std::to_string(ordered.result) + " from " +
                                         RankName(ordered.source));
  }
  it->second.pending.push_back(ordered.rank);
  worker.group = ordered.result;
}

void Laws::OnAnswered(Run* run, const QueryAnswered& answered) {
  Worker& worker = At(run, answered.rank);
  worker.answered = true;
  if (!worker.joined || !worker.open || worker.signalled != answered.iteration) {
    throw Violation("answers", RankName(answered.rank) + " is answered for iteration " +
                                   std::to_string(answered.iteration) +
                                   ", and has no open signal for it");
  }
  if (!TrainsInGroups(run->plan)) {
    if (answered.next < answered.iteration) {
      throw Violation("iterations", RankName(answered.rank) + " is ready with iteration " +
                                        std::to_string(answered.iteration) + " and goes on at " +
                                        std::to_string(answered.next));
    }
    worker.iteration = answered.next;
  }
  // READY is no answer to one that waits: its group is.
  if (!answered.ready || !worker.waiting) worker.waiting = worker.open = false;
}

void Laws::OnNeighbours(Run* run, const NeighboursSet& set) {
  Worker& worker = At(run, set.rank);
  if (!worker.joined || set.at < worker.iteration) {
    throw Violation("iterations", RankName(set.rank) + " gets neighbours at iteration " +
                                      std::to_string(set.at) + " after " +
                                      std::to_string(worker.iteration));
  }
  worker.iteration = set.at;
  worker.placed = true;
}

void Laws::OnPlaced(Run* run, const PlacementSet& set) {
  for (std::size_t i = 0; i < set.members.size(); ++i) {
    Worker& worker = At(run, set.members[i]);
    worker.iteration = std::max(worker.iteration, set.at[i]);
    worker.placed = true;
  }
}

void Laws::Sent(const ControllerEnvelope& envelope) const {
  if (envelope.seq == 0) return;
  const auto life = lives_.find(envelope.incarnation);
  if (life == lives_.end()) {
    throw Violation("recorded-first",
                    "a message leaves for an incarnation of which no Hello is in "
                    "the history");
  }
  const Run& run = runs_.at(life->second.run);
  CheckProgress(run, envelope.progress);
  const auto rank = static_cast<std::size_t>(life->second.rank);
  const bool known = life->second.rank >= 0 && rank < run.workers.size();
  if (const auto* group = std::get_if<Group>(&envelope.body);
      group != nullptr && group->id > (known ? run.workers[rank].newest : run.last_group)) {
    throw Violation("recorded-first", GroupName(group->id) + " is announced before it is recorded");
  }
  if (!known) return;
  if (std::holds_alternative<Schedule>(envelope.body) && !run.workers[rank].scheduled) {
    throw Violation("recorded-first", "a schedule is sent before it is recorded");
  }
  const bool places = std::holds_alternative<Neighbourhood>(envelope.body) ||
                      std::holds_alternative<Placement>(envelope.body);
  if ((places && !run.workers[rank].placed) ||
      (std::holds_alternative<Opened>(envelope.body) && !run.workers[rank].opened)) {
    throw Violation("recorded-first",
                    "a change of neighbours or shards is sent before it is recorded");
  }
  if (std::holds_alternative<Adopt>(envelope.body) && !run.workers[rank].ordered) {
    throw Violation("recorded-first", "an order to adopt is sent before it is recorded");
  }
  if (std::holds_alternative<QueryReply>(envelope.body) && !run.workers[rank].answered) {
    throw Violation("recorded-first", "an answer is sent before it is recorded");
  }
}

// ---- what workers do ----

bool HangWatch::Hangs(std::vector<Worker> workers) {
  looked_ = due();
  const std::vector<Worker> before = std::exchange(before_, std::move(workers));
  bool waits = false;     // somebody, for an answer
  bool finishes = false;  // somebody, all the time
  bool goes_on = false;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const Worker& was = before[i];
    const Worker& is = before_[i];
    const bool computes = is.doing == Doing::kComputes;
    if (computes && was.doing == Doing::kComputes && was.step == is.step) return false;
    const bool nowhere = was.progress == is.progress && was.doing == is.doing;
    goes_on = goes_on || !nowhere || computes || is.doing == Doing::kPauses;
    waits = waits || (nowhere && is.doing == Doing::kWaits);
    finishes = finishes || (nowhere && is.doing == Doing::kFinishes);
  }
  return waits || (finishes && !goes_on);
}

}  // namespace prd::sim
