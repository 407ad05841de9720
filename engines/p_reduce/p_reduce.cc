#include "engines/p_reduce/p_reduce.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "engines/p_reduce/weights.h"
#include "engines/samples.h"
#include "engines/words.h"

namespace prd {

namespace {

// Longer steps count as this long, so that sums of them stay far from overflow.
constexpr DurationNs kLongestStep = 3600 * kSecond;

// Among more workers than these somebody else is always about to be ready, and nobody is left over.
constexpr std::int64_t kFewWorkers = 12;
// A worker may be late by this part of its usual step, of which its newest step is that part.
constexpr DurationNs kLateInverse = 8;
constexpr DurationNs kNewestInverse = 4;

// A time as a part of a step, in millionths.
std::int64_t OfStep(DurationNs time, DurationNs step) {
  return std::clamp<DurationNs>(time, 0, kLongestStep) * 1'000'000 / std::max<DurationNs>(step, 1);
}

}  // namespace

std::unique_ptr<Engine> PReduceOptions::Make() const { return std::make_unique<PReduce>(*this); }

Plan PReduce::plan() const {
  const auto run_ahead = static_cast<std::uint32_t>(options_.overlap_steps);
  return {.by = GroupPlan{.any_time = options_.overlap,
                          .run_ahead = options_.overlap ? run_ahead : 0,
                          .keep_initial = options_.weights == PReduceOptions::Weights::kDynamic &&
                                          options_.missing == PReduceOptions::Missing::kInitial}};
}

bool PReduce::Joined(Rank rank) const {
  return rank >= 0 && static_cast<std::size_t>(rank) < workers_.size() &&
         workers_[static_cast<std::size_t>(rank)].state != State::kAbsent;
}

void PReduce::Step(Instant now, const Event& event, GroupId* next_group, Effects* out) {
  if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    OnReady(now, *ready);
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    return OnFinished(now, *finished);  // adds no signal
  } else if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    OnJoined(now, *joined);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    OnLeft(now, *left);
  } else if (const auto* link = std::get_if<LinkEvent>(&event)) {
    OnLink(*link);
  } else if (!std::holds_alternative<DeadlineEvent>(event)) {
    return;  // Ended: every member has its Finished
  }
  FormAll(now, next_group, out);
}

void PReduce::OnJoined(Instant now, const JoinedEvent& event) {
  PRD_CHECK(event.rank >= 0 && !Joined(event.rank));
  const std::size_t ranks = static_cast<std::size_t>(event.rank) + 1;
  if (ranks > workers_.size()) {
    workers_.resize(ranks);
    filter_.Grow(ranks);
  }
  At(event.rank) = {.released = now, .host = hosts_.Add(event.host), .state = State::kComputing};
  ++joined_;
  Resize();
}

void PReduce::OnReady(Instant now, const ReadyEvent& event) {
  PRD_CHECK(Joined(event.rank));
  Worker& worker = At(event.rank);
  PRD_CHECK(worker.state == State::kComputing);
  filter_.Prefetch(event.rank);
  if (!worker.repeats) {
    worker.step = std::min(now - worker.released, kLongestStep);
    worker.usual += worker.usual == 0 ? worker.step : (worker.step - worker.usual) / kNewestInverse;
  }
  worker.repeats = false;
  worker.state = State::kWaiting;
  queue_.push_back({.rank = event.rank,
                    .host = worker.host,
                    .iteration = event.ready.iteration,
                    .at = now,
                    .step = worker.step,
                    .samples = StoredSamples(event.ready.samples)});
}

void PReduce::OnFinished(Instant now, const FinishedEvent& event) {
  PRD_CHECK(Joined(event.rank));
  Worker& worker = At(event.rank);
  PRD_CHECK(worker.state == State::kReducing);
  worker.state = State::kComputing;
  worker.released = now;
  worker.repeats = !event.ok;
}

void PReduce::OnLeft(Instant now, const LeftEvent& event) {
  PRD_CHECK(Joined(event.rank));
  Worker& worker = At(event.rank);
  filter_.Left(now);
  if (worker.state == State::kWaiting) {
    std::erase_if(queue_, [&](const Signal& signal) { return signal.rank == event.rank; });
  }
  hosts_.Remove(worker.host);
  links_.Forget(event.rank);
  passed_.erase(event.rank);
  worker = {};
  --joined_;
  Resize();
}

