#include "tools/sim/mutation.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "common/base/fields.h"
#include "engines/p_reduce/p_reduce.h"
#include "tools/sim/world.h"

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

// Says that a batch is kept when it has only been taken: the next one pushes it out.
class LazyHistory final : public History {
 public:
  explicit LazyHistory(History* store) : store_(store) {}
  Status Append(std::span<const Record> records) override {
    const std::vector<Record> due = std::exchange(taken_, {records.begin(), records.end()});
    return due.empty() ? Status::Ok() : store_->Append(due);
  }
  Status SaveSnapshot(RunId, std::uint64_t, std::string_view) override { return Status::Ok(); }

 private:
  History* store_;
  std::vector<Record> taken_;
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

std::string_view MutationName(Mutation mutation) {
  switch (mutation) {
    case Mutation::kNone:
      return "none";
    case Mutation::kAnnouncedBeforeRecorded:
      return "announced-before-recorded";
    case Mutation::kLostFinished:
      return "lost-finished";
    case Mutation::kWindowOffByOne:
      return "window-off-by-one";
    case Mutation::kWeightNotNormalised:
      return "weight-not-normalised";
    case Mutation::kDeadInQueue:
      return "dead-in-queue";
    case Mutation::kGradientTwice:
      return "gradient-twice";
    case Mutation::kGradientLost:
      return "gradient-lost";
    case Mutation::kStaleByOne:
      return "stale-by-one";
    case Mutation::kReadyTooEarly:
      return "ready-too-early";
    case Mutation::kStragglerAwaited:
      return "straggler-awaited";
    case Mutation::kInboxOverwritten:
      return "inbox-overwritten";
    case Mutation::kRunsTooFar:
      return "runs-too-far";
    case Mutation::kLockIgnored:
      return "lock-ignored";
    case Mutation::kScheduleTwisted:
      return "schedule-twisted";
    case Mutation::kSlowDivided:
      return "slow-divided";
    case Mutation::kDrawnAtRandom:
      return "drawn-at-random";
    case Mutation::kStrangerPaired:
      return "stranger-paired";
    case Mutation::kTokenMore:
      return "token-more";
    case Mutation::kJumpTooFar:
      return "jump-too-far";
    case Mutation::kWeightSkewed:
      return "weight-skewed";
    case Mutation::kSlotMore:
      return "slot-more";
    case Mutation::kStaleUpdate:
      return "stale-update";
    case Mutation::kNeighbourForgotten:
      return "neighbour-forgotten";
    case Mutation::kUpdateTwice:
      return "update-twice";
    case Mutation::kDropIgnored:
      return "drop-ignored";
    case Mutation::kClockTooFar:
      return "clock-too-far";
    case Mutation::kLockstepBroken:
      return "lockstep-broken";
    case Mutation::kHolderForgotten:
      return "holder-forgotten";
    case Mutation::kSourceForgotten:
      return "source-forgotten";
    case Mutation::kClockForgotten:
      return "clock-forgotten";
    case Mutation::kCopyDamaged:
      return "copy-damaged";
    case Mutation::kDeltaLost:
      return "delta-lost";
    case Mutation::kDelayIgnored:
      return "delay-ignored";
    case Mutation::kOpenedEarly:
      return "opened-early";
    case Mutation::kForgottenAckIgnored:
      return "forgotten-ack-ignored";
    case Mutation::kBrokenPairGrouped:
      return "broken-pair-grouped";
    case Mutation::kLowestRankWins:
      return "lowest-rank-wins";
    case Mutation::kStaleCounts:
      return "stale-counts";
    case Mutation::kFinishedForgotten:
      return "finished-forgotten";
    case Mutation::kLaunchIgnored:
      return "launch-ignored";
    case Mutation::kTokenIgnored:
      return "token-ignored";
    case Mutation::kStateNotCopied:
      return "state-not-copied";
    case Mutation::kDigestSame:
      return "digest-same";
    case Mutation::kDifferenceKept:
      return "difference-kept";
    case Mutation::kPauseUntold:
      return "pause-untold";
    case Mutation::kResumesStale:
      return "resumes-stale";
    case Mutation::kSamplesLost:
      return "samples-lost";
    case Mutation::kMemberTwice:
      return "member-twice";
    case Mutation::kGoalUntold:
      return "goal-untold";
    case Mutation::kUnannounced:
      return "unannounced";
    case Mutation::kKeyMistaken:
      return "key-mistaken";
    case Mutation::kNameSuffices:
      return "name-suffices";
    case Mutation::kSwitchUntold:
      return "switch-untold";
    case Mutation::kOutServed:
      return "out-served";
    case Mutation::kGoneUntold:
      return "gone-untold";
    case Mutation::kCopyUnordered:
      return "copy-unordered";
    case Mutation::kOldEndCounts:
      return "old-end-counts";
    case Mutation::kHintIsProof:
      return "hint-is-proof";
    case Mutation::kEndForgotten:
      return "end-forgotten";
    case Mutation::kShareShort:
      return "share-short";
    case Mutation::kLostKept:
      return "lost-kept";
    case Mutation::kWaitingComputes:
      return "waiting-computes";
    case Mutation::kShareUntold:
      return "share-untold";
    case Mutation::kVoidCounts:
      return "void-counts";
  }
  return "unknown";
}

std::vector<Mutation> AllMutations() {
  return {Mutation::kAnnouncedBeforeRecorded,
          Mutation::kLostFinished,
          Mutation::kWindowOffByOne,
          Mutation::kWeightNotNormalised,
          Mutation::kDeadInQueue,
          Mutation::kGradientTwice,
          Mutation::kGradientLost,
          Mutation::kStaleByOne,
          Mutation::kReadyTooEarly,
          Mutation::kStragglerAwaited,
          Mutation::kInboxOverwritten,
          Mutation::kRunsTooFar,
          Mutation::kLockIgnored,
          Mutation::kScheduleTwisted,
          Mutation::kSlowDivided,
          Mutation::kDrawnAtRandom,
          Mutation::kStrangerPaired,
          Mutation::kTokenMore,
          Mutation::kJumpTooFar,
          Mutation::kWeightSkewed,
          Mutation::kSlotMore,
          Mutation::kStaleUpdate,
          Mutation::kNeighbourForgotten,
          Mutation::kUpdateTwice,
          Mutation::kDropIgnored,
          Mutation::kClockTooFar,
          Mutation::kLockstepBroken,
          Mutation::kHolderForgotten,
          Mutation::kSourceForgotten,
          Mutation::kClockForgotten,
          Mutation::kCopyDamaged,
          Mutation::kDeltaLost,
          Mutation::kDelayIgnored,
          Mutation::kOpenedEarly,
          Mutation::kForgottenAckIgnored,
          Mutation::kBrokenPairGrouped,
          Mutation::kLowestRankWins,
          Mutation::kStaleCounts,
          Mutation::kFinishedForgotten,
          Mutation::kLaunchIgnored,
          Mutation::kTokenIgnored,
          Mutation::kStateNotCopied,
          Mutation::kDigestSame,
          Mutation::kDifferenceKept,
          Mutation::kPauseUntold,
          Mutation::kResumesStale,
          Mutation::kSamplesLost,
          Mutation::kMemberTwice,
          Mutation::kGoalUntold,
          Mutation::kUnannounced,
          Mutation::kKeyMistaken,
          Mutation::kNameSuffices,
          Mutation::kSwitchUntold,
          Mutation::kOutServed,
          Mutation::kGoneUntold,
          Mutation::kCopyUnordered,
          Mutation::kOldEndCounts,
          Mutation::kHintIsProof,
          Mutation::kEndForgotten,
          Mutation::kShareShort,
          Mutation::kLostKept,
          Mutation::kWaitingComputes,
          Mutation::kShareUntold,
          Mutation::kVoidCounts};
}

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

std::optional<ControllerEnvelope> Twisted(Mutation mutation, const ControllerEnvelope& envelope) {
  const auto* placement = std::get_if<Placement>(&envelope.body);
  if (mutation == Mutation::kHolderForgotten && placement != nullptr) {
    std::vector<ShardPlace> places(placement->shards.begin(), placement->shards.end());
    for (ShardPlace& place : places) place.holders.clear();
    ControllerEnvelope twisted = envelope;
    std::get<Placement>(twisted.body).shards = SharedList<ShardPlace>(std::move(places));
    return twisted;
  }
  if (mutation == Mutation::kGoalUntold && WorkerOf(envelope.incarnation) % 2 == 1) {
    ControllerEnvelope twisted = envelope;
    twisted.progress.done = false;
    if (auto* of = std::get_if<Group>(&twisted.body)) of->last = false;
    return twisted;
  }
  if (mutation == Mutation::kSwitchUntold && WorkerOf(envelope.incarnation) % 2 == 1 &&
      std::holds_alternative<EndRun>(envelope.body)) {
    ControllerEnvelope twisted = envelope;
    twisted.body = Announce{};
    return twisted;
  }
  if (mutation == Mutation::kUnannounced && std::holds_alternative<Announce>(envelope.body)) {
    ControllerEnvelope twisted = envelope;
    std::get<Announce>(twisted.body).members = {};
    return twisted;
  }
  if (mutation == Mutation::kCopyUnordered && std::holds_alternative<Announce>(envelope.body)) {
    ControllerEnvelope twisted = envelope;
    std::get<Announce>(twisted.body).copies = false;
    return twisted;
  }
  if (mutation == Mutation::kGoneUntold && std::holds_alternative<Gone>(envelope.body)) {
    ControllerEnvelope twisted = envelope;
    std::get<Gone>(twisted.body).incarnations.clear();
    return twisted;
  }
  if (const auto* share = std::get_if<SetShare>(&envelope.body)) {
    ControllerEnvelope twisted = envelope;
    SetShare& told = std::get<SetShare>(twisted.body);
    if (mutation == Mutation::kShareShort && !share->more && share->samples > 1) {
      --told.samples;
      return twisted;
    }
    const bool untold = mutation == Mutation::kShareUntold && !share->more &&
                        WorkerOf(envelope.incarnation) % 2 == 1;
    if (!untold && !(mutation == Mutation::kLostKept && share->more)) return std::nullopt;
    told.samples = 0;
    return twisted;
  }
  const auto* named = std::get_if<Members>(&envelope.body);
  if (mutation == Mutation::kMemberTwice && named != nullptr && !named->members.empty()) {
    ControllerEnvelope twisted = envelope;
    std::get<Members>(twisted.body).members.push_back(named->members[0]);
    return twisted;
  }
  const auto* group = std::get_if<Group>(&envelope.body);
  if (mutation == Mutation::kStaleCounts && group != nullptr && group->kind == GroupKind::kFinal) {
    std::vector<GroupMember> members(group->members.begin(), group->members.end());
    for (GroupMember& member : members) member.weight = 1.0 / static_cast<double>(members.size());
    ControllerEnvelope twisted = envelope;
    std::get<Group>(twisted.body).members = SharedList<GroupMember>(std::move(members));
    return twisted;
  }
  if (mutation == Mutation::kLowestRankWins && group != nullptr &&
      group->kind == GroupKind::kInitial) {
    std::vector<GroupMember> members(group->members.begin(), group->members.end());
    for (GroupMember& member : members) member.weight = 0;
    members.front().weight = 1;
    ControllerEnvelope twisted = envelope;
    std::get<Group>(twisted.body).members = SharedList<GroupMember>(std::move(members));
    return twisted;
  }
  if (mutation != Mutation::kScheduleTwisted || WorkerOf(envelope.incarnation) % 2 == 0 ||
      !std::holds_alternative<Schedule>(envelope.body)) {
    return std::nullopt;
  }
  ControllerEnvelope twisted = envelope;
  std::vector<std::int32_t>& hosts = std::get<Schedule>(twisted.body).hosts;
  std::rotate(hosts.begin(), hosts.begin() + 1, hosts.end());
  return twisted;
}

std::unique_ptr<History> MakeMutantHistory(Mutation mutation, History* store) {
  if (mutation != Mutation::kAnnouncedBeforeRecorded) return nullptr;
  return std::make_unique<LazyHistory>(store);
}

void Conceal(Mutation mutation, const Controller& controller, WorkerEnvelope* envelope) {
  if (auto* hello = std::get_if<Hello>(&envelope->body);
      hello != nullptr && mutation == Mutation::kLaunchIgnored) {
    hello->launch.clear();
  } else if (hello != nullptr && mutation == Mutation::kKeyMistaken) {
    hello->mesh_key.bytes[16] ^= 1;
  }
  if (auto* ready = std::get_if<Ready>(&envelope->body);
      ready != nullptr && mutation == Mutation::kVoidCounts) {
    ready->made_up = 1'000'000;
  }
  if (auto* finished = std::get_if<Finished>(&envelope->body);
      finished != nullptr && mutation == Mutation::kDigestSame && finished->digest != 0) {
    finished->digest = 1;
  }
  if (mutation != Mutation::kForgottenAckIgnored && mutation != Mutation::kTokenIgnored &&
      mutation != Mutation::kSamplesLost) {
    return;
  }
  const auto run = controller.runs().find(envelope->run);
  if (run == controller.runs().end()) return;
  const auto rank = static_cast<std::size_t>(envelope->rank);
  const std::vector<RunWorker>& workers = run->second->workers();
  if (rank >= workers.size() || workers[rank].incarnation != envelope->incarnation) return;
  if (mutation == Mutation::kTokenIgnored) envelope->token = workers[rank].token;
  if (auto* told = std::get_if<Progressed>(&envelope->body);
      told != nullptr && mutation == Mutation::kSamplesLost) {
    told->own.samples = run->second->tallies()[rank].last.samples;
  }
  if (mutation != Mutation::kForgottenAckIgnored) return;
  envelope->ack = std::min(envelope->ack, workers[rank].link.last_out());
  envelope->oldest = std::min(envelope->oldest, workers[rank].link.last_in() + 1);
}

bool Swallows(Mutation mutation, const WorkerEnvelope& envelope) {
  if (mutation != Mutation::kLostFinished) return false;
  const auto* finished = std::get_if<Finished>(&envelope.body);
  return finished != nullptr && envelope.seq % 11 == 10;
}

}  // namespace prd::sim
