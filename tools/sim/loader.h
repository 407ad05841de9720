// A worker's data loader: where its job divides a batch, which samples the pass at hand is over,
// which are in the step's gradient, and which are drawn ahead; and how much its worker has trained.
//
//   share-limit, share-ahead   of batch_book.h
#ifndef PRD_TOOLS_SIM_LOADER_H_
#define PRD_TOOLS_SIM_LOADER_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "common/base/messages.h"
#include "tools/sim/batch_book.h"
#include "tools/sim/worker_parts.h"
#include "worker/core/session_core.h"
#include "worker/core/step_shares.h"

namespace prd::sim {

class Loader {
 public:
  void Init(const WorkerParts& parts, std::uint32_t worker);

  std::int64_t max_share() const { return max_share_; }
  bool accumulates() const { return accumulates_; }
  std::uint32_t lead() const { return lead_; }  // steps that are drawn ahead

  // In a new process.
  void Start() { own_ = {}; }
  // The job counts this of those who had the worker's rank before.
  void Continues(const Trained& own) {
    own_.steps = std::max(own_.steps, own.steps);
    own_.samples = std::max(own_.samples, own.samples);
  }
  // What was drawn for steps to come is void.
  void ForgetDrawn() { drawn_.clear(); }

  // `again`: the step was whole before, and a pass of it was discarded.
  void BeginStep(bool again);
  // The next pass. `run` by its number (run_table.h). Throws Violation.
  void BeginPass(const SessionCore& core, RunId run);
  // What is computed is another attempt at the step.
  void BeginAgain();
  // The pass is in the gradient, which was over so many samples before.
  std::int64_t Add();
  // Neither the pass nor those before it are in the gradient.
  void Discard();
  // The step has been told: its samples count that have not been counted yet.
  void Count();
  // A step of a job without a batch counts.
  void CountStep(std::int64_t samples) { Counted(samples, true); }

  // How many the pass is over; 0: the job had no batch when it began.
  std::int64_t samples() const { return piece_.samples; }
  // The samples that the gradient is the mean over.
  const std::vector<BatchBook::Range>& passes() const { return passes_; }
  // What its worker has trained, as it should count: with those that had the worker's rank before.
  const Trained& own() const { return own_; }

 private:
  void DrawAhead(const SessionCore& core, RunId run);
  void Counted(std::int64_t samples, bool step);
  std::int64_t Samples() const;

  BatchBook* batches_ = nullptr;
  RunBook* runs_ = nullptr;
  std::uint32_t worker_ = 0;
  std::int64_t max_share_ = 0;
  bool accumulates_ = false;
  std::uint32_t lead_ = 0;
  StepShares::Piece piece_;  // of the pass
  std::vector<BatchBook::Range> passes_;
  std::int64_t uncounted_ = 0;                    // samples of these that are not counted yet
  bool counted_ = false;                          // the step
  std::map<Iteration, StepShares::Piece> drawn_;  // by step
  Trained own_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_LOADER_H_
