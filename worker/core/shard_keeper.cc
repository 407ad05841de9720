#include "worker/core/shard_keeper.h"

#include <algorithm>

namespace prd {
namespace {

constexpr DurationNs kSayFirst = 500 * kMillisecond;
constexpr DurationNs kSayMax = 4 * kSecond;

bool Sound(std::int64_t count) { return count >= 0 && count <= kMaxClock; }

// Whether what came with a kState can be that.
bool Sound(const ShardHeader& enclosure, const PeerItem& parcel) {
  if (!Sound(enclosure.version) || enclosure.version < parcel.stamp || !Sound(enclosure.readable)) {
    return false;
  }
  return std::all_of(enclosure.clocks.begin(), enclosure.clocks.end(),
                     [](const ShardHeader::Clock& clock) { return Sound(clock.clock); });
}

}  // namespace

void SayAgain::Said(Instant now) {
  after_ = kSayFirst;
  at_ = now + after_;
}

void SayAgain::SaidOnce(Instant now) {
  after_ = std::min(2 * after_, kSayMax);
  at_ = now + after_;
}

PlacementMap::PlacementMap(const Placement& placement, Incarnation self)
    : epoch_(placement.epoch), self_(self), shards_(placement.shards) {
  for (const GroupMember& member : placement.members) {
    by_rank_.emplace(member.rank, member.incarnation);
    ranks_.emplace(member.incarnation, member.rank);
  }
  for (const auto& [rank, incarnation] : by_rank_) {
    if (incarnation == self) break;
    ++self_index_;
  }
}

bool PlacementMap::Holds(Incarnation worker, std::uint32_t shard) const {
  const auto it = ranks_.find(worker);
  if (it == ranks_.end()) return false;
  const std::vector<Rank>& holders = shards_[shard].holders;
  return std::find(holders.begin(), holders.end(), it->second) != holders.end();
}

// ---- placements ----

bool ShardKeeper::Have(std::uint32_t shard) const {
  const auto it = kept_.find(shard);
  return it != kept_.end() && it->second.epoch == map_.epoch();
}

void ShardKeeper::Place(Instant now, const StorePlan& plan, PlacementMap map, Actions* out) {
  lockstep_ = plan.staleness == 0;
  staleness_aware_ = plan.staleness_aware;
  deltas_.Clear(out);
  states_.Clear(out);
  owned_.clear();
  stored_.clear();
  unplaced_ = 0;
  map_ = std::move(map);
  for (auto& [shard, kept] : kept_) {
    std::erase_if(kept.included, [this](const auto& item) { return !map_.Has(item.first); });
  }
  for (std::uint32_t shard = 0; shard < map_.shards(); ++shard) {
    // The shard begins anew. Older copies are dropped: equal versions would not mean equal values.
    if (map_.place(shard).source == kNoRank && kept_.erase(shard) > 0) {
      out->push_back(ForgetShard{shard});
    }
    if (map_.Owner(shard) == map_.self()) Own(now, shard, out);
  }
  states_.Start(now, &next_ticket_, out);
}

// This worker becomes, or stays, its owner.
void ShardKeeper::Own(Instant now, std::uint32_t shard, Actions* out) {
  const ShardPlace& place = map_.place(shard);
  Owned& owned = owned_[shard];
  ++unplaced_;
  for (const Rank rank : place.holders) owned.holders.push_back({.worker = map_.At(rank)});
  if (place.source != kNoRank && map_.At(place.source) != map_.self()) {
    states_.Want(
        map_.At(place.source),
        {.kind = PeerItem::Kind::kState, .shard = shard, .epoch = map_.epoch(), .stamp = 0}, out);
    return;
  }
  if (place.source == kNoRank) {
    kept_[shard] = {};
    out->push_back(KeepShard{.shard = shard, .ticket = 0});
  }
  kept_.at(shard).epoch = map_.epoch();
  OfferStates(now, shard, out);
  Confirm(shard, out);
}

void ShardKeeper::Open(Actions* out) {
  std::erase_if(kept_, [&](const auto& item) {
    const std::uint32_t shard = item.first;
    if (map_.Owner(shard) == map_.self() || map_.Holds(map_.self(), shard)) return false;
    out->push_back(ForgetShard{shard});
    return true;
  });
}

// ---- updates ----

void ShardKeeper::OnOffer(Instant now, Incarnation from, const PeerMessage& note, Actions* out) {
  if (note.parcel.shard >= map_.shards()) return;
  if (!Sound(note.parcel.stamp)) return;
  if (note.parcel.kind == PeerItem::Kind::kDelta) OnDeltaOffer(now, from, note, out);
  if (note.parcel.kind == PeerItem::Kind::kState) OnStateOffer(now, from, note, out);
}

void ShardKeeper::OnDeltaOffer(Instant now, Incarnation from, const PeerMessage& note,
                               Actions* out) {
  const std::uint32_t shard = note.parcel.shard;
  const auto owned = owned_.find(shard);
  if (owned == owned_.end() || !Have(shard)) return;
  const Kept& kept = kept_.at(shard);
  const auto included = kept.included.find(from);
  if (included != kept.included.end() && included->second.clock >= note.parcel.stamp) {
    // Said again, or by a pusher whose kStored was lost. It has gone on after an older one.
    if (included->second.clock > note.parcel.stamp) return;
    owned->second.unconfirmed[from] = included->second;
    return Confirm(shard, out);
  }
  if (!deltas_.Want(from, note.parcel, out)) return;
  owned->second.offers[from] = note;
  deltas_.Start(now, &next_ticket_, out);
}

void ShardKeeper::AddOwn(Instant now, const PeerMessage& note, Actions* out) {
  const Kept& kept = kept_.at(note.parcel.shard);
  const auto included = kept.included.find(map_.self());
  if (included != kept.included.end() && included->second.clock >= note.parcel.stamp) {
    owned_.at(note.parcel.shard).unconfirmed[map_.self()] = {.clock = note.parcel.stamp,
                                                             .version = included->second.version};
    return Confirm(note.parcel.shard, out);
  }
  Add(now, map_.self(), 0, note, out);
}

// The part of an update that this is counts less if, since what it was computed on was read, more
// updates have come than there are workers (Jiang et al., SIGMOD 2017).
double ShardKeeper::Factor(const Kept& kept, const PeerMessage& note) const {
  if (!staleness_aware_) return 1;
  const std::int64_t read = std::clamp<std::int64_t>(note.version, 0, kept.version);
  const auto delay = static_cast<double>(kept.version - read + 1);
  const double workers = std::max<std::uint32_t>(note.workers, 1);
  return workers / std::max(workers, delay);
}

void ShardKeeper::Add(Instant now, Incarnation from, Ticket ticket, const PeerMessage& note,
                      Actions* out) {
  const std::uint32_t shard = note.parcel.shard;
  Kept& kept = kept_.at(shard);
  // Its pusher has read all at the clock before. That this copy of the shard did not see that (a
  // holder's, that is the owner's now) does not make this update part of it.
  MergeUpTo(shard, note.parcel.stamp - 1, out);
  out->push_back(AddDelta{
      .shard = shard, .ticket = ticket, .factor = Factor(kept, note), .pending = lockstep_});
  ++kept.version;
  const Included included{.clock = note.parcel.stamp, .version = kept.version};
  kept.included[from] = included;
  owned_.at(shard).unconfirmed[from] = included;
  OfferStates(now, shard, out);
  Confirm(shard, out);
}

// Lockstep: what is pending is of this clock or before, and may be read now.
void ShardKeeper::MergeUpTo(std::uint32_t shard, std::int64_t clock, Actions* out) {
  Kept& kept = kept_.at(shard);
  if (!lockstep_ || clock <= kept.readable) return;
  kept.readable = clock;
  out->push_back(MergePending{shard});
}

std::int64_t ShardKeeper::ReadOwn(std::uint32_t shard, std::int64_t clock, bool keeps_move,
                                  Actions* out) {
  MergeUpTo(shard, clock, out);
  out->push_back(ReadShard{.shard = shard, .ticket = 0, .keeps_move = keeps_move});
  return kept_.at(shard).version;
}

// ---- copies ----

void ShardKeeper::OnStateOffer(Instant now, Incarnation from, const PeerMessage& note,
                               Actions* out) {
  const std::uint32_t shard = note.parcel.shard;
  if (map_.Owner(shard) != from || !map_.Holds(map_.self(), shard)) return;
  const auto it = kept_.find(shard);
  if (it != kept_.end()) {
    Kept& kept = it->second;
    // Two of one version are the same. But a later one of an older placement may be one that the
    // owner never had.
    if (kept.version == note.parcel.stamp) kept.epoch = map_.epoch();
    if (Have(shard) && kept.version >= note.parcel.stamp) return SayState(from, shard, out);
  }
  if (states_.Want(from, note.parcel, out)) states_.Start(now, &next_ticket_, out);
}

void ShardKeeper::SayState(Incarnation to, std::uint32_t shard, Actions* out) const {
  const PeerItem parcel{.kind = PeerItem::Kind::kState,
                        .shard = shard,
                        .epoch = map_.epoch(),
                        .stamp = kept_.at(shard).version};
  out->push_back(
      SendNote{.to = to, .note = {.kind = PeerMessage::Kind::kStored, .parcel = parcel}});
}

void ShardKeeper::OnStored(Instant now, Incarnation from, const PeerItem& parcel, Actions* out) {
  const auto owned = owned_.find(parcel.shard);
  if (owned == owned_.end() || !Have(parcel.shard)) return;
  const std::int64_t version = std::min(parcel.stamp, kept_.at(parcel.shard).version);
  for (Holder& holder : owned->second.holders) {
    if (holder.worker != from) continue;
    holder.confirmed = std::max(holder.confirmed, version);
    if (holder.offered && version >= *holder.offered) holder.offered.reset();
  }
  OfferStates(now, parcel.shard, out);
  Confirm(parcel.shard, out);
}

// Offers the shard to holders who lack something of it and have no offer of it.
void ShardKeeper::OfferStates(Instant now, std::uint32_t shard, Actions* out) {
  const std::int64_t version = kept_.at(shard).version;
  for (Holder& holder : owned_.at(shard).holders) {
    if (holder.offered || holder.confirmed >= version) continue;
    holder.offered = version;
    holder.again.Said(now);
    const PeerItem parcel{
        .kind = PeerItem::Kind::kState, .shard = shard, .epoch = map_.epoch(), .stamp = version};
    out->push_back(SendNote{.to = holder.worker, .note = {.parcel = parcel}});
  }
}

// Tells pushers what all holders have by now.
void ShardKeeper::Confirm(std::uint32_t shard, Actions* out) {
  const Kept& kept = kept_.at(shard);
  Owned& owned = owned_.at(shard);
  std::int64_t everywhere = kept.version;
  for (const Holder& holder : owned.holders) everywhere = std::min(everywhere, holder.confirmed);
  if (!owned.placed && everywhere == kept.version) {
    owned.placed = true;
    --unplaced_;
  }
  std::erase_if(owned.unconfirmed, [&](const auto& item) {
    const auto& [worker, included] = item;
    if (included.version > everywhere) return false;
    const PeerItem parcel{.kind = PeerItem::Kind::kDelta,
                          .shard = shard,
                          .epoch = map_.epoch(),
                          .stamp = included.clock};
    if (worker == map_.self()) {
      stored_.push_back(parcel);
    } else {
      out->push_back(
          SendNote{.to = worker, .note = {.kind = PeerMessage::Kind::kStored, .parcel = parcel}});
    }
    return true;
  });
}

// ---- what peers pull, and what is pulled here ----

void ShardKeeper::OnRequest(Incarnation from, Request request, const PeerItem& parcel,
                            Actions* out) {
  const std::uint32_t shard = parcel.shard;
  const auto refuse = [&] { out->push_back(Refuse{request}); };
  if (shard >= map_.shards() || !Sound(parcel.stamp)) return refuse();
  const auto it = kept_.find(shard);
  if (it == kept_.end()) return refuse();
  const bool owner = map_.Owner(shard) == map_.self() && Have(shard);
  Kept& kept = it->second;
  if (parcel.kind == PeerItem::Kind::kShard) {
    if (!owner) return refuse();
    MergeUpTo(shard, parcel.stamp, out);
    out->push_back(Serve{.request = request,
                         .parcel = parcel,
                         .enclosure = {.version = kept.version, .readable = kept.readable}});
    return;
  }
  const Rank source = map_.place(shard).source;
  const bool hands_over =
      source != kNoRank && map_.At(source) == map_.self() && map_.Owner(shard) == from;
  if (!hands_over && !(owner && map_.Holds(from, shard))) return refuse();
  if (kept.version < parcel.stamp) return refuse();
  ShardHeader enclosure{.version = kept.version, .readable = kept.readable};
  for (const auto& [worker, included] : kept.included) {
    enclosure.clocks.push_back({.worker = worker, .clock = included.clock});
  }
  out->push_back(Serve{.request = request, .parcel = parcel, .enclosure = std::move(enclosure)});
}

bool ShardKeeper::OnPulled(Instant now, Ticket ticket, const Status& status,
                           const ShardHeader& enclosure, Actions* out) {
  if (const auto delta = deltas_.Find(ticket)) {
    if (status.ok()) {
      deltas_.Succeeded(ticket);
      const auto offer = owned_.at(delta->parcel.shard).offers.extract(delta->from);
      Add(now, delta->from, ticket, offer.mapped(), out);
    } else {
      deltas_.Failed(now, ticket);
    }
    deltas_.Start(now, &next_ticket_, out);
    return true;
  }
  const auto state = states_.Find(ticket);
  if (!state) return false;
  if (status.ok() && Sound(enclosure, state->parcel)) {
    states_.Succeeded(ticket);
    Keep(now, state->from, ticket, state->parcel.shard, enclosure, out);
  } else {
    if (status.ok()) out->push_back(DropPull{ticket});
    states_.Failed(now, ticket);
  }
  states_.Start(now, &next_ticket_, out);
  return true;
}

void ShardKeeper::Keep(Instant now, Incarnation from, Ticket ticket, std::uint32_t shard,
                       const ShardHeader& enclosure, Actions* out) {
  Kept kept{.epoch = map_.epoch(),
            .version = enclosure.version,
            .readable = enclosure.readable,
            .included = {}};
  for (const ShardHeader::Clock& clock : enclosure.clocks) {
    if (!map_.Has(clock.worker)) continue;
    kept.included[clock.worker] = {.clock = clock.clock, .version = enclosure.version};
  }
  kept_[shard] = std::move(kept);
  out->push_back(KeepShard{.shard = shard, .ticket = ticket});
  if (map_.Owner(shard) != map_.self()) return SayState(from, shard, out);
  OfferStates(now, shard, out);
  Confirm(shard, out);
}

// ---- time ----

void ShardKeeper::OnTime(Instant now, Actions* out) {
  deltas_.Start(now, &next_ticket_, out);
  states_.Start(now, &next_ticket_, out);
  for (auto& [shard, owned] : owned_) {
    for (Holder& holder : owned.holders) {
      if (!holder.offered || now < holder.again.at()) continue;
      holder.offered = kept_.at(shard).version;
      holder.again.SaidOnce(now);
      const PeerItem parcel{.kind = PeerItem::Kind::kState,
                            .shard = shard,
                            .epoch = map_.epoch(),
                            .stamp = *holder.offered};
      out->push_back(SendNote{.to = holder.worker, .note = {.parcel = parcel}});
    }
  }
}

std::optional<Instant> ShardKeeper::NextDeadline() const {
  std::optional<Instant> next = deltas_.NextDeadline();
  const auto consider = [&next](std::optional<Instant> at) {
    if (at && (!next || *at < *next)) next = at;
  };
  consider(states_.NextDeadline());
  for (const auto& [shard, owned] : owned_) {
    for (const Holder& holder : owned.holders) {
      if (holder.offered) consider(holder.again.at());
    }
  }
  return next;
}

}  // namespace prd
