#include "worker/controller_socket.h"

#include <cstdint>
#include <string>
#include <utility>

#include "common/io/codec.h"
#include "common/io/dial.h"
#include "common/io/system_error.h"
#include "common/io/tcp_liveness.h"

namespace prd {
namespace {

// The longest control message: a group of some thousand members fits.
constexpr std::int64_t kMaxMessageBytes = 4 << 20;
// Also the limit of one attempt to connect. The kernel repeats a SYN after 1 s, 2 s, 4 s and so on:
// an attempt that a cut path has swallowed sleeps on for as long again after the repair.
constexpr int kControllerDeadMs = 3000;

// ZeroMQ tries again to connect after so long, and somewhat longer each time up to the second: well
// within death_grace_ms (config). A controller that has been away for 20 s is asked less often.
struct Pauses {
  int first_ms = 0;
  int longest_ms = 0;
};
constexpr Pauses kSoon = {.first_ms = 50, .longest_ms = 100};
constexpr Pauses kPatient = {.first_ms = 250, .longest_ms = 500};
constexpr int kAttemptsSoon = 160;
constexpr int kAttemptsOneWay = 3;

void SetPauses(zmq::socket_ref socket, const Pauses& pauses) {
  socket.set(zmq::sockopt::reconnect_ivl, pauses.first_ms);
  socket.set(zmq::sockopt::reconnect_ivl_max, pauses.longest_ms);
}

}  // namespace

ControllerSocket::~ControllerSocket() {
  handshakes_.Stop();
  socket_.close();
}

Status ControllerSocket::Connect(zmq::context_t* context, const SessionOptions& options) {
  PRD_RETURN_IF_ERROR(MayOpen(options.controller));
  options_.controller = options.controller;
  options_.curve_server_key = options.curve_server_key;
  options_.curve_public_key = options.curve_public_key;
  try {
    socket_ = zmq::socket_t(*context, zmq::socket_type::dealer);
    socket_.set(zmq::sockopt::linger, 500);
    socket_.set(zmq::sockopt::immediate, true);  // what cannot leave now is sent again later
    socket_.set(zmq::sockopt::maxmsgsize, kMaxMessageBytes);
    SetPauses(socket_, kSoon);
    // Not bounded by ZeroMQ, for libzmq may abort the process where it bounds (tcp_liveness.h). The
    // controller sends no more than 1 MiB that is not acknowledged.
    socket_.set(zmq::sockopt::rcvhwm, 0);
    EndDeadConnections(socket_, kControllerDeadMs);
    socket_.set(zmq::sockopt::connect_timeout, kControllerDeadMs);
    if (options.controller.starts_with("tcp://")) {
      Result<std::vector<TcpWay>> ways = WaysTo(options.controller);
      if (ways.ok()) {
        ways_ = *std::move(ways);
      } else if (ways.status().code() == Code::kUnavailable) {  // the name may be there later
        ways_ = {{.ipv6 = false, .own = ""}, {.ipv6 = true, .own = ""}};
      } else {
        return Status(ways.status().code(), "controller: " + ways.status().message());
      }
      socket_.set(zmq::sockopt::ipv6, ways_.front().ipv6);
    }
    if (!options.curve_server_key.empty()) {
      socket_.set(zmq::sockopt::curve_serverkey, options.curve_server_key);
      socket_.set(zmq::sockopt::curve_publickey, options.curve_public_key);
      socket_.set(zmq::sockopt::curve_secretkey, options.curve_secret_key);
    }
    handshakes_.Watch(context, socket_);
    socket_.connect(options.controller);
  } catch (const zmq::error_t& error) {
    return SystemError(Code::kInvalidArgument, "controller: found \"" + options.controller + "\"",
                       error.num());
  }
  return Status::Ok();
}

void ControllerSocket::Send(const WorkerEnvelope& envelope) {
  if (blocked_) return;  // all of it is sent again once the connection is there
  const std::string bytes = Encode(envelope);
  if (!socket_.send(zmq::buffer(bytes), zmq::send_flags::dontwait)) blocked_ = true;
}

bool ControllerSocket::Receive(std::optional<ControllerEnvelope>* envelope) {
  envelope->reset();
  zmq::message_t message;
  if (!socket_.recv(message, zmq::recv_flags::dontwait)) return false;
  const bool whole = !message.more();
  for (bool more = message.more(); more;) {
    zmq::message_t part;
    if (!socket_.recv(part, zmq::recv_flags::dontwait)) break;
    more = part.more();
  }
  if (!whole) return true;
  Result<ControllerEnvelope> decoded = DecodeControllerEnvelope(message.to_string_view());
  // What does not decode is dropped; the controller sends it again if it was ours.
  if (decoded.ok()) *envelope = std::move(*decoded);
  return true;
}

ControllerSocket::News ControllerSocket::TakeNews() {
  News news;
  news.failure = handshakes_.Take(options_);
  const bool broken = handshakes_.TakeBroken();
  if (!patient_ && handshakes_.attempts() >= kAttemptsSoon) ChangePace(true);
  if (patient_ && broken) ChangePace(false);
  // The controller may listen to the other kind of address that its name has.
  if (handshakes_.attempts() < attempts_) attempts_ = 0;
  if (ways_.size() > 1 && handshakes_.attempts() >= attempts_ + kAttemptsOneWay) {
    attempts_ = handshakes_.attempts();
    std::swap(ways_.front(), ways_.back());
    Reconnect();
  }
  // The controller may have noticed that the connection before broke, and wait for a word over this
  // one.
  if (handshakes_.TakeMade() || std::exchange(unblocked_, false)) {
    blocked_ = unblocked_ = false;
    news.connected = true;
  }
  return news;
}

void ControllerSocket::ChangePace(bool patient) {
  patient_ = patient;
  SetPauses(socket_, patient ? kPatient : kSoon);
  Reconnect();
}

// ZeroMQ takes other pauses, and the other kind of address, for another connection only.
void ControllerSocket::Reconnect() {
  try {
    if (!ways_.empty()) socket_.set(zmq::sockopt::ipv6, ways_.front().ipv6);
    socket_.disconnect(options_.controller);
    socket_.connect(options_.controller);
  } catch (const zmq::error_t&) {  // it goes on as before
  }
}

void ControllerSocket::AppendPollItems(std::vector<zmq::pollitem_t>* items) {
  const int events = ZMQ_POLLIN | (blocked_ ? ZMQ_POLLOUT : 0);
  items->push_back({socket_.handle(), 0, static_cast<short>(events), 0});
  items->push_back({handshakes_.handle(), 0, ZMQ_POLLIN, 0});
}

void ControllerSocket::OnPolled(const zmq::pollitem_t& item) {
  if (!blocked_ || (item.revents & ZMQ_POLLOUT) == 0) return;
  blocked_ = false;
  unblocked_ = true;
}

}  // namespace prd
