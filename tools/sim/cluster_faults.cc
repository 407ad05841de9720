// Cluster: what goes wrong, and what operators do.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engines/draw.h"
#include "engines/event.h"
#include "tools/sim/cluster_run.h"

namespace prd::sim {

void Cluster::Faults() {
  controller_.MayDie(kFaultPeriod);
  const FaultsPart& faults = workload_.faults;
  const double share = static_cast<double>(kFaultPeriod) / kSecond;
  for (Instant& until : world_.cut_until) {
    if (world_.Fault(faults.partitions_per_s * share)) {
      until = world_.now + FromMs(faults.partition_ms * world_.prng.Unit());
      world_.Disturbed(until);
    }
  }
  controller_.MayFreeze(kFaultPeriod);
  for (std::uint32_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].phase() == SimWorker::Phase::kAway) continue;
    if (!world_.Rolled(faults.connection_breaks_per_s * share)) continue;
    const Instant again = world_.now + FromMs(faults.connection_break_ms * world_.dice.Unit());
    world_.EndConnection(i, again);
    world_.Disturbed(again);
  }
  if (world_.links.on()) {
    for (std::uint32_t i = 0; i < workers_.size(); ++i) LinkFaults(i, share);
  }
  if (world_.Rolled(faults.launcher_restarts_per_s * share)) Relaunch();
  for (std::uint32_t i = 0; i < workers_.size(); ++i) {
    if (world_.Rolled(faults.forgeries_per_s * share)) Forge(i);
  }
  Operate(share);
  CheckOut();
  // What is paused is resumed, whatever goes wrong.
  if (world_.FaultsOn() || resumes_at_.ns > 0) {
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

// Whatever an operator does, while the job is in any state: much of it is refused.
void Cluster::Operate(double share) {
  const FaultsPart& faults = workload_.faults;
  const auto any = [&] { return static_cast<std::uint32_t>(world_.dice.Below(workers_.size())); };
  OperatorActed act{.by = "user 0"};
  if (world_.Rolled(faults.evictions_per_s * share)) {
    act.verb = OperatorVerb::kEvict;
    act.rank = static_cast<Rank>(any());
    (void)controller_.Act(act).ok();
    act.rank = kNoRank;
  }
  if (world_.Rolled(faults.drains_per_s * share)) {
    act.verb = OperatorVerb::kDrain;
    act.host = "h" + std::to_string(world_.HostOf(any()));
    (void)controller_.Act(act).ok();
    act.host.clear();
  }
  if (world_.Rolled(faults.operator_ends_per_s * share)) {
    act.verb = OperatorVerb::kEnd;
    (void)controller_.Act(act).ok();
  }
  if (world_.Rolled(faults.operator_pauses_per_s * share)) {
    act.verb = OperatorVerb::kPause;
    const Code code = controller_.Act(act).code();
    if (code == Code::kOk || code == Code::kUnavailable) {  // it may be recorded all the same
      resumes_at_ = world_.now + FromMs(faults.operator_pause_ms * world_.dice.Unit());
      world_.Disturbed(resumes_at_);
    }
  }
  if (world_.Rolled(faults.switches_per_s * share)) {
    const std::vector<EngineOptions> all = AllEngines();
    Switch(EngineText(Draw(all[world_.dice.Below(all.size())], &world_.dice,
                           static_cast<int>(workers_.size()), workload_.job.workers)));
  }
  if (faults.switch_at_ms > 0 && world_.now.ns >= FromMs(faults.switch_at_ms) && !switched_) {
    switched_ = Switch(faults.switch_to);
  }
  if (resumes_at_.ns == 0 || world_.now < resumes_at_) return;
  act.verb = OperatorVerb::kResume;
  world_.Disturbed(world_.now);
  // Another run, or one that has been ended, is not paused.
  if (controller_.Act(act).code() != Code::kUnavailable) resumes_at_ = {};
}

bool Cluster::Switch(const std::string& engine) {
  const OperatorActed act{.verb = OperatorVerb::kSwitch, .by = "user 0", .spec = engine};
  return controller_.Act(act).ok();
}

void Cluster::Cut(std::uint32_t from, std::uint32_t to, Instant until) {
  world_.links.Cut(from, to, until);
  plane_->Cut(from, to, until);
}

// Faults of links, and a worker that stands still.
void Cluster::LinkFaults(std::uint32_t worker, double share) {
  const FaultsPart& faults = workload_.faults;
  const auto other = [&] {
    const auto drawn = static_cast<std::uint32_t>(world_.dice.Below(workers_.size() - 1));
    return drawn + (drawn >= worker ? 1 : 0);
  };
  if (workers_.size() > 1 && world_.Rolled(faults.link_cuts_per_s * share)) {
    const std::uint32_t to = other();
    const Instant until = world_.now + FromMs(faults.link_cut_ms * world_.dice.Unit());
    Cut(worker, to, until);
    if (!world_.Rolled(faults.one_way)) Cut(to, worker, until);
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
  const auto run = controller->runs().find(victim.run());
  const auto rank = static_cast<std::size_t>(victim.rank());
  if (run == controller->runs().end() || rank >= run->second->workers().size()) return;
  const RunWorker& known = run->second->workers()[rank];
  if (known.incarnation == 0 || known.incarnation != victim.incarnation()) return;
  Prng& dice = world_.dice;
  WorkerEnvelope forged{.run = victim.run(),
                        .identity = victim.identity(),
                        .rank = victim.rank(),
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
                          .rank = victim.rank(),
                          .endpoints = {"forged"},
                          .mesh_key = MeshDoors::ForgedKey()};
      break;
    default:
      forged.seq = 0;
      break;
  }
  const auto from = static_cast<std::uint32_t>((worker + 1) % workers_.size());
  world_.SendToController(from, forged, false);
  // At the meshes of all, in its name, in that of another, and in one of its own.
  doors_.Knock(known.incarnation, MeshDoors::ForgedKey());
  doors_.Knock(workers_[from].incarnation(), MeshDoors::ForgedKey());
  doors_.Knock(dice.Next(), MeshDoors::ForgedKey());
}

}  // namespace prd::sim
