#include "worker/mesh/peers.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>

namespace prd {
namespace {

// Chunks under way per connection; with the receiver's as many, it keeps both ends busy.
constexpr int kSendHighWater = 8;
// What has been handed to the network is still sent for this long when the session ends.
constexpr int kLingerMs = 2000;
// An attempt to connect, at most: the network waits longer and longer before it tries again.
constexpr DurationNs kConnectAtMost = 2 * kSecond;
constexpr std::size_t kMaxEndpointBytes = 256;
// Signals under way per connection; more are dropped. A peer of an exchange may have 256 requests.
constexpr int kSignalHighWater = 512;
// An attempt to connect for signals, and unacknowledged signals.
constexpr int kSignalConnectMs = 300;
constexpr int kSignalUnackedMs = 500;
// Signal connections that were not used for this long are closed.
constexpr DurationNs kSignalsKept = 10 * kSecond;

bool HasPrefix(const std::string& text, const char* prefix) {
  return text.compare(0, std::strlen(prefix), prefix) == 0 && text.size() <= kMaxEndpointBytes;
}

// The user whose process listens at the other end of a connected socket is this process's own.
bool ListensForThisUser(int fd) {
  ucred other{};
  socklen_t size = sizeof other;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == geteuid();
}

struct MonitorEvent {
  std::uint16_t event = 0;
  std::int32_t value = 0;
};
MonitorEvent EventOf(const zmq::message_t& message) {
  MonitorEvent event;
  if (message.size() < sizeof event.event + sizeof event.value) return event;
  const char* bytes = static_cast<const char*>(message.data());
  std::memcpy(&event.event, bytes, sizeof event.event);
  std::memcpy(&event.value, bytes + sizeof event.event, sizeof event.value);
  return event;
}

int Milliseconds(DurationNs time) {
  constexpr DurationNs kMost = std::numeric_limits<int>::max();
  return static_cast<int>(std::clamp<DurationNs>(time / kMillisecond, 1, kMost));
}

}  // namespace

Peers::~Peers() { Join(security_); }

void Peers::Join(MeshSecurity security) {
  for (auto& [endpoint, peer] : peers_) (void)Broken(&peer);  // nobody lingers for what is lost
  peers_.clear();
  signals_.clear();
  sent_.clear();
  at_.clear();
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

// Makes the socket and its monitor, with what the other end's door asks for. Throws zmq::error_t.
void Peers::Open(const std::string& endpoint, Purpose purpose, int events, Connection* connection) {
  const auto who = at_.find(endpoint);
  const PairKeys* keys = who == at_.end() ? nullptr : directory_->KeysOf(who->second);
  if (keys == nullptr) {
    errno = ENOKEY;
    throw zmq::error_t();
  }
  const Pass pass{.from = directory_->self(), .number = ++made_, .purpose = purpose};
  zmq::socket_t& push = connection->push;
  push = zmq::socket_t(*context_, zmq::socket_type::push);
  push.set(zmq::sockopt::ipv6, endpoint.find('[') != std::string::npos);
  if (security_ == MeshSecurity::kCurve) {
    const auto raw = [](const auto& key) { return zmq::buffer(key.data(), key.size()); };
    push.set(zmq::sockopt::curve_serverkey, raw(directory_->Find(who->second)->mesh_key.bytes));
    push.set(zmq::sockopt::curve_publickey, raw(directory_->own().public_key.bytes));
    push.set(zmq::sockopt::curve_secretkey, raw(directory_->own().secret));
  } else {
    push.set(zmq::sockopt::plain_username, EncodePass(pass));
    push.set(zmq::sockopt::plain_password, ProofOf(keys->out, pass));
  }
  if (Seals(security_, HasPrefix(endpoint, "tcp://"))) {
    connection->key = SealKeyOf(keys->out, pass);
    connection->sealer.emplace(*connection->key);
  }
  const std::string name = "inproc://prd-peer-" + std::to_string(made_);
  if (zmq_socket_monitor(push.handle(), name.c_str(), events) != 0) throw zmq::error_t();
  connection->monitor = zmq::socket_t(*context_, zmq::socket_type::pair);
  connection->monitor.set(zmq::sockopt::linger, 0);
  connection->monitor.connect(name);
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
  try {
    Peer peer;
    peer.tcp = HasPrefix(endpoint, "tcp://");
    OpenData(endpoint, false, &peer);
    peer.last_use = ++uses_;
    peer.stream = made_;
    return &peers_.emplace(endpoint, std::move(peer)).first->second;
  } catch (const zmq::error_t& error) {
    return Status(Code::kUnavailable, "connecting to " + endpoint + ": " + error.what());
  }
}

// Throws zmq::error_t.
void Peers::OpenData(const std::string& endpoint, bool again, Peer* peer) {
  constexpr int kEvents = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                          ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_CONNECT_RETRIED |
                          ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
  Open(endpoint, Purpose::kData, kEvents, peer);
  peer->verified = peer->tcp;
  peer->stands_since.reset();
  zmq::socket_t& push = peer->push;
  push.set(zmq::sockopt::linger, kLingerMs);
  push.set(zmq::sockopt::sndhwm, kSendHighWater);
  push.set(zmq::sockopt::reconnect_ivl, -1);  // a pass opens one connection
  const DurationNs connects = again ? kReconnect : std::min(timeout_, kConnectAtMost);
  push.set(zmq::sockopt::connect_timeout, Milliseconds(connects));
  if (again) push.set(zmq::sockopt::handshake_ivl, Milliseconds(kHandshake));
  push.set(zmq::sockopt::tcp_maxrt, Milliseconds(timeout_));
  push.connect(endpoint);
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

void Peers::Send(const std::string& endpoint, const FrameHeader& header, zmq::message_t payload) {
  const auto it = peers_.find(endpoint);
  if (it == peers_.end()) return;  // lost; Service has said so
  Frame frame{.header = header, .payload = std::move(payload), .first = {}};
  frame.header.stream = frame.header.number = 0;  // what is passed on has those of its sender
  it->second.queue.push_back(std::move(frame));
  Flush(&it->second);
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
    frame->first.rebuild(header.data(), header.size());
    return;
  }
  zmq::message_t* payload = &frame->payload;
  const std::span<const std::byte> plain(static_cast<const std::byte*>(payload->data()),
                                         payload->size());
  // A chunk that goes around the ring is nobody else's; other payloads are read by others, too.
  zmq::message_t sealed;
  const bool in_place = frame->header.kind == FrameKind::kRing;
  if (!in_place) sealed.rebuild(plain.size());
  zmq::message_t* to = in_place ? payload : &sealed;
  const auto head = (*sealer)->Seal(header, plain, static_cast<std::byte*>(to->data()));
  frame->first.rebuild(head.data(), head.size());
  if (!in_place) *payload = std::move(sealed);
}

// Hands a sealed frame to a connection, if it takes one. Throws zmq::error_t.
bool Peers::Hand(zmq::socket_t* push, Frame* frame) {
  // Once the first part is taken, the second is: messages count whole.
  if (!push->send(frame->first, zmq::send_flags::sndmore | zmq::send_flags::dontwait)) return false;
  if (!push->send(frame->payload, zmq::send_flags::dontwait)) throw zmq::error_t();
  return true;
}

// The first of the queue. Over tcp it is kept until it is acknowledged: what the connection takes
// are copies that share its bytes. Throws zmq::error_t.
bool Peers::HandNext(Peer* peer) {
  Frame& frame = peer->queue.front();
  if (peer->tcp && frame.header.number == 0) {
    frame.header.stream = peer->stream;
    frame.header.number = ++peer->number;
  }
  Seal(&peer->sealer, &frame);
  Frame copy{.header = frame.header, .payload = {}, .first = {}};
  if (peer->tcp) {
    copy.first.copy(frame.first);
    copy.payload.copy(frame.payload);
  }
  if (!Hand(&peer->push, peer->tcp ? &copy : &frame)) return false;
  if (peer->tcp) {
    peer->unacknowledged_bytes += BytesOf(frame);
    peer->unacknowledged.push_back(std::move(frame));
    while (peer->unacknowledged_bytes > kMaxUnacknowledged) {
      const Frame& oldest = peer->unacknowledged.front();
      peer->forgotten = oldest.header.number;
      peer->unacknowledged_bytes -= BytesOf(oldest);
      peer->unacknowledged.pop_front();
    }
  }
  peer->queue.pop_front();
  return true;
}

bool Peers::Signal(Instant now, const std::string& endpoint, const FrameHeader& header,
                   zmq::message_t payload) {
  try {
    SignalConnection* connection = ConnectSignals(now, endpoint);
    if (connection == nullptr) return false;
    connection->last_use = now;
    (void)connection->push.get(zmq::sockopt::events);  // sees what was taken meanwhile
    Frame frame{.header = header, .payload = std::move(payload), .first = {}};
    Seal(&connection->sealer, &frame);
    return Hand(&connection->push, &frame);
  } catch (const zmq::error_t&) {
    return false;  // an endpoint that cannot be used, or the system has no more sockets
  }
}

// nullptr: it is broken, and too young for another attempt. Any event means that it is broken.
Peers::SignalConnection* Peers::ConnectSignals(Instant now, const std::string& endpoint) {
  const auto it = signals_.find(endpoint);
  if (it != signals_.end()) {
    SignalConnection& known = it->second;
    zmq::message_t event;
    known.broken = known.broken || known.monitor.recv(event, zmq::recv_flags::dontwait);
    if (!known.broken) return &known;
    if (now - known.made_at < kSignalReconnect) return nullptr;
    signals_.erase(it);
  }
  SignalConnection made;
  made.made_at = now;
  Open(endpoint, Purpose::kSignals,
       ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_CONNECT_RETRIED |
           ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
           ZMQ_EVENT_HANDSHAKE_FAILED_AUTH,
       &made);
  made.push.set(zmq::sockopt::linger, 0);
  made.push.set(zmq::sockopt::sndhwm, kSignalHighWater);
  made.push.set(zmq::sockopt::reconnect_ivl, -1);  // a pass opens one connection
  made.push.set(zmq::sockopt::connect_timeout, kSignalConnectMs);
  made.push.set(zmq::sockopt::tcp_maxrt, kSignalUnackedMs);
  made.push.connect(endpoint);
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
  for (const auto& [endpoint, peer] : peers_) {
    if (peer.used && peer.again_at && (!next || *peer.again_at < *next)) next = peer.again_at;
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
  (void)Broken(&it->second);
  peers_.erase(it);
}

void Peers::DropQueued(std::uint64_t group) {
  for (auto& [endpoint, peer] : peers_) {
    std::erase_if(peer.queue, [group](const Frame& frame) {
      return frame.header.group == group &&
             (frame.header.kind == FrameKind::kRing || frame.header.kind == FrameKind::kDirect);
    });
  }
}

// Returns false when the connection cannot be used any more.
bool Peers::Flush(Peer* peer) {
  if (!peer->verified || peer->again_at) return true;
  try {
    while (!peer->queue.empty() && HandNext(peer)) {
    }
  } catch (const zmq::error_t&) {
    return false;
  }
  return true;
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
  }
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
  if (!peer->tcp || !peer->stood || peer->refused || peer->forgotten != 0) return false;
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
        zmq::message_t plain(frame.payload.data(), frame.payload.size());
        const std::span<const std::byte> first(static_cast<const std::byte*>(frame.first.data()),
                                               frame.first.size());
        if (!opener->Open(first, {static_cast<std::byte*>(plain.data()), plain.size()})) {
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
  try {
    static_cast<Connection&>(*peer) = Connection();
    OpenData(endpoint, true, peer);
  } catch (const zmq::error_t&) {
    return false;
  }
  peer->again_at.reset();
  return true;
}

// Any event that is asked for, but for the first two, means that the connection was closed, or
// could not be made: a worker listens before the controller tells anybody of it.
bool Peers::Broken(Peer* peer) {
  zmq::message_t message;
  bool broken = false;
  try {
    while (peer->monitor.recv(message, zmq::recv_flags::dontwait)) {
      if (!message.more()) continue;  // the endpoint
      const MonitorEvent event = EventOf(message);
      if (event.event == ZMQ_EVENT_CONNECTED) {
        if (!peer->verified) peer->verified = ListensForThisUser(event.value);
        broken = broken || !peer->verified;
      } else if (event.event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
        resumed_ += peer->stood ? 1 : 0;
        peer->stood = true;
        peer->stands_since = now_;
      } else {
        broken = true;
        peer->refused = peer->refused || event.event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
      }
    }
  } catch (const zmq::error_t&) {
    broken = true;
  }
  if (broken && peer->push.handle() != nullptr) {
    peer->push.set(zmq::sockopt::linger, 0);
    zmq_socket_monitor(peer->push.handle(), nullptr, 0);
  }
  return broken;
}

std::vector<std::string> Peers::Service(Instant now) {
  now_ = now;
  std::vector<std::string> lost;
  for (auto it = peers_.begin(); it != peers_.end();) {
    Peer& peer = it->second;
    if (peer.used && (peer.broken || Lost(it->first, &peer) || !Flush(&peer))) {
      lost.push_back(it->first);
      it = peers_.erase(it);
    } else {
      ++it;
    }
  }
  return lost;
}

void Peers::AppendPollItems(std::vector<zmq::pollitem_t>* items) {
  for (auto& [endpoint, peer] : peers_) {
    if (!peer.used) continue;
    if (peer.again_at) continue;
    items->push_back({peer.monitor.handle(), 0, ZMQ_POLLIN, 0});
    if (!peer.queue.empty() && peer.verified) {
      items->push_back({peer.push.handle(), 0, ZMQ_POLLOUT, 0});
    }
  }
}

}  // namespace prd
