#include "server/listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/io/tcp_liveness.h"
#include "server/audit_log.h"
#include "server/zap.h"

namespace prd {
namespace {

constexpr std::string_view kIpc = "ipc://";
// Over tcp, after which a connection of a host that is gone without a word ends.
constexpr int kDeadMs = 20'000;

// ZeroMQ takes a socket file away from whoever has it; so ask first.
Status CheckFile(const std::string& path, const std::string& what) {
  const std::size_t slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash);
  if (slash != 0 && ::access(parent.c_str(), W_OK | X_OK) != 0) {
    return Status(errno == ENOENT ? Code::kNotFound : Code::kUnavailable,
                  what + "no socket can be made in " + parent + ": " + std::strerror(errno));
  }
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode)) {
    return Status(Code::kAlreadyExists, what + "something else than a socket is there");
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Status(Code::kInvalidArgument, what + "the path has over " +
                                              std::to_string(sizeof address.sun_path - 1) +
                                              " bytes, which no socket can have");
  }
  path.copy(address.sun_path, path.size());
  const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return Status::Ok();
  const int answer = ::connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const bool alive = answer == 0 || errno == EAGAIN;
  ::close(probe);
  if (!alive) return Status::Ok();
  return Status(Code::kAlreadyExists, what + "another process answers there");
}

// The users count for what is bound from now on.
void Filter(zmq::socket_t& socket, const LocalUsers& users) {
  const auto set = [&](const void* value, std::size_t size) {
    if (::zmq_setsockopt(socket.handle(), ZMQ_IPC_FILTER_UID, value, size) != 0) {
      throw zmq::error_t();
    }
  };
  set(nullptr, 0);
  if (!users) return;
  std::set<uid_t> all(users->begin(), users->end());
  all.insert({0, ::geteuid()});
  for (const uid_t user : all) set(&user, sizeof user);
}

// Whom the file lets in: the kernel asks that first.
mode_t ModeFor(const LocalUsers& users) { return users && users->empty() ? 0600 : 0666; }

void BindPrivately(zmq::socket_t& socket, const std::string& endpoint) {
  const mode_t mask = ::umask(0177);
  try {
    socket.bind(endpoint);
  } catch (...) {
    ::umask(mask);
    throw;
  }
  ::umask(mask);
}

// The path of the socket's file; empty: it has none.
std::string FileOf(std::string_view endpoint) {
  if (!endpoint.starts_with(kIpc) || endpoint.substr(kIpc.size()).starts_with('@')) return {};
  return std::string(endpoint.substr(kIpc.size()));
}

Status SetMode(const std::string& path, mode_t mode) {
  if (::chmod(path.c_str(), mode) == 0) return Status::Ok();
  return Status(Code::kUnavailable, path + ": its mode cannot be set: " + std::strerror(errno));
}

void Configure(zmq::socket_t& socket, const Listener::Options& options) {
  socket.set(zmq::sockopt::router_mandatory, true);  // an error, not silence, for who is gone
  // Clients give their connections no name. Who took one, maybe another's, would be in its place.
  socket.set(zmq::sockopt::router_handover, false);
  socket.set(zmq::sockopt::maxmsgsize, options.max_part_bytes);
  socket.set(zmq::sockopt::sndhwm, options.send_queue);
  socket.set(zmq::sockopt::rcvhwm, 0);
  socket.set(zmq::sockopt::linger, options.linger_ms);
  // Those that have come when others are to wait (ArrivalLimit) are accepted yet.
  socket.set(zmq::sockopt::backlog, 512);
  socket.set(zmq::sockopt::handshake_ivl, options.handshake_ms);
  socket.set(zmq::sockopt::ipv6, options.endpoint.find('[') != std::string::npos);
  EndDeadConnections(socket, kDeadMs);
  if (options.keys) {
    socket.set(zmq::sockopt::curve_server, true);
    socket.set(zmq::sockopt::curve_secretkey, options.keys->secret_key);
  }
  socket.set(zmq::sockopt::zap_domain, options.zap_domain);
}

