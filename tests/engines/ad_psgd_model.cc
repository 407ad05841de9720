#include "tests/engines/ad_psgd_model.h"

#include <algorithm>

namespace prd {

namespace {

std::string Name(GroupId id) { return "group " + std::to_string(id); }

}  // namespace

std::set<Rank> AdPsgdModel::NeighboursOf(Rank rank) const {
  std::set<Rank> all;
  const std::vector<Rank> ranks(present_.begin(), present_.end());
  const auto at =
      static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  if (options_.graph.kind == Graph::Kind::kRing) {
    all = {ranks[(at + 1) % ranks.size()], ranks[(at + ranks.size() - 1) % ranks.size()]};
  } else if (options_.graph.kind == Graph::Kind::kComplete) {
    all = present_;
  }
  for (const auto& [a, b] : options_.graph.edges) {
    if (a == rank && present_.contains(b)) all.insert(b);
    if (b == rank && present_.contains(a)) all.insert(a);
  }
  all.erase(rank);
  return all;
}

std::set<Rank> AdPsgdModel::Follow(const Event& event) {
  std::set<Rank> askers;
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    present_.insert(joined->rank);
  } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    asking_.insert(ready->rank);
    askers.insert(ready->rank);
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    Pair& pair = undone_.at(finished->group);
    pair.in.erase(finished->rank);
    if (pair.caller == finished->rank && finished->ok) asking_.erase(finished->rank);
    if (pair.caller == finished->rank && !finished->ok) failed_[finished->group] = pair.caller;
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    if (failed_.contains(ended->group)) askers.insert(failed_.at(ended->group));
    failed_.erase(ended->group);
    redrawn_ += static_cast<int>(askers.size());
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    present_.erase(left->rank);
    asking_.erase(left->rank);
    std::erase_if(failed_, [&](const auto& entry) { return entry.second == left->rank; });
    for (auto& [id, pair] : undone_) {
      pair.in.erase(left->rank);
      if (pair.formed || !pair.Has(left->rank)) continue;
      if (pair.caller != left->rank) askers.insert(pair.caller);
      pair.in.clear();
    }
    redrawn_ += static_cast<int>(askers.size());
  }
  std::erase_if(undone_, [](const auto& entry) { return entry.second.in.empty(); });
  return askers;
}

std::string AdPsgdModel::Add(GroupId id, const std::vector<GroupShare>& members,
                             std::set<Rank>* askers) {
  if (members.size() != 2 || members[0].passive == members[1].passive) {
    return Name(id) + " is no pair of one who asked and a passive one";
  }
  if (members[0].weight != 0.5 || members[1].weight != 0.5) return Name(id) + " is no average";
  Pair pair{.caller = members[members[0].passive ? 1 : 0].rank,
            .other = members[members[0].passive ? 0 : 1].rank};
  if (askers->erase(pair.caller) == 0) return Name(id) + " was asked for by nobody";
  if (!NeighboursOf(pair.caller).contains(pair.other)) return Name(id) + " is of no neighbours";
  if (id <= last_) return Name(id) + " is drawn after a later one";
  for (const auto& [other, before] : undone_) {
    const bool shares = before.in.contains(pair.caller) || before.in.contains(pair.other);
    pair.conflict = pair.conflict || (shares && before.caller != pair.caller);
  }
  last_ = id;
  pair.in = {pair.caller, pair.other};
  conflicts_ += pair.conflict ? 1 : 0;
  ++pairs_;
  undone_[id] = pair;
  return "";
}

// All that no earlier pair stands in the way of have been formed now, and no others.
std::string AdPsgdModel::CheckFormed(const Effects& effects) {
  std::map<GroupId, FormGroup> formed;
  for (const FormGroup& group : GroupsOf(effects)) formed[group.id] = group;
  std::set<Rank> busy;
  for (auto& [id, pair] : undone_) {
    const bool free = !busy.contains(pair.caller) && !busy.contains(pair.other);
    busy.insert(pair.in.begin(), pair.in.end());
    const auto now = formed.find(id);
    if (pair.formed != (now == formed.end() && free)) {
      return Name(id) + (free ? " could run and does not" : " runs beside another one of a member");
    }
    if (now == formed.end()) continue;
    if (!free) return Name(id) + " runs beside another one of a member";
    if (now->second.conflict != pair.conflict) return Name(id) + " has the wrong conflict";
    pair.formed = true;
    formed.erase(now);
  }
  return formed.empty() ? "" : Name(formed.begin()->first) + " is formed and was never drawn";
}

std::string AdPsgdModel::CheckWaiting(Instant now) const {
  for (const Rank rank : present_) {
    const auto asks = std::count_if(undone_.begin(), undone_.end(), [&](const auto& entry) {
      return entry.second.caller == rank && entry.second.in.contains(rank);
    });
    const auto fails = std::count_if(failed_.begin(), failed_.end(),
                                     [&](const auto& entry) { return entry.second == rank; });
    const std::string name = "rank " + std::to_string(rank);
    if (asks + fails != (asking_.contains(rank) ? 1 : 0)) return name + " has no pair of its own";
    if (engine_->Explain(now, rank).empty() == asking_.contains(rank)) {
      return name + " waits without a word, or the other way round";
    }
  }
  return "";
}

std::string AdPsgdModel::Check(const Applied& applied) {
  std::set<Rank> askers = Follow(applied.event);
  std::map<GroupId, std::vector<GroupShare>> fresh;
  for (const FormGroup& group : GroupsOf(applied.effects)) {
    if (!undone_.contains(group.id)) fresh[group.id] = group.members;
  }
  std::set<GroupId> drawn;
  for (const Engine::Drawn& group : engine_->DrawnGroups()) {
    drawn.insert(group.id);
    if (!group.pending || group.reason.empty()) return Name(group.id) + " is drawn for nobody";
    if (!undone_.contains(group.id)) fresh[group.id] = group.members;
  }
  for (const auto& [id, members] : fresh) {
    if (auto wrong = Add(id, members, &askers); !wrong.empty()) return wrong;
  }
  for (const Effect& effect : applied.effects) {
    const auto* answer = std::get_if<Answer>(&effect);
    if (answer == nullptr) continue;
    if (askers.erase(answer->rank) == 0) return "an answer to nobody";
    if (!NeighboursOf(answer->rank).empty()) return "who has a neighbour goes on alone";
    asking_.erase(answer->rank);
    ++alone_;
  }
  if (!askers.empty()) return "rank " + std::to_string(*askers.begin()) + " has asked for nothing";
  if (auto wrong = CheckFormed(applied.effects); !wrong.empty()) return wrong;
  for (const auto& [id, pair] : undone_) {
    if (pair.formed == drawn.contains(id)) return Name(id) + " is drawn and formed, or neither";
  }
  return CheckWaiting(applied.now);
}

}  // namespace prd
