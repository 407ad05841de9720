// The invariants of engine backup (Chen et al., 2016), beside a reference that looks at every
// worker at every event and decides for itself what the event must lead to.
//
// quorum: a round has N - b members or more of the N that have joined: all that wait, each once.
// One round runs at a time, and a round forms as soon as so many wait.
//
// weights: they are equal.
//
// iterations: a round's members offer gradients for its iteration, which follows the newest that is
// known to be committed.
//
// dropped: what is computed on a replica older than the newest is dropped, at once, and before a
// round forms; and nothing else is.
//
// explained: a worker has a reason to wait while it waits, and only then (in jobs of up to
// kMaxWatched workers).
#ifndef PRD_ENGINES_BACKUP_RULES_H_
#define PRD_ENGINES_BACKUP_RULES_H_

#include <memory>

#include "engines/backup/options.h"
#include "engines/rules.h"

namespace prd {

// Counts rounds, dropped.
std::unique_ptr<EngineRules> MakeRules(const BackupOptions& options);

}  // namespace prd

#endif  // PRD_ENGINES_BACKUP_RULES_H_
