// Groups that the engine has formed and that are held back, since some of their members do not
// reach each other and no ring goes around that. No worker and no record knows of them yet.
//
// A held group is announced once its links work, or dropped once other members would help or one of
// its members is not ready any more. If no group has worked for a lease, most go on without the few
// whose links are in the way (FewInTheWay): these are left behind. So it is with the final average.
// Not thread safe.
#ifndef PRD_ENGINES_HELD_GROUPS_H_
#define PRD_ENGINES_HELD_GROUPS_H_

#include <optional>
#include <string>
#include <utility>
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
  HeldGroups(const RunContext& run, GroupTable* groups, LinkTable* links, const StartBarrier* start)
      : run_(run), groups_(*groups), links_(*links), start_(*start) {}

  // Announces the group as a ring around broken links, or holds it back.
  void Announce(GroupFormed form);
  // Announces, drops or keeps each held group.
  void Look();
  // A link or a worker has changed: other members may help, in this input.
  void NoteChange() { changed_ = true; }
  // A group has failed on a link: others of the same hosts may be broken, too.
  void NoteDoubt() { doubt_ = true; }
  // A group is held back until the links in doubt have been asked for (LinkReports::Survey). Once.
  bool TakeSurvey() { return std::exchange(survey_, false); }
  void EndInput() { changed_ = false; }
  void Clear();

  bool empty() const { return held_.empty(); }
  // When Look is to see whether most go on without a few.
  const std::optional<Instant>& judge_at() const { return judge_at_; }
  // A group of all workers in this state could work.
  bool CanMeet(WorkerState state) const;
  // These wait for each other, and some are out of reach. True once that has been so for a lease,
  // in which none of them has done anything and no group has worked.
  bool GivesUp(const std::vector<Rank>& ranks);
  // All workers in this state are to meet, and cannot. True: most of them can, without the few that
  // have been left behind now.
  bool MeetWithoutFew(WorkerState state);
  // "group 7 of ranks 0, 1 is held back until it can work ..."; empty: not with this worker.
  std::string Words(Instant now, Rank rank) const;

  void Archive(StateArchive& ar) { ar(held_, tried_since_, judge_at_, doubt_); }
  bool Restore() const;  // after a load; false: they do not fit the workers

 private:
  void Hold(GroupFormed form);
  // Until then groups whose members do not all reach each other may yet work.
  Instant GivesUpAt() const;
  // False: nobody.
  bool LeaveFewBehind(const std::vector<Rank>& ranks);
  bool CanHold(GroupKind kind) const;
  bool CanBegin(const GroupFormed& form) const;
  bool JoinersWait() const;
  bool OthersWouldHelp(const GroupFormed& form) const;
  void Drop(const GroupFormed& form);

  const RunContext run_;
  GroupTable& groups_;
  LinkTable& links_;
  const StartBarrier& start_;
  std::vector<GroupFormed> held_;
  std::optional<Instant> tried_since_;  // groups with members that do not reach each other
  std::optional<Instant> judge_at_;
  bool doubt_ = false;
  bool survey_ = false;   // false between two inputs
  bool changed_ = false;  // false between two inputs
};

}  // namespace prd

#endif  // PRD_ENGINES_HELD_GROUPS_H_
