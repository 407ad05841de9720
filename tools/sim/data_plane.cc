#include "tools/sim/data_plane.h"

#include <algorithm>
#include <cmath>

#include "engines/violation.h"
#include "tools/sim/names.h"

namespace prd::sim {
namespace {

// Until a member notices that another has vanished.
constexpr DurationNs kNoticed = kMillisecond;

}  // namespace

double DataPlane::RingRows(std::size_t members, std::size_t contributors) {
  if (members < 2 || contributors == 0) return 0;
  const auto n = static_cast<double>(members);
  const auto q = static_cast<double>(contributors);
  return (q - 1) / q + (contributors == members ? (n - 1) / n : 1);
}

DurationNs DataPlane::RingCost(const Workload& workload, const std::vector<std::uint32_t>& members,
                               std::size_t contributors) {
  if (members.size() < 2 || contributors == 0) return 0;
  const ReducePart& reduce = workload.reduce;
  const auto host = [&](std::uint32_t w) { return w / workload.cluster.workers_per_host; };
  bool local = true;
  for (const std::uint32_t member : members) local = local && host(member) == host(members[0]);
  const double latency = local ? reduce.local_latency_us : reduce.latency_us;
  const double speed = local ? reduce.local_bandwidth_mb_per_s : reduce.bandwidth_mb_per_s;
  const auto n = static_cast<double>(members.size());
  const auto q = static_cast<double>(contributors);
  const double bytes = RingRows(members.size(), contributors) * reduce.bytes;
  const double us = reduce.overhead_us + (q - 1 + n - 1) * latency + bytes / speed;
  return FromUs(us);
}

// All of what a reduction moves, (Q - 1) + (n - 1) rows, shared out evenly within each half.
std::uint64_t DataPlane::SentBy(const Reduction& reduction, std::size_t member) const {
  const auto n = static_cast<double>(reduction.members.size());
  const auto q = static_cast<double>(reduction.Contributors());
  if (n < 2 || q < 1) return 0;
  const double summing = reduction.group.members[member].weight > 0 ? (q - 1) / q : 0;
  return static_cast<std::uint64_t>((summing + (n - 1) / n) * world_->workload.reduce.bytes);
}

// ---- reductions ----

std::uint64_t DataPlane::Find(RunId run, const StartReduce& start, const Plan& plan) {
  const Group& group = start.group;
  std::vector<std::uint64_t>& serials = by_group_[{run, group.id}];
  for (const std::uint64_t serial : serials) {
    const Reduction& known = reductions_.at(serial);
    if (group.kind == known.group.kind && group.members == known.group.members &&
        start.what == known.what) {
      return serial;
    }
    // A controller that has forgotten one group may form another.
    if (!world_->forgot) {
      throw Violation("same-group",
                      "members differ in what group " + std::to_string(group.id) + " is");
    }
  }
  const std::uint64_t serial = next_serial_++;
  serials.push_back(serial);
  Reduction& reduction = reductions_[serial];
  reduction.serial = serial;
  reduction.run = run;
  reduction.group = group;
  reduction.plan = plan;
  reduction.what = start.what;
  for (const GroupMember& member : group.members) {
    reduction.members.push_back(WorkerOf(member.incarnation));
    reduction.incarnations.push_back(member.incarnation);
    if (world_->Lives(member.incarnation)) continue;
    reduction.broken = true;
    reduction.gave_up.push_back(WorkerOf(member.incarnation));
    ++reduction.through;
  }
  return serial;
}

void DataPlane::Seen(RunId run, const ScheduleSet& set) {
  schedules_.Set(run, set);
  // A worker with the new schedule never reaches a group of the old one.
  std::erase_if(reductions_, [&](const auto& entry) {
    const Reduction& reduction = entry.second;
    if (reduction.run != run || reduction.group.id >= set.first || !reduction.broken) return false;
    const auto here = [&](std::uint32_t worker) { return current_[worker] == reduction.serial; };
    if (std::any_of(reduction.arrived.begin(), reduction.arrived.end(), here)) return false;
    Forget(reduction);
    return true;
  });
}

void DataPlane::CheckOrder(std::uint32_t worker, RunId run, const Group& group, const Plan& plan) {
  const std::string who = WorkerName(worker) + " begins group " + std::to_string(group.id);
  if (current_[worker] != 0) {
    throw Violation("one-reduction",
                    who + " in group " + std::to_string(reductions_.at(current_[worker]).group.id));
  }
  const Incarnation incarnation = world_->replicas[worker].incarnation;
  Met& met = newest_[worker];
  if (met.run == run && met.incarnation == incarnation && group.id <= met.group) {
    throw Violation("group-order", who + " after group " + std::to_string(met.group));
  }
  met = {.run = run, .incarnation = incarnation, .group = group.id};
  if (group.kind == GroupKind::kTrain && FollowsSchedule(plan)) {
    schedules_.Begins(run, static_cast<Rank>(worker), group);
  }
}

void DataPlane::Begin(std::uint32_t worker, RunId run, const StartReduce& start, const Plan& plan) {
  CheckOrder(worker, run, start.group, plan);
  const std::uint64_t serial = Find(run, start, plan);
  Reduction& reduction = reductions_.at(serial);
  if (reduction.Overlaps()) boxes_->FillOutbox(worker, start.gain);
  reduction.goes_on_at[worker] = start.group.iteration;
  current_[worker] = serial;
  world_->replicas[worker].last_round.reset();
  reduction.arrived.push_back(worker);
  if (world_->links.on() && reduction.members.size() > 1) {
    world_->queue.Push(world_->now + world_->LeaseNs(), EventKind::kSilent, worker, serial);
  }
  if (reduction.broken) {
    for (const std::uint32_t by : reduction.gave_up) {
      if (world_->links.Pass(world_->now, by, worker)) return FailSoon(worker, serial);
    }
  } else if (reduction.arrived.size() == reduction.members.size()) {
    reduction.took = Cost(reduction);
    world_->queue.Push(world_->now + reduction.took + Slowness(reduction), EventKind::kReduced,
                       worker, serial);
  }
}

// The ring's, and what its members' cards have to do first.
DurationNs DataPlane::Cost(const Reduction& reduction) {
  const std::vector<std::uint32_t>& members = reduction.members;
  const ReducePart& reduce = world_->workload.reduce;
  const double bytes = RingRows(members.size(), reduction.Contributors()) * reduce.bytes;
  const Instant alone = world_->now + FromUs(bytes / reduce.bandwidth_mb_per_s);
  DurationNs waits = 0;
  for (std::size_t i = 0; i < members.size() && bytes > 0; ++i) {
    const std::int64_t from = world_->HostOf(members[i]);
    const std::int64_t to = world_->HostOf(members[(i + 1) % members.size()]);
    if (from == to) continue;
    waits = std::max(waits, world_->cards.Carry(world_->now, from, to, bytes) - alone);
  }
  return RingCost(world_->workload, members, reduction.Contributors()) + waits;
}

void DataPlane::FailSoon(std::uint32_t worker, std::uint64_t serial) {
  const auto jitter = static_cast<DurationNs>(world_->prng.Below(kNoticed));
  world_->queue.Push(world_->now + kNoticed + jitter, EventKind::kReduceFails, worker, serial);
}

// The member tells the others, as far as it reaches them.
void DataPlane::Break(std::uint64_t serial, std::uint32_t by) {
  Reduction& reduction = reductions_.at(serial);
  reduction.gave_up.push_back(by);
  if (std::exchange(reduction.broken, true) && !world_->links.on()) return;
  for (const std::uint32_t worker : reduction.arrived) {
    const bool told = world_->links.Pass(world_->now, by, worker);
    if (current_[worker] == serial && told) FailSoon(worker, serial);
  }
}

Instant DataPlane::Clear(const Reduction& reduction) const {
  Instant clear = world_->now;
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    clear = std::max(clear, world_->frozen_until[reduction.members[i]]);
    for (std::size_t j = 0; j < i; ++j) {
      if (!reduction.Linked(i, j)) continue;
      clear = std::max(clear, world_->links.WholeFrom(reduction.members[i], reduction.members[j]));
    }
  }
  return clear;
}

