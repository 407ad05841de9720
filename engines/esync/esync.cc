#include "engines/esync/esync.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "engines/samples.h"
#include "engines/words.h"

namespace prd {

namespace {

// The longest iteration of a worker that was dropped grows from at least this.
constexpr DurationNs kShortestStall = kMillisecond;
// What takes longer counts as this long, so that sums and products stay far from overflow.
constexpr DurationNs kLongestIteration = 24 * 3600 * kSecond;
constexpr DurationNs kLongestRoundTrip = 60 * kSecond;

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

}  // namespace

std::unique_ptr<Engine> EsyncOptions::Make() const { return std::make_unique<Esync>(*this); }

Plan Esync::plan() const {
  return {.by = GroupPlan{.payload = Payload::kChange,
                          .asks = true,
                          .delayed_ack = Delayed(),
                          .outer_rate = options_.global_lr}};
}

bool Esync::Joined(Rank rank) const {
  return rank >= 0 && static_cast<std::size_t>(rank) < workers_.size() &&
         At(rank).state != State::kAbsent;
}

void Esync::Step(Instant now, const Event& event, GroupId* next_group, Effects* out) {
  if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    OnReady(now, *ready, out);
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    OnFinished(now, *finished);
  } else if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    OnJoined(now, *joined, out);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    OnLeft(*left);
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    OnEnded(now, *ended, out);
  } else if (std::holds_alternative<DeadlineEvent>(event)) {
    OnDeadline(now);
  }
  FormIfAllWait(now, next_group, out);
}

// ---- records ----

void Esync::Set(Rank rank, State state, bool counts) {
  Worker& worker = At(rank);
  counted_ += int{counts} - int{worker.counts};
  waiting_ += int{counts && state == State::kWaiting} -
              int{worker.counts && worker.state == State::kWaiting};
  worker.state = state;
  worker.counts = counts;
  const std::int64_t c = worker.capability == kUnknown ? kNever : worker.capability;
  slowest_.Set(rank, counts ? c : Largest::kNone);
  const bool missing = counts && state != State::kWaiting;
  missing_.Set(rank, missing ? OverdueAt(worker) : Largest::kNone);
}

std::int64_t Esync::OverdueAt(const Worker& worker) const {
  const bool reduces = worker.state == State::kReducing || worker.state == State::kFailed;
  if (options_.stall_factor == 0 || worker.capability == kUnknown || reduces) return kNever;
  return (worker.last_finish + options_.stall_factor * worker.longest).ns;
}

void Esync::Update(Instant now, const Ready& ready, Worker* worker) const {
  const std::int64_t steps = std::int64_t{ready.local_steps} - worker->local_steps;
  // With delayed ACK, a worker that reaches the barrier has cut an iteration short, not ended one.
  const bool timed = !worker->untimed && steps > 0 && !(Delayed() && ready.waiting);
  // A worker that joins anew signals at once.
  if (now > worker->last_finish && (timed || worker->capability == kUnknown)) {
    DurationNs c = (now - worker->last_finish) / std::max<std::int64_t>(1, steps);
    if (Delayed()) c += std::clamp<DurationNs>(ready.rtt_ns, 0, kLongestRoundTrip);
    worker->capability = std::clamp<DurationNs>(c, 0, kLongestIteration);
    worker->longest = std::max(worker->longest, worker->capability);
  } else if (worker->untimed && options_.stall_factor > 0) {
    const DurationNs most = options_.stall_factor * std::max(worker->longest, kShortestStall);
    const DurationNs since = std::min(now - worker->last_finish, most);
    worker->longest = std::clamp(since, worker->longest, kLongestIteration);
  }
  worker->untimed = false;
  worker->last_finish = now;
  if (steps > 0) {  // one, unless earlier queries were never said
    worker->samples +=
        static_cast<double>(StoredSamples(ready.samples)) * static_cast<double>(steps);
    worker->untold = worker->untold || ready.samples == 0;
  }
  worker->local_steps = ready.local_steps;
  worker->model = ready.iteration - 1;
}

// ---- events ----

