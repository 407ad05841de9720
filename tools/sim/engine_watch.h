// Looks over an engine's shoulder: passes every event on and checks what comes back, before the job
// acts on it.
//
//   members         a group's members are joined, in no group, and have a signal waiting (a round
//   of
//                   gradients takes them all without); who is answered has a signal; whose update
//                   is dropped is joined and in no group
//   group-ids       ids are taken from *next_group, one by one
// and by the rules of the engine's own (*_rules.h).
#ifndef PRD_TOOLS_SIM_ENGINE_WATCH_H_
#define PRD_TOOLS_SIM_ENGINE_WATCH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engines/engine.h"
#include "engines/registry.h"

namespace prd::sim {

// What must hold for one kind of engine. Its state is part of the job's snapshot, so that checks go
// on after a restart of the controller.
class EngineRules {
 public:
  virtual ~EngineRules() = default;
  // After every Step: what the engine was told, and what it decided then, in order. `joined` counts
  // the workers joined after the event. Throws Violation.
  virtual void Check(Instant now, const Event& event, std::span<const Effect> effects,
                     std::int64_t joined) = 0;
  virtual void Archive(StateArchive& ar) = 0;
};

// Null for an engine without rules of its own.
std::unique_ptr<EngineRules> MakeRules(const EngineOptions& options);

class EngineWatch final : public Engine {
 public:
  EngineWatch(std::unique_ptr<Engine> engine, const EngineOptions& options)
      : engine_(std::move(engine)), rules_(MakeRules(options)) {}

  Plan plan() const override { return engine_->plan(); }
  Joining joining() const override { return engine_->joining(); }
  void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) override;
  std::optional<Instant> NextDeadline() const override { return engine_->NextDeadline(); }
  std::string Explain(Instant now, Rank rank) const override { return engine_->Explain(now, rank); }
  void Archive(StateArchive& ar) override;

 private:
  struct Worker {
    bool joined = false;
    bool signalled = false;  // and not answered
    bool waiting = false;    // its signal, for a group
    GroupId group = kNoGroup;
    void Archive(StateArchive& ar) { ar(joined, signalled, waiting, group); }
  };
  Worker& At(Rank rank);
  void Apply(const Event& event);
  void CheckEffect(const Effect& effect, GroupId* id);
  void CheckGroup(const FormGroup& group);

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<EngineRules> rules_;
  std::vector<Worker> workers_;  // by rank
  std::int64_t joined_ = 0;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_ENGINE_WATCH_H_