void PReduce::OnLink(const LinkEvent& event) {
  PRD_CHECK(Joined(event.a) && Joined(event.b));
  links_.Set(event.a, event.b, event.works);
}

void PReduce::Resize() {
  full_ = FullGroup(options_, joined_);
  size_ = static_cast<std::size_t>(std::min(full_, joined_));
  window_ = EffectiveWindow(options_, joined_);
}

bool PReduce::Overdue(Instant now) const {
  return options_.max_wait_ms > 0 && queue_.size() >= 2 &&
         now - queue_.front().at >= options_.max_wait_ms * kMillisecond;
}

bool PReduce::Gathers() const {
  return options_.group_size == 0 && !options_.overlap && joined_ > full_ && joined_ <= kFewWorkers;
}

// Waits if the next worker would lose more by being left over than those in the queue lose by
// waiting for it. A loss is a part of the worker's own usual step, so that a fast worker's time is
// worth more than a slow one's.
std::optional<PReduce::Leftover> PReduce::NextLeftover(Instant now) const {
  if (!Gathers() || queue_.size() < size_ || queue_.size() + 1 >= 2 * size_) return std::nullopt;
  const Worker* next = nullptr;
  std::vector<Instant>
      ready;  // when each worker is expected; without a group, next waits for the P-th
  const auto expected = [](const Worker& worker) { return worker.released + worker.usual; };
  for (const Worker& worker : workers_) {
    if (worker.state != State::kComputing || worker.usual == 0 || worker.repeats) continue;
    if (expected(worker) + worker.usual / kLateInverse <= now) continue;  // late: nobody knows
    ready.push_back(expected(worker));
    if (next == nullptr || expected(worker) < expected(*next)) next = &worker;
  }
  if (next == nullptr) return std::nullopt;
  for (const Signal& signal : queue_) ready.push_back(now + Of(signal.rank).usual);
  std::sort(ready.begin(), ready.end());  // next is the first
  const DurationNs left_over = std::min(ready[size_ - 1] - expected(*next), next->usual);
  const Instant until = expected(*next) + next->usual / kLateInverse;
  std::int64_t cost = 0;
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    const Instant since = queue_[std::max(i, size_ - 1)].at;
    cost += OfStep(until - since, Of(queue_[i].rank).usual);
  }
  if (cost >= OfStep(left_over, next->usual)) return std::nullopt;
  return Leftover{.rank = static_cast<Rank>(next - workers_.data()), .until = until};
}

std::optional<Instant> PReduce::NextDeadline() const {
  std::optional<Instant> next = filter_.Deadline();
  if (leftover_ && (!next || leftover_->until < *next)) next = leftover_->until;
  if (options_.max_wait_ms == 0 || queue_.size() < 2) return next;
  const bool impaired = Impaired();
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    if (impaired && Around(i).size() < 2) continue;
    const Instant overdue = queue_[i].at + options_.max_wait_ms * kMillisecond;
    if (!next || overdue < *next) next = overdue;
    break;  // signals are in the order in which they came
  }
  return next;
}

std::string PReduce::FifoReason() const {
  if (size_ == static_cast<std::size_t>(full_)) {
    return "fifo: " + std::to_string(size_) + " of " + std::to_string(size_) + " ready";
  }
  return std::to_string(size_) + (size_ == 1 ? " worker: group of " : " workers: group of ") +
         std::to_string(size_);
}

