#include "worker/transport/listen.h"

#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

#include "common/io/secret.h"
#include "common/io/system_error.h"

namespace prd {
namespace {

constexpr int kMostPort = 65535;

struct Ports {
  int first = 0;
  int last = 0;
};

std::optional<int> PortOf(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port < 1 || port > kMostPort) {
    return std::nullopt;
  }
  return port;
}

Result<Ports> PortsOf(const std::string& text) {
  const std::size_t dash = text.find('-');
  const std::optional<int> first = PortOf(std::string_view(text).substr(0, dash));
  const std::optional<int> last =
      dash == std::string::npos ? first : PortOf(std::string_view(text).substr(dash + 1));
  if (first && last && *first <= *last) return Ports{*first, *last};
  return Status(Code::kInvalidArgument, "mesh_ports: found \"" + text +
                                            "\", allowed is FIRST-LAST, of ports from 1 to 65535, "
                                            "such as 40000-40100 (PRD_MESH_PORTS)");
}

// An IPv6 address stands in brackets where a port follows.
std::string Bracketed(const std::string& host) {
  const bool bare = host.find(':') != std::string::npos && host.front() != '[';
  return bare ? "[" + host + "]" : host;
}

// What peers dial: `announce`, with the port that is bound where it names none.
Result<std::string> Announced(const std::string& announce, const std::string& bound) {
  if (announce.empty()) return bound;
  const std::size_t colon = announce.rfind(':');
  const bool one = colon != std::string::npos && announce.find(':') == colon;
  const bool after_bracket = colon != std::string::npos && colon > 0 && announce[colon - 1] == ']';
  std::string host = announce;
  std::string port = bound.substr(bound.rfind(':') + 1);
  if (one || after_bracket) {
    host = announce.substr(0, colon);
    port = announce.substr(colon + 1);
  }
  constexpr std::size_t kLongestHost = 244;  // an endpoint has 256 bytes at most (Hello)
  if (host.empty() || host.size() > kLongestHost ||
      host.find_first_of(" /*") != std::string::npos || !PortOf(port)) {
    return Status(Code::kInvalidArgument,
                  "announce_address: found \"" + announce +
                      "\", allowed is HOST or HOST:PORT, with a HOST of 244 bytes at most "
                      "(PRD_ANNOUNCE_ADDRESS)");
  }
  return "tcp://" + Bracketed(host) + ":" + port;
}

std::string RandomName() {
  constexpr int kWords = 2;
  std::string name = "ipc://@prd-";
  for (int word = 0; word < kWords; ++word) {
    const std::uint64_t bits = RandomBits();
    for (int shift = 60; shift >= 0; shift -= 4) name += "0123456789abcdef"[bits >> shift & 15];
  }
  return name;
}

// An abstract socket: no file is left behind, however the process ends.
Status BindIpc(zmq::socket_t* socket, Endpoints* endpoints) {
  const uid_t user = geteuid();
  if (zmq_setsockopt(socket->handle(), ZMQ_IPC_FILTER_UID, &user, sizeof user) != 0) {
    return Status(Code::kInternal, "this libzmq cannot tell users apart on ipc");
  }
  const std::string name = RandomName();
  socket->bind(name);
  endpoints->told.push_back(name);
  endpoints->bound.push_back(name);
  return Status::Ok();
}

Status BindTcp(const Listening& listening, zmq::socket_t* socket, Endpoints* endpoints) {
  const std::string where = "tcp://" + Bracketed(listening.address) + ":";
  socket->set(zmq::sockopt::ipv6, listening.address.find(':') != std::string::npos);
  if (listening.ports.empty()) {
    socket->bind(where + "*");
  } else {
    const Result<Ports> ports = PortsOf(listening.ports);
    if (!ports.ok()) return ports.status();
    int port = ports->first;
    while (zmq_bind(socket->handle(), (where + std::to_string(port)).c_str()) != 0) {
      if (zmq_errno() != EADDRINUSE) throw zmq::error_t();
      if (++port <= ports->last) continue;
      return Status(Code::kResourceExhausted, "all ports of " + listening.ports + " on " +
                                                  listening.address +
                                                  " are taken (PRD_MESH_PORTS)");
    }
  }
  endpoints->bound.push_back(socket->get(zmq::sockopt::last_endpoint));
  const Result<std::string> announced = Announced(listening.announce, endpoints->bound.back());
  if (!announced.ok()) return announced.status();
  endpoints->told.push_back(*announced);
  return Status::Ok();
}

}  // namespace

Result<Endpoints> Listen(const Listening& listening, zmq::socket_t* socket) {
  Endpoints endpoints;
  try {
    PRD_RETURN_IF_ERROR(BindIpc(socket, &endpoints));
    if (!listening.address.empty()) {
      PRD_RETURN_IF_ERROR(BindTcp(listening, socket, &endpoints));
    }
  } catch (const zmq::error_t& error) {
    const bool tcp = !endpoints.bound.empty();
    return SystemError(Code::kInvalidArgument,
                       tcp ? "address: found \"" + listening.address +
                                 "\", needed is a numeric address of this host (PRD_ADDRESS)"
                           : "listening for peers on this host",
                       error.num());
  }
  return endpoints;
}

void ListenAgain(const Endpoints& endpoints, zmq::socket_t* socket,
                 const std::function<void()>& change) {
  for (const std::string& endpoint : endpoints.bound) socket->unbind(endpoint);
  change();
  constexpr timespec kPause{0, 1'000'000};  // the system lets go of them a moment later
  constexpr int kTries = 2000;
  for (const std::string& endpoint : endpoints.bound) {
    for (int tries = 1; zmq_bind(socket->handle(), endpoint.c_str()) != 0; ++tries) {
      if (zmq_errno() != EADDRINUSE || tries == kTries) throw zmq::error_t();
      nanosleep(&kPause, nullptr);
    }
  }
}

}  // namespace prd
