// The socket that prdctl talks to: answers admin requests from the history and the pump. A request
// that waits for a record does not delay other requests. Not thread safe.
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
#include "prd/status.h"
#include "server/history/rocks_history.h"

namespace prd {

class AdminSocket {
 public:
  using StatusOf = std::function<DaemonStatus(Instant now)>;

  // The history must outlive this.
  static Result<std::unique_ptr<AdminSocket>> Make(zmq::context_t& context,
                                                   const std::string& endpoint,
                                                   const RocksHistory* history, StatusOf status);

  // Answers new requests, and waiting ones if their records are there now or their time is up.
  // Takes a bounded number at a time.
  void Serve(Instant now);

  // The next time at which Serve has something to do.
  std::optional<Instant> NextDeadline() const;

  zmq::socket_ref socket() { return socket_; }

 private:
  struct Waiting {
    std::vector<std::string> route;
    ReadRecords read;
    Instant until;
  };

  AdminSocket(zmq::socket_t socket, const RocksHistory* history, StatusOf status)
      : socket_(std::move(socket)), history_(history), status_(std::move(status)) {}
  void Handle(Instant now, std::vector<std::string> route, std::string_view bytes);
  AdminReply Read(const ReadRecords& read) const;
  void Reply(const std::vector<std::string>& route, const AdminReply& reply);

  zmq::socket_t socket_;
  const RocksHistory* history_;
  StatusOf status_;
  std::vector<Waiting> waiting_;
};

}  // namespace prd

#endif  // PRD_SERVER_ADMIN_SOCKET_H_
