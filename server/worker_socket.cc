#include "server/worker_socket.h"

#include <sodium/crypto_generichash.h>

#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "common/io/clock.h"
#include "common/io/codec.h"

namespace prd {
namespace {

// Bytes of a worker's messages after which the guard is told of them, at the latest.
constexpr std::uint64_t kTellBytes = 64 << 10;

// What a record may hold: it does not lead back to the token.
LinkToken Hashed(const LinkToken& token) {
  const std::array<std::uint64_t, 2> in = {token.high, token.low};
  std::array<std::uint64_t, 2> out{};
  ::crypto_generichash(reinterpret_cast<unsigned char*>(out.data()), sizeof out,
                       reinterpret_cast<const unsigned char*>(in.data()), sizeof in, nullptr, 0);
  return {out[0], out[1]};
}

// ZeroMQ numbers connections in the order in which they come.
std::uint32_t NumberOf(std::string_view route) {
  std::uint32_t number = 0;  // network order: its last byte counts
  for (std::size_t i = 1; i < route.size(); ++i) {
    number = number << 8 | static_cast<unsigned char>(route[i]);
  }
  return number;
}

}  // namespace

// Puts the next well-formed message into envelope_, its parts into route_ and body_, and its bytes
// on the wire into *bytes. False: none waits, or the turn is over.
bool WorkerSocket::Take(Turn* turn, std::uint64_t* bytes) {
  while (!turn->over) {
    if (!socket_.recv(route_, zmq::recv_flags::dontwait)) {
      listener_->guard().Drained();
      return false;
    }
    const std::uint8_t of_one = ++turn->of[NumberOf(Sender()) % Turn::kSlots];
    turn->over = ++turn->taken >= Turn::kMessages || of_one >= Turn::kOfOne;
    int parts = 0;
    *bytes = 0;
    // The parts of a message arrive together, so none of these waits.
    for (bool more = route_.more(); more; more = body_.more()) {
      (void)socket_.recv(body_, zmq::recv_flags::none);
      *bytes += listener_->OnWire(body_);
      ++parts;
    }
    if (parts != 1) {
      listener_->guard().Delivered(parts > 0 ? body_ : route_, *bytes, false);
      Refuse(Status(Code::kInvalidArgument,
                    "a worker's message has one part, found " + std::to_string(parts)));
      continue;
    }
    Result<WorkerEnvelope> decoded =
        DecodeWorkerEnvelope({static_cast<const char*>(body_.data()), body_.size()});
    if (decoded.ok()) {
      envelope_ = std::move(*decoded);
      return true;
    }
    listener_->guard().Delivered(body_, *bytes, false);
    Refuse(decoded.status());
  }
  return false;
}

const WorkerEnvelope* WorkerSocket::Receive(Instant now, Gate* gate, Turn* turn) {
  fresh_ = false;
  for (std::uint64_t bytes = 0; Take(turn, &bytes);) {
    const LinkToken shown = envelope_.token;
    Route* known = Known(*gate);
    Checked checked;
    Gate::Sender sender{.part = &body_};
    if (known != nullptr) {
      sender.rights = known->checked.rights;
      envelope_.token = known->token;
      known->bytes += bytes;
    } else {
      checked = {gate->RightsOf(body_), gate->access_number(), listener_->guard().looks()};
      sender.rights = checked.rights;
      sender.surplus = !Delivered(body_, bytes + Untold(envelope_.incarnation), sender.rights);
      envelope_.token = Hashed(shown);
    }
    Refused refusal;
    switch (gate->Check(now, sender, &envelope_, &refusal)) {
      case Gate::Verdict::kPass:
        if (known != nullptr || Own(shown, checked)) return &envelope_;
        break;
      case Gate::Verdict::kRefuse:
        ++counters_.forbidden;
        SendTo(std::string(Sender()),
               {.incarnation = envelope_.incarnation, .body = std::move(refusal)});
        break;
      case Gate::Verdict::kDrop:
        ++counters_.forbidden;
        break;
    }
  }
  return nullptr;
}

void WorkerSocket::PutOff(const Access& access, const std::string& why, std::uint32_t retry_ms) {
  Turn turn;
  for (std::uint64_t bytes = 0; Take(&turn, &bytes);) {
    (void)Delivered(body_, bytes, access.Find(WhoSent(body_)));
    // The identity is the one that the worker knows: the new controller's is told once it has its
    // runs.
    ControllerEnvelope answer{.identity = envelope_.identity, .incarnation = envelope_.incarnation};
    if (std::holds_alternative<Hello>(envelope_.body)) {
      answer.body = Refused{.code = Code::kUnavailable, .reason = why, .retry_ms = retry_ms};
    } else {
      answer.body = HeartbeatAck{.waits_for = why};
    }
    SendTo(std::string(Sender()), answer);
  }
}

// Whether the connection has room: that of an identity may be over its number.
bool WorkerSocket::Delivered(const zmq::message_t& part, std::uint64_t bytes,
                             const Rights* rights) {
  ConnectionGuard& guard = listener_->guard();
  if (rights == nullptr) return guard.Delivered(part, bytes, false);
  return guard.Delivered(part, bytes, true, rights->name,
                         static_cast<std::size_t>(rights->max_connections));
}

// What the guard has not been told yet of the connection in route_, if that is this worker's.
std::uint64_t WorkerSocket::Untold(Incarnation incarnation) {
  const auto known = routes_.find(incarnation);
  if (known == routes_.end() || known->second.connection != Sender()) return 0;
  return std::exchange(known->second.bytes, 0);
}

// The route of the message in envelope_, if all that would be asked of its connection is known: it
// was asked on this connection, of a message with this token, which nobody else has.
WorkerSocket::Route* WorkerSocket::Known(const Gate& gate) {
  const auto known = routes_.find(envelope_.incarnation);
  if (known == routes_.end()) return nullptr;
  Route& route = known->second;
  const Checked& checked = route.checked;
  const bool same = route.shown == envelope_.token && checked.rights != nullptr &&
                    checked.access_number == gate.access_number() &&
                    checked.looks == listener_->guard().looks() && route.bytes < kTellBytes &&
                    !route.ended && route.connection == Sender();
  return same ? &route : nullptr;
}

// The routing id in route_.
std::string_view WorkerSocket::Sender() const {
  return {static_cast<const char*>(route_.data()), route_.size()};
}

// Whether the message in envelope_ comes from the incarnation that it names. Its answers go where
// it came from then. `shown`: its token as it came.
bool WorkerSocket::Own(const LinkToken& shown, const Checked& checked) {
  const auto [known, fresh] =
      routes_.try_emplace(envelope_.incarnation, Route{.connection = {}, .token = envelope_.token});
  Route& route = known->second;
  if (route.token != envelope_.token) {
    ++counters_.foreign;
    std::uint64_t skipped = 0;
    if (foreign_log_.Allow(MonotonicNs(), &skipped)) {
      spdlog::warn(
          "dropped a message in the name of rank {} of run {}, with the token of another process{}",
          envelope_.rank, envelope_.run, MoreSince(skipped));
    }
    return false;
  }
  // The guard may not have heard yet of a connection whose first message comes.
  const bool again = route.connection == Sender();
  // What an older one has left behind may be read late.
  const bool older = !route.connection.empty() &&
                     static_cast<std::int32_t>(NumberOf(Sender()) - NumberOf(route.connection)) < 0;
  if (older) return true;
  if (again && route.ended) late_.push_back(envelope_.incarnation);
  route.checked = again ? checked : Checked();
  if (!again) {
    route.connection = Sender();
    route.who = WhoSent(body_);
    route.bytes = 0;
    route.ended = false;
    claims_.erase(route.claim);
    route.claim = next_claim_++;
    claims_[route.claim] = envelope_.incarnation;
    listener_->guard().Claim(body_, route.claim);
    fresh_ = true;
  }
  route.shown = shown;
  return true;
}

std::vector<Incarnation> WorkerSocket::TakeEnded() {
  std::vector<Incarnation> ended = std::exchange(late_, {});
  std::erase_if(ended, [this](Incarnation incarnation) {
    const auto route = routes_.find(incarnation);
    return route == routes_.end() || !route->second.ended;  // it has come back since
  });
  for (const std::uint64_t claim : listener_->guard().TakeEnded()) {
    const auto claimed = claims_.extract(claim);
    if (claimed.empty()) continue;
    ended.push_back(claimed.mapped());
    const auto route = routes_.find(claimed.mapped());
    if (route != routes_.end()) route->second.ended = true;
  }
  return ended;
}

void WorkerSocket::Know(Incarnation incarnation, const LinkToken& token) {
  routes_[incarnation].token = token;
}

std::string_view WorkerSocket::WhoIs(Incarnation incarnation) const {
  const auto route = routes_.find(incarnation);
  return route == routes_.end() ? std::string_view() : std::string_view(route->second.who);
}

// The sender of the message in route_ may be no worker at all, so the answer is human-readable.
void WorkerSocket::Refuse(const Status& why) {
  ++counters_.malformed;
  std::uint64_t skipped = 0;
  if (malformed_log_.Allow(MonotonicNs(), &skipped)) {
    spdlog::warn("refused {}{}", why.message(), MoreSince(skipped));
  }
  SendTo({static_cast<const char*>(route_.data()), route_.size()},
         {.body = Refused{.code = why.code(), .reason = why.message()}});
}

void WorkerSocket::Send(const ControllerEnvelope& envelope) {
  const auto route = routes_.find(envelope.incarnation);
  if (route == routes_.end() || route->second.connection.empty()) {
    ++counters_.unroutable;
    return;
  }
  SendTo(route->second.connection, envelope);
}

void WorkerSocket::SendTo(const std::string& route, const ControllerEnvelope& envelope) {
  EncodeTo(envelope, &bytes_);
  try {
    if (!socket_.send(zmq::const_buffer(route.data(), route.size()),
                      zmq::send_flags::sndmore | zmq::send_flags::dontwait)) {
      ++counters_.blocked;
      return;
    }
    (void)socket_.send(zmq::const_buffer(bytes_.data(), bytes_.size()), zmq::send_flags::dontwait);
  } catch (const zmq::error_t& error) {
    ++(error.num() == EAGAIN ? counters_.blocked : counters_.unroutable);
  }
}

void WorkerSocket::Prune(const std::unordered_set<Incarnation>& keep) {
  std::erase_if(routes_, [&](const auto& route) { return !keep.contains(route.first); });
  std::erase_if(claims_, [&](const auto& claim) { return !keep.contains(claim.second); });
}

}  // namespace prd
