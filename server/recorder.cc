#include "server/recorder.h"

#include "common/io/log.h"

namespace prd {
namespace {

const char* Word(LeftReason why) {
  switch (why) {
    case LeftReason::kFinished:
      return "finished";
    case LeftReason::kLeft:
      return "left";
    case LeftReason::kLost:
      return "was lost";
    case LeftReason::kEvicted:
      return "was evicted";
    case LeftReason::kPaused:
      return "pauses";
  }
  return "is gone";
}

}  // namespace

Status Recorder::Append(std::span<const Record> records) {
  PRD_RETURN_IF_ERROR(history_->Append(records));
  for (const Record& record : records) {
    Note(record);
    Count(record.body);
  }
  return Status::Ok();
}

Status Recorder::SaveSnapshot(RunId run, std::uint64_t index, std::string_view state) {
  const Status status = history_->SaveSnapshot(run, index, state);
  if (status.ok()) {
    ++snapshots_;
  } else {
    spdlog::warn("run {}: no snapshot before record {}: {}", run, index, status.message());
  }
  return status;
}

void Recorder::Count(const RecordBody& body) {
  if (const auto* formed = std::get_if<GroupFormed>(&body)) {
    if (formed->kind != GroupKind::kRound) return;
    ++decided_.rounds_formed;
    for (const GroupShare& share : formed->members) {
      if (share.weight > 0) ++decided_.round_contributors;
    }
  } else if (std::holds_alternative<UpdateDropped>(body)) {
    ++decided_.updates_dropped;
  } else if (const auto* answer = std::get_if<QueryAnswered>(&body)) {
    if (answer->next > 0) {
      ++decided_.iterations_granted;
      if (answer->next > answer->iteration) {
        decided_.iterations_skipped += static_cast<std::uint64_t>(answer->next - answer->iteration);
      }
    } else {
      ++(answer->ready ? decided_.queries_ready : decided_.queries_not_ready);
    }
  } else if (std::holds_alternative<NeighboursSet>(body)) {
    ++decided_.graph_changes;
  } else if (std::holds_alternative<PlacementOpened>(body)) {
    ++decided_.placements_opened;
  } else if (const auto* order = std::get_if<AdoptOrdered>(&body)) {
    if (order->result != kNoGroup) ++decided_.results_fetched;
  } else if (const auto* left = std::get_if<WorkerLeft>(&body)) {
    // Who has finished may still be in a round; it is told again when it goes.
    if (left->why != LeftReason::kFinished) decided_.gradients_lost += left->gradients;
  }
}

void Recorder::Note(const Record& record) {
  const RunId run = record.run;
  if (const auto* formed = std::get_if<GroupFormed>(&record.body)) {
    ++groups_[engines_[run]];
    spdlog::debug("run {}: group {}: {}", run, formed->id, formed->reason);
  } else if (const auto* group = std::get_if<GroupEnded>(&record.body)) {
    if (!group->ok) spdlog::info("run {}: group {} failed: {}", run, group->id, group->reason);
  } else if (const auto* started = std::get_if<RunStarted>(&record.body)) {
    engines_[run] = started->engine;
    spdlog::info("run {} of job {} begins, engine {}", run, started->job, started->engine);
  } else if (const auto* joined = std::get_if<WorkerJoined>(&record.body)) {
    spdlog::info("run {}: rank {} (pid {} on {}) trains from iteration {}: {}", run, joined->rank,
                 joined->pid, joined->host_name, joined->iteration, joined->reason);
  } else if (const auto* left = std::get_if<WorkerLeft>(&record.body)) {
    spdlog::info("run {}: rank {} {}: {}", run, left->rank, Word(left->why), left->reason);
  } else if (const auto* link = std::get_if<LinkChanged>(&record.body)) {
    if (link->works) {
      spdlog::info("run {}: the link between ranks {} and {} works: {}", run, link->a, link->b,
                   link->reason);
    } else {
      spdlog::warn("run {}: the link between ranks {} and {} is broken: {}", run, link->a, link->b,
                   link->reason);
    }
  } else if (const auto* late = std::get_if<UpdateDropped>(&record.body)) {
    spdlog::debug("run {}: rank {}: an update is dropped: {}", run, late->rank, late->reason);
  } else if (const auto* set = std::get_if<NeighboursSet>(&record.body)) {
    spdlog::debug("run {}: rank {} has {} neighbours: {}", run, set->rank, set->in.size(),
                  set->reason);
  } else if (const auto* placement = std::get_if<PlacementSet>(&record.body)) {
    spdlog::info("run {}: placement {} of {} shards on {} workers: {}", run, placement->epoch,
                 placement->shards.size(), placement->members.size(), placement->reason);
  } else if (const auto* opened = std::get_if<PlacementOpened>(&record.body)) {
    spdlog::info("run {}: placement {} is open", run, opened->epoch);
  } else if (const auto* adopt = std::get_if<AdoptOrdered>(&record.body)) {
    spdlog::info("run {}: rank {} copies the model of rank {}: {}", run, adopt->rank, adopt->source,
                 adopt->reason);
  } else if (const auto* lost = std::get_if<HistoryLost>(&record.body)) {
    spdlog::warn(
        "run {}: its history has lost its end: rank {} knows of messages that it does not have; "
        "the workers begin a new run with the replicas that they have",
        run, lost->rank);
  } else if (const auto* refused = std::get_if<HelloRefused>(&record.body)) {
    spdlog::warn("run {}: rank {} (pid {} on {}) is refused: {}", run, refused->rank, refused->pid,
                 refused->host_name, refused->reason);
  } else if (const auto* differ = std::get_if<ReplicasDiffer>(&record.body)) {
    if (differ->ranks.empty()) {
      spdlog::info("run {}: all replicas are equal again, after group {}", run, differ->group);
    } else {
      spdlog::warn("run {}: replicas differ after group {}: {}", run, differ->group,
                   differ->reason);
    }
  } else if (const auto* goal = std::get_if<GoalReached>(&record.body)) {
    spdlog::info("run {}: its goal is reached, with {} steps and {} samples", run,
                 goal->trained.steps, goal->trained.samples);
  } else if (const auto* ended = std::get_if<RunEnded>(&record.body)) {
    engines_.erase(run);
    spdlog::info("run {} ended: {}", run, ended->reason);
  }
}

}  // namespace prd
