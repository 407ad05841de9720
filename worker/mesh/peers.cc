#include "worker/mesh/peers.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace prd {
namespace {

// An attempt to connect, at most: the network waits longer and longer before it tries again.
constexpr DurationNs kConnectAtMost = 2 * kSecond;
constexpr std::size_t kMaxEndpointBytes = 256;
// An attempt to connect for signals, and unacknowledged signals.
constexpr DurationNs kSignalConnect = 300 * kMillisecond;
constexpr DurationNs kSignalUnacked = 500 * kMillisecond;
// Signal connections that were not used for this long are closed.
constexpr DurationNs kSignalsKept = 10 * kSecond;
// Most often the next frame shows that nothing is lost; and by then the peer has the
// acknowledgements of what came before (Arrivals::kTellAfter).
constexpr DurationNs kAskAfter = 100 * kMillisecond;
// A peer that is to send again may not have heard of it, or its connection was too young.
constexpr DurationNs kAskAgain = 250 * kMillisecond;
// Much longer than an acknowledgement takes.
constexpr DurationNs kAskedAgain = kSecond;

bool HasPrefix(const std::string& text, const char* prefix) {
  return text.compare(0, std::strlen(prefix), prefix) == 0 && text.size() <= kMaxEndpointBytes;
}

}  // namespace

void Peers::Join(MeshSecurity security) {
  peers_.clear();
  signals_.clear();
  sent_.clear();
  at_.clear();
  spoiled_.clear();
  security_ = security;
}

std::optional<std::string> Peers::Introduce(const GroupMember& member) {
  const Result<std::string> endpoint = EndpointOf(member);
  if (!endpoint.ok()) return std::nullopt;
  const auto [at, fresh] = at_.try_emplace(*endpoint, member.incarnation);
  if (fresh || at->second == member.incarnation) return std::nullopt;
  at->second = member.incarnation;
  signals_.erase(*endpoint);
  return *endpoint;
}

std::optional<std::string> Peers::Forget(Incarnation member) {
  const auto at = std::find_if(at_.begin(), at_.end(),
                               [member](const auto& entry) { return entry.second == member; });
  if (at == at_.end()) return std::nullopt;
  const std::string endpoint = at->first;
  at_.erase(at);
  spoiled_.erase(member);
  signals_.erase(endpoint);
  Drop(endpoint);
  return endpoint;
}

Result<std::string> Peers::EndpointOf(const GroupMember& member) const {
  const auto first = [&member](const char* prefix) -> const std::string* {
    for (const std::string& endpoint : member.endpoints) {
      if (HasPrefix(endpoint, prefix)) return &endpoint;
    }
    return nullptr;
  };
  const std::string* found = member.host == host_ ? first("ipc://") : nullptr;
  if (found == nullptr) found = first("tcp://");
  if (found == nullptr) {
    return Status(Code::kInvalidArgument,
                  RankName(member.rank) + " has no endpoint that can be reached from here");
  }
  return *found;
}

Status Peers::Use(const std::string& endpoint) {
  const Result<Peer*> peer = Connect(endpoint);
  if (peer.ok()) (*peer)->used = true;
  return peer.status();
}

Status Peers::Keep(const std::string& endpoint, Keeper keeper) {
  const Result<Peer*> peer = Connect(endpoint);
  if (!peer.ok()) return peer.status();
  (*peer)->used = true;
  (*peer)->kept |= static_cast<std::uint8_t>(keeper);
  return Status::Ok();
}

void Peers::Release(const std::string& endpoint, Keeper keeper) {
  const auto it = peers_.find(endpoint);
  if (it == peers_.end()) return;
  it->second.kept &= static_cast<std::uint8_t>(~static_cast<std::uint8_t>(keeper));
}

