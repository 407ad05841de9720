// Laws: what is trained, whose replicas the final average is of, the goal.
#include <algorithm>
#include <string>
#include <utility>

#include "engines/violation.h"
#include "tools/sim/laws.h"

namespace prd::sim {

void Laws::OnTold(Run* run, Instant now, Rank rank, const WorkerBody& body) {
  const auto* hello = std::get_if<Hello>(&body);
  const auto* ready = std::get_if<Ready>(&body);
  const auto* progressed = std::get_if<Progressed>(&body);
  if (hello == nullptr && ready == nullptr && progressed == nullptr) return;
  Told& told = run->told[hello != nullptr ? hello->rank : rank];
  const std::int64_t own = hello != nullptr   ? hello->own.steps
                           : ready != nullptr ? ready->own.steps
                                              : progressed->own.steps;
  if (hello != nullptr) told.before = hello->job_trained.steps;
  const std::int64_t more = told.known ? std::max<std::int64_t>(0, own - told.own) : 0;
  run->gained += more;
  const Instant since = std::exchange(told.when, now);
  for (Worker& worker : run->workers) {
    if (hello != nullptr || !worker.stands || worker.stopped_when <= since || now <= since)
      continue;
    // As if the steps had been made evenly.
    const double part =
        static_cast<double>(worker.stopped_when - since) / static_cast<double>(now - since);
    worker.stopped += static_cast<std::int64_t>(part * static_cast<double>(more));
  }
  told.own = std::max(told.known ? told.own : 0, own);
  told.known = true;
}

void Laws::TakeStart(Run* run, const GroupFormed& formed) {
  if (formed.kind != GroupKind::kInitial || run->begun) return;
  for (const GroupShare& share : formed.members) {
    run->before = std::max(run->before, run->told[share.rank].before);
  }
}

void Laws::CheckFinal(const Run& run, const GroupFormed& formed) const {
  if (formed.kind != GroupKind::kFinal) return;
  const auto stopped = [&run](const GroupShare& share) {
    return run.workers[static_cast<std::size_t>(share.rank)].stopped;
  };
  Iteration newest = 0;
  std::int64_t last = 0;
  for (const GroupShare& share : formed.members) {
    newest = std::max(newest, share.iteration);
    last = std::max(last, stopped(share));
  }
  const std::int64_t others = std::ssize(formed.members) - 1;
  const auto missed = [&](const GroupShare& share) {
    const Iteration behind = newest - share.iteration;
    const bool announced = TrainsInGroups(run.plan) && !DrawnAhead(run.plan);
    const std::int64_t since_a_group = announced && behind > 24 ? behind * others : 0;
    return std::max(last - stopped(share), since_a_group * run.plan.every);
  };
  std::int64_t least = missed(formed.members.front());
  for (const GroupShare& share : formed.members) least = std::min(least, missed(share));
  const std::int64_t between_reports = std::int64_t{StepsPerSignal(run.plan)} + RunAhead(run.plan);
  const auto counts = [&](const GroupShare& share) {
    if (ReplicasAreEqual(run.plan)) return share.iteration == newest;
    const std::int64_t more = missed(share) - least;
    return more <= 2 * between_reports * std::ssize(formed.members) || more <= run.gained / 20;
  };
  const auto count = std::count_if(formed.members.begin(), formed.members.end(), counts);
  for (const GroupShare& share : formed.members) {
    if (share.weight == (counts(share) ? 1.0 / static_cast<double>(count) : 0)) continue;
    throw Violation("final-average",
                    RankName(share.rank) + " has weight " + std::to_string(share.weight) +
                        " in it, as one of " + std::to_string(count) + " that count" +
                        (counts(share) ? "" : ", which it does not: ") + formed.reason);
  }
}

void Laws::CheckProgress(const Run& run, const JobProgress& progress) {
  if (progress.trained.steps <= run.before + run.gained && (run.done || !progress.done)) return;
  throw Violation("recorded-first", "a message tells of " + std::to_string(progress.trained.steps) +
                                        " steps, and recorded are " +
                                        std::to_string(run.before + run.gained));
}

}  // namespace prd::sim
