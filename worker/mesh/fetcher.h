// One copy of a peer's replica, or of a round's result, on its way here: asks the source for it,
// takes its frames, and asks whether the source is still there when it is silent.
#ifndef PRD_WORKER_MESH_FETCHER_H_
#define PRD_WORKER_MESH_FETCHER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/mesh/fetch.h"
#include "worker/mesh/frame.h"
#include "worker/mesh/peers.h"
#include "worker/mesh/replica_store.h"
#include "worker/mesh/silence.h"

namespace prd {

class Fetcher {
 public:
  struct Wanted {
    GroupMember source;
    IncomingReplica::Wanted what;  // a result: of a kRound that failed here
    bool contributed = false;      // the outbox was part of that
  };
  struct Context {
    ReplicaStore* store = nullptr;
    Peers* peers = nullptr;
    Incarnation self = 0;
    RunId run = kNoRun;
    Plan plan;
    DurationNs timeout = 0;
  };

  // `number`: of this fetch; no other one of this worker has it. The context's pointers outlive it.
  Fetcher(const Context& context, Instant now, Wanted wanted, std::uint64_t number);

  // Asks for it. `out`: the source is out of the run.
  void Request(bool out);
  // A kReplica, kChunk or kGone of this run. False: it is of no use.
  bool OnFrame(Instant now, const FrameHeader& header, SharedBytes payload);
  // A kPong about a fetch. False: it is about another one, or was not asked for.
  bool OnPong(Instant now, const FrameHeader& header);
  void OnLost(const std::string& endpoint);
  // Asks the source if it was silent for long, or fails. Then the source's endpoint is returned if
  // the connection there is to be given up.
  std::optional<std::string> Watch(Instant now);
  // When Watch has something to do; nullopt: all has come.
  std::optional<Instant> NextDeadline() const;

  // It has failed, or all has come.
  bool over() const { return !failure_.ok() || replica_.Complete(); }
  const Status& failure() const { return failure_; }
  const Wanted& wanted() const { return wanted_; }
  IncomingReplica& replica() { return replica_; }

 private:
  bool Is(const FrameHeader& header) const;

  const Context context_;
  const Wanted wanted_;
  const std::uint64_t number_;
  std::string endpoint_;
  IncomingReplica replica_;
  Silence silence_;
  Status failure_;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_FETCHER_H_