// Makes the link, with what the other end's door asks for.
Status Peers::Open(Opening opening, Connection* connection) {
  const auto who = at_.find(opening.endpoint);
  const PairKeys* keys = who == at_.end() ? nullptr : directory_->KeysOf(who->second);
  if (keys == nullptr) {
    return Status(Code::kUnavailable, "connecting to " + opening.endpoint +
                                          ": no worker with a key was announced there");
  }
  const Pass pass{.from = directory_->self(), .number = ++made_, .purpose = opening.purpose};
  if (security_ == MeshSecurity::kCurve) {
    opening.server = directory_->Find(who->second)->mesh_key;
    opening.own = &directory_->own();
  } else {
    opening.name = EncodePass(pass);
    opening.proof = ProofOf(keys->out, pass);
  }
  if (Seals(security_, HasPrefix(opening.endpoint, "tcp://"))) {
    connection->key = SealKeyOf(keys->out, pass);
    connection->sealer.emplace(*connection->key);
  }
  Result<std::unique_ptr<Link>> link = transport_->Open(opening);
  if (!link.ok()) return link.status();
  connection->link = std::move(link).value();
  return Status::Ok();
}

Result<Peers::Peer*> Peers::Connect(const std::string& endpoint) {
  auto it = peers_.find(endpoint);
  if (it != peers_.end() && (it->second.broken || Lost(endpoint, &it->second))) {
    it->second.broken = it->second.used;
    if (it->second.used) {
      return Status(Code::kUnavailable, "the connection to " + endpoint + " was lost");
    }
    peers_.erase(it);  // nobody looked
    it = peers_.end();
  }
  if (it != peers_.end()) {
    it->second.last_use = ++uses_;
    return &it->second;
  }
  if (peers_.size() >= kMaxConnections) Evict();
  Peer peer;
  peer.tcp = HasPrefix(endpoint, "tcp://");
  PRD_RETURN_IF_ERROR(OpenData(endpoint, false, &peer));
  peer.last_use = ++uses_;
  peer.stream = made_;
  return &peers_.emplace(endpoint, std::move(peer)).first->second;
}

Status Peers::OpenData(const std::string& endpoint, bool again, Peer* peer) {
  peer->stands_since.reset();
  peer->cut = false;
  return Open({.endpoint = endpoint,
               .purpose = Purpose::kData,
               .name = {},
               .proof = {},
               .server = {},
               .connects = again ? kReconnect : std::min(timeout_, kConnectAtMost),
               .admits = again && peer->stood ? kHandshake : 0,
               .delivers = timeout_},
              peer);
}

void Peers::Rest() {
  for (auto& [endpoint, peer] : peers_) {
    peer.used = peer.kept != 0 || peer.broken || !peer.queue.empty() ||
                !peer.unacknowledged.empty();  // what a group sends last, others may wait for
  }
}

void Peers::Evict() {
  auto oldest = peers_.end();
  for (auto it = peers_.begin(); it != peers_.end(); ++it) {
    if (it->second.used) continue;
    if (oldest == peers_.end() || it->second.last_use < oldest->second.last_use) oldest = it;
  }
  if (oldest == peers_.end()) return;  // all in use: a large group may have more than the limit
  peers_.erase(oldest);
}

void Peers::Send(const std::string& endpoint, const FrameHeader& header, SharedBytes payload) {
  const auto it = peers_.find(endpoint);
  if (it == peers_.end()) return;  // lost; Service has said so
  Peer& peer = it->second;
  // Nothing was owed to the peer: what broke before has no part in how long this frame waits.
  if (peer.queue.empty() && peer.unacknowledged.empty()) peer.broke_at.reset();
  Frame frame{.header = header, .payload = std::move(payload)};
  frame.header.stream = frame.header.number = 0;  // what is passed on has those of its sender
  peer.queue.push_back(std::move(frame));
  Flush(&peer);
}

bool Peers::Idle(const std::string& endpoint) const { return Queued(endpoint) == 0; }

std::size_t Peers::Queued(const std::string& endpoint) const {
  const auto it = peers_.find(endpoint);
  return it == peers_.end() ? 0 : it->second.queue.size();
}

// Makes the frame what it is on the wire. Later calls do nothing.
void Peers::Seal(Sealer* sealer, Frame* frame) {
  if (std::exchange(frame->sealed, true)) return;
  const auto header = EncodeHeader(frame->header);
  if (!*sealer) {
    frame->first.assign(header.begin(), header.end());
    return;
  }
  SharedBytes* payload = &frame->payload;
  // A chunk that goes around the ring is nobody else's; other payloads are read by others, too.
  const bool in_place = frame->header.kind == FrameKind::kRing;
  SharedBytes sealed = in_place ? *payload : SharedBytes(payload->size());
  const auto head = (*sealer)->Seal(header, std::as_const(*payload).span(), sealed.data());
  frame->first.assign(head.begin(), head.end());
  *payload = std::move(sealed);
}

