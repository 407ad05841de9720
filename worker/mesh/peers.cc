#include "worker/mesh/peers.h"

#include <algorithm>
#include <cstring>
#include <limits>

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
// An attempt to connect for signals, the time until the next one, and unacknowledged signals.
constexpr int kSignalConnectMs = 300;
constexpr int kSignalReconnectMs = 100;
constexpr int kSignalUnackedMs = 500;
// Signal connections that were not used for this long are closed.
constexpr DurationNs kSignalsKept = 10 * kSecond;

bool HasPrefix(const std::string& text, const char* prefix) {
  return text.compare(0, std::strlen(prefix), prefix) == 0 && text.size() <= kMaxEndpointBytes;
}

int Milliseconds(DurationNs time) {
  constexpr DurationNs kMost = std::numeric_limits<int>::max();
  return static_cast<int>(std::clamp<DurationNs>(time / kMillisecond, 1, kMost));
}

}  // namespace

Peers::~Peers() {
  for (auto& [endpoint, peer] : peers_) {
    if (!Broken(&peer)) zmq_socket_monitor(peer.push.handle(), nullptr, 0);
  }
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
    return Status(Code::kInvalidArgument, "rank " + std::to_string(member.rank) +
                                              " has no endpoint that can be reached from here");
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

zmq::socket_t Peers::MakePush(const std::string& endpoint) const {
  zmq::socket_t push(*context_, zmq::socket_type::push);
  push.set(zmq::sockopt::ipv6, endpoint.find('[') != std::string::npos);
  return push;
}

Result<Peers::Peer*> Peers::Connect(const std::string& endpoint) {
  auto it = peers_.find(endpoint);
  if (it != peers_.end() && (it->second.broken || Broken(&it->second))) {
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
    peer.push = MakePush(endpoint);
    peer.push.set(zmq::sockopt::linger, kLingerMs);
    peer.push.set(zmq::sockopt::sndhwm, kSendHighWater);
    peer.push.set(zmq::sockopt::reconnect_ivl, -1);  // a lost peer is reported, not waited for
    peer.push.set(zmq::sockopt::connect_timeout, Milliseconds(std::min(timeout_, kConnectAtMost)));
    peer.push.set(zmq::sockopt::tcp_maxrt, Milliseconds(timeout_));
    const std::string name = "inproc://prd-peer-" + std::to_string(++made_);
    constexpr int kEvents = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_CONNECT_RETRIED |
                            ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                            ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;
    if (zmq_socket_monitor(peer.push.handle(), name.c_str(), kEvents) != 0) {
      throw zmq::error_t();
    }
    peer.monitor = zmq::socket_t(*context_, zmq::socket_type::pair);
    peer.monitor.set(zmq::sockopt::linger, 0);
    peer.monitor.connect(name);
    peer.push.connect(endpoint);
    peer.last_use = ++uses_;
    peer.made = made_;
    return &peers_.emplace(endpoint, std::move(peer)).first->second;
  } catch (const zmq::error_t& error) {
    return Status(Code::kUnavailable, "connecting to " + endpoint + ": " + error.what());
  }
}

void Peers::Rest() {
  for (auto& [endpoint, peer] : peers_) {
    peer.used = peer.kept != 0 || peer.broken || !peer.queue.empty();
  }
}

void Peers::Evict() {
  auto oldest = peers_.end();
  for (auto it = peers_.begin(); it != peers_.end(); ++it) {
    if (it->second.used) continue;
    if (oldest == peers_.end() || it->second.last_use < oldest->second.last_use) oldest = it;
  }
  if (oldest == peers_.end()) return;  // all in use: a large group may have more than the limit
  zmq_socket_monitor(oldest->second.push.handle(), nullptr, 0);
  peers_.erase(oldest);
}

void Peers::Send(const std::string& endpoint, const FrameHeader& header, zmq::message_t payload) {
  const auto it = peers_.find(endpoint);
  if (it == peers_.end()) return;  // lost; Service has said so
  it->second.queue.push_back({header, std::move(payload)});
  Flush(&it->second);
}

bool Peers::Idle(const std::string& endpoint) const { return Queued(endpoint) == 0; }

std::size_t Peers::Queued(const std::string& endpoint) const {
  const auto it = peers_.find(endpoint);
  return it == peers_.end() ? 0 : it->second.queue.size();
}

bool Peers::Signal(Instant now, const std::string& endpoint, const FrameHeader& header,
                   zmq::message_t payload) {
  try {
    SignalConnection* connection = ConnectSignals(endpoint);
    connection->last_use = now;
    zmq::socket_t& push = connection->push;
    (void)push.get(zmq::sockopt::events);  // sees what was taken meanwhile
    const auto bytes = EncodeHeader(header);
    zmq::message_t first(bytes.data(), bytes.size());
    if (!push.send(first, zmq::send_flags::sndmore | zmq::send_flags::dontwait)) return false;
    (void)push.send(payload, zmq::send_flags::dontwait);
  } catch (const zmq::error_t&) {
    return false;  // an endpoint that cannot be used, or the system has no more sockets
  }
  return true;
}

Peers::SignalConnection* Peers::ConnectSignals(const std::string& endpoint) {
  const auto it = signals_.find(endpoint);
  if (it != signals_.end()) return &it->second;
  SignalConnection made;
  made.push = MakePush(endpoint);
  made.push.set(zmq::sockopt::linger, 0);
  made.push.set(zmq::sockopt::sndhwm, kSignalHighWater);
  made.push.set(zmq::sockopt::reconnect_ivl, kSignalReconnectMs);
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
  return next;
}

void Peers::Sent(Topic topic, Incarnation to, std::uint64_t number, const std::string& endpoint) {
  const auto it = peers_.find(endpoint);
  if (it == peers_.end()) return;
  sent_.push_back({topic, to, number, it->second.made});
  if (sent_.size() > kMaxSent) sent_.pop_front();
}

bool Peers::OnTheirWay(Topic topic, Incarnation to, std::uint64_t number,
                       const std::string& endpoint) {
  const auto it = peers_.find(endpoint);
  if (it == peers_.end() || it->second.broken) return false;
  if (Broken(&it->second)) {
    it->second.broken = it->second.used;
    if (!it->second.used) peers_.erase(it);  // nobody looked
    return false;
  }
  return std::any_of(sent_.begin(), sent_.end(), [&](const SentTo& sent) {
    return sent.topic == topic && sent.to == to && sent.number == number &&
           sent.made == it->second.made;
  });
}

void Peers::Drop(const std::string& endpoint) {
  const auto it = peers_.find(endpoint);
  if (it == peers_.end()) return;
  if (!Broken(&it->second)) zmq_socket_monitor(it->second.push.handle(), nullptr, 0);
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
  try {
    while (!peer->queue.empty()) {
      Frame& frame = peer->queue.front();
      const auto header = EncodeHeader(frame.header);
      zmq::message_t first(header.data(), header.size());
      // Once the first part is taken, the second is: messages count whole.
      if (!peer->push.send(first, zmq::send_flags::sndmore | zmq::send_flags::dontwait)) break;
      (void)peer->push.send(frame.payload, zmq::send_flags::dontwait);
      peer->queue.pop_front();
    }
  } catch (const zmq::error_t&) {
    return false;
  }
  return true;
}

// Any event that is asked for means that the connection was closed, or could not be made: a worker
// listens before the controller tells anybody of it.
bool Peers::Broken(Peer* peer) {
  zmq::message_t event;
  bool broken = false;
  try {
    while (peer->monitor.recv(event, zmq::recv_flags::dontwait)) broken = true;
  } catch (const zmq::error_t&) {
    broken = true;
  }
  if (broken) {
    peer->push.set(zmq::sockopt::linger, 0);
    zmq_socket_monitor(peer->push.handle(), nullptr, 0);
  }
  return broken;
}

std::vector<std::string> Peers::Service() {
  std::vector<std::string> lost;
  for (auto it = peers_.begin(); it != peers_.end();) {
    Peer& peer = it->second;
    if (peer.used && (peer.broken || !Flush(&peer) || Broken(&peer))) {
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
    items->push_back({peer.monitor.handle(), 0, ZMQ_POLLIN, 0});
    if (!peer.queue.empty()) items->push_back({peer.push.handle(), 0, ZMQ_POLLOUT, 0});
  }
}

}  // namespace prd
