#include "engines/eager/eager.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/base/prng.h"
#include "engines/words.h"

namespace prd {

namespace {

// What a damaged snapshot may bring without an overflow later.
bool PlausibleIteration(Iteration iteration) {
  return iteration >= 0 && iteration < std::numeric_limits<Iteration>::max() / 2;
}

}  // namespace

std::string EagerOptions::Paces(int workers) const {
  if (quorum < workers) return {};
  return "quorum " + std::to_string(quorum) + " of " + std::to_string(workers) +
         " workers: every round waits for the slowest worker; a smaller one does not";
}

std::unique_ptr<Engine> EagerOptions::Make() const { return std::make_unique<Eager>(*this); }

Plan Eager::plan() const {
  return {.by = GroupPlan{.payload = Payload::kGradients,
                          .any_time = true,
                          .newest_only = options_.missed == EagerOptions::Missed::kLatest}};
}

bool Eager::Joined(Rank rank) const {
  return rank >= 0 && static_cast<std::size_t>(rank) < workers_.size() && At(rank).joined;
}

bool Eager::Arrived(const Worker& worker) const {
  return worker.joined && worker.waiting && worker.iteration == formed_ + 1;
}

bool Eager::Overdue(const Worker& worker) const {
  return options_.max_stale_rounds > 0 && worker.joined && worker.owed == 0 && !Arrived(worker) &&
         formed_ - worker.last_in >= options_.max_stale_rounds;
}

// One worker has nobody to be averaged with.
bool Eager::SyncDue() const {
  return options_.sync_every > 0 && joined_ > 1 && formed_ - last_sync_ >= options_.sync_every;
}

void Eager::Count(const Worker& worker, int by) {
  joined_ += worker.joined ? by : 0;
  arrived_ += Arrived(worker) ? by : 0;
  owing_ += worker.owed > 0 ? by : 0;
  overdue_ += Overdue(worker) ? by : 0;
}

void Eager::CountAll() {
  joined_ = arrived_ = owing_ = overdue_ = 0;
  for (const Worker& worker : workers_) Count(worker, 1);
}

void Eager::Step(Instant, const Event& event, GroupId* next_group, Effects* out) {
  if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    OnReady(*ready);
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    return OnFinished(*finished);  // its group is still running
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    OnEnded(*ended);
  } else if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    OnJoined(*joined);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    OnLeft(*left);
  } else if (std::holds_alternative<LinkEvent>(event)) {
    return;  // all are in each round
  }
  FormNext(next_group, out);
}

void Eager::OnJoined(const JoinedEvent& event) {
  PRD_CHECK(event.rank >= 0 && !Joined(event.rank));
  const std::size_t ranks = static_cast<std::size_t>(event.rank) + 1;
  if (ranks > workers_.size()) workers_.resize(ranks);
  if (joined_ == 0) {
    formed_ = last_sync_ = event.iteration;
    finishers_.clear();
  } else if (event.iteration > formed_) {
    formed_ = event.iteration;
    CountAll();
  }
  At(event.rank) = {.iteration = event.iteration,
                    .last_in = formed_,
                    .host = hosts_.Add(event.host),
                    .joined = true};
  Count(At(event.rank), 1);
  ring_.clear();
}

void Eager::OnReady(const ReadyEvent& event) {
  PRD_CHECK(Joined(event.rank));
  Worker& worker = At(event.rank);
  Count(worker, -1);
  worker.iteration = event.ready.iteration;
  worker.waiting = event.ready.waiting;
  worker.owed = event.owed;
  if (event.ready.gradients > 0) worker.samples = StoredSamples(event.ready.samples);
  Count(worker, 1);
}

void Eager::OnFinished(const FinishedEvent& event) {
  if (averaging_) return;  // gradients have no part in it
  PRD_CHECK(Joined(event.rank));
  Worker& worker = At(event.rank);
  Count(worker, -1);
  worker.owed = event.owed;
  Count(worker, 1);
}

