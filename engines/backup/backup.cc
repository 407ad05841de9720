#include "engines/backup/backup.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "engines/samples.h"
#include "engines/words.h"

namespace prd {

namespace {

// What takes longer counts as this long, so that sums stay far from overflow.
constexpr DurationNs kLongestTurn = 24 * 3600 * kSecond;

}  // namespace

std::string BackupOptions::Paces(int) const {
  if (backups > 0) return {};
  return "backups 0: every round waits for the slowest worker; as many as there are slow workers "
         "go on without them";
}

std::unique_ptr<Engine> BackupOptions::Make() const { return std::make_unique<Backup>(*this); }

Status BackupOptions::Check(int workers) const {
  if (workers == 0 || backups < workers) return Status::Ok();
  return Wrong("backups", std::to_string(backups),
               "0 to " + std::to_string(workers - 1) + ": a round of " + std::to_string(workers) +
                   " workers waits for one at least");
}

bool Backup::Joined(Rank rank) const {
  return rank >= 0 && static_cast<std::size_t>(rank) < workers_.size() &&
         At(rank).state != State::kAbsent;
}

bool Backup::Known(Rank rank) const { return Joined(rank) && At(rank).state != State::kCatchingUp; }

std::size_t Backup::Needed() const {
  return static_cast<std::size_t>(std::max<std::int64_t>(1, joined_ - options_.backups));
}

void Backup::Step(Instant now, const Event& event, GroupId* next_group, Effects* out) {
  if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    OnReady(now, *ready, out);
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    return OnFinished(now, *finished);  // the round still runs
  } else if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    OnJoined(now, *joined, out);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    OnLeft(*left);
  } else if (std::holds_alternative<EndedEvent>(event)) {
    OnEnded(now, std::get<EndedEvent>(event), out);
  } else if (!std::holds_alternative<DeadlineEvent>(event)) {
    return;  // the first to come are in a round, whatever links are broken
  }
  if (outdated_ > 0 && now >= Expected()) DropOutdated(now, out);
  FormIfEnough(now, next_group, out);
}

void Backup::List(Rank rank) {
  if (At(rank).listed) return;
  At(rank).listed = true;
  current_.push_back(rank);
}

void Backup::OnJoined(Instant now, const JoinedEvent& event, Effects* out) {
  PRD_CHECK(event.rank >= 0 && !Joined(event.rank));
  const std::size_t ranks = static_cast<std::size_t>(event.rank) + 1;
  if (ranks > workers_.size()) workers_.resize(ranks);
  Worker& worker = At(event.rank);
  worker.model = event.iteration;
  worker.since = now;
  worker.host = hosts_.Add(event.host);
  worker.state = State::kComputing;
  List(event.rank);
  ring_.clear();
  if (joined_++ == 0) newest_ = event.iteration;
  if (Running() || event.iteration == newest_) return;
  // It has copied from one that had a round's result and then was gone; or the newest replica is
  // gone for good (the job would have had it copied).
  const bool newest_there =
      event.newest >= newest_ || std::any_of(current_.begin(), current_.end(), [this](Rank rank) {
        return Known(rank) && At(rank).model == newest_;
      });
  if (event.iteration > newest_ || !newest_there) Settle(now, 0, out);
}

void Backup::OnReady(Instant now, const ReadyEvent& event, Effects* out) {
  PRD_CHECK(Joined(event.rank));
  Worker& worker = At(event.rank);
  PRD_CHECK(worker.state == State::kComputing || worker.state == State::kCatchingUp);
  if (worker.state == State::kCatchingUp) {
    worker.turn = std::clamp<DurationNs>(now - worker.since, 1, kLongestTurn);
  }
  NotAwaited(&worker);
  Set(&worker, State::kWaiting);
  worker.since = now;
  worker.model = event.ready.iteration - 1;
  worker.samples = StoredSamples(event.ready.samples);
  List(event.rank);
  if (worker.model < newest_) {
    if (!BeginsWithTheOthers(now, worker)) return Drop(now, event.rank, out);
    return Set(&worker, State::kOutdated);
  }
  waiting_.push_back(event.rank);
  if (worker.model > newest_ && !Running()) Settle(now, 0, out);
}

