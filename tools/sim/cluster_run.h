// One run of a job in virtual time: what cluster.h runs. Its faults are in cluster_faults.cc, and
// what is looked for when they are over in cluster_end.cc.
#ifndef PRD_TOOLS_SIM_CLUSTER_RUN_H_
#define PRD_TOOLS_SIM_CLUSTER_RUN_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tools/sim/batch_book.h"
#include "tools/sim/cluster.h"
#include "tools/sim/loss_curve.h"
#include "tools/sim/model_plane.h"
#include "tools/sim/operator.h"
#include "tools/sim/replica_book.h"
#include "tools/sim/run_book.h"
#include "tools/sim/sim_controller.h"
#include "tools/sim/sim_worker.h"
#include "tools/sim/trace.h"

namespace prd::sim {

class Cluster {
 public:
  Cluster(const Workload& workload, const RunOptions& options);

  RunResult Run();

 private:
  static constexpr DurationNs kFaultPeriod = 50 * kMillisecond;

  void Seen(const Record& record);
  void Forgot();
  void Unreported(const Group& group);
  void Begin();
  void Loop();
  void Handle(const SimEvent& event);
  void Faults();
  void Cut(std::uint32_t from, std::uint32_t to, Instant until, bool large_alone);
  void LinkFaults(std::uint32_t worker, double share);
  void Relaunch();
  void CheckOut() const;
  void Forge(std::uint32_t worker);
  void LookForHangs(Instant until);
  std::vector<HangWatch::Worker> Doings() const;
  // It is for a worker's process.
  static bool IsFor(const SimEvent& event);
  RunId FirstDone() const;
  bool TooLate(const SimWorker& worker) const;
  bool Finished() const;
  bool Joining(const SimWorker& worker) const;  // waits for a common start
  std::set<Incarnation> Known() const;
  void CheckEnd();
  std::string Stuck() const;
  void Fill(RunResult* result);

  const Workload& workload_;
  const RunOptions options_;
  World world_;
  Stats stats_;
  std::unique_ptr<Objective> objective_;
  StepTimes times_;
  Devices devices_;
  MeshDoors doors_;
  SimController controller_;
  RunBook runs_;
  ReplicaBook replicas_;
  BatchBook batches_;
  Operator operator_;
  WorkerParts parts_;
  std::vector<SimWorker> workers_;
  LossCurve loss_;
  std::unique_ptr<Plane> plane_;
  bool stop_ = false;
  Traces traces_;
  std::set<Incarnation> lost_;                  // whose leases ran out
  std::set<std::pair<RunId, GroupId>> starts_;  // groups of common starts, as the records name them
  HangWatch hangs_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_CLUSTER_RUN_H_