void Eager::OnEnded(const EndedEvent& event) {
  PRD_CHECK(event.group == running_);
  running_ = kNoGroup;
  if (std::exchange(averaging_, false)) {
    if (event.ok) last_sync_ = formed_;
    return;
  }
  if (!event.ok) --formed_;
  for (Worker& worker : workers_) {
    if (std::exchange(worker.in_round, false) && event.ok) worker.last_in = formed_;
  }
  CountAll();
}

void Eager::OnLeft(const LeftEvent& event) {
  PRD_CHECK(Joined(event.rank));
  Worker& worker = At(event.rank);
  Count(worker, -1);
  hosts_.Remove(worker.host);
  if (event.why == LeftReason::kFinished) finishers_.push_back({formed_, worker.samples});
  worker = {};
  if (initiator_ == event.rank) initiator_ = kNoRank;
  ring_.clear();
}

void Eager::SortRing() {
  if (!ring_.empty()) return;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].joined) ring_.push_back(static_cast<Rank>(i));
  }
  std::sort(ring_.begin(), ring_.end(), InRingOrder([this](Rank rank) { return At(rank).host; }));
}

void Eager::FormNext(GroupId* next_group, Effects* out) {
  if (running_ != kNoGroup || arrived_ == 0) return;
  if (SyncDue()) {
    if (arrived_ == joined_) FormAverage(next_group, out);
    return;
  }
  // A worker without a gradient starts a round only if no other worker can.
  if (overdue_ > 0 || (owing_ == 0 && arrived_ < joined_)) return;
  const std::string why = Starter();
  if (!why.empty()) FormRound(why, next_group, out);
}

std::string Eager::Starter() {
  if (options_.quorum == EagerOptions::kMajority) {
    DrawInitiator();
    if (!Arrived(At(initiator_))) return "";
    return "majority: rank " + std::to_string(initiator_) + ", drawn for round " +
           std::to_string(formed_ + 1) + ", arrived";
  }
  if (arrived_ < std::min(options_.quorum, joined_)) return "";
  const std::string name =
      options_.quorum == EagerOptions::kSolo ? "solo" : "quorum " + std::to_string(options_.quorum);
  return name + ": " + words::Ranks(Those(&Eager::Arrived, true)) + " arrived";
}

void Eager::DrawInitiator() {
  if (initiator_ != kNoRank) return;
  SortRing();
  const std::uint64_t start = Prng(static_cast<std::uint64_t>(options_.seed)).Next();
  Prng draw(start + static_cast<std::uint64_t>(formed_ + 1));
  initiator_ = ring_[draw.Below(ring_.size())];
}

SampleShares Eager::Shares() {
  const std::int64_t bound = options_.max_stale_rounds;
  std::erase_if(finishers_, [&](const Finisher& finisher) {
    return bound > 0 && formed_ - finisher.last_in >= bound;
  });
  SampleShares shares(options_.weights == EagerOptions::Weights::kSamples);
  for (const Rank rank : ring_) shares.Add(At(rank).samples);
  for (const Finisher& finisher : finishers_) shares.Add(finisher.samples);
  return shares;
}

void Eager::FormRound(const std::string& why, GroupId* next_group, Effects* out) {
  SortRing();
  auto& group = std::get<GroupFormed>(out->emplace_back(GroupFormed{}));
  group.id = running_ = (*next_group)++;
  group.kind = GroupKind::kRound;
  group.iteration = formed_ + 1;
  const SampleShares shares = Shares();
  group.reason =
      why + "; " + std::to_string(owing_) + " of " + std::to_string(joined_) + " contribute";
  if (!finishers_.empty()) {
    group.reason += "; " + std::to_string(std::ssize(finishers_)) + " more have finished";
  }
  group.reason += shares.Words();
  group.members.reserve(ring_.size());
  for (const Rank rank : ring_) {
    Worker& worker = At(rank);
    worker.in_round = worker.owed > 0 || Arrived(worker);
    group.members.push_back({.rank = rank,
                             .weight = worker.owed > 0 ? shares.Of(worker.samples) : 0,
                             .iteration = worker.iteration});
  }
  ++formed_;
  initiator_ = kNoRank;
  CountAll();
}

