#include "worker/core/shard_store.h"

#include <algorithm>
#include <set>

namespace prd {
namespace {

// Under which parcels are exchanged only once the placement is open.
bool NeedsOpen(PeerItem::Kind kind) {
  return kind == PeerItem::Kind::kDelta || kind == PeerItem::Kind::kShard;
}

}  // namespace

// ---- placements ----

std::string ShardStore::Check(const Placement& placement, Rank rank, Incarnation self) const {
  if (placement.epoch <= epoch()) return "it is not after number " + std::to_string(epoch());
  const std::size_t shards = placement.shards.size();
  if (shards == 0 || (!versions_.empty() && shards != versions_.size())) {
    return "it has " + std::to_string(shards) + " shards";
  }
  if (placement.at < 0 || placement.at > kMaxClock) return "its clock is out of range";
  std::set<Rank> ranks;
  std::set<Incarnation> workers;
  bool member = false;
  for (const GroupMember& m : placement.members) {
    ranks.insert(m.rank);
    workers.insert(m.incarnation);
    member = member || (m.rank == rank && m.incarnation == self);
  }
  const std::size_t count = placement.members.size();
  if (ranks.size() != count || workers.size() != count) return "a member is in it twice";
  if (!member) return "this worker is not in it";
  for (std::uint32_t shard = 0; shard < shards; ++shard) {
    const ShardPlace& place = placement.shards[shard];
    std::set<Rank> keepers{place.owner};
    keepers.insert(place.holders.begin(), place.holders.end());
    const auto known = [&](Rank r) { return ranks.contains(r); };
    const bool somewhere = std::all_of(keepers.begin(), keepers.end(), known);
    if (!somewhere || keepers.size() != place.holders.size() + 1 ||
        (place.source != kNoRank && !known(place.source))) {
      return "shard " + std::to_string(shard) + " is with workers that are not in it";
    }
    if (place.source == rank && !keeper_.Has(shard)) {
      return "it has shard " + std::to_string(shard) + " come from this worker, which has it not";
    }
  }
  return {};
}

void ShardStore::SetPlacement(Instant now, const StorePlan& plan, const Placement& placement,
                              Incarnation self, Actions* out) {
  open_ = said_placed_ = false;
  reads_.Clear(out);
  read_.begun = false;
  if (versions_.empty()) {
    versions_.resize(placement.shards.size());
    out->push_back(CutShards{static_cast<std::uint32_t>(placement.shards.size())});
  }
  SetPeers meet;
  for (const GroupMember& member : placement.members) {
    if (member.incarnation != self) meet.peers.push_back(member);
  }
  out->push_back(std::move(meet));
  keeper_.Place(now, plan, PlacementMap(placement, self), out);
  AdmitEarly(now, out);
}

bool ShardStore::TakePlaced() {
  if (said_placed_ || !keeper_.placed()) return false;
  said_placed_ = true;
  return true;
}

bool ShardStore::Open(Instant now, std::uint64_t epoch, Actions* out) {
  if (epoch != this->epoch() || open_) return true;
  if (!keeper_.placed()) return false;
  open_ = true;
  keeper_.Open(out);
  if (push_.left > 0) BeginPush(now, out);
  if (read_.wanted) BeginRead(now, out);
  AdmitEarly(now, out);
  return true;
}

// ---- pushing ----

void ShardStore::Push(Instant now, std::int64_t clock, double share, std::uint32_t workers,
                      Actions* out) {
  out->push_back(TakeDelta{share});
  push_ = {.clock = clock, .workers = workers, .stored = {}, .left = versions_.size()};
  if (open_) BeginPush(now, out);
}

// Offers all of it. That an older placement's owners had some of it need not mean that these do:
// they may all have died.
void ShardStore::BeginPush(Instant now, Actions* out) {
  push_.stored.assign(versions_.size(), false);
  push_.left = versions_.size();
  push_.again.Said(now);
  for (std::uint32_t shard = 0; shard < versions_.size(); ++shard) Offer(now, shard, out);
  TakeOwnStored();
}

void ShardStore::Offer(Instant now, std::uint32_t shard, Actions* out) {
  const PlacementMap& map = keeper_.map();
  const PeerMessage note{.kind = PeerMessage::Kind::kOffer,
                         .parcel = {.kind = PeerItem::Kind::kDelta,
                                    .shard = shard,
                                    .epoch = map.epoch(),
                                    .stamp = push_.clock},
                         .version = versions_[shard],
                         .workers = push_.workers};
  if (map.Owner(shard) == map.self()) return keeper_.AddOwn(now, note, out);
  out->push_back(SendNote{.to = map.Owner(shard), .note = note});
}

void ShardStore::Stored(const PeerItem& parcel) {
  if (!open_ || push_.left == 0 || parcel.stamp != push_.clock || push_.stored[parcel.shard])
    return;
  push_.stored[parcel.shard] = true;
  --push_.left;
}

void ShardStore::TakeOwnStored() {
  for (const PeerItem& parcel : keeper_.TakeStored()) Stored(parcel);
}

// ---- reading ----

void ShardStore::Read(Instant now, std::int64_t clock, bool keeps_move, Actions* out) {
  reads_.Clear(out);
  read_ = {.wanted = true, .begun = false, .clock = clock, .keeps_move = keeps_move, .left = 0};
  if (open_) BeginRead(now, out);
}

void ShardStore::BeginRead(Instant now, Actions* out) {
  const PlacementMap& map = keeper_.map();
  read_.begun = true;
  read_.left = 0;
  // Each worker begins elsewhere, so that they do not all ask the same owner at first.
  const std::size_t shards = versions_.size();
  const std::size_t first = map.self_index() * shards / map.members();
  for (std::size_t i = 0; i < shards; ++i) {
    const auto shard = static_cast<std::uint32_t>((first + i) % shards);
    if (map.Owner(shard) == map.self()) {
      versions_[shard] = keeper_.ReadOwn(shard, read_.clock, read_.keeps_move, out);
      continue;
    }
    ++read_.left;
    reads_.Want(map.Owner(shard),
                {.kind = PeerItem::Kind::kShard,
                 .shard = shard,
                 .epoch = map.epoch(),
                 .stamp = read_.clock},
                out);
  }
  reads_.Start(now, keeper_.next_ticket(), out);
}

bool ShardStore::TakeRead() {
  if (!read_.begun || read_.left > 0) return false;
  read_ = {};
  return true;
}

void ShardStore::StopReading(Actions* out) {
  reads_.Clear(out);
  read_ = {};
}

// ---- peers ----

bool ShardStore::Early(const PeerItem& parcel, bool needs_open) const {
  return parcel.epoch > epoch() || (parcel.epoch == epoch() && needs_open && !open_);
}

// What waited for the placement, or for it to be open. What is still early waits on.
void ShardStore::AdmitEarly(Instant now, Actions* out) {
  for (const auto& [key, note] : std::exchange(early_notes_, {})) {
    OnNote(now, std::get<Incarnation>(key), note, out);
  }
  for (const auto& [request, asked] : std::exchange(early_requests_, {})) {
    OnRequest(asked.first, request, asked.second, out);
  }
}

void ShardStore::OnNote(Instant now, Incarnation from, const PeerMessage& note, Actions* out) {
  const PeerItem& parcel = note.parcel;
  const bool offer = note.kind == PeerMessage::Kind::kOffer;
  if (Early(parcel, offer && NeedsOpen(parcel.kind))) {
    if (early_notes_.size() < kMaxEarly) early_notes_[{from, note.kind, parcel}] = note;
    return;
  }
  if (parcel.epoch != epoch() || !keeper_.map().Has(from)) return;
  if (parcel.shard >= keeper_.map().shards()) return;
  if (offer) {
    keeper_.OnOffer(now, from, note, out);
  } else if (note.kind == PeerMessage::Kind::kStored && parcel.kind == PeerItem::Kind::kState) {
    keeper_.OnStored(now, from, parcel, out);
  } else if (note.kind == PeerMessage::Kind::kStored && parcel.kind == PeerItem::Kind::kDelta) {
    if (keeper_.map().Owner(parcel.shard) == from) Stored(parcel);
  }
  TakeOwnStored();
}

void ShardStore::OnRequest(Incarnation from, Request request, const PeerItem& parcel,
                           Actions* out) {
  const PlacementMap& map = keeper_.map();
  if (Early(parcel, NeedsOpen(parcel.kind)) && early_requests_.size() < kMaxEarly) {
    early_requests_[request] = {from, parcel};
    return;
  }
  const bool present = parcel.epoch == epoch() && map.Has(from) && parcel.shard < map.shards();
  if (!present || (NeedsOpen(parcel.kind) && !open_) || parcel.kind == PeerItem::Kind::kUpdate) {
    out->push_back(Refuse{request});
  } else if (parcel.kind != PeerItem::Kind::kDelta) {
    keeper_.OnRequest(from, request, parcel, out);
  } else if (map.Owner(parcel.shard) == from && parcel.stamp == push_.clock && push_.clock > 0) {
    out->push_back(Serve{.request = request, .parcel = parcel, .enclosure = {}});
  } else {
    out->push_back(Refuse{request});
  }
}

void ShardStore::OnPulled(Instant now, Ticket ticket, const Status& status,
                          const ShardHeader& enclosure, Actions* out) {
  const auto pull = reads_.Find(ticket);
  if (!pull) {
    keeper_.OnPulled(now, ticket, status, enclosure, out);
    return TakeOwnStored();
  }
  if (status.ok()) {
    reads_.Succeeded(ticket);
    out->push_back(
        ReadShard{.shard = pull->parcel.shard, .ticket = ticket, .keeps_move = read_.keeps_move});
    versions_[pull->parcel.shard] = enclosure.version;
    --read_.left;
  } else {
    reads_.Failed(now, ticket);
  }
  reads_.Start(now, keeper_.next_ticket(), out);
}

// ---- time ----

void ShardStore::OnTime(Instant now, Actions* out) {
  keeper_.OnTime(now, out);
  reads_.Start(now, keeper_.next_ticket(), out);
  if (!open_ || push_.left == 0 || now < push_.again.at()) return;
  push_.again.SaidOnce(now);
  for (std::uint32_t shard = 0; shard < versions_.size(); ++shard) {
    const bool own = keeper_.map().Owner(shard) == keeper_.map().self();
    if (!push_.stored[shard] && !own) Offer(now, shard, out);
  }
}

std::optional<Instant> ShardStore::NextDeadline() const {
  std::optional<Instant> next = keeper_.NextDeadline();
  const auto consider = [&next](std::optional<Instant> at) {
    if (at && (!next || *at < *next)) next = at;
  };
  consider(reads_.NextDeadline());
  if (open_ && push_.left > 0) consider(push_.again.at());
  return next;
}

}  // namespace prd
