// The NCCL communicators of one worker, and how their members agree about them.
//
// All members make, use and give up a communicator together, and no member may assume what the
// others have. The communicator's leader is its member with the lowest rank. Messages of the leader
// reach each member in the order in which the leader sent them:
//
//   leader                                    member
//   kPropose(comm, members)             ->    has it room? takes it, or gives another one up
//                                       <-    kAccept or kDecline (no device here, no NCCL, busy,
//                                       no room)
//   kCreate(comm, unique id), if all accept
//             (ncclCommInitRankConfig on all members, in the background)
//                                       <-    kReady(the newest group begun here) or kBroken
//   kUse(comm, the newest of those), once all are ready: of groups after that one
//   kRetire(comm): no further group uses it
//
// How a group's members agree on the way that it is reduced: way_agreement.h. When a communicator
// is made, and which one goes where there is no room: comm_demand.h. A worker makes one at a time
// (comm_making.h). A busy worker declines, and the leader tries again after a later group. Each
// communicator costs memory (NCCL issue 964: 544 to 688 MB on 8 GPUs) and time (issue 534), so a
// worker has at most Options::limit. At the limit a worker gives one up, or declines the new one.
//
// A cover is given up in two steps, since its groups have many leaders. Each member tells all
// others that it leads no further group on the cover (kRetired), and keeps it until all have said
// so.
//
// A communicator is broken when a member failed, was aborted or is gone (its connection broke, or
// its incarnation changed). The worker that notices tells all members, and each aborts the
// communicator once the reduction on it has ended there. Other communicators go on.
//
// Messages lost with a connection are repeated: any member asks the communicator's leader now and
// then (kAsk), which repeats its message, or says that it does not have it (kGone).
//
// One thread; no clock, no sockets: messages go in and out as values.
#ifndef PRD_WORKER_DEVICE_COMMUNICATORS_H_
#define PRD_WORKER_DEVICE_COMMUNICATORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "worker/device/comm_demand.h"
#include "worker/device/comm_making.h"
#include "worker/device/comm_message.h"
#include "worker/device/comm_post.h"
#include "worker/device/comm_table.h"
#include "worker/device/gpu.h"
#include "worker/device/way_agreement.h"

namespace prd {

class Communicators {
 public:
  static constexpr std::size_t kLimit = 64;
  static constexpr GroupId kHalfLife = CommDemand::kHalfLife;

  struct Options {
    std::size_t limit = kLimit;         // communicators here at most; >= 1
    std::uint32_t recurs = 2;           // groups of the same members from which on one is worth it
    std::size_t cover_members = 256;    // no larger one is made; <= CommMessage::kMaxMembers
    DurationNs timeout = 30 * kSecond;  // for a member's answer, and for one to become ready
  };
  using Outgoing = CommPost::Outgoing;
  using Choice = WayAgreement::Choice;
  struct Use {
    Gpu::Comm comm = nullptr;
    std::vector<int> ranks;  // in the communicator, by position in the group
  };

  // `gpu` null: a worker without a device, which declines.
  Communicators(Gpu* gpu, const Options& options);

  // From now on this worker is this incarnation in this run; kNoRun: in none. Aborts all, and sends
  // nothing: peers see the connections break, or another incarnation in this one's place.
  void Join(Incarnation self, RunId run);

  // A group begins here; ids ascend. Its leader decides, and tells the members if any may wait.
  // nullopt: this member waits for the leader; after any later call Told may have the choice. One
  // group at a time: another Begin is the End of the group before, which failed.
  std::optional<Choice> Begin(Instant now, const Group& group);
  std::optional<Choice> Told(const Group& group) const { return ways_.Told(group.id); }
  // The group is over here. If it succeeded, its set counts towards a communicator; if not, its
  // communicator is broken.
  void End(Instant now, const Group& group, bool ok);
  // nullopt: there is no such communicator that is ready, it is broken, or it does not have all
  // these members.
  std::optional<Use> Find(CommId id, const Group& group) const;
  // Around a reduction that uses the communicator: only Break aborts it between the two calls.
  void Hold(CommId id);
  void Release(CommId id);
  // Why one that is held is broken; empty: it is not.
  std::string WhyBroken(CommId id) const;

  // The reduction on it was given up: aborts the communicator here and tells all its members.
  void Break(Instant now, CommId id, const std::string& why);

  // From a worker of this run.
  void OnMessage(Instant now, Incarnation from, const CommMessage& message);
  // The peer's connection broke.
  void OnLost(Instant now, Incarnation peer);
  // The messages to send, in this order.
  std::vector<Outgoing> TakeOutgoing() { return post_.Take(); }
  // The members of all communicators here: their connections are to be watched. The version changes
  // when they do.
  std::vector<GroupMember> Peers() const { return comms_.Peers(self_); }
  std::uint64_t peers_version() const { return comms_.peers_version(); }

  // Looks after what is being made.
  void Service(Instant now);
  std::optional<Instant> NextDeadline() const;

  struct Counters {
    std::uint64_t made = 0;      // became usable here
    std::uint64_t broken = 0;    // failed, or were broken by a member
    std::uint64_t given_up = 0;  // for room
    std::uint64_t declined = 0;  // proposals, by this worker
    std::size_t here = 0;        // now, those being made included
    bool making = false;         // one is being made, now
  };
  Counters counters() const;
  // Ids and members of the communicators that this worker takes for usable, by id.
  std::map<CommId, CommSet> Usable() const { return comms_.Usable(); }

 private:
  bool CanMake() const { return gpu_ != nullptr && run_ != kNoRun && gpu_->nccl().ok(); }
  bool Leads(const Communicator& comm) const { return comm.leader() == self_; }
  std::optional<CommId> Leave(bool ok);
  void TryCover(Instant now);
  void Propose(Instant now, const CommSet& set, bool cover);
  bool MakeRoom(Instant now, const CommSet& set, bool cover);
  Communicator* Add(Instant now, CommId id, const CommSet& set, bool cover);
  void Answered(Instant now, Communicator* comm, Incarnation from, std::optional<Refusal> refusal);
  void PollMaking(Instant now);
  void Ready(Instant now, Communicator* comm);
  void ReadyAt(Instant now, Communicator* comm, Incarnation member);
  void BecomesUsable(Instant now, Communicator* comm);

  void OnProposal(Instant now, Incarnation from, const CommMessage& message);
  void OnDecline(Instant now, Incarnation from, const CommMessage& message);
  void OnAsk(Incarnation from, const CommMessage& message);
  void OnGone(Instant now, Incarnation from, Communicator* comm);
  void OnOfOne(Instant now, Incarnation from, const CommMessage& message);
  void Check(Instant now, Communicator* comm);
  void Retire(Instant now, Communicator* comm);
  void OnRetire(Instant now, Communicator* comm);
  void Quit(Instant now, Communicator* comm);
  void BreakOne(Communicator* comm, const std::string& why, const CommSet& gone, bool tell);
  void Abort(const Communicator& comm);
  void Sweep();

  Gpu* gpu_;
  const Options options_;
  Incarnation self_ = 0;
  RunId run_ = kNoRun;
  std::uint64_t numbers_ = 0;
  CommTable comms_;
  CommPost post_;
  CommDemand demand_;
  CommMaking making_;
  WayAgreement ways_;
  Counters counters_;
};

}  // namespace prd

#endif  // PRD_WORKER_DEVICE_COMMUNICATORS_H_
