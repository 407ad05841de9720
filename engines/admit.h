// Which messages and orders a run takes in its present state. Nothing here changes the run.
#ifndef PRD_ENGINES_ADMIT_H_
#define PRD_ENGINES_ADMIT_H_

#include <optional>
#include <string>

#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/messages.h"
#include "engines/run_state.h"
#include "prd/status.h"

namespace prd {

// What to do with a worker's message.
struct Admission {
  // kForeign: from somebody who has not the token of the incarnation that the message names. It is
  // not answered: the answer would go to that incarnation.
  enum class Verdict { kStep, kDuplicate, kGap, kRefuse, kForeign } verdict;
  Rank rank = kNoRank;  // of the sender; kNoRank for a Hello to be stepped
  std::optional<Refused> refusal = std::nullopt;  // for kRefuse
};
Admission Admit(const RunState& run, const WorkerEnvelope& envelope);

// Whether the message names an incarnation that is there, and has not its token: Admit says
// kForeign, whatever else it names.
bool IsForeign(const RunState& run, const WorkerEnvelope& envelope);

// What is wrong with a ready signal of a worker that is there; empty: nothing.
std::string CheckReady(const RunState& run, Rank rank, const Ready& ready);

// Whether an operator can do this now; else why not.
Status CheckAct(const RunState& run, const OperatorActed& act);

// A worker is on the host that operators call so.
bool OnHost(const RunWorker& worker, const std::string& host);

}  // namespace prd

#endif  // PRD_ENGINES_ADMIT_H_