// The first of the queue. Over tcp it is kept until it is acknowledged, over ipc until the link
// stands, and shares its bytes with the link.
Link::Sent Peers::HandNext(Peer* peer) {
  Frame& frame = peer->queue.front();
  if (peer->tcp && frame.header.number == 0) {
    frame.header.stream = peer->stream;
    frame.header.number = ++peer->number;
  }
  Seal(&peer->sealer, &frame);
  const Link::Sent sent = peer->link->Send(frame.first, frame.payload);
  if (sent != Link::Sent::kTaken) return sent;
  if (peer->tcp) {
    if (!peer->owes_since) peer->owes_since = now_;
    peer->unacknowledged_bytes += BytesOf(frame);
    peer->unacknowledged.push_back(std::move(frame));
    while (peer->unacknowledged_bytes > kMaxUnacknowledged) {
      const Frame& oldest = peer->unacknowledged.front();
      peer->forgotten = oldest.header.number;
      peer->unacknowledged_bytes -= BytesOf(oldest);
      peer->unacknowledged.pop_front();
    }
  } else if (!peer->stood) {
    peer->unacknowledged.push_back(std::move(frame));
  }
  peer->queue.pop_front();
  return sent;
}

bool Peers::Signal(Instant now, const std::string& endpoint, const FrameHeader& header,
                   SharedBytes payload) {
  SignalConnection* connection = ConnectSignals(now, endpoint);
  if (connection == nullptr) return false;
  connection->last_use = now;
  Frame frame{.header = header, .payload = std::move(payload)};
  Seal(&connection->sealer, &frame);
  return connection->link->Send(frame.first, frame.payload) == Link::Sent::kTaken;
}

// nullptr: it cannot be made; or it is broken, and too young for another attempt.
Peers::SignalConnection* Peers::ConnectSignals(Instant now, const std::string& endpoint) {
  const auto it = signals_.find(endpoint);
  if (it != signals_.end()) {
    SignalConnection& known = it->second;
    if (!known.link->Look().broken) return &known;
    if (now - known.made_at < kSignalReconnect) return nullptr;
    signals_.erase(it);
  }
  SignalConnection made;
  made.made_at = now;
  const Status status = Open({.endpoint = endpoint,
                              .purpose = Purpose::kSignals,
                              .name = {},
                              .proof = {},
                              .server = {},
                              .connects = kSignalConnect,
                              .delivers = kSignalUnacked},
                             &made);
  if (!status.ok()) return nullptr;
  if (signals_.size() >= kMaxSignalConnections) {
    signals_.erase(std::min_element(signals_.begin(), signals_.end(), [](auto& a, auto& b) {
      return a.second.last_use < b.second.last_use;
    }));
  }
  return &signals_.emplace(endpoint, std::move(made)).first->second;
}

void Peers::CloseUnused(Instant now) {
  std::erase_if(signals_, [&](auto& entry) { return now - entry.second.last_use > kSignalsKept; });
}

std::optional<Instant> Peers::NextDeadline() const {
  std::optional<Instant> next;
  for (const auto& [endpoint, connection] : signals_) {
    const Instant at = connection.last_use + kSignalsKept;
    if (!next || at < *next) next = at;
  }
  for (const auto& [peer, spoiled] : spoiled_) {
    if (!next || spoiled.ask_at < *next) next = spoiled.ask_at;
  }
  for (const auto& [endpoint, peer] : peers_) {
    if (!peer.used) continue;
    if (peer.cut && !peer.again_at) return Instant{0};
    if (peer.again_at && (!next || *peer.again_at < *next)) next = peer.again_at;
  }
  return next;
}

void Peers::Sent(Topic topic, Incarnation to, std::uint64_t number, const std::string& endpoint) {
  const auto it = peers_.find(endpoint);
  if (it == peers_.end()) return;
  sent_.push_back({topic, to, number, it->second.stream});
  if (sent_.size() > kMaxSent) sent_.pop_front();
}

