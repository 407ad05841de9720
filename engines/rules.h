// The invariants of engines, by name: one reference per engine, too simple to be wrong, that
// follows every event and says where the engine decides otherwise. Linked by the simulator and the
// tests, never by the daemon.
#ifndef PRD_ENGINES_RULES_H_
#define PRD_ENGINES_RULES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
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

// The workers after the events so far.
struct Followed {
  std::set<Rank> joined;
  BrokenLinks broken;
  bool crowded = false;  // there have been more than kMaxWatched at a time
  void Archive(StateArchive& ar) { ar(joined, broken, crowded); }
};

// What must hold for one kind of engine. Its state is part of the job's snapshot, so that checks go
// on after a restart of the controller.
class EngineRules {
 public:
  virtual ~EngineRules() = default;
  // Throws Violation.
  virtual void Check(const Decision& of) = 0;
  virtual void Archive(StateArchive& ar) = 0;
  // Whom the rules look at; kept up to date by the watch, and outlives them.
  void Follow(const Followed* workers) { workers_ = workers; }
  // How often runs got to what is rarely reached, by name: a test that never gets there shows
  // nothing. Not part of the state.
  std::int64_t Counter(std::string_view name) const {
    const auto found = counters_.find(name);
    return found == counters_.end() ? 0 : found->second;
  }

 protected:
  void Count(std::string_view name, std::int64_t times = 1) { counters_[name] += times; }
  const std::set<Rank>& present() const { return workers_->joined; }
  const BrokenLinks& broken() const { return workers_->broken; }
  bool crowded() const { return workers_->crowded; }
  // broken-link: no group that forms has two members that do not reach each other. For engines that
  // choose the members of groups.
  void CheckLinks(std::span<const Effect> effects) const;

 private:
  const Followed* workers_ = nullptr;
  std::map<std::string_view, std::int64_t> counters_;  // names are literals
};

// For the sentences of violations.
inline std::string NameOf(const GroupFormed& group) {
  return GroupName(group.id) + " (" + group.reason + ")";
}

}  // namespace prd

#endif  // PRD_ENGINES_RULES_H_
