// The invariants of engine ad-psgd (Lian et al., ICML 2018; Figure 3 of Prague, Luo et al., ASPLOS
// 2020), beside a list of the pairs that are not through, in the order of their draws.
//
// pairs: a group has the worker that asked for it and one passive member, with weights of one half
// each. It was drawn for a signal that stands, or once more for one whose pair failed or whose
// neighbour left; a signal has one pair at a time, and no pair is drawn for anybody else.
//
// broken-link: as in engines/rules.h.
//
// neighbours: the two are joined, and neighbours in the graph of those who have joined. A worker
// that has no neighbour there that it reaches is told to go on alone, and no other worker is.
//
// atomic: a pair forms as soon as no pair drawn earlier has a member of it that is not through, and
// not before. It says `conflict` if there was such a pair of another asker when it was drawn.
//
// explained: a worker has a reason to wait while its signal stands, and only then.
//
// In jobs of more workers than kMaxWatched, once there have been so many, nothing is checked.
#include "engines/rules.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engines/ad_psgd/options.h"

namespace prd {
namespace {

class AdPsgdRules final : public EngineRules {
 public:
  explicit AdPsgdRules(const AdPsgdOptions& options) : options_(options) {}
  void Check(const Decision& of) override;
  void Archive(StateArchive& ar) override { ar(asking_, undone_, failed_, last_); }

 private:
  struct Pair {
    Rank caller = kNoRank;
    Rank other = kNoRank;
    bool formed = false;
    bool conflict = false;
    std::set<Rank> in;  // those that have not reported and are there
    bool Has(Rank rank) const { return rank == caller || rank == other; }
    void Archive(StateArchive& ar) { ar(caller, other, formed, conflict, in); }
  };

  std::set<Rank> NeighboursOf(Rank rank) const;
  // The workers that the event leaves without a pair for the signal that stands.
  std::set<Rank> Follow(const Event& event);
  void Add(GroupId id, const std::vector<GroupShare>& members, std::set<Rank>* askers);
  void CheckAlone(std::span<const Effect> effects, std::set<Rank>* askers);
  void CheckFormed(std::span<const Effect> effects);
  void CheckWaiting(Instant now, const Engine& engine) const;

