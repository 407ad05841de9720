// The one communicator that a worker is making: who has answered its proposal, NCCL's unique id,
// ncclCommInitRankConfig, and who is ready. A leader makes one until all members are ready, another
// member until it is ready itself. Not thread safe.
#ifndef PRD_WORKER_DEVICE_COMM_MAKING_H_
#define PRD_WORKER_DEVICE_COMM_MAKING_H_

#include <optional>
#include <set>

#include "common/base/time.h"
#include "prd/status.h"
#include "worker/device/comm_message.h"
#include "worker/device/comm_post.h"
#include "worker/device/comm_table.h"
#include "worker/device/gpu.h"

namespace prd {

class CommMaking {
 public:
  // How often Poll is to be called meanwhile.
  static constexpr DurationNs kPoll = 20 * kMillisecond;

  // `timeout`: for a member's answer, and for a communicator to become ready. *gpu and *post must
  // outlive it.
  CommMaking(Gpu* gpu, CommPost* post, DurationNs timeout)
      : gpu_(gpu), post_(post), timeout_(timeout) {}

  // From now on this worker is this incarnation. Makes none.
  void Join(Incarnation self);

  bool busy() const { return making_.has_value(); }
  std::optional<CommId> id() const;
  // It has been proposed, or accepted here. REQUIRES: !busy().
  void Begin(Instant now, const Communicator& comm);
  // It is over, if it is being made.
  void End(CommId id);

  // All that follows is about the one that is being made.
  //
  // For its leader, while it is proposed: a member accepts, or declines. Creates it once all have
  // accepted. Returns why it is declined once all have answered.
  std::optional<Refusal> Answer(Instant now, Communicator* comm, Incarnation from,
                                std::optional<Refusal> refusal);
  // The leader's unique id has come.
  void Make(Instant now, Communicator* comm, const Gpu::UniqueId& id);
  // True: it has become ready here. Not ok: it failed, or took too long.
  Result<bool> Poll(Instant now, Communicator* comm);
  // For its leader: this member is ready. True: all are.
  bool IsReady(const Communicator& comm, Incarnation member);
  // For its leader: members that have not answered.
  CommSet Silent(const Communicator& comm) const;

  // Takes NCCL's unique id, if it is there.
  void TakeUniqueId();
  void PollAgain(Instant now);
  std::optional<Instant> poll_at() const { return poll_at_; }

 private:
  struct Making {
    CommId id;
    Instant deadline;
    std::set<Incarnation> answered{};  // leader: members that answered; later, that are ready
    std::optional<Refusal> refused{};
  };

  bool Leads(const Communicator& comm) const { return comm.leader() == self_; }
  bool AllAnswered(const Communicator& comm) const;
  Instant DeadlineFrom(Instant now, const Communicator& comm) const;
  void Create(Instant now, Communicator* comm);

  Gpu* gpu_;
  CommPost* post_;
  const DurationNs timeout_;
  Incarnation self_ = 0;
  std::optional<Making> making_;
  bool id_pending_ = false;
  std::optional<Gpu::UniqueId> unique_id_;  // made, and not used yet
  std::optional<Instant> poll_at_;
};

}  // namespace prd

#endif  // PRD_WORKER_DEVICE_COMM_MAKING_H_
