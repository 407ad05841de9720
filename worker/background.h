// The one thread of a session: it owns all sockets, drives the protocol (core/session_core.h) and
// the data plane (mesh/mesh.h), and does what the user's thread asks for.
//
// It waits for the user's thread in one place: whoever commits a result, or drops an incarnation's,
// takes the store's mutex, which the user's thread holds while `apply` runs. So a round that
// completes then is committed, and heartbeats go on, when `apply` returns.
#ifndef PRD_WORKER_BACKGROUND_H_
#define PRD_WORKER_BACKGROUND_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "prd/session.h"
#include "worker/core/session_core.h"
#include "worker/mesh/mesh.h"
#include "worker/mesh/replica_store.h"

namespace prd {

class Background : private MeshEvents {
 public:
  // Binds the mesh and starts the thread. Options have been checked.
  static Result<std::unique_ptr<Background>> Start(const SessionOptions& options);
  ~Background() override;  // stops the thread; does not say goodbye

  // What a call came to: done, or the user's thread is to run `apply` first.
  struct Reply {
    std::optional<ApplyNow> apply;
    bool rounds = false;  // apply's: kEagerGradients, the inbox is taken first
    CallDone done;        // when there is no apply
  };
  // Runs a request on the thread, and waits until the call it makes is done. One at a time.
  using Request = std::function<void(SessionCore* core, Instant now, Actions* out)>;
  Reply Call(Request request);

  // From any thread, and from signal handlers.
  void Cancel();

  ReplicaStore* store() { return &store_; }
  bool interrupted() const { return interrupted_.load(std::memory_order_relaxed); }
  const std::vector<std::string>& endpoints() const { return mesh_->endpoints(); }
  const std::string& host() const { return host_; }
  Welcome welcome() const;  // the newest; rank -1 before the first

 private:
  explicit Background(const SessionOptions& options);
  Status Open(const SessionOptions& options);
  Status Connect(const SessionOptions& options);

  void Run();
  void Turn();
  void Wait();
  void TakeRequests(Instant now);
  void ReceiveFromController(Instant now);
  void Perform(Instant now);
  void SendEnvelope(const WorkerEnvelope& envelope);
  void Answer(Reply reply);
  void Fail(const std::string& what);

  void OnReduced(GroupId group, const Status& status, std::uint64_t sent_bytes) override;
  void OnFetched(const Status& status, Iteration iteration) override;

  // The thread's own.
  std::string host_;
  ReplicaStore store_;
  zmq::context_t context_;
  zmq::socket_t controller_;
  bool blocked_ = false;  // the controller's connection is away
  SessionCore core_;
  Actions actions_;
  std::unique_ptr<Mesh> mesh_;
  std::vector<zmq::pollitem_t> items_;
  bool cancel_seen_ = false;

  // Shared.
  int wake_ = -1;  // eventfd
  std::atomic<bool> cancel_{false};
  std::atomic<bool> stop_{false};
  std::atomic<bool> interrupted_{false};
  mutable std::mutex mutex_;
  std::condition_variable answered_;
  Request request_;
  std::optional<Reply> reply_;
  Welcome welcome_;
  std::string failure_;  // the thread is gone

  std::thread thread_;
};

}  // namespace prd

#endif  // PRD_WORKER_BACKGROUND_H_
