// What a worker computes of its job's batch: the shares that the controller has told, and how far
// the step at hand is. Pure; a part of SessionCore. A value: a copy can be read on another thread.
#ifndef PRD_WORKER_CORE_STEP_SHARES_H_
#define PRD_WORKER_CORE_STEP_SHARES_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"

namespace prd {

class StepShares {
 public:
  struct Options {
    bool accumulates = false;    // the training loop adds up the gradients of several passes
    std::int64_t max_share = 0;  // samples of one pass; 0: any number
  };
  // A session begins.
  void Begin(const Options& options);

  // ---- from the controller ----
  void OnWelcome(const Welcome& welcome);
  void Set(const SetShare& share);
  // A new incarnation begins: what was told is void.
  void Forget();

  // ---- a step ----
  struct Taken {
    bool partial = false;      // more of the step is to be computed
    bool again = false;        // the step was whole before, and has been counted
    std::int64_t samples = 0;  // of a step that is whole: those that have not been counted
  };
  // A pass over samples of this step has been computed. Where the step is whole with it,
  // ready.samples and ready.step_ns become those of all its passes. A pass that is discarded counts
  // for nothing, with those before it.
  Taken Take(Iteration step, bool discard, Ready* ready);
  // The step that is waited for was whole, and is not any more. An incarnation before this one may
  // have computed it.
  void Reopen(Iteration step) {
    open_ = true;
    step_ = step;
    ++version_;
  }

  // More than `made_up` orders are told for this step, besides its share.
  bool Lacks(Iteration step, std::uint32_t made_up) const;

  // ---- what to compute ----
  struct Piece {
    Iteration step = 0;
    std::int64_t first = 0;    // of the batch
    std::int64_t samples = 0;  // 0: the job has no batch
  };
  // The next pass over the step after this iteration.
  Piece Next(Iteration iteration) const;
  // All of the share in a step to come: `ahead` steps after that one, 1 or more.
  Piece Ahead(Iteration iteration, int ahead) const;
  // Some of the step at hand is computed, and not all.
  bool partial() const { return open_; }
  std::int64_t batch() const { return batch_; }
  std::uint64_t version() const { return version_; }  // another one after each change

 private:
  Piece Standing(Iteration step) const;
  std::vector<Piece> PiecesOf(Iteration step) const;
  std::int64_t Done(Iteration step) const { return open_ && step_ == step ? done_ : 0; }

  Options options_;
  std::uint64_t version_ = 0;
  std::int64_t batch_ = 0;
  std::int32_t workers_ = 0;
  std::deque<SetShare> shares_;  // by `from`
  std::vector<SetShare> more_;   // of one step
  // The step at hand, while it is not whole, or is waited for.
  Iteration step_ = 0;
  bool open_ = false;         // some of it is computed, and not all
  std::int64_t done_ = 0;     // samples
  std::int64_t counted_ = 0;  // samples it had when it was whole; 0: it was not yet
  DurationNs computed_ = 0;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_STEP_SHARES_H_