bool Peers::OnTheirWay(Topic topic, Incarnation to, std::uint64_t number,
                       const std::string& endpoint) {
  const auto it = peers_.find(endpoint);
  if (it == peers_.end() || it->second.broken) return false;
  if (Lost(endpoint, &it->second)) {
    it->second.broken = it->second.used;
    if (!it->second.used) peers_.erase(it);  // nobody looked
    return false;
  }
  return std::any_of(sent_.begin(), sent_.end(), [&](const SentTo& sent) {
    return sent.topic == topic && sent.to == to && sent.number == number &&
           sent.stream == it->second.stream;
  });
}

void Peers::Drop(const std::string& endpoint) {
  const auto it = peers_.find(endpoint);
  if (it == peers_.end()) return;
  peers_.erase(it);
}

void Peers::DropQueued(std::uint64_t group) {
  for (auto& [endpoint, peer] : peers_) {
    std::erase_if(peer.queue, [group](const Frame& frame) {
      return frame.header.group == group && frame.header.number == 0 &&
             (frame.header.kind == FrameKind::kRing || frame.header.kind == FrameKind::kDirect);
    });
  }
}

void Peers::Flush(Peer* peer) {
  if (peer->again_at || peer->cut) return;
  Link::Sent sent = Link::Sent::kTaken;
  while (!peer->queue.empty() && sent == Link::Sent::kTaken) sent = HandNext(peer);
  peer->cut = peer->cut || sent == Link::Sent::kBroken;
}

// A question that was asked before says nothing of what is lost since.
void Peers::SetSpoiled(Instant now, Incarnation peer, std::uint64_t connection) {
  Spoiled& spoiled = spoiled_.try_emplace(peer, Spoiled{.ask_at = now + kAskAfter}).first->second;
  spoiled.question = ++questions_;
  spoiled.connection = std::max(spoiled.connection, connection);
}

void Peers::ClearSpoiled(Incarnation peer, std::uint64_t connection) {
  const auto it = spoiled_.find(peer);
  if (it != spoiled_.end() && it->second.connection <= connection) spoiled_.erase(it);
}

void Peers::NothingLost(Incarnation peer, std::uint64_t question) {
  const auto it = spoiled_.find(peer);
  if (it != spoiled_.end() && it->second.question == question) spoiled_.erase(it);
}

std::vector<std::pair<Incarnation, std::uint64_t>> Peers::TakeSpoiled(Instant now) {
  std::vector<std::pair<Incarnation, std::uint64_t>> due;
  for (auto& [peer, spoiled] : spoiled_) {
    if (now < spoiled.ask_at) continue;
    spoiled.ask_at = now + kAskAgain;
    due.emplace_back(peer, spoiled.question);
  }
  return due;
}

bool Peers::Owes(const std::string& endpoint) const {
  const auto it = peers_.find(endpoint);
  return it != peers_.end() && !it->second.unacknowledged.empty();
}

void Peers::SendAgain(Instant now, const std::string& endpoint) {
  const auto it = peers_.find(endpoint);
  if (it == peers_.end()) return;
  Peer& peer = it->second;
  const bool stood = peer.tcp && peer.stands_since && now - *peer.stands_since > kReconnect;
  if (!stood || peer.again_at || peer.unacknowledged.empty()) return;
  peer.cut = peer.used = true;
}

void Peers::Asked(Instant now, const std::string& endpoint) {
  const auto it = peers_.find(endpoint);
  if (it == peers_.end()) return;
  Peer& peer = it->second;
  if (peer.unacknowledged.empty() || !peer.link->Delivered()) {
    peer.asked_at.reset();
  } else if (!peer.asked_at) {
    peer.asked_at = now;
  } else if (now - *peer.asked_at >= kAskedAgain) {
    peer.asked_at.reset();
    SendAgain(now, endpoint);
  }
}

