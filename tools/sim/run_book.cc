#include "tools/sim/run_book.h"

#include <algorithm>
#include <string>

#include "engines/violation.h"
#include "tools/sim/names.h"

namespace prd::sim {
namespace {

// Steps that end after a worker must have heard of the goal, and do not say so: one may have been
// replaced by a copy of a replica.
constexpr int kMostLate = 3;

std::string Text(const prd::Trained& trained) {
  return std::to_string(trained.steps) + " steps and " + std::to_string(trained.samples) +
         " samples";
}

}  // namespace

void RunBook::Seen(RunId run, const Record& record) {
  if (const auto* ended = std::get_if<RunEnded>(&record.body); ended != nullptr && ended->finished)
    finished_.insert(run);
  if (std::holds_alternative<GoalReached>(record.body)) goals_.emplace(run, world_->now);
  if (const auto* act = std::get_if<OperatorActed>(&record.body);
      act != nullptr && act->verb == OperatorVerb::kSwitch) {
    switched_.emplace(run, world_->now);
  }
  if (const auto* started = std::get_if<RunStarted>(&record.body)) {
    for (const FormerRank& of : started->former.ranks) told_[{record.run, of.rank}] = of.own;
  }
  const auto* from = std::get_if<FromWorker>(&record.body);
  if (from == nullptr || world_->forgot) return;
  const WorkerEnvelope& envelope = from->envelope;
  if (const auto* hello = std::get_if<Hello>(&envelope.body)) {
    prd::Trained& told = told_[{record.run, hello->rank}];
    told.steps = std::max(told.steps, hello->own.steps);
    told.samples = std::max(told.samples, hello->own.samples);
  }
  prd::Trained& told = told_[{record.run, envelope.rank}];
  if (const auto* ready = std::get_if<Ready>(&envelope.body)) told = ready->own;
  if (const auto* progressed = std::get_if<Progressed>(&envelope.body)) told = progressed->own;
  CheckStop(record, envelope);
}

void RunBook::CheckStop(const Record& record, const WorkerEnvelope& envelope) {
  const auto stop = stops_.find({envelope.incarnation, envelope.seq});
  if (stop == stops_.end()) return;
  const prd::Trained own = stop->second;
  stops_.erase(stop);
  const prd::Trained told = told_[{record.run, envelope.rank}];
  if (told == own) return;
  throw Violation("samples", RankName(envelope.rank) + " stops with " + Text(own) +
                                 ", and the history says " + Text(told));
}

void RunBook::Enters(std::uint32_t worker, RunId run, RunId former, std::uint64_t launch) {
  const auto over = finished_.lower_bound(former);  // the first finished run that is not older
  const bool known = over != finished_.end() && (*over == former || !world_->forgot);
  if (former != kNoRun && known && *over < run) {
    throw Violation("run-identity", WorkerName(worker) + " enters run " + std::to_string(run) +
                                        " with a replica of run " + std::to_string(former) +
                                        ", and workers have finished run " + std::to_string(*over));
  }
  const auto [first, fresh] = launches_.try_emplace(run, launch);
  if (fresh || first->second == launch) return;
  // A controller that has forgotten who entered its run, and that they are gone, begins it with
  // others.
  if (world_->forgot) return static_cast<void>(first->second = launch);
  throw Violation("launches", WorkerName(worker) + " of launch " + std::to_string(launch) +
                                  " enters run " + std::to_string(run) + " of launch " +
                                  std::to_string(first->second));
}

void RunBook::Trained(std::int64_t samples, bool step) {
  all_.steps += step ? 1 : 0;
  all_.samples += samples;
}

void RunBook::Stops(Incarnation incarnation, Seq seq, const prd::Trained& own) {
  stops_.try_emplace({incarnation, seq}, own);
}

// From when on all workers must have heard of what is known since then.
Instant RunBook::Quiet(Instant since) const {
  const Instant faults{FromMs(world_->workload.faults.until_ms)};
  return std::max({since, world_->disturbed_until, faults}) + 2 * world_->LeaseNs();
}

void RunBook::Stepped(std::uint32_t worker, RunId run, Instant begun, bool done,
                      const prd::Trained& told) {
  if (world_->forgot) return;
  if (told.steps > all_.steps || told.samples > all_.samples) {
    throw Violation("samples", WorkerName(worker) + " is told that the job has trained " +
                                   Text(told) + ", where all workers have " + Text(all_));
  }
  const auto switched = switched_.find(run);
  if (switched != switched_.end() && begun >= Quiet(switched->second)) {
    throw Violation("switch-told", WorkerName(worker) + " trains on in run " + std::to_string(run) +
                                       ", which an operator has ended");
  }
  const auto goal = goals_.find(run);
  if (done || goal == goals_.end()) {
    late_[worker] = 0;
    return;
  }
  if (begun < Quiet(goal->second) || ++late_[worker] < kMostLate) return;
  throw Violation("goal", WorkerName(worker) + " trains on and is not told that the goal of run " +
                              std::to_string(run) + " is reached");
}

}  // namespace prd::sim
