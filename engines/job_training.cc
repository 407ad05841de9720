// Job: what its workers have trained.
#include <algorithm>
#include <string>

#include "engines/job.h"
#include "engines/job_limits.h"

namespace prd {
namespace {

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

JobProgress Job::progress() const {
  return {.trained = Sum(before_, gained_), .workers = live_, .done = done_};
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

std::string Job::CountReport(Rank rank, const Trained& own) {
  Tally& tally = tallies_[Index(rank)];
  const Trained more{.steps = own.steps - tally.last.steps,
                     .samples = own.samples - tally.last.samples};
  if (!InRange(own) || more.steps < 0 || more.steps > kMaxJump || more.samples < 0 ||
      more.samples > kMaxSamples) {
    return "a report that it has trained " + Text(own) + " so far, after " + Text(tally.last);
  }
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
  if (!steps && !samples) return;
  done_ = true;
  Write(GoalReached{trained});
}

// Until the common start has been made, whoever begins it says what came before.
void Job::TakeStart(const FormGroup& start) {
  if (begun_) return;
  before_ = {};
  for (const GroupShare& share : start.members)
    before_ = Larger(before_, At(share.rank).job_trained);
}

}  // namespace prd
