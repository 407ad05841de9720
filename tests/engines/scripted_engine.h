// An engine that does as it is told, for tests of the run around it.
#ifndef PRD_TESTS_ENGINES_SCRIPTED_ENGINE_H_
#define PRD_TESTS_ENGINES_SCRIPTED_ENGINE_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/static_schedule.h"
#include "engines/engine.h"

namespace prd {

// What the tests tell the engine to do, and what it was told. Outlives the run.
struct Script {
  Plan plan;
  Engine::Joining joining = Engine::Joining::kAnytime;
  std::vector<std::vector<Effect>> next;  // what the next events lead to, in order
  std::vector<std::string> heard;
  std::vector<std::vector<Effect>> done;  // what each event so far led to: `next` of a replay
};

class ScriptedEngine final : public Engine {
 public:
  explicit ScriptedEngine(Script* script) : script_(script) {}
  Plan plan() const override { return script_->plan; }
  Joining joining() const override { return script_->joining; }
  void Step(Instant, const Event& event, GroupId* next_group, Effects* out) override {
    Hear(event);
    std::vector<Effect> effects;
    if (!script_->next.empty()) {
      effects = std::move(script_->next.front());
      script_->next.erase(script_->next.begin());
    }
    script_->done.push_back(effects);
    for (Effect& effect : effects) {
      if (auto* form = std::get_if<GroupFormed>(&effect)) form->id = (*next_group)++;
      if (auto* set = std::get_if<ScheduleSet>(&effect)) {
        set->first = std::exchange(*next_group, *next_group + kScheduleSpan);
      }
      out->push_back(std::move(effect));
    }
  }
  std::optional<Instant> NextDeadline() const override { return std::nullopt; }
  std::string Explain(Instant, Rank) const override { return "as it is told"; }
  void Archive(StateArchive&) override {}

 private:
  void Hear(const Event& event) {
    std::string text;
    if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
      text = "joined " + std::to_string(joined->rank) + "@" + std::to_string(joined->iteration);
    } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
      text = "ready " + std::to_string(ready->rank) + "@" + std::to_string(ready->ready.iteration) +
             " owes " + std::to_string(ready->owed);
    } else if (const auto* done = std::get_if<FinishedEvent>(&event)) {
      text = std::string(done->ok ? "ok " : "failed ") + std::to_string(done->rank) + " owes " +
             std::to_string(done->owed);
    } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
      text = ended->ok ? "ended" : "ended, nobody";
    } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
      text = "left " + std::to_string(left->rank) +
             (left->why == LeftReason::kPaused ? ", paused" : "");
    } else if (const auto* placed = std::get_if<PlacedEvent>(&event)) {
      text = "placed " + std::to_string(placed->rank) + " " + std::to_string(placed->epoch);
    } else if (const auto* link = std::get_if<LinkEvent>(&event)) {
      text = "link " + std::to_string(link->a) + " " + std::to_string(link->b) +
             (link->works ? " works" : " broken");
    }
    script_->heard.push_back(text);
  }
  Script* script_;
};

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_SCRIPTED_ENGINE_H_