void Esync::OnJoined(Instant now, const JoinedEvent& event, Effects* out) {
  PRD_CHECK(event.rank >= 0 && !Joined(event.rank));
  const std::size_t ranks = static_cast<std::size_t>(event.rank) + 1;
  if (ranks > workers_.size()) workers_.resize(ranks);
  At(event.rank) = {.model = event.iteration, .last_finish = now, .host = hosts_.Add(event.host)};
  ring_.clear();
  const bool others_newest = std::any_of(workers_.begin(), workers_.end(), [&](const Worker& of) {
    return of.state != State::kAbsent && of.state != State::kCatchingUp && of.model == newest_;
  });
  if (joined_++ == 0) newest_ = event.iteration;
  Set(event.rank, State::kTraining, !begun_);
  // It has copied from one that had a round's result and then was gone; or the newest replica is
  // gone for good (the job would have had it copied).
  const bool other_newest = event.iteration > newest_ || !others_newest;
  if (!Running() && event.iteration != newest_ && other_newest) Settle(now, 0, out);
}

void Esync::OnReady(Instant now, const ReadyEvent& event, Effects* out) {
  PRD_CHECK(Joined(event.rank));
  Worker& worker = At(event.rank);
  PRD_CHECK(worker.state == State::kTraining || worker.state == State::kReady ||
            worker.state == State::kCatchingUp);
  begun_ = true;
  Update(now, event.ready, &worker);
  Set(event.rank, worker.state == State::kReady ? State::kReady : State::kTraining, true);
  if (worker.model < newest_) return Drop(now, event.rank, out);
  if (worker.model > newest_ && !Running()) Settle(now, 0, out);
  Query(now, event.rank, event.ready, out);
}

void Esync::OnFinished(Instant now, const FinishedEvent& event) {
  PRD_CHECK(Joined(event.rank));
  Worker& worker = At(event.rank);
  PRD_CHECK(worker.state == State::kReducing && event.group == running_);
  worker.last_finish = now;  // also after a failure, which is not a reason to call it overdue
  if (event.ok) {
    worker.model = last_iteration_;
    worker.BeginRound();
    worker.longest = std::max(worker.capability, worker.longest - worker.longest / 8);
  }
  Set(event.rank, event.ok ? State::kTraining : State::kFailed, true);
}

void Esync::OnEnded(Instant now, const EndedEvent& event, Effects* out) {
  PRD_CHECK(event.group == running_);
  running_ = kNoGroup;
  const auto go_on = [&](State state) {
    for (Rank rank = 0; rank < std::ssize(workers_); ++rank) {
      if (At(rank).state != State::kFailed) continue;
      At(rank).untimed = true;
      At(rank).last_finish = now;
      if (event.ok) At(rank).BeginRound();
      Set(rank, state, true);
    }
  };
  // Those for whom it failed copy the result by the job's order if there is one.
  if (event.ok) go_on(State::kCatchingUp);
  Settle(now, event.ok ? last_iteration_ : 0, out);
  go_on(State::kReady);  // and signal again
}

void Esync::OnLeft(const LeftEvent& event) {
  PRD_CHECK(Joined(event.rank));
  hosts_.Remove(At(event.rank).host);
  Set(event.rank, State::kAbsent, false);
  At(event.rank) = {};
  ring_.clear();
  if (--joined_ == 0) begun_ = false;
}

std::optional<Instant> Esync::NextDeadline() const {
  if (Running() || waiting_ == 0 || missing_.rank() == kNoRank || missing_.value() == kNever) {
    return std::nullopt;
  }
  return Instant{missing_.value()};
}

void Esync::OnDeadline(Instant now) {
  const std::optional<Instant> deadline = NextDeadline();
  if (!deadline || now < *deadline) return;
  std::vector<Rank> overdue;
  for (Rank rank = 0; rank < std::ssize(workers_); ++rank) {
    if (!At(rank).counts || At(rank).state == State::kWaiting) continue;
    overdue.push_back(rank);
    Set(rank, At(rank).state, false);
  }
  const Worker& first = At(overdue.front());
  taken_out_ = "; without " + words::Ranks(overdue) + ", not heard of for " +
               words::Duration(now - first.last_finish) + ", more than " +
               std::to_string(options_.stall_factor) + " times " + words::Duration(first.longest);
}

// ---- queries ----

