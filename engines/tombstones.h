// What the controller remembers of incarnations and runs that are over, so that none comes back.
// Bounded: the oldest is forgotten first. After a restart it has what is in the records that were
// read. Not thread safe.
#ifndef PRD_ENGINES_TOMBSTONES_H_
#define PRD_ENGINES_TOMBSTONES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/newest.h"

namespace prd {

class Tombstones {
 public:
  // This incarnation has left, or was lost: a late Hello of it is refused.
  void RememberGone(Incarnation incarnation) { gone_.Add(incarnation); }
  bool IsGone(Incarnation incarnation) const { return gone_.contains(incarnation); }

  // Operators have removed these incarnations, the newest last: they do not come back as others.
  void RememberDismissed(const std::vector<Dismissal>& dismissed);
  // What a removed incarnation is told. nullptr: no operator has removed it.
  const std::string* WhyDismissed(Incarnation incarnation) const {
    return dismissed_.Find(incarnation);
  }

  // This run has ended. `identity`: the higher half of its RunIdentity. `finished`: its workers
  // ended it (RunEnded::finished).
  void RememberEnded(RunId run, const std::string& job, std::uint64_t identity, bool finished);
  // Why a worker that was trained in the run `former` is not admitted: that run, or a later one of
  // its job, was finished. Empty: the worker may be admitted.
  std::string RejectReason(const RunIdentity& former) const;

 private:
  struct EndedRun {
    RunId run = kNoRun;
    std::string job;
  };
  // More than workers can lose while one of their messages is under way.
  Newest<Incarnation> gone_{65'536};
  Newest<Incarnation, std::string> dismissed_{4096};
  Newest<std::uint64_t, EndedRun> ended_{65'536};  // by identity
  std::map<std::string, RunId> finished_;  // by job: the newest run in `ended_` that was finished
};

}  // namespace prd

#endif  // PRD_ENGINES_TOMBSTONES_H_
