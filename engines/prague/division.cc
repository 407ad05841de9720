#include "engines/prague/division.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace prd {

namespace {

// `size` distinct numbers below n, each set equally likely (Floyd's algorithm).
std::set<std::size_t> Sample(Prng* random, std::size_t n, std::size_t size) {
  std::set<std::size_t> chosen;
  for (std::size_t i = n - size; i < n; ++i) {
    const auto drawn = static_cast<std::size_t>(random->Below(i + 1));
    if (!chosen.insert(drawn).second) chosen.insert(i);
  }
  return chosen;
}

void Shuffle(Prng* random, std::vector<Rank>* ranks) {
  for (std::size_t i = ranks->size(); i > 1; --i) {
    std::swap((*ranks)[i - 1], (*ranks)[random->Below(i)]);
  }
}

}  // namespace

std::vector<Rank> RandomGroup(Prng* random, const std::vector<Rank>& ranks, Rank caller,
                              std::size_t size) {
  if (size >= ranks.size()) return ranks;
  const auto at = std::lower_bound(ranks.begin(), ranks.end(), caller);
  const auto callers = static_cast<std::size_t>(at - ranks.begin());
  std::vector<Rank> group = {caller};
  for (const std::size_t i : Sample(random, ranks.size() - 1, size - 1)) {
    group.push_back(ranks[i < callers ? i : i + 1]);
  }
  return group;
}

std::vector<Rank> RandomGroupAround(Prng* random, const std::vector<Rank>& ranks, Rank caller,
                                    std::size_t size, const BrokenLinks& broken) {
  std::vector<Rank> group = RandomGroup(random, ranks, caller, size);
  if (!broken.Among(group)) return group;
  std::vector<Rank> others = ranks;
  Shuffle(random, &others);
  group = {caller};
  for (const Rank rank : others) {
    if (group.size() == size) break;
    if (rank != caller && broken.Reaches(rank, group)) group.push_back(rank);
  }
  return group;
}

void Part(std::vector<std::vector<Rank>>* groups, const BrokenLinks& broken) {
  std::vector<Rank> left;
  for (std::vector<Rank>& group : *groups) {
    std::vector<Rank> kept;
    for (const Rank rank : group) (broken.Reaches(rank, kept) ? kept : left).push_back(rank);
    group = std::move(kept);
    if (group.size() > 1) continue;
    left.insert(left.end(), group.begin(), group.end());
    group.clear();
  }
  for (const Rank rank : left) {
    std::vector<Rank>* best = nullptr;
    for (std::vector<Rank>& group : *groups) {
      const bool better = best == nullptr || group.size() < best->size();
      if (!group.empty() && better && broken.Reaches(rank, group)) best = &group;
    }
    best != nullptr ? best->push_back(rank) : groups->push_back({rank});
  }
  std::erase_if(*groups, [](const std::vector<Rank>& group) { return group.size() < 2; });
}

std::vector<std::vector<Rank>> RandomDivision(Prng* random, std::vector<Rank> ranks,
                                              std::size_t size) {
  Shuffle(random, &ranks);
  const std::size_t count = std::max<std::size_t>(1, ranks.size() / size);
  std::vector<std::vector<Rank>> groups;
  groups.reserve(count);
  auto next = ranks.begin();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t members = ranks.size() / count + (i < ranks.size() % count ? 1 : 0);
    const auto end = next + static_cast<std::ptrdiff_t>(members);
    groups.emplace_back(next, end);
    next = end;
  }
  return groups;
}

InterIntraGroups InterIntraDivision(Prng* random, const std::vector<Rank>& ranks,
                                    const std::function<std::int32_t(Rank)>& host_of,
                                    std::size_t size) {
  std::vector<std::pair<std::int32_t, Rank>> sorted;
  sorted.reserve(ranks.size());
  for (const Rank rank : ranks) sorted.emplace_back(host_of(rank), rank);
  std::sort(sorted.begin(), sorted.end());
  InterIntraGroups groups;
  std::vector<Rank> heads;
  for (std::size_t i = 0; i < sorted.size();) {
    std::vector<Rank> locals;
    const std::int32_t host = sorted[i].first;
    for (; i < sorted.size() && sorted[i].first == host; ++i) locals.push_back(sorted[i].second);
    if (locals.size() > 1) groups.intra.push_back(locals);
    std::swap(locals.back(), locals[random->Below(locals.size())]);
    heads.push_back(locals.back());
    locals.pop_back();
    if (locals.size() < 2) continue;
    std::vector<std::vector<Rank>> divided = RandomDivision(random, std::move(locals), size);
    std::move(divided.begin(), divided.end(), std::back_inserter(groups.others));
  }
  groups.heads = RandomDivision(random, std::move(heads), size);
  return groups;
}

}  // namespace prd
