// One worker of a run, as the run's parts, prdctl and tests read it.
//
// The row of a worker is made of slots. Each slot belongs to one part of the run, which alone
// writes it (SlotColumn); the others read it.
#ifndef PRD_ENGINES_RUN_WORKER_H_
#define PRD_ENGINES_RUN_WORKER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/archive.h"
#include "common/base/ids.h"
#include "common/base/link.h"
#include "common/base/messages.h"
#include "common/base/time.h"

namespace prd {

enum class WorkerState : std::uint8_t {
  kAbsent,
  kJoining,
  kStarting,
  kAdopting,
  kActive,
  kPaused,
  kFinishing,
  kFinal,
};

// Why a worker trains no more.
enum class StopReason : std::uint8_t { kNone, kFinish, kPause };

// Identity and state of the worker (Roster).
struct MemberSlot {
  WorkerState state = WorkerState::kAbsent;
  Incarnation incarnation = 0;
  std::string host;
  std::string host_name;
  std::uint32_t pid = 0;
  std::vector<std::string> endpoints;
  MeshKey mesh_key;
  HasGradients gradients = HasGradients::kHere;
  std::string identity;
  std::uint32_t version = kProtocolVersion;  // of the protocol
  std::uint32_t mesh_version = 0;            // as its Hello says, as the next
  bool returns_at_once = false;
  LinkToken token;
  bool continues = false;   // its replica was trained in the run that this one continues
  bool returns = false;     // its replica has been trained: before it joined, or by its source
  Trained job_trained;      // by all workers of the job before, as its Hello says
  Iteration brought = 0;    // the iteration of the replica that it came with
  Iteration iteration = 0;  // of its replica
  // The worker said Finish or Pause before all others had the common start, or before an order to
  // copy a replica reached it: the stop takes effect after that.
  StopReason stop_held = StopReason::kNone;
  bool resumes = false;         // said Resume, and has no answer
  std::int64_t stopped_at = 0;  // the job's steps in this run when the worker stopped training
  Instant stopped_when;
  Instant told_when;  // when the worker last told what it has trained
  Instant since;      // of the worker's last input
  LinkEnd<ControllerBody> link;
};

// The worker's ready signal (ReadyQueue).
struct ReadySlot {
  // Why the engine does not get the signal yet; a set.
  enum Hold : std::uint8_t {
    // The worker failed in an all-or-none group that still runs, or copies a replica.
    kForReplica = 1,
    kForComparison = 2,  // its replica is compared with others (OnDivergence::kRepair)
    kForOrders = 4,      // another worker copies (Joining::kPause), or the run pauses
    kForBatch = 8,       // others still compute their shares of the step's batch
  };
  std::optional<Ready> signal;  // not answered; the engine has it, or it is held back
  Iteration signalled = 0;      // of the newest signal
  std::uint32_t owed = 0;       // TrainsInRounds: the worker's gradients in no round yet
  std::uint8_t holds = 0;       // of Hold
  bool Held(Hold why) const { return (holds & why) != 0; }
  // The training loop stands until the signal is answered.
  bool Waits() const { return signal && signal->waiting; }
};

// The worker's groups (GroupTable).
struct GroupSlot {
  GroupId group = kNoGroup;       // runs, and the worker has not reported on it
  GroupId last_group = kNoGroup;  // the last group that the worker reported on, and its outcome
  bool last_ok = false;
  GroupId first_group = kNoGroup;  // it can be in no group before this one
};

// What the worker copies (ReplicaCopies).
struct CopySlot {
  // The replica that the worker copied was outdated on arrival: its work on it is dropped.
  bool outdated = false;
  Rank source = kNoRank;         // the worker copies this rank's replica, or its result of `group`
  bool source_gone = false;      // the replica of a worker that has gone since
  int fetches = 0;               // failed attempts to copy that result
  Rank failed_source = kNoRank;  // the worker could not copy this rank's replica
  std::optional<Instant> copies_after;  // it is told to copy one from then on
  // The worker has no replica of the job yet. In a job of rounds such a worker may be kActive. It
  // is stranded if no worker has a replica that it could copy.
  bool no_replica = true;
};

// Workers that have gone, and of which this one has not been told (GoneNotices). They had sent what
// the worker still reads: their parts of this group, or the replica of this rank.
struct GoneSlot {
  std::vector<Incarnation> untold;
  GroupId reads_group = kNoGroup;
  Rank reads_from = kNoRank;
};

struct RunWorker : MemberSlot, ReadySlot, GroupSlot, CopySlot, GoneSlot {
  // In the order of the snapshot's format (run_snapshot.cc).
  void Archive(StateArchive& ar);
};

// One slot of all rows, by rank: what a part may write.
template <typename Slot>
class SlotColumn {
 public:
  explicit SlotColumn(std::vector<RunWorker>* rows) : rows_(rows) {}
  Slot& operator[](Rank rank) const { return (*rows_)[RankIndex(rank)]; }
  Rank size() const { return static_cast<Rank>(rows_->size()); }

 private:
  std::vector<RunWorker>* rows_;
};

}  // namespace prd

#endif  // PRD_ENGINES_RUN_WORKER_H_
