// What prdctl and its page talk to: the admin socket, served beside the daemon's thread. So whoever
// looks at a history holds up no worker. It has a thread, a ZeroMQ context and a ZAP handler of its
// own, all of less priority (nice) than the daemon's.
//
// Only what needs the daemon itself goes to its thread: its status, and what operators do.
//
// A client has one request at a time. The answers that it does not read are two at most, of 1 MiB.
// An identity's answers have a rate in bytes (`max_read_bytes_per_s`): whoever is over it waits,
// and nobody waits for it.
#ifndef PRD_SERVER_ADMIN_SERVER_H_
#define PRD_SERVER_ADMIN_SERVER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "common/base/admin.h"
#include "common/base/time.h"
#include "common/io/bell.h"
#include "common/io/connection_guard.h"
#include "common/io/curve.h"
#include "prd/status.h"
#include "server/access.h"
#include "server/admin_answers.h"
#include "server/audit_log.h"
#include "server/history/rocks_history.h"
#include "server/listener.h"
#include "server/zap.h"

namespace prd {

class AdminServer {
 public:
  // Answers, in the daemon's thread, what is no question to the history: GetStatus with the status
  // as operators see it; Act and Prune once they are done.
  using AnswerHere = std::function<AdminReply(const Rights& rights, const AdminRequest& request)>;

  struct Options {
    std::string endpoint;
    std::optional<CurveKeys> keys;  // for tcp
    std::size_t max_connections = 128;
    std::size_t max_per_peer = 16;  // of a host, or of a user over ipc but prd's own
  };

  // *history and *audit must outlive it.
  static Result<std::unique_ptr<AdminServer>> Make(const Options& options,
                                                   const RocksHistory* history, Access access,
                                                   AuditLog* audit);
  ~AdminServer();

  // ---- in the daemon's thread ----

  // Readable while Serve has something to do.
  int descriptor() const { return asked_.fd(); }
  // Answers what needs the daemon, a bounded number at a time.
  void Serve(const AnswerHere& answer);
  // From now on, also for connections that there are.
  void SetAccess(Access access);
  void Stop();  // ends the thread; what has been done is answered before

  // ---- in any thread ----

  // As bound: with the port that was given for "*".
  const std::string& endpoint() const { return endpoint_; }
  ConnectionGuard::Counters connections() const { return listener_->guard().counters(); }
  std::uint64_t denied() const { return zap_->denied(); }

 private:
  struct Client {  // with a request that is not answered yet
    std::vector<std::string> route;
    std::string who;      // Peer::who
    std::string address;  // Peer::address
    AdminRequest request;
    std::int64_t until_ns = 0;  // waits for a record so long
    bool asked = false;         // the daemon's thread has it
  };
  struct Errand {  // for the daemon's thread
    std::string client;
    Rights rights;
    AdminRequest request;
  };
  struct Done {
    std::string client;
    AdminReply reply;
  };
  struct Bucket {  // bytes that an identity may read
    double left = 0;
    std::int64_t at_ns = 0;
  };

  AdminServer(const RocksHistory* history, Access access, AuditLog* audit)
      : answers_(history), audit_(audit), wanted_(access), access_(std::move(access)) {}
  Status Listen(const Options& options);
  void Run(const Options& options, std::promise<Status>* listening);
  void Turn();
  void Wait();
  void TakeAccess();
  void TakeRequests();
  Status Room(const std::string& name, std::string_view who) const;
  void TakeDone();
  bool AnswerOne();
  bool Ready(const Client& client, std::int64_t now_ns);
  void Answer(const std::string& name, Client* client);
  Bucket& BucketOf(const Rights& rights, std::int64_t now_ns);
  std::size_t Reply(const std::vector<std::string>& route, const AdminReply& reply);

  const AdminAnswers answers_;
  AuditLog* const audit_;
  Bell asked_;  // the daemon's thread
  Bell woken_;  // this one
  std::atomic<bool> stopping_ = false;
  std::string endpoint_;

  std::mutex mutex_;  // guards what follows
  std::deque<Errand> errands_;
  std::deque<Done> done_;
  Access wanted_;

  // The thread's alone from here on.
  Access access_;
  zmq::context_t context_;
  std::unique_ptr<ZapHandler> zap_;
  std::unique_ptr<Listener> listener_;
  std::map<std::string, Client> clients_;  // by routing id
  std::deque<std::string> order_;          // of them, as they came
  std::map<std::string, Bucket> buckets_;  // by identity
  std::thread thread_;
};

}  // namespace prd

#endif  // PRD_SERVER_ADMIN_SERVER_H_
