// What the parts of a simulation share: the time, what happens next, and the seeded dice.
#ifndef PRD_TOOLS_SIM_WORLD_H_
#define PRD_TOOLS_SIM_WORLD_H_

#include <algorithm>
#include <cstdint>
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
#include "tools/sim/control_links.h"
#include "tools/sim/event_queue.h"
#include "tools/sim/links.h"
#include "tools/sim/run_table.h"
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

struct World {
  static constexpr std::uint64_t kOwnSequence = 0x6469636500000000u;

  World(const Workload& what, std::uint64_t run)
      : workload(what),
        seed(run),
        prng(run),
        replicas(static_cast<std::size_t>(what.cluster.workers)),
        dice(Prng(seed ^ kOwnSequence).Next()),
        frozen_until(static_cast<std::size_t>(what.cluster.workers)),
        links(what.faults),
        cards(what),
        control(this, static_cast<std::size_t>(what.cluster.workers)) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

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

  const Workload& workload;
  Instant now;
  EventQueue queue;
  const std::uint64_t seed;  // of the run
  Prng prng;
  std::vector<Replica> replicas;  // by worker
  // For faults that came after others: a sequence of their own, so that runs without them stay the
  // same.
  Prng dice;
  std::vector<Instant> frozen_until;  // by worker: its process stands still before
  Links links;
  Cards cards;
  ControlLinks control;
  RunTable runs;
  std::set<Incarnation> dismissed;  // by an operator
  std::uint64_t launch = 1;         // the newest
  DurationNs longest_step = 0;      // computed so far, but for those that a freeze drew out
  bool forgot = false;              // the controller, ever
  Instant disturbed_until;          // a fault that has begun lasts until then, as far as is known
  std::uint64_t messages = 0;       // sent, also those that were lost
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_WORLD_H_
