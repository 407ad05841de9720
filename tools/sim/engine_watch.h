// Looks over an engine's shoulder: passes every event on and checks what comes back, before the job
// acts on it.
//
//   members         a group's members are joined and have a signal waiting (a round of gradients
//                   takes them all without, and so does a group formed ahead); who is answered has
//                   a signal; whose update is dropped is joined and in no group; nobody who is not
//                   joined is in a group that is drawn
//   one-group       nobody is put into a group while in another
//   group-ids       ids are taken from *next_group, one by one; of a worker's groups that are drawn
//                   ahead they ascend
//   schedule        a schedule takes its span of ids, and has all who have joined
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

// Groups that are drawn ahead are looked at in jobs of up to so many workers; in larger ones that
// would cost more than the job.
inline constexpr std::int64_t kMostWatched = 64;

// What must hold for one kind of engine. Its state is part of the job's snapshot, so that checks go
// on after a restart of the controller.
class EngineRules {
 public:
  virtual ~EngineRules() = default;
  // After every Step: what the engine was told, and what it decided then, in order. `joined` counts
  // the workers joined after the event. Throws Violation.
  virtual void Check(Instant now, const Event& event, std::span<const Effect> effects,
                     std::int64_t joined) = 0;
  // The same for an engine that draws groups ahead: after Check, what is drawn and has not formed.
  virtual void CheckDrawn(std::span<const Engine::Drawn>) {}
  virtual void Archive(StateArchive& ar) = 0;
};

// Null for an engine without rules of its own.
std::unique_ptr<EngineRules> MakeRules(const EngineOptions& options);

class EngineWatch final : public Engine {
 public:
  EngineWatch(std::unique_ptr<Engine> engine, const EngineOptions& options)
      : engine_(std::move(engine)), plan_(engine_->plan()), rules_(MakeRules(options)) {}

  Plan plan() const override { return engine_->plan(); }
  Joining joining() const override { return engine_->joining(); }
  void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) override;
  std::optional<Instant> NextDeadline() const override { return engine_->NextDeadline(); }
  std::string Explain(Instant now, Rank rank) const override { return engine_->Explain(now, rank); }
  std::vector<Drawn> DrawnGroups() const override { return engine_->DrawnGroups(); }
  void Archive(StateArchive& ar) override;

 private:
  struct Worker {
    bool joined = false;
    bool signalled = false;  // and not answered
    bool waiting = false;    // its signal, for a group
    GroupId group = kNoGroup;
    bool passive = false;       // in its group
    GroupId newest = kNoGroup;  // group it was in
    void Archive(StateArchive& ar) { ar(joined, signalled, waiting, group, passive, newest); }
  };
  Worker& At(Rank rank);
  void Apply(const Event& event);
  void CheckEffect(const Effect& effect, GroupId* id);
  void CheckGroup(const FormGroup& group);
  void CheckSchedule(const SetSchedule& set, GroupId* id);
  void CheckDrawn() const;

  std::unique_ptr<Engine> engine_;
  const Plan plan_;
  std::unique_ptr<EngineRules> rules_;
  std::vector<Worker> workers_;  // by rank
  std::int64_t joined_ = 0;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_ENGINE_WATCH_H_
