// Drives an engine with random events that keep to the contract of engines/event.h, as a job would:
// workers join, signal, reduce, fail, die and come back, in any order and at any speed.
#ifndef PRD_TESTS_ENGINES_ENGINE_DRIVER_H_
#define PRD_TESTS_ENGINES_ENGINE_DRIVER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/base/prng.h"
#include "engines/engine.h"

namespace prd {

// One event and what the engine decided on it.
struct Applied {
  Instant now;
  Event event;
  Effects effects;
};

// "" or what is wrong with the engine.
using Watch = std::function<std::string(const Applied&)>;

class EngineDriver {
 public:
  EngineDriver(Engine* engine, std::uint64_t seed, Rank max_workers, Watch watch);

  // Each returns "" or the first thing that is wrong; nothing is done after that.
  // Random events, faults among them.
  std::string Storm(int events);
  // No more faults: every worker must get through `steps` more steps.
  std::string Calm(int steps);
  // Workers leave one by one, each time after Calm(2), down to nobody.
  std::string Drain();

  const std::vector<Applied>& applied() const { return applied_; }

 private:
  enum class State { kComputing, kWaiting, kReducing };
  struct Worker {
    State state = State::kComputing;
    Iteration iteration = 0;
    GroupId group = kNoGroup;
    int steps = 0;  // groups that it came out of with the result
  };
  struct Running {
    std::vector<Rank> pending;
    Iteration iteration = 0;
    bool failed = false;
  };

  std::string Apply(const Event& event);
  std::string Join();
  std::string BeReady(Rank rank);
  std::string Report(GroupId group, bool ok);
  std::string Leave(Rank rank);
  std::string PassDeadline();
  std::vector<Rank> In(State state) const;
  template <typename T>
  const T& Pick(const std::vector<T>& from) {
    return from[random_.Below(from.size())];
  }

  Engine* const engine_;
  Prng random_;
  const Rank max_workers_;
  const Watch watch_;
  Instant now_;
  GroupId next_group_ = 1;
  std::map<Rank, Worker> workers_;
  std::map<GroupId, Running> groups_;
  std::vector<Applied> applied_;
};

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_ENGINE_DRIVER_H_
