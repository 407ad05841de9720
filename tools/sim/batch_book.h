// Jobs that divide a batch: which samples of which step are in each gradient, beside the history.
//
//   batch-whole   the samples of those who reduce a step (Batches::kWhole) are its batch, each
//   once;
//                 fewer, or some twice, only where the history says so. Weights are as the samples
//   shares-sum    shares follow each other from the batch's first sample on, and sum to the batch,
//                 or to all that workers can compute who do not add up the gradients of passes
//   share-limit   no pass is above max_share; a share is where its worker makes several passes
//   share-owner   shares are of workers that are there, and more than a share of those who can
//   share-time    where samples always take the same time, a share of one pass is expected to take
//                 that, with a wide margin above it
//   share-ahead   a share does not change any more once a loader has drawn its samples, unless the
//                 history says that the job goes on with another model since
//
// Shares on parts (Batches::kParts) may be lost: batch-whole and share-ahead are not about those.
#ifndef PRD_TOOLS_SIM_BATCH_BOOK_H_
#define PRD_TOOLS_SIM_BATCH_BOOK_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/base/history.h"
#include "engines/engine.h"
#include "tools/sim/step_times.h"
#include "tools/sim/world.h"

namespace prd::sim {

class BatchBook {
 public:
  struct Range {
    Iteration step = 0;
    std::int64_t first = 0;
    std::int64_t samples = 0;
  };

  BatchBook(const World* world, const StepTimes* times) : world_(world), times_(times) {}

  // A run has begun; `run` by its number (run_table.h).
  void Begins(RunId run, Engine::Batches use) { runs_[run].use = use; }
  // A record has become durable. Throws Violation.
  void Seen(RunId run, const Record& record) { Take(run, record, true); }
  // The history of the run is this one now.
  void Forgot(RunId run, const std::vector<Record>& records);

  // The worker gives a gradient over these samples to the group.
  void Reduces(std::uint32_t worker, RunId run, GroupId group, const std::vector<Range>& samples) {
    given_[{run, group}][worker] = samples;
  }
  // The shares that a worker is told hold for those of all others.
  bool whole(RunId run) const {
    const auto found = runs_.find(run);
    return found != runs_.end() && found->second.use == Engine::Batches::kWhole;
  }
  // Whether the job has gone on with another model at one of the steps up to `step`, `before` ones
  // among them.
  bool WentElsewhere(RunId run, Iteration step, Iteration before) const;

 private:
  struct Member {
    bool there = false;
    std::int64_t max_share = 0;
    bool accumulates = false;
  };
  struct Job {
    Engine::Batches use = Engine::Batches::kNone;
    std::int64_t batch = 0;
    std::map<Rank, Member> members;
    std::map<Iteration, std::int64_t> sums;  // of shares, by the step that they are from
    std::set<Iteration> fewer;               // steps that do without some samples
    std::set<Iteration> elsewhere;           // steps at which the job went on with another model
    std::map<GroupId, GroupFormed> groups;
  };

  void Take(RunId run, const Record& record, bool check);
  void CheckShares(const Job& job, const SharesSet& set) const;
  void CheckMore(const Job& job, const SharesSet& set) const;
  void CheckTime(Rank rank, const ShareGiven& share) const;
  void CheckStep(RunId run, const Job& job, const GroupFormed& formed) const;

  const World* world_;
  const StepTimes* times_;
  std::map<RunId, Job> runs_;
  std::map<std::pair<RunId, GroupId>, std::map<std::uint32_t, std::vector<Range>>> given_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_BATCH_BOOK_H_
