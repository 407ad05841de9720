// Engine eager, beside a model of its controller that looks at every worker at every event.
//
//   quorum           a round starts with as many as `quorum` says arrived (of those that have
//                    joined; majority: one at least), none starts while one runs, and one does as
//                    soon as it may
//   initiator        a round of a majority is started by the worker that the seed says
//   (section 4.2),
//                    drawn here anew among those there, by host and rank, when it first could start
//   max-stale        no worker is passed over in more than max_stale_rounds rounds in a row that
//                    succeed: neither contributing nor having arrived
//   contributors     who owes gradients contributes, nobody else
//   sync-every       of sync_every rounds the last is followed by an average, once all have arrived
#ifndef PRD_TOOLS_SIM_EAGER_RULES_H_
#define PRD_TOOLS_SIM_EAGER_RULES_H_

#include <cstdint>
#include <vector>

#include "engines/eager/options.h"
#include "engines/ring_order.h"
#include "tools/sim/engine_watch.h"

namespace prd::sim {

class EagerRules final : public EngineRules {
 public:
  explicit EagerRules(const EagerOptions& options) : options_(options) {}
  void Check(Instant now, const Event& event, std::span<const Effect> effects,
             std::int64_t joined) override;
  void Archive(StateArchive& ar) override;

 private:
  struct Worker {
    bool joined = false;
    bool waiting = false;
    bool in_round = false;    // which runs
    Iteration iteration = 0;  // of its signal
    std::uint32_t owed = 0;
    std::int64_t passed = 0;  // rounds that succeeded without it, in a row
    std::int32_t host = 0;
    void Archive(StateArchive& ar) { ar(joined, waiting, in_round, iteration, owed, passed, host); }
  };
  bool Arrived(const Worker& worker) const {
    return worker.joined && worker.waiting && worker.iteration == round_ + 1;
  }
  std::int64_t Arrived() const;
  bool SyncDue(std::int64_t joined) const;
  void Apply(const Event& event, std::int64_t joined);
  void OnEnded(bool ok);
  bool Overdue(const Worker& worker) const;
  void DrawInitiator(std::int64_t joined);
  void CheckInitiator(const FormGroup& group) const;
  void CheckRound(const FormGroup& group, std::int64_t joined);
  void CheckAverage(const FormGroup& group, std::int64_t joined);
  void CheckIdle(std::int64_t joined) const;
  std::int64_t Needed(std::int64_t joined) const;

  const EagerOptions options_;
  std::vector<Worker> workers_;  // by rank
  Iteration round_ = 0;          // the last one that succeeded
  Iteration last_sync_ = 0;
  GroupId running_ = kNoGroup;
  HostTable hosts_;
  Rank drawn_ = kNoRank;  // for the next round
  bool averaging_ = false;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_EAGER_RULES_H_
