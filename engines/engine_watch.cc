#include "engines/engine_watch.h"

#include <algorithm>

#include "common/base/static_schedule.h"
#include "engines/registry.h"

namespace prd {
namespace {

std::unique_ptr<EngineRules> BuiltInRules(const EngineOptions& options) {
  std::unique_ptr<EngineRules> rules;
  EngineOptions copy = options;
  BuiltIn::Visit(copy, [&rules](const auto& of) { rules = of.Rules(); });
  return rules;
}

std::vector<MakeRules>& Makers() {
  static std::vector<MakeRules> makers = {BuiltInRules};
  return makers;
}

}  // namespace

std::unique_ptr<EngineRules> RulesOf(const EngineOptions& options) {
  for (const MakeRules make : Makers()) {
    if (std::unique_ptr<EngineRules> rules = make(options)) return rules;
  }
  PRD_CHECK(!"the engine has rules");
  return nullptr;
}

void RegisterRules(MakeRules make) { Makers().push_back(make); }

void EngineRules::CheckLinks(std::span<const Effect> effects) const {
  for (const GroupFormed& group : GroupsOf(effects)) {
    std::vector<Rank> ranks;
    for (const GroupShare& share : group.members) ranks.push_back(share.rank);
    const auto pair = broken().Among(ranks);
    if (!pair) continue;
    throw Violation("broken-link", NameOf(group) + " has " + RankName(pair->first) + " and " +
                                       RankName(pair->second) + ", which do not reach each other");
  }
}

EngineWatch::Worker& EngineWatch::At(Rank rank) {
  const auto index = RankIndex(rank);
  if (rank < 0) throw Violation("members", "the engine names rank " + std::to_string(rank));
  if (index >= workers_.size()) workers_.resize(index + 1);
  return workers_[index];
}

void EngineWatch::Apply(const Event& event) {
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    At(joined->rank) = {.joined = true};
    followed_.joined.insert(joined->rank);
    followed_.crowded = followed_.crowded || this->joined() > kMaxWatched;
  } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    At(ready->rank).signalled = true;
    At(ready->rank).waiting = ready->ready.waiting;
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    Worker& worker = At(finished->rank);
    worker.group = kNoGroup;
    if (DrawnAhead(plan_) && finished->ok && !worker.passive)
      worker.signalled = worker.waiting = false;
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    for (Worker& worker : workers_) {
      if (worker.group == ended->group) worker.group = kNoGroup;
    }
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    At(left->rank) = {};
    followed_.joined.erase(left->rank);
    followed_.broken.Forget(left->rank);
  } else if (const auto* link = std::get_if<LinkEvent>(&event)) {
    followed_.broken.Set(link->a, link->b, link->works);
  }
}

void EngineWatch::CheckEffect(const Effect& effect, GroupId* id) {
  if (const auto* group = std::get_if<GroupFormed>(&effect)) {
    if (!DrawnAhead(plan_) && group->id != (*id)++) {
      throw Violation("group-ids",
                      GroupName(group->id) + " where " + std::to_string(*id - 1) + " is due");
    }
    return CheckGroup(*group);
  }
  if (const auto* answer = std::get_if<QueryAnswered>(&effect)) {
    Worker& worker = At(answer->rank);
    if (!worker.joined || !worker.signalled || (worker.group != kNoGroup && !DrawnAhead(plan_))) {
      throw Violation("members", "the engine answers rank " + std::to_string(answer->rank) +
                                     ", and no signal of it is open");
    }
    if (!answer->ready || !worker.waiting) worker.signalled = worker.waiting = false;
    return;
  }
  if (const auto* set = std::get_if<ScheduleSet>(&effect)) return CheckSchedule(*set, id);
  if (const auto* set = std::get_if<NeighboursSet>(&effect)) {
    if (At(set->rank).joined) return;
    throw Violation("members", "the engine gives neighbours to rank " + std::to_string(set->rank) +
                                   ", which is not there");
  }
  if (!std::holds_alternative<UpdateDropped>(effect)) return;
  const auto& late = std::get<UpdateDropped>(effect);
  Worker& worker = At(late.rank);
  if (!worker.joined || worker.group != kNoGroup) {
    throw Violation("members", "the engine drops an update of rank " + std::to_string(late.rank) +
                                   (worker.joined ? ", which is in a group" : ", not there"));
  }
  worker.signalled = worker.waiting = false;
}

