// Job: its state in words, and as a value.
#include <string>
#include <utility>

#include "engines/job.h"
#include "engines/words.h"

namespace prd {
namespace {

constexpr std::uint32_t kStateVersion = 18;

// A worker that has waited for so long is told for whom.
constexpr DurationNs kTellWaitAfter = 3 * kSecond;

}  // namespace

// ---- explanations ----

std::string Job::Explain(Instant now, Rank rank) const {
  if (!Present(rank)) return "no worker holds rank " + std::to_string(rank);
  return ExplainWorker(now, rank) + ExplainLinks(now, rank) + divergence_.Words(now, rank) +
         clock_.NonfiniteWords(now, rank);
}

std::string Job::ExplainWorker(Instant now, Rank rank) const {
  const Worker& worker = workers_[Index(rank)];
  const std::string age = words::Duration(now - worker.since);
  if (worker.group != kNoGroup && worker.source != kNoRank) {
    return "fetching the result of round " + std::to_string(worker.group) + " from rank " +
           std::to_string(worker.source) + " for " + age;
  }
  // What waits for members who still compute is for the engine to say, and so is what follows no
  // announced group.
  if (worker.state == State::kActive && (DrawnAhead(plan_) || !TrainsInGroups(plan_))) {
    const std::string text = engine_->Explain(now, rank);
    if (!text.empty()) return text;
  }
  if (worker.group != kNoGroup) {
    const Running& group = groups_.at(worker.group);
    std::vector<Rank> members;
    for (const GroupShare& share : group.members) members.push_back(share.rank);
    return "in group " + std::to_string(worker.group) + " of " + words::Ranks(members) + " for " +
           age + "; not through yet: " + words::Ranks(group.pending) +
           (group.aborted ? "; called off: " + group.failure : "");
  }
  if (const std::string held = ExplainHeld(now, rank); !held.empty()) return held;
  if (worker.source != kNoRank) {
    return "copying the model of rank " + std::to_string(worker.source) + " for " + age;
  }
  if (worker.copies_after && worker.state != State::kJoining) return CopyWords(now, rank);
  const std::string last = worker.last_group == kNoGroup
                               ? std::string()
                               : "; last: group " + std::to_string(worker.last_group) +
                                     (worker.last_ok ? ", ok" : ", failed here");
  switch (worker.state) {
    case State::kJoining:
      return WaitsFor(now, rank);
    case State::kStarting:
      return "has the common start; waiting for the others to have it";
    case State::kFinishing: {
      std::vector<Rank> others;
      std::vector<Rank> paused;
      for (Rank r = 0; Index(r) < workers_.size(); ++r) {
        const State state = workers_[Index(r)].state;
        if (Present(r) && state != State::kFinishing) others.push_back(r);
        if (state == State::kPaused) paused.push_back(r);
      }
      if (switching()) {
        return switch_.Words(now) + "; has ended its step, and waits for " + words::Ranks(others) +
               " to end theirs";
      }
      return "finished " + age + " ago; waiting for " + words::Ranks(others) + " to finish" +
             (paused.empty()
                  ? std::string()
                  : "; " + words::Ranks(paused) + (paused.size() == 1 ? " pauses" : " pause"));
    }
    case State::kPaused:
      if (orders_.Drains(rank)) return LeavesWords(rank);
      if (numbers_.Has(rank)) return NumbersWords(now, rank);
      return "pauses for " + age + " at iteration " + std::to_string(worker.iteration) +
             "; the others go on without it";
    case State::kFinal:
      return "has the final average; waiting for the others to have it";
    case State::kActive:
      if (worker.signal && worker.signal_held) {
        return "ready; held back until all members of group " + std::to_string(worker.last_group) +
               " have reported";
      }
      if (worker.signal && worker.compared) {
        return "ready; held back until all members of group " + std::to_string(worker.last_group) +
               " have told the digests of their replicas";
      }
      if (worker.signal_withheld && orders_.Drains(rank)) return "ready; " + LeavesWords(rank);
      if (worker.signal_withheld && paused()) return "ready; held back: " + PauseWords(now);
      if (worker.signal_withheld) return "ready; held back while a late worker copies a model";
      if (worker.signal && worker.signal->waiting) {  // the engine has it since before the pause
        return engine_->Explain(now, rank) + (paused() ? "; the job is " + PauseWords(now) : "");
      }
      return "computing after iteration " + std::to_string(worker.iteration) + " for " + age +
             last +
             (worker.owed > 0 ? "; " + std::to_string(worker.owed) + " gradients in no round yet"
                              : std::string());
    case State::kAdopting:
    case State::kAbsent:
      break;
  }
  return "waiting";
}

// Its training loop is inside a call that ends once others have done something.
bool Job::Waits(const Worker& worker) const {
  switch (worker.state) {
    case State::kAbsent:
    case State::kPaused:
      return false;
    case State::kJoining:
    case State::kStarting:
    case State::kAdopting:
    case State::kFinishing:
    case State::kFinal:
      return true;
    case State::kActive:
      break;
  }
  const bool signalled = worker.signal && worker.signal->waiting;
  const bool in_group = worker.group != kNoGroup && !TrainsInRounds(plan_) && !DrawnAhead(plan_);
  return signalled || in_group || worker.resumes || worker.source != kNoRank || worker.copies_after;
}

std::string Job::WaitsFor(Instant now, Rank rank) const {
  if (!Present(rank)) return {};
  if (numbers_.Has(rank)) return NumbersWords(now, rank);
  if (!Waits(workers_[Index(rank)])) return {};
  const Worker& worker = workers_[Index(rank)];
  if (worker.state == State::kJoining) {
    if (!started_) return StartWaits(now);
    if (worker.copies_after) return CopyWords(now, rank);
    if (worker.resumes) return "has paused; waiting for the running round to end";
    return "waiting for the running round to end before it copies a model";
  }
  return now - worker.since < kTellWaitAfter ? std::string() : Explain(now, rank);
}

std::string Job::StartWaits(Instant now) const {
  if (started_ || Count(State::kJoining) == 0) return {};
  std::vector<Rank> missing;
  if (Awaits()) {
    missing = switch_.Awaited();
  } else {
    for (Rank rank = 0; rank < start_workers_; ++rank) {
      if (!Present(rank)) missing.push_back(rank);
    }
  }
  std::string text = "waiting for the common start: " + std::to_string(Count(State::kJoining)) +
                     " of " + std::to_string(start_workers_) + " workers are here";
  if (!missing.empty()) text += "; missing: " + words::Ranks(missing);
  text += admissions_.RefusalWords();
  if (Awaits()) {
    return text + "; goes on without the missing in " +
           words::Duration(switch_.awaits_until() - now) + " (lease_ms and start_grace_ms)";
  }
  if (!grace_ends_) return text;
  if (now < *grace_ends_) {
    return text + "; goes on without the missing in " + words::Duration(*grace_ends_ - now) +
           " (start_grace_ms)";
  }
  return text + "; goes on with " + std::to_string(spec_.min_workers) + " (min_workers)";
}

// ---- the state as a value ----

void Job::Worker::Archive(StateArchive& ar) {
  bool waiting = signal.has_value();
  Ready ready = signal.value_or(Ready{});
  ar(state, incarnation, host, host_name, pid, endpoints, mesh_key, gradients, identity, version,
     returns_at_once, token, continues, returns, job_trained, brought, iteration, group, last_group,
     last_ok, waiting, ready.iteration, ready.step_ns, ready.samples, ready.waiting,
     ready.gradients, ready.local_steps, ready.rtt_ns, ready.queued, ready.dropped,
     ready.suppressed, signalled, owed, signal_held, compared, signal_withheld, stop_held, resumes,
     outdated, first_group, source, source_gone, fetches, failed_source, copies_after, no_replica,
     stopped_at, since, untold, reads_group, reads_from, link);
  if (!ar.saving()) signal = waiting ? std::optional<Ready>(ready) : std::nullopt;
}

void Job::Running::Archive(StateArchive& ar) {
  ar(kind, members, pending, ok, failed, iteration, compares, last, digests, aborted, failure,
     since);
}

void Job::Archive(StateArchive& ar) {
  std::uint32_t version = kStateVersion;
  ar(version);
  if (version != kStateVersion) ar.Fail();
  ar(identity_, wall_ns_, started_at_, next_index_, now_, start_workers_, started_, begun_,
     grace_ends_, copies_again_, switch_, ended_, finished_, admissions_, next_group_, workers_,
     clock_, divergence_, groups_, held_, links_, behind_, numbers_);
  engine_->Archive(ar);
  ar(orders_);
}

Status Job::Load(std::string_view state) {
  StateArchive ar = StateArchive::Loader(state);
  Archive(ar);
  const Status damaged(Code::kDataLoss, "the snapshot of run " + std::to_string(run_) +
                                            " is damaged, or of another version of prd");
  if (!ar.ok() || !ar.AtEnd()) return damaged;
  if (tallies().size() != workers_.size()) return damaged;
  live_ = 0;
  stranded_ = 0;
  withheld_ = 0;
  resuming_ = 0;
  untold_ = 0;
  counts_.fill(0);
  by_incarnation_.clear();
  if (!links_.Restore([this](Rank rank) { return Present(rank); })) return damaged;
  for (const GroupFormed& form : held_) {
    for (const GroupShare& share : form.members) {
      if (!Present(share.rank)) return damaged;
    }
  }
  for (const auto& [rank, why] : draining()) {
    if (!Present(rank)) return damaged;
  }
  for (const Rank rank : behind_) {
    if (rank < 0 || Index(rank) >= workers_.size()) return damaged;
  }
  for (Rank rank = 0; Index(rank) < workers_.size(); ++rank) {
    ++counts_[static_cast<std::size_t>(At(rank).state)];
    if (!Present(rank)) continue;
    ++live_;
    if (Stranded(rank)) ++stranded_;
    if (At(rank).signal_withheld) ++withheld_;
    if (At(rank).resumes) ++resuming_;
    if (!At(rank).untold.empty()) ++untold_;
    by_incarnation_[At(rank).incarnation] = rank;
  }
  return Status::Ok();
}

std::uint64_t Job::StateHash() const {
  StateArchive ar = StateArchive::Hasher();
  const_cast<Job*>(this)->Archive(ar);  // a Hasher only reads
  return HashBytes(ar.bytes());
}

}  // namespace prd
