#include "tools/sim/data_plane.h"

#include <algorithm>

#include "tools/sim/violation.h"

namespace prd::sim {
namespace {

// Until a member notices that another has vanished.
constexpr DurationNs kNoticed = kMillisecond;

std::uint64_t Mix(std::uint64_t value) { return Prng(value).Next(); }

double Seconds(double bytes, double mb_per_s) { return bytes / (mb_per_s * 1e6); }

}  // namespace

DurationNs DataPlane::RingCost(const Workload& workload,
                               const std::vector<std::uint32_t>& members) {
  if (members.size() < 2) return 0;
  const ReducePart& reduce = workload.reduce;
  const auto host = [&](std::uint32_t w) { return w / workload.cluster.workers_per_host; };
  bool local = true;
  for (const std::uint32_t member : members) local = local && host(member) == host(members[0]);
  const double latency = local ? reduce.local_latency_us : reduce.latency_us;
  const double speed = local ? reduce.local_bandwidth_mb_per_s : reduce.bandwidth_mb_per_s;
  const auto n = static_cast<double>(members.size());
  const double us = reduce.overhead_us + 2 * (n - 1) * latency +
                    2 * (n - 1) / n * Seconds(reduce.bytes, speed) * 1e6;
  return FromUs(us);
}

// ---- reductions ----

std::uint64_t DataPlane::Find(RunId run, const Group& group, bool gradients) {
  std::uint64_t& serial = by_group_[{run, group.id}];
  if (serial != 0) return serial;
  serial = next_serial_++;
  Reduction& reduction = reductions_[serial];
  reduction.run = run;
  reduction.group = group;
  reduction.gradients = gradients && group.kind == GroupKind::kTrain;
  for (const GroupMember& member : group.members) {
    reduction.members.push_back(WorkerOf(member.incarnation));
    reduction.incarnations.push_back(member.incarnation);
    if (world_->Lives(member.incarnation)) continue;
    reduction.broken = true;
    ++reduction.through;
  }
  return serial;
}

void DataPlane::Begin(std::uint32_t worker, RunId run, const Group& group, bool gradients) {
  const std::uint64_t serial = Find(run, group, gradients);
  Reduction& reduction = reductions_.at(serial);
  current_[worker] = serial;
  reduction.arrived.push_back(worker);
  if (reduction.broken) {
    FailSoon(worker, serial);
  } else if (reduction.arrived.size() == reduction.members.size()) {
    world_->queue.Push(world_->now + RingCost(world_->workload, reduction.members),
                       EventKind::kReduced, worker, serial);
  }
}

void DataPlane::FailSoon(std::uint32_t worker, std::uint64_t serial) {
  const auto jitter = static_cast<DurationNs>(world_->prng.Below(kNoticed));
  world_->queue.Push(world_->now + kNoticed + jitter, EventKind::kReduceFails, worker, serial);
}

void DataPlane::Break(std::uint64_t serial) {
  Reduction& reduction = reductions_.at(serial);
  if (reduction.broken) return;
  reduction.broken = true;
  for (const std::uint32_t worker : reduction.arrived) {
    if (current_[worker] == serial) FailSoon(worker, serial);
  }
}

// A member is through with it, with or without a result.
void DataPlane::Through(std::uint64_t serial) {
  const auto it = reductions_.find(serial);
  if (++it->second.through < it->second.members.size()) return;
  by_group_.erase({it->second.run, it->second.group.id});
  reductions_.erase(it);
}

void DataPlane::Cancel(std::uint32_t worker) {
  const std::uint64_t serial = std::exchange(current_[worker], 0);
  if (serial == 0) return;
  Break(serial);
  Through(serial);
}

void DataPlane::Gone(std::uint32_t worker) {
  CancelFetch(worker);
  Cancel(worker);
  const Incarnation incarnation = world_->replicas[worker].incarnation;
  std::vector<std::uint64_t> awaited;  // groups that it has not been told of
  for (const auto& [serial, reduction] : reductions_) {
    const auto& all = reduction.incarnations;
    const auto& here = reduction.arrived;
    if (std::find(all.begin(), all.end(), incarnation) == all.end()) continue;
    if (std::find(here.begin(), here.end(), worker) == here.end()) awaited.push_back(serial);
  }
  for (const std::uint64_t serial : awaited) {
    Break(serial);
    Through(serial);
  }
}

std::vector<DataPlane::Result> DataPlane::OnFails(std::uint32_t worker, std::uint64_t serial) {
  if (current_[worker] != serial) return {};
  current_[worker] = 0;
  const GroupId group = reductions_.at(serial).group.id;
  Through(serial);
  return {{.worker = worker, .group = group, .ok = false}};
}

std::vector<DataPlane::Result> DataPlane::OnReduced(std::uint64_t serial) {
  const auto it = reductions_.find(serial);
  if (it == reductions_.end() || it->second.broken) return {};
  const Reduction reduction = std::move(it->second);
  by_group_.erase({reduction.run, reduction.group.id});
  reductions_.erase(it);
  if (reduction.gradients) CheckAgreement(reduction);
  const std::vector<double> mean = Mean(reduction);
  std::uint64_t tag = Mix(reduction.group.id ^ (reduction.run << 32));
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    const std::uint64_t own = world_->replicas[reduction.members[i]].tag;
    if (reduction.group.kind != GroupKind::kInitial) tag = Mix(tag ^ own);
    if (reduction.group.kind == GroupKind::kInitial && reduction.group.members[i].weight == 1) {
      tag = own;
    }
  }
  const auto n = static_cast<double>(reduction.members.size());
  const auto sent = static_cast<std::uint64_t>(2 * (n - 1) / n * world_->workload.reduce.bytes);
  std::vector<Result> results;
  for (const std::uint32_t worker : reduction.members) {
    current_[worker] = 0;
    const bool ok = n < 2 || !world_->Fault(world_->workload.faults.reduce_fails);
    if (ok) Commit(reduction, mean, tag, worker);
    bytes_ += sent;
    results.push_back({.worker = worker, .group = reduction.group.id, .ok = ok, .bytes = sent});
  }
  return results;
}