void EngineWatch::CheckGroup(const GroupFormed& group) {
  const bool ahead = DrawnAhead(plan_) && group.kind == GroupKind::kTrain;
  const bool signal = group.kind != GroupKind::kRound && !ahead;
  for (const GroupShare& share : group.members) {
    Worker& worker = At(share.rank);
    const std::string what = "the engine puts rank " + std::to_string(share.rank) + " into group " +
                             std::to_string(group.id);
    if (worker.group != kNoGroup) {
      throw Violation("one-group", what + ", and it is in group " + std::to_string(worker.group));
    }
    if (!worker.joined || (signal && !worker.waiting)) {
      throw Violation("members", what + (worker.joined ? ", and no signal of it is waiting"
                                                       : ", and it is not there"));
    }
    if (ahead && group.id <= worker.newest) {
      throw Violation("group-ids", what + " after group " + std::to_string(worker.newest));
    }
    worker.group = worker.newest = group.id;
    worker.passive = share.passive;
    if (group.kind == GroupKind::kTrain && !ahead) worker.signalled = worker.waiting = false;
  }
}

void EngineWatch::CheckSchedule(const ScheduleSet& set, GroupId* id) {
  if (set.first != *id || static_cast<std::int64_t>(set.members.size()) != joined() ||
      std::any_of(set.members.begin(), set.members.end(),
                  [this](Rank rank) { return !At(rank).joined; })) {
    throw Violation("schedule", "the engine's from " + std::to_string(set.first) + " on, where " +
                                    std::to_string(*id) + " is due, has " +
                                    std::to_string(set.members.size()) + " members of " +
                                    std::to_string(joined()) + " that have joined");
  }
  *id += kScheduleSpan;
}

void EngineWatch::CheckDrawn() const {
  if (!DrawnAhead(plan_) || joined() > kMaxWatched) return;
  const std::vector<Drawn> drawn = engine_->DrawnGroups();
  std::vector<GroupId> newest(workers_.size(), kNoGroup);
  for (const Drawn& group : drawn) {
    for (const GroupShare& share : group.members) {
      const auto rank = static_cast<std::size_t>(share.rank);
      const std::string what =
          RankName(share.rank) + " is in group " + std::to_string(group.id) + ", which is drawn, ";
      if (rank >= workers_.size() || !workers_[rank].joined) {
        throw Violation("members", what + "and it is not there");
      }
      if (group.id <= std::max(newest[rank], workers_[rank].newest)) {
        throw Violation("group-ids", what + "after a later one");
      }
      newest[rank] = group.id;
    }
  }
}

void EngineWatch::CheckGone(Instant now, const Event& event) const {
  const auto* left = std::get_if<LeftEvent>(&event);
  if (left == nullptr || (HasStore(plan_) && StaysInJob(left->why))) return;
  const std::string why = engine_->Explain(now, left->rank);
  if (why.empty()) return;
  throw Violation("explained",
                  RankName(left->rank) + " has left, and its reason to wait is: " + why);
}

void EngineWatch::Step(Instant now, const Event& event, GroupId* next_group, Effects* out) {
  Apply(event);
  const std::size_t before = out->size();
  GroupId id = *next_group;
  engine_->Step(now, event, next_group, out);
  const std::span<const Effect> effects = std::span(*out).subspan(before);
  for (const Effect& effect : effects) CheckEffect(effect, &id);
  CheckDrawn();
  CheckGone(now, event);
  rules_->Check(
      {.now = now, .event = event, .effects = effects, .joined = joined(), .engine = *engine_});
}

void EngineWatch::Archive(StateArchive& ar) {
  ar(workers_, followed_);
  rules_->Archive(ar);
  engine_->Archive(ar);
}

}  // namespace prd
