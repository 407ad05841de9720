#include "tests/sim/mutant_hunt.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "engines/registry.h"

namespace prd::sim {
namespace {

constexpr std::uint64_t kBaseSeeds[] = {1, 100'001, 200'001, 300'001, 400'001};

// 0: none of the seeds from `first` on finds it.
std::uint64_t SeedsUntilFound(const Mutant& mutant, std::uint64_t first, std::uint64_t most,
                              const Finds& finds) {
  void* const shared =
      mmap(nullptr, sizeof first, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) std::abort();
  auto* const tried = static_cast<volatile std::uint64_t*>(shared);
  *tried = 0;
  std::fflush(stdout);
  const pid_t child = fork();
  if (child < 0) std::abort();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stdout) == nullptr) _exit(2);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(2);
    for (std::uint64_t i = 0; i < most; ++i) {
      *tried = i + 1;
      try {
        if (finds(mutant, first + i)) _exit(1);
      } catch (const std::exception&) {
        _exit(1);
      }
    }
    _exit(0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) std::abort();
  const bool found = !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const std::uint64_t seeds = found ? *tried : 0;
  munmap(shared, sizeof first);
  return seeds;
}

}  // namespace

std::vector<Mutant> AllMutants() {
  std::vector<Mutant> all;
  const auto add = [&all](Mutation mutation, std::vector<EngineOptions> engines) {
    for (EngineOptions& engine : engines) all.push_back({mutation, std::move(engine)});
  };
  add(Mutation::kNone, AllEngines());  // the control
  for (const Mutation mutation : AllMutations()) {
    switch (mutation) {
      case Mutation::kNone:
        break;
      case Mutation::kAnnouncedBeforeRecorded:
      case Mutation::kLostFinished:
      case Mutation::kForgottenAckIgnored:
      case Mutation::kLowestRankWins:
      case Mutation::kStaleCounts:
      case Mutation::kFinishedForgotten:
      case Mutation::kLaunchIgnored:
      case Mutation::kTokenIgnored:
      case Mutation::kSamplesLost:
      case Mutation::kMemberTwice:
      case Mutation::kGoalUntold:
      case Mutation::kUnannounced:
      case Mutation::kKeyMistaken:
      case Mutation::kNameSuffices:
      case Mutation::kSwitchUntold:
      case Mutation::kOutServed:
      case Mutation::kGoneUntold:
      case Mutation::kCopyUnordered:
      case Mutation::kOldEndCounts:
      case Mutation::kHintIsProof:
      case Mutation::kEndForgotten:
        all.push_back({mutation, std::nullopt});
        break;
      case Mutation::kShareShort:
      case Mutation::kLostKept:
      case Mutation::kWaitingComputes:
      case Mutation::kShareUntold:
      case Mutation::kVoidCounts:
        all.push_back({mutation, AllReduceOptions{}});
        break;
      case Mutation::kWindowOffByOne:
        add(mutation, {PReduceOptions{}});
        break;
      case Mutation::kWeightNotNormalised:
        add(mutation, {AllReduceOptions{}, PReduceOptions{}, EagerOptions{}, BackupOptions{},
                       EsyncOptions{}, PragueOptions{}, AdPsgdOptions{}});
        break;
      case Mutation::kDeadInQueue:
        add(mutation, AllEngines());
        break;
      case Mutation::kGradientTwice:
      case Mutation::kGradientLost:
      case Mutation::kStaleByOne:
        add(mutation, {EagerOptions{}});
        break;
      case Mutation::kReadyTooEarly:
        add(mutation, {EsyncOptions{}});
        break;
      case Mutation::kStragglerAwaited:
        add(mutation, {BackupOptions{}});
        break;
      case Mutation::kStateNotCopied:
      case Mutation::kResumesStale:
        add(mutation, {AllReduceOptions{}, BackupOptions{}});
        break;
      case Mutation::kDigestSame:
      case Mutation::kDifferenceKept:
        add(mutation, {AllReduceOptions{}, BackupOptions{}, EsyncOptions{}});
        break;
      case Mutation::kPauseUntold:
        add(mutation, AllEngines());
        break;
      case Mutation::kBrokenPairGrouped:
      case Mutation::kInboxOverwritten:
      case Mutation::kRunsTooFar:
        add(mutation, {PReduceOptions{}, PragueOptions{}, AdPsgdOptions{}});
        break;
      case Mutation::kLockIgnored:
        add(mutation, {PragueOptions{}, AdPsgdOptions{}});
        break;
      case Mutation::kScheduleTwisted:
      case Mutation::kSlowDivided:
      case Mutation::kDrawnAtRandom:
        add(mutation, {PragueOptions{}});
        break;
      case Mutation::kStrangerPaired:
        add(mutation, {AdPsgdOptions{}});
        break;
      case Mutation::kTokenMore:
      case Mutation::kJumpTooFar:
      case Mutation::kWeightSkewed:
      case Mutation::kSlotMore:
      case Mutation::kStaleUpdate:
      case Mutation::kNeighbourForgotten:
      case Mutation::kUpdateTwice:
      case Mutation::kDropIgnored:
        add(mutation, {HopOptions{}});
        break;
      case Mutation::kClockTooFar:
      case Mutation::kLockstepBroken:
      case Mutation::kHolderForgotten:
      case Mutation::kSourceForgotten:
      case Mutation::kClockForgotten:
      case Mutation::kCopyDamaged:
      case Mutation::kDeltaLost:
      case Mutation::kDelayIgnored:
      case Mutation::kOpenedEarly:
        add(mutation, {SspOptions{}});
        break;
    }
  }
  return all;
}

