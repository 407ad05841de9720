// The invariants of engines are broken on purpose, and found under their names: the real engine
// decides, and the first decision that the case knows how to spoil is spoilt.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engines/engine_watch.h"
#include "engines/registry.h"
#include "gtest/gtest.h"
#include "tests/engines/engine_driver.h"

namespace prd::rules_test {
namespace {

// Spoils what was decided on an event. False: there is nothing to spoil in it.
using Spoil = std::function<bool(const Event&, Effects*)>;

class SpoiltEngine final : public Engine {
 public:
  SpoiltEngine(std::unique_ptr<Engine> engine, Spoil spoil)
      : engine_(std::move(engine)), spoil_(std::move(spoil)) {}

  bool spoilt() const { return spoilt_; }
  Plan plan() const override { return engine_->plan(); }
  Joining joining() const override { return engine_->joining(); }
  void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) override {
    Effects effects;
    engine_->Step(now, event, next_group, &effects);
    spoilt_ = spoilt_ || spoil_(event, &effects);
    out->insert(out->end(), effects.begin(), effects.end());
  }
  std::optional<Instant> NextDeadline() const override { return engine_->NextDeadline(); }
  std::string Explain(Instant now, Rank rank) const override { return engine_->Explain(now, rank); }
  std::vector<Drawn> DrawnGroups() const override { return engine_->DrawnGroups(); }
  void Archive(StateArchive& ar) override { engine_->Archive(ar); }

 private:
  std::unique_ptr<Engine> engine_;
  const Spoil spoil_;
  bool spoilt_ = false;
};

// Says `why` of everybody, whether they wait or not.
class SilentEngine final : public Engine {
 public:
  explicit SilentEngine(const EngineOptions& options, std::string why = "")
      : engine_(MakeEngine(options)), why_(std::move(why)) {}

  Plan plan() const override { return engine_->plan(); }
  Joining joining() const override { return engine_->joining(); }
  void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) override {
    engine_->Step(now, event, next_group, out);
  }
  // Long after what it waits for.
  std::optional<Instant> NextDeadline() const override {
    const auto deadline = engine_->NextDeadline();
    return deadline ? std::optional(*deadline + 3600 * kSecond) : std::nullopt;
  }
  std::string Explain(Instant, Rank) const override { return why_; }
  std::vector<Drawn> DrawnGroups() const override { return engine_->DrawnGroups(); }
  void Archive(StateArchive& ar) override { engine_->Archive(ar); }

 private:
  std::unique_ptr<Engine> engine_;
  const std::string why_;
};

// What is wrong with a run of the engine, spoilt.
std::string Run(const EngineOptions& options, const Spoil& spoil) {
  auto spoilt = std::make_unique<SpoiltEngine>(MakeEngine(options), spoil);
  const SpoiltEngine* const inner = spoilt.get();
  EngineWatch engine(std::move(spoilt), options);
  const std::string wrong = MakeDriver(&engine, 3, 6)->Storm(2000);
  EXPECT_TRUE(inner->spoilt()) << "nothing to spoil";
  return wrong;
}

// The first effect of this type for which `change` is true.
template <typename T>
Spoil Change(std::function<bool(T*)> change) {
  return [change](const Event&, Effects* effects) {
    for (Effect& effect : *effects) {
      if (auto* of = std::get_if<T>(&effect); of != nullptr && change(of)) return true;
    }
    return false;
  };
}
Spoil ChangeGroup(std::size_t least, std::function<void(GroupFormed*)> change) {
  return Change<GroupFormed>([least, change](GroupFormed* group) {
    if (group->members.size() < least) return false;
    change(group);
    return true;
  });
}
// The first effect of this type does not come.
template <typename T>
bool Forget(const Event&, Effects* effects) {
  return std::erase_if(*effects, [](const Effect& of) { return std::holds_alternative<T>(of); }) >
         0;
}

const Spoil kOneLess = ChangeGroup(2, [](GroupFormed* group) { group->members.pop_back(); });
const Spoil kOneHeavier = ChangeGroup(2, [](GroupFormed* group) { group->members[0].weight *= 2; });
const Spoil kNextIteration = ChangeGroup(1, [](GroupFormed* group) { ++group->iteration; });
const Spoil kNextId = ChangeGroup(1, [](GroupFormed* group) { ++group->id; });
const Spoil kOneTwice =
    ChangeGroup(2, [](GroupFormed* group) { group->members[1] = group->members[0]; });

