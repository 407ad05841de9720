// Cluster: what goes wrong.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engines/event.h"
#include "tools/sim/cluster_run.h"

namespace prd::sim {

void Cluster::Faults() {
  controller_.MayDie(kFaultPeriod);
  const FaultsPart& faults = workload_.faults;
  const double share = static_cast<double>(kFaultPeriod) / kSecond;
  for (std::uint32_t i = 0; i < workers_.size(); ++i) {
    if (!world_.Fault(faults.partitions_per_s * share)) continue;
    const Instant until = world_.now + FromMs(faults.partition_ms * world_.prng.Unit());
    world_.control.Cut(i, until);
    world_.Disturbed(until);
  }
  controller_.MayFreeze(kFaultPeriod);
  for (std::uint32_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].phase() == SimWorker::Phase::kAway) continue;
    if (!world_.Rolled(faults.connection_breaks_per_s * share)) continue;
    const Instant again = world_.now + FromMs(faults.connection_break_ms * world_.dice.Unit());
    world_.control.EndConnection(i, again);
    world_.Disturbed(again);
  }
  if (world_.links.on()) {
    for (std::uint32_t i = 0; i < workers_.size(); ++i) LinkFaults(i, share);
  }
  if (world_.Rolled(faults.launcher_restarts_per_s * share)) Relaunch();
  for (std::uint32_t i = 0; i < workers_.size(); ++i) {
    if (world_.Rolled(faults.forgeries_per_s * share)) Forge(i);
  }
  operator_.Act(share);
  CheckOut();
  // What is paused is resumed, whatever goes wrong.
  if (world_.FaultsOn() || operator_.resumes()) {
    world_.queue.Push(world_.now + kFaultPeriod, EventKind::kFault);
  }
}

// A worker that is out for the controller is out for all that have heard of it. After a loss of
// history it does not know who there was.
void Cluster::CheckOut() const {
  const Controller* controller = controller_.controller();
  if (controller == nullptr || world_.forgot) return;
  for (const auto& [id, run] : controller->runs()) {
    if (run->ended()) continue;
    std::set<Incarnation> members;
    for (const RunWorker& worker : run->workers()) {
      if (worker.state != WorkerState::kAbsent) members.insert(worker.incarnation);
    }
    for (const RunWorker& worker : run->workers()) {
      const bool heard = worker.state != WorkerState::kAbsent && worker.link.unacked().empty();
      if (!heard || !worker.untold.empty()) continue;
      doors_.KnowsOnly(WorkerOf(worker.incarnation), worker.incarnation, members);
    }
  }
}

// large_alone: a model, and a probe, are large.
void Cluster::Cut(std::uint32_t from, std::uint32_t to, Instant until, bool large_alone) {
  world_.links.Cut(from, to, until);
  if (large_alone) {
    plane_->CutLarge(from, to, until);
  } else {
    plane_->Cut(from, to, until);
  }
}

// Faults of links, and a worker that stands still.
void Cluster::LinkFaults(std::uint32_t worker, double share) {
  const FaultsPart& faults = workload_.faults;
  const auto other = [&] {
    const auto drawn = static_cast<std::uint32_t>(world_.dice.Below(workers_.size() - 1));
    return drawn + (drawn >= worker ? 1 : 0);
  };
  for (const bool large : {false, true}) {
    const double per_s = large ? faults.large_cuts_per_s : faults.link_cuts_per_s;
    if (workers_.size() < 2 || !world_.Rolled(per_s * share)) continue;
    const std::uint32_t to = other();
    const Instant until = world_.now + FromMs(faults.link_cut_ms * world_.dice.Unit());
    Cut(worker, to, until, large);
    if (!world_.Rolled(faults.one_way)) Cut(to, worker, until, large);
    world_.Disturbed(until);
  }
  if (workers_.size() > 1 && world_.Rolled(faults.slow_links_per_s * share)) {
    const std::uint32_t to = other();
    const Instant until = world_.now + FromMs(faults.slow_link_ms * world_.dice.Unit());
    const DurationNs by = FromMs(faults.slow_link_ms * world_.dice.Unit());
    world_.links.Slow(worker, to, until, by);
    plane_->Cut(worker, to, world_.now + by);
    plane_->Cut(to, worker, world_.now + by);
    world_.Disturbed(until);
  }
  if (world_.Rolled(faults.worker_freezes_per_s * share) && !world_.Frozen(worker) &&
      workers_[worker].phase() != SimWorker::Phase::kAway) {
    const Instant until = world_.now + world_.FreezeNs();
    plane_->Frozen(worker);
    world_.frozen_until[worker] = until;
    world_.Disturbed(until);
  }
}

