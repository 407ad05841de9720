// Why the workers of a run wait, in words.
#ifndef PRD_ENGINES_EXPLAIN_H_
#define PRD_ENGINES_EXPLAIN_H_

#include <string>

#include "common/base/ids.h"
#include "common/base/time.h"
#include "engines/run_state.h"

namespace prd {

// Why this worker waits, or what it did last.
std::string Explain(const RunState& run, Instant now, Rank rank);

// Why the run has not begun for this worker, or for whom the worker has waited for some seconds.
// Empty: it does not wait.
std::string WaitsFor(const RunState& run, Instant now, Rank rank);

// The start that workers wait for; empty: nobody waits for one.
std::string StartWaits(const RunState& run, Instant now);

}  // namespace prd

#endif  // PRD_ENGINES_EXPLAIN_H_