DurationNs DataPlane::Slowness(const Reduction& reduction) const {
  DurationNs most = 0;
  for (std::size_t i = 0; i < reduction.members.size() && world_->links.on(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!reduction.Linked(i, j)) continue;
      most = std::max(
          most, world_->links.Slowness(world_->now, reduction.members[i], reduction.members[j]));
    }
  }
  if (most > 0) world_->Disturbed(world_->now + most);
  return most;
}

// A member is through with it, with or without a result.
void DataPlane::Through(std::uint64_t serial) {
  const auto it = reductions_.find(serial);
  if (++it->second.through < it->second.members.size()) return;
  Forget(it->second);
  reductions_.erase(it);
}

void DataPlane::Forget(const Reduction& reduction) {
  const auto known = by_group_.find({reduction.run, reduction.group.id});
  std::erase(known->second, reduction.serial);
  if (known->second.empty()) by_group_.erase(known);
}

void DataPlane::Cancel(std::uint32_t worker) {
  const std::uint64_t serial = std::exchange(current_[worker], 0);
  if (serial == 0) return;
  Break(serial, worker);
  Through(serial);
}

void DataPlane::Gone(std::uint32_t worker) {
  Cancel(worker);
  boxes_->Empty(worker);
  world_->replicas[worker].last_round.reset();
  world_->replicas[worker].run = kNoRun;
  world_->replicas[worker].removed = false;
  const Incarnation incarnation = world_->replicas[worker].incarnation;
  std::vector<std::uint64_t> awaited;  // groups that it has not been told of
  for (const auto& [serial, reduction] : reductions_) {
    const auto& all = reduction.incarnations;
    const auto& here = reduction.arrived;
    if (std::find(all.begin(), all.end(), incarnation) == all.end()) continue;
    if (std::find(here.begin(), here.end(), worker) == here.end()) awaited.push_back(serial);
  }
  for (const std::uint64_t serial : awaited) {
    Break(serial, worker);
    Through(serial);
  }
}

