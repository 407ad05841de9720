// The socket that prdctl talks to: answers admin requests from the history and the pump, each as
// far as its sender's identity may see. A request that waits for a record does not delay other
// requests. Not thread safe.
#ifndef PRD_SERVER_ADMIN_SOCKET_H_
#define PRD_SERVER_ADMIN_SOCKET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "common/base/admin.h"
#include "common/base/time.h"
#include "common/io/curve.h"
#include "prd/status.h"
#include "server/access.h"
#include "server/audit_log.h"
#include "server/history/rocks_history.h"

namespace prd {

class AdminSocket {
 public:
  using StatusOf = std::function<DaemonStatus(Instant now)>;
  // Does what an operator wants, and says what has been done once that is recorded.
  using ActOn = std::function<Result<std::string>(Instant now, const Rights& rights, const Act&)>;

  struct Options {
    std::string endpoint;
    std::optional<CurveKeys> keys;  // for tcp
    bool open_to_users = false;     // as in WorkerSocket
  };

  // The history, *access and *audit must outlive this, and the context's ZAP handler (zap.h) must
  // exist. What *access says may change.
  static Result<std::unique_ptr<AdminSocket>> Make(zmq::context_t& context, const Options& options,
                                                   const RocksHistory* history,
                                                   const Access* access, AuditLog* audit,
                                                   StatusOf status, ActOn act);

  // Answers new requests, and waiting ones if their records are there now or their time is up.
  // Takes a bounded number at a time.
  void Serve(Instant now);

  // The next time at which Serve has something to do.
  std::optional<Instant> NextDeadline() const;

  // As bound: with the port that was given for "*".
  const std::string& endpoint() const { return endpoint_; }
  zmq::socket_ref socket() { return socket_; }

 private:
  struct Waiting {
    std::vector<std::string> route;
    std::string who;  // Peer::who
    ReadRecords read;
    Instant until;
  };

  AdminSocket(zmq::socket_t socket, const RocksHistory* history, const Access* access,
              AuditLog* audit, StatusOf status, ActOn act)
      : socket_(std::move(socket)),
        history_(history),
        access_(access),
        audit_(audit),
        status_(std::move(status)),
        act_(std::move(act)) {}
  void Handle(Instant now, std::vector<std::string> route, const Peer& peer,
              std::string_view bytes);
  Status MaySee(std::string_view who, RunId run) const;
  AdminReply ActAs(Instant now, const Peer& peer, const Rights& rights, Act act);
  AdminReply Runs(const Rights& rights) const;
  AdminReply StatusFor(const Rights& rights, Instant now) const;
  AdminReply Read(std::string_view who, const ReadRecords& read) const;
  void Reply(const std::vector<std::string>& route, const AdminReply& reply);

  zmq::socket_t socket_;
  std::string endpoint_;
  const RocksHistory* history_;
  const Access* access_;
  AuditLog* audit_;
  StatusOf status_;
  ActOn act_;
  std::vector<Waiting> waiting_;
};

}  // namespace prd

#endif  // PRD_SERVER_ADMIN_SOCKET_H_
