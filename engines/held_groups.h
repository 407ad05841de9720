// Groups that the engine has formed and that are held back, since some of their members do not
// reach each other and no ring goes around that. No worker and no record knows of them yet.
//
// A held group is announced once its links work, or dropped once other members would help or one of
// its members is not ready any more. Not thread safe.
#ifndef PRD_ENGINES_HELD_GROUPS_H_
#define PRD_ENGINES_HELD_GROUPS_H_

#include <string>
#include <vector>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/time.h"
#include "engines/group_table.h"
#include "engines/link_table.h"
#include "engines/run_context.h"
#include "engines/start_barrier.h"

namespace prd {

class HeldGroups {
 public:
  HeldGroups(const RunContext& run, GroupTable* groups, const LinkTable* links,
             const StartBarrier* start)
      : run_(run), groups_(*groups), links_(*links), start_(*start) {}

  // Announces the group as a ring around broken links, or holds it back.
  void Announce(GroupFormed form);
  // Announces, drops or keeps each held group.
  void Look();
  // A link or a worker has changed: other members may help, in this input.
  void NoteChange() { changed_ = true; }
  void EndInput() { changed_ = false; }
  void Clear() { held_.clear(); }

  bool empty() const { return held_.empty(); }
  // A group of all workers in this state could work.
  bool CanMeet(WorkerState state) const;
  // "group 7 of ranks 0, 1 is held back until it can work ..."; empty: not with this worker.
  std::string Words(Instant now, Rank rank) const;

  void Archive(StateArchive& ar) { ar(held_); }
  bool Restore() const;  // after a load; false: they do not fit the workers

 private:
  bool CanHold(GroupKind kind) const;
  bool CanBegin(const GroupFormed& form) const;
  bool JoinersWait() const;
  bool OthersWouldHelp(const GroupFormed& form) const;
  void Drop(const GroupFormed& form);

  const RunContext run_;
  GroupTable& groups_;
  const LinkTable& links_;
  const StartBarrier& start_;
  std::vector<GroupFormed> held_;
  bool changed_ = false;  // false between two inputs
};

}  // namespace prd

#endif  // PRD_ENGINES_HELD_GROUPS_H_
