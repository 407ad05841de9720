// Job: who copies whose replica. After its first failure a worker is given another source at once,
// if there is one; and then one a second at most: sources may be dead, and their leases run on for
// a while.
#include <algorithm>
#include <string>

#include "common/base/check.h"
#include "engines/job.h"
#include "engines/words.h"

namespace prd {
namespace {

constexpr DurationNs kCopyPause = kSecond;

}  // namespace

// The iteration of the newest replica among those who train, or have trained.
Iteration Job::Newest() const {
  Iteration newest = 0;
  for (const Worker& w : workers_) {
    const bool has_model =
        w.state == State::kActive || w.state == State::kPaused || w.state == State::kFinishing;
    if (has_model && !w.no_replica) newest = std::max(newest, w.iteration);
  }
  return newest;
}

// The same, among those who have stopped training.
Iteration Job::NewestThatStands() const {
  Iteration newest = 0;
  for (const Worker& w : workers_) {
    const bool stands = w.state == State::kPaused || w.state == State::kFinishing;
    if (stands && !w.no_replica) newest = std::max(newest, w.iteration);
  }
  return newest;
}

Rank Job::SourceFor(Rank rank, Rank avoid) const {
  const Worker& taker = workers_[Index(rank)];
  // In a job of rounds only the newest replicas will do: a worker that has finished stays behind
  // while others train on. A worker that resumes does not copy a replica older than its own.
  const bool only_newest = AllOrNone(GroupKind::kTrain);
  const Iteration own = taker.resumes ? taker.iteration : 0;
  const Iteration newest = only_newest ? std::max(Newest(), own) : 0;
  Rank best = kNoRank;
  int best_score = -1;
  constexpr int kBest = 31;
  for (Rank r = 0; Index(r) < workers_.size() && best_score < kBest; ++r) {
    const Worker& w = workers_[Index(r)];
    const bool has_model = w.state == State::kActive || w.state == State::kPaused ||
                           w.state == State::kFinishing ||
                           (w.state == State::kFinal && taker.state == State::kFinal);
    if (!has_model || r == rank || w.signal_held || w.no_replica || w.source != kNoRank) continue;
    if (taker.state != State::kFinal && w.iteration < newest) continue;
    // One that pauses may not answer before it trains again. One that differs from the others would
    // spread.
    const int score = (divergence_.Differs(r) ? 0 : 16) + (links_.broken().Has(rank, r) ? 0 : 8) +
                      (w.state != State::kPaused ? 4 : 0) + (r != avoid ? 2 : 0) +
                      (w.host == taker.host ? 1 : 0);
    if (score > best_score) {
      best = r;
      best_score = score;
    }
  }
  return best;
}

void Job::OrderAdopt(Rank rank, Rank source, const std::string& reason) {
  Worker& worker = At(rank);
  worker.source = source;
  worker.source_gone = false;
  worker.copies_after.reset();
  worker.signal_held = true;
  worker.since = now_;
  worker.signal.reset();
  SetWithheld(rank, false);
  Write(AdoptOrdered{.rank = rank, .source = source, .reason = reason});
  Introduce(rank, source, true);
  Send(rank, Adopt{.source = Describe(source), .reason = reason});
}

// Tells one of two workers that the other may turn to it from now on, or that it may copy from it.
void Job::Introduce(Rank asks, Rank asked, bool copies) {
  Send(asked, prd::Announce{.members = {Describe(asks)}, .copies = copies});
}

// Ends an incarnation that cannot train on from the replica that it has. It comes back as another,
// with a whole one.
void Job::LeaveBehind(Rank rank, const std::string& why) {
  out_->sends.push_back({rank,
                         {.incarnation = At(rank).incarnation,
                          .body = Refused{.code = Code::kAborted, .reason = why}}});
  Remove(rank, LeftReason::kEvicted, why);
}

// Where all workers share every round, their replicas are equal between two rounds. But a worker
// may bring a newer replica: it has paused, or copied from a worker that has gone since. Workers
// with an older replica come back as new incarnations, and copy the newest.
void Job::LeaveOlderBehind() {
  if (joining_ == Engine::Joining::kAnytime || !NothingRuns()) return;
  const auto trains = [](const Worker& worker) {
    return worker.state == State::kActive && !worker.no_replica && worker.source == kNoRank;
  };
  Iteration newest = 0;
  for (const Worker& worker : workers_) {
    if (trains(worker)) newest = std::max(newest, worker.iteration);
  }
  for (Rank rank = 0; Index(rank) < workers_.size(); ++rank) {
    if (!trains(At(rank)) || At(rank).iteration == newest) continue;
    LeaveBehind(rank, "its model is of iteration " + std::to_string(At(rank).iteration) +
                          ", others have one of " + std::to_string(newest));
  }
}

// Drops what the worker has computed or computes. The worker copies a newer replica. If no worker
// that has one can serve it yet, because each of these copies a replica itself, the worker waits.
// If there is no newer replica, it joins anew with its own (Progress), once the engine is through
// with the event at hand.
void Job::CatchUpOrRejoin(Rank rank) {
  const Rank source = SourceFor(rank, kNoRank);
  if (source != kNoRank && At(source).iteration > At(rank).iteration) {
    return OrderAdopt(rank, source, "others have gone on");
  }
  if (AllOrNone(GroupKind::kTrain) && Newest() > At(rank).iteration) {
    At(rank).signal_held = true;
    return CopyLater(rank);
  }
  behind_.push_back(rank);
}

void Job::CopyLater(Rank rank) {
  Worker& worker = At(rank);
  worker.copies_after = now_ + kCopyPause;
  copies_again_ = std::min(copies_again_.value_or(*worker.copies_after), *worker.copies_after);
}

// This worker has gone. Copies of its replica may still succeed, after others have trained on.
void Job::SourceGone(Rank rank) {
  for (Worker& worker : workers_) {
    if (worker.source == rank && worker.group == kNoGroup) worker.source_gone = true;
  }
}

// The copied replica may include a round that was lost with its source. Others may have made
// another round of that number since.
bool Job::Forked(Rank rank, Iteration iteration) const {
  const Worker& worker = workers_[Index(rank)];
  return worker.source_gone && worker.state != State::kFinal && iteration == Newest() &&
         SourceFor(rank, kNoRank) != kNoRank;
}

// The worker could not copy the replica of `source`.
void Job::CopyFailed(Rank rank, Rank source) {
  Worker& worker = At(rank);
  const bool first = worker.failed_source == kNoRank;
  worker.failed_source = source;
  const Rank other = SourceFor(rank, source);
  if (first && other != kNoRank && other != source) {
    OrderAdopt(rank, other, RankName(source) + " did not answer");
    return;
  }
  if (worker.state == State::kAdopting) {
    SetState(rank, State::kJoining);  // AdmitJoiners gives it another source
  } else if (Stranded(rank)) {
    ++stranded_;  // HelpStranded does, and until then its signal is held back
  } else if (other == kNoRank) {
    worker.signal_held = false;  // nobody has anything better than its own
    return;
  }
  CopyLater(rank);
}

// The worker is not to be given a source yet.
bool Job::CopyPauses(Rank rank) const {
  const Worker& worker = workers_[Index(rank)];
  return worker.copies_after && now_ < *worker.copies_after;
}

// Ends the pauses that are over. Joiners, and workers without a replica, are seen to by those who
// gave them a source before.
void Job::RetryCopies() {
  if (!copies_again_ || now_ < *copies_again_) return;
  copies_again_.reset();
  for (Rank rank = 0; Index(rank) < workers_.size(); ++rank) {
    Worker& worker = At(rank);
    if (!worker.copies_after) continue;
    if (CopyPauses(rank)) {
      copies_again_ = std::min(copies_again_.value_or(*worker.copies_after), *worker.copies_after);
      continue;
    }
    worker.copies_after.reset();
    if (worker.state == State::kJoining || Stranded(rank)) continue;
    const Rank source = SourceFor(rank, worker.failed_source);
    if (source != kNoRank) {
      OrderAdopt(rank, source,
                 worker.failed_source == kNoRank
                     ? "others have gone on"
                     : RankName(worker.failed_source) + " did not answer");
      continue;
    }
    worker.signal_held = false;  // nobody has anything better than its own
    if (worker.stop_held != Stop::kNone) {
      worker.signal.reset();
      PRD_CHECK(OnStop(rank, worker.stop_held).empty());
    } else {
      HandSignal(rank);
    }
  }
}

std::string Job::JoinReason(Rank rank) const {
  const Rank failed = workers_[Index(rank)].failed_source;
  const std::string reason =
      workers_[Index(rank)].resumes ? "others have gone on" : "joins a running job";
  return failed == kNoRank ? reason
                           : reason + "; rank " + std::to_string(failed) + " did not answer";
}

// Of a worker that is to copy a replica later.
std::string Job::CopyWords(Instant now, Rank rank) const {
  const Worker& worker = workers_[Index(rank)];
  const std::string due = words::Duration(std::max<DurationNs>(0, *worker.copies_after - now));
  if (worker.failed_source == kNoRank) {
    return "waiting to copy a newer model: the worker that has it copies one itself; looks again "
           "in " +
           due;
  }
  return RankName(worker.failed_source) +
         " did not answer as its model was copied; copies again in " + due;
}

}  // namespace prd
