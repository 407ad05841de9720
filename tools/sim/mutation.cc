#include "tools/sim/mutation.h"

#include <algorithm>
#include <utility>

#include "tools/sim/world.h"

namespace prd::sim {
namespace {

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
