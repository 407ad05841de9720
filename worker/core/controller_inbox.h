// What the controller sends, and what that changes in the session.
#ifndef PRD_WORKER_CORE_CONTROLLER_INBOX_H_
#define PRD_WORKER_CORE_CONTROLLER_INBOX_H_

#include <string>

#include "common/base/messages.h"
#include "worker/core/actions.h"
#include "worker/core/session_flow.h"
#include "worker/core/session_parts.h"

namespace prd {

class ControllerInbox {
 public:
  ControllerInbox(SessionParts& parts, SessionFlow& flow) : p_(parts), flow_(flow) {}

  void Receive(const ControllerEnvelope& envelope, Actions* out);

 private:
  void OnWelcome(const Welcome& welcome, Actions* out);
  void OnRefused(const Refused& refused, Actions* out);
  // What is wrong with a group, or empty.
  std::string CheckGroup(const Group& group) const;
  void OnGroup(const Group& group, Actions* out);
  void OnAbort(const Abort& abort, Actions* out);
  bool AbortBeside(const Abort& abort, Actions* out);
  void OnAdopt(const Adopt& adopt, Actions* out);
  void OnReleased(const Released& released, Actions* out);
  void OnResumed(Actions* out);
  void OnEndRun(Actions* out);
  void OnMembers(const Members& members, Actions* out);

  SessionParts& p_;
  SessionFlow& flow_;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_CONTROLLER_INBOX_H_
