// Engines with planted bugs: of mutation.h.
#include <functional>
#include <set>
#include <utility>

#include "common/base/fields.h"
#include "engines/p_reduce/p_reduce.h"  // EffectiveWindow
#include "tools/sim/mutation.h"

namespace prd::sim {
namespace {

// Passes everything on, with one of the engine's bugs.
class MutantEngine final : public Engine {
 public:
  MutantEngine(std::unique_ptr<Engine> engine, Mutation mutation)
      : engine_(std::move(engine)), mutation_(mutation) {}

  Plan plan() const override {
    Plan plan = engine_->plan();
    if (auto* groups = std::get_if<GroupPlan>(&plan.by)) {
      if (mutation_ == Mutation::kRunsTooFar && AveragesInBackground(plan)) ++groups->run_ahead;
    } else if (auto* neighbours = std::get_if<NeighbourPlan>(&plan.by)) {
      neighbours->staleness += mutation_ == Mutation::kStaleUpdate ? 2 : 0;
      neighbours->backups += mutation_ == Mutation::kNeighbourForgotten ? 1 : 0;
    } else if (auto* store = std::get_if<StorePlan>(&plan.by)) {
      if (mutation_ == Mutation::kLockstepBroken && store->staleness == 0) store->staleness = 1;
      store->staleness_aware ^= mutation_ == Mutation::kDelayIgnored;
    }
    return plan;
  }
  Joining joining() const override { return engine_->joining(); }
  Batches batches() const override { return engine_->batches(); }
  std::optional<Instant> NextDeadline() const override { return engine_->NextDeadline(); }
  std::string Explain(Instant now, Rank rank) const override { return engine_->Explain(now, rank); }
  std::vector<Drawn> DrawnGroups() const override { return engine_->DrawnGroups(); }
  Leaving leaving(Rank rank) const override { return engine_->leaving(rank); }
  void Archive(StateArchive& ar) override {
    ar(waiting_, dead_, running_);
    engine_->Archive(ar);
  }

  void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) override {
    const std::size_t before = out->size();
    if (mutation_ == Mutation::kBrokenPairGrouped && std::holds_alternative<LinkEvent>(event)) {
      return;
    }
    if (mutation_ == Mutation::kPauseUntold) {
      const auto* left = std::get_if<LeftEvent>(&event);
      if (left != nullptr && left->why == LeftReason::kPaused) {
        dead_.insert(left->rank);
        return;
      }
      const auto* joined = std::get_if<JoinedEvent>(&event);
      if (joined != nullptr && dead_.erase(joined->rank) > 0) {
        engine_->Step(now, LeftEvent{.rank = joined->rank}, next_group, out);
      }
    }
    if (mutation_ == Mutation::kDeadInQueue) {
      if (const auto* ready = std::get_if<ReadyEvent>(&event)) waiting_.insert(ready->rank);
      if (const auto* left = std::get_if<LeftEvent>(&event);
          left != nullptr && waiting_.contains(left->rank)) {
        dead_.insert(left->rank);
        return;
      }
      if (const auto* joined = std::get_if<JoinedEvent>(&event);
          joined != nullptr && dead_.erase(joined->rank) > 0) {
        engine_->Step(now, LeftEvent{.rank = joined->rank}, next_group, out);
      }
    }
    if (const auto* finished = std::get_if<FinishedEvent>(&event)) running_.erase(finished->rank);
    if (const auto* left = std::get_if<LeftEvent>(&event)) running_.erase(left->rank);
    engine_->Step(now, event, next_group, out);
    if (mutation_ == Mutation::kLockIgnored) FormDrawn(out);
    TwistPlaces(before, out);
    for (std::size_t i = before; i < out->size(); ++i) {
      auto* group = std::get_if<GroupFormed>(&(*out)[i]);
      if (group == nullptr) continue;
      for (const GroupShare& share : group->members) running_.insert(share.rank);
      for (const GroupShare& share : group->members) waiting_.erase(share.rank);
      if (mutation_ == Mutation::kWeightNotNormalised && group->id % 7 == 0) {
        group->members.back().weight = 1;
      }
    }
  }

 private:
  void TwistPlaces(std::size_t before, Effects* out) const {
    for (std::size_t i = before; i < out->size(); ++i) {
      if (auto* set = std::get_if<NeighboursSet>(&(*out)[i])) {
        // One too many tokens has come with one too many slots.
        if (mutation_ == Mutation::kTokenMore && set->slots > 1) --set->slots;
        if (mutation_ == Mutation::kSlotMore) ++set->slots;
        if (mutation_ == Mutation::kWeightSkewed && set->rank == 0 && !set->in.empty()) {
          set->in[0].weight += set->own_weight / 2;
          set->own_weight /= 2;
        }
      }
      auto* set = std::get_if<PlacementSet>(&(*out)[i]);
      if (set == nullptr) continue;
      if (mutation_ == Mutation::kSourceForgotten && set->epoch > 1) {
        std::vector<ShardPlace> places(set->shards.begin(), set->shards.end());
        places[0].source = kNoRank;
        set->shards = SharedList<ShardPlace>(std::move(places));
      }
      if (mutation_ == Mutation::kOpenedEarly) {
        out->push_back(PlacementOpened{.epoch = set->epoch, .members = set->members});
        return;
      }
    }
  }