void Backup::OnFinished(Instant now, const FinishedEvent& event) {
  PRD_CHECK(Joined(event.rank));
  Worker& worker = At(event.rank);
  PRD_CHECK(worker.state == State::kReducing && event.group == running_);
  worker.state = event.ok ? State::kComputing : State::kFailed;
  worker.since = now;
  if (event.ok) worker.model = last_iteration_;
}

void Backup::OnEnded(Instant now, const EndedEvent& event, Effects* out) {
  PRD_CHECK(event.group == running_);
  running_ = kNoGroup;
  // Those for whom it failed copy the result by the job's order if there is one.
  for (const Rank rank : current_) {
    if (event.ok && At(rank).state == State::kFailed) BeginCopy(now, rank);
  }
  Settle(now, event.ok ? last_iteration_ : 0, out);
  for (const Rank rank : current_) {  // and signal again
    if (At(rank).state == State::kFailed) At(rank).state = State::kComputing;
  }
}

void Backup::OnLeft(const LeftEvent& event) {
  PRD_CHECK(Joined(event.rank));
  Worker& worker = At(event.rank);
  if (worker.state == State::kWaiting) std::erase(waiting_, event.rank);
  hosts_.Remove(worker.host);
  NotAwaited(&worker);
  Set(&worker, State::kAbsent);
  worker = {.since = {}, .listed = worker.listed};
  --joined_;
  ring_.clear();
}

void Backup::Settle(Instant now, Iteration committed, Effects* out) {
  std::erase_if(current_, [this](Rank rank) {
    At(rank).listed = Known(rank);
    return !Known(rank);
  });
  newest_ = current_.empty() ? std::max(newest_, committed) : committed;
  for (const Rank rank : current_) newest_ = std::max(newest_, At(rank).model);
  for (const Rank rank : current_) {
    if (At(rank).model < newest_ && At(rank).state != State::kFailed) Drop(now, rank, out);
    if (At(rank).state != State::kOutdated) continue;
    Set(&At(rank), State::kWaiting);  // nobody has anything newer any more
    waiting_.push_back(rank);
  }
  std::erase_if(waiting_, [this](Rank rank) { return At(rank).state != State::kWaiting; });
  std::erase_if(current_, [this](Rank rank) {
    At(rank).listed = Known(rank);
    return !Known(rank);
  });
}

void Backup::Drop(Instant now, Rank rank, Effects* out) {
  Worker& worker = At(rank);
  out->emplace_back(
      UpdateDropped{.rank = rank, .iteration = worker.model, .reason = WhyDropped(now, worker)});
  BeginCopy(now, rank);
}

void Backup::BeginCopy(Instant now, Rank rank) {
  Set(&At(rank), State::kCatchingUp);
  At(rank).since = now;
  copying_.push_back(rank);
}

void Backup::Set(Worker* worker, State state) {
  const auto change = [&](State of) { return int{state == of} - int{worker->state == of}; };
  catching_up_ += change(State::kCatchingUp);
  outdated_ += change(State::kOutdated);
  worker->state = state;
}

DurationNs Backup::Share(DurationNs of) {
  return static_cast<DurationNs>(static_cast<double>(of) * kWaitShare);
}

Instant Backup::Expected() const { return last_formed_ + period_ + Share(period_); }

bool Backup::BeginsWithTheOthers(Instant now, const Worker& worker) const {
  const bool known = worker.turn > 0 && period_ > 0;
  if (!known || UpToDate() - 1 < static_cast<std::int64_t>(Needed())) return false;
  const Instant expected = Expected();
  const bool slow = last_formed_ + worker.turn > expected;
  return !slow && now < expected && now + worker.turn > expected;
}

void Backup::DropOutdated(Instant now, Effects* out) {
  for (const Rank rank : current_) {
    if (At(rank).state == State::kOutdated) Drop(now, rank, out);
  }
}

void Backup::NotAwaited(Worker* worker) {
  awaited_ -= worker->awaited ? 1 : 0;
  worker->awaited = false;
}

