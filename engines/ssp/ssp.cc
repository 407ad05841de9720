#include "engines/ssp/ssp.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "engines/words.h"

namespace prd {

namespace {

// Beyond it clocks come from a damaged snapshot.
constexpr Iteration kMaxClock = Iteration{1} << 62;

constexpr std::size_t kShown = 8;

}  // namespace

std::string SspOptions::Paces(int) const {
  if (staleness < 0) return {};
  const std::string of = "staleness " + std::to_string(staleness);
  if (staleness == 0) {
    return of + ": every step waits for the slowest worker; -1 waits for nobody";
  }
  return of + ": who is always slow holds up all that are so many clocks ahead; -1 has no bound";
}

std::unique_ptr<Engine> SspOptions::Make() const { return std::make_unique<Ssp>(*this); }

Plan Ssp::plan() const {
  using Rate = SspOptions::LearningRate;
  return {.by = StorePlan{.staleness = options_.staleness,
                          .staleness_aware = options_.learning_rate == Rate::kStalenessAware}};
}

bool Ssp::Present(Rank rank) const {
  return rank >= 0 && static_cast<std::size_t>(rank) < workers_.size() &&
         At(rank).state != State::kAbsent;
}

void Ssp::Step(Instant now, const Event& event, GroupId*, Effects* out) {
  if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    OnReady(*ready, out);
  } else if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    OnJoined(now, *joined);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    OnLeft(now, *left, out);
  } else if (const auto* placed = std::get_if<PlacedEvent>(&event)) {
    OnPlaced(*placed, out);
  } else if (std::holds_alternative<DeadlineEvent>(event)) {
    settles_.reset();
    SetPlacement(out);
  }
}

// ---- events ----

void Ssp::OnJoined(Instant now, const JoinedEvent& event) {
  PRD_CHECK(event.rank >= 0);
  const std::size_t ranks = static_cast<std::size_t>(event.rank) + 1;
  if (ranks > workers_.size()) workers_.resize(ranks);
  Worker& worker = At(event.rank);
  PRD_CHECK(worker.state == State::kAbsent || worker.state == State::kHolding);
  worker.state = State::kJoined;  // one that has paused keeps its shards
  worker.clock = event.iteration;
  if (!settles_) settles_ = now + kSettle;
}

void Ssp::OnReady(const ReadyEvent& event, Effects* out) {
  PRD_CHECK(Present(event.rank));
  Worker& worker = At(event.rank);
  PRD_CHECK(worker.state != State::kHolding && !worker.waiting &&
            event.ready.iteration == worker.clock + 1);
  const bool counts = worker.state == State::kTraining;
  if (counts) Uncount(event.rank);
  worker.waiting = true;
  if (counts) Count(event.rank);
  waiting_[worker.clock + 1].push_back(event.rank);
  LetGo(out);
}

void Ssp::OnLeft(Instant now, const LeftEvent& event, Effects* out) {
  PRD_CHECK(Present(event.rank));
  Worker& worker = At(event.rank);
  if (worker.waiting) {
    const auto found = waiting_.find(worker.clock + 1);
    std::erase(found->second, event.rank);
    if (found->second.empty()) waiting_.erase(found);
  }
  if (worker.state == State::kTraining) Uncount(event.rank);
  worker.waiting = false;
  if (StaysInJob(event.why)) {
    worker.state = State::kHolding;
    return LetGo(out);
  }
  worker = {};
  if (!settles_) settles_ = now + kSettle;
  whole_ = whole_ && !std::binary_search(members_.begin(), members_.end(), event.rank);
  std::erase(members_, event.rank);
  for (ShardState& shard : shards_) {
    if (shard.owner == event.rank) shard.owner = kNoRank;
    std::erase(shard.holders, event.rank);
    std::erase(shard.complete, event.rank);
  }
  to_place_ = 0;
  for (const Rank rank : members_) to_place_ += At(rank).placed ? 0 : 1;
  LetGo(out);
}

void Ssp::OnPlaced(const PlacedEvent& event, Effects* out) {
  PRD_CHECK(Present(event.rank));
  Worker& worker = At(event.rank);
  const bool member = std::binary_search(members_.begin(), members_.end(), event.rank);
  if (event.epoch != epoch_ || open_ || !member || worker.placed) return;
  worker.placed = true;
  --to_place_;
  for (ShardState& shard : shards_) {
    if (shard.owner != event.rank) continue;
    if (!Contains(shard.complete, event.rank)) shard.complete.push_back(event.rank);
    for (const Rank rank : shard.holders) {
      if (!Contains(shard.complete, rank)) shard.complete.push_back(rank);
    }
  }
  OpenIfPlaced(out);
}