void PReduce::FormAll(Instant now, GroupId* next_group, Effects* out) {
  leftover_.reset();
  while (size_ > 0 && queue_.size() >= 1) {
    if (Impaired()) {
      filter_.EndHold(now);
      if (!FormAround(now, next_group, out)) return;
      continue;
    }
    GroupFilter::Choice choice;
    if (queue_.size() < size_) {
      filter_.EndHold(now);  // a worker has joined, and groups are larger now
      if (!Overdue(now)) return;
      std::string reason = "closed at " + std::to_string(queue_.size()) + " of " +
                           std::to_string(size_) + " after max_wait_ms " +
                           std::to_string(options_.max_wait_ms);
      Form(now, queue_.size(), choice, std::move(reason), next_group, out);
      continue;
    }
    if (joined_ > full_) choice = filter_.Choose(now, queue_, size_);
    if (choice.hold) {
      if (!Overdue(now)) return;
      filter_.EndHold(now);
      choice.note = "; no longer held after max_wait_ms " + std::to_string(options_.max_wait_ms);
    }
    std::size_t size = size_;
    std::string reason = choice.outsider > 0 ? choice.note : FifoReason() + choice.note;
    if (choice.note.empty() && !Overdue(now)) leftover_ = NextLeftover(now);
    if (leftover_) return;
    if (choice.note.empty() && Gathers() && queue_.size() > size && queue_.size() < 2 * size) {
      size = queue_.size();
      reason = "fifo: " + std::to_string(size) + " ready, so that rank " +
               std::to_string(queue_.back().rank) + " is not left over";
    }
    Form(now, size, choice, std::move(reason), next_group, out);
  }
}

bool PReduce::AnyImpaired() const {
  return std::any_of(queue_.begin(), queue_.end(),
                     [this](const Signal& signal) { return links_.HasAny(signal.rank); });
}

std::vector<std::size_t> PReduce::Around(std::size_t place) const {
  std::vector<std::size_t> places = {place};
  std::vector<Rank> taken = {queue_[place].rank};
  for (std::size_t i = 0; i < queue_.size() && places.size() < size_; ++i) {
    if (i == place || !links_.Reaches(queue_[i].rank, taken)) continue;
    places.push_back(i);
    taken.push_back(queue_[i].rank);
  }
  return places;
}

bool PReduce::HasAllItReaches(Rank rank) const {
  const auto reached = joined_ - 1 - static_cast<std::int64_t>(links_.Of(rank).size());
  return reached == std::count_if(queue_.begin(), queue_.end(), [&](const Signal& signal) {
           return signal.rank != rank && !links_.Has(signal.rank, rank);
         });
}

bool PReduce::FormAround(Instant now, GroupId* next_group, Effects* out) {
  const std::size_t turn = (static_cast<std::size_t>(joined_) + size_ - 1) / size_;
  for (std::size_t first = 0; first < queue_.size(); ++first) {
    const std::vector<std::size_t> places = Around(first);
    const std::size_t size = places.size();
    const Rank rank = queue_[first].rank;
    const std::string of = std::to_string(size) + " of " + std::to_string(size_);
    std::string reason;
    if (size == size_) {
      reason = of + " ready that reach each other";
    } else if (HasAllItReaches(rank)) {
      reason = size == 1 ? RankName(rank) + " reaches nobody: trains alone"
                         : of + ": nobody else whom rank " + std::to_string(rank) + " reaches";
    } else if (size > 1 && passed_.contains(rank) && passed_.at(rank) >= turn) {
      reason = of + ": rank " + std::to_string(rank) + " was passed over " + std::to_string(turn) +
               " times";
    } else if (size > 1 && options_.max_wait_ms > 0 &&
               now - queue_[first].at >= options_.max_wait_ms * kMillisecond) {
      reason = "closed at " + of + " after max_wait_ms " + std::to_string(options_.max_wait_ms);
    } else {
      continue;
    }
    for (std::size_t i = 0; i < first; ++i) ++passed_[queue_[i].rank];
    std::vector<Signal> queue;  // the chosen ones first, the others in order
    for (const std::size_t place : places) queue.push_back(queue_[place]);
    for (std::size_t i = 0; i < queue_.size(); ++i) {
      if (std::find(places.begin(), places.end(), i) == places.end()) queue.push_back(queue_[i]);
    }
    queue_ = std::move(queue);
    Form(now, size, {}, std::move(reason), next_group, out);
    return true;
  }
  return false;
}

