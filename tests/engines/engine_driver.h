// Drives an engine with random events that keep to the contract of engines/event.h, as a job would:
// workers join, signal, fail, die and come back, in any order and at any speed. What a worker does
// between its signals is its carrier's: groups (group_driver.h), updates of neighbours
// (neighbour_driver.h) or a store in shards (store_driver.h). Give it an EngineWatch, and the
// engine is held to its invariants.
#ifndef PRD_TESTS_ENGINES_ENGINE_DRIVER_H_
#define PRD_TESTS_ENGINES_ENGINE_DRIVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/prng.h"
#include "engines/engine.h"
#include "engines/links.h"

namespace prd {

// One event and what the engine decided on it.
struct Applied {
  Instant now;
  Event event;
  Effects effects;
};

class EngineDriver {
 public:
  virtual ~EngineDriver() = default;

  // Each returns "" or the first thing that is wrong; nothing is done after that.
  // Random events, faults among them.
  std::string Storm(int events);
  // No more faults: every worker must get through `steps` more steps.
  std::string Calm(int steps);
  // Workers leave one by one, each time after Calm(2), down to nobody.
  std::string Drain();
  // Storms and calms in turn, then Drain.
  std::string Run();

  std::string PassDeadline();
  const std::vector<Applied>& applied() const { return applied_; }

 protected:
  // Events of a storm are up to `pace` apart, and so many percent of them are a worker that leaves.
  // In storms of every third seed links break, and work again; what is broken when the calm comes
  // stays so.
  EngineDriver(Engine* engine, std::uint64_t seed, Rank max_workers, DurationNs pace,
               std::uint64_t leaves)
      : engine_(engine),
        random_(seed),
        max_workers_(max_workers),
        pace_(pace),
        leaves_(leaves),
        breaks_links_(seed % 3 == 2),
        link_draws_(seed) {}

  std::string Apply(const Event& event);

  virtual std::vector<Rank> Present() const = 0;
  virtual std::string Heed(const Effect& effect, const Event& cause) = 0;
  // After all effects of an event.
  virtual std::string Look() { return ""; }
  virtual bool JoinsNow() const { return true; }
  virtual std::string JoinOne() = 0;
  virtual std::string LeaveOne(Rank rank) = 0;
  // What must come before anything else. False: nothing must.
  virtual bool Urgent(std::string*) { return false; }
  // Something that a worker does, a fault perhaps if it storms; `dice` is below 100. False: nobody
  // can do anything.
  virtual bool Act(bool storms, std::uint64_t dice, std::string* wrong) = 0;
  virtual void ForgetSteps() = 0;
  virtual bool AllHave(int steps) const = 0;

  std::string ChangeLinks();
  std::string SetLink(Rank a, Rank b, bool works);

  // A rank that is not there.
  Rank FreeRank();
  template <typename T>
  const T& Pick(const std::vector<T>& from) {
    return from[random_.Below(from.size())];
  }

  Engine* const engine_;
  Prng random_;
  const Rank max_workers_;
  const DurationNs pace_;
  const std::uint64_t leaves_;
  const bool breaks_links_;
  Prng link_draws_;  // of their own: events without links are the same
  BrokenLinks broken_;
  Instant now_;
  GroupId next_group_ = 1;

 private:
  std::vector<Applied> applied_;
};

// The one for the engine's plan.
std::unique_ptr<EngineDriver> MakeDriver(Engine* engine, std::uint64_t seed, Rank max_workers);

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_ENGINE_DRIVER_H_