// The launcher starts its workers anew. Some of those before survive: they have trained, and know
// nothing of it.
void Cluster::Relaunch() {
  if (FirstDone() != kNoRun) return;
  ++world_.launch;
  for (SimWorker& worker : workers_) {
    if (worker.phase() == SimWorker::Phase::kAway) continue;
    if (worker.has_trained() && world_.Rolled(workload_.faults.remains)) continue;
    worker.Kill();
  }
}

// Somebody who knows all that peers know of the worker, and what the controller expects of it next,
// sends a message in its name. Its token is not to be known.
void Cluster::Forge(std::uint32_t worker) {
  const SimWorker& victim = workers_[worker];
  const Controller* controller = controller_.controller();
  if (controller == nullptr || workers_.size() < 2) return;
  const auto run = controller->runs().find(victim.welcome().run);
  const auto rank = static_cast<std::size_t>(victim.welcome().rank);
  if (run == controller->runs().end() || rank >= run->second->workers().size()) return;
  const RunWorker& known = run->second->workers()[rank];
  if (known.incarnation == 0 || known.incarnation != victim.incarnation()) return;
  Prng& dice = world_.dice;
  WorkerEnvelope forged{.run = victim.welcome().run,
                        .identity = victim.welcome().identity,
                        .rank = victim.welcome().rank,
                        .incarnation = known.incarnation,
                        .seq = known.link.last_in() + 1,
                        .ack = known.link.last_out() + dice.Below(3),
                        .oldest = 1 + dice.Below(4),
                        .token = {dice.Next(), dice.Next()},
                        .body = Heartbeat{}};
  switch (dice.Below(12)) {
    case 0:
      forged.body = Leave{.reason = "forged"};
      break;
    case 1:
      forged.body = Finish{};
      break;
    case 2:
      forged.body = Pause{};
      break;
    case 3:
      forged.body = Resume{};
      break;
    case 4:
      forged.body = Ready{.iteration = known.iteration + 1};
      break;
    case 5:
      forged.body = prd::Finished{.group = known.group};
      break;
    case 6:
      forged.body = Adopted{.ok = true, .iteration = known.iteration};
      break;
    case 7:
      forged.body = Progressed{.own = {.steps = 1'000'000, .samples = 1}};
      break;
    case 8:  // as if it had come from another place
      forged.run += 1 + dice.Below(2);
      forged.body = Leave{};
      break;
    case 9:
      forged.rank = static_cast<Rank>((rank + 1) % workers_.size());
      forged.body = Leave{};
      break;
    case 10:
      forged.run = kNoRun;
      forged.rank = kNoRank;
      forged.seq = 1;
      forged.body = Hello{.job = "sim",
                          .rank = victim.welcome().rank,
                          .endpoints = {"forged"},
                          .mesh_key = MeshDoors::ForgedKey()};
      break;
    default:
      forged.seq = 0;
      break;
  }
  const auto from = static_cast<std::uint32_t>((worker + 1) % workers_.size());
  world_.control.SendToController(from, forged, false);
  // At the meshes of all, in its name, in that of another, and in one of its own.
  doors_.Knock(known.incarnation, MeshDoors::ForgedKey());
  doors_.Knock(workers_[from].incarnation(), MeshDoors::ForgedKey());
  doors_.Knock(dice.Next(), MeshDoors::ForgedKey());
}

}  // namespace prd::sim
