// Groups that are drawn and not done, in one order. They stand for Prague's group buffers, lock
// vector and queue of pending groups (Luo et al., ASPLOS 2020, sections 4.1 and 5.1).
//
// Each worker has a line of the undone groups that include it, in the order in which they were
// drawn. A group runs when it is at the front of all its members' lines. That is its lock on each
// member, released when the member is done with the group. All lines are ordered by id, so the
// oldest undone group can always run, and no draw can make a deadlock. Two groups that share a
// worker never run at once.
//
// A group was drawn for a request of its caller. With `shared` it answers each member's request
// (Prague's divisions, section 5.1), and the caller need not be a member. Otherwise it answers the
// caller's request alone, and the other members are passive.
//
// Draw, Done and Drop cost O(members). Dropping a group out of the middle of a line also costs
// O(length of the line). Pure; not thread safe.
#ifndef PRD_ENGINES_GROUP_QUEUE_H_
#define PRD_ENGINES_GROUP_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/archive.h"
#include "common/base/ids.h"

namespace prd {

class GroupQueue {
 public:
  // Far above any number that a job allows.
  static constexpr std::size_t kMaxRanks = std::size_t{1} << 24;

  struct Group {
    GroupId id = kNoGroup;
    Rank caller = kNoRank;
    std::vector<Rank> members;  // in the order given to Draw
    bool shared = false;
    bool conflict = false;      // GroupFormed::conflict
    GroupId behind = kNoGroup;  // the newest group that it had to let go first when it was drawn
    bool formed = false;        // TakeRunnable has given it out
    std::string reason;         // as given to Draw

    bool Passive(Rank rank) const { return !shared && rank != caller; }
    void Archive(StateArchive& ar) {
      ar(id, caller, members, shared, conflict, behind, formed, reason, done);
    }

   private:
    friend class GroupQueue;
    std::vector<std::uint8_t> done;   // by member: through, or gone
    std::uint32_t undone = 0;         // members (derived); 0: this place is free
    std::uint32_t behind_others = 0;  // members at whose front it is not (derived)
  };

  // Adds a group at the end of its members' lines. Ids ascend from Draw to Draw. Returns whether
  // it conflicts: a member was in an undone group that was drawn for another caller. REQUIRES:
  // members are distinct ranks >= 0, the caller among them unless it is shared.
  bool Draw(GroupId id, Rank caller, std::vector<Rank> members, bool shared, std::string reason);

  // The groups that have reached the front of all their members' lines since the last call, by
  // ascending id. They are formed from now on. The pointers are valid until the next Draw; Done and
  // Drop may end their groups.
  std::vector<Group*> TakeRunnable();

  // This member is done with a formed group, which succeeded or failed for it. After the last
  // member the group is gone. REQUIRES: the group is formed, and at the front of the member's line.
  void Done(Rank rank, GroupId id);

  // Takes back a group that is not formed. REQUIRES: it is in the line of this member of it.
  void Drop(Rank member, GroupId id);

  // The worker leaves all groups. Groups with it that are not formed are dropped, and returned by
  // ascending id. It is taken out of a formed group.
  std::vector<Group> Leave(Rank rank);

  // No undone group includes this worker: Prague's empty group buffer.
  bool Empty(Rank rank) const { return Length(rank) == 0; }
  std::size_t Length(Rank rank) const;
  // The i-th group of a worker's line. REQUIRES: i < Length(rank).
  const Group& At(Rank rank, std::size_t i) const;
  const Group& Front(Rank rank) const { return At(rank, 0); }
  // This member of the group has neither reported on it nor gone. REQUIRES: a group in a line.
  bool Waits(const Group& group, std::size_t member) const { return group.done[member] == 0; }

  // This worker's line is used soon: with many workers, reading it is the cost.
  void Prefetch(Rank rank) const {
    const auto index = RankIndex(rank);
    if (index < lines_.size()) __builtin_prefetch(&lines_[index]);
  }

  // All undone groups, by ascending id. For display and tests.
  std::vector<const Group*> All() const;
  std::size_t size() const { return groups_.size() - free_.size(); }

  // Loading fails where lines and groups do not fit together, or a member is not below `ranks`: the
  // length of the owner's table, which its snapshot has paid for.
  void Archive(StateArchive& ar, std::size_t ranks = kMaxRanks);

 private:
  using Place = std::uint32_t;  // in groups_
  struct Line {
    std::vector<Place> places;  // from `first` on
    std::size_t first = 0;
    bool empty() const { return first == places.size(); }
  };

  Line& LineOf(Rank rank) { return lines_[RankIndex(rank)]; }
  Place NewPlace();
  void Append(Place place);
  void PrefetchLines(const std::vector<Rank>& ranks) const;
  // Takes the group out of this member's line.
  void Unlink(Rank rank, Place place);
  void Free(Place place);
  void MakeRunnable(Place place) { runnable_.emplace_back(groups_[place].id, place); }
  Place PlaceIn(Rank rank, GroupId id) const;
  bool Load(std::vector<Group> groups, std::size_t ranks);

  std::vector<Group> groups_;  // by place
  std::vector<Place> free_;
  std::vector<Line> lines_;                          // by rank (derived)
  std::vector<std::pair<GroupId, Place>> runnable_;  // not formed yet (derived)
};

}  // namespace prd

#endif  // PRD_ENGINES_GROUP_QUEUE_H_