void DataPlane::CheckAgreement(const Reduction& reduction) const {
  for (const std::uint32_t worker : reduction.members) {
    const Replica& first = world_->replicas[reduction.members[0]];
    if (world_->replicas[worker].tag == first.tag) continue;
    throw Violation("replicas-agree", "workers " + std::to_string(reduction.members[0]) + " and " +
                                          std::to_string(worker) + " differ before round " +
                                          std::to_string(reduction.group.id));
  }
}

std::vector<double> DataPlane::Mean(const Reduction& reduction) const {
  const Group& group = reduction.group;
  std::vector<double> mean(world_->replicas[reduction.members[0]].x.size(), 0.0);
  for (std::size_t i = 0; i < reduction.members.size() && !mean.empty(); ++i) {
    const Replica& replica = world_->replicas[reduction.members[i]];
    const std::vector<double>& own = reduction.gradients ? replica.gradient : replica.x;
    const double weight = group.members[i].weight;
    for (std::size_t j = 0; weight > 0 && j < mean.size(); ++j) mean[j] += weight * own[j];
  }
  return mean;
}

void DataPlane::Commit(const Reduction& reduction, const std::vector<double>& mean,
                       std::uint64_t tag, std::uint32_t worker) {
  Replica& replica = world_->replicas[worker];
  if (reduction.gradients) {  // applied by the worker
    replica.gradient = mean;
    return;
  }
  const double share = reduction.group.initial_weight;
  replica.x = mean;
  for (std::size_t j = 0; share > 0 && j < mean.size(); ++j) {
    replica.x[j] += share * replica.initial[j];
  }
  replica.tag = tag;
  replica.iteration = reduction.group.iteration;
  if (reduction.group.kind == GroupKind::kInitial) replica.initial = replica.x;
}

// ---- copies ----

void DataPlane::Fetch(std::uint32_t worker, Incarnation source) {
  const ReducePart& reduce = world_->workload.reduce;
  const bool local = world_->HostOf(worker) == world_->HostOf(WorkerOf(source));
  const double us =
      local ? reduce.local_latency_us + Seconds(reduce.bytes, reduce.local_bandwidth_mb_per_s) * 1e6
            : reduce.latency_us + Seconds(reduce.bytes, reduce.bandwidth_mb_per_s) * 1e6;
  fetches_[worker].source = source;
  world_->queue.Push(world_->now + FromUs(us), EventKind::kFetched, worker,
                     ++fetches_[worker].ticket);
}

int DataPlane::OnFetched(std::uint32_t worker, std::uint64_t ticket) {
  const Copy& copy = fetches_[worker];
  if (copy.ticket != ticket) return 0;
  if (!world_->Lives(copy.source) || world_->Fault(world_->workload.faults.fetch_fails)) return 1;
  const Replica& source = world_->replicas[WorkerOf(copy.source)];
  Replica& own = world_->replicas[worker];
  own.x = source.x;
  own.initial = source.initial;
  own.tag = source.tag;
  own.iteration = source.iteration;
  bytes_ += static_cast<std::uint64_t>(world_->workload.reduce.bytes);
  return 2;
}

}  // namespace prd::sim