// ---- clocks ----

void Ssp::Count(Rank rank) {
  std::vector<Rank>& ranks = clocks_[Stored(At(rank))];
  At(rank).place = static_cast<std::uint32_t>(ranks.size());
  ranks.push_back(rank);
  ++training_;
}

void Ssp::Uncount(Rank rank) {
  const auto found = clocks_.find(Stored(At(rank)));
  std::vector<Rank>& ranks = found->second;
  ranks[At(rank).place] = ranks.back();
  At(ranks.back()).place = At(rank).place;
  ranks.pop_back();
  if (ranks.empty()) clocks_.erase(found);
  --training_;
}

void Ssp::LetGo(Effects* out) {
  while (!waiting_.empty()) {
    const auto first = waiting_.begin();
    const Iteration next = first->first;
    const bool unbounded = options_.staleness < 0 || clocks_.empty();
    if (!unbounded && next - clocks_.begin()->first > options_.staleness) return;
    // What is stored stays as it is: clocks_ too.
    for (const Rank rank : first->second) {
      At(rank).clock = next;
      reached_ = std::max(reached_, next);
      At(rank).waiting = false;
      out->emplace_back(
          QueryAnswered{.rank = rank, .reason = "may read", .next = next, .workers = Training()});
    }
    waiting_.erase(first);
  }
}

// ---- placements ----

void Ssp::SetPlacement(Effects* out) {
  PlacementSet set{.epoch = epoch_ + 1, .members = {}, .at = {}, .shards = {}, .reason = {}};
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].state != State::kAbsent) set.members.push_back(static_cast<Rank>(i));
  }
  if (set.members.empty()) return;
  if (epoch_ == 0) {
    shards_.resize(options_.shards > 0 ? static_cast<std::size_t>(options_.shards)
                                       : std::min(2 * set.members.size(), kMaxShards));
  }
  // Where nobody trains any more, what is read is of where the last of them was let go. With the
  // last member of the placement before, all shards are gone.
  if (members_.empty()) reached_ = 0;
  const Iteration lowest = clocks_.empty() ? reached_ : clocks_.begin()->first;
  for (const Rank rank : set.members) {
    Worker& worker = At(rank);
    if (worker.state == State::kJoined) {
      if (!worker.waiting) worker.clock = std::max(worker.clock, lowest);
      worker.state = State::kTraining;
      Count(rank);
    }
    worker.placed = false;
    set.at.push_back(worker.clock);
  }
  std::vector<ShardPlace> places =
      PlaceShards(shards_, set.members, static_cast<std::size_t>(options_.replicas));
  set.reason = ReasonFor(places);
  for (std::size_t i = 0; i < places.size(); ++i) {
    shards_[i].owner = places[i].owner;
    shards_[i].holders = places[i].holders;
  }
  set.shards = SharedList<ShardPlace>(std::move(places));
  ++epoch_;
  open_ = false;
  whole_ = true;
  members_ = set.members;
  to_place_ = members_.size();
  out->emplace_back(std::move(set));
  LetGo(out);
}

std::string Ssp::ReasonFor(const std::vector<ShardPlace>& places) const {
  std::size_t moved = 0;
  std::vector<std::size_t> lost;
  for (std::size_t i = 0; i < places.size(); ++i) {
    moved += places[i].source != places[i].owner ? 1 : 0;
    if (places[i].source == kNoRank) lost.push_back(i);
  }
  if (epoch_ == 0) return std::to_string(places.size()) + " shards, from the common start";
  std::string text = "changes among the workers; of " + std::to_string(places.size()) + " shards " +
                     std::to_string(moved) + " go to an owner that has no copy";
  if (lost.empty()) return text;
  text += "; updates were lost: nobody is left who has all of shards";
  for (std::size_t i = 0; i < lost.size() && i < kShown; ++i) {
    text += (i > 0 ? ", " : " ") + std::to_string(lost[i]);
  }
  if (lost.size() > kShown) text += " and " + std::to_string(lost.size() - kShown) + " more";
  return text + ", whose owners take what they read last";
}

void Ssp::OpenIfPlaced(Effects* out) {
  if (open_ || !whole_ || to_place_ > 0) return;
  open_ = true;
  for (ShardState& shard : shards_) {
    shard.complete.assign(1, shard.owner);
    shard.complete.insert(shard.complete.end(), shard.holders.begin(), shard.holders.end());
  }
  out->emplace_back(PlacementOpened{.epoch = epoch_, .members = members_});
}

