#include "server/zap.h"

#include <array>
#include <utility>

#include "common/io/clock.h"

namespace prd {

Result<std::unique_ptr<ZapHandler>> ZapHandler::Make(zmq::context_t& context,
                                                     const std::vector<std::string>& keys) {
  try {
    zmq::socket_t socket(context, zmq::socket_type::rep);
    socket.set(zmq::sockopt::linger, 0);
    socket.bind("inproc://zeromq.zap.01");
    std::unique_ptr<ZapHandler> handler(new ZapHandler(std::move(socket)));
    handler->SetKeys(keys);
    return handler;
  } catch (const zmq::error_t& error) {
    return Status(Code::kInternal, std::string("the ZAP handler cannot start: ") + error.what());
  }
}

void ZapHandler::SetKeys(const std::vector<std::string>& keys) {
  keys_.clear();
  for (const std::string& key : keys) {
    std::array<std::uint8_t, 32> raw;
    if (::zmq_z85_decode(raw.data(), key.c_str()) == nullptr) continue;
    keys_.emplace(reinterpret_cast<const char*>(raw.data()), raw.size());
  }
}

void ZapHandler::Serve() {
  zmq::message_t part;
  while (socket_.recv(part, zmq::recv_flags::dontwait)) {
    std::vector<std::string> question{part.to_string()};
    while (socket_.get(zmq::sockopt::rcvmore)) {
      (void)socket_.recv(part, zmq::recv_flags::none);
      question.push_back(part.to_string());
    }
    const bool allowed = Answer(question);
    if (!allowed) ++denied_;
    // version, request id, status, text, user id, metadata
    const std::array<std::string, 6> answer = {"1.0",
                                               question.size() > 1 ? question[1] : "",
                                               allowed ? "200" : "400",
                                               allowed ? "OK" : "this key is not authorized",
                                               "",
                                               ""};
    for (std::size_t i = 0; i < answer.size(); ++i) {
      (void)socket_.send(zmq::buffer(answer[i]),
                         i + 1 < answer.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }
}

// question: version, request id, domain, address, identity, mechanism, credentials.
bool ZapHandler::Answer(const std::vector<std::string>& question) {
  if (question.size() < 6 || question[0] != "1.0") return false;
  if (question[2] != kZapDomain) return question[5] == "NULL";  // the admin socket: its file guards
  if (question[5] == "CURVE" && question.size() == 7 && keys_.contains(question[6])) return true;
  std::uint64_t skipped = 0;
  if (denied_log_.Allow(MonotonicNs(), &skipped)) {
    spdlog::warn(
        "refused a connection from {}: its key is not authorized ({} more since the last "
        "such line)",
        question[3], skipped);
  }
  return false;
}

}  // namespace prd
