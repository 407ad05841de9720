// Runs whose workers form no groups to train: neighbours send each other updates, or parameters are
// in shards that live in the workers. What workers are at, whom they wait for, and where things
// are, from the records one by one.
//
// Iterations are as the controller counts them (engines/engine.h): among neighbours the one that a
// worker has entered, of a store the worker's clock. Tokens (Hop, section 4.2) are those counts'
// differences: of the queue from j to i there are Iter(j) - Iter(i) + max_ig.
#ifndef PRD_SERVER_METERS_EXCHANGE_H_
#define PRD_SERVER_METERS_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/history.h"
#include "prd/status.h"

namespace prd::meters {

// What a rank is at, and what it did so far.
struct ExchangeRow {
  Rank rank = kNoRank;
  bool trains = false;      // joined, and neither finished nor gone
  Iteration iteration = 0;  // the one it is in, or its clock
  Instant entered;          // since when
  // Its signal, which asks for the next one, stands since then.
  std::optional<Instant> signalled;

  std::uint32_t queued = 0;      // updates in its queues, at its last signal
  std::uint64_t dropped = 0;     // updates that came to it and were never used
  std::uint64_t suppressed = 0;  // of its own, not sent because their receiver was past them
  std::uint64_t jumps = 0;       // of more than one iteration
  std::uint64_t skipped = 0;     // iterations, with them

  DurationNs waited_ns = 0;  // for others
  double cost_ns = 0;        // waiting of others that is owed to it
  // How often it was let go on so many iterations ahead of the slowest: of those who get its
  // updates, or of all where a store has them.
  std::map<Iteration, std::uint64_t> ahead;
};

// Where the shards are, or are to be.
struct PlacementRow {
  PlacementSet set;
  Instant since;
  std::optional<Instant> opened;
};

// The lowest value that this share of them, or more, does not exceed. REQUIRES: counts is not
// empty.
Iteration Quantile(const std::map<Iteration, std::uint64_t>& counts, double share);

struct Tokens {
  Iteration count = 0;
  Rank of = kNoRank;  // who would give them
};

// Takes the records of a run in order. Memory is that of the workers and of their last iterations.
class ExchangeMeter {
 public:
  using Graph = std::map<Rank, NeighboursSet>;

  void Add(const Record& record);
  // As PaceMeter::Options::on_wait.
  void OnWait(std::function<void(DurationNs)> on_wait) { on_wait_ = std::move(on_wait); }

  Instant start() const { return start_; }
  Instant now() const { return now_; }
  // By rank, also those who have gone.
  const std::map<Rank, ExchangeRow>& workers() const { return workers_; }
  // What is in force. Of a run that has ended, or is ending since a worker has finished, that of
  // the most workers, and of several such the one that was for longest: when workers finish, others
  // follow for those who are left. Empty: there is none.
  const Graph& graph() const { return ending_ ? fullest_graph_ : graph_; }
  // The same. Null: there is none.
  const PlacementRow* placement() const;

  // max_ig; 0: there are no token queues.
  int max_iteration_gap() const { return max_iteration_gap_; }
  const Plan& plan() const { return plan_; }
  // The lowest iteration of those who train; none without one.
  std::optional<Iteration> Slowest() const;
  // Among the queues that this worker takes from, the one with the fewest; none without token
  // queues.
  std::optional<Tokens> FewestTokens(Rank rank) const;
  // Workers that train and keep this one from going on: it needs their token, or their clock is too
  // low. Nobody, where no signal of it stands.
  std::vector<Rank> HeldBy(Rank rank) const;
  // Neighbours who have not entered the iteration whose update it needs, where there are more than
  // its backups; while no signal of it stands. It may compute yet.
  std::vector<Rank> UpdatesMissing(Rank rank) const;

  // Waiting that is owed to nobody: for updates to get there, or to be stored; for the controller.
  DurationNs moving_ns() const { return moving_ns_; }
  DurationNs controller_ns() const { return controller_ns_; }
  DurationNs waited_ns() const { return waited_ns_; }

 private:
  using Arrivals = std::vector<std::pair<Instant, Rank>>;
  // When it was in which iteration, or had stored which update, of the last ones.
  struct Track {
    std::map<Iteration, Instant> entered;
    bool cut = false;
    DurationNs step_ns = 0;
  };

  void OnReady(Instant now, Rank rank, const Ready& ready);
  void OnAnswer(Instant now, const QueryAnswered& answer);
  void OnJoined(Instant now, const WorkerJoined& joined);
  void Enter(Instant now, Rank rank, Iteration iteration);
  void Reach(Instant now, Rank rank, Iteration iteration);
  void CloseGraph(Instant now);
  void ClosePlacement(Instant now);
  // When it came to the iteration or beyond; the latest there is where it has not.
  Instant Reached(Rank rank, Iteration iteration) const;
  Arrivals UpdatesFor(Rank rank, Iteration iteration) const;
  Arrivals PermissionFor(Rank rank, Iteration next) const;
  // Gives what of the time is waiting for nobody. `spare`: so many need not come.
  DurationNs ShareOut(ExchangeRow* waiter, Instant from, Instant to, Arrivals arrivals,
                      std::size_t spare);

  std::function<void(DurationNs)> on_wait_;
  Instant start_, now_;
  bool ending_ = false;  // a worker has finished, and none has joined since
  Plan plan_;
  NeighbourPlan neighbours_;  // of the plan, where it has some
  int max_iteration_gap_ = 0;
  std::map<Rank, ExchangeRow> workers_;
  std::map<Rank, Track> tracks_;

  // Workers, and for how long.
  using Fullness = std::pair<std::size_t, DurationNs>;
  Graph graph_, fullest_graph_;
  Instant graph_since_;
  Fullness fullest_graph_rank_;
  std::optional<PlacementRow> placement_, fullest_placement_;
  Fullness fullest_placement_rank_;

  DurationNs moving_ns_ = 0;
  DurationNs controller_ns_ = 0;
  DurationNs waited_ns_ = 0;
};

}  // namespace prd::meters

#endif  // PRD_SERVER_METERS_EXCHANGE_H_
