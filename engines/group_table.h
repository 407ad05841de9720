// The groups of a run: announced, reported on by each member, repaired, and ended.
//
// Some groups must be committed by all members or by none: the initial group, the final group, and
// groups that train under plans that are AllOrNone. If any member has the result of such a group,
// the group is committed: members for whom it failed copy the replica of one that has it, or that
// has copied it from a member which has gone since. Members for whom a kRound failed copy its
// result alone, before the round ends. Not thread safe.
#ifndef PRD_ENGINES_GROUP_TABLE_H_
#define PRD_ENGINES_GROUP_TABLE_H_

#include <map>
#include <string>
#include <vector>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "engines/divergence_check.h"
#include "engines/ready_queue.h"
#include "engines/replica_copies.h"
#include "engines/run_context.h"
#include "engines/run_worker.h"
#include "engines/training_clock.h"

namespace prd {

// A group whose members have not all reported.
struct RunningGroup {
  GroupKind kind = GroupKind::kTrain;
  std::vector<GroupShare> members;
  std::vector<Rank> pending;  // not reported yet, or being repaired
  std::vector<Rank> ok;       // have the result; last_ok is false where it was fetched
  std::vector<Rank> failed;   // without it
  Iteration iteration = 0;    // where members continue
  bool compares = false;      // members tell digests of their replicas
  bool last = false;          // its members train no further
  std::vector<ReplicaDigest> digests;
  bool aborted = false;
  std::string failure;  // the first thing that went wrong
  Instant since;
  void Archive(StateArchive& ar);
};

class GroupTable {
 public:
  GroupTable(const RunContext& run, ReadyQueue* ready, ReplicaCopies* copies,
             DivergenceCheck* divergence, TrainingClock* clock)
      : run_(run),
        slots_(run.roster.Of<GroupSlot>()),
        ready_(*ready),
        copies_(*copies),
        divergence_(*divergence),
        clock_(*clock) {}

  // The group begins: its members are told. ring_only: some of them do not reach each other.
  void Announce(GroupFormed form, bool ring_only);
  // A member's report on the group that it is in.
  void Report(Rank rank, const Finished& finished);
  // What became of an order to fetch the result of the worker's round. Returns what is wrong.
  std::string ReportResult(Rank rank, const Adopted& adopted);
  // The worker is gone. `gone`: its row, which is empty now.
  void Leave(Rank rank, const RunWorker& gone, const std::string& reason);
  // A worker has taken the rank: it is in no group before the next one.
  void Enter(Rank rank) { slots_[rank].first_group = next_; }
  // The run ends: all groups fail.
  void EndAll();

  // Running groups by id. A group that is held back is not among them.
  const std::map<GroupId, RunningGroup>& all() const { return groups_; }
  const RunningGroup& At(GroupId id) const { return groups_.at(id); }
  // A running group has, or had, this member: others may still read what it sent.
  bool AnyWith(Rank rank) const;
  GroupId* next() { return &next_; }                // of the next group, for those who form groups
  Instant worked_at() const { return worked_at_; }  // a group of the engine, last, for all members

  void ArchiveNext(StateArchive& ar) { ar(next_); }
  void Archive(StateArchive& ar) { ar(groups_, worked_at_); }

 private:
  bool AnsweredByEnd(const RunningGroup& group, Rank rank) const;
  void Fail(GroupId id, const std::string& why);
  void EndIfDone(GroupId id);
  std::vector<Rank> StillHere(GroupId id, const std::vector<Rank>& ranks) const;
  bool Repair(GroupId id);
  void GiveUpFetch(GroupId id, Rank rank, const std::string& detail);
  void OrderResult(Rank rank, Rank source, GroupId group);
  void Settle(const RunningGroup& group, const std::vector<Rank>& ok,
              const std::vector<Rank>& failed, bool copied);
  std::vector<Rank> Compare(GroupId id, const RunningGroup& group);
  void EndComparison(const RunningGroup& group, const std::vector<Rank>& have);

  const RunContext run_;
  const SlotColumn<GroupSlot> slots_;
  ReadyQueue& ready_;
  ReplicaCopies& copies_;
  DivergenceCheck& divergence_;
  TrainingClock& clock_;
  GroupId next_ = 1;
  std::map<GroupId, RunningGroup> groups_;
  Instant worked_at_;
};

}  // namespace prd

#endif  // PRD_ENGINES_GROUP_TABLE_H_
