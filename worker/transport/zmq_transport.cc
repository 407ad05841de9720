#include "worker/transport/zmq_transport.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <utility>

#include "common/io/system_error.h"

namespace prd {
namespace {

constexpr const char* kInprocZap = "inproc://zeromq.zap.01";
// As libzmq writes it, with the other process's credentials; tcp addresses are numbers.
bool IsIpc(const std::string& address) { return address.starts_with("localhost:"); }

// What a link has taken is still sent for this long after its end.
constexpr int kLingerMs = 2000;
// Payloads up to this are copied into the message: cheaper than to lend them.
constexpr std::size_t kCopied = 1024;
constexpr int kReceiveHighWater = 8;
// Connections that a worker takes at least, and at most where descriptors are not bounded.
constexpr std::size_t kFewConnections = 64;
constexpr std::size_t kManyConnections = 32768;
// Connections that count no more, as the guard calls them.
constexpr const char* kOver = "over";

// The program needs descriptors, too.
std::size_t HalfOfTheDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kFewConnections;
  return std::clamp<rlim_t>(limit.rlim_cur / 2, kFewConnections, kManyConnections);
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

// The message keeps the bytes until libzmq has sent them.
zmq::message_t Lend(const SharedBytes& bytes) {
  if (bytes.size() <= kCopied) return zmq::message_t(bytes.data(), bytes.size());
  using Owner = std::shared_ptr<void>;
  return zmq::message_t(
      const_cast<std::byte*>(bytes.data()), bytes.size(),
      [](void*, void* hint) { delete static_cast<Owner*>(hint); }, new Owner(bytes.owner()));
}

SharedBytes Keep(zmq::message_t message) {
  if (message.size() == 0) return {};
  auto owner = std::make_shared<zmq::message_t>(std::move(message));
  auto* data = static_cast<std::byte*>(owner->data());
  const std::size_t size = owner->size();
  return SharedBytes(std::move(owner), data, size);
}

class ZmqLink : public Link {
 public:
  // Throws zmq::error_t.
  ZmqLink(zmq::context_t* context, const Opening& opening, std::uint64_t number)
      : push_(*context, zmq::socket_type::push),
        signals_(opening.purpose == Purpose::kSignals),
        verified_(signals_ || !opening.endpoint.starts_with("ipc://")) {
    push_.set(zmq::sockopt::ipv6, opening.endpoint.find('[') != std::string::npos);
    if (opening.server) {
      const auto raw = [](const auto& key) { return zmq::buffer(key.data(), key.size()); };
      push_.set(zmq::sockopt::curve_serverkey, raw(opening.server->bytes));
      push_.set(zmq::sockopt::curve_publickey, raw(opening.own->public_key.bytes));
      push_.set(zmq::sockopt::curve_secretkey, raw(opening.own->secret));
    } else {
      push_.set(zmq::sockopt::plain_username, opening.name);
      push_.set(zmq::sockopt::plain_password, opening.proof);
    }
    constexpr int kEvents = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                            ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_CONNECT_RETRIED |
                            ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                            ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
    const std::string name = "inproc://prd-link-" + std::to_string(number);
    if (zmq_socket_monitor(push_.handle(), name.c_str(), kEvents) != 0) throw zmq::error_t();
    monitor_ = zmq::socket_t(*context, zmq::socket_type::pair);
    monitor_.set(zmq::sockopt::linger, 0);
    monitor_.connect(name);
    push_.set(zmq::sockopt::linger, signals_ ? 0 : kLingerMs);
    push_.set(zmq::sockopt::sndhwm, signals_ ? Transport::kSignals : Transport::kFrames);
    push_.set(zmq::sockopt::reconnect_ivl, -1);  // a pass opens one connection
    if (opening.connects != 0) {
      push_.set(zmq::sockopt::connect_timeout, Milliseconds(opening.connects));
    }
    if (opening.admits != 0) {
      push_.set(zmq::sockopt::handshake_ivl, Milliseconds(opening.admits));
    }
    if (opening.delivers != 0) {
      push_.set(zmq::sockopt::tcp_maxrt, Milliseconds(opening.delivers));
    }
    push_.connect(opening.endpoint);
  }
  // A monitor whose other end is gone would block what it tells of.
  ~ZmqLink() override {
    if (Look().broken) return;  // it is through with the monitor
    zmq_socket_monitor(push_.handle(), nullptr, 0);
  }