void Eager::FormAverage(GroupId* next_group, Effects* out) {
  SortRing();
  auto& group = std::get<GroupFormed>(out->emplace_back(GroupFormed{}));
  group.id = running_ = (*next_group)++;
  group.kind = GroupKind::kAverage;
  group.iteration = formed_;
  group.reason = "all " + std::to_string(joined_) + " arrived; models are averaged before round " +
                 std::to_string(formed_ + 1) + " (sync_every " +
                 std::to_string(options_.sync_every) + ")";
  group.members.reserve(ring_.size());
  const double share = 1.0 / static_cast<double>(joined_);
  for (const Rank rank : ring_) {
    group.members.push_back({.rank = rank, .weight = share, .iteration = At(rank).iteration});
  }
  averaging_ = true;
}

std::vector<Rank> Eager::Those(bool (Eager::*are)(const Worker&) const, bool yes) const {
  std::vector<Rank> ranks;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    if (worker.joined && (this->*are)(worker) == yes) ranks.push_back(static_cast<Rank>(i));
  }
  return ranks;
}

std::string Eager::Explain(Instant, Rank rank) const {
  if (!Joined(rank) || !At(rank).waiting) return "";
  const Iteration iteration = At(rank).iteration;
  if (running_ == kNoGroup) return iteration == formed_ + 1 ? WhyNoRound() : "";
  if (averaging_) return "waiting: models are averaged before round " + std::to_string(formed_ + 1);
  if (iteration < formed_) return "";
  return "waiting: round " + std::to_string(formed_) + " is running" +
         (iteration > formed_ ? "; round " + std::to_string(iteration) + " comes after it" : "");
}

std::string Eager::WhyNoRound() const {
  const std::string next = "round " + std::to_string(formed_ + 1);
  if (SyncDue()) {
    return "waiting: " + std::to_string(arrived_) + " of " + std::to_string(joined_) +
           " arrived; models are averaged before " + next + " (sync_every " +
           std::to_string(options_.sync_every) +
           "); still to come: " + words::Ranks(Those(&Eager::Arrived, false));
  }
  if (overdue_ > 0) {
    return "waits for " + words::Ranks(Those(&Eager::Overdue, true)) + ": passed over in " +
           std::to_string(options_.max_stale_rounds) + " rounds (max_stale_rounds)";
  }
  if (owing_ == 0) return "waiting: nobody has a gradient for " + next;
  if (options_.quorum == EagerOptions::kMajority) {
    return "waits for rank " + std::to_string(initiator_) + ", drawn for " + next;
  }
  return "waiting: " + std::to_string(arrived_) + " of " +
         std::to_string(std::min(options_.quorum, joined_)) + " arrived at " + next +
         "; still to come: " + words::Ranks(Those(&Eager::Arrived, false));
}

void Eager::Archive(StateArchive& ar) {
  ar(workers_, hosts_, formed_, last_sync_, running_, averaging_, initiator_, finishers_);
  if (ar.saving()) return;
  ring_.clear();
  if (!Consistent()) return ar.Fail();
  CountAll();
}

bool Eager::Consistent() const {
  if (!PlausibleIteration(formed_) || !PlausibleIteration(last_sync_)) return false;
  for (const Worker& worker : workers_) {
    if (!PlausibleIteration(worker.iteration) || !PlausibleIteration(worker.last_in)) return false;
    if (worker.joined ? !hosts_.Has(worker.host) : worker.waiting || worker.owed > 0) return false;
  }
  for (const Finisher& finisher : finishers_) {
    if (!PlausibleIteration(finisher.last_in)) return false;
  }
  if (running_ == kNoGroup && averaging_) return false;
  return initiator_ == kNoRank || Joined(initiator_);
}

}  // namespace prd
