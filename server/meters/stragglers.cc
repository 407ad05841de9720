#include "server/meters/stragglers.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace prd::meters {

DurationNs Median(std::vector<DurationNs> values) {
  if (values.empty()) return 0;
  const std::size_t middle = values.size() / 2;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(middle);
  std::nth_element(values.begin(), at, values.end());
  if (values.size() % 2 == 1) return *at;
  const DurationNs below = *std::max_element(values.begin(), at);
  return below + (*at - below) / 2;
}

// Fields are 1/128 of a factor of two wide.
int StepTimes::FieldOf(DurationNs length) {
  return static_cast<int>(
      std::floor(std::log2(static_cast<double>(std::max<DurationNs>(1, length))) * 128));
}

void StepTimes::Add(DurationNs length) {
  ++count_;
  total_ += length;
  longest_ = std::max(longest_, length);
  if (count_ <= kExact) {
    exact_.push_back(length);
    return;
  }
  for (const DurationNs early : std::exchange(exact_, {})) ++fields_[FieldOf(early)];
  ++fields_[FieldOf(length)];
}

DurationNs StepTimes::median() const {
  if (fields_.empty()) return Median(exact_);
  std::uint64_t below = 0;
  for (const auto& [field, steps] : fields_) {
    below += steps;
    if (2 * below >= count_) return std::llround(std::exp2((field + 0.5) / 128));
  }
  return longest_;
}

PaceMeter::PaceMeter(Options options) : options_(std::move(options)) {
  exchange_.OnWait(options_.on_wait);
}

std::map<Rank, double> PaceMeter::Owed() const {
  std::map<Rank, double> owed;
  if (TrainsInGroups(view_.plan())) {
    for (const auto& [rank, tally] : tallies_) owed[rank] = tally.cost_ns;
  } else {
    for (const auto& [rank, row] : exchange_.workers()) owed[rank] = row.cost_ns;
  }
  return owed;
}

void PaceMeter::Waited(Rank rank, DurationNs ns) {
  tallies_[rank].waited_ns += ns;
  if (options_.on_wait) options_.on_wait(ns);
}

RunView::Change PaceMeter::Add(const Record& record) {
  RunView::Change change = view_.Apply(record);
  if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    OnMessage(from->envelope, record.now - view_.start());
  } else if (change.came != nullptr) {
    tallies_[change.came->rank].without_now = 0;
  } else if (change.gone) {
    tallies_[change.went->rank].gradients_lost += change.gradients_lost;
  } else if (const auto* late = std::get_if<UpdateDropped>(&record.body)) {
    Tally& tally = tallies_[late->rank];
    ++tally.dropped;
    tally.last_dropped = record.now;
    tally.dropped_because = late->reason;
  }
  exchange_.Add(record);
  if (change.formed != nullptr && !DrawnAhead(view_.plan())) ShareOut(*change.formed);
  if (change.ended) OnEnded(*change.ended);
  return change;
}

void PaceMeter::OnMessage(const WorkerEnvelope& envelope, DurationNs age) {
  if (const auto* ready = std::get_if<Ready>(&envelope.body)) {
    Tally& tally = tallies_[envelope.rank];
    if (tally.counter.Ends(*ready) && options_.keep_steps) {
      tally.steps.Add(Possible(ready->step_ns, age));
    }
  } else if (const auto* finished = std::get_if<Finished>(&envelope.body)) {
    tallies_[envelope.rank].reduced_ns += Possible(finished->reduce_ns, age);
  }
}

void PaceMeter::OnEnded(const GroupRow& group) {
  if (group.kind == GroupKind::kInitial || group.kind == GroupKind::kFinal) return;
  if (DrawnAhead(view_.plan())) return OnEndedAhead(group);
  round_ended_ = *group.ended;
  if (group.kind == GroupKind::kAverage || !group.AnyResult()) return;
  ++rounds_;
  std::map<Rank, Instant> without;
  // A worker that is not in it has its result all the same.
  if (AllOrNone(view_.plan())) without = view_.training();
  for (const MemberRow& member : group.members) {
    if (!(member.weight > 0)) continue;
    without.erase(member.rank);
    Tally& tally = tallies_[member.rank];
    tally.without_now = 0;
    if (member.local_steps > 0) {
      tally.fewest_local_steps = tally.local_steps == 0
                                     ? member.local_steps
                                     : std::min(tally.fewest_local_steps, member.local_steps);
      tally.most_local_steps = std::max(tally.most_local_steps, member.local_steps);
      tally.local_steps += member.local_steps;
    }
    ++tally.rounds_in;
  }
  for (const auto& [rank, since] : without) {
    Tally& tally = tallies_[rank];
    ++tally.rounds_without;
    tally.longest_without = std::max(tally.longest_without, ++tally.without_now);
  }
}

void PaceMeter::OnEndedAhead(const GroupRow& group) {
  ShareOutAhead(group);
  if (!group.ok) return;
  ++rounds_;
  for (const MemberRow& member : group.members) {
    Tally& tally = tallies_[member.rank];
    ++(member.passive ? tally.passive_groups : tally.own_groups);
  }
}

