// Authentication (ZeroMQ RFC 27): answers libzmq's request for every new connection, and gives the
// connection the name of its other end (access.h). Without this handler everybody would be let in.
#ifndef PRD_SERVER_ZAP_H_
#define PRD_SERVER_ZAP_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>
#include <zmq.hpp>

#include "prd/status.h"
#include "server/access.h"
#include "server/audit_log.h"

namespace prd {

// The domain of the sockets that it guards.
inline constexpr std::string_view kWorkersDomain = "prd workers";
inline constexpr std::string_view kAdminDomain = "prd admin";
// What who connects there wants, for the audit log.
inline std::string WantedOf(std::string_view domain) {
  return domain == kWorkersDomain ? "connect as a worker" : "connect as prdctl";
}

class ZapHandler {
 public:
  // One per context, before any socket that it is to guard. Both must outlive it; what *access
  // says may change, and counts for connections that are made from then on.
  static Result<std::unique_ptr<ZapHandler>> Make(zmq::context_t& context, const Access* access,
                                                  AuditLog* audit);

  // Answers the waiting requests.
  void Serve();

  zmq::socket_ref socket() { return socket_; }
  std::uint64_t denied() const { return denied_; }  // in any thread

 private:
  ZapHandler(zmq::socket_t socket, const Access* access, AuditLog* audit)
      : socket_(std::move(socket)), access_(access), audit_(audit) {}
  std::string Admit(const std::vector<std::string>& question);

  zmq::socket_t socket_;
  const Access* access_;
  AuditLog* audit_;
  std::atomic<std::uint64_t> denied_ = 0;
};

}  // namespace prd

#endif  // PRD_SERVER_ZAP_H_
