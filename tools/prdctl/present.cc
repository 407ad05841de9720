#include "tools/prdctl/present.h"

#include <algorithm>
#include <utility>

#include "engines/words.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

// What the records say about a rank, besides the job's own state.
struct Trail {
  std::optional<DurationNs> step_ns;
  Instant heard;
  std::string host_name;
  std::uint32_t pid = 0;
  Iteration iteration = 0;
  std::optional<WorkerLeft> left;
  Instant left_at;
};

using Trails = std::map<Rank, Trail>;

void Follow(const Record& record, Trails* trails) {
  if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    if (from->envelope.rank == kNoRank) return;  // a Hello that asks for any rank
    Trail& trail = (*trails)[from->envelope.rank];
    trail.heard = record.now;
    if (const auto* ready = std::get_if<Ready>(&from->envelope.body)) {
      trail.step_ns = ready->step_ns;
      trail.iteration = ready->iteration;
    }
  } else if (const auto* joined = std::get_if<WorkerJoined>(&record.body)) {
    Trail& trail = (*trails)[joined->rank];
    trail.host_name = joined->host_name;
    trail.pid = joined->pid;
    trail.iteration = joined->iteration;
    trail.left.reset();
  } else if (const auto* left = std::get_if<WorkerLeft>(&record.body)) {
    Trail& trail = (*trails)[left->rank];
    // Who finished and is then released has finished.
    const bool done =
        trail.left && trail.left->why == LeftReason::kFinished && left->why == LeftReason::kLeft;
    if (!done) trail.left = *left;
    trail.left_at = record.now;
  }
}

std::string StateWord(const Job::Worker& worker) {
  if (worker.group != kNoGroup) return "in group " + std::to_string(worker.group);
  if (worker.source != kNoRank) return "adopting";
  switch (worker.state) {
    case Job::State::kAbsent:
      return "gone";
    case Job::State::kJoining:
      return "joining";
    case Job::State::kStarting:
      return "starting";
    case Job::State::kAdopting:
      return "adopting";
    case Job::State::kActive:
      return worker.signal ? "waiting" : "computing";
    case Job::State::kFinishing:
      return "finishing";
    case Job::State::kFinal:
      return "final";
  }
  return "unknown";
}

WorkerRow RowOfHere(const Job& job, Rank rank, Instant now) {
  const Job::Worker& worker = job.workers()[static_cast<std::size_t>(rank)];
  return {.rank = rank,
          .state = StateWord(worker),
          .here = true,
          .iteration = worker.iteration,
          .host_name = worker.host_name,
          .pid = worker.pid,
          .step_ns = worker.signal ? std::optional(worker.signal->step_ns) : std::nullopt,
          .why = job.Explain(now, rank)};
}

WorkerRow RowOfGone(Rank rank, const Trail& trail, Instant now) {
  return {.rank = rank,
          .state = LeftWord(trail.left->why),
          .iteration = trail.iteration,
          .host_name = trail.host_name,
          .pid = trail.pid,
          .step_ns = trail.step_ns,
          .heard_ns = now - trail.heard,
          .why = std::string(LeftWord(trail.left->why)) + " " +
                 words::Duration(now - trail.left_at) + " ago: " + trail.left->reason};
}

}  // namespace

Result<Present> LoadPresent(HistorySource& source, const RunInfo& run) {
  Replayer replayer;
  Trails trails;
  const auto seen = [&](const Record& record) { Follow(record, &trails); };
  // Of a run that has ended, the workers are what its records tell, so all of them are read.
  if (run.ended) {
    PRD_RETURN_IF_ERROR(ReplayAll(source, run.run, &replayer, seen));
  } else {
    PRD_RETURN_IF_ERROR(ReplayToPresent(source, run.run, &replayer, seen));
  }
  const Job& job = *replayer.job();
  Present present{.run = run, .now = job.last_now(), .workers = {}};
  std::map<Rank, DurationNs> silences;
  if (Result<DaemonStatus> daemon = source.Daemon(); daemon.ok()) {
    // A run that has ended is explained as of its end.
    if (!job.ended()) present.now = std::max(present.now, daemon->now);
    for (const WorkerSilence& silence : daemon->silences) {
      if (silence.run == run.run) silences[silence.rank] = silence.silent_ns;
    }
  } else if (daemon.status().code() != Code::kFailedPrecondition) {
    return daemon.status();
  }
  std::map<Rank, WorkerRow> rows;
  for (const auto& [rank, trail] : trails) {
    if (trail.left) rows[rank] = RowOfGone(rank, trail, present.now);
  }
  for (std::size_t i = 0; i < job.workers().size(); ++i) {
    if (job.workers()[i].state == Job::State::kAbsent) continue;
    const auto rank = static_cast<Rank>(i);
    WorkerRow row = RowOfHere(job, rank, present.now);
    const auto trail = trails.find(rank);
    if (trail != trails.end()) {
      if (!row.step_ns) row.step_ns = trail->second.step_ns;
      row.heard_ns = present.now - trail->second.heard;
    }
    if (const auto silence = silences.find(rank); silence != silences.end()) {
      row.heard_ns = silence->second;
    }
    rows[rank] = std::move(row);
  }
  for (auto& [rank, row] : rows) present.workers.push_back(std::move(row));
  return present;
}

}  // namespace prd::ctl
