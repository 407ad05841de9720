// Job: it ends so that the job goes on in another run, and it continues a run (run_switch.h).
#include <algorithm>
#include <string>
#include <utility>

#include "engines/job.h"
#include "engines/words.h"

namespace prd {

// ---- the run that ends ----

Status Job::CheckSwitch(const OperatorActed& act) const {
  const auto no = [&](const std::string& why, Code code = Code::kFailedPrecondition) {
    return Status(code, "job " + spec_.name + why);
  };
  if (act.spec.empty() || act.next == kNoRun) {
    return no(": a switch names a run, and what is to be in it", Code::kInvalidArgument);
  }
  if (switching()) return no(" is about to go on in another run already: " + switching()->by);
  if (paused()) return no(" is paused, by " + paused()->by + ": resume it first");
  if (clock_.done()) return no(" is done: its workers stop by themselves");
  if (!started_ || Count(State::kStarting) > 0) {
    return no(" waits for a common start; try again once it trains");
  }
  if (Count(State::kFinishing) + Count(State::kFinal) > 0) {
    return no(": some of its workers have finished training, and wait for the others");
  }
  if (Count(State::kActive) == 0) return no(": none of its workers trains now");
  return Status::Ok();
}

void Job::OnSwitch(const OperatorActed& act) {
  switch_.Begin({.spec = act.spec,
                 .next = act.next,
                 .by = act.by + (act.reason.empty() ? "" : ": " + act.reason),
                 .since = now_});
  for (Rank rank = 0; Index(rank) < workers_.size(); ++rank) {
    if (Present(rank)) Send(rank, EndRun{.reason = switch_.Words(now_)});
  }
}

// No worker is training. Paused and not yet joined workers enter the next run unchanged.
bool Job::AtBoundary() const {
  return Count(State::kFinishing) + Count(State::kPaused) + Count(State::kJoining) == live_;
}

void Job::EndForNext() {
  // They would leave at their next boundary, which is here.
  for (const auto& [rank, why] : std::map<Rank, std::string>(draining())) {
    Dismiss(rank, LeftReason::kLeft, why);
  }
  FormerRun next{.run = run_,
                 .identity = identity_.high,
                 .trained = progress().trained,
                 .goal = clock_.goal(),
                 .workers = start_workers_,
                 .launch = admissions_.launch(),
                 .model_hash = admissions_.model_hash(),
                 .ranks = {},
                 .dismissed = dismissed(),
                 .stopped = stopped_by(),
                 .numbers = {.given = numbers_.given(), .averaged = numbers_.last()}};
  for (Rank rank = 0; Index(rank) < workers_.size(); ++rank) {
    const State state = At(rank).state;
    const Tally& tally = tallies()[Index(rank)];
    if (!tally.known) continue;
    const bool awaited = state == State::kFinal || state == State::kJoining;
    // Where the average failed, the worker has copied it; or nobody was left to copy it from.
    const bool has_model =
        state == State::kFinal && (At(rank).last_ok || At(rank).failed_source == kNoRank);
    next.ranks.push_back(
        {.rank = rank, .own = tally.last, .awaited = awaited, .has_model = has_model});
  }
  if (live_ == 0) return End();
  const std::string why = "the job goes on in run " + std::to_string(switching()->next) + ", by " +
                          switching()->by + clock_.TrainedWords();
  SendAway(LeftReason::kLeft, why);
  switch_.End(std::move(next));
  Write(RunEnded{.reason = why, .next = switching()->next});
}

// ---- the run that follows ----

void Job::TakeOver(const FormerRun& former) {
  switch_.TakeOver(former,
                   now_ + (std::int64_t{spec_.lease_ms} + spec_.start_grace_ms) * kMillisecond);
  clock_.TakeOver(former);
  admissions_.TakeOver(former);
  orders_.TakeOver(former.dismissed);
  start_workers_ = spec_.workers > 0 ? spec_.workers : std::max(1, former.workers);
  numbers_ = NumberRounds(former.numbers.given, former.numbers.averaged);
  workers_.resize(clock_.tallies().size());
}

// The common start waits for workers of the run before.
bool Job::Awaits() const { return !begun_ && switch_.Awaits(now_); }

// The worker has the final average of the run before.
bool Job::HasFormerModel(Rank rank) const {
  return !begun_ && workers_[Index(rank)].continues && switch_.HadModel(rank);
}

}  // namespace prd
