#include "engines/links.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace prd {
namespace {

// Orders tried at most, and members of a ring for which all may be.
constexpr int kMostTries = 20'000;
constexpr std::size_t kMostSearched = 64;

// Extends a path that begins with ring[0], from place `at` on.
bool Extend(std::vector<Rank>* ring, std::size_t at, const BrokenLinks& broken, int* tries) {
  if (at == ring->size()) return !broken.Has(ring->back(), ring->front());
  for (std::size_t i = at; i < ring->size() && --*tries > 0; ++i) {
    if (broken.Has((*ring)[at - 1], (*ring)[i])) continue;
    const auto first = ring->begin() + static_cast<std::ptrdiff_t>(at);
    const auto chosen = ring->begin() + static_cast<std::ptrdiff_t>(i);
    std::rotate(first, chosen, chosen + 1);  // the others stay in order
    if (Extend(ring, at + 1, broken, tries)) return true;
    std::rotate(first, first + 1, chosen + 1);
  }
  return false;
}

// Tries orders, those with the fewest links first.
std::vector<Rank> Search(std::vector<Rank> ranks, const BrokenLinks& broken) {
  if (ranks.size() > kMostSearched) return {};
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](Rank a, Rank b) { return broken.Of(a).size() > broken.Of(b).size(); });
  int tries = kMostTries;
  return Extend(&ranks, 1, broken, &tries) ? ranks : std::vector<Rank>();
}

}  // namespace

// Palmer's algorithm: where u and v are adjacent and do not reach each other, take two others that
// are adjacent, p and q in this order, such that u reaches p and v reaches q, and turn the part
// from v to p round: u p .. v q. It always ends well where any two that do not reach each other
// reach together as many workers as there are, or more (Ore's theorem).
std::vector<Rank> RingAround(std::vector<Rank> ranks, const BrokenLinks& broken) {
  const Rank first = ranks.front();
  for (std::size_t i = 0; i < ranks.size() && ranks.size() > 1;) {
    const std::size_t next = (i + 1) % ranks.size();
    if (!broken.Has(ranks[i], ranks[next])) {
      ++i;
      continue;
    }
    std::vector<Rank> ring = ranks;  // from v on; u is last
    std::rotate(ring.begin(), ring.begin() + static_cast<std::ptrdiff_t>(next), ring.end());
    std::size_t p = 0;
    while (p + 1 < ring.size() &&
           (broken.Has(ring.back(), ring[p]) || broken.Has(ring.front(), ring[p + 1]))) {
      ++p;
    }
    if (p + 1 == ring.size()) return Search(std::move(ranks), broken);
    std::reverse(ring.begin(), ring.begin() + static_cast<std::ptrdiff_t>(p) + 1);
    ranks = std::move(ring);
    i = 0;
  }
  std::rotate(ranks.begin(), std::find(ranks.begin(), ranks.end(), first), ranks.end());
  return ranks;
}

std::vector<Rank> FewInTheWay(const std::vector<Rank>& ranks, const std::vector<std::string>& hosts,
                              const BrokenLinks& broken) {
  std::map<std::string, std::vector<Rank>> parts;
  for (std::size_t i = 0; i < ranks.size(); ++i) parts[hosts[i]].push_back(ranks[i]);
  if (parts.size() == 1) {
    parts.clear();
    for (const Rank rank : ranks) parts[std::to_string(rank)] = {rank};
  }
  std::vector<Rank> few;
  for (std::vector<Rank> rest = ranks; few.empty() || RingAround(rest, broken).empty();) {
    const auto to_others = [&](const std::vector<Rank>& part) {
      return std::count_if(parts.begin(), parts.end(), [&](const auto& other) {
        return &other.second != &part && std::any_of(part.begin(), part.end(), [&](Rank rank) {
          return !broken.Reaches(rank, other.second);
        });
      });
    };
    auto most = parts.end();
    std::pair<std::ptrdiff_t, std::ptrdiff_t> worst = {0, 0};
    for (auto part = parts.begin(); part != parts.end(); ++part) {
      const std::pair links(to_others(part->second), -std::ssize(part->second));
      if (links.first > 0 && links >= worst) std::tie(most, worst) = std::pair(part, links);
    }
    if (most == parts.end()) return {};
    for (const Rank rank : most->second) {
      std::erase(rest, rank);
      few.push_back(rank);
    }
    parts.erase(most);
    if (2 * rest.size() <= ranks.size()) return {};
  }
  return few;
}

}  // namespace prd