void Esync::Query(Instant now, Rank rank, const Ready& ready, Effects* out) {
  while (slowest_.rank() != kNoRank && At(slowest_.rank()).state == State::kCatchingUp &&
         OverdueAt(At(slowest_.rank())) <= now.ns) {
    Set(slowest_.rank(), State::kCatchingUp, false);
  }
  const bool told = At(rank).state == State::kReady;
  Decision decision{.ready = told, .reason = "it was ready before"};
  const bool without = Running() && At(rank).model == newest_;
  if (!told && ready.last && !without) {
    decision = {.ready = true, .reason = "it makes no other local iteration"};
  } else if (!told) {
    decision = QueryState(now, rank);
  }
  const bool waits = ready.waiting;
  // With delayed ACK only READY is answered, once; and whoever waits goes on with the group alone.
  const bool answer = !Delayed() || (decision.ready && !told && !waits);
  if (answer) {
    out->emplace_back(
        QueryAnswered{.rank = rank, .ready = decision.ready, .reason = std::move(decision.reason)});
  }
  const bool stops = decision.ready || (Delayed() && waits);
  if (stops) Set(rank, waits ? State::kWaiting : State::kReady, true);
}

Esync::Decision Esync::QueryState(Instant now, Rank rank) const {
  const Worker& current = At(rank);
  const Rank slowest = slowest_.rank();
  const Worker& last = At(slowest);
  if (Running() && current.model == newest_) {
    return {false, "round " + std::to_string(last_iteration_) + " runs without it"};
  }
  if (current.local_steps == 0) return {false, "no local iteration yet"};
  if (last.capability == kUnknown) return {false, RankName(slowest) + " is in its first iteration"};
  if (last.state == State::kCatchingUp) {
    return {false, "the slowest, " + RankName(slowest) + ", catches up"};
  }
  if (last.state == State::kReducing || last.state == State::kFailed) {
    return {false, "the slowest, " + RankName(slowest) + ", still reduces"};
  }
  if (rank == slowest)
    return {true, "the slowest: an iteration takes " + words::Duration(current.capability)};
  if (last.state == State::kReady || last.state == State::kWaiting) {
    return {true, "the slowest, " + RankName(slowest) + ", is ready"};
  }
  const DurationNs rest = last.capability - (now - last.last_finish);
  const std::string text =
      "the slowest, " + RankName(slowest) + ", is " +
      (rest < 0 ? words::Duration(-rest) + " overdue" : "ready in " + words::Duration(rest)) +
      "; an iteration takes " + words::Duration(current.capability);
  return {current.capability + options_.margin_ms * kMillisecond > rest, text};
}

// ---- rounds ----

void Esync::Settle(Instant now, Iteration committed, Effects* out) {
  const auto known = [](const Worker& of) {
    return of.state != State::kAbsent && of.state != State::kCatchingUp;
  };
  const bool any = std::any_of(workers_.begin(), workers_.end(), known);
  newest_ = any ? committed : std::max(newest_, committed);
  for (const Worker& of : workers_) {
    if (known(of)) newest_ = std::max(newest_, of.model);
  }
  for (Rank rank = 0; rank < std::ssize(workers_); ++rank) {
    const Worker& worker = At(rank);
    if (!known(worker) || worker.model >= newest_ || worker.state == State::kFailed) continue;
    // The first iteration of one that joined late only shows how long it takes.
    if (!worker.counts && worker.capability == kUnknown) continue;
    Drop(now, rank, out);
  }
}

void Esync::Drop(Instant now, Rank rank, Effects* out) {
  Worker& worker = At(rank);
  out->emplace_back(
      UpdateDropped{.rank = rank, .iteration = worker.model, .reason = WhyDropped(now, worker)});
  worker.last_finish = now;
  worker.BeginRound();
  worker.untimed = worker.capability != kUnknown;
  Set(rank, State::kCatchingUp, worker.counts);
}

std::string Esync::WhyDropped(Instant now, const Worker& worker) const {
  const Iteration round = worker.model + 1;
  const std::string steps = std::to_string(worker.local_steps) +
                            (worker.local_steps == 1 ? " local iteration" : " local iterations");
  if (worker.counts || round != last_iteration_) {
    return "late: " + steps + " for round " + std::to_string(round) + ", the next is " +
           std::to_string(newest_ + 1);
  }
  return "taken out of round " + std::to_string(round) + " (group " + std::to_string(last_) +
         "): " + steps + ", not heard of for " + words::Duration(now - worker.last_finish) +
         ", overdue by " + words::Duration(now.ns - OverdueAt(worker));
}

void Esync::SortRing() {
  for (Rank rank = 0; rank < std::ssize(workers_); ++rank) {
    if (Joined(rank)) ring_.push_back(rank);
  }
  std::sort(ring_.begin(), ring_.end(), InRingOrder([this](Rank rank) { return At(rank).host; }));
}

