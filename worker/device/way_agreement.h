// How the members of the group that runs here agree on its way.
//
// The group's leader is its member with the lowest rank. It decides how the group is reduced and
// tells the members (kWay): by an all-reduce on the communicator of just these members; by sends
// and receives on a communicator that covers them (has more members); or staged through the CPU
// mesh. A member waits for kWay if it has a communicator that covers the group and is ready here.
// Every other member takes the staged way at once. That is safe in both directions:
//   - The leader sends kWay whenever a member may wait. No member is ready before all have begun to
//     make the communicator; so the leader has it too, or has told the member that it is broken.
//   - The leader uses a communicator only for groups that no member had begun when the communicator
//     became ready there (kReady, kUse). Group ids ascend, so every member waits for kWay.
// Members of CPU jobs, and of groups with CPU workers, therefore send no such message.
//
// A member that waits asks the leader now and then (kAsk), which repeats its message. Not thread
// safe.
#ifndef PRD_WORKER_DEVICE_WAY_AGREEMENT_H_
#define PRD_WORKER_DEVICE_WAY_AGREEMENT_H_

#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "worker/device/comm_message.h"
#include "worker/device/comm_post.h"
#include "worker/device/comm_table.h"

namespace prd {

class WayAgreement {
 public:
  // Words about so many groups that have not begun here yet are kept. To forget one costs only
  // time.
  static constexpr std::size_t kMaxWays = 256;

  struct Choice {
    Way way = Way::kStaged;
    CommId comm;
    friend bool operator==(const Choice&, const Choice&) = default;
  };

  // `pause`: between two questions for a word that does not come. Both must outlive it.
  WayAgreement(const CommTable* comms, CommPost* post, DurationNs pause)
      : comms_(comms), post_(post), pause_(pause) {}

  // Forgets everything.
  void Join(Incarnation self);

  // A group begins here; no word about an earlier one counts any more.
  void Reach(GroupId group);
  GroupId newest() const { return newest_; }
  // That group has these members, and runs from now on. REQUIRES: none runs.
  void Begin(Instant now, GroupId group, const CommSet& set);
  // Whether it runs, and its choice; nullopt: the leader's word is awaited. Staged, if it does not
  // run.
  bool Runs(GroupId group) const { return running_ && running_->group == group; }
  std::optional<Choice> Told(GroupId group) const;
  // None runs from now on. The communicator that it was to use.
  std::optional<CommId> End();

  // Whether a leader has chosen this one for a group that runs, or is to begin.
  bool HasChosen(CommId comm) const;

  // The leader's word (kWay).
  void OnWay(Incarnation from, const CommMessage& message);
  // A member asks for the word on a group.
  void Answer(Incarnation from, GroupId group);
  // Whether the leader's word is here, or none is to come any more: after any change to the
  // communicators.
  void Resolve();

  // Asks the leader, if it is time.
  void Service(Instant now);
  std::optional<Instant> ask_at() const;

 private:
  struct Running {
    GroupId group = kNoGroup;
    Incarnation leader = 0;
    std::vector<CommId> waits_on;  // that its leader may choose
    std::optional<Choice> choice;
    Instant ask_at;
  };
  struct Word {
    Incarnation from = 0;
    Choice choice;
  };

  Choice Choose(GroupId group, const CommSet& set) const;
  void TellWay(Incarnation to, GroupId group, const Choice& choice);

  const CommTable* comms_;
  CommPost* post_;
  const DurationNs pause_;
  Incarnation self_ = 0;
  GroupId newest_ = kNoGroup;  // that has begun here
  std::optional<Running> running_;
  std::map<GroupId, Word> ways_;  // of groups that have not begun here yet, or run
};

}  // namespace prd

#endif  // PRD_WORKER_DEVICE_WAY_AGREEMENT_H_