std::vector<PlaneResult> DataPlane::OnFails(std::uint32_t worker, std::uint64_t serial) {
  if (current_[worker] != serial) return {};
  return {Failed(worker, serial, false)};
}

std::vector<PlaneResult> DataPlane::OnSilent(std::uint32_t worker, std::uint64_t serial) {
  if (current_[worker] != serial) return {};
  PlaneResult result = Failed(worker, serial, true);
  if (!result.unreachable.empty() || current_[worker] == 0) return {std::move(result)};
  world_->queue.Push(world_->now + world_->LeaseNs(), EventKind::kSilent, worker, serial);
  return {};
}

// The worker gives up. `asked`: but only if somebody does not answer, or has given up before it.
PlaneResult DataPlane::Failed(std::uint32_t worker, std::uint64_t serial, bool asked) {
  const Reduction& reduction = reductions_.at(serial);
  PlaneResult result{.worker = worker, .group = reduction.group.id};
  const auto place = static_cast<std::size_t>(
      std::find(reduction.members.begin(), reduction.members.end(), worker) -
      reduction.members.begin());
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    const Incarnation member = reduction.incarnations[i];
    if (!reduction.Linked(place, i)) continue;
    if (asked ? world_->Answers(worker, member) : world_->Lives(member)) continue;
    result.unreachable.push_back(reduction.group.members[i].rank);
  }
  if (asked && !reduction.broken && result.unreachable.empty()) return result;
  current_[worker] = 0;
  if (mutation_ == Mutation::kGradientLost) world_->replicas[worker].owed.clear();
  if (world_->links.on()) Break(serial, worker);
  Through(serial);
  return result;
}

std::vector<PlaneResult> DataPlane::OnReduced(std::uint64_t serial) {
  const auto it = reductions_.find(serial);
  if (it == reductions_.end() || it->second.broken) return {};
  if (world_->links.on()) {
    const Instant clear = Clear(it->second);
    if (clear > world_->now) {
      world_->queue.Push(clear + it->second.took, EventKind::kReduced, it->second.members[0],
                         serial);
      return {};
    }
  }
  const Reduction reduction = std::move(it->second);
  Forget(reduction);
  reductions_.erase(it);
  laws_.CheckBefore(reduction);
  const Sum sum = SumUp(reduction);
  const double mass = laws_.Mass(reduction);
  bool all = true;
  std::vector<PlaneResult> results;
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    const std::uint32_t worker = reduction.members[i];
    current_[worker] = 0;
    const bool alone = reduction.members.size() < 2;
    const std::uint64_t sent = SentBy(reduction, i);
    PlaneResult& result = results.emplace_back();
    result = {.worker = worker, .group = reduction.group.id, .bytes = sent};
    result.took = reduction.took;
    result.ok = alone || !world_->Fault(world_->workload.faults.reduce_fails);
    if (result.ok) result.included = Commit(reduction, sum, i);
    if (result.ok && reduction.group.digest) result.digest = world_->replicas[worker].Digest();
    all = all && result.ok;
    if (!result.ok && mutation_ == Mutation::kGradientLost) world_->replicas[worker].owed.clear();
    bytes_ += sent;
  }
  if (all) laws_.CheckMass(reduction, mass);
  if (all && reduction.Unreported() && unreported_) unreported_(reduction.group);
  return results;
}

DataPlane::Sum DataPlane::SumUp(const Reduction& reduction) const {
  const Group& group = reduction.group;
  Sum sum{.values = Mean(reduction),
          .tag = Mixed(group.id ^ (reduction.run << 32)),
          .state = 0,
          .round = {}};
  if (group.kind == GroupKind::kRound) {
    sum.round =
        std::make_shared<const RoundResult>(RoundResult{.number = reduction.serial,
                                                        .group = group.id,
                                                        .round = group.iteration,
                                                        .sum = std::move(sum.values),
                                                        .gradients = GradientsOf(reduction)});
    return sum;
  }
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    const Replica& replica = world_->replicas[reduction.members[i]];
    const std::uint64_t own = reduction.Overlaps() ? replica.overlap.outbox_tag : replica.tag;
    if (group.kind != GroupKind::kInitial) sum.tag = Mixed(sum.tag ^ own);
    if (group.kind == GroupKind::kInitial && group.members[i].weight == 1) {
      sum.tag = own;
      sum.state = replica.state;
    }
  }
  return sum;
}

