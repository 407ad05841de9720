// Workers exchange updates with the neighbours on a graph (Hop: Luo et al., ASPLOS 2019).
//
// In the parallel order (Figure 2b, 4, 7) the parameters are published when an iteration is
// entered, and the step receives, averages, applies and enters the next one. In the serial order
// (Figure 2a) the gradient is in the parameters when the step begins: it publishes, receives,
// averages and enters. The controller is asked for the next iteration as soon as enough updates are
// here, so that its answer comes while the average is computed and applied.
#ifndef PRD_WORKER_CORE_NEIGHBOUR_STEPPING_H_
#define PRD_WORKER_CORE_NEIGHBOUR_STEPPING_H_

#include <cstdint>
#include <optional>
#include <string>

#include "worker/core/step_protocol.h"
#include "worker/core/update_queues.h"

namespace prd {

class NeighbourProtocol : public StepProtocol {
 public:
  using StepProtocol::StepProtocol;

  void OnHello() override;
  bool OnReplica(bool copied, Actions* out) override;
  bool OnResumed(Actions* out) override;
  void StartStep(Actions* out) override;
  void Continue(Actions* out) override;
  void OnTrained(Outcome, const std::string&, Actions*) override {}  // has no such groups
  void OnApplied(Iteration iteration, std::int64_t rounds, Actions* out) override;
  void OnMessage(const ControllerBody& body, Actions* out) override;
  void OnNote(Incarnation from, const PeerMessage& note, Actions* out) override;
  void OnRequest(Incarnation from, Request request, const PeerItem& parcel, Actions* out) override;
  void OnPulled(Ticket ticket, const Status& status, const ShardHeader& enclosure,
                Actions* out) override;
  void OnTime(Actions* out) override;
  std::optional<Instant> NextDeadline() const override { return updates_.NextDeadline(); }

 private:
  bool serial() const;
  void Publish(Actions* out);
  void Receive(Actions* out);
  void Mix(Iteration k, Actions* out);
  void Enter(Actions* out);
  void OnAnswer(const QueryReply& reply, Actions* out);
  std::string CheckNeighbourhood(const Neighbourhood& hood) const;
  void OnNeighbourhood(const Neighbourhood& hood, Actions* out);

  // kReceive: Recv(iteration) has not ended. kEnter: it has, and `apply` has run if it is to; the
  // controller's answer is not here, or, with a jump, Recv of the iteration before next_ has not
  // ended.
  enum class Phase : std::uint8_t { kReceive, kApply, kEnter };
  Phase phase_ = Phase::kReceive;
  std::optional<Iteration> next_;   // the one to enter
  bool awaits_neighbours_ = false;  // resumed, and told of none since
  UpdateQueues updates_;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_NEIGHBOUR_STEPPING_H_
