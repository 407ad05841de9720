// What this worker copies of its peers, and they of it: replicas, rounds' results, and parameters
// for an average. One copy of a replica or result is on its way here at a time, and one of
// parameters beside it; any number of peers may copy from here.
//
// Not thread safe.
#ifndef PRD_WORKER_MESH_COPIES_H_
#define PRD_WORKER_MESH_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/mesh/directory.h"
#include "worker/mesh/fetch.h"
#include "worker/mesh/fetcher.h"
#include "worker/mesh/frame.h"
#include "worker/mesh/peers.h"
#include "worker/mesh/replica_store.h"

namespace prd {

class Copies {
 public:
  // The pointers outlive it. Rows are sent in chunks of so many bytes.
  Copies(ReplicaStore* store, Peers* peers, const Directory* directory, Buffers* buffers,
         std::size_t chunk_bytes);

  // The job's plan and time limit from now on. Peers' requests stay; ForgetPeers ends them.
  void Join(const Plan& plan, DurationNs timeout);
  void ForgetPeers() { server_.Clear(); }
  void ForgetPeer(Incarnation member) { server_.ForgetPeer(member); }
  // Nothing is on its way here, and there is no result.
  void Clear() {
    fetching_.reset();
    sampling_.reset();
    newest_ = {};
  }
  // The store has other memory.
  void ForgetMemory() { server_.Forget(); }

  // ---- to here ----
  // Mesh::StartFetch and StartSample. REQUIRES: none of its kind is on its way.
  void StartFetch(Instant now, Fetcher::Wanted wanted);
  void StartSample(Instant now, const GroupMember& source);
  void CancelFetch() { fetching_.reset(); }
  void CancelSample() { sampling_.reset(); }
  bool idle() const { return !fetching_ && !sampling_; }

  // A copy that is over.
  struct Fetched {
    Status status;
    Iteration iteration = 0;  // as MeshEvents::OnFetched
    bool replica = false;     // ok, and not a round's result
  };
  struct Sampled {
    Status status;
    std::shared_ptr<Buffer> row;
  };
  // Watches the source: `give_up` is told of an endpoint that does not answer. Commits what has
  // come, if the store's mutex is free.
  using GiveUp = std::function<void(const std::string& endpoint)>;
  std::optional<Fetched> TakeFetched(Instant now, const GiveUp& give_up);
  std::optional<Sampled> TakeSampled(Instant now, const GiveUp& give_up);

  // ---- from here ----
  // That member may copy the replica once.
  void Order(Instant now, Incarnation member) { server_.Order(now, member); }
  // The newest result of a kRound, which its members may copy until the next reduction starts.
  void SetResult(RoundResult result) { newest_ = std::move(result); }
  void ServeWaiting(Instant now) { server_.ServeWaiting(now); }
  void Service(Instant now) {
    if (!server_.idle()) server_.Service(now, timeout_);
  }
  void SayToCome(Instant now) { server_.SayToCome(now); }
  bool Arriving() const { return server_.Arriving(); }

  // ---- both ----
  // kFetch, kReplica, kChunk or kGone. False: it is of no use.
  bool OnFrame(Instant now, const FrameHeader& header, SharedBytes payload);
  // A kPong about a copy. False: it was not asked for.
  bool OnPong(Instant now, const FrameHeader& header);
  // Whether a kPing is about a request that is not answered yet.
  bool IsAsked(Instant now, const FrameHeader& ping) { return server_.IsAsked(now, ping); }
  void OnLost(const std::string& endpoint);
  // Keeps connections in use that a rest would stop watching.
  void Hold() { server_.Hold(); }
  std::optional<Instant> NextServed() const { return server_.NextDeadline(timeout_); }
  std::optional<Instant> NextDeadline() const;

 private:
  void Start(Instant now, Fetcher::Wanted wanted, std::optional<Fetcher>* slot);
  void KeepNewest();
  Iteration Commit();

  ReplicaStore* store_;
  Peers* peers_;
  const Directory* directory_;
  Buffers* buffers_;
  Plan plan_;
  DurationNs timeout_ = 0;
  ReplicaServer server_;
  RoundResult newest_;
  std::optional<Fetcher> fetching_;
  std::optional<Fetcher> sampling_;
  std::uint64_t started_ = 0;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_COPIES_H_
