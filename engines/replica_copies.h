// Which worker copies whose replica.
//
// After its first failure a worker is given another source at once, if there is one. After that it
// is given one a second at most: sources may be dead, and their leases run on for a while.
// Not thread safe.
#ifndef PRD_ENGINES_REPLICA_COPIES_H_
#define PRD_ENGINES_REPLICA_COPIES_H_

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "common/base/archive.h"
#include "common/base/ids.h"
#include "common/base/time.h"
#include "engines/divergence_check.h"
#include "engines/link_table.h"
#include "engines/ready_queue.h"
#include "engines/run_context.h"
#include "engines/run_worker.h"

namespace prd {

class ReplicaCopies {
 public:
  ReplicaCopies(const RunContext& run, ReadyQueue* ready, const DivergenceCheck* divergence,
                const LinkTable* links)
      : run_(run),
        slots_(run.roster.Of<CopySlot>()),
        ready_(*ready),
        divergence_(*divergence),
        links_(*links) {}

  // ---- sources ----
  // The iteration of the newest replica among workers that train, or have trained.
  Iteration Newest() const { return std::max(NewestActive(), NewestStopped()); }
  // The same among those that train, and among those that have stopped.
  Iteration NewestActive() const;
  Iteration NewestStopped() const;
  // The worker has a replica that others may copy. `final`: also one that has the final average.
  bool MayGive(Rank rank, bool final = false) const;
  // The best source for this worker, and another one than `avoid` if there is one. kNoRank: none.
  Rank SourceFor(Rank rank, Rank avoid) const;
  // The worker is known not to reach this source.
  bool OutOfReach(Rank rank, Rank source) const { return links_.broken().Has(rank, source); }
  // There are sources for this worker, and it is known to reach none of them.
  bool CutOff(Rank rank) const;
  // The copied replica may include a round that was lost with its source, while others have made
  // another round of that number.
  bool Forked(Rank rank, Iteration iteration) const;
  // Active without a replica, and copies none.
  bool Stranded(Rank rank) const;
  int stranded() const { return stranded_; }
  // Another worker copies this one's replica, or result.
  bool Serves(Rank rank) const;

  // ---- orders ----
  // The worker copies the replica of `source`. Its signal is void, and held back meanwhile.
  void Order(Rank rank, Rank source, const std::string& reason);
  // What the worker has computed or computes is of no use, since others have gone on: it copies a
  // newer replica. If every worker that has one copies a replica itself, or a copy of one that has
  // gone may still succeed, the worker waits. If there is no newer replica, the worker is to join
  // anew with its own (TakeBehind).
  void CatchUp(Rank rank);
  // The worker copies a replica in a second, if that is still needed.
  void Later(Rank rank);
  void EndWait(Rank rank) { slots_[rank].copies_after.reset(); }
  // A worker that waits is given no source yet.
  bool Waits(Rank rank) const;
  // Whether the wait of a worker may be over: ask Due() for each worker then, ascending.
  bool AnyDue();
  // The worker's wait is over: it waits no more.
  bool Due(Rank rank);
  // Workers that are to join anew with their own replicas, since the last call.
  std::vector<Rank> TakeBehind();
  bool any_behind() const { return !behind_.empty(); }
  // When the first wait ends; nullopt: no worker waits.
  const std::optional<Instant>& again() const { return again_; }

  // ---- results ----
  // The copy has ended. Returns its source.
  Rank End(Rank rank);
  // The copy failed: the next source is another one, if there is any.
  void SetFailed(Rank rank, Rank source) { slots_[rank].failed_source = source; }
  void ClearFailed(Rank rank) { slots_[rank].failed_source = kNoRank; }
  // The worker has a replica that is not outdated.
  void HasReplica(Rank rank);
  // outdated: the worker's work on the replica that it copied is dropped.
  void SetReplica(Rank rank, bool none, bool outdated);
  void AddStranded(int workers) { stranded_ += workers; }
  // The worker fetches the result of its round from `source`.
  void BeginFetch(Rank rank, Rank source) { slots_[rank].source = source; }
  // The fetch has ended. Returns how often it has failed in a row.
  int EndFetch(Rank rank, bool ok);
  // The worker is about to go.
  void Forget(Rank rank) { stranded_ -= int{Stranded(rank)}; }
  // This worker has gone. Copies of its replica may still succeed, after others have trained on.
  void SourceGone(Rank rank);

  // Why a worker that joins or resumes copies.
  std::string JoinReason(Rank rank) const;
  // For a worker that copies a replica later.
  std::string WaitWords(Instant now, Rank rank) const;

  void ArchiveAgain(StateArchive& ar) { ar(again_); }
  void ArchiveBehind(StateArchive& ar) { ar(behind_); }
  bool Restore();  // after a load; false: it does not fit the workers

 private:
  // A worker copies the replica of one that has gone: it may have the newest one soon.
  bool MayBring() const;

  const RunContext run_;
  const SlotColumn<CopySlot> slots_;
  ReadyQueue& ready_;
  const DivergenceCheck& divergence_;
  const LinkTable& links_;
  std::optional<Instant> again_;
  std::vector<Rank> behind_;
  int stranded_ = 0;  // workers for which Stranded is true (derived)
};

}  // namespace prd

#endif  // PRD_ENGINES_REPLICA_COPIES_H_
