// The batch of a job, divided among the workers of a run: each is told its share of every step's
// samples (SetShare), and a slow worker has a smaller share, so that all are ready at the same
// time.
//
// The shares of a step sum to the batch. Which shares are best is decided by BatchRule; this part
// sees to it that every step has them, whoever comes and goes:
//   Batches::kWhole   A group of step t decides the shares of a step after t. So a new worker joins
//                     with the first step in which it has a share (MayJoin). Signals are collected
//                     until all shares of the step are there, and go to the engine together. The
//                     share of a worker that is lost before its gradient was reduced is computed by
//                     others, in the same step (SetShare::more), if their training loops can add up
//                     gradients; else the step has fewer samples, and the record says so.
//   Batches::kParts   Shares count from now on. A step may go on without some of them.
//
// Where workers' memory limits their shares to less than the batch in sum, those whose training
// loops can add up gradients compute theirs in several passes; without such workers the batch
// shrinks.
//
// Pure; not thread safe.
#ifndef PRD_ENGINES_BATCH_SHARES_H_
#define PRD_ENGINES_BATCH_SHARES_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/messages.h"
#include "engines/batch_rule.h"
#include "engines/engine.h"
#include "engines/event.h"
#include "engines/ready_queue.h"
#include "engines/replica_copies.h"
#include "engines/run_context.h"

namespace prd {

class BatchShares {
 public:
  // The reason of a SharesSet begins so where the batch of one step may have samples twice, or not
  // at all.
  static constexpr const char* kGoesOnElsewhere = "the job goes on at step ";

  BatchShares(const RunContext& run, Engine::Batches use, ReadyQueue* ready,
              const ReplicaCopies* copies);

  // Samples of a step of all workers; 0: the job has no batch.
  std::int64_t batch() const { return batch_; }
  bool on() const { return batch_ > 0; }

  // ---- membership ----
  // Why the worker cannot take part: empty if it can.
  std::string Refuses(const Hello& hello, int workers) const;
  // A worker takes the rank. The job's first one may say what the batch is.
  void Enter(Rank rank, const Hello& hello);
  // The workers of a common start, which goes on from this iteration.
  void Begin(Iteration iteration, const std::vector<Rank>& ranks);
  // The worker has a share in the step at hand and in all that are decided, and so can join now.
  bool MayJoin(Rank rank) const;
  // If nobody trains, workers that wait to join share the step at hand.
  void ServeIdle();

  // ---- training ----
  // A signal that came from the worker. False: it was sent before the worker heard what it is to
  // compute besides its share, and is void.
  bool Take(Rank rank, const Ready& ready);
  // Whether the signal waits until all shares are there: it is held back then.
  bool Collect(Rank rank);
  // What the engine is about to hear.
  void Note(const Event& event);
  // A group that the engine has formed, and that is not announced yet.
  void OnGroup(const GroupFormed& form);
  // Orders what is missing, and gives the ranks whose signals go to the engine now.
  std::vector<Rank> Look();

  // For whom the batch waits: "waiting: 96 of 128 samples ...".
  std::string Words() const;
  // What the worker computes of the step at hand, besides what others have lost; samples 0:
  // nothing.
  struct Shown {
    std::int64_t samples = 0;
    DurationNs expected_ns = 0;  // 0: not known
    std::string reason;          // why all shares are as they are
    Instant since;               // it was decided
  };
  Shown Show(Rank rank) const;

  void Archive(StateArchive& ar);
  bool Restore();  // after a load; false: it does not fit the run

 private:
  struct Worker {
    std::int64_t limit = 0;  // samples of one pass; 0: none
    bool accumulates = false;
    bool active = false;       // the engine knows it
    std::uint32_t lead = 0;    // steps whose samples its loader has drawn
    std::uint32_t orders = 0;  // with `more`, in the step at hand
    Iteration observed = 0;    // the newest step whose cost is known
    SetShare told;             // samples 0: nothing yet
    void Archive(StateArchive& ar) {
      ar(limit, accumulates, active, lead, orders, observed, told.from, told.first, told.samples);
    }
  };
  // Shares from a step on, by rank.
  struct Plan {
    Iteration from = 0;
    std::vector<ShareOf> shares;
    std::string reason;
    Instant since;  // decided
    void Archive(StateArchive& ar) { ar(from, shares, reason, since); }
  };
  // Samples of the step at hand.
  struct Piece {
    Rank rank = kNoRank;  // which computes them
    std::int64_t first = 0;
    std::int64_t samples = 0;
    void Archive(StateArchive& ar) { ar(rank, first, samples); }
  };

  bool whole() const { return use_ == Engine::Batches::kWhole; }
  bool IsActive(Rank rank) const {
    return RankIndex(rank) < workers_.size() && workers_[RankIndex(rank)].active;
  }
  bool Joins(Rank rank) const;
  bool Comes(Rank rank) const;
  bool CopiesFirst() const;
  bool HasPiece(Rank rank) const;
  std::vector<BatchRule::Asked> Ask(const std::vector<Rank>& ranks) const;
  std::vector<Rank> Sharers() const;
  void Decide(Iteration from);
  void Set(Iteration from, BatchRule::Decision decision);
  void Tell(const Plan& plan, Rank only);
  void BeginStep(Iteration step);
  void GoTo(Iteration step);
  bool Complete();
  void FindLost(bool complete);
  bool MakeUp();
  void Give(const Piece& piece);

  const RunContext run_;
  const Engine::Batches use_;
  ReadyQueue& ready_;
  const ReplicaCopies& copies_;
  BatchRule rule_;
  std::int64_t batch_;
  std::vector<Worker> workers_;  // by rank
  int active_ = 0;
  int collected_ = 0;         // signals that are held back, at most
  std::deque<Plan> plans_;    // by `from`; the first holds for the step at hand
  Iteration step_ = 0;        // the step at hand, as Ready.iteration
  GroupId group_ = kNoGroup;  // reduces the step at hand
  Iteration group_iteration_ = 0;
  std::vector<Piece> pieces_;  // kWhole: of the step at hand
  std::vector<Piece> lost_;    // of these, what nobody computes
  bool left_ = false;          // somebody may have lost a piece
};

}  // namespace prd

#endif  // PRD_ENGINES_BATCH_SHARES_H_
