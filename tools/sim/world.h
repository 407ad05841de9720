// What the parts of a simulation share: the time, what happens next, and the seeded dice.
#ifndef PRD_TOOLS_SIM_WORLD_H_
#define PRD_TOOLS_SIM_WORLD_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/archive.h"
#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/prng.h"
#include "tools/sim/cards.h"
#include "tools/sim/event_queue.h"
#include "tools/sim/links.h"
#include "tools/sim/workload.h"

namespace prd::sim {

// Incarnations carry their worker's number, so that messages find it.
inline constexpr int kWorkerBits = 20;
inline std::uint32_t WorkerOf(Incarnation incarnation) {
  return static_cast<std::uint32_t>(incarnation & ((1u << kWorkerBits) - 1));
}

// What a round of gradients came to (GroupKind::kRound).
struct RoundResult {
  std::uint64_t number = 0;  // of the reduction: after a loss of history another group has this id
  GroupId group = kNoGroup;
  Iteration round = 0;
  std::vector<double> sum;               // empty when nothing is trained
  std::vector<std::uint64_t> gradients;  // in it, by number (gradient_book.h)
};

// AveragesInBackground: what groups do to a replica while its training loop computes.
struct Overlap {
  std::vector<double> outbox;  // parameters and inbox, as the reduction in progress took them
  std::uint64_t outbox_tag = 0;
  Iteration gain = 0;         // what its result adds to the replica's iteration
  std::vector<double> inbox;  // averages' differences that are not in the parameters yet,
  std::int64_t averages = 0;  // of so many groups,
  std::uint64_t inbox_tag = 0;
  Iteration gained = 0;  // and what they add to the replica's iteration
};

// One replica: what the data plane reads and writes.
struct Replica {
  std::vector<double> x;         // parameters; empty when nothing is trained
  std::vector<double> gradient;  // of the step being taken
  std::vector<double> initial;   // parameters after the common start
  std::uint64_t tag = 0;         // equal replicas have equal tags, also when nothing is trained
  std::uint64_t initial_tag = 0;
  std::uint64_t state = 0;  // kept beside the parameters (Replica::state); Landing::kGradients
  Iteration iteration = 0;
  bool trained = false;         // is or was a job's, in this process
  bool paused = false;          // its worker pauses
  Iteration told = 0;           // its iteration, in its worker's newest Hello or Adopted
  RunId run = kNoRun;           // that counts on this replica
  RunId averaged = kNoRun;      // whose final average it is
  bool removed = false;         // its incarnation, by the controller: nobody counts on it any more
  Incarnation incarnation = 0;  // of the mesh; 0: not there

  // TrainsInRounds: what is owed, as a sum and by number; results that have not been applied, in
  // order; the newest round that is in the replica with them, which rounds those are (equal rounds,
  // equal numbers), and its result while it can be fetched here.
  std::vector<double> outbox;
  std::vector<std::uint64_t> owed;
  std::vector<std::shared_ptr<const RoundResult>> inbox;
  Iteration newest = 0;
  std::uint64_t lineage = 0;
  std::shared_ptr<const RoundResult> last_round;

  // Payload::kChange: parameters as after the last round.
  std::vector<double> base;
  std::uint64_t base_tag = 0;

  Overlap overlap;

  // As Finished::digest.
  std::uint64_t Digest() const {
    const std::string_view values(reinterpret_cast<const char*>(x.data()), x.size() * sizeof x[0]);
    return HashBytes(values, tag) | 1;
  }
};

// To the controller. `connection` 0: somebody else's than the worker's, in its name.
struct Mailed {
  WorkerEnvelope envelope;
  std::uint64_t connection = 0;
};

struct World {
  static constexpr std::uint64_t kOwnSequence = 0x6469636500000000u;

  World(const Workload& what, std::uint64_t run)
      : workload(what),
        seed(run),
        prng(run),
        replicas(static_cast<std::size_t>(what.cluster.workers)),
        cut_until(static_cast<std::size_t>(what.cluster.workers)),
        dice(Prng(seed ^ kOwnSequence).Next()),
        frozen_until(static_cast<std::size_t>(what.cluster.workers)),
        links(what.faults),
        cards(what),
        connections(static_cast<std::size_t>(what.cluster.workers)),
        last_up_(static_cast<std::size_t>(what.cluster.workers)),
        last_down_(static_cast<std::size_t>(what.cluster.workers)) {}