  Sent Send(std::span<const std::byte> first, const SharedBytes& payload) override {
    if (!verified_) (void)Look();
    if (!verified_ || state_.broken) return state_.broken ? Sent::kBroken : Sent::kFull;
    try {
      if (signals_) (void)push_.get(zmq::sockopt::events);  // sees what was taken meanwhile
      if (!push_.send(zmq::const_buffer(first.data(), first.size()),
                      zmq::send_flags::sndmore | zmq::send_flags::dontwait)) {
        return Look().broken ? Sent::kBroken : Sent::kFull;
      }
      // Once the first part is taken, the second is: messages count whole.
      if (push_.send(Lend(payload), zmq::send_flags::dontwait)) return Sent::kTaken;
    } catch (const zmq::error_t&) {
    }
    return Sent::kBroken;
  }

  // Any event that is asked for, but for the first two, means that the connection was closed, or
  // could not be made: a worker listens before the controller tells anybody of it.
  State Look() override {
    if (state_.broken) return state_;
    zmq::message_t message;
    try {
      while (monitor_.recv(message, zmq::recv_flags::dontwait)) {
        if (!message.more()) continue;  // the endpoint
        const MonitorEvent event = EventOf(message);
        if (event.event == ZMQ_EVENT_CONNECTED) {
          fd_ = event.value;
          verified_ = verified_ || ListensForThisUser(event.value);
          state_.broken = state_.broken || !verified_;
        } else if (event.event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
          state_.stands = true;
        } else {
          state_.broken = true;
          state_.refused = state_.refused || event.event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
        }
      }
    } catch (const zmq::error_t&) {
      state_.broken = true;
    }
    if (state_.broken) {
      push_.set(zmq::sockopt::linger, 0);  // nobody lingers for what is lost
      zmq_socket_monitor(push_.handle(), nullptr, 0);
    }
    return state_;
  }

  // The descriptor is libzmq's, which may have closed it: then another one may have its number.
  bool Delivered() override {
    int bytes = 0;
    return fd_ >= 0 && !Look().broken && ioctl(fd_, SIOCOUTQ, &bytes) == 0 && bytes == 0;
  }

  void AppendPollItems(bool room, std::vector<zmq::pollitem_t>* items) {
    items->push_back({monitor_.handle(), 0, ZMQ_POLLIN, 0});
    if (room && verified_) items->push_back({push_.handle(), 0, ZMQ_POLLOUT, 0});
  }

 private:
  zmq::socket_t push_;
  zmq::socket_t monitor_;
  const bool signals_;
  bool verified_;  // who listens there
  int fd_ = -1;    // of the connection
  State state_;
};

}  // namespace

ZmqTransport::ZmqTransport(zmq::context_t* context, Options options)
    : context_(context),
      options_(std::move(options)),
      zap_(*context, zmq::socket_type::router),
      pull_(*context, zmq::socket_type::pull) {}

Result<std::unique_ptr<ZmqTransport>> ZmqTransport::Make(zmq::context_t* context, Options options) {
  std::unique_ptr<ZmqTransport> transport;
  try {
    transport.reset(new ZmqTransport(context, std::move(options)));
    PRD_RETURN_IF_ERROR(transport->Bind());
  } catch (const zmq::error_t& error) {
    return SystemError(Code::kInvalidArgument, "listening for peers", error.num());
  }
  return transport;
}

Status ZmqTransport::Bind() {
  zap_.set(zmq::sockopt::linger, 0);
  zap_.bind(kInprocZap);
  pull_.set(zmq::sockopt::linger, 0);
  pull_.set(zmq::sockopt::rcvhwm, kReceiveHighWater);
  pull_.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(options_.longest_part));
  pull_.set(zmq::sockopt::zap_domain, kDomain);
  pull_.set(zmq::sockopt::plain_server, true);
  const std::size_t connections =
      options_.max_connections != 0 ? options_.max_connections : HalfOfTheDescriptors();
  Result<std::unique_ptr<ConnectionGuard>> guard =
      ConnectionGuard::Make(*context_, pull_,
                            {.max_connections = connections,
                             .max_per_peer = (connections + 1) / 2,
                             .max_unread = kUnreadFrames * options_.longest_part,
                             .max_unread_silent_in_all = kMaxSilentBytes});
  if (!guard.ok()) return guard.status();
  guard_ = std::move(*guard);
  Result<Endpoints> endpoints = Listen(options_.listening, &pull_);
  if (!endpoints.ok()) return endpoints.status();
  endpoints_ = *std::move(endpoints);
  return Status::Ok();
}

Result<std::unique_ptr<Link>> ZmqTransport::Open(const Opening& opening) {
  try {
    return std::unique_ptr<Link>(std::make_unique<ZmqLink>(context_, opening, ++opened_));
  } catch (const zmq::error_t& error) {
    return SystemError(Code::kUnavailable, "connecting to " + opening.endpoint, error.num());
  }
}

