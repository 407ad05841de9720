// Options of the engine `backup` (Chen et al., Revisiting Distributed Synchronous SGD, 2016).
#ifndef PRD_ENGINES_BACKUP_OPTIONS_H_
#define PRD_ENGINES_BACKUP_OPTIONS_H_

#include "prd/status.h"

namespace prd {

struct BackupOptions {
  // b: of N joined workers, a round waits for N - b, but for one at least. 0 waits for all.
  int backups = 1;

  friend bool operator==(const BackupOptions&, const BackupOptions&) = default;
};

// Ok, or what is wrong: "KEY: found X, allowed is Y". workers = those the job starts with, 0 if not
// known.
Status Validate(const BackupOptions& options, int workers);

}  // namespace prd

#endif  // PRD_ENGINES_BACKUP_OPTIONS_H_
