// This worker's end of the link to the controller: incarnations and their Hello, what is sent and
// sent again, heartbeats, and when the controller was heard. Pure; a part of SessionCore.
#ifndef PRD_WORKER_CORE_CONTROLLER_LINK_H_
#define PRD_WORKER_CORE_CONTROLLER_LINK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/link.h"
#include "common/base/messages.h"
#include "common/base/reliable_link.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/core/actions.h"

namespace prd {

class ControllerLink {
 public:
  // A session begins.
  void Attach(Instant now, const LinkToken& token);
  // Why the session can do nothing more; ok: it has finished.
  void Close(Status why);
  // Says nothing until the next BeginHello.
  void Detach() { contact_ = Contact::kNone; }

  bool says_hello() const { return contact_ == Contact::kHello; }  // and is not admitted yet
  bool is_member() const { return contact_ == Contact::kMember; }
  bool talks() const { return says_hello() || is_member(); }
  bool is_over() const { return contact_ == Contact::kOver; }
  const Status& over() const { return over_; }

  // ---- incarnations ----

  bool wants_incarnation() const { return next_incarnation_ == 0; }
  void GiveIncarnation(Incarnation incarnation) { next_incarnation_ = incarnation; }
  Incarnation incarnation() const { return incarnation_; }
  // A new incarnation is to say Hello. Nothing that was said before counts.
  void BeginHello(Instant now);
  // There is an incarnation for it, and the last Hello was a while ago.
  bool MaySayHello(Instant now) const;
  // Completes the Hello with rank and former run.
  void SayHello(Instant now, Hello hello, Actions* out);
  // The replica is that of this run: the next Hello says so.
  void OnReplica() { former_ = identity_; }
  bool was_in_run() const { return former_.known(); }

  // ---- to the controller ----

  // Sends the message, again and again until it is acknowledged.
  void Push(Instant now, WorkerBody body, Actions* out);
  void SendHeartbeat(Instant now, Actions* out);
  void SendHeartbeatIfDue(Instant now, Actions* out);
  void OnConnected(Instant now, Actions* out);
  // Sends again what is due. True: a heartbeat was due too.
  bool OnTime(Instant now, Actions* out);
  // `hello`: a Hello that is due may be said.
  std::optional<Instant> NextDeadline(bool hello) const;
  std::size_t unacked() const { return link_.unacked().size(); }
  DurationNs rtt() const { return rtt_; }  // smoothed; 0: not measured

  // ---- from the controller ----

  // False: the message is for another incarnation, or comes too late.
  bool IsForMe(Instant now, const ControllerEnvelope& envelope);
  // The Welcome of this envelope, if it answers the Hello. Admit follows if it makes sense.
  const Welcome* OnHelloAnswered(const ControllerEnvelope& envelope);
  void Admit(Instant now, const Welcome& welcome);
  // From the newest Welcome; rank kNoRank before the first.
  const Welcome& welcome() const { return welcome_; }
  // False: the message is of another run, or of a life of the controller that is over. A controller
  // that has started again is told at once what this worker has sent and received.
  bool IsOfThisRun(Instant now, const RunIdentity& identity, Actions* out);
  // kMore: messages have been acknowledged that were not before. kWrong: ones never sent.
  enum class Acked : std::uint8_t { kNothing, kMore, kWrong };
  Acked OnAck(Instant now, Seq ack);
  // True: the message is the next one in order. Another one is not to be acted on.
  bool Receive(Instant now, Seq seq);
  void OnHeartbeatAck(Instant now, const HeartbeatAck& ack);
  // `retry`: the Hello is repeated after this many milliseconds.
  void OnRefused(Instant now, const Refused& refused, bool retry);
  void OnNoConnection(const std::string& why);

  // The controller was heard then, or is missed since.
  void NoteHeard(Instant now) { heard_ = now; }
  Instant heard() const { return heard_; }
  Instant answered() const { return answered_; }  // its newest word, whatever it was
  // Why this worker is not admitted, in the controller's words, or why there is no connection.
  const std::string& refusal() const { return refusal_; }
  // Why the job has not begun here, in the controller's words.
  const std::string& waits_for() const { return waits_for_; }
  void ForgetWaitsFor() { waits_for_.clear(); }

 private:
  enum class Contact : std::uint8_t { kNone, kHello, kMember, kOver };
  // The controller acknowledges within 100 ms. What it has not by then was lost, or it is away.
  static constexpr ResendLimits kResends{
      .first = 250 * kMillisecond, .longest = 2 * kSecond, .messages = 32};

  WorkerEnvelope Envelope(Seq seq, WorkerBody body) const;
  void SendAgain(Instant now, Actions* out);

  Contact contact_ = Contact::kNone;
  Status over_;
  LinkToken token_;
  Incarnation next_incarnation_ = 0;
  Incarnation incarnation_ = 0;
  bool hello_due_ = false;
  Instant hello_at_;  // no Hello before this
  LinkEnd<WorkerBody> link_;
  Resends<kResends> resends_;
  Welcome welcome_;
  RunId run_ = kNoRun;
  RunIdentity identity_;              // the newest of this incarnation's run
  std::vector<std::uint64_t> lives_;  // of the controller before that, with this incarnation
  RunIdentity former_;                // the run in which the replica was trained
  std::string refusal_;
  std::string waits_for_;
  Instant heard_;
  Instant answered_;
  Instant heartbeat_at_;
  Instant heartbeat_sent_;
  int heartbeats_out_ = 0;  // since the last answer
  DurationNs rtt_ = 0;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_CONTROLLER_LINK_H_
