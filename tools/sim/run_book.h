// Which process is in which run, and what workers really trained, beside what the history says.
//
//   run-identity  a process whose replica was trained in a run that its workers have finished, or
//                 in a run before that one, is in no run after it: neither in a new one that it
//                 begins, nor in the next of that name
//   launches      all processes of a run are of one launch of the training program
//   samples       what the history says that a worker has trained when the worker pauses or
//                 finishes is what the worker has trained; and nobody is told of more steps and
//                 samples of the job than all workers have made
//   goal          a job's workers learn with their next steps that its goal is reached
//   switch-told   and that an operator has it go on in another run: they begin no more steps
//
// What the controller has forgotten does not count: run-identity is about the runs whose end is in
// the history as it is now; the last three laws are about jobs whose controller never forgot.
#ifndef PRD_TOOLS_SIM_RUN_BOOK_H_
#define PRD_TOOLS_SIM_RUN_BOOK_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/base/history.h"
#include "tools/sim/world.h"

namespace prd::sim {

class RunBook {
 public:
  explicit RunBook(const World* world) : world_(world), late_(world->replicas.size(), 0) {}

  // A record has become durable; `run` by its number (run_table.h). Throws Violation, as all others
  // here.
  void Seen(RunId run, const Record& record);
  // The controller has forgotten something; these runs are left as finished by their workers.
  void Forgot(std::set<RunId> finished) { finished_ = std::move(finished); }

  // The worker's process is admitted to a run. `former`: in which its replica was trained.
  void Enters(std::uint32_t worker, RunId run, RunId former, std::uint64_t launch);
  // It has made a step with so many samples; or, `step` false, goes on with one that it has told
  // of.
  void Trained(std::int64_t samples, bool step = true);
  // It says Pause or Finish for the first time, when it has trained so much.
  void Stops(Incarnation incarnation, Seq seq, const prd::Trained& own);
  // A step that began to be computed then has ended. `told`: what its worker knows of the job.
  void Stepped(std::uint32_t worker, RunId run, Instant begun, bool done, const prd::Trained& told);

 private:
  Instant Quiet(Instant since) const;
  void CheckStop(const Record& record, const WorkerEnvelope& envelope);

  const World* world_;
  std::set<RunId> finished_;
  std::map<RunId, std::uint64_t> launches_;
  std::map<RunId, Instant> goals_;     // when they were reached
  std::map<RunId, Instant> switched_;  // when operators said so
  std::vector<int> late_;              // by worker: steps since it must have heard so
  prd::Trained all_;                   // by all workers
  std::map<std::pair<Incarnation, Seq>, prd::Trained> stops_;
  std::map<std::pair<RunId, Rank>, prd::Trained> told_;  // as a job counts it
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_RUN_BOOK_H_
