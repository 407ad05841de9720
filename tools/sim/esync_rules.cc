#include "tools/sim/esync_rules.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "tools/sim/violation.h"

namespace prd::sim {
namespace {

constexpr DurationNs kLongestRoundTrip = 60 * kSecond;

std::string RankText(Rank rank) { return "rank " + std::to_string(rank); }
std::string Ms(DurationNs ns) { return std::to_string(static_cast<double>(ns) / 1e6) + " ms"; }

}  // namespace

EsyncRules::Worker& EsyncRules::At(Rank rank) {
  const auto index = static_cast<std::size_t>(rank);
  if (index >= workers_.size()) workers_.resize(index + 1);
  return workers_[index];
}

void EsyncRules::Apply(Instant now, const Event& event) {
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    // Late, or in the common start: that is not to be told from here.
    At(joined->rank) = {.joined = true, .doubtful = true, .last = now};
    smooth_ = false;
  } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    OnReady(now, *ready);
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    Worker& worker = At(finished->rank);
    worker.last = now;
    worker.group = kNoGroup;
    worker.failed = !finished->ok;
    worker.begun = now;
    worker.off = 0;
    if (finished->ok) {
      worker.longest = std::max(worker.capability, worker.longest - worker.longest / 8);
      worker.steps = 0;
      worker.told = false;
    }
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    OnEnded(now, *ended);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    At(left->rank) = {};
    smooth_ = false;
  } else {
    for (Worker& worker : workers_) worker.doubtful = worker.doubtful || !worker.waiting;
    smooth_ = false;
  }
}

// Line 3. Of a worker that trains on meanwhile, the round trip is part of an iteration.
void EsyncRules::OnReady(Instant now, const ReadyEvent& event) {
  Worker& worker = At(event.rank);
  const Ready& ready = event.ready;
  const std::int64_t steps = std::int64_t{ready.local_steps} - worker.steps;
  const bool measured = !worker.untimed && steps > 0 && !(Delayed() && ready.waiting);
  if (worker.told) {
    worker.off += now - worker.last;  // to the barrier
  } else if (!measured || !worker.timed) {
    smooth_ = false;
  } else {
    worker.off += std::abs(now - worker.last - steps * worker.capability);
  }
  if (now > worker.last && (measured || !worker.timed)) {
    worker.capability = (now - worker.last) / std::max<std::int64_t>(1, steps);
    if (Delayed()) {
      worker.capability += std::clamp<DurationNs>(ready.rtt_ns, 0, kLongestRoundTrip);
    }
    worker.longest = std::max(worker.longest, worker.capability);
    worker.timed = true;
  }
  worker.untimed = worker.doubtful = false;
  worker.last = now;
  worker.steps = ready.local_steps;
  worker.waiting = ready.waiting;
}

void EsyncRules::OnEnded(Instant now, const EndedEvent& event) {
  running_ = kNoGroup;
  smooth_ = smooth_ && event.ok;
  for (Worker& worker : workers_) {
    if (!worker.failed) continue;
    smooth_ = false;
    worker.failed = false;
    worker.untimed = true;
    worker.last = now;
    worker.doubtful = event.ok;  // copies the result
    worker.told = !event.ok;
  }
}

void EsyncRules::Check(Instant now, const Event& event, std::span<const Effect> effects,
                       std::int64_t) {
  Apply(now, event);
  for (const Effect& effect : effects) {
    if (const auto* group = std::get_if<FormGroup>(&effect)) CheckGroup(now, *group);
    if (const auto* answer = std::get_if<Answer>(&effect)) CheckAnswer(now, *answer);
    if (const auto* late = std::get_if<CatchUp>(&effect)) {
      Worker& worker = At(late->rank);
      smooth_ = false;
      worker.waiting = worker.told = false;
      worker.doubtful = true;
      worker.untimed = worker.timed;
      worker.last = now;
      worker.steps = 0;
    }
  }
  if (!std::holds_alternative<FinishedEvent>(event)) CheckIdle();
  CheckStall(now);
}

