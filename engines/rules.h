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

#include "engines/engine.h"
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
inline std::string NameOf(Rank rank) { return "rank " + std::to_string(rank); }
inline std::string NameOf(const FormGroup& group) {
  return "group " + std::to_string(group.id) + " (" + group.reason + ")";
}

}  // namespace prd

#endif  // PRD_ENGINES_RULES_H_
