#include "server/worker_socket.h"

#include <utility>

#include "common/io/clock.h"
#include "common/io/codec.h"
#include "server/bind.h"
#include "server/zap.h"

namespace prd {
namespace {

// Messages queued per worker and direction before it blocks. A worker has a handful in flight.
constexpr int kQueue = 1000;

void Configure(zmq::socket_t& socket, const WorkerSocket::Options& options) {
  socket.set(zmq::sockopt::router_mandatory, true);  // an error, not silence, for a gone worker
  socket.set(zmq::sockopt::router_handover, true);   // who reconnects by the same name wins
  socket.set(zmq::sockopt::maxmsgsize, options.max_message_bytes);
  socket.set(zmq::sockopt::sndhwm, kQueue);
  socket.set(zmq::sockopt::rcvhwm, kQueue);
  socket.set(zmq::sockopt::linger, 1000);
  socket.set(zmq::sockopt::backlog, 4096);
  socket.set(zmq::sockopt::ipv6, options.endpoint.find('[') != std::string::npos);
  // Clears away connections whose other end is gone without a word.
  socket.set(zmq::sockopt::heartbeat_ivl, 5000);
  socket.set(zmq::sockopt::heartbeat_timeout, 20'000);
  if (options.keys) {
    socket.set(zmq::sockopt::curve_server, true);
    socket.set(zmq::sockopt::curve_secretkey, options.keys->secret_key);
    socket.set(zmq::sockopt::zap_domain, std::string(kZapDomain));
  }
}

}  // namespace

Result<std::unique_ptr<WorkerSocket>> WorkerSocket::Make(zmq::context_t& context,
                                                         const Options& options) {
  try {
    zmq::socket_t socket(context, zmq::socket_type::router);
    Configure(socket, options);
    Result<std::string> endpoint = Bind(socket, options.endpoint, "listen", Access::kByUmask);
    if (!endpoint.ok()) return endpoint.status();
    std::unique_ptr<WorkerSocket> made(new WorkerSocket(std::move(socket)));
    made->endpoint_ = *endpoint;
    return made;
  } catch (const zmq::error_t& error) {
    return Status(Code::kInternal, "listen = \"" + options.endpoint + "\": " + error.what());
  }
}

bool WorkerSocket::Receive(std::size_t* budget, WorkerEnvelope* envelope) {
  while (*budget > 0) {
    if (!socket_.recv(route_, zmq::recv_flags::dontwait)) return false;
    --*budget;
    int parts = 0;
    // The parts of a message arrive together, so none of these waits.
    while (socket_.get(zmq::sockopt::rcvmore)) {
      (void)socket_.recv(body_, zmq::recv_flags::none);
      ++parts;
    }
    if (parts != 1) {
      Refuse(Status(Code::kInvalidArgument,
                    "a worker's message has one part, found " + std::to_string(parts)));
      continue;
    }
    Result<WorkerEnvelope> decoded =
        DecodeWorkerEnvelope({static_cast<const char*>(body_.data()), body_.size()});
    if (!decoded.ok()) {
      Refuse(decoded.status());
      continue;
    }
    *envelope = std::move(*decoded);
    const std::string_view route(static_cast<const char*>(route_.data()), route_.size());
    std::string& known = routes_[envelope->incarnation];
    if (known != route) known = route;
    return true;
  }
  return false;
}

// The sender of the message in route_ may be no worker at all, so the answer is human-readable.
void WorkerSocket::Refuse(const Status& why) {
  ++counters_.malformed;
  std::uint64_t skipped = 0;
  if (malformed_log_.Allow(MonotonicNs(), &skipped)) {
    spdlog::warn("refused {} ({} more since the last such line)", why.message(), skipped);
  }
  SendTo({static_cast<const char*>(route_.data()), route_.size()},
         {.body = Refused{.code = why.code(), .reason = why.message()}});
}

void WorkerSocket::Send(const ControllerEnvelope& envelope) {
  const auto route = routes_.find(envelope.incarnation);
  if (route == routes_.end()) {
    ++counters_.unroutable;
    return;
  }
  SendTo(route->second, envelope);
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
}

}  // namespace prd
