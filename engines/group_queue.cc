#include "engines/group_queue.h"

#include <algorithm>

#include "common/base/check.h"

namespace prd {

GroupQueue::Place GroupQueue::NewPlace() {
  if (free_.empty()) {
    groups_.emplace_back();
    return static_cast<Place>(groups_.size() - 1);
  }
  const Place place = free_.back();
  free_.pop_back();
  return place;
}

bool GroupQueue::Draw(GroupId id, Rank caller, std::vector<Rank> members, bool shared,
                      std::string reason) {
  const Place place = NewPlace();
  Group& group = groups_[place];
  group.id = id;
  group.caller = caller;
  group.members = std::move(members);
  group.shared = shared;
  group.conflict = false;
  group.behind = kNoGroup;
  group.formed = false;
  group.reason = std::move(reason);
  group.done.assign(group.members.size(), 0);
  PrefetchLines(group.members);
  group.undone = static_cast<std::uint32_t>(group.members.size());
  Append(place);
  return group.conflict;
}

// All members' lines at once, then all groups in them, instead of one after another.
void GroupQueue::PrefetchLines(const std::vector<Rank>& ranks) const {
  for (const Rank rank : ranks) {
    if (Length(rank) == 0) continue;
    const Line& line = lines_[RankIndex(rank)];
    __builtin_prefetch(line.places.data() + line.first);
  }
  for (const Rank rank : ranks) {
    if (Length(rank) == 0) continue;
    const Line& line = lines_[RankIndex(rank)];
    __builtin_prefetch(&groups_[line.places[line.first]]);
    __builtin_prefetch(&groups_[line.places.back()]);
  }
}

// To the end of its members' lines.
void GroupQueue::Append(Place place) {
  Group& group = groups_[place];
  group.behind_others = 0;
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    if (group.done[i] != 0) continue;
    const auto index = static_cast<std::size_t>(group.members[i]);
    if (index >= lines_.size()) lines_.resize(index + 1);
    Line& line = lines_[index];
    if (!line.empty()) {
      ++group.behind_others;
      const Group& last = groups_[line.places.back()];
      PRD_CHECK(last.id < group.id);
      if (!group.formed) group.behind = std::max(group.behind, last.id);
    }
    for (std::size_t at = line.first; at < line.places.size() && !group.conflict; ++at) {
      group.conflict = groups_[line.places[at]].caller != group.caller;
    }
    line.places.push_back(place);
  }
  if (group.behind_others == 0 && !group.formed) MakeRunnable(place);
}

std::vector<GroupQueue::Group*> GroupQueue::TakeRunnable() {
  if (!std::is_sorted(runnable_.begin(), runnable_.end())) {
    std::sort(runnable_.begin(), runnable_.end());
  }
  std::vector<Group*> groups;
  groups.reserve(runnable_.size());
  for (const auto& [id, place] : runnable_) {
    groups_[place].formed = true;
    groups.push_back(&groups_[place]);
  }
  runnable_.clear();
  return groups;
}

void GroupQueue::Unlink(Rank rank, Place place) {
  Line& line = LineOf(rank);
  if (line.places[line.first] != place) {
    line.places.erase(std::find(line.places.begin() + static_cast<std::ptrdiff_t>(line.first),
                                line.places.end(), place));
    return;
  }
  ++line.first;
  if (line.empty()) {
    line.places.clear();
    line.first = 0;
    return;
  }
  if (line.first * 2 > line.places.size()) {  // each place is moved once for one that is gone
    line.places.erase(line.places.begin(),
                      line.places.begin() + static_cast<std::ptrdiff_t>(line.first));
    line.first = 0;
  }
  const Place front = line.places[line.first];
  if (--groups_[front].behind_others == 0) MakeRunnable(front);
}

void GroupQueue::Free(Place place) {
  Group& group = groups_[place];
  group.undone = 0;
  group.members.clear();
  group.reason.clear();
  free_.push_back(place);
}