  // Forms the first group that waits for a member to be through with another one.
  void FormDrawn(Effects* out) const {
    for (const Drawn& drawn : engine_->DrawnGroups()) {
      if (std::none_of(drawn.members.begin(), drawn.members.end(),
                       [this](const GroupShare& share) { return running_.contains(share.rank); })) {
        continue;
      }
      GroupFormed group{.id = drawn.id, .members = drawn.members};
      group.reason = "a bug";
      out->push_back(std::move(group));
      return;
    }
  }

  std::unique_ptr<Engine> engine_;
  const Mutation mutation_;
  std::set<Rank> waiting_;
  std::set<Rank> dead_;
  std::set<Rank> running_;  // in a group
};

// A bug that is another value of one option.
struct OptionBug {
  Mutation mutation;
  std::string_view key;
  bool (*planted)(const Plan&);  // where engines have the key that do not have the bug
  std::int64_t least = 0;        // a number from here on
  std::int64_t more = 0;         // is so much larger
  std::string_view from = {};    // this name, or where this is empty any name,
  std::string_view to = {};      // is that one instead
};

bool Anywhere(const Plan&) { return true; }

constexpr OptionBug kOptionBugs[] = {
    {.mutation = Mutation::kStaleByOne,
     .key = "max_stale_rounds",
     .planted = Anywhere,
     .least = 1,
     .more = 1},
    {.mutation = Mutation::kReadyTooEarly, .key = "margin_ms", .planted = Anywhere, .more = 1000},
    {.mutation = Mutation::kStragglerAwaited,
     .key = "backups",
     .planted = TrainsInGroups,
     .least = 1,
     .more = -1},
    {.mutation = Mutation::kSlowDivided,
     .key = "slowdown_threshold",
     .planted = Anywhere,
     .more = 1},
    {.mutation = Mutation::kDrawnAtRandom,
     .key = "generator",
     .planted = Anywhere,
     .from = "smart",
     .to = "random"},
    {.mutation = Mutation::kStrangerPaired,
     .key = "graph",
     .planted = TrainsInGroups,
     .to = "complete"},
    {.mutation = Mutation::kTokenMore,
     .key = "max_iteration_gap",
     .planted = Anywhere,
     .least = 1,
     .more = 1},
    {.mutation = Mutation::kJumpTooFar,
     .key = "max_jump",
     .planted = Anywhere,
     .least = 1,
     .more = 3},
    {.mutation = Mutation::kClockTooFar,
     .key = "staleness",
     .planted = HasStore,
     .least = 1,
     .more = 1},
};

// Changes the bug's option.
class Spoiler final : public Fields {
 public:
  explicit Spoiler(const OptionBug& bug) : bug_(bug) {}

  void Table(std::string_view, bool, std::string_view,
             const std::function<void(Fields&)>& describe) override {
    describe(*this);
  }
  void Check(const Status&) override {}

  void operator()(const Field::Whole& of) const {
    if (*of.value >= bug_.least) *of.value += bug_.more;
  }
  void operator()(const Field::Name& of) const { Rename(of.names, of.value); }
  void operator()(const Field::NameOrPairs& of) const {
    Rename(of.names, of.value);
    of.pairs->clear();
  }
  template <typename Other>
  void operator()(const Other&) const {}

 protected:
  void Add(const Field& field) override {
    if (field.key == bug_.key) std::visit(*this, field.kind);
  }

 private:
  void Rename(Field::Names names, std::size_t* value) const {
    if (!bug_.from.empty() && names[*value] != bug_.from) return;
    *value =
        static_cast<std::size_t>(std::find(names.begin(), names.end(), bug_.to) - names.begin());
  }

  const OptionBug& bug_;
};

// The options with the bug, if the bug is one of these options.
EngineOptions Spoilt(EngineOptions options, Mutation mutation, int workers) {
  for (const OptionBug& bug : kOptionBugs) {
    if (bug.mutation != mutation || !bug.planted(MakeEngine(options)->plan())) continue;
    Spoiler spoiler(bug);
    options.Describe(spoiler);
  }
  if (mutation != Mutation::kWindowOffByOne) return options;
  // The window that counts, which its option alone does not say.
  BuiltIn::Visit(options, [workers](auto& of) {
    if constexpr (requires { EffectiveWindow(of, workers); }) {
      of.history_window = static_cast<int>(EffectiveWindow(of, workers)) + 1;
    }
  });
  return options;
}

}  // namespace

std::unique_ptr<Engine> MakeMutant(const EngineOptions& options, Mutation mutation, int workers) {
  const EngineOptions spoilt = Spoilt(options, mutation, workers);
  if (mutation == Mutation::kTokenMore && spoilt == options) return MakeEngine(options);
  switch (mutation) {
    case Mutation::kWeightNotNormalised:
    case Mutation::kDeadInQueue:
    case Mutation::kRunsTooFar:
    case Mutation::kLockIgnored:
    case Mutation::kTokenMore:
    case Mutation::kWeightSkewed:
    case Mutation::kSlotMore:
    case Mutation::kStaleUpdate:
    case Mutation::kNeighbourForgotten:
    case Mutation::kLockstepBroken:
    case Mutation::kSourceForgotten:
    case Mutation::kDelayIgnored:
    case Mutation::kOpenedEarly:
    case Mutation::kBrokenPairGrouped:
    case Mutation::kPauseUntold:
      return std::make_unique<MutantEngine>(MakeEngine(spoilt), mutation);
    default:
      return MakeEngine(spoilt);
  }
}

}  // namespace prd::sim
