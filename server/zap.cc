#include "server/zap.h"

#include <array>
#include <utility>

namespace prd {

Result<std::unique_ptr<ZapHandler>> ZapHandler::Make(zmq::context_t& context, const Access* access,
                                                     AuditLog* audit) {
  try {
    zmq::socket_t socket(context, zmq::socket_type::rep);
    socket.set(zmq::sockopt::linger, 0);
    socket.bind("inproc://zeromq.zap.01");
    return std::unique_ptr<ZapHandler>(new ZapHandler(std::move(socket), access, audit));
  } catch (const zmq::error_t& error) {
    return Status(Code::kInternal, std::string("the ZAP handler cannot start: ") + error.what());
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
    const std::string who = Admit(question);
    if (who.empty()) ++denied_;
    // version, request id, status, text, user id, metadata
    const std::array<std::string, 6> answer = {"1.0",
                                               question.size() > 1 ? question[1] : "",
                                               who.empty() ? "400" : "200",
                                               who.empty() ? "permission denied" : "OK",
                                               who,
                                               ""};
    for (std::size_t i = 0; i < answer.size(); ++i) {
      (void)socket_.send(zmq::buffer(answer[i]),
                         i + 1 < answer.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }
}

// question: version, request id, domain, address, identity, mechanism, credentials. Gives the name
// of who is let in.
std::string ZapHandler::Admit(const std::vector<std::string>& question) {
  if (question.size() < 6 || question[0] != "1.0") return {};
  const std::string& domain = question[2];
  const bool workers = domain == kWorkersDomain;
  if (!workers && domain != kAdminDomain) return {};
  const std::string& address = question[3];
  std::string who = NameOf(question[5], question.size() > 6 ? question[6] : "", address);
  const Rights* rights = who.empty() ? nullptr : access_->Find(who);
  if (rights != nullptr && (rights->trains || !workers)) return who;
  audit_->Refused({.who = who, .address = address}, rights, WantedOf(domain),
                  rights != nullptr         ? "its role is to look, not to train"
                  : who.starts_with("key:") ? "its key is not authorized"
                                            : "this user is not authorized");
  return {};
}

}  // namespace prd