std::vector<double> DataPlane::Mean(const Reduction& reduction) const {
  const Group& group = reduction.group;
  std::vector<double> mean(world_->replicas[reduction.members[0]].x.size(), 0.0);
  for (std::size_t i = 0; i < reduction.members.size() && !mean.empty(); ++i) {
    const Replica& replica = world_->replicas[reduction.members[i]];
    const bool change = reduction.what.payload == Payload::kChange;
    const std::vector<double>& own = group.kind == GroupKind::kRound ? replica.outbox
                                     : reduction.Overlaps()          ? replica.overlap.outbox
                                     : reduction.what.payload == Payload::kGradients
                                         ? replica.gradient
                                         : replica.x;
    const double weight = group.members[i].weight;
    for (std::size_t j = 0; weight > 0 && j < mean.size(); ++j) {
      mean[j] += weight * (own[j] - (change ? replica.base[j] : 0));
    }
  }
  return mean;
}

std::vector<std::uint64_t> DataPlane::GradientsOf(const Reduction& reduction) const {
  std::vector<std::uint64_t> gradients;
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    if (!(reduction.group.members[i].weight > 0)) continue;
    const std::vector<std::uint64_t>& own = world_->replicas[reduction.members[i]].owed;
    gradients.insert(gradients.end(), own.begin(), own.end());
  }
  return gradients;
}

std::uint32_t DataPlane::Commit(const Reduction& reduction, const Sum& sum, std::size_t member) {
  const std::uint32_t worker = reduction.members[member];
  Replica& replica = world_->replicas[worker];
  if (reduction.group.kind == GroupKind::kRound) {
    replica.last_round = sum.round;  // one that is fetched is not passed on
    return boxes_->Take(worker, reduction.run, sum.round,
                        reduction.group.members[member].weight > 0);
  }
  if (reduction.Overlaps()) {
    boxes_->Average(worker, sum.values, sum.tag, reduction.group.initial_weight);
  } else if (reduction.what.landing == Landing::kGradients) {
    replica.gradient = sum.values;  // applied by the worker
  } else if (reduction.what.landing == Landing::kBase) {
    for (std::size_t j = 0; j < sum.values.size(); ++j) {
      replica.base[j] += OuterRate(reduction.plan) * sum.values[j];
    }
    replica.x = replica.base;
    replica.tag = replica.base_tag = Mixed(sum.tag ^ replica.base_tag);
    replica.iteration = reduction.group.iteration;
  } else {
    CommitModel(reduction, sum, worker);
  }
  return 0;
}

void DataPlane::CommitModel(const Reduction& reduction, const Sum& sum, std::uint32_t worker) {
  Replica& replica = world_->replicas[worker];
  const GroupKind kind = reduction.group.kind;
  const double share = reduction.group.initial_weight;
  replica.x = sum.values;
  for (std::size_t j = 0; share > 0 && j < replica.x.size(); ++j) {
    replica.x[j] += share * replica.initial[j];
  }
  replica.tag = sum.tag;
  if (kind == GroupKind::kFinal) {
    replica.iteration = reduction.goes_on_at.at(worker);
  } else if (kind != GroupKind::kTrain || !DrawnAhead(reduction.plan)) {
    replica.iteration = reduction.group.iteration;
  }
  replica.base = replica.x;
  replica.base_tag = replica.tag;
  replica.averaged = kind == GroupKind::kFinal ? reduction.run : kNoRun;
  if (kind == GroupKind::kInitial || kind == GroupKind::kFinal) boxes_->Empty(worker);
  if (kind != GroupKind::kInitial) return;
  if (boxes_->copies_state()) replica.state = sum.state;
  if (!replica.removed) boxes_->book().Started(reduction.run, reduction.group.iteration);
  replica.trained = true;
  replica.initial = replica.x;
  replica.run = reduction.run;
  replica.newest = reduction.group.iteration;
  replica.lineage = Mixed(reduction.group.id);
}

void DataPlane::Deposit(std::uint32_t worker) {
  if (const std::uint64_t serial = current_[worker]; serial != 0) {
    const Group& group = reductions_.at(serial).group;
    for (const GroupMember& member : group.members) {
      if (WorkerOf(member.incarnation) != worker || !(member.weight > 0) ||
          group.kind != GroupKind::kRound) {
        continue;
      }
      throw Violation("outbox", WorkerName(worker) + " adds to its outbox while group " +
                                    std::to_string(group.id) + " reduces it");
    }
  }
  boxes_->Deposit(worker);
}

}  // namespace prd::sim
