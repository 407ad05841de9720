// Engine esync, beside Algorithm 2 of its paper, worked out anew at every answer from the events
// alone. Where it cannot be told from outside whom the controller counts (somebody copies a model,
// or has been taken out of the round as stalled), the answer is not judged.
//
//   ready            a worker is told READY if and only if it is the slowest, the slowest is ready,
//                    or it could not end another iteration before the slowest ends its own
//   wait             (blocking) who is READY waits less than one of its own iterations and the
//                    margin, but for what others have been off: iterations that did not take what
//                    the last one did, starts that were not at once, ways to the barrier
//   stall            no worker holds up those who wait once it is overdue: stall_factor times its
//                    longest iteration of late after its last sign of life
//   round            a group has all who wait, each told READY before it, with equal weights; one
//   at
//                    a time, and it forms as soon as all wait
#ifndef PRD_TOOLS_SIM_ESYNC_RULES_H_
#define PRD_TOOLS_SIM_ESYNC_RULES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "engines/esync/options.h"
#include "tools/sim/engine_watch.h"

namespace prd::sim {

class EsyncRules final : public EngineRules {
 public:
  explicit EsyncRules(const EsyncOptions& options) : options_(options) {}
  void Check(Instant now, const Event& event, std::span<const Effect> effects,
             std::int64_t joined) override;
  void Archive(StateArchive& ar) override;

 private:
  struct Worker {
    bool joined = false;
    bool timed = false;    // its capability is known
    bool untimed = false;  // its next query does not tell how long an iteration takes
    bool told = false;     // READY
    bool waiting = false;
    bool failed = false;  // in the running group
    bool doubtful = false;
    DurationNs capability = 0;  // c of Algorithm 2
    Instant last;               // its last query, or the start of the round for it
    std::uint32_t steps = 0;    // k
    GroupId group = kNoGroup;
    DurationNs longest = 0;  // of its iterations of late
    DurationNs off = 0;      // in this round
    Instant begun;           // the round, for it
    Instant told_at;
    void Archive(StateArchive& ar) {
      ar(joined, timed, untimed, told, waiting, failed, doubtful, capability, last, steps, group,
         longest, off, begun, told_at);
    }
  };
  Worker& At(Rank rank);
  bool Delayed() const { return options_.mode == EsyncOptions::Mode::kDelayedAck; }
  void Apply(Instant now, const Event& event);
  void OnReady(Instant now, const ReadyEvent& event);
  void OnEnded(Instant now, const EndedEvent& event);
  void CheckAnswer(Instant now, const Answer& answer);
  void CheckGroup(Instant now, const FormGroup& group);
  void CheckWaits(Instant now, const FormGroup& group);
  void CheckIdle() const;
  void CheckStall(Instant now);
  std::optional<DurationNs> Overdue(Instant now) const;

  const EsyncOptions options_;
  std::vector<Worker> workers_;  // by rank
  GroupId running_ = kNoGroup;
  std::int64_t overdue_seen_ = 0;  // events in a row
  Instant overdue_since_;          // the first of them
  bool smooth_ = false;            // nothing has gone wrong since the last group formed
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_ESYNC_RULES_H_