// While a placement is open, all holders of a shard have all of it.
Engine::Leaving Ssp::leaving(Rank rank) const {
  if (!Present(rank) || At(rank).state == State::kJoined) return Leaving::kNow;
  const bool alone = std::none_of(workers_.begin(), workers_.end(), [&](const Worker& other) {
    return other.state != State::kAbsent && &other != &At(rank);
  });
  if (alone) return Leaving::kNow;
  if (options_.replicas == 0) return Leaving::kNever;
  return open_ && whole_ && !settles_ ? Leaving::kNow : Leaving::kLater;
}

// ---- explanations ----

std::string Ssp::Explain(Instant, Rank rank) const {
  if (!Present(rank)) return "";
  const Worker& worker = At(rank);
  if (worker.state == State::kJoined) return "waiting to be in a placement of the shards";
  const bool bound = options_.staleness >= 0 && !clocks_.empty();
  if (worker.waiting && bound) {
    const auto& [lowest, all] = *clocks_.begin();
    std::vector<Rank> slowest(std::min(all.size(), kShown));
    std::partial_sort_copy(all.begin(), all.end(), slowest.begin(), slowest.end());
    return "waiting at clock " + std::to_string(worker.clock + 1) + ": " +
           words::Ranks(slowest, all.size()) + (all.size() == 1 ? " is" : " are") + " at clock " +
           std::to_string(lowest) + ", staleness " + std::to_string(options_.staleness);
  }
  return open_ ? "" : ExplainPlacing(rank);
}

std::string Ssp::ExplainPlacing(Rank rank) const {
  std::vector<Rank> placing;
  for (const Rank member : members_) {
    if (!At(member).placed) placing.push_back(member);
  }
  const std::string text = "placement " + std::to_string(epoch_) + " of the shards is not open: ";
  if (!whole_) return text + "a worker of it is gone, another follows";
  if (!At(rank).placed && placing.size() == 1) return text + "it has not all of its own yet";
  return text + words::Ranks(placing) +
         (placing.size() == 1 ? " has not all of its own yet" : " have not all of their own yet");
}

// ---- state ----

void Ssp::Archive(StateArchive& ar) {
  ar(workers_, epoch_, open_, whole_, members_, shards_, settles_, clocks_, waiting_, reached_);
  if (ar.saving()) return;
  if (!Consistent()) return ar.Fail();
  training_ = 0;
  for (const auto& [clock, ranks] : clocks_) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      At(ranks[i]).place = static_cast<std::uint32_t>(i);
    }
    training_ += static_cast<std::uint32_t>(ranks.size());
  }
  to_place_ = 0;
  for (const Rank rank : members_) to_place_ += At(rank).placed ? 0 : 1;
}

bool Ssp::Consistent() const {
  if (reached_ < 0 || reached_ > kMaxClock) return false;
  std::size_t training = 0;
  std::size_t waiting = 0;
  for (const Worker& worker : workers_) {
    if (worker.state > State::kHolding) return false;
    if (worker.clock < 0 || worker.clock > kMaxClock) return false;
    training += worker.state == State::kTraining ? 1 : 0;
    waiting += worker.waiting ? 1 : 0;
    const bool may_wait = worker.state == State::kTraining || worker.state == State::kJoined;
    if (worker.waiting && !may_wait) return false;
  }
  const auto present = [this](Rank rank) { return Present(rank); };
  std::vector<char> seen(workers_.size());
  for (const auto& [clock, ranks] : clocks_) {
    if (ranks.empty()) return false;
    for (const Rank rank : ranks) {
      if (!Present(rank) || At(rank).state != State::kTraining) return false;
      if (Stored(At(rank)) != clock || seen[static_cast<std::size_t>(rank)]++ != 0) return false;
      --training;
    }
  }
  seen.assign(workers_.size(), 0);
  for (const auto& [clock, ranks] : waiting_) {
    if (ranks.empty()) return false;
    for (const Rank rank : ranks) {
      if (!Present(rank) || !At(rank).waiting || At(rank).clock + 1 != clock) return false;
      if (seen[static_cast<std::size_t>(rank)]++ != 0) return false;
      --waiting;
    }
  }
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (!Present(members_[i]) || (i > 0 && members_[i - 1] >= members_[i])) return false;
  }
  const auto member = [this](Rank rank) {
    return std::binary_search(members_.begin(), members_.end(), rank);
  };
  for (const ShardState& shard : shards_) {
    if (shard.owner != kNoRank && !member(shard.owner)) return false;
    if (!std::all_of(shard.holders.begin(), shard.holders.end(), member)) return false;
    if (!std::all_of(shard.complete.begin(), shard.complete.end(), present)) return false;
  }
  return training == 0 && waiting == 0;
}

}  // namespace prd