// What ZeroMQ refuses before anybody is asked (zap.h).
std::string WhyDenied(int why, bool keys) {
  if (why == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) {
    return keys ? "it comes without keys" : "it comes with keys, and there are none here";
  }
  return why == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
             ? "it has another server key, or what it sends is damaged"
             : "its handshake is damaged";
}

ConnectionGuard::Options GuardOf(const Listener::Options& options) {
  ConnectionGuard::Options guard = options.guard;
  if (options.audit == nullptr) return guard;
  guard.denied = [audit = options.audit, wants = WantedOf(options.zap_domain),
                  keys = options.keys.has_value()](const std::string& from, int why) {
    audit->Refused({.who = {}, .address = from}, nullptr, wants, WhyDenied(why, keys));
  };
  return guard;
}

}  // namespace

Result<std::unique_ptr<Listener>> Listener::Make(zmq::context_t& context, const Options& options) {
  const std::string what = options.key + " = \"" + options.endpoint + "\": ";
  try {
    zmq::socket_t socket(context, zmq::socket_type::router);
    Configure(socket, options);
    std::unique_ptr<Listener> made(new Listener(std::move(socket), options.keys.has_value()));
    Result<std::unique_ptr<ConnectionGuard>> guard =
        ConnectionGuard::Make(context, made->socket_, GuardOf(options));
    if (!guard.ok()) return guard.status();
    made->guard_ = std::move(*guard);
    PRD_RETURN_IF_ERROR(made->Bind(options));
    return made;
  } catch (const zmq::error_t& error) {
    const bool taken = error.num() == EADDRINUSE;
    const char* hint = taken ? "; is another prd running? (ss -ltnp shows who has a port)"
                       : error.num() == ENODEV
                           ? "; allowed is an address or a network interface of this host, or *"
                           : "";
    return Status(taken ? Code::kAlreadyExists : Code::kUnavailable, what + error.what() + hint);
  }
}

Status Listener::Bind(const Options& options) {
  const std::string file = FileOf(options.endpoint);
  const std::string what = options.key + " = \"" + options.endpoint + "\": ";
  if (!file.empty()) PRD_RETURN_IF_ERROR(CheckFile(file, what));
  users_ = options.users;
  Filter(socket_, users_);
  // ZeroMQ takes a name for that of a network interface.
  constexpr std::string_view kLocal = "tcp://localhost:";
  const bool local = options.endpoint.starts_with(kLocal);
  BindPrivately(socket_, local ? "tcp://127.0.0.1:" + options.endpoint.substr(kLocal.size())
                               : options.endpoint);
  endpoint_ = socket_.get(zmq::sockopt::last_endpoint);
  return file.empty() ? Status::Ok() : SetMode(file, ModeFor(users_));
}

// A socket that is bound keeps the users that it was bound with. So another one is bound beside it,
// and gets its name; the first has its connections still, and no new ones come.
Status Listener::LetIn(const LocalUsers& users) {
  const std::string file = FileOf(endpoint_);
  if (file.empty() || users == users_) return Status::Ok();
  const std::string fresh = file + "." + std::to_string(++bound_);
  try {
    Filter(socket_, users);
    BindPrivately(socket_, std::string(kIpc) + fresh);
  } catch (const zmq::error_t& error) {
    return Status(Code::kUnavailable, fresh + ": " + error.what());
  }
  PRD_RETURN_IF_ERROR(SetMode(fresh, ModeFor(users)));
  if (std::rename(fresh.c_str(), file.c_str()) != 0) {
    return Status(Code::kUnavailable, file + " cannot be replaced: " + std::strerror(errno) +
                                          "; users of this host who were added wait for a restart");
  }
  users_ = users;
  return Status::Ok();
}

}  // namespace prd
