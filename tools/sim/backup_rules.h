// Engine backup, beside a model of its controller that looks at every worker at every event.
//
//   quorum          a round has N - b members or more of the N that have joined, all that wait,
//   with
//                   equal weights; one at a time, and it forms as soon as so many wait
//   iterations      a round's members offer gradients for its iteration, which follows the newest
//                   that is committed
//   dropped         once a round is committed, what others work on is dropped, at once; and nothing
//                   else is
#ifndef PRD_TOOLS_SIM_BACKUP_RULES_H_
#define PRD_TOOLS_SIM_BACKUP_RULES_H_

#include <cstdint>
#include <vector>

#include "engines/backup/options.h"
#include "tools/sim/engine_watch.h"

namespace prd::sim {

class BackupRules final : public EngineRules {
 public:
  explicit BackupRules(const BackupOptions& options) : options_(options) {}
  void Check(Instant now, const Event& event, std::span<const Effect> effects,
             std::int64_t joined) override;
  void Archive(StateArchive& ar) override;

 private:
  struct Worker {
    bool joined = false;
    bool waiting = false;
    bool unknown = false;  // copies a replica, and has not signalled since
    bool failed = false;   // in the running round
    Iteration model = 0;   // its replica's iteration
    GroupId group = kNoGroup;
    void Archive(StateArchive& ar) { ar(joined, waiting, unknown, failed, model, group); }
  };
  Worker& At(Rank rank);
  void Apply(const Event& event);
  void CheckGroup(const FormGroup& group, std::int64_t joined);
  void CheckDrop(const CatchUp& late);
  void CheckAll(std::int64_t joined) const;
  std::int64_t Needed(std::int64_t joined) const;

  const BackupOptions options_;
  std::vector<Worker> workers_;  // by rank
  Iteration committed_ = 0;      // the newest of those whose replica is known, or was when it left
  Iteration iteration_ = 0;      // of the running round
  GroupId running_ = kNoGroup;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_BACKUP_RULES_H_
