// The messages that one worker sends about communicators, and the workers that it can address: the
// members of its groups and of its communicators. Not thread safe.
#ifndef PRD_WORKER_DEVICE_COMM_POST_H_
#define PRD_WORKER_DEVICE_COMM_POST_H_

#include <cstddef>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "common/base/shared_list.h"
#include "worker/device/comm_message.h"
#include "worker/device/comm_table.h"

namespace prd {

class CommPost {
 public:
  // So many members of groups are remembered. To forget one costs only time.
  static constexpr std::size_t kMaxKnown = 4096;

  struct Outgoing {
    GroupMember to;
    CommMessage message;
  };

  // *comms must outlive it.
  explicit CommPost(const CommTable* comms) : comms_(comms) {}

  // Forgets everything.
  void Join(Incarnation self);

  // Remembers the members of a group. Returns those whose ranks others have now: they are gone.
  std::vector<Incarnation> Know(const Group& group);
  // The same without a device: members of the last groups can be declined.
  void KnowToDecline(const Group& group);
  const GroupMember* Known(Incarnation member) const;

  // Nothing is sent to a worker that is not known.
  void Tell(Incarnation to, CommMessage message);
  void TellAll(const Communicator& comm, const CommMessage& message);
  void TellBroken(Incarnation to, CommId comm);
  void Decline(Incarnation to, CommMessage message);
  std::vector<Outgoing> Take() { return std::exchange(outgoing_, {}); }

 private:
  const CommTable* comms_;
  Incarnation self_ = 0;
  std::map<Incarnation, GroupMember> known_;
  std::map<Rank, Incarnation> holder_;          // of each rank, the newest seen
  std::deque<SharedList<GroupMember>> recent_;  // without a device: of the last groups
  std::vector<Outgoing> outgoing_;
};

}  // namespace prd

#endif  // PRD_WORKER_DEVICE_COMM_POST_H_