void GroupQueue::Done(Rank rank, GroupId id) {
  PRD_CHECK(!Empty(rank));
  const Line& line = LineOf(rank);
  const Place place = line.places[line.first];
  Group& group = groups_[place];
  PRD_CHECK(group.id == id && group.formed);
  const auto at = std::find(group.members.begin(), group.members.end(), rank);
  group.done[static_cast<std::size_t>(at - group.members.begin())] = 1;
  --group.undone;
  Unlink(rank, place);
  if (groups_[place].undone == 0) Free(place);
}

GroupQueue::Place GroupQueue::PlaceIn(Rank rank, GroupId id) const {
  const Line& line = lines_[RankIndex(rank)];
  for (std::size_t at = line.first; at < line.places.size(); ++at) {
    if (groups_[line.places[at]].id == id) return line.places[at];
  }
  PRD_CHECK(false);
  return 0;
}

void GroupQueue::Drop(Rank member, GroupId id) {
  const Place place = PlaceIn(member, id);
  PRD_CHECK(!groups_[place].formed);
  std::erase_if(runnable_, [place](const auto& entry) { return entry.second == place; });
  // Before its members' next groups come to the front: it is none of theirs any more.
  const std::vector<Rank> members = groups_[place].members;
  for (const Rank rank : members) Unlink(rank, place);
  Free(place);
}

std::vector<GroupQueue::Group> GroupQueue::Leave(Rank rank) {
  std::vector<Group> dropped;
  // From the end: then none of the dropped comes to the front in between.
  while (!Empty(rank) && !groups_[LineOf(rank).places.back()].formed) {
    dropped.push_back(groups_[LineOf(rank).places.back()]);
    Drop(rank, dropped.back().id);
  }
  std::reverse(dropped.begin(), dropped.end());
  if (!Empty(rank)) Done(rank, Front(rank).id);
  return dropped;
}

std::size_t GroupQueue::Length(Rank rank) const {
  const auto index = RankIndex(rank);
  if (rank < 0 || index >= lines_.size()) return 0;
  return lines_[index].places.size() - lines_[index].first;
}

const GroupQueue::Group& GroupQueue::At(Rank rank, std::size_t i) const {
  PRD_CHECK(i < Length(rank));
  const Line& line = lines_[RankIndex(rank)];
  return groups_[line.places[line.first + i]];
}

std::vector<const GroupQueue::Group*> GroupQueue::All() const {
  std::vector<const Group*> all;
  for (const Group& group : groups_) {
    if (group.undone > 0) all.push_back(&group);
  }
  std::sort(all.begin(), all.end(), [](const Group* a, const Group* b) { return a->id < b->id; });
  return all;
}

void GroupQueue::Archive(StateArchive& ar, std::size_t ranks) {
  std::vector<Group> groups;
  if (ar.saving()) {
    for (const Group* group : All()) groups.push_back(*group);
  }
  ar(groups);
  if (!ar.saving() && (!ar.ok() || !Load(std::move(groups), ranks))) ar.Fail();
}

bool GroupQueue::Load(std::vector<Group> groups, std::size_t ranks) {
  groups_.clear();
  free_.clear();
  lines_.clear();
  runnable_.clear();
  GroupId last = kNoGroup;
  for (Group& group : groups) {
    std::vector<Rank> sorted = group.members;
    std::sort(sorted.begin(), sorted.end());
    const bool distinct = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
    if (group.id <= last || !distinct || group.done.size() != sorted.size()) return false;
    if (sorted.empty() || sorted.front() < 0) return false;
    if (static_cast<std::size_t>(sorted.back()) >= ranks) return false;
    const bool member = std::binary_search(sorted.begin(), sorted.end(), group.caller);
    if (!group.shared && !member) return false;
    group.undone = static_cast<std::uint32_t>(std::count(group.done.begin(), group.done.end(), 0));
    if (group.undone == 0 || (!group.formed && group.undone < sorted.size())) return false;
    last = group.id;
    const bool conflict = group.conflict;
    const GroupId behind = group.behind;
    groups_.push_back(std::move(group));
    Append(static_cast<Place>(groups_.size() - 1));
    Group& loaded = groups_.back();
    loaded.conflict = conflict;  // as it was when it was drawn
    loaded.behind = behind;
    // Whatever can run has been formed by the time that a state is saved.
    if (loaded.formed != (loaded.behind_others == 0)) return false;
  }
  runnable_.clear();
  return true;
}

}  // namespace prd