std::string Backup::WhyDropped(Instant now, const Worker& worker) const {
  const Iteration offered = worker.model + 1;
  if (offered != last_iteration_) {
    return "late: its gradient is for iteration " + std::to_string(offered) + ", the next is " +
           std::to_string(newest_ + 1);
  }
  std::string text =
      "late for iteration " + std::to_string(offered) + " (group " + std::to_string(last_) + "): ";
  if (worker.state != State::kWaiting) {
    return text + "no signal " + words::Duration(now - last_formed_) + " after it formed";
  }
  return text + "its signal came " + words::Duration(worker.since - last_formed_) +
         " after it formed";
}

std::optional<Instant> Backup::NextDeadline() const {
  std::optional<Instant> due;
  if (!Running() && Enough() && awaited_ > 0) due = wait_until_;
  if (outdated_ > 0) due = std::min(due.value_or(Expected()), Expected());
  return due;
}

void Backup::LookWhoIsDue(Instant now) {
  if (enough_) return;
  enough_ = wait_until_ = now;
  for (const Rank rank : copying_) {
    Worker& worker = At(rank);
    if (worker.state != State::kCatchingUp || worker.turn == 0 || worker.awaited) continue;
    const DurationNs share = Share(worker.turn);
    if (worker.since + worker.turn > now + share) continue;
    worker.awaited = true;
    ++awaited_;
    wait_until_ = std::max(wait_until_, now + share);
  }
}

void Backup::FormIfEnough(Instant now, GroupId* next_group, Effects* out) {
  if (Running() || !Enough()) return;
  LookWhoIsDue(now);
  if (awaited_ > 0 && now < wait_until_) return;
  for (const Rank rank : copying_) NotAwaited(&At(rank));
  copying_.clear();
  const DurationNs waited = now - *std::exchange(enough_, std::nullopt);
  GroupFormed group;
  group.id = (*next_group)++;
  group.iteration = newest_ + 1;
  group.reason = std::to_string(std::ssize(waiting_)) + " of " + std::to_string(joined_) +
                 " ready; " + std::to_string(static_cast<std::int64_t>(Needed())) +
                 " needed with " + std::to_string(options_.backups) +
                 (options_.backups == 1 ? " backup worker" : " backup workers");
  SampleShares shares(options_.weights == BackupOptions::Weights::kSamples);
  for (const Rank rank : waiting_) shares.Add(At(rank).samples);
  group.reason += shares.Words();
  if (waited > 0) group.reason += "; waited " + words::Duration(waited) + " for who had to copy";
  group.members.reserve(waiting_.size());
  for (const Rank rank : WaitingInRingOrder()) {
    Worker& worker = At(rank);
    worker.state = State::kReducing;
    group.members.push_back(
        {.rank = rank, .weight = shares.Of(worker.samples), .iteration = group.iteration});
  }
  waiting_.clear();
  running_ = group.id;
  period_ = last_ == kNoGroup ? 0 : std::min(now - last_formed_, kLongestTurn);
  last_ = group.id;
  last_iteration_ = group.iteration;
  last_formed_ = now;
  out->emplace_back(std::move(group));
}

std::vector<Rank> Backup::WaitingInRingOrder() {
  const auto before = InRingOrder([this](Rank rank) { return At(rank).host; });
  std::vector<Rank> order;
  if (joined_ > 4 * std::ssize(waiting_)) {  // few of many: looking at all would cost more
    order = waiting_;
    std::sort(order.begin(), order.end(), before);
    return order;
  }
  if (ring_.empty()) {
    for (Rank rank = 0; rank < std::ssize(workers_); ++rank) {
      if (Joined(rank)) ring_.push_back(rank);
    }
    std::sort(ring_.begin(), ring_.end(), before);
  }
  order.reserve(waiting_.size());
  for (const Rank rank : ring_) {
    if (At(rank).state == State::kWaiting) order.push_back(rank);
  }
  return order;
}

