// Groups in prdsim mesh: who is in which, what its members do in it, and what is done when it has
// failed.
//
//   once, hang, prompt, recovers   of mesh_run.h
#ifndef PRD_TOOLS_SIM_MESH_GROUPS_H_
#define PRD_TOOLS_SIM_MESH_GROUPS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/sim/mesh_faults.h"
#include "tools/sim/mesh_group_laws.h"
#include "tools/sim/mesh_world.h"

namespace prd::sim::mesh {

class MeshCopies;
class MeshPulls;

class MeshGroups {
 public:
  // The pointers may be to what is made later.
  MeshGroups(MeshWorld* world, const MeshFaults* faults, MeshGroupLaws* laws, MeshCopies* copies,
             const MeshPulls* pulls)
      : world_(world),
        faults_(faults),
        laws_(laws),
        copies_(copies),
        pulls_(pulls),
        sides_(world->setting.workers) {}

  // A common start of all who are free. Gives the worker whose replica that were, if it is torn:
  // then nobody has what it wants, and there is no group.
  Worker* MakeInitial();
  // A group for training, or a round.
  void MakeGroup();
  // In the background, a virtual replica is taken as soon as the caller is not in `apply`.
  void NoteVirtual(const Worker& worker);
  void OnReduced(Worker* worker, GroupId id, const Status& status,
                 const std::vector<Rank>& unreachable);
  void OnResultFetched(Worker* worker, GroupId id) { laws_->CheckFetched(worker, formed_[id]); }

  // The worker is to begin a group, or has.
  bool Has(const Worker& worker) const { return sides_[worker.number].group.has_value(); }
  // Its caller waits for one, or is not to touch what it reads and writes.
  bool KeepsFromApply(const Worker& worker) const;
  // The changes that it has offered to a group are others from now on: a call ends.
  void ForgetChanges(const Worker& worker);
  // It has a copy of another one's replica.
  void Copied(const Worker& worker);
  // Its process is about to end, with a word to its peers, where nothing else goes wrong.
  void WatchPrompt(const Worker& worker);
  // Its process has ended.
  void Ended(const Worker& worker);
  // It is in nothing any more. Throws Violation.
  void CheckOver(const Worker& worker) const;

  // The newest group.
  bool LastIsOver();
  void CheckLast();

 private:
  static constexpr int kMostTries = 6;  // of one group
  struct Side {
    std::optional<GroupId> group;  // is to begin it, or has
    bool reducing = false;
    GroupId offered_to = kNoGroup;  // whose gradients, or changes, are there
  };

  // Whether a group reads or writes the parameters while it runs.
  bool InPlace() const { return !AveragesInBackground(world_->setting.plan); }
  // Its members have the same gradients to average, where none has a result of all of them.
  void TryAgain(GroupId id);
  double DrawWeight(bool nulls);
  void Join(Formed* formed, const Worker& worker, double weight);
  void Launch(Formed formed);
  void Begin(GroupId id, std::size_t index);
  // The member's replica is as it is to be given.
  void Prepare(Worker* worker, const Formed& formed, Taking* member);
  void CallOffSoon(Worker* worker, GroupId id, std::size_t index);
  void Leave(const Worker& worker);
  void TakeInbox(Worker* worker);
  // What failed here, others may have.
  void FetchResult(Worker* worker, const Formed& formed, bool contributed);

  MeshWorld* world_;
  const MeshFaults* faults_;
  MeshGroupLaws* laws_;
  MeshCopies* copies_;
  const MeshPulls* pulls_;
  std::vector<Side> sides_;  // by worker
  std::map<GroupId, Formed> formed_;
  GroupId last_ = 0;
  Iteration rounds_ = 0;
};

}  // namespace prd::sim::mesh

#endif  // PRD_TOOLS_SIM_MESH_GROUPS_H_
