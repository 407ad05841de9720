// Prague: why a worker waits, in words.
#include <algorithm>
#include <string>
#include <vector>

#include "common/base/static_schedule.h"
#include "engines/prague/prague.h"
#include "engines/words.h"

namespace prd {

namespace {

std::string Name(const GroupQueue::Group& group) {
  return GroupName(group.id) + " of " + words::Ranks(group.members);
}

}  // namespace

// The members for which an announced group waits.
std::string Prague::WhoIsMissing(Instant now, const GroupQueue::Group& group) const {
  constexpr std::size_t kShownRanks = 8;
  std::vector<Rank> inside;
  std::string text;
  std::size_t missing = 0;
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    if (!queue_.Waits(group, i)) continue;
    const Rank rank = group.members[i];
    // With overlap all take part at once; else once they wait.
    if (options_.overlap || At(rank).waiting) {
      inside.push_back(rank);
    } else if (++missing <= kShownRanks) {
      text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + " computes since " +
              words::Duration(now - At(rank).since);
    }
  }
  if (missing > kShownRanks)
    text += " and " + std::to_string(missing - kShownRanks) + " more compute";
  if (missing > 0) return text;
  return "all have come; not through yet: " + words::Ranks(inside);
}

// What goes before a group that waits for its turn, and which workers that waits for.
std::string Prague::WhoHoldsUp(Instant now, const GroupQueue::Group& group) const {
  const GroupQueue::Group* at = &group;
  std::string text;
  int passed = 0;
  while (!at->formed) {  // ids descend, so this ends
    const GroupQueue::Group* before = nullptr;
    Rank shared = kNoRank;
    for (const Rank rank : at->members) {
      const GroupQueue::Group& front = queue_.Front(rank);
      if (front.id >= at->id || (before != nullptr && front.id >= before->id)) continue;
      before = &front;
      shared = rank;
    }
    if (before == nullptr) return text;
    at = before;
    if (passed++ > 0) continue;
    text = Name(*at) + " goes first with rank " + std::to_string(shared);
  }
  if (passed > 1) text += ", behind " + std::to_string(passed - 1) + " more; now is " + Name(*at);
  return text + ": " + WhoIsMissing(now, *at);
}

std::string Prague::Explain(Instant now, Rank rank) const {
  if (!Joined(rank)) return {};
  if (Is(Generator::kStatic)) return ExplainSchedule(rank);
  const Worker& worker = At(rank);
  if (!worker.waiting) return {};
  if (queue_.Empty(rank)) {
    return "its last group failed; a new one is drawn when all of that have reported";
  }
  const GroupQueue::Group& front = queue_.Front(rank);
  std::string text = front.formed ? "in " + Name(front) + "; " + WhoIsMissing(now, front)
                                  : "waits for " + Name(front) + "; " + WhoHoldsUp(now, front);
  if (!front.Passive(rank)) return text;
  text += "; passive there, drawn for rank " + std::to_string(front.caller);
  for (std::size_t i = 1; i < queue_.Length(rank); ++i) {
    const GroupQueue::Group& own = queue_.At(rank, i);
    if (!own.Passive(rank)) return text + "; then its own " + Name(own);
  }
  return text + "; its own is drawn again when all of the one that failed have reported";
}

std::string Prague::ExplainSchedule(Rank rank) const {
  if (settles_) return "a new schedule is being made, as workers have come or gone";
  const std::vector<std::int32_t> hosts = Hosts();
  const auto self = static_cast<std::size_t>(
      std::lower_bound(joined_.begin(), joined_.end(), rank) - joined_.begin());
  std::string text = "reduces by the static schedule, drawn by itself and not reported:";
  for (int phase = 0; phase < kStaticPhases; ++phase) {
    std::vector<Rank> others;
    for (const std::size_t member : StaticGroup(hosts, static_cast<std::uint64_t>(phase), self)) {
      if (member != self) others.push_back(joined_[member]);
    }
    text += (phase == 0 ? " phase " : "; phase ") + std::to_string(phase) +
            (others.empty() ? ": no sync" : ": with " + words::Ranks(others));
  }
  return text;
}

}  // namespace prd
