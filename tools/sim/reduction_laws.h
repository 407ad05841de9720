// What a reduction of the model's data plane (data_plane.h) may find, and make, of its members'
// replicas.
//
//   replicas-agree  members of a group that reduces gradients, or differences to a common base,
//                   have equal replicas before it (but where a fault makes them differ:
//                   replica_book.h)
//   outbox          a contributor to a round has one
//   inbox           is empty when models are averaged, but for those averaged in the background
//   mass            a group with equal weights that succeeded for all members has not changed the
//                   sum of what they hold: parameters and, in the background, inbox
//   final-model     the final average counts members as the history says
//   returning-start a common start takes what those have learned who have trained before: the
//                   newest replica where all are equal by design, else the average of theirs
//   switched-model  all whose run goes on in another one end it with one replica, and the other run
//                   begins with that
#ifndef PRD_TOOLS_SIM_REDUCTION_LAWS_H_
#define PRD_TOOLS_SIM_REDUCTION_LAWS_H_

#include <map>
#include <utility>

#include "common/base/history.h"
#include "tools/sim/reduction.h"
#include "tools/sim/world.h"

namespace prd::sim {

class ReductionLaws {
 public:
  explicit ReductionLaws(const World* world) : world_(world) {}

  // A record of a run has become durable.
  void Seen(RunId run, const GroupFormed& formed);
  // All members have arrived, and nothing has been summed up yet. Throws Violation.
  void CheckBefore(const Reduction& reduction) const;
  // What all members of a group that averages models hold, of all parameters together; and that it
  // is what it was before, when all have the result. The latter throws Violation.
  double Mass(const Reduction& reduction) const;
  void CheckMass(const Reduction& reduction, double before) const;

 private:
  void CheckStart(const Reduction& reduction) const;
  bool CheckSwitched(const Reduction& reduction) const;
  void CheckFinal(const Reduction& reduction) const;

  const World* world_;
  std::map<std::pair<RunId, GroupId>, std::map<Rank, double>> finals_;  // as recorded
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_REDUCTION_LAWS_H_