std::string Backup::Explain(Instant now, Rank rank) const {
  if (!Joined(rank)) return "";
  if (At(rank).state == State::kOutdated) {
    return "waiting: its gradient is for iteration " + std::to_string(At(rank).model + 1) +
           ", which is past; copies the model when the next round has ended, or in " +
           words::Duration(std::max<DurationNs>(0, Expected() - now));
  }
  if (At(rank).state != State::kWaiting) return "";
  if (Running()) {
    std::string text = "waiting: iteration " + std::to_string(last_iteration_) + " (group " +
                       std::to_string(last_) + ") formed " + words::Duration(now - last_formed_) +
                       " ago and still runs";
    const bool late = At(rank).model + 1 == last_iteration_;
    return text + (late ? "; this gradient counts only if it fails" : "; the next is after it");
  }
  std::vector<Rank> computing, catching_up, awaited;
  for (Rank other = 0; other < std::ssize(workers_); ++other) {
    if (At(other).state == State::kComputing) computing.push_back(other);
    if (At(other).state == State::kCatchingUp) catching_up.push_back(other);
    if (At(other).awaited) awaited.push_back(other);
  }
  std::string text = "waiting: " + std::to_string(std::ssize(waiting_)) + " of " +
                     std::to_string(static_cast<std::int64_t>(Needed())) +
                     " needed ready; computing: " + words::Ranks(computing);
  if (!catching_up.empty()) text += "; catching up: " + words::Ranks(catching_up);
  if (!enough_ || awaited.empty() || wait_until_ <= now) return text;
  text += "; for " + words::Duration(wait_until_ - now) + " at most for " + words::Ranks(awaited) +
          ", late for having had to copy";
  return text;
}

void Backup::Archive(StateArchive& ar) {
  ar(workers_, hosts_, joined_, newest_, waiting_, current_, running_, last_, last_iteration_,
     last_formed_, copying_, enough_, wait_until_, period_);
  if (ar.saving()) return;
  ring_.clear();
  if (!Consistent()) return ar.Fail();
  const auto count = [this](auto is) {
    return std::count_if(workers_.begin(), workers_.end(), is);
  };
  awaited_ = count([](const Worker& of) { return of.awaited; });
  catching_up_ = count([](const Worker& of) { return of.state == State::kCatchingUp; });
  outdated_ = count([](const Worker& of) { return of.state == State::kOutdated; });
}

bool Backup::Consistent() const {
  std::int64_t joined = 0;
  std::int64_t listed = 0;
  std::int64_t waiting = 0;
  for (const Worker& worker : workers_) {
    if (worker.state > State::kOutdated || worker.model < -1) return false;
    if (worker.awaited && worker.state != State::kCatchingUp) return false;
    listed += worker.listed ? 1 : 0;
    if (worker.state == State::kAbsent) continue;
    if (!hosts_.Has(worker.host) || !Plausible(worker.since)) return false;
    if (worker.turn < 0 || worker.turn > kLongestTurn) return false;
    if (worker.state != State::kCatchingUp && !worker.listed) return false;
    ++joined;
    waiting += worker.state == State::kWaiting ? 1 : 0;
  }
  const auto distinct = [this](const std::vector<Rank>& ranks, auto fits) {
    std::vector<bool> seen(workers_.size());
    for (const Rank rank : ranks) {
      if (rank < 0 || rank >= std::ssize(workers_) || seen[static_cast<std::size_t>(rank)]) {
        return false;
      }
      seen[static_cast<std::size_t>(rank)] = true;
      if (!fits(At(rank))) return false;
    }
    return true;
  };
  const auto known_rank = [this](Rank rank) { return rank >= 0 && rank < std::ssize(workers_); };
  return joined == joined_ && listed == std::ssize(current_) && waiting == std::ssize(waiting_) &&
         distinct(current_, [](const Worker& of) { return of.listed; }) &&
         distinct(waiting_, [](const Worker& of) { return of.state == State::kWaiting; }) &&
         std::all_of(copying_.begin(), copying_.end(), known_rank) && Plausible(last_formed_) &&
         Plausible(wait_until_) && period_ >= 0 && period_ <= kLongestTurn &&
         (!enough_ || Plausible(*enough_)) && newest_ >= 0 && last_iteration_ >= 0;
}

}  // namespace prd
