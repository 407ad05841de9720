// Workers that leave by order of an operator, or by their own wish after they stopped: each goes
// once it is in no group and nobody needs anything of it. Not thread safe.
#ifndef PRD_ENGINES_DRAINS_H_
#define PRD_ENGINES_DRAINS_H_

#include <string>

#include "common/base/history.h"
#include "common/base/ids.h"
#include "engines/engine.h"
#include "engines/group_table.h"
#include "engines/operator_orders.h"
#include "engines/replica_copies.h"
#include "engines/run_context.h"
#include "engines/training_stops.h"

namespace prd {

class Drains {
 public:
  Drains(const RunContext& run, OperatorOrders* orders, TrainingStops* stops,
         const ReplicaCopies* copies, const GroupTable* groups, const Engine* engine)
      : run_(run),
        orders_(*orders),
        stops_(*stops),
        copies_(*copies),
        groups_(*groups),
        engine_(*engine) {}

  // Draining workers get into no more groups, and leave if they may.
  void LetGo();
  // All of them leave now, since the run ends.
  void LetAllGo();
  // The worker is told to go, is gone, and is not admitted again.
  void Dismiss(Rank rank, LeftReason why, const std::string& reason);

 private:
  bool StopsInGroups(Rank rank) const;
  bool MayGo(Rank rank) const;

  const RunContext run_;
  OperatorOrders& orders_;
  TrainingStops& stops_;
  const ReplicaCopies& copies_;
  const GroupTable& groups_;
  const Engine& engine_;
};

}  // namespace prd

#endif  // PRD_ENGINES_DRAINS_H_
