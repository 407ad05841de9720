// Job: the job goes on in another run, with another engine or other settings.
//
// The run ends as if its training were over. Each worker ends the step that it is in, and does what
// Finish does: what it owes is reduced, what it has got is applied, shards are read. Once all have,
// they take the final average. Then they are told that their incarnations are over, and say Hello
// to the next run, whose common start takes that average. So no step is lost, and none counts
// twice, whatever the engines are.
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
  if (switching_) return no(" is about to go on in another run already: " + switching_->by);
  if (paused_) return no(" is paused, by " + paused_->by + ": resume it first");
  if (done_) return no(" is done: its workers stop by themselves");
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
  switching_ = Switch{.spec = act.spec,
                      .next = act.next,
                      .by = act.by + (act.reason.empty() ? "" : ": " + act.reason),
                      .since = now_};
  for (Rank rank = 0; Index(rank) < workers_.size(); ++rank) {
    if (Present(rank)) Send(rank, EndRun{.reason = SwitchWords(now_)});
  }
}

// No worker is training. Paused and not yet joined workers enter the next run unchanged.
bool Job::AtBoundary() const {
  return Count(State::kFinishing) + Count(State::kPaused) + Count(State::kJoining) == live_;
}

void Job::EndForNext() {
  // They would leave at their next boundary, which is here.
  for (const auto& [rank, why] : std::map<Rank, std::string>(draining_)) {
    Dismiss(rank, LeftReason::kLeft, why);
  }
  FormerRun next{.run = run_,
                 .identity = identity_.high,
                 .trained = progress().trained,
                 .goal = goal_,
                 .workers = start_workers_,
                 .launch = launch_,
                 .model_hash = model_hash_,
                 .ranks = {},
                 .dismissed = dismissed_,
                 .stopped = stopped_by_,
                 .given = numbers_.given(),
                 .averaged = numbers_.last()};
  for (Rank rank = 0; Index(rank) < workers_.size(); ++rank) {
    const State state = At(rank).state;
    const Tally& tally = tallies_[Index(rank)];
    if (!tally.known) continue;
    const bool awaited = state == State::kFinal || state == State::kJoining;
    // Where the average failed, the worker has copied it; or nobody was left to copy it from.
    const bool has_model =
        state == State::kFinal && (At(rank).last_ok || At(rank).failed_source == kNoRank);
    next.ranks.push_back(
        {.rank = rank, .own = tally.last, .awaited = awaited, .has_model = has_model});
  }
  if (live_ == 0) return End();
  const std::string why = "the job goes on in run " + std::to_string(switching_->next) + ", by " +
                          switching_->by + TrainedWords();
  SendAway(LeftReason::kLeft, why);
  next_ = std::move(next);
  Write(RunEnded{.reason = why, .next = switching_->next});
}

std::string Job::SwitchWords(Instant now) const {
  return "the job goes on in run " + std::to_string(switching_->next) + ", by " + switching_->by +
         (now > switching_->since ? ", " + words::Duration(now - switching_->since) + " ago" : "");
}

// ---- the run that follows ----

void Job::TakeOver(const FormerRun& former) {
  former_ = former;
  before_ = former.trained;
  if (!goal_.known()) goal_ = former.goal;
  launch_ = former.launch;
  model_hash_ = former.model_hash;
  start_workers_ = spec_.workers > 0 ? spec_.workers : std::max(1, former.workers);
  dismissed_ = former.dismissed;
  stopped_by_ = former.stopped;
  numbers_ = NumberRounds(former.given, former.averaged);
  for (const FormerRank& of : former.ranks) {
    workers_.resize(Index(of.rank) + 1);
    tallies_.resize(workers_.size());
    tallies_[Index(of.rank)] = {.known = true, .first = of.own, .last = of.own};
  }
  awaits_until_ = now_ + (std::int64_t{spec_.lease_ms} + spec_.start_grace_ms) * kMillisecond;
}

// The common start waits for workers of the run before.
bool Job::Awaits() const {
  if (!former_.known() || begun_ || now_ >= awaits_until_) return false;
  return std::any_of(former_.ranks.begin(), former_.ranks.end(),
                     [](const FormerRank& of) { return of.awaited; });
}

bool Job::HasFormerModel(Rank rank) const {
  if (begun_ || !workers_[Index(rank)].continues) return false;
  return std::any_of(former_.ranks.begin(), former_.ranks.end(),
                     [rank](const FormerRank& of) { return of.rank == rank && of.has_model; });
}

}  // namespace prd
