#include "worker/handshakes.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace prd {
namespace {

// A controller that ends this many connections in a row does not do so because it just stops.
constexpr int kTellAfter = 5;
constexpr std::string_view kIpc = "ipc://";

std::string Controller(const SessionOptions& options) {
  return "the controller at " + options.controller;
}

bool HasKeys(const SessionOptions& options) { return !options.curve_server_key.empty(); }

std::string User() { return "user " + std::to_string(::geteuid()); }

constexpr const char* kUsersHelp =
    "; its config must name the user in an [[identity]] that may train (`users`), and be reloaded";

std::string NotLetIn(const SessionOptions& options) {
  if (!HasKeys(options)) {
    return Controller(options) + " does not let " + User() + " in" + kUsersHelp;
  }
  return Controller(options) + " does not let the key " + options.curve_public_key +
         " in; its config must name the key in an [[identity]] that may train (`keys`), and be "
         "reloaded, or PRD_CURVE_SECRET_KEY_FILE is another worker's";
}

std::string Mismatch(const SessionOptions& options, std::uint32_t value) {
  if (value != ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) {
    return "what answers at " + options.controller +
           " does not speak as prd does (ZMTP); PRD_CONTROLLER names another program's port, or "
           "one "
           "of prd's that is not `listen`";
  }
  if (HasKeys(options)) {
    return Controller(options) +
           " has no keys; PRD_CURVE_SERVER_KEY is to be left out, or it is another daemon";
  }
  return Controller(options) +
         " lets nobody in without keys; PRD_CURVE_SERVER_KEY and PRD_CURVE_SECRET_KEY_FILE name "
         "them";
}

std::string Ended(const SessionOptions& options) {
  const std::string what = Controller(options) + " ends connections before they are made; ";
  if (!HasKeys(options) && options.controller.starts_with(kIpc)) {
    return what + "it does not let " + User() +
           " in, or it has all its connections (max_connections)" + kUsersHelp;
  }
  return what + (HasKeys(options) ? "PRD_CURVE_SERVER_KEY (" + options.curve_server_key +
                                        ") is not its public key, or it has all its connections"
                                  : "it has all its connections (max_connections)");
}

}  // namespace

void Handshakes::Watch(zmq::context_t* context, zmq::socket_ref socket) {
  static std::atomic<std::uint64_t> number{0};
  const std::string name = "inproc://prd-handshakes-" + std::to_string(++number);
  constexpr int kEvents = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_CONNECT_RETRIED |
                          ZMQ_EVENT_CONNECTED | ZMQ_EVENT_DISCONNECTED;
  if (zmq_socket_monitor(socket.handle(), name.c_str(), kEvents) != 0) throw zmq::error_t();
  socket_ = socket;
  events_ = zmq::socket_t(*context, zmq::socket_type::pair);
  events_.set(zmq::sockopt::linger, 0);
  events_.connect(name);
}

void Handshakes::Stop() {
  if (socket_.handle() != nullptr) zmq_socket_monitor(socket_.handle(), nullptr, 0);
  socket_ = {};
  events_.close();
}

std::optional<Handshakes::Failure> Handshakes::Take(const SessionOptions& options) {
  std::optional<Failure> failure;
  zmq::message_t frame;
  while (events_.recv(frame, zmq::recv_flags::dontwait)) {
    std::uint16_t event = 0;
    std::uint32_t value = 0;
    if (frame.size() >= sizeof event + sizeof value) {
      std::memcpy(&event, frame.data(), sizeof event);
      std::memcpy(&value, frame.data<char>() + sizeof event, sizeof value);
    }
    while (frame.more()) (void)events_.recv(frame, zmq::recv_flags::none);
    broken_ = broken_ || event == ZMQ_EVENT_DISCONNECTED;
    if (event == ZMQ_EVENT_CONNECT_RETRIED) ++attempts_;
    if (event == ZMQ_EVENT_CONNECTED) own_.Keep(static_cast<int>(value));
    if (event == ZMQ_EVENT_CONNECT_RETRIED || event == ZMQ_EVENT_CONNECTED ||
        event == ZMQ_EVENT_DISCONNECTED) {
      continue;
    }
    const bool ended = event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL;
    ended_ = ended ? ended_ + 1 : 0;
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
      made_ = true;
      attempts_ = 0;
    }
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
      failure = {Status(Code::kFailedPrecondition, "permission denied: " + NotLetIn(options)),
                 true};
    } else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) {
      failure = {Status(Code::kFailedPrecondition, Mismatch(options, value)), true};
    } else if (ended && ended_ == kTellAfter) {
      failure = {Status(Code::kUnavailable, Ended(options)), false};
    }
  }
  return failure;
}

Status MayOpen(const std::string& controller) {
  if (!controller.starts_with(kIpc) || controller.starts_with("ipc://@")) return Status::Ok();
  // Connecting needs the right to write; so does finding the file, of its folder.
  if (::access(controller.c_str() + kIpc.size(), W_OK) == 0 || errno != EACCES) {
    return Status::Ok();
  }
  return Status(Code::kFailedPrecondition, "permission denied: " + User() +
                                               " may not open the controller's socket, " +
                                               controller + kUsersHelp);
}

}  // namespace prd