void Esync::FormIfAllWait(Instant now, GroupId* next_group, Effects* out) {
  if (Running() || counted_ == 0 || waiting_ < counted_) return;
  if (ring_.empty()) SortRing();
  GroupFormed group;
  group.id = (*next_group)++;
  group.iteration = newest_ + 1;
  SampleShares shares(options_.weights == EsyncOptions::Weights::kSamples);
  for (const Rank rank : ring_) {
    if (At(rank).state == State::kWaiting) shares.Add(At(rank).MeanSamples());
  }
  std::uint32_t fewest = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t most = 0;
  std::int64_t sum = 0;
  for (const Rank rank : ring_) {
    const Worker& worker = At(rank);
    if (worker.state != State::kWaiting) continue;
    group.members.push_back(
        {.rank = rank, .weight = shares.Of(worker.MeanSamples()), .iteration = group.iteration});
    fewest = std::min(fewest, worker.local_steps);
    most = std::max(most, worker.local_steps);
    sum += worker.local_steps;
    Set(rank, State::kReducing, true);
  }
  const std::int64_t members = std::ssize(group.members);
  group.reason = std::to_string(members) + " of " + std::to_string(joined_) +
                 " ready; local iterations " + std::to_string(fewest) + " to " +
                 std::to_string(most) + ", " + std::to_string(sum) + " in all" + shares.Words() +
                 taken_out_;
  taken_out_.clear();
  running_ = group.id;
  last_ = group.id;
  last_iteration_ = group.iteration;
  last_formed_ = now;
  out->emplace_back(std::move(group));
}

std::string Esync::Explain(Instant now, Rank rank) const {
  if (!Joined(rank) || At(rank).state != State::kWaiting) return "";
  if (Running()) {
    return "waiting: round " + std::to_string(last_iteration_) + " (group " +
           std::to_string(last_) + ") formed " + words::Duration(now - last_formed_) +
           " ago and still runs";
  }
  std::vector<Rank> training, catching_up;
  for (Rank other = 0; other < std::ssize(workers_); ++other) {
    const Worker& worker = At(other);
    if (!worker.counts || worker.state == State::kWaiting) continue;
    (worker.state == State::kCatchingUp ? catching_up : training).push_back(other);
  }
  std::string text =
      "waiting: " + std::to_string(waiting_) + " of " + std::to_string(counted_) + " ready";
  if (!training.empty()) text += "; in a local iteration: " + words::Ranks(training);
  if (!catching_up.empty()) text += "; catching up: " + words::Ranks(catching_up);
  const std::optional<Instant> deadline = NextDeadline();
  if (deadline && *deadline > now) {
    text += "; taken out in " + words::Duration(*deadline - now) + " at the earliest";
  }
  return text;
}

// ---- state ----

void Esync::Archive(StateArchive& ar) {
  ar(workers_, hosts_, joined_, begun_, newest_, running_, last_, last_iteration_, last_formed_,
     taken_out_);
  if (ar.saving()) return;
  if (!Consistent()) return ar.Fail();
  Derive();
}

void Esync::Derive() {
  counted_ = 0;
  waiting_ = 0;
  slowest_ = {};
  missing_ = {};
  ring_.clear();
  for (Rank rank = 0; rank < std::ssize(workers_); ++rank) {
    Worker& worker = At(rank);
    const bool counts = std::exchange(worker.counts, false);
    Set(rank, worker.state, counts);
  }
}

bool Esync::Consistent() const {
  std::int64_t joined = 0;
  for (const Worker& worker : workers_) {
    if (worker.state > State::kCatchingUp || worker.model < -1) return false;
    if (worker.state == State::kAbsent && worker.counts) return false;
    if (worker.capability < kUnknown || worker.capability > kLongestIteration) return false;
    if (worker.longest < 0 || worker.longest > kLongestIteration) return false;
    if (!std::isfinite(worker.samples) || worker.samples < 0) return false;
    if (!Plausible(worker.last_finish)) return false;
    if (worker.state == State::kAbsent) continue;
    if (!hosts_.Has(worker.host)) return false;
    ++joined;
  }
  return joined == joined_ && newest_ >= 0 && last_iteration_ >= 0 && Plausible(last_formed_);
}

}  // namespace prd
