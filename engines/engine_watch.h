// Looks over an engine's shoulder: passes every event on and checks what comes back, before the job
// acts on it. What holds for every engine:
//
// members: a group's members are joined and have a signal waiting (a round of gradients takes them
// all without, and so does a group formed ahead). Who is answered has a signal. Whose update is
// dropped is joined and in no group. Nobody who is not joined is in a group that is drawn.
//
// one-group: nobody is put into a group while in another.
//
// group-ids: ids are taken from *next_group, one by one; of a worker's groups that are drawn ahead
// they ascend.
//
// schedule: a schedule takes its span of ids, and has all who have joined.
//
// explained: Explain() is empty for a departed worker, unless it pauses or has finished and still
// holds shards.
//
// And by the invariants of the engine's own (engines/NAME/rules.cc).
#ifndef PRD_ENGINES_ENGINE_WATCH_H_
#define PRD_ENGINES_ENGINE_WATCH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engines/any_engine.h"
#include "engines/rules.h"

namespace prd {

// The invariants of the engine whose options these are.
std::unique_ptr<EngineRules> RulesOf(const EngineOptions& options);
// Adds those of an engine of RegisterEngine (any_engine.h). `make` answers nullptr to the options
// of other engines. Call it before RulesOf, from one thread.
using MakeRules = std::unique_ptr<EngineRules> (*)(const EngineOptions& options);
void RegisterRules(MakeRules make);

class EngineWatch final : public Engine {
 public:
  EngineWatch(std::unique_ptr<Engine> engine, const EngineOptions& options)
      : engine_(std::move(engine)), plan_(engine_->plan()), rules_(RulesOf(options)) {
    rules_->Follow(&followed_);
  }

  Plan plan() const override { return engine_->plan(); }
  Joining joining() const override { return engine_->joining(); }
  Batches batches() const override { return engine_->batches(); }
  void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) override;
  std::optional<Instant> NextDeadline() const override { return engine_->NextDeadline(); }
  std::string Explain(Instant now, Rank rank) const override { return engine_->Explain(now, rank); }
  std::vector<Drawn> DrawnGroups() const override { return engine_->DrawnGroups(); }
  Leaving leaving(Rank rank) const override { return engine_->leaving(rank); }
  void Archive(StateArchive& ar) override;
  const EngineRules& rules() const { return *rules_; }

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
  std::int64_t joined() const { return std::ssize(followed_.joined); }
  void Apply(const Event& event);
  void CheckEffect(const Effect& effect, GroupId* id);
  void CheckGroup(const GroupFormed& group);
  void CheckSchedule(const ScheduleSet& set, GroupId* id);
  void CheckDrawn() const;
  void CheckGone(Instant now, const Event& event) const;

  std::unique_ptr<Engine> engine_;
  const Plan plan_;
  std::vector<Worker> workers_;  // by rank
  Followed followed_;
  std::unique_ptr<EngineRules> rules_;
};

}  // namespace prd

#endif  // PRD_ENGINES_ENGINE_WATCH_H_
