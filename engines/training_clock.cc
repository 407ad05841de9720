#include "engines/training_clock.h"

#include <algorithm>

#include "common/base/text.h"
#include "engines/run_limits.h"
#include "engines/words.h"

namespace prd {
namespace {

// The sum of two numbers up to kMaxTrained is not above it either.
std::int64_t Sum(std::int64_t a, std::int64_t b) { return std::min(a + b, kMaxTrained); }
Trained Sum(const Trained& a, const Trained& b) {
  return {.steps = Sum(a.steps, b.steps), .samples = Sum(a.samples, b.samples)};
}

Trained Larger(const Trained& a, const Trained& b) {
  return {.steps = std::max(a.steps, b.steps), .samples = std::max(a.samples, b.samples)};
}

Trained Difference(const Trained& a, const Trained& b) {
  return {.steps = a.steps - b.steps, .samples = a.samples - b.samples};
}

std::string Text(const Trained& trained) {
  return std::to_string(trained.steps) + " steps and " + std::to_string(trained.samples) +
         " samples";
}

}  // namespace

void TrainingClock::TakeOver(const FormerRun& former) {
  before_ = former.trained;
  if (!goal_.known()) goal_ = former.goal;
  stopped_by_ = former.stopped;
  for (const FormerRank& of : former.ranks) {
    Grow(static_cast<std::size_t>(of.rank) + 1);
    tallies_.back() = {.known = true, .first = of.own, .last = of.own};
  }
}

Trained TrainingClock::CountHello(Rank rank, const Trained& own) {
  RankTally& tally = tallies_[RankIndex(rank)];
  if (!tally.known) {
    tally = {.known = true, .first = own, .last = own};
    return tally.last;
  }
  const Trained last = Larger(tally.last, own);
  gained_ = Sum(gained_, Difference(last, tally.last));
  tally.last = last;
  return last;
}

std::string TrainingClock::CountReport(Instant now, Rank rank, const Trained& own,
                                       std::uint32_t nonfinite) {
  RankTally& tally = tallies_[RankIndex(rank)];
  const Trained more = Difference(own, tally.last);
  if (!InRange(own) || more.steps < 0 || more.steps > kMaxJump || more.samples < 0 ||
      more.samples > kMaxSamples) {
    return "a report that it has trained " + Text(own) + " so far, after " + Text(tally.last);
  }
  if (nonfinite > kMaxJump) {
    return "a report of " + std::to_string(nonfinite) + " steps that were not finite";
  }
  if (nonfinite > 0) tally.nonfinite_at = now;
  tally.nonfinite += nonfinite;
  gained_ = Sum(gained_, more);
  tally.last = own;
  return {};
}

Trained TrainingClock::BeforeRun(const Trained& told) const {
  return Larger({}, Difference(told, gained_));
}

void TrainingClock::Bring(const Trained& before) { before_ = Larger(before_, before); }

void TrainingClock::Stop(Rank rank, const std::string& reason) {
  if (done_ || !stopped_by_.empty()) return;
  stopped_by_ = "stopped by rank " + std::to_string(rank) +
                (reason.empty() ? "" : ": " + std::string(CutText(reason)));
}

bool TrainingClock::ReachGoal() {
  if (done_) return false;
  const Trained all = trained();
  const bool steps = goal_.steps > 0 && all.steps >= goal_.steps;
  const bool samples = goal_.samples > 0 && all.samples >= goal_.samples;
  done_ = steps || samples || !stopped_by_.empty();
  return done_;
}

Trained TrainingClock::trained() const { return Sum(before_, gained_); }

std::uint64_t TrainingClock::nonfinite() const {
  std::uint64_t steps = 0;
  for (const RankTally& tally : tallies_) steps += tally.nonfinite;
  return steps;
}

std::string TrainingClock::TrainedWords() const {
  const Trained all = trained();
  std::string text;
  if (all.known()) {
    text = "; the job has trained " + std::to_string(all.steps) + " steps" +
           (all.samples > 0 ? ", " + std::to_string(all.samples) + " samples" : "");
  }
  return text + (stopped_by_.empty() ? "" : "; " + stopped_by_);
}

std::string TrainingClock::NonfiniteWords(Instant now, Rank rank) const {
  const RankTally& tally = tallies_[RankIndex(rank)];
  if (tally.nonfinite == 0) return {};
  return "; " + std::to_string(tally.nonfinite) +
         (tally.nonfinite == 1 ? " of its steps was" : " of its steps were") +
         " not finite, the last told " + words::Duration(now - tally.nonfinite_at) + " ago";
}

}  // namespace prd
