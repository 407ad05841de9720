#include "tools/sim/data_copies.h"

#include <algorithm>
#include <string>

#include "engines/violation.h"
#include "tools/sim/names.h"

namespace prd::sim {

DurationNs DataCopies::CopyCost(std::uint32_t worker, Incarnation source) {
  const ReducePart& reduce = world_->workload.reduce;
  const std::int64_t to = world_->HostOf(worker), from = world_->HostOf(WorkerOf(source));
  const DurationNs slow = world_->links.Slowness(world_->now, worker, WorkerOf(source));
  if (slow > 0) world_->Disturbed(world_->now + slow);
  if (from == to) {
    return FromUs(reduce.local_latency_us + reduce.bytes / reduce.local_bandwidth_mb_per_s) + slow;
  }
  const DurationNs alone = FromUs(reduce.bytes / reduce.bandwidth_mb_per_s);
  const Instant through = world_->cards.Carry(world_->now, from, to, reduce.bytes);
  return FromUs(reduce.latency_us) + std::max(alone, through - world_->now) + slow;
}

// While the source is there and does not answer, its copier waits for a lease.
DataCopies::Copied DataCopies::Look(std::uint32_t worker, Incarnation source, Instant since,
                                    const SimEvent& again) {
  if (world_->links.on() && world_->Lives(source) && !world_->Answers(worker, source)) {
    if (world_->now - since >= world_->LeaseNs()) return Copied::kFails;
    const Instant whole = std::max(world_->links.WholeFrom(worker, WorkerOf(source)),
                                   world_->frozen_until[WorkerOf(source)]);
    world_->queue.Push(std::min(whole, since + world_->LeaseNs()), again.kind, worker, again.what);
    return Copied::kWaits;
  }
  const bool fails = !world_->Lives(source) || world_->Fault(world_->workload.faults.fetch_fails);
  return fails ? Copied::kFails : Copied::kHere;
}

void DataCopies::Fetch(std::uint32_t worker, RunId run, const StartFetch& fetch, const Plan& plan) {
  Copy& copy = fetches_[worker];
  copy.run = run;
  copy.what = fetch;
  copy.from_base = TrainsInGroups(plan) && RowsOf(plan).base;
  copy.since = world_->now;
  copy.out = false;
  world_->queue.Push(world_->now + CopyCost(worker, fetch.source.incarnation), EventKind::kFetched,
                     worker, ++copy.ticket);
}

void DataCopies::SourceOut(std::uint32_t worker, Incarnation source) {
  Copy& copy = fetches_[worker];
  copy.out = copy.out || copy.what.source.incarnation == source;
  Average& average = averages_[worker];
  average.out = average.out || average.source == source;
}

std::optional<PlaneResult> DataCopies::OnFetched(std::uint32_t worker, std::uint64_t ticket) {
  const Copy& copy = fetches_[worker];
  if (copy.ticket != ticket) return std::nullopt;
  const Incarnation from = copy.what.source.incarnation;
  PlaneResult result{.worker = worker, .group = copy.what.result};
  if (copy.out) return result;
  const Copied became =
      Look(worker, from, copy.since, {.what = ticket, .kind = EventKind::kFetched});
  if (became == Copied::kWaits) return std::nullopt;
  if (became == Copied::kFails) return result;
  if (copy.what.result == kNoGroup) {
    CopyReplica(worker, copy);
  } else {
    const std::shared_ptr<const RoundResult>& round = world_->replicas[WorkerOf(from)].last_round;
    if (round == nullptr || round->group != copy.what.result) return result;
    result.included = boxes_->Take(worker, copy.run, round, copy.what.contributed);
  }
  result.ok = true;
  bytes_ += static_cast<std::uint64_t>(world_->workload.reduce.bytes);
  return result;
}

void DataCopies::CopyReplica(std::uint32_t worker, const Copy& copy) {
  const Replica& source = world_->replicas[WorkerOf(copy.what.source.incarnation)];
  Replica& own = world_->replicas[worker];
  if (own.paused && mutation_ == Mutation::kResumesStale) {
    own.iteration = source.iteration;
    return;
  }
  boxes_->Empty(worker);
  own.trained = true;
  if (boxes_->copies_state()) own.state = source.state;
  own.x = copy.from_base ? source.base : source.x;
  own.initial = source.initial;
  own.base = source.base;
  own.tag = copy.from_base ? source.base_tag : source.tag;
  own.base_tag = source.base_tag;
  own.iteration = source.iteration;
  own.inbox = source.inbox;
  own.newest = source.newest;
  own.lineage = source.lineage;
  own.averaged = source.averaged;
  own.run = copy.run;
}

// ---- averages of all, in a worker's own time ----

void DataCopies::BeginAverage(std::uint32_t worker, RunId run) {
  Average& average = averages_[worker];
  average = {.run = run, .ticket = average.ticket + 1, .since = {}, .of = {worker}};
}

void DataCopies::CopyForAverage(std::uint32_t worker, Incarnation source) {
  Average& average = averages_[worker];
  average.source = source;
  average.since = world_->now;
  average.out = false;
  world_->queue.Push(world_->now + CopyCost(worker, source), EventKind::kCopied, worker,
                     ++average.ticket);
}

std::optional<bool> DataCopies::OnCopied(std::uint32_t worker, std::uint64_t ticket) {
  Average& average = averages_[worker];
  if (average.ticket != ticket) return std::nullopt;
  if (average.out) return false;
  const Copied became =
      Look(worker, average.source, average.since, {.what = ticket, .kind = EventKind::kCopied});
  if (became == Copied::kWaits) return std::nullopt;
  if (became == Copied::kFails) return false;
  const std::uint32_t source = WorkerOf(average.source);
  const std::string who =
      WorkerName(worker) + " averages the replica of worker " + std::to_string(source);
  if (std::find(average.of.begin(), average.of.end(), source) != average.of.end()) {
    throw Violation("average", who + " twice");
  }
  if (world_->replicas[source].run != average.run) {
    throw Violation("average", who + ", which is none of run " + std::to_string(average.run));
  }
  average.of.push_back(source);
  bytes_ += static_cast<std::uint64_t>(world_->workload.reduce.bytes);
  return true;
}

}  // namespace prd::sim
