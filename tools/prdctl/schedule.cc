#include "tools/prdctl/schedule.h"

#include <algorithm>
#include <set>

#include "common/base/static_schedule.h"

namespace prd::ctl {

std::vector<std::vector<Rank>> ScheduleRow::Groups(int phase) const {
  std::vector<std::vector<Rank>> groups;
  for (const StaticMembers& members : StaticGroups(set.hosts, static_cast<std::uint64_t>(phase))) {
    std::vector<Rank>& ranks = groups.emplace_back();
    for (const std::size_t member : members) ranks.push_back(set.members[member]);
  }
  return groups;
}

std::vector<Rank> ScheduleRow::Idle(int phase) const {
  std::set<Rank> idle(set.members.begin(), set.members.end());
  for (const std::vector<Rank>& group : Groups(phase)) {
    for (const Rank rank : group) idle.erase(rank);
  }
  return {idle.begin(), idle.end()};
}

void ScheduleTracker::Add(const Record& record) {
  if (const auto* set = std::get_if<ScheduleSet>(&record.body)) {
    if (set->members.size() != set->hosts.size()) return;  // from a damaged history
    End(record.now);
    current_ = {.set = *set, .since = record.now, .until = std::nullopt};
  } else if (std::holds_alternative<RunEnded>(record.body)) {
    End(record.now);
    ended_ = true;
  }
}

void ScheduleTracker::End(Instant now) {
  if (!current_) return;
  current_->until = now;
  const auto length = [](const ScheduleRow& row) { return *row.until - row.since; };
  if (!longest_ || length(*current_) > length(*longest_)) longest_ = current_;
  current_.reset();
}

const ScheduleRow* ScheduleTracker::Shown() const {
  const std::optional<ScheduleRow>& shown = ended_ ? longest_ : current_;
  return shown ? &*shown : nullptr;
}

}  // namespace prd::ctl
