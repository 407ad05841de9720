// The controller of a simulated job: the production one with a history in memory, an inbox, and a
// way to die.
//
//   replay-state    a controller that recovers has the state it had, but for one that has forgotten
//                   some of it, from a snapshot and from the first record alike
//   recorded-first  (laws.h) for every message it sends
//   ended-alive, death-known (connection_book.h)
//   forged          nothing comes of a message in the name of an incarnation that is there, without
//                   its token: no record, no answer, and no longer lease
#ifndef PRD_TOOLS_SIM_SIM_CONTROLLER_H_
#define PRD_TOOLS_SIM_SIM_CONTROLLER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engines/controller.h"
#include "tools/sim/connection_book.h"
#include "tools/sim/history_store.h"
#include "tools/sim/introductions.h"
#include "tools/sim/laws.h"
#include "tools/sim/mutation.h"
#include "tools/sim/world.h"

namespace prd::sim {

// A record in words, for a trace.
std::string Describe(const Record& record);

class SimController final : private Messenger {
 public:
  // `seen` gets every record that has become durable; `forgot` is called when the newest are so no
  // more.
  SimController(World* world, Mutation mutation, std::function<void(const Record&)> seen,
                std::function<void()> forgot);

  void Start();  // at first, and after a crash
  void Receive(Mailed mailed);
  // The connection's end is known where the controller runs.
  void OnConnectionEnds(std::uint32_t worker, std::uint64_t connection);
  void Turn();
  // An operator acts on the job. kUnavailable: it is not there, or could not write: whether the act
  // is recorded shows later.
  Status Act(const OperatorActed& act);
  // kFault: dies, stands still, or finds its wall clock changed, with the workload's probabilities.
  void MayDie(DurationNs period);
  void MayFreeze(DurationNs period);

  // The spec of a run, from what its RunStarted says.
  JobSpec SpecOf(const std::string& text) const;
  const Controller* controller() const { return controller_.get(); }
  const HistoryStore& store() const { return store_; }
  std::uint64_t restarts() const { return restarts_; }
  // Recovers once more from what is in the history, and compares. For the end of a run.
  void CheckReplay();

 private:
  struct End {
    std::uint32_t worker = 0;
    std::uint64_t connection = 0;
    Incarnation whose = 0;  // who spoke over it; 0: whoever claims it
  };

  void Send(const ControllerEnvelope& envelope) override;
  Result<JobSpec> Spec(const std::string& name) const;
  void NewLaws();
  std::unique_ptr<Controller> Recover(bool from_snapshots, History* history, Messenger* messenger);
  std::map<RunId, std::uint64_t> Hashes(const Controller& controller) const;
  void Compare(const std::map<RunId, std::uint64_t>& had, const Controller& controller,
               const char* how) const;
  void Take(const Mailed& mailed, std::int64_t wall_ns);
  void Wake();
  void TakeEnds();
  void Claim(const Mailed& mailed);
  void CheckForged(const WorkerEnvelope& forged, const Run& run, Rank rank, std::int64_t wall_ns);
  // The job and rank of a message's incarnation, if the message has another token.
  std::optional<std::pair<const Run*, Rank>> Forged(const WorkerEnvelope& envelope) const;
  bool HasFinished(const RunIdentity& run) const;
  void Die();
  void MayForget();
  void Flush();
  void TurnAt(Instant at);

  World* world_;
  Mutation mutation_;
  Prng identities_;           // of its own: no other draw depends on them
  std::optional<Laws> laws_;  // of what is in the history
  Introductions introductions_;
  const std::function<void()> forgot_;
  HistoryStore store_;
  std::unique_ptr<History> front_;  // between the controller and the store, for mutations
  std::unique_ptr<Controller> controller_;
  std::vector<Mailed> inbox_;
  // As WorkerSocket and its guard have them: incarnations' newest connections, and whose these are;
  // ends that are not taken yet, and connections whose ends are.
  std::map<Incarnation, std::uint64_t> connections_;
  std::map<std::uint64_t, Incarnation> claims_;
  std::vector<End> ends_;
  std::set<std::uint64_t> ended_;
  ConnectionBook book_;
  bool stalled_ = false;  // the last write failed
  Instant busy_until_;
  Instant frozen_until_;
  DurationNs wall_ahead_ = 0;   // of the wall clock, to the other one
  Instant turn_at_{INT64_MAX};  // the earliest turn that is scheduled
  std::uint64_t restarts_ = 0;
  std::map<RunId, std::uint64_t> hashes_;  // when it last died, if nothing was open then
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_SIM_CONTROLLER_H_