void Peers::Acknowledged(const std::string& endpoint, std::uint64_t stream, std::uint64_t number) {
  const auto it = peers_.find(endpoint);
  if (it == peers_.end() || it->second.stream != stream) return;
  Peer& peer = it->second;
  const auto came = [number](const Frame& frame) {
    return frame.header.number != 0 && frame.header.number <= number;
  };
  while (!peer.unacknowledged.empty() && came(peer.unacknowledged.front())) {
    peer.unacknowledged_bytes -= BytesOf(peer.unacknowledged.front());
    peer.unacknowledged.pop_front();
    peer.broke_at.reset();
    peer.asked_at.reset();
    peer.owes_since = now_;
    peer.vain = 0;
  }
  if (peer.unacknowledged.empty()) peer.owes_since.reset();
  while (!peer.queue.empty() && came(peer.queue.front())) peer.queue.pop_front();
  if (number >= peer.forgotten) peer.forgotten = 0;
}

// ---- broken connections ----

// Whether the data connection is lost. A broken one that may still be replaced is not.
bool Peers::Lost(const std::string& endpoint, Peer* peer) {
  if (!peer->again_at) {
    if (!Broken(peer)) return false;
    if (!MayResume(peer)) return true;
    const bool again = *peer->broke_at != now_;  // it cannot be made either
    peer->again_at = again ? now_ + kRetry : now_;
  }
  return now_ >= *peer->again_at && !Resume(endpoint, peer);
}

bool Peers::MayResume(Peer* peer) {
  if (peer->refused || peer->forgotten != 0) return false;
  if (!peer->stood) {  // the peer has read nothing of it
    if (!peer->broke_at) peer->broke_at = now_;
    return now_ - *peer->broke_at <= kReconnect;
  }
  if (!peer->tcp) return false;
  const bool owes = !peer->unacknowledged.empty() && peer->owes_since;
  if (peer->stands_since && owes) ++peer->vain;
  if (owes && peer->vain >= kVain && now_ - *peer->owes_since > timeout_) return false;
  const bool stood = peer->stands_since &&
                     (peer->unacknowledged.empty() || now_ - *peer->stands_since > kReconnect);
  if (stood) peer->broke_at.reset();
  if (!peer->broke_at) peer->broke_at = now_;
  return now_ - *peer->broke_at <= kReconnect;
}

// Opens another connection. What was handed to the old one goes to the front of the queue, in
// plain. False: the system has no more sockets.
bool Peers::Resume(const std::string& endpoint, Peer* peer) {
  std::optional<FrameOpener> opener;
  if (peer->key) opener.emplace(*peer->key);
  std::deque<Frame> again;
  for (std::deque<Frame>* frames : {&peer->unacknowledged, &peer->queue}) {
    for (Frame& frame : *frames) {
      if (opener && std::exchange(frame.sealed, false)) {
        SharedBytes plain(frame.payload.data(), frame.payload.size());
        if (!opener->Open(frame.first, {plain.data(), plain.size()})) {
          return false;  // cannot be: the old connection has sealed it
        }
        frame.payload = std::move(plain);
      }
      again.push_back(std::move(frame));
    }
  }
  peer->unacknowledged.clear();
  peer->unacknowledged_bytes = 0;
  peer->queue = std::move(again);
  static_cast<Connection&>(*peer) = Connection();
  if (!OpenData(endpoint, true, peer).ok()) return false;
  peer->again_at.reset();
  return true;
}

bool Peers::Broken(Peer* peer) {
  const Link::State state = peer->link->Look();
  if (state.stands && !peer->stands_since) {
    resumed_ += peer->stood ? 1 : 0;
    peer->stood = true;
    peer->stands_since = now_;
    if (!peer->tcp) peer->unacknowledged.clear();
  }
  peer->refused = peer->refused || state.refused;
  return state.broken || peer->cut;
}

std::vector<std::string> Peers::Service(Instant now) {
  now_ = now;
  std::vector<std::string> lost;
  for (auto it = peers_.begin(); it != peers_.end();) {
    Peer& peer = it->second;
    bool over = peer.used && (peer.broken || Lost(it->first, &peer));
    if (peer.used && !over) {
      Flush(&peer);
      over = peer.cut && Lost(it->first, &peer);
    }
    if (over) {
      lost.push_back(it->first);
      it = peers_.erase(it);
    } else {
      ++it;
    }
  }
  return lost;
}

void Peers::AppendWatched(std::vector<Watched>* watched) const {
  for (const auto& [endpoint, peer] : peers_) {
    if (peer.used && !peer.again_at) watched->push_back({peer.link.get(), !peer.queue.empty()});
  }
}

}  // namespace prd
