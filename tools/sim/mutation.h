// Bugs planted on purpose, from outside the production code: what the simulator is worth is what it
// finds of them.
#ifndef PRD_TOOLS_SIM_MUTATION_H_
#define PRD_TOOLS_SIM_MUTATION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "engines/controller.h"
#include "engines/engine.h"
#include "engines/ports.h"
#include "engines/registry.h"

namespace prd::sim {

enum class Mutation : std::uint8_t {
  kNone = 0,
  kAnnouncedBeforeRecorded,  // Append returns before the records are kept
  kLostFinished,             // a worker's report on a group never reaches the job
  kWindowOffByOne,           // p-reduce looks at T + 1 groups
  kWeightNotNormalised,      // one member's weight is left at 1
  kDeadInQueue,              // the engine is not told that a waiting worker has left
  kGradientTwice,            // a gradient stays in the outbox although a round has it
  kGradientLost,             // the outbox is emptied although its round failed
  kStaleByOne,               // eager passes workers over once more than max_stale_rounds
  kReadyTooEarly,            // esync's margin is a second longer
  kStragglerAwaited,         // backup waits for one worker more
  kInboxOverwritten,         // an average in the background replaces what the inbox had
  kRunsTooFar,               // workers are told that they may run ahead one step further
  kLockIgnored,              // a drawn group forms although a member is in another one
  kScheduleTwisted,          // some workers are told of other hosts in a schedule
  kSlowDivided,              // prague's smart generator takes workers that are a request slower
  kDrawnAtRandom,            // prague draws random groups where it should divide
  kStrangerPaired,           // ad-psgd pairs workers that are no neighbours
  kTokenMore,                // hop has a token more than max_iteration_gap
  kJumpTooFar,               // hop lets workers skip further than max_jump
  kWeightSkewed,             // a worker's neighbours weigh more for it, and it less
  kSlotMore,                 // workers are given a slot too many
  kStaleUpdate,              // workers use neighbours' updates that are two iterations older
  kNeighbourForgotten,       // workers go on with one neighbour's update fewer
  kUpdateTwice,              // a neighbour's update counts twice in an average
  kDropIgnored,              // updates that are to be dropped stay in the queue
  kClockTooFar,              // ssp lets workers be a clock further ahead
  kLockstepBroken,           // in lockstep, updates are read before their clock is over
  kHolderForgotten,          // owners do not see to copies
  kSourceForgotten,          // a shard begins anew although it is there
  kClockForgotten,           // who gets a shard does not learn which updates are in it
  kCopyDamaged,              // a holder's copy has other values
  kDeltaLost,                // an update is not added, and said to be
  kDelayIgnored,         // staleness-aware, a delayed update counts in full; else one counts less
  kOpenedEarly,          // a placement opens at once
  kForgottenAckIgnored,  // the controller does not see that a worker knows of more than it does
  kBrokenPairGrouped,    // the engine is not told that a link is broken
  kLowestRankWins,  // a start of workers that have trained before takes the lowest rank's replica
  kStaleCounts,     // in the final average all count alike, whoever stopped when
  kFinishedForgotten,  // the controller does not know the runs that its workers have finished
  kLaunchIgnored,      // workers do not say of which launch they are
  kTokenIgnored,       // a message is taken whatever its token is
  kStateNotCopied,     // what is kept beside a replica's parameters is not copied with them
  kDigestSame,         // workers tell one digest whatever their parameters are
  kDifferenceKept,     // replicas that differ are not repaired
  kPauseUntold,        // the engine is not told that a worker pauses
  kResumesStale,       // who resumes keeps its own replica, and says that it has copied one
  kSamplesLost,        // of steps that are told when a worker pauses, the samples do not count
  kMemberTwice,        // a worker is named twice to those who average all replicas
  kGoalUntold,         // some workers are not told that the goal is reached
  kUnannounced,        // workers are not told of those who will turn to them
  kKeyMistaken,        // the controller announces keys of the mesh that no worker has
  kNameSuffices,       // a mesh lets in who says a member's name, whatever its key is
  kSwitchUntold,       // some workers are not told that the job goes on in another run
  kOutServed,          // a mesh keeps a member that the controller says is out
  kGoneUntold,         // workers are not told who is out
  kCopyUnordered,      // sources are not told who may copy from them
  kOldEndCounts,  // the end of a connection that a process had before counts for the one it has now
  kHintIsProof,   // who is out of a peer's reach counts as one whose connection has ended
  kEndForgotten,  // the end of a connection is forgotten if the controller cannot write just then
  kShareShort,    // shares sum to a sample less than the batch
  kLostKept,      // what a lost worker was to compute of a step is given to nobody
  kWaitingComputes,  // workers tell the time of whole steps as that of computing
  kShareUntold,      // some workers are not told their shares
  kVoidCounts,       // a signal counts that was sent before the worker heard of more to compute
};

std::string_view MutationName(Mutation mutation);
// All but kNone.
std::vector<Mutation> AllMutations();

// The engine with the bug, or as it is.
std::unique_ptr<Engine> MakeMutant(const EngineOptions& options, Mutation mutation, int workers);

// What a worker is sent instead, if anything.
std::optional<ControllerEnvelope> Twisted(Mutation mutation, const ControllerEnvelope& envelope);

// A history in front of `store` with the bug, or null.
std::unique_ptr<History> MakeMutantHistory(Mutation mutation, History* store);

// A message of a worker that has just arrived, as the controller is to take it.
void Conceal(Mutation mutation, const Controller& controller, WorkerEnvelope* envelope);

// True if this message of a worker, which has just arrived, is to be lost for good.
bool Swallows(Mutation mutation, const WorkerEnvelope& envelope);

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_MUTATION_H_