const Spoil kOneLessEven = ChangeGroup(2, [](GroupFormed* group) {
  group->members.pop_back();
  for (GroupShare& share : group->members) {
    share.weight = 1 / static_cast<double>(group->members.size());
  }
});

struct Case {
  const char* invariant;
  EngineOptions options;
  Spoil spoil;
};

void Expect(const std::vector<Case>& cases) {
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string wrong = Run(cases[i].options, cases[i].spoil);
    EXPECT_TRUE(wrong.starts_with(cases[i].invariant + std::string(": ")))
        << "case " << i << ", " << cases[i].invariant << ": " << wrong;
  }
}

TEST(RulesTest, AnyEngine) {
  const PReduceOptions p_reduce{.group_size = 2};
  const PragueOptions prague{.generator = PragueOptions::Generator::kStatic};
  Expect({{"members", p_reduce,
           ChangeGroup(2, [](GroupFormed* group) { group->members.back().rank = 77; })},
          {"one-group", p_reduce, kOneTwice},
          {"group-ids", p_reduce, kNextId},
          {"schedule", prague, Change<ScheduleSet>([](ScheduleSet* set) {
             set->members.pop_back();
             return true;
           })}});
}

TEST(RulesTest, AllReduce) {
  const AllReduceOptions options;
  Expect({{"whole-round", options, kOneLess},
          {"whole-round", options, Forget<GroupFormed>},
          {"weights", options, kOneHeavier},
          {"iterations", options, kNextIteration}});
}

TEST(RulesTest, Backup) {
  const BackupOptions options{.backups = 1};
  Expect({{"quorum", options, kOneLess},
          {"quorum", options, Forget<GroupFormed>},
          {"weights", options, kOneHeavier},
          {"iterations", options, kNextIteration},
          {"dropped", options, Forget<UpdateDropped>},
          {"dropped", options, Change<UpdateDropped>([](UpdateDropped* late) {
             late->rank = (late->rank + 1) % 6;
             return late->rank != 0;
           })}});
}

TEST(RulesTest, PReduce) {
  const PReduceOptions options{.group_size = 3};
  Expect({{"group-size", options, kOneLess},
          {"no-idle-queue", options, Forget<GroupFormed>},
          {"weights", options, kOneHeavier},
          {"iterations", options, kNextIteration},
          {"iterations", options,
           ChangeGroup(1, [](GroupFormed* group) { --group->members[0].iteration; })},
          {"bridge", options,
           ChangeGroup(1, [](GroupFormed* group) { group->reason = "component"; })}});
}

TEST(RulesTest, Eager) {
  const EagerOptions solo{.quorum = EagerOptions::kSolo, .sync_every = 0};
  const EagerOptions averages{.quorum = EagerOptions::kSolo, .sync_every = 2};
  Expect({{"everybody", solo, kOneLess},
          {"everybody", solo, kNextIteration},
          {"contributors", solo, Change<GroupFormed>([](GroupFormed* group) {
             for (GroupShare& share : group->members) {
               if (std::exchange(share.weight, 0) > 0) return true;
             }
             return false;
           })},
          {"quorum", solo, Forget<GroupFormed>},
          {"sync-every", averages, Change<GroupFormed>([](GroupFormed* group) {
             if (group->kind != GroupKind::kAverage) return false;
             group->members[0].weight *= 2;
             return true;
           })}});
}

// A majority's round begins with the arrival of the worker that the seed says, and of nobody else:
// with other seeds other rounds begin.
TEST(RulesTest, EagerDrawsTheInitiator) {
  const EagerOptions options{.quorum = EagerOptions::kMajority, .seed = 1};
  EagerOptions other = options;
  other.seed = 2;
  EngineWatch engine(MakeEngine(other), options);
  const std::string wrong = MakeDriver(&engine, 3, 6)->Storm(2000);
  EXPECT_TRUE(wrong.starts_with("initiator") || wrong.starts_with("quorum")) << wrong;
}

TEST(RulesTest, Esync) {
  const EsyncOptions options{.stall_factor = 2};
  EsyncOptions slower = options;
  slower.stall_factor = 3;
  Expect({{"ready", options, Change<QueryAnswered>([](QueryAnswered* answer) {
             return !std::exchange(answer->ready, true);
           })},
          {"ready", options, Forget<QueryAnswered>},
          {"round", options, kOneLess},
          {"weights", options, kOneHeavier},
          {"round", options, Forget<GroupFormed>},
          {"dropped", options, Forget<UpdateDropped>}});
  EngineWatch engine(MakeEngine(slower), options);
  const std::string wrong = MakeDriver(&engine, 3, 6)->Storm(2000);
  EXPECT_TRUE(wrong.starts_with("stall: ")) << wrong;
}