// Its members are all known only now: they may have come after it was announced, or not at all.
void PaceMeter::ShareOutAhead(const GroupRow& group) {
  std::vector<std::pair<Instant, const MemberRow*>> arrivals;
  for (const MemberRow& member : group.members) {
    const Instant came = group.held ? member.came.value_or(*group.ended) : group.formed;
    arrivals.emplace_back(std::max(group.formed, came), &member);
    if (!member.ready || *member.ready >= group.formed) continue;
    queued_ns_ += group.formed - *member.ready;
    Waited(member.rank, group.formed - *member.ready);
  }
  std::sort(arrivals.begin(), arrivals.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Rank> waiting;
  double owed = 0;  // by each of those who are still missing, so far
  for (std::size_t k = 0; k < arrivals.size(); ++k) {
    const auto& [at, member] = arrivals[k];
    const DurationNs gap = k > 0 ? at - arrivals[k - 1].first : 0;
    const DurationNs all = gap * static_cast<DurationNs>(waiting.size());
    if (gap > 0) {
      for (const Rank rank : waiting) Waited(rank, gap);
    }
    owed += static_cast<double>(all) / static_cast<double>(arrivals.size() - k);
    tallies_[member->rank].cost_ns += owed;
    waited_ns_ += all;
    if (member->ready) waiting.push_back(member->rank);
  }
}

void PaceMeter::ShareOut(const GroupRow& group) {
  // Rounds run one at a time, and workers that are not in one signal meanwhile.
  const bool in_turn = AllOrNone(view_.plan()) && !AsksBeforeGroups(view_.plan());
  std::vector<std::pair<Instant, Rank>> arrivals;
  for (const MemberRow& member : group.members) {
    if (!member.ready) continue;
    Waited(member.rank, group.formed - *member.ready);
    Instant since = *member.ready;
    if (in_turn && since < round_ended_) {
      round_ns_ += round_ended_ - since;
      since = round_ended_;
    }
    arrivals.emplace_back(since, member.rank);
  }
  if (arrivals.empty()) return;
  std::sort(arrivals.begin(), arrivals.end());
  const std::size_t members = arrivals.size();
  double owed = 0;  // by each of those who are still missing, so far
  for (std::size_t k = 1; k < members; ++k) {
    const DurationNs gap = arrivals[k].first - arrivals[k - 1].first;
    owed += static_cast<double>(gap) * static_cast<double>(k) / static_cast<double>(members - k);
    tallies_[arrivals[k].second].cost_ns += owed;
    waited_ns_ += gap * static_cast<DurationNs>(k);
  }
  controller_ns_ +=
      (group.formed - arrivals.back().first) * static_cast<DurationNs>(arrivals.size());
}

WorkerPace PaceMeter::PaceOf(Rank rank, const Tally& tally) const {
  WorkerPace worker{.rank = rank,
                    .steps = tally.steps.count(),
                    .median_step_ns = tally.steps.median(),
                    .slowest_step_ns = tally.steps.longest(),
                    .computed_ns = tally.steps.total(),
                    .waited_ns = tally.waited_ns,
                    .reduced_ns = tally.reduced_ns,
                    .cost_ns = std::llround(tally.cost_ns),
                    .own_groups = tally.own_groups,
                    .passive_groups = tally.passive_groups,
                    .rounds_in = tally.rounds_in,
                    .rounds_without = tally.rounds_without,
                    .longest_without = tally.longest_without,
                    .dropped = tally.dropped,
                    .last_dropped = tally.last_dropped,
                    .dropped_because = tally.dropped_because,
                    .gradients_lost = tally.gradients_lost,
                    .fewest_local_steps = tally.fewest_local_steps,
                    .most_local_steps = tally.most_local_steps};
  const auto rounds = static_cast<double>(tally.rounds_in);
  if (tally.rounds_in > 0)
    worker.mean_local_steps = static_cast<double>(tally.local_steps) / rounds;
  if (tally.dropped > 0) {
    const auto dropped = static_cast<double>(tally.dropped);
    worker.dropped_share = dropped / (dropped + rounds);
  }
  return worker;
}

PaceReport PaceMeter::Report() const {
  PaceReport report{.start = view_.start(),
                    .waited_ns = waited_ns_,
                    .round_ns = round_ns_,
                    .queued_ns = queued_ns_,
                    .controller_ns = controller_ns_,
                    .rounds = rounds_,
                    .train_groups = view_.train_groups(),
                    .conflicts = view_.conflicts(),
                    .plan = view_.plan()};
  const bool exchanges = !TrainsInGroups(report.plan);
  if (exchanges) {
    report.waited_ns = exchange_.waited_ns();
    report.controller_ns = exchange_.controller_ns();
    report.moving_ns = exchange_.moving_ns();
  }
  std::vector<DurationNs> paces;
  for (const auto& [rank, tally] : tallies_) {
    WorkerPace worker = PaceOf(rank, tally);
    const auto row = exchange_.workers().find(rank);
    if (exchanges && row != exchange_.workers().end()) {
      worker.exchange = row->second;
      worker.waited_ns = row->second.waited_ns;
      worker.cost_ns = std::llround(row->second.cost_ns);
    }
    if (worker.steps > 0) paces.push_back(worker.median_step_ns);
    report.workers.push_back(worker);
  }
  report.median_step_ns = Median(paces);
  for (WorkerPace& worker : report.workers) {
    if (report.median_step_ns > 0 && worker.steps > 0) {
      worker.factor =
          static_cast<double>(worker.median_step_ns) / static_cast<double>(report.median_step_ns);
    }
  }
  std::stable_sort(report.workers.begin(), report.workers.end(),
                   [](const WorkerPace& a, const WorkerPace& b) { return a.factor > b.factor; });
  return report;
}

}  // namespace prd::meters
