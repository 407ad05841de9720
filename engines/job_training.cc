// Job: what its workers have trained.
#include <algorithm>
#include <string>

#include "common/base/text.h"
#include "engines/job.h"
#include "engines/job_limits.h"
#include "engines/words.h"

namespace prd {
namespace {

constexpr std::int64_t kStaleShare = 20;

// Of two numbers that are not above kMaxTrained: nor is the sum.
std::int64_t Sum(std::int64_t a, std::int64_t b) { return std::min(a + b, kMaxTrained); }
Trained Sum(const Trained& a, const Trained& b) {
  return {.steps = Sum(a.steps, b.steps), .samples = Sum(a.samples, b.samples)};
}

Trained Larger(const Trained& a, const Trained& b) {
  return {.steps = std::max(a.steps, b.steps), .samples = std::max(a.samples, b.samples)};
}

std::string Text(const Trained& trained) {
  return std::to_string(trained.steps) + " steps and " + std::to_string(trained.samples) +
         " samples";
}

}  // namespace

// Members of a group that all stop after it learn so from the group. Whoever copies its result must
// not be told before that is there: with an older one it would stop too early.
JobProgress Job::progress() const {
  const bool by_groups = prd::AllOrNone(plan_) && !TrainsInRounds(plan_);
  return {.trained = Sum(before_, gained_),
          .workers = live_,
          .done = done_ && (stopped_ || !by_groups)};
}

// Of a run that ends.
std::string Job::TrainedWords() const {
  const Trained trained = progress().trained;
  std::string text;
  if (trained.known()) {
    text = "; the job has trained " + std::to_string(trained.steps) + " steps" +
           (trained.samples > 0 ? ", " + std::to_string(trained.samples) + " samples" : "");
  }
  return text + (stopped_by_.empty() ? "" : "; " + stopped_by_);
}

std::uint64_t Job::nonfinite() const {
  std::uint64_t steps = 0;
  for (const Tally& tally : tallies_) steps += tally.nonfinite;
  return steps;
}

// Gives what the worker has trained so far: what it says, or what was last told under its rank, if
// that is more. What it did while its controller did not hear it is counted now.
Trained Job::CountHello(Rank rank, const Hello& hello) {
  Tally& tally = tallies_[Index(rank)];
  if (!tally.known) {
    tally = {.known = true, .first = hello.own, .last = hello.own};
    return tally.last;
  }
  const Trained last = Larger(tally.last, hello.own);
  gained_ = Sum(gained_, {.steps = last.steps - tally.last.steps,
                          .samples = last.samples - tally.last.samples});
  tally.last = last;
  LookForGoal();
  return last;
}

std::string Job::CountReport(Rank rank, const Trained& own, std::uint32_t nonfinite) {
  Tally& tally = tallies_[Index(rank)];
  const Trained more{.steps = own.steps - tally.last.steps,
                     .samples = own.samples - tally.last.samples};
  if (!InRange(own) || more.steps < 0 || more.steps > kMaxJump || more.samples < 0 ||
      more.samples > kMaxSamples) {
    return "a report that it has trained " + Text(own) + " so far, after " + Text(tally.last);
  }
  if (nonfinite > kMaxJump) {
    return "a report of " + std::to_string(nonfinite) + " steps that were not finite";
  }
  if (nonfinite > 0) tally.nonfinite_at = now_;
  tally.nonfinite += nonfinite;
  gained_ = Sum(gained_, more);
  tally.last = own;
  LookForGoal();
  return {};
}

void Job::LookForGoal() {
  if (done_ || !begun_) return;
  const Trained trained = progress().trained;
  const bool steps = goal_.steps > 0 && trained.steps >= goal_.steps;
  const bool samples = goal_.samples > 0 && trained.samples >= goal_.samples;
  if (!steps && !samples && stopped_by_.empty()) return;
  done_ = true;
  Write(GoalReached{trained});
}

// The goal is wherever the job is now. Where it has not begun in this run, it is done once it has.
void Job::OnStopJob(Rank rank, const StopJob& stop) {
  if (done_ || !stopped_by_.empty()) return;
  stopped_by_ = "stopped by rank " + std::to_string(rank) +
                (stop.reason.empty() ? "" : ": " + std::string(CutText(stop.reason)));
  LookForGoal();
}

// Of what a worker was told that the job has trained: what came before this run. If a common start
// failed for that worker, others may have trained since, and it was told of that, too.
Trained Job::BeforeRun(const Trained& told) const {
  return Larger({},
                {.steps = told.steps - gained_.steps, .samples = told.samples - gained_.samples});
}

// Until the common start has been made, whoever begins it says what came before. What a worker has
// said counts also if that worker is gone by then: workers have been told of it.
void Job::TakeStart(const GroupFormed& start) {
  if (begun_) return;
  for (const GroupShare& share : start.members)
    before_ = Larger(before_, At(share.rank).job_trained);
}

// ---- the final average ----

// Those whose replicas others have left behind: they count for nothing in the final average, and
// take it. Where replicas are equal by design, all that are not the newest. Elsewhere those whose
// workers stopped so long before the last one that the job has since made more than a twentieth of
// the steps of this run, and more than each worker may be ahead of what it has told, twice.
std::vector<Rank> Job::Stale(const GroupFormed& final) const {
  Iteration newest = 0;
  std::int64_t last = 0;
  for (const GroupShare& share : final.members) {
    newest = std::max(newest, share.iteration);
    last = std::max(last, workers_[Index(share.rank)].stopped_at);
  }
  const std::int64_t told_at_once = std::int64_t{StepsPerSignal(plan_)} + RunAhead(plan_);
  const std::int64_t untold = 2 * told_at_once * std::ssize(final.members);
  const std::int64_t bound = std::max(untold, gained_.steps / kStaleShare);
  std::vector<Rank> stale;
  for (const GroupShare& share : final.members) {
    const bool behind = ReplicasAreEqual(plan_)
                            ? share.iteration < newest
                            : last - workers_[Index(share.rank)].stopped_at > bound;
    if (behind) stale.push_back(share.rank);
  }
  return stale;
}

void Job::FinalWeights(GroupFormed* form) const {
  const std::vector<Rank> stale = Stale(*form);
  std::vector<Rank> count;
  std::int64_t last = 0;
  for (const GroupShare& share : form->members) {
    form->iteration = std::max(form->iteration, share.iteration);
    last = std::max(last, workers_[Index(share.rank)].stopped_at);
    if (!std::binary_search(stale.begin(), stale.end(), share.rank)) count.push_back(share.rank);
  }
  for (GroupShare& share : form->members) {
    const bool counts = std::binary_search(count.begin(), count.end(), share.rank);
    share.weight = counts ? 1.0 / static_cast<double>(count.size()) : 0;
  }
  if (stale.empty()) {
    form->reason = "final average of all " + std::to_string(count.size()) + " workers";
    return;
  }
  const bool equal = ReplicasAreEqual(plan_);
  std::int64_t before = 0;
  for (const Rank rank : stale) {
    const Worker& worker = workers_[Index(rank)];
    before =
        std::max(before, equal ? form->iteration - worker.iteration : last - worker.stopped_at);
  }
  const bool one = stale.size() == 1;
  form->reason = "final average of " + words::Ranks(count) + "; " + words::Ranks(stale) +
                 " stopped " + (one ? "" : "up to ") + std::to_string(before) +
                 (equal ? " iteration" : " step") + (before == 1 ? "" : "s") + " before and " +
                 (one ? "takes" : "take") + " it";
}

}  // namespace prd
