#include "server/bind.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace prd {
namespace {

constexpr std::string_view kIpc = "ipc://";

// ZeroMQ takes a socket file away from whoever has it; so ask first.
Status CheckFile(const std::string& path, const std::string& what) {
  const std::size_t slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash);
  if (slash != 0 && ::access(parent.c_str(), W_OK | X_OK) != 0) {
    return Status(errno == ENOENT ? Code::kNotFound : Code::kUnavailable,
                  what + "no socket can be made in " + parent + ": " + std::strerror(errno));
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

}  // namespace

Result<std::string> Bind(zmq::socket_t& socket, const std::string& endpoint,
                         const std::string& key) {
  const std::string what = key + " = \"" + endpoint + "\": ";
  const bool ipc = endpoint.starts_with(kIpc);
  if (ipc) PRD_RETURN_IF_ERROR(CheckFile(endpoint.substr(kIpc.size()), what));
  const mode_t mask = ::umask(0177);
  try {
    socket.bind(endpoint);
    ::umask(mask);
    return socket.get(zmq::sockopt::last_endpoint);
  } catch (const zmq::error_t& error) {
    ::umask(mask);
    const bool taken = error.num() == EADDRINUSE;
    return Status(taken ? Code::kAlreadyExists : Code::kUnavailable,
                  what + error.what() +
                      (taken ? "; is another prd running? (ss -ltnp shows who has a port)" : ""));
  }
}

Status OpenToUsers(const std::string& endpoint, bool open) {
  if (!endpoint.starts_with(kIpc)) return Status::Ok();
  const std::string path = endpoint.substr(kIpc.size());
  if (::chmod(path.c_str(), open ? 0666 : 0600) == 0) return Status::Ok();
  return Status(Code::kUnavailable, path + ": its mode cannot be set: " + std::strerror(errno));
}

}  // namespace prd
