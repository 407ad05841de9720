#include "tools/sim/engine_watch.h"

#include "tools/sim/all_reduce_rules.h"
#include "tools/sim/p_reduce_rules.h"
#include "tools/sim/violation.h"

namespace prd::sim {

std::unique_ptr<EngineRules> MakeRules(const EngineOptions& options) {
  if (const auto* of = std::get_if<PReduceOptions>(&options)) {
    return std::make_unique<PReduceRules>(*of);
  }
  if (std::holds_alternative<AllReduceOptions>(options)) return std::make_unique<AllReduceRules>();
  return nullptr;
}

EngineWatch::State& EngineWatch::At(Rank rank) {
  const auto index = static_cast<std::size_t>(rank);
  if (index >= workers_.size()) workers_.resize(index + 1, State::kAbsent);
  return workers_[index];
}

void EngineWatch::Apply(const Event& event) {
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    At(joined->rank) = State::kComputing;
    ++joined_;
  } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    At(ready->rank) = State::kWaiting;
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    At(finished->rank) = State::kComputing;
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    At(left->rank) = State::kAbsent;
    --joined_;
  }
}

void EngineWatch::Step(Instant now, const Event& event, GroupId* next_group, Effects* out) {
  Apply(event);
  const std::size_t before = out->size();
  GroupId id = *next_group;
  engine_->Step(now, event, next_group, out);
  const std::vector<FormGroup> formed = GroupsOf(std::span(*out).subspan(before));
  for (const FormGroup& group : formed) {
    if (group.id != id++) {
      throw Violation("group-ids", "group " + std::to_string(group.id) + " where " +
                                       std::to_string(id - 1) + " is due");
    }
    for (const GroupShare& share : group.members) {
      if (share.rank < 0 || At(share.rank) != State::kWaiting) {
        throw Violation("members", "the engine puts rank " + std::to_string(share.rank) +
                                       " into group " + std::to_string(group.id) +
                                       ", and no signal of it is waiting");
      }
      At(share.rank) = State::kReducing;
    }
  }
  if (rules_ != nullptr) rules_->Check(now, event, formed, joined_);
}

void EngineWatch::Archive(StateArchive& ar) {
  ar(workers_, joined_);
  if (rules_ != nullptr) rules_->Archive(ar);
  engine_->Archive(ar);
}

}  // namespace prd::sim
