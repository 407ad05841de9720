#include "worker/mesh/exchange.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "common/base/check.h"

namespace prd {
namespace {

// Sent per peer before the owner gets to look at its other sockets.
constexpr int kPartsPerService = 4;
constexpr std::uint64_t kOffers = 0;        // what a ping is about, where pulls have their tickets
constexpr std::size_t kMaxEarlyBytes = 64;  // of one payload: notes and requests are smaller

}  // namespace

Exchange::Exchange(ReplicaStore* store, Peers* peers, ExchangeEvents* events,
                   std::size_t part_bytes)
    : store_(store),
      peers_(peers),
      events_(events),
      part_bytes_(part_bytes),
      buffers_([store](std::size_t bytes) {
        return store->memory->AllocateHost(MemoryUse::kExchanged, bytes);
      }),
      shards_(store, &buffers_) {}

void Exchange::Join(Incarnation self, RunId run, const Plan& plan) {
  self_ = self;
  run_ = run;
  due_ = false;
  for (const auto& [peer, endpoint] : met_) peers_->Release(endpoint, Peers::Keeper::kExchange);
  met_.clear();
  early_.clear();
  pulls_.clear();
  offered_.clear();
  asked_.clear();
  unreachable_.clear();
  ranks_.clear();
  out_of_reach_.clear();
  updates_.clear();
  shards_.Reset(HasStore(plan) && StoreOf(plan)->staleness == 0);
  buffers_.Trim();
  counters_.held_bytes = counters_.most_held_bytes = 0;
}

// ---- peers ----

std::string Exchange::EndpointOf(Incarnation peer) const {
  const auto it = met_.find(peer);
  return it == met_.end() ? std::string() : it->second;
}

// False: it was not sent. What may get lost is dropped where too much waits.
bool Exchange::Say(Incarnation to, const std::string& endpoint, FrameKind kind,
                   std::uint64_t number, std::span<const std::byte> payload) {
  if (endpoint.empty() || !peers_->Keep(endpoint, Peers::Keeper::kExchange).ok()) return false;
  const bool needed = kind == FrameKind::kPull || kind == FrameKind::kParcel;
  if (!needed && peers_->Queued(endpoint) >= kMaxQueued) return false;
  const FrameHeader header{.kind = kind,
                           .run = run_,
                           .group = number,
                           .from = self_,
                           .to = to,
                           .length = payload.size()};
  peers_->Send(endpoint, header, SharedBytes(payload.data(), payload.size()));
  return true;
}

void Exchange::Do(Instant, const SetPeers& action) {
  std::map<Incarnation, std::string> met;
  std::set<std::string> endpoints;
  for (const GroupMember& peer : action.peers) {
    if (peer.incarnation == self_) continue;
    ranks_[peer.incarnation] = peer.rank;
    const Result<std::string> endpoint = peers_->EndpointOf(peer);
    met[peer.incarnation] = endpoint.ok() ? *endpoint : std::string();
    if (endpoint.ok()) endpoints.insert(*endpoint);
  }
  for (auto& [ticket, pull] : pulls_) {
    if (pull.ended() || met.contains(pull.from)) continue;
    Fail(ticket, &pull,
         Status(Code::kUnavailable, "the peer is no neighbour or keeper of shards any more"));
  }
  std::erase_if(asked_, [&](const auto& entry) {
    const Asked& asked = entry.second;
    if (met.contains(asked.from)) return false;
    Say(asked.from, asked.endpoint, FrameKind::kRefused, asked.number, {});
    return true;
  });
  for (const auto& [peer, endpoint] : met_) {
    if (!endpoints.contains(endpoint)) peers_->Release(endpoint, Peers::Keeper::kExchange);
  }
  met_ = std::move(met);
  std::erase_if(ranks_, [this](const auto& entry) { return !met_.contains(entry.first); });
  std::erase_if(offered_, [this](const auto& entry) { return !met_.contains(entry.first); });
  buffers_.Trim();
  due_ = true;  // some may have been heard already
}

void Exchange::OnLost(const std::string& endpoint) {
  for (auto& [ticket, pull] : pulls_) {
    if (pull.endpoint != endpoint || pull.ended()) continue;
    pull.endpoint.clear();  // nothing to be told there
    NoteOutOfReach(pull.from);
    Fail(ticket, &pull, Status(Code::kUnavailable, "the connection was lost"));
  }
  std::erase_if(asked_, [&](const auto& entry) { return entry.second.endpoint == endpoint; });
}

// It is not out of reach: nobody is to look for it.
void Exchange::ForgetPeer(Incarnation peer) {
  for (auto& [ticket, pull] : pulls_) {
    if (pull.from != peer || pull.ended()) continue;
    pull.endpoint.clear();
    Fail(ticket, &pull, Status(Code::kUnavailable, "the peer is out"));
  }
  std::erase_if(asked_, [peer](const auto& entry) { return entry.second.from == peer; });
  std::erase_if(early_, [peer](const Early& frame) { return frame.header.from == peer; });
  offered_.erase(peer);
  ranks_.erase(peer);
  const auto met = met_.find(peer);
  if (met == met_.end()) return;
  peers_->Release(met->second, Peers::Keeper::kExchange);
  met->second.clear();
}

bool Exchange::IsAsked(Instant now, const FrameHeader& ping) {
  for (auto& [request, asked] : asked_) {
    if (asked.from != ping.from || asked.number != ping.group) continue;
    asked.progress = now;
    return true;
  }
  return std::any_of(early_.begin(), early_.end(), [&ping](const Early& frame) {
    return frame.header.kind == FrameKind::kPull && frame.header.from == ping.from &&
           frame.header.group == ping.group;
  });
}

void Exchange::SayToCome(Instant now) {
  for (const auto& [request, asked] : asked_) {
    const FrameHeader pong{.kind = FrameKind::kPong,
                           .run = run_,
                           .group = asked.number,
                           .from = self_,
                           .to = asked.from,
                           .stage = static_cast<std::uint32_t>(Topic::kPull),
                           .chunk = static_cast<std::uint32_t>(Answer::kToCome)};
    (void)peers_->Signal(now, asked.endpoint, pong, SharedBytes());
  }
}

bool Exchange::OnPong(Instant now, const FrameHeader& header) {
  if (header.group == kOffers) {
    const auto offered = offered_.find(header.from);
    return offered != offered_.end() && offered->second.Answered(now, 0, false);
  }
  const bool over = header.chunk == static_cast<std::uint32_t>(Answer::kOver);
  const auto it = pulls_.find(header.group);
  return it != pulls_.end() && it->second.from == header.from && !it->second.ended() &&
         it->second.silence.Answered(now, 0, over);
}

// ---- notes and requests ----

void Exchange::Do(Instant now, const SendNote& action) {
  const std::vector<std::byte> bytes = EncodeNote(action.note);
  const std::string endpoint = EndpointOf(action.to);
  (void)Say(action.to, endpoint, FrameKind::kNote, 0, bytes);
  const bool offer = action.note.kind == PeerMessage::Kind::kOffer;
  if (offer && !endpoint.empty()) offered_.try_emplace(action.to, now, timeout_);
}

bool Exchange::OnFrame(Instant now, const FrameHeader& header, SharedBytes payload) {
  if (header.run != run_ || run_ == kNoRun || header.from == self_) return false;
  offered_.erase(header.from);
  switch (header.kind) {
    case FrameKind::kNote:
    case FrameKind::kPull:
      if (met_.contains(header.from)) return OnAsking(now, header, std::move(payload));
      if (payload.size() > kMaxEarlyBytes) return false;
      early_.push_back({header, std::move(payload)});
      if (early_.size() > kMaxEarly) early_.pop_front();
      return true;
    case FrameKind::kStop:
      return OnStop(header);
    case FrameKind::kParcel:
    case FrameKind::kPart:
    case FrameKind::kRefused:
      return OnAnswer(now, header, payload.span());
    default:
      return false;
  }
}

bool Exchange::OnAsking(Instant now, const FrameHeader& header, SharedBytes payload) {
  return header.kind == FrameKind::kNote ? OnNote(header, payload.span())
                                         : OnPull(now, header, payload.span());
}

bool Exchange::OnNote(const FrameHeader& header, std::span<const std::byte> payload) {
  const std::optional<PeerMessage> note = DecodeNote(payload);
  if (note) events_->OnNote(header.from, *note);
  return note.has_value();
}

bool Exchange::OnPull(Instant now, const FrameHeader& header, std::span<const std::byte> payload) {
  const std::optional<PeerItem> parcel = DecodeParcel(payload);
  const std::string endpoint = EndpointOf(header.from);
  std::size_t open = 0;
  bool again = false;
  for (const auto& [request, asked] : asked_) {
    open += asked.from == header.from ? 1 : 0;
    again = again || (asked.from == header.from && asked.number == header.group);
  }
  // Its loss ends the request, so there must be a connection from now on.
  if (!parcel || again || endpoint.empty() ||
      !peers_->Keep(endpoint, Peers::Keeper::kExchange).ok())
    return false;
  if (open >= kMaxRequests) {
    Say(header.from, endpoint, FrameKind::kRefused, header.group, {});
    return false;
  }
  const Request request = ++requests_;
  asked_[request] = {.from = header.from,
                     .endpoint = endpoint,
                     .number = header.group,
                     .slice = {},
                     .progress = now};
  events_->OnRequest(header.from, request, *parcel);
  return true;
}

bool Exchange::OnStop(const FrameHeader& header) {
  const auto same = [&header](Incarnation from, std::uint64_t number) {
    return from == header.from && number == header.group;
  };
  const std::size_t early = std::erase_if(early_, [&](const Early& frame) {
    return frame.header.kind == FrameKind::kPull && same(frame.header.from, frame.header.group);
  });
  return early + std::erase_if(asked_,
                               [&](const auto& entry) {
                                 return same(entry.second.from, entry.second.number);
                               }) >
         0;
}

void Exchange::HearEarly(Instant now) {
  std::deque<Early> early;
  early.swap(early_);
  for (Early& frame : early) {
    if (met_.contains(frame.header.from)) {
      (void)OnAsking(now, frame.header, std::move(frame.payload));
    } else {
      early_.push_back(std::move(frame));
    }
  }
}

// ---- giving ----

void Exchange::Do(Instant now, const Serve& action) {
  const auto it = asked_.find(action.request);
  if (it == asked_.end() || it->second.slice.buffer != nullptr) return;
  Asked& asked = it->second;
  Slice slice = Find(action.parcel);
  if (slice.buffer == nullptr) return Do(now, Refuse{action.request});
  const std::vector<std::byte> info =
      EncodeParcelInfo({.bytes = slice.range.length, .enclosure = action.enclosure});
  if (!Say(asked.from, asked.endpoint, FrameKind::kParcel, asked.number, info)) {
    asked_.erase(it);
    return;
  }
  asked.slice = std::move(slice);
  asked.progress = now;
  due_ = true;
}

void Exchange::Do(Instant, const Refuse& action) {
  const auto it = asked_.find(action.request);
  if (it == asked_.end()) return;
  Say(it->second.from, it->second.endpoint, FrameKind::kRefused, it->second.number, {});
  asked_.erase(it);
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

// Bytes of a slice that are in host memory; of a device that failed none.
std::size_t Exchange::Ready(const Slice& slice) const {
  const std::size_t ready = slice.buffer->ready();
  if (!store_->memory->failure().ok()) return 0;
  return ready <= slice.range.begin ? 0 : std::min(ready - slice.range.begin, slice.range.length);
}

// False: nothing is left.
bool Exchange::SendPart(Instant now, Asked* asked) {
  const Slice& slice = asked->slice;
  if (asked->sent == slice.range.length) return false;
  const std::size_t ready = Ready(slice);
  if (ready <= asked->sent) return true;  // none any more, of a device that has failed by now
  const std::size_t length = std::min(part_bytes_, ready - asked->sent);
  const FrameHeader header{.kind = FrameKind::kPart,
                           .run = run_,
                           .group = asked->number,
                           .from = self_,
                           .to = asked->from,
                           .offset = asked->sent,
                           .length = length};
  peers_->Send(asked->endpoint, header,
               Within(slice.buffer, slice.range.begin + asked->sent, length));
  asked->sent += length;
  asked->progress = now;
  counters_.sent_bytes += length;
  return asked->sent < slice.range.length;
}

bool Exchange::Arriving() const {
  return std::any_of(asked_.begin(), asked_.end(), [this](const auto& entry) {
    const Slice& slice = entry.second.slice;
    return slice.buffer != nullptr && Ready(slice) < slice.range.length;
  });
}

// In turns, to those that can take something.
void Exchange::SendParts(Instant now) {
  for (int round = 0; round < kPartsPerService; ++round) {
    bool any = false;
    for (auto it = asked_.begin(); it != asked_.end();) {
      Asked& asked = it->second;
      const bool served = asked.slice.buffer != nullptr;
      const bool there =
          served && (Ready(asked.slice) > asked.sent || asked.sent == asked.slice.range.length);
      const bool sends = there && peers_->Idle(asked.endpoint);
      const bool over = sends ? !SendPart(now, &asked) : served && now - asked.progress > timeout_;
      if (sends && over) peers_->Sent(Topic::kPull, asked.from, asked.number, asked.endpoint);
      any = any || sends;
      it = over ? asked_.erase(it) : std::next(it);
    }
    if (!any) return;
  }
  due_ = true;
}

// ---- getting ----

std::optional<std::size_t> Exchange::BytesOf(const PeerItem& parcel) const {
  if (parcel.kind == PeerItem::Kind::kUpdate) return store_->parameters.bytes();
  if (parcel.shard >= shards_.count()) return std::nullopt;
  return parcel.kind == PeerItem::Kind::kState ? shards_.StateBytes(parcel.shard)
                                               : shards_.RangeOf(parcel.shard).length;
}

void Exchange::Do(Instant now, const StartPull& action) {
  const auto [it, fresh] = pulls_.try_emplace(action.ticket, Pull{.from = action.from,
                                                                  .endpoint = {},
                                                                  .buffer = nullptr,
                                                                  .enclosure = {},
                                                                  .silence = Silence(now, timeout_),
                                                                  .failure = {}});
  PRD_CHECK(fresh);
  Pull& pull = it->second;
  const std::optional<std::size_t> bytes = BytesOf(action.parcel);
  if (!bytes) {
    return Fail(action.ticket, &pull, Status(Code::kInvalidArgument, "there is no such shard"));
  }
  pull.bytes = *bytes;
  const std::string endpoint = EndpointOf(action.from);
  if (!Say(action.from, endpoint, FrameKind::kPull, action.ticket, EncodeParcel(action.parcel))) {
    return Fail(
        action.ticket, &pull,
        Status(Code::kUnavailable, "the peer has no endpoint that can be reached from here"));
  }
  pull.endpoint = endpoint;
}

void Exchange::Do(Instant, const DropPull& action) {
  const auto it = pulls_.find(action.ticket);
  if (it == pulls_.end()) return;
  Pull& pull = it->second;
  if (!pull.ended()) Say(pull.from, pull.endpoint, FrameKind::kStop, action.ticket, {});
  LetGo(&pull);
  pulls_.erase(it);
}

// Tells the peer, if it may be sending.
void Exchange::Fail(Ticket ticket, Pull* pull, Status status) {
  Say(pull->from, pull->endpoint, FrameKind::kStop, ticket, {});
  LetGo(pull);
  pull->failure = std::move(status);
  due_ = true;
}

void Exchange::Hold(Pull* pull) {
  pull->buffer = buffers_.Get(pull->bytes);
  counters_.held_bytes += pull->bytes;
  counters_.most_held_bytes = std::max(counters_.most_held_bytes, counters_.held_bytes);
}

std::shared_ptr<Buffer> Exchange::LetGo(Pull* pull) {
  if (pull->buffer != nullptr) counters_.held_bytes -= pull->bytes;
  return std::exchange(pull->buffer, nullptr);
}

std::shared_ptr<Buffer> Exchange::Use(Ticket ticket) {
  if (ticket == 0) return nullptr;
  const auto it = pulls_.find(ticket);
  PRD_CHECK(it != pulls_.end() && it->second.failure.ok() && it->second.complete());
  std::shared_ptr<Buffer> buffer = LetGo(&it->second);
  pulls_.erase(it);
  return buffer;
}

bool Exchange::OnAnswer(Instant now, const FrameHeader& header,
                        std::span<const std::byte> payload) {
  const auto it = pulls_.find(header.group);
  if (it == pulls_.end() || it->second.from != header.from || it->second.ended()) return false;
  Pull& pull = it->second;
  pull.silence.Progress(now);
  if (header.kind == FrameKind::kRefused) {
    pull.endpoint.clear();  // it knows
    Fail(it->first, &pull, Status(Code::kNotFound, "the peer does not have it"));
    return true;
  }
  Status status = header.kind == FrameKind::kParcel ? TakeInfo(&pull, payload)
                                                    : TakePart(&pull, header, payload);
  if (!status.ok()) Fail(it->first, &pull, std::move(status));
  return true;
}

Status Exchange::TakeInfo(Pull* pull, std::span<const std::byte> payload) {
  std::optional<ParcelInfo> info = DecodeParcelInfo(payload);
  if (!info || pull->described) {
    return Status(Code::kDataLoss, "the description of what is sent is damaged");
  }
  if (info->bytes != pull->bytes) {
    return Status(Code::kDataLoss, "it has " + std::to_string(info->bytes) + " bytes, expected " +
                                       std::to_string(pull->bytes));
  }
  pull->described = true;
  pull->enclosure = std::move(info->enclosure);
  Hold(pull);
  return Status::Ok();
}

Status Exchange::TakePart(Pull* pull, const FrameHeader& header,
                          std::span<const std::byte> payload) {
  if (!pull->described || payload.empty() || header.offset != pull->received ||
      payload.size() > pull->bytes - pull->received) {
    return Status(Code::kDataLoss, "the peer sent bytes that it did not announce");
  }
  std::memcpy(pull->buffer->data() + pull->received, payload.data(), payload.size());
  pull->received += payload.size();
  return Status::Ok();
}

void Exchange::Ask(Instant now, Incarnation peer, const std::string& endpoint,
                   std::uint64_t number) {
  const FrameHeader ping = PingOf(Topic::kPull, number, run_, self_, peer);
  (void)peers_->Signal(now, endpoint, ping, SharedBytes());
}

// What was offered is offered again until it is answered, and then watched again.
void Exchange::WatchOffers(Instant now) {
  for (auto it = offered_.begin(); it != offered_.end();) {
    auto& [peer, silence] = *it;
    const Silence::Step step = silence.Next(now);
    if (step == Silence::Step::kAsk && !silence.Ask(now, {0}).empty()) {
      Ask(now, peer, EndpointOf(peer), kOffers);
    }
    if (step == Silence::Step::kGiveUp) {
      unreachable_.push_back(EndpointOf(peer));
      NoteOutOfReach(peer);
    }
    it = step == Silence::Step::kGiveUp ? offered_.erase(it) : std::next(it);
  }
}

void Exchange::WatchPull(Instant now, Ticket ticket, Pull* pull) {
  switch (pull->silence.Next(now)) {
    case Silence::Step::kWait:
      return;
    case Silence::Step::kAsk:
      for ([[maybe_unused]] const std::size_t peer : pull->silence.Ask(now, {0})) {
        Ask(now, pull->from, pull->endpoint, ticket);
      }
      return;
    case Silence::Step::kGiveUp:
      const bool answered = pull->silence.silent().empty();
      if (!answered) {
        unreachable_.push_back(pull->endpoint);
        NoteOutOfReach(pull->from);
      }
      Fail(ticket, pull,
           Status(Code::kDeadlineExceeded, answered ? "the peer has nothing more to send"
                                                    : "the peer sent nothing for too long"));
  }
}

void Exchange::NoteOutOfReach(Incarnation peer) {
  if (const auto it = ranks_.find(peer); it != ranks_.end()) out_of_reach_.insert(it->second);
}

void Exchange::EndPulls(Instant now) {
  std::vector<Ticket> ended;
  for (auto& [ticket, pull] : pulls_) {
    if (!pull.ended()) WatchPull(now, ticket, &pull);
    if (pull.ended() && !pull.reported) ended.push_back(ticket);
  }
  for (const Ticket ticket : ended) {
    Pull& pull = pulls_.at(ticket);
    const Status status = pull.failure;
    const ShardHeader enclosure = std::move(pull.enclosure);
    pull.reported = true;
    if (!status.ok()) pulls_.erase(ticket);
    events_->OnPulled(ticket, status, enclosure);
  }
  for (const Rank rank : std::exchange(out_of_reach_, {})) events_->OnOutOfReach(rank);
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
    rows.push_back(Use(update.ticket));
    PRD_CHECK(rows.back() != nullptr && rows.back()->size() == store_->parameters.bytes());
    others.push_back({Memory::InHost(rows.back()->data(), rows.back()), update.weight});
  }
  const std::lock_guard lock(store_->mutex);
  store_->Mix(action.own_weight, others);
}

// ---- shards ----

void Exchange::Do(Instant, const CutShards& action) { shards_.Cut(action.shards); }

void Exchange::Do(Instant, const TakeDelta& action) { shards_.TakeDelta(action.share); }

void Exchange::Do(Instant, const KeepShard& action) {
  shards_.Keep(action.shard, Use(action.ticket));
}

void Exchange::Do(Instant, const AddDelta& action) {
  shards_.Add(action.shard, Use(action.ticket).get(), action.factor, action.pending);
}

void Exchange::Do(Instant, const MergePending& action) { shards_.Merge(action.shard); }

void Exchange::Do(Instant, const ReadShard& action) {
  shards_.Read(action.shard, Use(action.ticket));
}

void Exchange::Do(Instant, const ForgetShard& action) { shards_.Forget(action.shard); }

// ---- turns ----

void Exchange::Service(Instant now) {
  if (std::exchange(due_, false)) HearEarly(now);
  SendParts(now);
  WatchOffers(now);
  EndPulls(now);
}

std::optional<Instant> Exchange::NextDeadline() const {
  if (due_) return Instant{0};
  std::optional<Instant> next;
  const auto consider = [&next](Instant at) {
    if (!next || at < *next) next = at;
  };
  for (const auto& [ticket, pull] : pulls_) {
    if (!pull.ended()) consider(pull.silence.At());
  }
  for (const auto& [peer, silence] : offered_) consider(silence.At());
  for (const auto& [request, asked] : asked_) {
    if (asked.slice.buffer != nullptr) consider(asked.progress + timeout_);
  }
  return next;
}

}  // namespace prd
