#include "engines/link_table.h"

#include <algorithm>

#include "engines/run_limits.h"
#include "engines/words.h"

namespace prd {
namespace {

LinkTable::Pair Key(Rank a, Rank b) { return {std::min(a, b), std::max(a, b)}; }

}  // namespace

void LinkTable::Break(Rank asks, Rank other, Instant now, const std::string& reason) {
  all_[Key(asks, other)] = {.asks = asks, .since = now, .reason = reason};
  broken_.Set(asks, other, false);
}

void LinkTable::Mend(Rank a, Rank b) {
  all_.erase(Key(a, b));
  broken_.Set(a, b, true);
}

std::vector<Rank> LinkTable::Forget(Rank rank) {
  std::vector<Rank> asked;
  for (const Rank other : broken_.Of(rank)) {
    if (At(rank, other).asks == other) asked.push_back(other);
    Mend(rank, other);
  }
  return asked;
}

void LinkTable::Clear() {
  all_.clear();
  apart_.clear();
  broken_ = {};
}

std::optional<Rank> LinkTable::OldestInExcess(Rank asks) const {
  const std::vector<Rank> probed = ProbedBy(asks);
  if (probed.size() < kMaxBrokenLinks) return std::nullopt;
  return *std::min_element(probed.begin(), probed.end(),
                           [&](Rank a, Rank b) { return At(asks, a).since < At(asks, b).since; });
}

bool LinkTable::Probes(Rank asks, Rank other) const {
  const auto found = all_.find(Key(asks, other));
  return found != all_.end() && found->second.asks == asks;
}

std::vector<Rank> LinkTable::ProbedBy(Rank asks) const {
  std::vector<Rank> probed = broken_.Of(asks);
  std::erase_if(probed, [&](Rank other) { return !Probes(asks, other); });
  return probed;
}

const BrokenLink& LinkTable::At(Rank a, Rank b) const { return all_.at(Key(a, b)); }

std::string LinkTable::Words(Instant now, Rank a, Rank b) const {
  const auto [low, high] = Key(a, b);
  const BrokenLink& link = At(a, b);
  return "the link between ranks " + std::to_string(low) + " and " + std::to_string(high) +
         " is broken for " + words::Duration(now - link.since) + " (" + link.reason + ")";
}

std::string LinkTable::WordsOf(Instant now, Rank rank) const {
  constexpr std::size_t kShown = 3;
  const std::vector<Rank> others = broken_.Of(rank);
  std::string text;
  for (std::size_t i = 0; i < others.size() && i < kShown; ++i) {
    text += "; " + Words(now, rank, others[i]);
  }
  if (others.size() > kShown) {
    text += "; and its links to " + std::to_string(others.size() - kShown) + " more are";
  }
  return text;
}

bool ArrangeAsRing(const BrokenLinks& broken, GroupFormed* form, bool* ring_only) {
  const std::vector<Rank> ranks = RanksOf(*form);
  const auto pair = broken.Among(ranks);
  if (!pair) return true;
  const std::vector<Rank> ring = RingAround(ranks, broken);
  if (ring.empty()) return false;
  std::map<Rank, GroupShare> shares;
  for (const GroupShare& share : form->members) shares[share.rank] = share;
  for (std::size_t i = 0; i < ring.size(); ++i) form->members[i] = shares.at(ring[i]);
  form->reason += "; as a ring around the broken link between ranks " +
                  std::to_string(pair->first) + " and " + std::to_string(pair->second);
  *ring_only = true;
  return true;
}

std::vector<Rank> RanksOf(const GroupFormed& form) {
  std::vector<Rank> ranks;
  ranks.reserve(form.members.size());
  for (const GroupShare& share : form.members) ranks.push_back(share.rank);
  return ranks;
}

}  // namespace prd
