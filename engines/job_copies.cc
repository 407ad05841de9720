// Job: orders to copy a replica that have failed, and their repetition. After its first failure a
// worker is given another source at once, if there is one; and then one a second at most: sources
// may be dead, and their leases run on for a while.
#include <algorithm>
#include <string>

#include "common/base/check.h"
#include "engines/job.h"
#include "engines/words.h"

namespace prd {
namespace {

constexpr DurationNs kCopyPause = kSecond;

}  // namespace

// The worker could not copy the replica of `source`.
void Job::CopyFailed(Rank rank, Rank source) {
  Worker& worker = At(rank);
  const bool first = worker.failed_source == kNoRank;
  worker.failed_source = source;
  const Rank other = SourceFor(rank, source);
  if (first && other != kNoRank && other != source) {
    OrderAdopt(rank, other, "rank " + std::to_string(source) + " did not answer");
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
  worker.copies_after = now_ + kCopyPause;
  copies_again_ = std::min(copies_again_.value_or(*worker.copies_after), *worker.copies_after);
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
      OrderAdopt(rank, source, "rank " + std::to_string(worker.failed_source) + " did not answer");
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

// Of a worker that is to copy a replica after a failure.
std::string Job::CopyWords(Instant now, Rank rank) const {
  const Worker& worker = workers_[Index(rank)];
  return "rank " + std::to_string(worker.failed_source) +
         " did not answer as its model was copied; copies again in " +
         words::Duration(std::max<DurationNs>(0, *worker.copies_after - now));
}

}  // namespace prd
