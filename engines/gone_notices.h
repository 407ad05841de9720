// Tells workers which incarnations are over: they forget these, and serve them no more.
//
// A worker that left, or whose lease ran out, may have sent before what others still read: its part
// of a group that they are in, or its replica. Those are told once they are through with that. An
// eviction is told at once, even if a group fails for it. Not thread safe.
#ifndef PRD_ENGINES_GONE_NOTICES_H_
#define PRD_ENGINES_GONE_NOTICES_H_

#include <map>
#include <vector>

#include "common/base/history.h"
#include "common/base/ids.h"
#include "engines/group_table.h"
#include "engines/roster.h"
#include "engines/run_worker.h"

namespace prd {

class GoneNotices {
 public:
  explicit GoneNotices(Roster* roster) : roster_(*roster), slots_(roster->Of<GoneSlot>()) {}

  // The worker that held this rank is gone. `gone`: its row, which is empty now.
  void Note(Rank rank, const RunWorker& gone, LeftReason why,
            const std::map<GroupId, RunningGroup>& groups);
  // Tells what has come since the last call, and what was put off and is due. Call at the end of
  // each input: after it, no message names a worker that is gone.
  void Send();
  void Clear();
  void Restore();  // after a load

 private:
  Roster& roster_;
  SlotColumn<GoneSlot> slots_;
  std::vector<Incarnation> gone_;  // since the last Send(); empty between two inputs
  bool put_off_ = false;           // a worker may have some `untold` (derived)
};

}  // namespace prd

#endif  // PRD_ENGINES_GONE_NOTICES_H_
