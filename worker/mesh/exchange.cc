#include "worker/mesh/exchange.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "common/base/check.h"

namespace prd {

Exchange::Exchange(ReplicaStore* store, Peers* peers, ExchangeEvents* events,
                   std::size_t part_bytes)
    : store_(store),
      events_(events),
      buffers_([store](std::size_t bytes) {
        return store->memory->AllocateHost(MemoryUse::kExchanged, bytes);
      }),
      shards_(store, &buffers_),
      peers_(peers),
      offers_(&peers_),
      server_(store, &peers_, peers, part_bytes, &counters_),
      pulls_(&peers_, &buffers_, &counters_) {}

void Exchange::Join(Incarnation self, RunId run, const Plan& plan) {
  peers_.Join(self, run);
  early_.Clear();
  offers_.Reset();
  server_.Reset();
  pulls_.Reset();
  met_ = false;
  updates_.clear();
  shards_.Reset(HasStore(plan) && StoreOf(plan)->staleness == 0);
  buffers_.Trim();
}

// ---- peers ----

void Exchange::Do(Instant, const SetPeers& action) {
  std::set<Incarnation> met;
  for (const GroupMember& peer : action.peers) met.insert(peer.incarnation);
  pulls_.KeepFrom(met);
  server_.KeepOnly(met);
  offers_.KeepOnly(met);
  peers_.Meet(action.peers);
  buffers_.Trim();
  met_ = true;
}

void Exchange::OnLost(const std::string& endpoint) {
  pulls_.OnLost(endpoint);
  server_.OnLost(endpoint);
}

void Exchange::ForgetPeer(Incarnation peer) {
  pulls_.Forget(peer);
  server_.Forget(peer);
  early_.Forget(peer);
  offers_.Heard(peer);
  peers_.Forget(peer);
}

bool Exchange::IsAsked(Instant now, const FrameHeader& ping) {
  return server_.IsAsked(now, ping.from, ping.group) || early_.HasPull(ping.from, ping.group);
}

bool Exchange::OnPong(Instant now, const FrameHeader& header) {
  return header.group == OfferWatch::kOffers ? offers_.OnPong(now, header.from)
                                             : pulls_.OnPong(now, header);
}

void Exchange::Do(Instant now, const SendNote& action) {
  const std::string endpoint = peers_.EndpointOf(action.to);
  (void)peers_.Say(action.to, endpoint, FrameKind::kNote, 0, EncodeNote(action.note));
  const bool offer = action.note.kind == PeerMessage::Kind::kOffer;
  if (offer && !endpoint.empty()) offers_.Offered(now, action.to);
}

bool Exchange::OnFrame(Instant now, const FrameHeader& header, SharedBytes payload) {
  if (!peers_.Hears(header)) return false;
  offers_.Heard(header.from);
  switch (header.kind) {
    case FrameKind::kNote:
    case FrameKind::kPull:
      if (!peers_.Meets(header.from)) return early_.Keep(header, std::move(payload));
      return OnAsking(now, header, payload.span());
    case FrameKind::kStop: {
      const bool early = early_.DropPull(header.from, header.group);
      return server_.OnStop(header) || early;
    }
    case FrameKind::kParcel:
    case FrameKind::kPart:
    case FrameKind::kRefused:
      return pulls_.OnAnswer(now, header, payload.span());
    default:
      return false;
  }
}

// From a peer that is met.
bool Exchange::OnAsking(Instant now, const FrameHeader& header,
                        std::span<const std::byte> payload) {
  if (header.kind == FrameKind::kNote) {
    const std::optional<PeerMessage> note = DecodeNote(payload);
    if (note) events_->OnNote(header.from, *note);
    return note.has_value();
  }
  const std::optional<PeerItem> parcel = DecodeParcel(payload);
  const std::optional<Request> request = parcel ? server_.OnPull(now, header) : std::nullopt;
  if (request) events_->OnRequest(header.from, *request, *parcel);
  return request.has_value();
}

// ---- items ----

void Exchange::Do(Instant now, const Serve& action) {
  if (!server_.Awaits(action.request)) return;
  server_.Serve(now, action.request, Find(action.parcel), action.enclosure);
}

Slice Exchange::Find(const PeerItem& parcel) {
  if (parcel.kind == PeerItem::Kind::kUpdate) {
    const auto it = updates_.find(parcel.stamp);
    return it == updates_.end() ? Slice{} : Slice{it->second, {0, it->second->size()}};
  }
  if (parcel.shard >= shards_.count()) return {};
  if (parcel.kind == PeerItem::Kind::kDelta) return shards_.Delta(parcel.shard);
  return parcel.kind == PeerItem::Kind::kShard ? shards_.Values(parcel.shard)
                                               : shards_.State(parcel.shard);
}

void Exchange::Do(Instant now, const StartPull& action) {
  pulls_.Start(now, action, BytesOf(action.parcel));
}

std::optional<std::size_t> Exchange::BytesOf(const PeerItem& parcel) const {
  if (parcel.kind == PeerItem::Kind::kUpdate) return store_->parameters.bytes();
  if (parcel.shard >= shards_.count()) return std::nullopt;
  return parcel.kind == PeerItem::Kind::kState ? shards_.StateBytes(parcel.shard)
                                               : shards_.RangeOf(parcel.shard).length;
}

// ---- the replica ----

void Exchange::Do(Instant, const SetIteration& action) {
  const std::lock_guard lock(store_->mutex);
  store_->iteration = action.iteration;
}

void Exchange::Do(Instant, const PublishUpdate& action) {
  const std::shared_ptr<Buffer> row = buffers_.Get(store_->parameters.bytes());
  {
    const std::lock_guard lock(store_->mutex);
    row->Expect(store_->memory->Combine(store_->parameters, Memory::InHost(row->data(), row),
                                        {{Memory::Tensors()}}));
  }
  updates_[action.iteration] = row;
}

void Exchange::Do(Instant, const RetireUpdate& action) { updates_.erase(action.iteration); }

void Exchange::Do(Instant, const MixUpdates& action) {
  std::vector<std::shared_ptr<Buffer>> rows;
  std::vector<ReplicaStore::Weighted> others;
  for (const MixUpdates::Update& update : action.updates) {
    rows.push_back(pulls_.Use(update.ticket));
    PRD_CHECK(rows.back() != nullptr && rows.back()->size() == store_->parameters.bytes());
    others.push_back({Memory::InHost(rows.back()->data(), rows.back()), update.weight});
  }
  const std::lock_guard lock(store_->mutex);
  store_->Mix(action.own_weight, others);
}

void Exchange::Do(Instant, const KeepShard& action) {
  shards_.Keep(action.shard, pulls_.Use(action.ticket));
}

void Exchange::Do(Instant, const AddDelta& action) {
  shards_.Add(action.shard, pulls_.Use(action.ticket).get(), action.factor, action.pending);
}

void Exchange::Do(Instant, const ReadShard& action) {
  shards_.Read(action.shard, pulls_.Use(action.ticket), action.keeps_move);
}

// ---- turns ----

void Exchange::Service(Instant now) {
  if (std::exchange(met_, false)) {
    for (const EarlyAsks::Frame& frame : early_.TakeMet(peers_)) {
      (void)OnAsking(now, frame.header, frame.payload.span());
    }
  }
  server_.Service(now);
  offers_.Service(now);
  for (const Pulls::Ended& pull : pulls_.Service(now)) {
    events_->OnPulled(pull.ticket, pull.status, pull.enclosure);
  }
  for (const Rank rank : peers_.TakeOutOfReach()) events_->OnOutOfReach(rank);
}

std::optional<Instant> Exchange::NextDeadline() const {
  if (met_) return Instant{0};
  std::optional<Instant> next;
  for (const auto at : {server_.NextDeadline(), offers_.NextDeadline(), pulls_.NextDeadline()}) {
    if (at && (!next || *at < *next)) next = at;
  }
  return next;
}

}  // namespace prd