void PReduce::Form(Instant now, std::size_t size, const GroupFilter::Choice& choice,
                   std::string reason, GroupId* next_group, Effects* out) {
  if (choice.outsider > 0) {  // the chosen ones to the front, the others stay in order
    std::rotate(queue_.begin() + static_cast<std::ptrdiff_t>(size) - 2,
                queue_.begin() + static_cast<std::ptrdiff_t>(choice.kept),
                queue_.begin() + static_cast<std::ptrdiff_t>(choice.kept) + 1);
    std::rotate(queue_.begin() + static_cast<std::ptrdiff_t>(size) - 1,
                queue_.begin() + static_cast<std::ptrdiff_t>(choice.outsider),
                queue_.begin() + static_cast<std::ptrdiff_t>(choice.outsider) + 1);
  }
  auto& group = std::get<GroupFormed>(out->emplace_back(GroupFormed{}));
  group.id = (*next_group)++;
  group.reason = std::move(reason);
  group.members.reserve(size);
  DurationNs step_sum = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const Signal& signal = queue_[i];
    group.members.push_back({.rank = signal.rank, .weight = 0, .iteration = signal.iteration});
    group.iteration = std::max(group.iteration, signal.iteration);
    step_sum += signal.step;
    At(signal.rank).state = State::kReducing;
    if (!passed_.empty()) passed_.erase(signal.rank);
  }
  if (options_.weights == PReduceOptions::Weights::kSamples) {
    SampleShares shares(true);
    for (std::size_t i = 0; i < size; ++i) shares.Add(queue_[i].samples);
    for (std::size_t i = 0; i < size; ++i) group.members[i].weight = shares.Of(queue_[i].samples);
    group.reason += shares.Words();
  } else {
    group.initial_weight = SetWeights(options_, &group.members);
  }
  queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(size));
  std::sort(group.members.begin(), group.members.end(),
            InRingOrder([this](Rank rank) { return At(rank).host; }));
  filter_.Formed(now, group.members, step_sum, window_);
}

std::string PReduce::Explain(Instant now, Rank rank) const {
  if (!Joined(rank) || workers_[static_cast<std::size_t>(rank)].state != State::kWaiting) return "";
  if (links_.HasAny(rank)) {
    std::size_t place = 0;
    while (queue_[place].rank != rank) ++place;
    return "waiting: " + std::to_string(Around(place).size()) + " of " + std::to_string(size_) +
           " ready that reach each other";
  }
  std::string text =
      "waiting: " + std::to_string(queue_.size()) + " of " + std::to_string(size_) + " ready";
  if (leftover_) {
    text += "; held for rank " + std::to_string(leftover_->rank) + ", which would be left over, " +
            words::Duration(leftover_->until - now) + " at most";
  }
  const std::string held = filter_.Explain(now);
  if (!held.empty()) text += "; " + held;
  if (options_.max_wait_ms > 0 && queue_.size() == 1) text += "; alone, so max_wait_ms waits, too";
  return text;
}

void PReduce::Archive(StateArchive& ar) {
  ar(workers_, queue_, filter_, hosts_, joined_, links_, passed_, leftover_);
  if (ar.saving()) return;
  if (leftover_ && (!Joined(leftover_->rank) || !Plausible(leftover_->until))) return ar.Fail();
  if (!Consistent()) return ar.Fail();
  Resize();
}

bool PReduce::Consistent() const {
  std::int64_t joined = 0;
  std::size_t waiting = 0;
  for (const Worker& worker : workers_) {
    if (worker.state == State::kAbsent) continue;
    if (worker.state > State::kReducing || !hosts_.Has(worker.host)) return false;
    if (worker.step < 0 || worker.step > kLongestStep || worker.usual < 0 ||
        worker.usual > kLongestStep || !Plausible(worker.released))
      return false;
    ++joined;
    if (worker.state == State::kWaiting) ++waiting;
  }
  std::vector<bool> seen(workers_.size());
  for (const Signal& signal : queue_) {
    if (!Joined(signal.rank) || seen[static_cast<std::size_t>(signal.rank)]) return false;
    const Worker& worker = workers_[static_cast<std::size_t>(signal.rank)];
    if (worker.state != State::kWaiting || worker.host != signal.host) return false;
    if (signal.step != worker.step || signal.iteration < 0) return false;
    if (!Plausible(signal.at)) return false;
    seen[static_cast<std::size_t>(signal.rank)] = true;
  }
  return joined == joined_ && waiting == queue_.size() && filter_.size() == workers_.size() &&
         filter_.held() <= queue_.size();
}

}  // namespace prd
