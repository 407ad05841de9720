// The invariants of engines, by name: one reference per engine, too simple to be wrong, that
// follows every event and says where the engine decides otherwise. Linked by the simulator and the
// tests, never by the daemon.
#ifndef PRD_ENGINES_RULES_H_
#define PRD_ENGINES_RULES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engines/engine.h"
#include "engines/links.h"
#include "engines/violation.h"

namespace prd {

// What costs as much as there are workers is checked in jobs of up to so many. In larger jobs it
// would cost more than the job.
inline constexpr std::int64_t kMaxWatched = 64;

// One event, and what the engine decided on it, in order.
struct Decision {
  Instant now;
  const Event& event;
  std::span<const Effect> effects;
  std::int64_t joined = 0;  // workers joined after the event
  const Engine& engine;     // after the event
};

// What must hold for one kind of engine. Its state is part of the job's snapshot, so that checks go
// on after a restart of the controller.
class EngineRules {
 public:
  virtual ~EngineRules() = default;
  // Throws Violation.
  virtual void Check(const Decision& of) = 0;
  virtual void Archive(StateArchive& ar) = 0;
  // How often runs got to what is rarely reached, by name: a test that never gets there shows
  // nothing. Not part of the state.
  std::int64_t Counter(std::string_view name) const {
    const auto found = counters_.find(name);
    return found == counters_.end() ? 0 : found->second;
  }

 protected:
  void Count(std::string_view name, std::int64_t times = 1) { counters_[name] += times; }

 private:
  std::map<std::string_view, std::int64_t> counters_;  // names are literals
};

// For the sentences of violations.
inline std::string NameOf(const GroupFormed& group) {
  return GroupName(group.id) + " (" + group.reason + ")";
}

// Of engines that choose who is in a group.
//
// broken-link: no group that forms has two members that do not reach each other.
class LinkRule {
 public:
  // Before anything is checked.
  void Follow(const Event& event) {
    if (const auto* link = std::get_if<LinkEvent>(&event))
      broken_.Set(link->a, link->b, link->works);
    if (const auto* left = std::get_if<LeftEvent>(&event)) broken_.Forget(left->rank);
  }
  void Check(const GroupFormed& group) const {
    std::vector<Rank> ranks;
    for (const GroupShare& share : group.members) ranks.push_back(share.rank);
    const auto pair = broken_.Among(ranks);
    if (!pair) return;
    throw Violation("broken-link", NameOf(group) + " has " + RankName(pair->first) + " and " +
                                       RankName(pair->second) + ", which do not reach each other");
  }
  const BrokenLinks& broken() const { return broken_; }
  void Archive(StateArchive& ar) { ar(broken_); }

 private:
  BrokenLinks broken_;
};

}  // namespace prd

#endif  // PRD_ENGINES_RULES_H_