void EsyncRules::CheckAnswer(Instant now, const Answer& answer) {
  Worker& current = At(answer.rank);
  const bool told = std::exchange(current.told, current.told || answer.ready);
  if (!answer.ready) current.waiting = false;
  if (!told && answer.ready) current.told_at = now;
  if (told || running_ != kNoGroup) return;
  Rank slowest = answer.rank;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    if (!worker.joined) continue;
    if (worker.doubtful || !worker.timed || worker.group != kNoGroup) return;
    if (worker.capability > At(slowest).capability) slowest = static_cast<Rank>(i);
    if (worker.capability == At(slowest).capability && static_cast<Rank>(i) < slowest) {
      slowest = static_cast<Rank>(i);
    }
  }
  const Worker& last = At(slowest);
  const DurationNs rest = last.capability - (now - last.last);
  const DurationNs margin = options_.margin_ms * kMillisecond;
  const bool ready = current.steps > 0 &&
                     (slowest == answer.rank || last.told || current.capability + margin > rest);
  if (ready == answer.ready) return;
  throw Violation(
      "ready", RankText(answer.rank) + " is told " + (answer.ready ? "READY" : "NOT-READY") + " (" +
                   answer.reason + "); an iteration takes " + Ms(current.capability) +
                   ", the slowest, " + RankText(slowest) + ", needs " + Ms(rest) + " more");
}

// What is predicted for the slowest when a worker is told READY, Algorithm 2's line 9, is less than
// its own iteration and the margin; nobody else comes later but by what `off` adds up.
void EsyncRules::CheckWaits(Instant now, const FormGroup& group) {
  if (!smooth_ || Delayed()) return;
  DurationNs off = 0;
  Instant first = now, last;
  for (const GroupShare& share : group.members) {
    const Worker& worker = At(share.rank);
    off += worker.off;
    first = std::min(first, worker.begun);
    last = std::max(last, worker.begun);
  }
  off += last - first;
  for (const GroupShare& share : group.members) {
    const Worker& worker = At(share.rank);
    const DurationNs waited = now - worker.told_at;
    if (waited <= worker.capability + options_.margin_ms * kMillisecond + off) continue;
    throw Violation("wait", RankText(share.rank) + " has waited " + Ms(waited) + " for group " +
                                std::to_string(group.id) + "; its iteration takes " +
                                Ms(worker.capability) + ", and all are off by " + Ms(off));
  }
}

// How long it has been that nobody is awaited but those who are overdue.
std::optional<DurationNs> EsyncRules::Overdue(Instant now) const {
  if (running_ != kNoGroup || options_.stall_factor == 0) return std::nullopt;
  bool waits = false;
  std::optional<DurationNs> least;
  for (const Worker& worker : workers_) {
    if (!worker.joined) continue;
    waits = waits || worker.waiting;
    if (worker.waiting) continue;
    const DurationNs over = now - (worker.last + options_.stall_factor * worker.longest);
    if (!worker.timed || worker.group != kNoGroup || over <= 0) return std::nullopt;
    least = std::min(over, least.value_or(over));
  }
  return waits ? least : std::nullopt;
}

// A message may be handled before a deadline that is due already, above all after a restart.
void EsyncRules::CheckStall(Instant now) {
  constexpr DurationNs kDeadlineLate = 10 * kMillisecond;
  const std::optional<DurationNs> over = Overdue(now);
  if (!over) {
    overdue_seen_ = 0;
    return;
  }
  if (overdue_seen_++ == 0) overdue_since_ = now;
  if (overdue_seen_ < 3 || now - overdue_since_ <= kDeadlineLate) return;
  throw Violation("stall", "others wait for those who have been overdue for " + Ms(*over));
}

void EsyncRules::CheckGroup(Instant now, const FormGroup& group) {
  CheckWaits(now, group);
  const std::string name = "group " + std::to_string(group.id) + " (" + group.reason + ")";
  if (running_ != kNoGroup) throw Violation("round", name + " forms while one runs");
  for (const GroupShare& share : group.members) {
    Worker& worker = At(share.rank);
    if (share.weight != 1.0 / static_cast<double>(group.members.size())) {
      throw Violation("round", RankText(share.rank) + " has another weight in " + name);
    }
    if (!worker.told && !Delayed()) {
      throw Violation("round", RankText(share.rank) + " is in " + name + ", not told READY");
    }
    worker.waiting = false;
    worker.group = group.id;
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    const bool awaited = worker.joined && worker.group == kNoGroup && !worker.doubtful;
    if (!awaited) continue;
    throw Violation("round", name + " does not wait for " + RankText(static_cast<Rank>(i)));
  }
  running_ = group.id;
  smooth_ = true;
}

void EsyncRules::CheckIdle() const {
  if (running_ != kNoGroup) return;
  std::int64_t waiting = 0;
  for (const Worker& worker : workers_) {
    if (!worker.joined) continue;
    if (!worker.waiting) return;
    ++waiting;
  }
  if (waiting > 0) {
    throw Violation("round", "all " + std::to_string(waiting) + " wait, and no group forms");
  }
}

void EsyncRules::Archive(StateArchive& ar) {
  ar(workers_, running_, overdue_seen_, overdue_since_, smooth_);
}

}  // namespace prd::sim
