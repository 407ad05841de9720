#include "server/recorder.h"

#include <algorithm>

#include "common/io/log.h"
#include "config/config.h"
#include "server/meters/run_view.h"

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
    case LeftReason::kFailed:
      return "failed";
  }
  return "is gone";
}

}  // namespace

std::string RefusedWorker(const HelloRefused& refused) {
  const std::string rank = refused.rank == kNoRank ? "a worker" : RankName(refused.rank);
  return rank + " (pid " + std::to_string(refused.pid) + " on " + refused.host_name + ") " +
         (refused.code == Code::kUnavailable ? "is to wait:" : "is refused:");
}

Status Recorder::Append(std::span<const Record> records) {
  PRD_RETURN_IF_ERROR(history_->Append(records));
  for (const Record& record : records) {
    Note(record);
    if (meters_ != nullptr) meters_->Add(record);
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

void Recorder::Count(const QueryAnswered& answer) {
  if (answer.next <= 0) {
    ++(answer.ready ? decided_.queries_ready : decided_.queries_not_ready);
    return;
  }
  ++decided_.iterations_granted;
  const Iteration skipped = std::max<Iteration>(0, answer.next - answer.iteration);
  decided_.iterations_skipped += static_cast<std::uint64_t>(skipped);
}

// For each rank: at once, and then after growing pauses.
void Recorder::NoteNonfinite(const Record& record, const FromWorker& from) {
  const auto* ready = std::get_if<Ready>(&from.envelope.body);
  const auto* progressed = std::get_if<Progressed>(&from.envelope.body);
  const std::uint32_t steps = ready != nullptr        ? ready->nonfinite
                              : progressed != nullptr ? progressed->nonfinite
                                                      : 0;
  if (steps == 0) return;
  const auto [at, first] = nonfinite_.try_emplace({record.run, from.envelope.rank});
  Nonfinite& known = at->second;
  known.steps += steps;
  if (!first) {
    const DurationNs since = record.now - known.told;
    if (since < known.pause.length()) return;
    since > 2 * GrowingPause::kLongest ? known.pause.Restart() : known.pause.Grow();
  }
  known.told = record.now;
  spdlog::warn("run {}: rank {} has made {} {} with values that are not finite (on_nonfinite)",
               record.run, from.envelope.rank, known.steps, known.steps == 1 ? "step" : "steps");
}

// Once, at the common start of so many.
void Recorder::NotePace(RunId run, std::int64_t workers) {
  const auto at = beginning_.find(run);
  if (at == beginning_.end()) return;
  const std::string why = SlowestSetsPace(at->second, static_cast<int>(workers));
  if (!why.empty()) spdlog::warn("run {}: {}", run, why);
  beginning_.erase(at);
}

void Recorder::Note(const Record& record) {
  using Kind = RunLog::Kind;
  using spdlog::fmt_lib::format;
  const RunId run = record.run;
  const auto line = [&](Kind kind, const std::string& text,
                        spdlog::level::level_enum level = spdlog::level::info) {
    log_.Line(level, kind, run, record.now, text);
  };
  constexpr auto kWarn = spdlog::level::warn;
  const meters::Moved moved(record.body);
  if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    NoteNonfinite(record, *from);
    if (const auto* stop = std::get_if<StopJob>(&from->envelope.body)) {
      spdlog::info("run {}: rank {} stops the job{}{}", run, from->envelope.rank,
                   stop->reason.empty() ? "" : ": ", stop->reason);
    }
  } else if (const auto* formed = std::get_if<GroupFormed>(&record.body)) {
    ++groups_[engines_[run]];
    if (formed->kind == GroupKind::kInitial) NotePace(run, std::ssize(formed->members));
    if (formed->kind == GroupKind::kRound) {
      ++decided_.rounds_formed;
      for (const GroupShare& share : formed->members) {
        if (share.weight > 0) ++decided_.round_contributors;
      }
    }
    spdlog::debug("run {}: group {}: {}", run, formed->id, formed->reason);
  } else if (const auto* group = std::get_if<GroupEnded>(&record.body)) {
    if (!group->ok) line(Kind::kGroup, format("group {} failed: {}", group->id, group->reason));
  } else if (const auto* started = std::get_if<RunStarted>(&record.body)) {
    engines_[run] = started->engine;
    const Result<JobSpec> spec = JobSpecFromToml(started->spec);
    if (spec.ok()) beginning_.insert_or_assign(run, spec->engine);
    spdlog::info("run {} of job {} begins, engine {}{}", run, started->job, started->engine,
                 started->former.known() ? format(", after run {}", started->former.run) : "");
  } else if (const WorkerJoined* joined = moved.came) {
    line(Kind::kJoined, format("rank {} (pid {} on {}) trains from iteration {}: {}", joined->rank,
                               joined->pid, joined->host_name, joined->iteration, joined->reason));
  } else if (moved.went != nullptr) {
    decided_.gradients_lost += moved.gradients_lost;
    line(moved.lost ? Kind::kLost : Kind::kLeft,
         format("rank {} {}: {}", moved.went->rank, Word(moved.went->why), moved.went->reason));
  } else if (const auto* link = std::get_if<LinkChanged>(&record.body)) {
    line(Kind::kLink,
         format("the link between ranks {} and {} {}: {}", link->a, link->b,
                link->works ? "works" : "is broken", link->reason),
         link->works ? spdlog::level::info : kWarn);
  } else if (const auto* late = std::get_if<UpdateDropped>(&record.body)) {
    ++decided_.updates_dropped;
    spdlog::debug("run {}: rank {}: an update is dropped: {}", run, late->rank, late->reason);
  } else if (const auto* answer = std::get_if<QueryAnswered>(&record.body)) {
    Count(*answer);
  } else if (const auto* set = std::get_if<NeighboursSet>(&record.body)) {
    ++decided_.graph_changes;
    spdlog::debug("run {}: rank {} has {} neighbours: {}", run, set->rank, set->in.size(),
                  set->reason);
  } else if (const auto* placement = std::get_if<PlacementSet>(&record.body)) {
    line(Kind::kPlacement,
         format("placement {} of {} shards on {} workers: {}", placement->epoch,
                placement->shards.size(), placement->members.size(), placement->reason));
  } else if (const auto* shares = std::get_if<SharesSet>(&record.body)) {
    line(Kind::kShares, format("shares of a batch of {}: {}", shares->batch, shares->reason));
  } else if (const auto* opened = std::get_if<PlacementOpened>(&record.body)) {
    ++decided_.placements_opened;
    line(Kind::kPlacement, format("placement {} is open", opened->epoch));
  } else if (const auto* adopt = std::get_if<AdoptOrdered>(&record.body)) {
    if (adopt->result != kNoGroup) ++decided_.results_fetched;
    line(Kind::kCopy, format("rank {} copies the model of rank {}: {}", adopt->rank, adopt->source,
                             adopt->reason));
  } else if (const auto* lost = std::get_if<HistoryLost>(&record.body)) {
    spdlog::warn(
        "run {}: its history has lost its end: rank {} knows of messages that it does not have; "
        "the workers begin a new run with the replicas that they have",
        run, lost->rank);
  } else if (const auto* refused = std::get_if<HelloRefused>(&record.body)) {
    // A worker that is only to wait comes again.
    const bool waits = refused->code == Code::kUnavailable;
    line(Kind::kRefusal, format("{} {}", RefusedWorker(*refused), refused->reason),
         waits ? spdlog::level::info : kWarn);
  } else if (const auto* differ = std::get_if<ReplicasDiffer>(&record.body)) {
    if (differ->ranks.empty()) {
      line(Kind::kReplicas, format("all replicas are equal again, after group {}", differ->group));
    } else {
      line(Kind::kReplicas,
           format("replicas differ after group {}: {}", differ->group, differ->reason), kWarn);
    }
  } else if (const auto* acted = std::get_if<OperatorActed>(&record.body)) {
    spdlog::info("run {}: {} says {}{}{}{}", run, acted->by, VerbName(acted->verb),
                 acted->rank == kNoRank ? "" : " rank " + std::to_string(acted->rank),
                 acted->host.empty() ? "" : " host " + acted->host,
                 acted->reason.empty() ? "" : ": " + acted->reason);
  } else if (const auto* goal = std::get_if<GoalReached>(&record.body)) {
    spdlog::info("run {}: its goal is reached, with {} steps and {} samples", run,
                 goal->trained.steps, goal->trained.samples);
  } else if (const auto* ended = std::get_if<RunEnded>(&record.body)) {
    engines_.erase(run);
    beginning_.erase(run);
    const auto first = nonfinite_.lower_bound({run, kNoRank});
    const auto to = nonfinite_.lower_bound({run + 1, kNoRank});
    std::string told;
    for (auto at = first; at != to; ++at) {
      told +=
          (told.empty() ? "" : ", ") + format("{} of rank {}", at->second.steps, at->first.second);
    }
    nonfinite_.erase(first, to);
    log_.End(run, record.now);
    const std::string how = ended->next != kNoRun ? "is switched"
                            : ended->finished     ? format("is {}", meters::HowEnded(ended->reason))
                                                  : "ended";
    spdlog::log(told.empty() ? spdlog::level::info : kWarn, "run {} {}: {}{}", run, how,
                ended->reason, told.empty() ? "" : "; with steps that were not finite: " + told);
  }
}

}  // namespace prd