TEST(RulesTest, Prague) {
  const PragueOptions smart{
      .generator = PragueOptions::Generator::kSmart, .group_size = 2, .overlap = true};
  const PragueOptions random{.generator = PragueOptions::Generator::kRandom, .group_size = 3};
  Expect({{"division", smart, kOneLessEven},
          {"weights", smart, kOneHeavier},
          {"atomic", smart,
           [](const Event& event, Effects* effects) {  // it was drawn before
             return std::holds_alternative<FinishedEvent>(event) &&
                    Forget<GroupFormed>(event, effects);
           }},
          {"served", smart, Forget<QueryAnswered>},
          {"group-size", random,
           ChangeGroup(2,
                       [](GroupFormed* group) {
                         for (GroupShare& share : group->members) share.passive = false;
                       })},
          {"atomic", random,
           ChangeGroup(1, [](GroupFormed* group) { group->conflict = !group->conflict; })}});
  PragueOptions patient = smart;
  patient.slowdown_threshold = 1;
  EngineWatch engine(MakeEngine(smart), patient);
  const std::string wrong = MakeDriver(&engine, 3, 6)->Storm(2000);
  EXPECT_TRUE(wrong.starts_with("slow-worker: ")) << wrong;
}

TEST(RulesTest, PragueByScheduleFormsNoGroups) {
  const PragueOptions options{.generator = PragueOptions::Generator::kStatic};
  const Spoil spoil = [](const Event&, Effects* effects) {
    effects->push_back(GroupFormed{.id = 1, .members = {{.rank = 0}}});
    return true;
  };
  EngineWatch engine(std::make_unique<SpoiltEngine>(MakeEngine(options), spoil), options);
  GroupId next_group = 1;
  Effects effects;
  try {
    engine.Step({0}, JoinedEvent{.rank = 0, .host = "h"}, &next_group, &effects);
    ADD_FAILURE() << "not found";
  } catch (const Violation& violation) {
    EXPECT_EQ(violation.invariant(), "no-groups") << violation.what();
  }
}

TEST(RulesTest, AdPsgd) {
  const AdPsgdOptions options;
  Expect({{"pairs", options, kOneLess},
          {"pairs", options, kOneHeavier},
          {"atomic", options,
           ChangeGroup(1, [](GroupFormed* group) { group->conflict = !group->conflict; })},
          {"pairs", options, Forget<QueryAnswered>}});
  AdPsgdOptions ring = options;
  ring.graph.kind = Graph::Kind::kRing;
  EngineWatch engine(MakeEngine(options), ring);
  const std::string wrong = MakeDriver(&engine, 3, 6)->Storm(2000);
  EXPECT_TRUE(wrong.starts_with("neighbours: ")) << wrong;
}

TEST(RulesTest, WhoWaitsHasAReason) {
  const EagerOptions all{.quorum = 6, .sync_every = 0};
  const std::vector<EngineOptions> engines = {all, BackupOptions{.backups = 0},
                                              EsyncOptions{.stall_factor = 0}, AdPsgdOptions{}};
  for (const EngineOptions& options : engines) {
    EngineWatch engine(std::make_unique<SilentEngine>(options), options);
    const std::string wrong = MakeDriver(&engine, 3, 6)->Storm(2000);
    EXPECT_TRUE(wrong.starts_with("explained: ")) << EngineName(options) << ": " << wrong;
  }
}

TEST(RulesTest, WhoHasLeftWaitsForNothing) {
  const AllReduceOptions options;
  EngineWatch engine(std::make_unique<SilentEngine>(options, "waiting"), options);
  const std::string wrong = MakeDriver(&engine, 3, 6)->Storm(2000);
  EXPECT_TRUE(wrong.starts_with("explained: rank ")) << wrong;
  EXPECT_TRUE(wrong.ends_with(" has left, and its reason to wait is: waiting")) << wrong;
}

TEST(RulesTest, PReduceHoldsNobodyForLong) {
  const PReduceOptions options{.group_size = 2, .history_window = 4};
  std::string wrong;
  for (std::uint64_t seed = 1; seed < 200 && wrong.empty(); ++seed) {
    EngineWatch engine(std::make_unique<SilentEngine>(options), options);
    wrong = MakeDriver(&engine, seed, 4)->Storm(2000);
  }
  EXPECT_TRUE(wrong.starts_with("hold-budget: ")) << wrong;
}