// Which mechanism the job wants is known only when a run is joined, and where this transport
// listens has been told by then.
void ZmqTransport::ShowKeys(bool keys, const MeshKeyPair& own) {
  if (std::exchange(keys_, keys) == keys) return;
  while (!asking_.empty()) Answer(asking_.begin()->first, std::nullopt);
  ListenAgain(endpoints_, &pull_, [&] {
    if (keys) {
      pull_.set(zmq::sockopt::plain_server, false);
      pull_.set(zmq::sockopt::curve_server, true);
      pull_.set(zmq::sockopt::curve_secretkey, zmq::buffer(own.secret.data(), own.secret.size()));
    } else {
      pull_.set(zmq::sockopt::curve_server, false);
      pull_.set(zmq::sockopt::plain_server, true);
    }
  });
}

// ---- knocks ----

// A question is: version, request, domain, address, identity, mechanism, credentials. What is none
// is not libzmq's, and gets no answer.
std::optional<Transport::Knock> ZmqTransport::TakeKnock() {
  constexpr std::size_t kEnvelope = 2;  // the asking connection's id, and an empty part
  constexpr std::size_t kFixed = 6;
  for (zmq::message_t part; zap_.recv(part, zmq::recv_flags::dontwait);) {
    std::vector<std::string> parts{part.to_string()};
    while (part.more()) {
      (void)zap_.recv(part, zmq::recv_flags::none);
      parts.push_back(part.to_string());
    }
    if (parts.size() < kEnvelope + kFixed) continue;
    asking_[++knocks_] = {.envelope = {parts[0], parts[1]}, .request = parts[kEnvelope + 1]};
    Knock knock{.id = knocks_,
                .address = parts[kEnvelope + 3],
                .local = IsIpc(parts[kEnvelope + 3]),
                .key = parts[kEnvelope + 5] == "CURVE",
                .shown = {}};
    knock.shown.assign(parts.begin() + kEnvelope + kFixed, parts.end());
    if (knock.key == keys_) return knock;
    Answer(knock.id, std::nullopt);  // it came before ShowKeys
  }
  return std::nullopt;
}

void ZmqTransport::Answer(std::uint64_t knock, std::optional<std::uint64_t> visitor) {
  const auto asked = asking_.find(knock);
  if (asked == asking_.end()) return;
  const Asking asking = std::move(asked->second);
  asking_.erase(asked);
  // version, request, status, text, name, metadata
  const std::array<std::string, 6> answer = {
      "1.0", asking.request, visitor ? "200" : "400", "", visitor ? std::to_string(*visitor) : "",
      ""};
  for (const std::string& part : asking.envelope) {
    (void)zap_.send(zmq::buffer(part), zmq::send_flags::sndmore);
  }
  for (std::size_t i = 0; i < answer.size(); ++i) {
    (void)zap_.send(zmq::buffer(answer[i]),
                    i + 1 < answer.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
}

// ---- what comes ----

bool ZmqTransport::Receive(Arrival* arrival) {
  if (!pull_.recv(newest_, zmq::recv_flags::dontwait)) {
    guard_->Drained();
    return false;
  }
  zmq::message_t payload;
  int parts = 1;
  for (bool more = newest_.more(); more; ++parts) {
    zmq::message_t part;
    if (!pull_.recv(part, zmq::recv_flags::dontwait)) break;
    more = part.more();
    if (parts == 1) payload = std::move(part);
  }
  *arrival = {.visitor = 0,
              .first = {static_cast<const std::byte*>(newest_.data()), newest_.size()},
              .payload = Keep(std::move(payload)),
              .whole = parts == 2};
  const char* name = zmq_msg_gets(newest_.handle(), "User-Id");
  if (name == nullptr) return true;
  const char* end = name + std::strlen(name);
  std::uint64_t visitor = 0;
  if (std::from_chars(name, end, visitor).ptr == end) arrival->visitor = visitor;
  return true;
}

// What waits to be read is bounded by kReceiveHighWater: no bytes are told.
void ZmqTransport::Attribute(Incarnation member) {
  guard_->Delivered(newest_, 0, true, member != 0 ? std::to_string(member) : kOver);
  if (member == 0) guard_->End(kOver);
}

void ZmqTransport::End(Incarnation member) { guard_->End(std::to_string(member)); }

Transport::Counters ZmqTransport::counters() const {
  const ConnectionGuard::Counters guarded = guard_->counters();
  return {.open = guarded.open, .refused = guarded.refused, .cut = guarded.cut};
}

void ZmqTransport::AppendPollItems(const std::vector<Watched>& links,
                                   std::vector<zmq::pollitem_t>* items) {
  items->push_back({pull_.handle(), 0, ZMQ_POLLIN, 0});
  items->push_back({zap_.handle(), 0, ZMQ_POLLIN, 0});
  for (const auto& [link, room] : links) {
    static_cast<ZmqLink*>(link)->AppendPollItems(room, items);
  }
}

}  // namespace prd