  const AdPsgdOptions options_;
  std::set<Rank> asking_;  // their signal stands
  std::map<GroupId, Pair> undone_;
  std::map<GroupId, Rank> failed_;  // for whom, until the group has ended
  GroupId last_ = kNoGroup;
};

std::set<Rank> AdPsgdRules::NeighboursOf(Rank rank) const {
  std::set<Rank> all;
  const std::vector<Rank> ranks(present().begin(), present().end());
  const auto at =
      static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  if (options_.graph.kind == Graph::Kind::kRing) {
    all = {ranks[(at + 1) % ranks.size()], ranks[(at + ranks.size() - 1) % ranks.size()]};
  } else if (options_.graph.kind == Graph::Kind::kComplete) {
    all = present();
  }
  for (const auto& [a, b] : options_.graph.edges) {
    if (a == rank && present().contains(b)) all.insert(b);
    if (b == rank && present().contains(a)) all.insert(a);
  }
  all.erase(rank);
  std::erase_if(all, [&](Rank other) { return broken().Has(rank, other); });
  return all;
}

std::set<Rank> AdPsgdRules::Follow(const Event& event) {
  std::set<Rank> askers;
  if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    asking_.insert(ready->rank);
    askers.insert(ready->rank);
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    const auto found = undone_.find(finished->group);
    if (found == undone_.end()) return askers;
    Pair& pair = found->second;
    pair.in.erase(finished->rank);
    if (pair.caller == finished->rank && finished->ok) asking_.erase(finished->rank);
    if (pair.caller == finished->rank && !finished->ok) failed_[finished->group] = pair.caller;
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    if (failed_.contains(ended->group)) askers.insert(failed_.at(ended->group));
    failed_.erase(ended->group);
    Count("redrawn", std::ssize(askers));
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    asking_.erase(left->rank);
    std::erase_if(failed_, [&](const auto& entry) { return entry.second == left->rank; });
    for (auto& [id, pair] : undone_) {
      pair.in.erase(left->rank);
      if (pair.formed || !pair.Has(left->rank)) continue;
      if (pair.caller != left->rank) askers.insert(pair.caller);
      pair.in.clear();
    }
    Count("redrawn", std::ssize(askers));
  } else if (const auto* link = std::get_if<LinkEvent>(&event); link && !link->works) {
    for (auto& [id, pair] : undone_) {
      if (pair.formed || !pair.Has(link->a) || !pair.Has(link->b)) continue;
      askers.insert(pair.caller);
      pair.in.clear();
    }
    Count("parted", std::ssize(askers));
  }
  std::erase_if(undone_, [](const auto& entry) { return entry.second.in.empty(); });
  return askers;
}

void AdPsgdRules::Add(GroupId id, const std::vector<GroupShare>& members, std::set<Rank>* askers) {
  if (members.size() != 2 || members[0].passive == members[1].passive) {
    throw Violation("pairs", GroupName(id) + " is no pair of one that asked and a passive one");
  }
  if (members[0].weight != 0.5 || members[1].weight != 0.5) {
    throw Violation("pairs", GroupName(id) + " has other weights than one half each");
  }
  Pair pair{.caller = members[members[0].passive ? 1 : 0].rank,
            .other = members[members[0].passive ? 0 : 1].rank};
  if (askers->erase(pair.caller) == 0) {
    throw Violation("pairs", GroupName(id) + " is drawn for " + RankName(pair.caller) +
                                 ", which has not asked, or has a pair");
  }
  if (!NeighboursOf(pair.caller).contains(pair.other)) {
    throw Violation("neighbours", GroupName(id) + " is of " + RankName(pair.caller) + " and " +
                                      RankName(pair.other) + ", which are no neighbours");
  }
  if (id <= last_) throw Violation("pairs", GroupName(id) + " is drawn after a later one");
  for (const auto& [other, before] : undone_) {
    const bool shares = before.in.contains(pair.caller) || before.in.contains(pair.other);
    pair.conflict = pair.conflict || (shares && before.caller != pair.caller);
  }
  last_ = id;
  pair.in = {pair.caller, pair.other};
  Count("conflicts", pair.conflict ? 1 : 0);
  Count("pairs");
  undone_[id] = pair;
}

void AdPsgdRules::CheckAlone(std::span<const Effect> effects, std::set<Rank>* askers) {
  for (const Effect& effect : effects) {
    const auto* answer = std::get_if<QueryAnswered>(&effect);
    if (answer == nullptr) continue;
    if (askers->erase(answer->rank) == 0) {
      throw Violation("pairs", RankName(answer->rank) + " is answered, and has not asked");
    }
    if (!NeighboursOf(answer->rank).empty()) {
      throw Violation("neighbours",
                      RankName(answer->rank) + " is told to go on alone, and has neighbours");
    }
    asking_.erase(answer->rank);
    Count("alone");
  }
  if (askers->empty()) return;
  throw Violation("pairs", RankName(*askers->begin()) + " has asked, and no pair is drawn for it");
}

// All that no earlier pair stands in the way of have been formed now, and no others.
void AdPsgdRules::CheckFormed(std::span<const Effect> effects) {
  std::map<GroupId, GroupFormed> formed;
  for (const GroupFormed& group : GroupsOf(effects)) formed[group.id] = group;
  std::set<Rank> busy;
  for (auto& [id, pair] : undone_) {
    const bool free = !busy.contains(pair.caller) && !busy.contains(pair.other);
    busy.insert(pair.in.begin(), pair.in.end());
    const auto now = formed.find(id);
    const bool forms = now != formed.end();
    if (!pair.formed && !forms && free) {
      throw Violation("atomic", GroupName(id) + " could form and does not");
    }
    if (!forms) continue;
    if (pair.formed || !free) {
      throw Violation("atomic", GroupName(id) + " forms beside an earlier one of a member");
    }
    if (now->second.conflict != pair.conflict) {
      throw Violation("atomic", GroupName(id) + " has the wrong conflict");
    }
    pair.formed = true;
    formed.erase(now);
  }
  if (formed.empty()) return;
  throw Violation("atomic", GroupName(formed.begin()->first) + " forms and was never drawn");
}

void AdPsgdRules::CheckWaiting(Instant now, const Engine& engine) const {
  for (const Rank rank : present()) {
    const auto asks = std::count_if(undone_.begin(), undone_.end(), [&](const auto& entry) {
      return entry.second.caller == rank && entry.second.in.contains(rank);
    });
    const auto fails = std::count_if(failed_.begin(), failed_.end(),
                                     [&](const auto& entry) { return entry.second == rank; });
    if (asks + fails != (asking_.contains(rank) ? 1 : 0)) {
      throw Violation("pairs", RankName(rank) + " waits without a pair of its own, or has one");
    }
    if (engine.Explain(now, rank).empty() == asking_.contains(rank)) {
      throw Violation("explained", RankName(rank) + " waits without a reason, or has one");
    }
  }
}

void AdPsgdRules::Check(const Decision& of) {
  CheckLinks(of.effects);
  if (crowded()) return;
  std::set<Rank> askers = Follow(of.event);
  std::map<GroupId, std::vector<GroupShare>> fresh;
  for (const GroupFormed& group : GroupsOf(of.effects)) {
    if (!undone_.contains(group.id)) fresh[group.id] = group.members;
  }
  std::set<GroupId> drawn;
  for (const Engine::Drawn& group : of.engine.DrawnGroups()) {
    drawn.insert(group.id);
    if (!group.pending || group.reason.empty()) {
      throw Violation("pairs", GroupName(group.id) + " is drawn for nobody");
    }
    if (!undone_.contains(group.id)) fresh[group.id] = group.members;
  }
  for (const auto& [id, members] : fresh) Add(id, members, &askers);
  CheckAlone(of.effects, &askers);
  CheckFormed(of.effects);
  for (const auto& [id, pair] : undone_) {
    if (pair.formed != drawn.contains(id)) continue;
    throw Violation("atomic", GroupName(id) + " is drawn and has formed, or neither");
  }
  CheckWaiting(of.now, of.engine);
}

}  // namespace

// Counts pairs, conflicts, redrawn, alone.
std::unique_ptr<EngineRules> AdPsgdOptions::Rules() const {
  return std::make_unique<AdPsgdRules>(*this);
}

}  // namespace prd