// Workers that wait for one that would be left over lose less than it would.
TEST(RulesTest, PReduceWaitsAMomentForWhoWouldBeLeftOver) {
  const PReduceOptions options;
  std::string wrong;
  for (std::uint64_t seed = 1; seed < 200 && wrong.empty(); ++seed) {
    EngineWatch engine(std::make_unique<SilentEngine>(options), options);
    wrong = MakeDriver(&engine, seed, 4)->Storm(2000);
  }
  EXPECT_TRUE(wrong.starts_with("no-idle-queue: ")) << wrong;
}

// Theorem 1: here the worker is at fault, which goes on without its neighbour's update.
TEST(RulesTest, HopsGap) {
  const HopOptions options{.graph = {.kind = Graph::Kind::kRing, .edges = {}},
                           .max_iteration_gap = 0};
  EngineWatch engine(MakeEngine(options), options);
  GroupId next_group = 1;
  Effects effects;
  for (Rank rank = 0; rank < 2; ++rank) {
    engine.Step({0}, JoinedEvent{.rank = rank, .host = "h"}, &next_group, &effects);
  }
  const Instant settled = *engine.NextDeadline();
  engine.Step(settled, DeadlineEvent{}, &next_group, &effects);
  const auto signal = [&](Iteration iteration) {
    engine.Step(settled, ReadyEvent{.rank = 0, .ready = {.iteration = iteration}}, &next_group,
                &effects);
  };
  signal(1);
  try {
    signal(2);
    ADD_FAILURE() << "not found";
  } catch (const Violation& violation) {
    EXPECT_EQ(violation.invariant(), "gap") << violation.what();
  }
}

TEST(RulesTest, Hop) {
  const HopOptions options{.graph = {.kind = Graph::Kind::kRing, .edges = {}},
                           .max_iteration_gap = 2,
                           .backups = 1,
                           .max_jump = 3};
  const auto told = [](std::function<void(NeighboursSet*)> change) {
    return Change<NeighboursSet>([change](NeighboursSet* set) {
      if (set->in.empty()) return false;
      change(set);
      return true;
    });
  };
  Expect({{"tokens", options, Forget<QueryAnswered>},
          {"jump", options, Change<QueryAnswered>([](QueryAnswered* answer) {
             ++answer->next;
             return true;
           })},
          {"graph", options, told([](NeighboursSet* set) {
             set->own_weight /= 2;
             set->in[0].weight += set->own_weight;
           })},
          {"graph", options, told([](NeighboursSet* set) { set->in.pop_back(); })},
          {"slots", options, told([](NeighboursSet* set) { ++set->slots; })},
          {"jump", options, told([](NeighboursSet* set) { set->at = -1; })}});
  HopOptions tighter = options;
  tighter.max_iteration_gap = 1;
  EngineWatch engine(MakeEngine(options), tighter);
  const std::string wrong = MakeDriver(&engine, 3, 6)->Storm(2000);
  EXPECT_TRUE(wrong.starts_with("slots: ")) << wrong;
}

TEST(RulesTest, Ssp) {
  const SspOptions options{.staleness = 1, .replicas = 1};
  const auto placed = [](std::function<void(std::vector<ShardPlace>*)> change) {
    return Change<PlacementSet>([change](PlacementSet* set) {
      if (set->epoch < 2 || set->members.size() < 2) return false;
      std::vector<ShardPlace> places(set->shards.begin(), set->shards.end());
      change(&places);
      set->shards = SharedList<ShardPlace>(std::move(places));
      return true;
    });
  };
  Expect({{"bound", options, Forget<QueryAnswered>},
          {"clocks", options, Change<QueryAnswered>([](QueryAnswered* answer) {
             ++answer->next;
             return true;
           })},
          {"clocks", options, Change<PlacementSet>([](PlacementSet* set) {
             ++set->at[0];
             return true;
           })},
          {"placement", options, placed([](auto* places) { places->at(0).holders.clear(); })},
          {"placement", options, placed([](auto* places) { places->pop_back(); })},
          {"source", options, placed([](auto* places) { places->at(0).source = kNoRank; })},
          {"opened", options, [](const Event&, Effects* effects) {
             const auto* set =
                 effects->empty() ? nullptr : std::get_if<PlacementSet>(&effects->front());
             if (set == nullptr) return false;
             effects->push_back(PlacementOpened{.epoch = set->epoch, .members = set->members});
             return true;
           }}});
}

}  // namespace
}  // namespace prd::rules_test
