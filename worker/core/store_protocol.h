// The parameters are shared, in shards that live in the workers (SSP: Ho et al., NIPS 2013). A step
// pushes what the parameters have moved; says Ready once that is stored; once that is answered,
// reads all shards, and ends.
#ifndef PRD_WORKER_CORE_STORE_STEPPING_H_
#define PRD_WORKER_CORE_STORE_STEPPING_H_

#include <cstdint>
#include <optional>
#include <string>

#include "worker/core/shard_store.h"
#include "worker/core/step_protocol.h"

namespace prd {

class StoreProtocol : public StepProtocol {
 public:
  using StepProtocol::StepProtocol;

  void OnHello() override;
  bool OnReplica(bool copied, Actions* out) override;
  bool OnResumed(Actions* out) override;
  void StartStep(Actions* out) override;
  void OnCallEnds(Actions* out) override;
  void Continue(Actions* out) override;
  bool DelaysFinal(Actions* out) override;
  void OnTrained(Outcome, const std::string&, Actions*) override {}  // has no such groups
  void OnApplied(Iteration, std::int64_t, Actions*) override {}      // asks for nothing
  void OnMessage(const ControllerBody& body, Actions* out) override;
  void OnNote(Incarnation from, const PeerMessage& note, Actions* out) override;
  void OnRequest(Incarnation from, Request request, const PeerItem& parcel, Actions* out) override;
  void OnPulled(Ticket ticket, const Status& status, const ShardHeader& enclosure,
                Actions* out) override;
  void OnTime(Actions* out) override;
  std::optional<Instant> NextDeadline() const override { return store_.NextDeadline(); }

 private:
  void OnRead(Actions* out);
  void OnPlacement(const Placement& placement, Actions* out);
  void OnOpened(const Opened& opened, Actions* out);
  void OnAnswer(const QueryReply& reply, Actions* out);

  // What comes next: an update to be stored, its signal to be answered, shards to be read.
  enum class Next : std::uint8_t { kNone, kPush, kAnswer, kMayRead, kRead };
  Next next_ = Next::kNone;
  bool joins_ = false;                // the step in progress ends with the job's replica instead
  bool counts_ = false;               // its work is in the update
  bool awaits_placement_ = false;     // resumed, and in none since
  bool keeps_move_ = false;           // the reading in progress does
  std::uint32_t workers_ = 0;         // training, as the newest answer says
  GroupId final_reading_ = kNoGroup;  // the group that shards were read for last
  GroupId final_read_ = kNoGroup;     // the group that all of them were read for
  ShardStore store_;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_STORE_STEPPING_H_
