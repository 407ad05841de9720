#include "engines/admit.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engines/explain.h"
#include "engines/run_limits.h"

namespace prd {
namespace {

constexpr std::size_t kMaxHosts = 8;  // in an error

Refused Retry(std::string reason, std::uint32_t retry_ms) {
  return {.code = Code::kUnavailable, .reason = std::move(reason), .retry_ms = retry_ms};
}

// The first worker that is there and satisfies, or kNoRank.
Rank AnyWorker(const RunState& run, auto satisfies) {
  for (Rank rank = 0; rank < run.roster().size(); ++rank) {
    const RunWorker& worker = run.roster()[rank];
    if (worker.state != WorkerState::kAbsent && satisfies(worker)) return rank;
  }
  return kNoRank;
}

// " (rank 0, pid 42 on host)", or empty.
std::string Named(const RunState& run, Rank rank) {
  if (rank == kNoRank) return {};
  const RunWorker& worker = run.roster()[rank];
  return " (" + RankName(rank) + ", pid " + std::to_string(worker.pid) + " on " + worker.host_name +
         ")";
}

Refused RankIsHeld(const JobSpec& spec, const Hello& hello, const RunWorker& holder) {
  const bool soon = spec.death_grace_ms > 0 && holder.returns_at_once;
  const std::uint32_t asks_ms =
      soon ? std::min(spec.death_grace_ms, spec.lease_ms / 4) : spec.lease_ms / 4;
  const std::string lease = "its lease of " + std::to_string(spec.lease_ms) + " ms ";
  const bool own = holder.pid == hello.pid && holder.host_name == hello.host_name;
  return Retry(RankName(hello.rank) + " of job " + spec.name + " is held by pid " +
                   std::to_string(holder.pid) + " on " + holder.host_name +
                   (own ? ", this process's own number (has it attached already?)" : "") +
                   (soon ? "; if that process has ended, the rank is free in a moment; if its "
                           "host is gone, once " +
                               lease + "has run out"
                         : "; if that one is dead, " + lease + "will run out"),
               std::max(asks_ms, 50u));
}

std::string MeshVersion(std::uint32_t version) {
  return version == 0 ? "an older version" : "version " + std::to_string(version);
}

// Workers of two versions that would not understand each other are never in one run. Those of the
// other version may be about to leave, or dead.
std::optional<Refused> CheckMeshVersion(const RunState& run, const Hello& hello) {
  const Rank other = AnyWorker(
      run, [&](const RunWorker& worker) { return worker.mesh_version != hello.mesh_version; });
  if (other == kNoRank) return std::nullopt;
  return Retry("this worker's library has " + MeshVersion(hello.mesh_version) +
                   " of what workers send each other, and that of the job's other workers" +
                   Named(run, other) + " has " + MeshVersion(run.roster()[other].mesh_version) +
                   "; workers of one job have one version of the library",
               500);
}

std::optional<Refused> CheckHello(const RunState& run, const WorkerEnvelope& envelope,
                                  const Hello& hello) {
  const JobSpec& spec = run.spec();
  if (std::optional<Refused> wrong = Admissions::CheckForm(spec, envelope, hello)) return wrong;
  const Admissions& all = run.admissions();
  const Rank any = AnyWorker(run, [](const RunWorker&) { return true; });
  if (std::optional<Refused> other = all.CheckLaunch(spec, hello, Named(run, any))) return other;
  if (std::optional<Refused> other = CheckMeshVersion(run, hello)) return other;
  if (std::optional<Refused> other = all.CheckModel(hello)) return other;
  if (run.switching()) {
    return Retry("job " + spec.name + " is about to go on in another run: " + run.switching()->by,
                 100);
  }
  if (run.roster().Count(WorkerState::kFinal) > 0) {
    return Retry("job " + spec.name + " is taking its final average; a new run can begin after it",
                 500);
  }
  if (hello.rank == kNoRank && run.live() >= spec.max_workers) {
    return Refused{.code = Code::kResourceExhausted,
                   .reason = "the job has all its " + std::to_string(spec.max_workers) +
                             " workers (max_workers)"};
  }
  if (run.roster().Present(hello.rank)) {
    return RankIsHeld(spec, hello, run.roster()[hello.rank]);
  }
  if (std::string why = run.shares().Refuses(hello, run.live()); !why.empty()) {
    return Refused{
        .code = hello.takes_shares ? Code::kResourceExhausted : Code::kFailedPrecondition,
        .reason = std::move(why)};
  }
  return std::nullopt;
}

Status No(const RunState& run, const std::string& why, Code code = Code::kFailedPrecondition) {
  return Status(code, "job " + run.spec().name + why);
}

Status CheckDrain(const RunState& run, const OperatorActed& act) {
  std::set<std::string> hosts;
  bool found = false;
  bool fresh = false;
  for (Rank rank = 0; rank < run.roster().size(); ++rank) {
    const RunWorker& worker = run.roster()[rank];
    if (worker.state == WorkerState::kAbsent) continue;
    hosts.insert(worker.host_name);
    if (!OnHost(worker, act.host)) continue;
    found = true;
    fresh = fresh || !run.orders().Drains(rank);
    if (run.engine().leaving(rank) != Engine::Leaving::kNever) continue;
    return No(run, ": rank " + std::to_string(rank) +
                       " has what no other worker has a copy of, and it would be lost (replicas = "
                       "0 of the engine); evict it if it may be");
  }
  if (found) {
    return fresh ? Status::Ok() : No(run, ": host " + act.host + " is drained already");
  }
  std::string all;
  std::size_t shown = 0;
  for (const std::string& host : hosts) {
    if (++shown > kMaxHosts) break;
    all += (all.empty() ? "" : ", ") + host;
  }
  return No(
      run,
      " has no worker on host " + act.host + "; its hosts are " + all +
          (hosts.size() > kMaxHosts ? " and " + std::to_string(hosts.size() - kMaxHosts) + " more"
                                    : ""),
      Code::kNotFound);
}

Status CheckPause(const RunState& run) {
  if (run.switching()) return No(run, " is about to go on in another run; try again then");
  if (run.paused()) return No(run, " is paused already, by " + run.paused()->by);
  if (run.clock().done()) return No(run, " is done: its workers stop by themselves");
  if (!FollowsSchedule(run.plan())) return Status::Ok();
  return No(run,
            " cannot be paused: its workers follow a schedule, and ask the controller for nothing");
}

Status CheckEnd(const RunState& run) {
  if (run.switching()) return No(run, " is about to go on in another run; try again then");
  if (run.clock().done()) return No(run, " is done already: its workers stop by themselves");
  if (run.start().begun()) return Status::Ok();
  return No(run, " has not begun: there is nothing to end. Its workers can be evicted");
}

Status CheckSwitch(const RunState& run, const OperatorActed& act) {
  const auto count = [&run](WorkerState state) { return run.roster().Count(state); };
  if (act.spec.empty() || act.next == kNoRun) {
    return No(run, ": a switch names a run, and what is to be in it", Code::kInvalidArgument);
  }
  if (run.switching()) {
    return No(run, " is about to go on in another run already: " + run.switching()->by);
  }
  if (run.paused()) return No(run, " is paused, by " + run.paused()->by + ": resume it first");
  if (run.clock().done()) return No(run, " is done: its workers stop by themselves");
  if (!run.start().made() || count(WorkerState::kStarting) > 0) {
    return No(run, " waits for a common start; try again once it trains");
  }
  if (count(WorkerState::kFinishing) + count(WorkerState::kFinal) > 0) {
    return No(run, ": some of its workers have finished training, and wait for the others");
  }
  if (count(WorkerState::kActive) == 0) return No(run, ": none of its workers trains now");
  return Status::Ok();
}

}  // namespace

bool IsForeign(const RunState& run, const WorkerEnvelope& envelope) {
  const Rank rank = run.RankOf(envelope.incarnation);
  return rank != kNoRank && run.roster()[rank].token != envelope.token;
}

Admission Admit(const RunState& run, const WorkerEnvelope& envelope) {
  using Verdict = Admission::Verdict;
  const auto refuse = [](Code code, std::string reason) {
    return Admission{.verdict = Verdict::kRefuse,
                     .refusal = Refused{.code = code, .reason = std::move(reason)}};
  };
  if (const auto* hello = std::get_if<Hello>(&envelope.body)) {
    if (const Rank known = run.RankOf(envelope.incarnation); known != kNoRank) {
      const bool foreign = IsForeign(run, envelope);
      return {.verdict = foreign ? Verdict::kForeign : Verdict::kDuplicate, .rank = known};
    }
    std::optional<Refused> refusal = CheckHello(run, envelope, *hello);
    if (!refusal) return {.verdict = Verdict::kStep};
    return {.verdict = Verdict::kRefuse, .refusal = std::move(refusal)};
  }
  if (envelope.identity.high != run.identity().high) {
    return refuse(Code::kAborted, "run " + std::to_string(run.id()) +
                                      " is another one here: the controller has lost its history, "
                                      "or its state directory is another");
  }
  const Rank rank = envelope.rank;
  if (!run.roster().Present(rank) || run.roster()[rank].incarnation != envelope.incarnation) {
    return refuse(Code::kAborted, RankName(rank) + " of job " + run.spec().name +
                                      " is not held by this incarnation (any more): its lease ran "
                                      "out, it left, or it never joined");
  }
  if (run.roster()[rank].token != envelope.token) return {Verdict::kForeign};
  if (std::holds_alternative<Heartbeat>(envelope.body) != (envelope.seq == 0)) {
    return refuse(Code::kInvalidArgument,
                  "heartbeats carry sequence number 0, and no other message does");
  }
  if (envelope.seq == 0) return {.verdict = Verdict::kStep, .rank = rank};
  switch (run.link(rank).Check(envelope.seq)) {
    case LinkEnd<ControllerBody>::Verdict::kDuplicate:
      return {.verdict = Verdict::kDuplicate, .rank = rank};
    case LinkEnd<ControllerBody>::Verdict::kGap:
      return {.verdict = Verdict::kGap, .rank = rank};
    case LinkEnd<ControllerBody>::Verdict::kDeliver:
      break;
  }
  return {.verdict = Verdict::kStep, .rank = rank};
}

std::string CheckReady(const RunState& run, Rank rank, const Ready& ready) {
  const RunWorker& worker = run.roster()[rank];
  const Plan& plan = run.plan();
  const bool rounds = TrainsInRounds(plan);
  // After the common start a worker may signal its first step before others have reported.
  const bool early = worker.state == WorkerState::kStarting && worker.group == kNoGroup;
  // Rounds, and groups that form ahead, are announced while workers compute and signal.
  const bool busy = !rounds && ((worker.group != kNoGroup && !DrawnAhead(plan)) || worker.Waits());
  const bool drains = run.orders().Drains(rank) && worker.state == WorkerState::kPaused;
  if ((worker.state != WorkerState::kActive && !early && !drains) || busy ||
      worker.stop_held != StopReason::kNone || worker.resumes) {
    return "a ready signal while " + Explain(run, run.last_now(), rank);
  }
  // A worker arrives at the round after the newest in its replica, which it may not have told yet.
  const Iteration lowest =
      rounds ? worker.signalled : worker.iteration + (TrainsInGroups(plan) ? 0 : 1);
  const bool one = !CountsLocalSteps(plan);
  const Iteration highest = rounds && worker.group != kNoGroup
                                ? run.groups().at(worker.group).iteration + 1
                                : worker.iteration + (one ? 1 : kMaxJump);
  if (ready.iteration < lowest || ready.iteration > std::min(highest, kMaxIteration)) {
    return "a ready signal for iteration " + std::to_string(ready.iteration) +
           ", after iteration " + std::to_string(worker.iteration);
  }
  if (!ready.waiting && !rounds && !AcknowledgesLate(plan)) {
    return "a ready signal that waits for nothing, under an engine that answers each";
  }
  if (FollowsSchedule(plan)) return "a ready signal, under a schedule that needs none";
  if (ready.gradients > (rounds ? 1u : 0u) || worker.owed >= kMaxOwed ||
      ready.local_steps > kMaxJump) {
    return "a ready signal with " + std::to_string(ready.gradients) + " gradients and " +
           std::to_string(ready.local_steps) + " local steps, owing " +
           std::to_string(worker.owed) + " gradients";
  }
  if (ready.step_ns < 0 || ready.rtt_ns < 0 || ready.samples < 0 || ready.samples > kMaxSamples) {
    return "a ready signal with a step time of " + std::to_string(ready.step_ns) +
           " ns, a round trip of " + std::to_string(ready.rtt_ns) + " ns and " +
           std::to_string(ready.samples) + " samples";
  }
  return {};
}

bool OnHost(const RunWorker& worker, const std::string& host) {
  return worker.state != WorkerState::kAbsent && (worker.host_name == host || worker.host == host);
}

Status CheckAct(const RunState& run, const OperatorActed& act) {
  if (act.reason.size() > kMaxName || act.by.size() > kMaxName || act.host.size() > kMaxName) {
    return Status(Code::kInvalidArgument,
                  "a reason, and a host, have " + std::to_string(kMaxName) + " bytes at most");
  }
  switch (act.verb) {
    case OperatorVerb::kEvict:
      if (run.roster().Present(act.rank)) return Status::Ok();
      return No(run, ": no worker holds rank " + std::to_string(act.rank), Code::kNotFound);
    case OperatorVerb::kDrain:
      return CheckDrain(run, act);
    case OperatorVerb::kEnd:
      return CheckEnd(run);
    case OperatorVerb::kPause:
      return CheckPause(run);
    case OperatorVerb::kResume:
      return run.paused() ? Status::Ok() : No(run, " is not paused");
    case OperatorVerb::kSwitch:
      return CheckSwitch(run, act);
  }
  return No(run, ": an operator does nothing of the kind", Code::kInvalidArgument);
}

}  // namespace prd