bool ChangesDecisions(Mutation mutation) {
  switch (mutation) {
    case Mutation::kNone:
    case Mutation::kWindowOffByOne:
    case Mutation::kWeightNotNormalised:
    case Mutation::kDeadInQueue:
    case Mutation::kStaleByOne:
    case Mutation::kReadyTooEarly:
    case Mutation::kStragglerAwaited:
    case Mutation::kLockIgnored:
    case Mutation::kSlowDivided:
    case Mutation::kDrawnAtRandom:
    case Mutation::kStrangerPaired:
    case Mutation::kTokenMore:
    case Mutation::kJumpTooFar:
    case Mutation::kWeightSkewed:
    case Mutation::kSlotMore:
    case Mutation::kClockTooFar:
    case Mutation::kSourceForgotten:
    case Mutation::kOpenedEarly:
    case Mutation::kBrokenPairGrouped:
      return true;
    default:
      return false;
  }
}

void Hunt(const std::string& driver, const std::vector<Mutant>& mutants, std::uint64_t most,
          const Finds& finds) {
  constexpr std::size_t kBases = std::size(kBaseSeeds);
  for (const Mutant& mutant : mutants) {
    const std::uint64_t seeds_at_most = mutant.mutation == Mutation::kNone ? most / 10 : most;
    std::string text;
    std::vector<std::uint64_t> found;
    for (std::size_t i = 0; i < kBases && !(i >= 2 && found.empty()); ++i) {
      const std::uint64_t seeds = SeedsUntilFound(mutant, kBaseSeeds[i], seeds_at_most, finds);
      text += (i == 0 ? "" : " ") + (seeds > 0 ? std::to_string(seeds) : "-");
      if (seeds > 0) found.push_back(seeds);
    }
    std::sort(found.begin(), found.end());
    const bool half = found.size() > kBases / 2;
    std::printf("%s\t%s\t%s\t%s\t%s\n", driver.c_str(),
                std::string(MutationName(mutant.mutation)).c_str(),
                mutant.engine ? std::string(EngineName(*mutant.engine)).c_str() : "any",
                half ? std::to_string(found[kBases / 2]).c_str() : "-", text.c_str());
    std::fflush(stdout);
  }
}

}  // namespace prd::sim
