#include "engines/explain.h"

#include <string>
#include <vector>

#include "engines/words.h"

namespace prd {
namespace {

// A worker that has waited for so long is told for whom.
constexpr DurationNs kTellWaitAfter = 3 * kSecond;
constexpr const char* kNoRing = "; no ring of all workers goes around that";

const RunWorker& Row(const RunState& run, Rank rank) { return run.roster()[rank]; }

std::string LinkWords(const RunState& run, Instant now, Rank rank) {
  const BrokenLinks& broken = run.links().broken();
  if (broken.empty()) return {};
  std::string text = run.links().WordsOf(now, rank);
  const WorkerState state = Row(run, rank).state;
  const bool meets =
      (state == WorkerState::kJoining && !run.start().made()) || state == WorkerState::kFinishing;
  if (!meets || run.held().CanMeet(state)) return text;
  if (!broken.HasAny(rank)) {
    const auto [a, b] = run.links().all().begin()->first;
    text += "; " + run.links().Words(now, a, b);
  }
  return text + kNoRing;
}

std::string LeavesWords(const RunState& run, Rank rank) {
  const RunWorker& worker = Row(run, rank);
  const std::string until = worker.group != kNoGroup ? GroupName(worker.group) + " is through"
                                                     : "the others need nothing of it any more";
  return run.draining().at(rank) + "; leaves once " + until;
}

std::string FinishingWords(const RunState& run, Instant now, Rank rank) {
  std::vector<Rank> others;
  std::vector<Rank> paused;
  for (Rank r = 0; r < run.roster().size(); ++r) {
    const WorkerState state = Row(run, r).state;
    if (run.roster().Present(r) && state != WorkerState::kFinishing) others.push_back(r);
    if (state == WorkerState::kPaused) paused.push_back(r);
  }
  if (run.switching()) {
    return run.switches().Words(now) + "; has ended its step, and waits for " +
           words::Ranks(others) + " to end theirs";
  }
  return "finished " + words::Duration(now - Row(run, rank).since) + " ago; waiting for " +
         words::Ranks(others) + " to finish" +
         (paused.empty()
              ? std::string()
              : "; " + words::Ranks(paused) + (paused.size() == 1 ? " pauses" : " pause"));
}

std::string ActiveWords(const RunState& run, Instant now, Rank rank) {
  const RunWorker& worker = Row(run, rank);
  const std::string last = std::to_string(worker.last_group);
  if (worker.signal && worker.Held(ReadySlot::kForReplica)) {
    return "ready; held back until all members of group " + last + " have reported";
  }
  if (worker.signal && worker.Held(ReadySlot::kForComparison)) {
    return "ready; held back until all members of group " + last +
           " have told the digests of their replicas";
  }
  if (worker.Held(ReadySlot::kForOrders)) {
    if (run.orders().Drains(rank)) return "ready; " + LeavesWords(run, rank);
    if (run.paused()) return "ready; held back: " + run.PauseWords(now);
    return "ready; held back while a late worker copies a model";
  }
  if (worker.Held(ReadySlot::kForBatch)) return run.shares().Words();
  if (worker.Waits()) {  // the engine has the signal since before the pause
    return run.engine().Explain(now, rank) +
           (run.paused() ? "; the job is " + run.PauseWords(now) : "");
  }
  return "computing after iteration " + std::to_string(worker.iteration) + " for " +
         words::Duration(now - worker.since) +
         (worker.last_group == kNoGroup
              ? std::string()
              : "; last: group " + last + (worker.last_ok ? ", ok" : ", failed here")) +
         (worker.owed > 0 ? "; " + std::to_string(worker.owed) + " gradients in no round yet"
                          : std::string());
}

std::string GroupWords(const RunState& run, Instant now, Rank rank) {
  const RunWorker& worker = Row(run, rank);
  const RunningGroup& group = run.groups().at(worker.group);
  std::vector<Rank> members;
  for (const GroupShare& share : group.members) members.push_back(share.rank);
  return "in group " + std::to_string(worker.group) + " of " + words::Ranks(members) + " for " +
         words::Duration(now - worker.since) + "; not through yet: " + words::Ranks(group.pending) +
         (group.aborted ? "; called off: " + group.failure : "");
}

std::string StartWords(const RunState& run, Instant now) {
  const StartBarrier& start = run.start();
  const int here = run.roster().Count(WorkerState::kJoining);
  if (start.made() || here == 0) return {};
  const bool awaits = run.Awaits(run.last_now());
  std::vector<Rank> missing;
  if (awaits) {
    missing = run.switches().Awaited();
  } else {
    for (Rank rank = 0; rank < start.workers(); ++rank) {
      if (!run.roster().Present(rank)) missing.push_back(rank);
    }
  }
  std::string text = "waiting for the common start: " + std::to_string(here) + " of " +
                     std::to_string(start.workers()) + " workers are here";
  // Ranks from `workers` on are here in place of lower ones, which then are not all missing.
  const int lacking = awaits ? static_cast<int>(missing.size()) : start.workers() - here;
  if (!missing.empty() && lacking > 0) {
    const bool all = lacking == static_cast<int>(missing.size());
    text += "; missing: " + (all ? "" : std::to_string(lacking) + " of ") + words::Ranks(missing);
  }
  text += run.admissions().RefusalWords();
  if (awaits) {
    return text + "; goes on without the missing in " +
           words::Duration(run.switches().awaits_until() - now) + " (lease_ms and start_grace_ms)";
  }
  const std::optional<Instant>& ends = start.grace_ends();
  if (!ends) return text;
  if (now < *ends) {
    return text + "; goes on without the missing in " + words::Duration(*ends - now) +
           " (start_grace_ms)";
  }
  return text + "; goes on with " + std::to_string(run.spec().min_workers) + " (min_workers)";
}

std::string JoiningWords(const RunState& run, Instant now, Rank rank) {
  if (!run.start().made()) return StartWords(run, now);
  if (run.copies().CutOff(rank)) {
    return run.links().Apart(rank) ? "left behind by the others, who did not reach it; waiting "
                                     "until it reaches them"
                                   : "waiting until it reaches a worker that has a model";
  }
  if (Row(run, rank).copies_after) return run.copies().WaitWords(now, rank);
  if (!run.shares().MayJoin(rank)) {
    return "waiting for the next step, in which it has a share of the batch";
  }
  if (Row(run, rank).resumes) return "has paused; waiting for the running round to end";
  return "waiting for the running round to end before it copies a model";
}

std::string StateWords(const RunState& run, Instant now, Rank rank) {
  const RunWorker& worker = Row(run, rank);
  switch (worker.state) {
    case WorkerState::kJoining:
      if (run.numbers().Has(rank)) return run.number_calls().Words(now, rank);
      return JoiningWords(run, now, rank);
    case WorkerState::kStarting:
      return "has the common start; waiting for the others to have it";
    case WorkerState::kFinishing:
      return FinishingWords(run, now, rank);
    case WorkerState::kPaused:
      if (run.orders().Drains(rank)) return LeavesWords(run, rank);
      if (run.numbers().Has(rank)) return run.number_calls().Words(now, rank);
      return "pauses for " + words::Duration(now - worker.since) + " at iteration " +
             std::to_string(worker.iteration) + "; the others go on without it";
    case WorkerState::kFinal:
      return "has the final average; waiting for the others to have it";
    case WorkerState::kActive:
      return ActiveWords(run, now, rank);
    case WorkerState::kAdopting:
    case WorkerState::kAbsent:
      break;
  }
  return "waiting";
}

std::string WorkerWords(const RunState& run, Instant now, Rank rank) {
  const RunWorker& worker = Row(run, rank);
  const std::string age = words::Duration(now - worker.since);
  if (worker.group != kNoGroup && worker.source != kNoRank) {
    return "fetching the result of round " + std::to_string(worker.group) + " from rank " +
           std::to_string(worker.source) + " for " + age;
  }
  // The engine explains waits for members that still compute, and what follows no announced group.
  const bool by_engine = DrawnAhead(run.plan()) || !TrainsInGroups(run.plan());
  if (worker.state == WorkerState::kActive && by_engine) {
    const std::string text = run.engine().Explain(now, rank);
    if (!text.empty()) return text;
  }
  if (worker.group != kNoGroup) return GroupWords(run, now, rank);
  if (const std::string held = run.held().Words(now, rank); !held.empty()) return held;
  if (worker.source != kNoRank) {
    return "copying the model of rank " + std::to_string(worker.source) + " for " + age;
  }
  if (worker.copies_after && worker.state != WorkerState::kJoining) {
    return run.copies().WaitWords(now, rank);
  }
  return StateWords(run, now, rank);
}

// The worker's training loop is inside a call that ends once others have done something.
bool Waits(const RunState& run, const RunWorker& worker) {
  if (worker.state == WorkerState::kAbsent || worker.state == WorkerState::kPaused) return false;
  if (worker.state != WorkerState::kActive) return true;
  const bool in_group =
      worker.group != kNoGroup && !TrainsInRounds(run.plan()) && !DrawnAhead(run.plan());
  return worker.Waits() || in_group || worker.resumes || worker.source != kNoRank ||
         worker.copies_after;
}

}  // namespace

std::string Explain(const RunState& run, Instant now, Rank rank) {
  if (!run.roster().Present(rank)) return "no worker holds rank " + std::to_string(rank);
  return WorkerWords(run, now, rank) + LinkWords(run, now, rank) +
         run.divergence_check().Words(now, rank) + run.clock().NonfiniteWords(now, rank);
}

std::string WaitsFor(const RunState& run, Instant now, Rank rank) {
  if (!run.roster().Present(rank)) return {};
  const RunWorker& worker = Row(run, rank);
  if (run.numbers().Has(rank)) return run.number_calls().Words(now, rank);
  if (!Waits(run, worker)) return {};
  if (worker.state == WorkerState::kJoining) {
    return run.start().made() ? JoiningWords(run, now, rank) : StartWaits(run, now);
  }
  return now - worker.since < kTellWaitAfter ? std::string() : Explain(run, now, rank);
}

std::string StartWaits(const RunState& run, Instant now) {
  std::string text = StartWords(run, now);
  if (text.empty() || run.held().CanMeet(WorkerState::kJoining)) return text;
  const auto [a, b] = run.links().all().begin()->first;
  return text + "; " + run.links().Words(now, a, b) + kNoRing;
}

}  // namespace prd
