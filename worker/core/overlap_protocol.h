// Models are averaged in groups, and steps and groups are not one to one (DecouplesSteps).
//
// Steps that do not signal (Plan::every) end at once, whatever is announced or stands; so do
// discarded ones. The others depend on the plan:
//   in the background (AveragesInBackground)
//     A step says Ready and ends. Groups run beside the training loop, and their averages wait in
//     the inbox, which the caller's thread adds to the parameters before each step, and on
//     ApplyNow. A signal stands until its group has succeeded; a worker whose group failed signals
//     again by itself, also while its training loop computes. A step waits for the signal that
//     stands if more than RunAhead steps have come since, itself included. It then adds the
//     inbox, says Ready (unless the signal that stood was its own, or was said after it came), and
//     ends. While a group has the inbox (StepReplica::kNotNow) a step without RunAhead waits,
//     others leave it to the next step. By a schedule, no slot begins then before that has added
//     it: slots follow each other at once, so that there might never be a time between two.
//   drawn ahead (DrawnAhead)
//     The same signal is never repeated; it ends as Membership::kAhead says. A group that does not
//     run in the background waits until the training loop is in a step that signals, which says
//     Ready first, or in Finish; such a step ends once no signal stands.
//   by a schedule (FollowsSchedule)
//     Each step that signals takes the next slot of the newest Schedule, and waits for the first
//     one. In the background, slots run in their order, and a step waits while more than RunAhead
//     slots are taken and not over. Otherwise it runs that slot's group and ends with it, ok or
//     not. A new Schedule calls off and forgets the slots of the one before; a step that waits
//     takes slot 0 of the new one.
//
// Finish adds the inbox and says Finish once no signal stands, its own group is through, and no
// slot is open. It takes part in groups announced ahead before and after that; what they leave in
// the inbox is added before the final average.
#ifndef PRD_WORKER_CORE_OVERLAP_STEPPING_H_
#define PRD_WORKER_CORE_OVERLAP_STEPPING_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "common/base/static_schedule.h"
#include "worker/core/step_protocol.h"

namespace prd {

class OverlapProtocol : public StepProtocol {
 public:
  using StepProtocol::StepProtocol;

  void OnHello() override;
  bool OnReplica(bool copied, Actions* out) override;
  void OnCopyOrdered() override;
  void OnStep(const Ready& ready, std::int64_t taken) override;
  void StartStep(Actions* out) override;
  void OnFinish() override { added_ = postponed_ = false; }
  void Continue(Actions* out) override;
  bool DelaysFinal(Actions* out) override;
  std::string Check(const Group& group) const override;
  bool OnGroup(const Group& group, Actions* out) override;
  bool HoldsAhead() const override;
  void OnTrained(Outcome outcome, const std::string& detail, Actions* out) override;
  void OnBesideThrough(Outcome outcome, const std::string& detail, Actions* out) override;
  void OnApplied(Iteration iteration, std::int64_t rounds, Actions* out) override;
  GroupId called_off() const override { return schedule_ ? schedule_->first - 1 : kNoGroup; }
  void OnMessage(const ControllerBody& body, Actions* out) override;

 private:
  bool InBackground() const;
  bool Scheduled() const;
  bool Postponed() const;
  void ContinueStep(Actions* out);
  void ContinueFinish(Actions* out);
  void Signal(Actions* out);
  // A step could not add what has come, because a group had begun before that. The next slot waits
  // until one can: where a group always runs, none could ever.
  bool HoldsSlots() const { return Scheduled() && InBackground() && overdue_ && inbox_ > 0; }
  void AddInbox(Actions* out);
  void CountAdded(std::int64_t averages);
  void BeginInBackground(Group group, Actions* out);
  void OnThrough(bool ok, bool passive, Actions* out);
  void OnAnswer(const QueryReply& reply, Actions* out);

  // The static schedule (overlap_schedule.cc).
  std::string CheckSchedule(const Schedule& schedule) const;
  void OnSchedule(const Schedule& schedule, Actions* out);
  Group SlotGroup(std::uint64_t slot, const StaticMembers& members) const;
  void TakeSlot(Actions* out);
  void RunSlots(Actions* out);

  Ready arrived_;                  // the newest step's
  bool due_ = false;               // the step in progress has yet to signal, or to take its slot
  std::uint64_t outstanding_ = 0;  // steps since the signal that stands; slots taken and not over
  std::int64_t inbox_ = 0;         // averages in the inbox, as far as is known here
  std::int64_t asked_inbox_ = 0;   // the same, when ApplyNow asked to add it
  bool added_ = false;             // the call in progress has added it since the last answer
  bool postponed_ = false;         // it cannot be added before the group beside the call is over
  bool overdue_ = false;           // a step could not add what is in it
  Group newest_average_;           // the newest one whose average is here
  std::optional<Schedule> schedule_;
  std::size_t self_ = 0;     // in its members
  std::uint64_t slots_ = 0;  // taken, of it
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_OVERLAP_STEPPING_H_