  bool FaultsOn() const { return now.ns < FromMs(workload.faults.until_ms); }
  // A fault with this probability, drawn only while faults are on.
  bool Fault(double probability) {
    return probability > 0 && FaultsOn() && prng.Unit() < probability;
  }
  // The same with `dice`.
  bool Rolled(double probability) {
    return probability > 0 && FaultsOn() && dice.Unit() < probability;
  }
  // What goes wrong now lasts until then.
  void Disturbed(Instant until) { disturbed_until = std::max(disturbed_until, until); }
  bool Frozen(std::uint32_t worker) const { return now < frozen_until[worker]; }
  // Its process is there and runs, and a question to it and its answer get through.
  bool Answers(std::uint32_t worker, Incarnation asked) const {
    const std::uint32_t other = WorkerOf(asked);
    return Lives(asked) && !Frozen(other) && links.Pass(now, worker, other) &&
           links.Pass(now, other, worker);
  }
  // How long a process stands still that is frozen now.
  DurationNs FreezeNs() {
    const double leases = 1 + (workload.faults.freeze_leases - 1) * dice.Unit();
    return static_cast<DurationNs>(leases * static_cast<double>(LeaseNs()));
  }
  DurationNs LeaseNs() const { return workload.job.lease_ms * kMillisecond; }
  // Runs as they began, from 1: what a RunId is while no controller forgets, after which it may
  // come again.
  RunId NumberOf(const RunIdentity& run) const {
    const auto found = runs.find(run.high);
    return found == runs.end() ? kNoRun : found->second;
  }
  // As the run's engine has it, whatever workers are told; `run` as NumberOf.
  const Plan& PlanOf(RunId run) const {
    const auto found = plans.find(run);
    return found == plans.end() ? first_plan : found->second;
  }
  Incarnation NewIncarnation(std::uint32_t worker) {
    return (((prng.Next() >> 1) | 1) << kWorkerBits) | worker;
  }
  bool Lives(Incarnation incarnation) const {
    const std::uint32_t worker = WorkerOf(incarnation);
    return worker < replicas.size() && replicas[worker].incarnation == incarnation;
  }
  std::int64_t HostOf(std::uint32_t worker) const {
    return worker / workload.cluster.workers_per_host;
  }

  // A control message on its way: it may be lost, doubled or overtaken. `own`: over the worker's
  // own connection.
  void SendToController(std::uint32_t from, const WorkerEnvelope& envelope, bool own = true) {
    for (int copies = Copies(from); copies > 0; --copies) {
      queue.Push(Arrival(&last_up_[from]), EventKind::kToController, from,
                 to_controller.Put({envelope, own ? connections[from].number : 0}));
    }
  }
  void SendToWorker(const ControllerEnvelope& envelope) {
    const std::uint32_t to = WorkerOf(envelope.incarnation);
    for (int copies = Copies(to); copies > 0; --copies) {
      queue.Push(Arrival(&last_down_[to]), EventKind::kToWorker, to, to_worker.Put(envelope));
    }
  }

  // Whether ends of connections are told at all.
  bool tells_ends() const { return workload.faults.ends_told > 0; }
  // What was sent over it may still arrive, and be overtaken by its end; one end in ten comes up to
  // 500 ms late. The worker has another one
  // from `again` on. `told`: the controller may hear of the end.
  void EndConnection(std::uint32_t worker, Instant again, bool told = true) {
    if (!tells_ends()) return;
    Connection& connection = connections[worker];
    if (told && connection.number > 0 && dice.Unit() < workload.faults.ends_told) {
      const DurationNs late = FromMs(dice.Unit() < 0.1 ? 500 * dice.Unit() : 0);
      queue.Push(now + FromUs(workload.network.delay_us) + late, EventKind::kConnectionEnds, worker,
                 connection.number);
    }
    connection = {.number = ++last_connection_, .from = again};
    queue.Push(again, EventKind::kConnected, worker, connection.number);
  }

  struct Connection {
    std::uint64_t number = 0;  // ascends; 0: there are none
    Instant from;              // nothing gets through before
  };

  const Workload& workload;
  Instant now;
  EventQueue queue;
  const std::uint64_t seed;  // of the run
  Prng prng;
  std::vector<Replica> replicas;   // by worker
  std::vector<Instant> cut_until;  // by worker: no control message gets through before
  // For faults that came after others: a sequence of their own, so that runs without them stay the
  // same.
  Prng dice;
  std::vector<Instant> frozen_until;  // by worker: its process stands still before
  Links links;
  Cards cards;
  std::map<std::uint64_t, RunId> runs;  // all that ever were, by identity
  Plan first_plan;                      // of the workload's engine
  std::map<RunId, Plan> plans;          // of the runs that have another one
  struct Former {                       // of a run that continues another one
    RunId run = kNoRun;
    std::set<Rank> with_model;  // who took that run's final average, as the history says
  };
  std::map<RunId, Former> former;
  RunId finished = kNoRun;          // of these, the newest that its workers ended (RunEnded)
  std::set<Incarnation> dismissed;  // by an operator
  std::uint64_t launch = 1;         // the newest
  DurationNs longest_step = 0;      // computed so far, but for those that a freeze drew out
  bool forgot = false;              // the controller, ever
  Instant disturbed_until;          // a fault that has begun lasts until then, as far as is known
  std::vector<Connection> connections;  // by worker
  Mail<Mailed> to_controller;
  Mail<ControllerEnvelope> to_worker;
  std::uint64_t messages = 0;  // sent, also those that were lost

 private:
  int Copies(std::uint32_t worker) {
    ++messages;
    if (now < cut_until[worker] || now < connections[worker].from || Fault(workload.faults.loss))
      return 0;
    return Fault(workload.faults.duplicate) ? 2 : 1;
  }
  // One connection keeps the order of its messages, but for those that are held up.
  Instant Arrival(Instant* last) {
    const NetworkPart& network = workload.network;
    const DurationNs delay = FromUs(network.delay_us + network.jitter_us * prng.Unit());
    if (network.slow_probability > 0 && prng.Unit() < network.slow_probability) {
      return now + delay + FromMs(network.slow_ms * prng.Unit());
    }
    *last = std::max(*last, now + delay);
    return *last;
  }

  std::vector<Instant> last_up_, last_down_;  // by worker
  std::uint64_t last_connection_ = 0;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_WORLD_H_
