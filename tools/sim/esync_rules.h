// Engine esync, beside Algorithm 2 of its paper, worked out anew at every answer from the events
// alone. Where it cannot be told from outside whom the controller counts (somebody copies a model,
// or has been taken out of the round as stalled), the answer is not judged.
//
//   ready            a worker is told READY if and only if it is the slowest, the slowest is ready,
//                    or it could not end another iteration before the slowest ends its own
//   round            a group has all who wait, each told READY before it, with equal weights; one
//   at
//                    a time, and it forms as soon as all wait
#ifndef PRD_TOOLS_SIM_ESYNC_RULES_H_
#define PRD_TOOLS_SIM_ESYNC_RULES_H_

#include <cstdint>
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
    void Archive(StateArchive& ar) {
      ar(joined, timed, untimed, told, waiting, failed, doubtful, capability, last, steps, group);
    }
  };
  Worker& At(Rank rank);
  bool Delayed() const { return options_.mode == EsyncOptions::Mode::kDelayedAck; }
  void Apply(Instant now, const Event& event);
  void OnReady(Instant now, const ReadyEvent& event);
  void OnEnded(Instant now, const EndedEvent& event);
  void CheckAnswer(Instant now, const Answer& answer);
  void CheckGroup(const FormGroup& group);
  void CheckIdle() const;

  const EsyncOptions options_;
  std::vector<Worker> workers_;  // by rank
  GroupId running_ = kNoGroup;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_ESYNC_RULES_H_
