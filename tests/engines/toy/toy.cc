#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "engines/engine.h"
#include "engines/rules.h"
#include "tests/engines/toy/options.h"

namespace prd {
namespace {

class Toy final : public Engine {
 public:
  explicit Toy(const ToyOptions& options) : shift_(options.shift) {}

  Plan plan() const override { return {}; }

  void Step(Instant, const Event& event, GroupId* next_group, Effects* out) override {
    if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
      joined_.insert(joined->rank);
    } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
      waiting_[ready->rank] = ready->ready.iteration;
      FormIfReady(ready->rank, next_group, out);
    } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
      joined_.erase(left->rank);
      waiting_.erase(left->rank);
      FormIfReady(PartnerOf(left->rank), next_group, out);
    }
  }

  std::optional<Instant> NextDeadline() const override { return std::nullopt; }

  std::string Explain(Instant, Rank rank) const override {
    if (!waiting_.contains(rank)) return "";
    return "waiting for rank " + std::to_string(PartnerOf(rank));
  }

  void Archive(StateArchive& ar) override { ar(joined_, waiting_); }

 private:
  Rank PartnerOf(Rank rank) const { return ((rank + shift_) ^ 1) - shift_; }

  void FormIfReady(Rank rank, GroupId* next_group, Effects* out) {
    const Rank partner = PartnerOf(rank);
    const bool alone = !joined_.contains(partner);
    if (!waiting_.contains(rank) || (!alone && !waiting_.contains(partner))) return;
    GroupFormed group{.id = (*next_group)++};
    for (const Rank member : {std::min(rank, partner), std::max(rank, partner)}) {
      const auto signal = waiting_.extract(member);
      if (signal.empty()) continue;
      group.members.push_back(
          {.rank = member, .weight = alone ? 1 : 0.5, .iteration = signal.mapped()});
      group.iteration = std::max(group.iteration, signal.mapped());
    }
    group.reason = alone ? "its partner is not there" : "both are ready";
    out->push_back(std::move(group));
  }

  const int shift_;
  std::set<Rank> joined_;
  std::map<Rank, Iteration> waiting_;
};

// partners: a group has a worker alone, or two whose ranks make them partners.
class ToyRules final : public EngineRules {
 public:
  explicit ToyRules(const ToyOptions& options) : shift_(options.shift) {}
  void Check(const Decision& of) override {
    for (const GroupFormed& group : GroupsOf(of.effects)) {
      const bool alone = group.members.size() == 1;
      const auto pair = [&](Rank rank) { return (rank + shift_) / 2; };
      if (!alone && pair(group.members.at(0).rank) != pair(group.members.at(1).rank)) {
        throw Violation("partners", NameOf(group) + " has no pair");
      }
      Count(alone ? "alone" : "pairs");
    }
  }
  void Archive(StateArchive&) override {}

 private:
  const int shift_;
};

}  // namespace

std::unique_ptr<EngineRules> ToyOptions::Rules() const { return std::make_unique<ToyRules>(*this); }

std::unique_ptr<Engine> ToyOptions::Make() const { return std::make_unique<Toy>(*this); }

}  // namespace prd
