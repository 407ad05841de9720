#include "tools/sim/history_store.h"

#include <algorithm>
#include <bit>
#include <string>

#include "engines/violation.h"

namespace prd::sim {
namespace {

std::uint64_t Mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

std::uint64_t Number(std::int64_t value) { return static_cast<std::uint64_t>(value); }

struct BodyHash {
  std::uint64_t hash = 0;
  void Add(std::uint64_t value) { hash = Mix(hash, value); }

  void operator()(const FromWorker& from) {
    Add(from.envelope.incarnation);
    Add(from.envelope.seq);
    Add(from.envelope.ack);
    Add(from.envelope.body.index());
  }
  void operator()(const LeaseExpired& expired) { Add(expired.incarnation); }
  void operator()(const DeadlineReached&) {}
  void operator()(const ProcessEnded& ended) { Add(ended.incarnation); }
  void operator()(const HistoryLost& lost) { Add(lost.incarnation); }
  void operator()(const LinkChanged& changed) {
    Add(Number(changed.a));
    Add(Number(changed.b) * 2 + (changed.works ? 1 : 0));
  }
  void operator()(const HelloRefused& refused) { Add(Number(refused.rank)); }
  void operator()(const OperatorActed& acted) {
    Add(static_cast<std::uint64_t>(acted.verb));
    Add(Number(acted.rank));
    Add(HashBytes(acted.host));
    if (!acted.spec.empty()) Add(HashBytes(acted.spec));
  }
  void operator()(const ReplicasDiffer& differ) {
    Add(differ.group);
    for (const Rank rank : differ.ranks) Add(Number(rank));
  }
  void operator()(const NumbersAveraged& averaged) {
    Add(averaged.round);
    for (const std::uint64_t call : averaged.calls) Add(call);
    for (const double value : averaged.values) Add(std::bit_cast<std::uint64_t>(value));
  }
  void operator()(const GoalReached& goal) { Add(Number(goal.trained.steps)); }
  void operator()(const RunStarted& started) { Add(HashBytes(started.engine)); }
  void operator()(const WorkerJoined& joined) {
    Add(joined.incarnation);
    Add(Number(joined.iteration));
  }
  void operator()(const WorkerLeft& left) {
    Add(left.incarnation);
    Add(static_cast<std::uint64_t>(left.why));
    Add(left.gradients);
  }
  void operator()(const GroupFormed& formed) {
    Add(formed.id);
    Add(Number(formed.iteration));
    for (const GroupShare& share : formed.members) {
      Add(Number(share.rank));
      Add(std::bit_cast<std::uint64_t>(share.weight) * 2 + (share.passive ? 1 : 0));
    }
  }
  void operator()(const GroupEnded& ended) { Add(ended.id * 2 + (ended.ok ? 1 : 0)); }
  void operator()(const AdoptOrdered& ordered) {
    Add(Number(ordered.rank));
    Add(Number(ordered.source));
    Add(ordered.result);
  }
  void operator()(const UpdateDropped& dropped) {
    Add(Number(dropped.rank));
    Add(Number(dropped.iteration));
  }
  void operator()(const QueryAnswered& answered) {
    Add(Number(answered.rank) * 2 + (answered.ready ? 1 : 0));
    Add(answered.local_steps);
    Add(Number(answered.next));
  }
  void operator()(const ScheduleSet& set) {
    Add(set.first);
    for (const Rank rank : set.members) Add(Number(rank));
    for (const std::int32_t host : set.hosts) Add(Number(host));
  }
  void operator()(const NeighboursSet& set) {
    Add(Number(set.rank));
    Add(Number(set.at));
    for (const InEdge& edge : set.in) {
      Add(Number(edge.rank));
      Add(std::bit_cast<std::uint64_t>(edge.weight));
      Add(Number(edge.from));
    }
    for (const Rank rank : set.out) Add(Number(rank));
    Add(set.slots);
  }
  void operator()(const PlacementSet& set) {
    Add(set.epoch);
    for (const Rank rank : set.members) Add(Number(rank));
    for (const Iteration at : set.at) Add(Number(at));
    for (const ShardPlace& place : set.shards) {
      Add(Number(place.owner));
      for (const Rank rank : place.holders) Add(Number(rank));
      Add(Number(place.source));
    }
  }
  void operator()(const PlacementOpened& opened) { Add(opened.epoch); }
  void operator()(const RunEnded&) {}
};

}  // namespace

std::uint64_t HashRecord(const Record& record) {
  BodyHash body{.hash = Mix(record.run, record.index)};
  body.Add(Number(record.now.ns));
  body.Add(record.body.index());
  std::visit([&body](const auto& of) { body(of); }, record.body);
  return body.hash;
}

Status HistoryStore::Append(std::span<const Record> records) {
  const Fate fate = fate_ ? fate_() : Fate::kFine;
  if (fate == Fate::kFails) return Status(Code::kResourceExhausted, "no space left on device");
  if (forgets_) writes_.emplace_back().at = records.back().now;
  if (fate == Fate::kTorn) {
    for (const Record& record : records.first(below_(records.size() + 1))) Keep(record);
    throw ControllerDied{};
  }
  for (const Record& record : records) Keep(record);
  return Status::Ok();
}

void HistoryStore::Keep(const Record& record) {
  Run& run = runs_[record.run];
  if (record.index != run.next_index) {
    throw Violation("history-whole", "record " + std::to_string(record.index) + " of run " +
                                         std::to_string(record.run) + " is written where " +
                                         std::to_string(run.next_index) + " is due");
  }
  if (record.now < run.last) {
    throw Violation("history-whole", "time goes back at record " + std::to_string(record.index));
  }
  ++run.next_index;
  run.last = record.now;
  hash_ = Mix(hash_, HashRecord(record));
  ++records_;
  seen_(record);
  if (keep_) run.records.push_back(record);
  if (forgets_) writes_.back().records.push_back(record.run);
}

Status HistoryStore::SaveSnapshot(RunId run, std::uint64_t index, std::string_view state) {
  if (!keep_) return Status::Ok();
  Run& of = runs_[run];
  if (forgets_) {
    writes_.push_back({.at = writes_.back().at,
                       .records = {},
                       .run = run,
                       .snapshot_index = of.snapshot_index,
                       .snapshot = std::move(of.snapshot)});
  }
  of.snapshot_index = index;
  of.snapshot.assign(state);
  return Status::Ok();
}

// ---- forgetting ----

std::size_t HistoryStore::WritesSince(Instant at) const {
  const auto first = std::find_if(writes_.begin(), writes_.end(),
                                  [&](const Write& write) { return write.at > at; });
  return static_cast<std::size_t>(writes_.end() - first);
}

void HistoryStore::Forget(std::size_t writes) {
  hash_ = Mix(hash_, writes);
  for (; writes > 0; --writes) {
    Undo(writes_.back());
    writes_.pop_back();
  }
}

void HistoryStore::Undo(const Write& write) {
  if (write.run != kNoRun) {
    runs_[write.run].snapshot_index = write.snapshot_index;
    runs_[write.run].snapshot = write.snapshot;
  }
  for (const RunId id : write.records) {  // of one run, their order means nothing here
    Run& run = runs_[id];
    run.records.pop_back();
    if (--run.next_index == 0) {
      runs_.erase(id);
      continue;
    }
    run.last = run.records.back().now;
  }
}

}  // namespace prd::sim
