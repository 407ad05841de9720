#include "engines/replica_copies.h"

#include <algorithm>
#include <utility>

#include "engines/words.h"

namespace prd {
namespace {

constexpr DurationNs kCopyPause = kSecond;

bool Stopped(const RunWorker& worker) {
  return worker.state == WorkerState::kPaused || worker.state == WorkerState::kFinishing;
}

}  // namespace

// ---- sources ----

Iteration ReplicaCopies::NewestActive() const {
  Iteration newest = 0;
  for (const RunWorker& worker : run_.roster.rows()) {
    const bool active = worker.state == WorkerState::kActive;
    if (active && !worker.no_replica) newest = std::max(newest, worker.iteration);
  }
  return newest;
}

Iteration ReplicaCopies::NewestStopped() const {
  Iteration newest = 0;
  for (const RunWorker& worker : run_.roster.rows()) {
    if (Stopped(worker) && !worker.no_replica) newest = std::max(newest, worker.iteration);
  }
  return newest;
}

bool ReplicaCopies::MayGive(Rank rank, bool final) const {
  const RunWorker& worker = run_.roster[rank];
  const bool has_model = worker.state == WorkerState::kActive || Stopped(worker) ||
                         (final && worker.state == WorkerState::kFinal);
  return has_model && !worker.Held(ReadySlot::kForReplica) && !worker.no_replica &&
         worker.source == kNoRank;
}

Rank ReplicaCopies::SourceFor(Rank rank, Rank avoid) const {
  const RunWorker& taker = run_.roster[rank];
  const bool final = taker.state == WorkerState::kFinal;
  // In a job of rounds only the newest replicas will do: a worker that has finished stays behind
  // while others train on. A worker that resumes does not copy a replica older than its own.
  const bool only_newest = !final && run_.AllOrNone(GroupKind::kTrain);
  const Iteration own = taker.resumes ? taker.iteration : 0;
  const Iteration newest = only_newest ? std::max(Newest(), own) : 0;
  Rank best = kNoRank;
  int best_score = -1;
  constexpr int kBest = 31;
  for (Rank r = 0; r < run_.roster.size() && best_score < kBest; ++r) {
    const RunWorker& worker = run_.roster[r];
    if (r == rank || !MayGive(r, final)) continue;
    if (!final && worker.iteration < newest) continue;
    // A paused worker may not answer before it trains again. A replica that differs from the others
    // would spread.
    const int score = (divergence_.Differs(r) ? 0 : 16) + (links_.broken().Has(rank, r) ? 0 : 8) +
                      (worker.state != WorkerState::kPaused ? 4 : 0) + (r != avoid ? 2 : 0) +
                      (worker.host == taker.host ? 1 : 0);
    if (score > best_score) {
      best = r;
      best_score = score;
    }
  }
  return best;
}

bool ReplicaCopies::CutOff(Rank rank) const {
  if (!links_.broken().HasAny(rank)) return false;
  const Rank source = SourceFor(rank, kNoRank);
  if (source == kNoRank) return false;
  if (OutOfReach(rank, source)) return true;
  if (!links_.Apart(rank)) return false;
  std::vector<Rank> ring = {rank};
  for (Rank other = 0; other < run_.roster.size(); ++other) {
    if (other != rank && run_.roster[other].state == WorkerState::kActive) ring.push_back(other);
  }
  return RingAround(std::move(ring), links_.broken()).empty();
}

bool ReplicaCopies::Forked(Rank rank, Iteration iteration) const {
  return slots_[rank].source_gone && run_.roster[rank].state != WorkerState::kFinal &&
         iteration == Newest() && SourceFor(rank, kNoRank) != kNoRank;
}

bool ReplicaCopies::Stranded(Rank rank) const {
  const CopySlot& slot = slots_[rank];
  return run_.roster[rank].state == WorkerState::kActive && slot.no_replica &&
         slot.source == kNoRank;
}

bool ReplicaCopies::Serves(Rank rank) const {
  return std::any_of(run_.roster.rows().begin(), run_.roster.rows().end(),
                     [rank](const RunWorker& worker) {
                       return worker.state != WorkerState::kAbsent && worker.source == rank;
                     });
}

// ---- orders ----

void ReplicaCopies::Order(Rank rank, Rank source, const std::string& reason) {
  CopySlot& slot = slots_[rank];
  slot.source = source;
  slot.source_gone = false;
  slot.copies_after.reset();
  run_.roster.Touch(rank);
  ready_.Clear(rank);
  ready_.Hold(rank, ReadySlot::kForReplica);
  run_.log.Write(AdoptOrdered{.rank = rank, .source = source, .reason = reason});
  run_.roster.Introduce(rank, source, true);
  run_.roster.Send(rank, Adopt{.source = run_.roster.Describe(source), .reason = reason});
}

bool ReplicaCopies::MayBring() const {
  for (Rank r = 0; r < slots_.size(); ++r) {
    const bool copies = slots_[r].source != kNoRank && run_.roster[r].group == kNoGroup;
    if (run_.roster[r].state != WorkerState::kAbsent && copies && slots_[r].source_gone)
      return true;
  }
  return false;
}

void ReplicaCopies::CatchUp(Rank rank) {
  const Iteration own = run_.roster[rank].iteration;
  const Rank source = SourceFor(rank, kNoRank);
  if (source != kNoRank && run_.roster[source].iteration > own) {
    return Order(rank, source, "others have gone on");
  }
  if (run_.AllOrNone(GroupKind::kTrain) && (Newest() > own || MayBring())) {
    ready_.Hold(rank, ReadySlot::kForReplica);
    return Later(rank);
  }
  behind_.push_back(rank);
}

void ReplicaCopies::Later(Rank rank) {
  const Instant after = run_.now() + kCopyPause;
  slots_[rank].copies_after = after;
  again_ = std::min(again_.value_or(after), after);
}

bool ReplicaCopies::Waits(Rank rank) const {
  return slots_[rank].copies_after && run_.now() < *slots_[rank].copies_after;
}

bool ReplicaCopies::AnyDue() {
  if (!again_ || run_.now() < *again_) return false;
  again_.reset();
  return true;
}

bool ReplicaCopies::Due(Rank rank) {
  std::optional<Instant>& after = slots_[rank].copies_after;
  if (!after) return false;
  if (Waits(rank)) {
    again_ = std::min(again_.value_or(*after), *after);
    return false;
  }
  after.reset();
  return true;
}

std::vector<Rank> ReplicaCopies::TakeBehind() { return std::exchange(behind_, {}); }

// ---- results ----

Rank ReplicaCopies::End(Rank rank) { return std::exchange(slots_[rank].source, kNoRank); }

void ReplicaCopies::HasReplica(Rank rank) { SetReplica(rank, false, false); }

void ReplicaCopies::SetReplica(Rank rank, bool none, bool outdated) {
  slots_[rank].no_replica = none;
  slots_[rank].outdated = outdated;
}

int ReplicaCopies::EndFetch(Rank rank, bool ok) {
  CopySlot& slot = slots_[rank];
  slot.source = kNoRank;
  slot.fetches = ok ? 0 : slot.fetches + 1;
  return slot.fetches;
}

void ReplicaCopies::SourceGone(Rank rank) {
  for (Rank r = 0; r < slots_.size(); ++r) {
    if (slots_[r].source == rank && run_.roster[r].group == kNoGroup) slots_[r].source_gone = true;
  }
}

// ---- in words ----

std::string ReplicaCopies::JoinReason(Rank rank) const {
  const Rank failed = slots_[rank].failed_source;
  const std::string reason =
      run_.roster[rank].resumes ? "others have gone on" : "joins a running job";
  return failed == kNoRank ? reason
                           : reason + "; rank " + std::to_string(failed) + " did not answer";
}

std::string ReplicaCopies::WaitWords(Instant now, Rank rank) const {
  const CopySlot& slot = slots_[rank];
  const std::string due = words::Duration(std::max<DurationNs>(0, *slot.copies_after - now));
  if (slot.failed_source == kNoRank) {
    return "waiting to copy a newer model: the worker that has it copies one itself; looks again "
           "in " +
           due;
  }
  return RankName(slot.failed_source) +
         " did not answer as its model was copied; copies again in " + due;
}

bool ReplicaCopies::Restore() {
  stranded_ = 0;
  for (Rank rank = 0; rank < slots_.size(); ++rank) stranded_ += int{Stranded(rank)};
  return std::all_of(behind_.begin(), behind_.end(),
                     [this](Rank rank) { return rank >= 0 && rank < slots_.size(); });
}

}  // namespace prd
