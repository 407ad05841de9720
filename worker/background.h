// The one thread of a session: it owns all sockets, drives the protocol (core/session_core.h) and
// the data plane (mesh/mesh.h), and does what the user's thread asks for.
//
// The user's thread holds the store's mutex while `apply` runs. Meanwhile this thread does not read
// or commit the replica; it goes on with heartbeats and answers to peers. When `apply` has
// returned, the call that ran it wakes this thread. This thread waits for the mutex in three cases:
// to drop an incarnation's results, to join a run, and (HasStore) to make a shard of the
// parameters.
#ifndef PRD_WORKER_BACKGROUND_H_
#define PRD_WORKER_BACKGROUND_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "common/io/bell.h"
#include "prd/session.h"
#include "worker/call_desk.h"
#include "worker/controller_socket.h"
#include "worker/core/session_core.h"
#include "worker/line_log.h"
#include "worker/mesh/mesh.h"
#include "worker/mesh/replica_store.h"
#include "worker/outside_calls.h"
#include "worker/replica_home.h"
#include "worker/replica_mean.h"
#include "worker/session_view.h"
#include "worker/transport/zmq_transport.h"

namespace prd {

class Background : private MeshEvents {
 public:
  // Binds the mesh and starts the thread. Options have been checked.
  static Result<std::unique_ptr<Background>> Start(const SessionOptions& options);
  ~Background() override;  // stops the thread; does not say goodbye

  using Reply = CallDesk::Reply;
  using Request = CallDesk::Request;
  // Runs a request on the thread. One at a time: Await has given the reply before the next request.
  void Ask(Request request, bool may_be_early = false);
  // After an early reply, before the next request: asks for the call's end. The next reply has the
  // result that the call had.
  void AskToSettle();
  // The reply, once it is there. nullopt: it was not within that time; negative: for ever.
  std::optional<Reply> Await(std::chrono::nanoseconds wait);

  // From any thread, and from signal handlers.
  void Cancel();
  void LeaveSoon(const char* reason, std::chrono::nanoseconds grace);
  // From any thread.
  void Stop(const std::string& reason);
  void TellLoss(double loss) { outside_.TellLoss(loss); }

  // SessionOptions::accumulates. On the thread, in a request that attaches; so MoveTo, by which the
  // replica is in this memory from now on.
  void SetAccumulates(bool accumulates) { accumulates_ = accumulates; }
  void MoveTo(ReplicaHome home);
  // Makes the thread look at its inputs.
  const Bell& bell() const { return bell_; }

  // How far the worker and its job are. Any thread.
  const SessionView& view() const { return view_; }
  LineLog& log() { return log_; }
  // The thread's, in a request that averages; the caller's after the call.
  ReplicaMean& mean() { return mean_; }

  ReplicaStore* store() { return &store_; }
  const std::vector<std::string>& endpoints() const { return mesh_->endpoints(); }
  const MeshKey& mesh_key() const { return mesh_->key(); }
  const LinkToken& token() const { return token_; }
  const std::string& host() const { return host_; }

 private:
  explicit Background(const SessionOptions& options);
  Status Open(const SessionOptions& options);

  void Run();
  void KeepLease();
  void Turn();
  void Wait();
  void LookAfterMemory(Instant now);
  void TakeRequests(Instant now);
  void ReceiveFromController(Instant now);
  void LookAtConnection(Instant now);
  void Perform(Instant now);
  void PerformExchange(Instant now, const Action& action);
  void EnterRun(const Welcome& welcome);
  void Answer(Reply reply);

  void OnReduced(GroupId group, const Status& status, std::uint64_t sent_bytes,
                 const std::vector<Rank>& unreachable, std::uint64_t digest) override;
  void OnOutOfReach(Rank rank) override;
  void OnIntruder(const std::string& what) override;
  void OnProbed(Rank rank, Incarnation incarnation) override;
  void OnHandedOver(GroupId group, std::uint64_t sent_bytes) override;
  void OnFetched(const Status& status, Iteration iteration) override;
  void OnSampled(const Status& status, const std::shared_ptr<Buffer>& row) override;
  void OnNote(Incarnation from, const PeerMessage& note) override;
  void OnRequest(Incarnation from, prd::Request request, const PeerItem& parcel) override;
  void OnPulled(Ticket ticket, const Status& status, const ShardHeader& enclosure) override;

  // Shared. A device may ring it while the store has memory there, so it is closed last.
  Bell bell_;

  // The thread's own.
  std::string host_;
  LinkToken token_;
  ReplicaStore store_;
  ReplicaMean mean_{&store_};
  zmq::context_t context_;
  ControllerSocket controller_;
  std::optional<Status> refused_;  // by the controller, for good
  SessionCore core_;
  Actions actions_;
  std::unique_ptr<Mesh> mesh_;
  ZmqTransport* transport_ = nullptr;  // the mesh's
  std::vector<zmq::pollitem_t> items_;
  bool failure_seen_ = false;  // of the replica's memory
  bool said_no_nccl_ = false;
  bool accumulates_ = false;
  Instant said_to_come_;

  // Shared.
  LineLog log_;
  CallDesk desk_;
  OutsideCalls outside_;
  SessionView view_;
  std::atomic<bool> stop_{false};

  std::thread thread_;
};

}  // namespace prd

#endif  // PRD_WORKER_BACKGROUND_H_
