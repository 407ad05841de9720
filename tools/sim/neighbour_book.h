// What workers do with their neighbours' updates (NeighbourPlan), beside the graph that
// each was told of last and the iterations that all of them really are in.
//
// update-age: an update that is used in iteration k is of iteration k, or with a staleness s of k -
// s or later (Hop, sections 4.1 and 4.4), and of an in-neighbour.
//
// update-count: of so many neighbours as the backups allow none is used (section 4.3). Of those
// that skip the iteration, or whose edge is newer, none is waited for.
//
// update-weights: an average's weights sum to 1, and stand to each other as the graph's, times
// Equation 2's factor with a staleness.
//
// recursion: x_i(k+1) = sum over j of W_ij x_j(k) - gradient of x_i(k). What a worker sends as its
// update of iteration k, and what it averages with its neighbours' first, is the replica that it
// entered k with; in the serial order with one gradient of its own applied, unless its step was
// discarded. What it uses of a neighbour is what that one sent.
//
// queue: never more updates of a neighbour, kept or on their way, than there are slots (with a
// staleness: one kept, one on its way), and slots times the in-degree in all (section 4.2).
//
// in-edge: who enters an iteration is at most s + 1 ahead of each in-neighbour, or no further ahead
// than when it was told of it (Theorem 1, Table 1).
//
// entry: a worker enters the iteration that it was answered, and no other.
#ifndef PRD_TOOLS_SIM_NEIGHBOUR_BOOK_H_
#define PRD_TOOLS_SIM_NEIGHBOUR_BOOK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/base/messages.h"
#include "tools/sim/stats.h"
#include "tools/sim/world.h"

namespace prd::sim {

class NeighbourBook {
 public:
  // `plan` as the engine of the first run has it, whatever workers are told.
  NeighbourBook(const World* world, const NeighbourPlan& plan, Stats* stats)
      : world_(world),
        plans_(world->replicas.size(), plan),
        stats_(stats),
        sides_(world->replicas.size()) {}

  void Gone(std::uint32_t worker) { sides_[worker] = {}; }
  // It is in a run of this plan now.
  void Joins(std::uint32_t worker, const NeighbourPlan& plan) { plans_[worker] = plan; }
  // Its core is told these next.
  void Told(std::uint32_t worker, const Neighbourhood& hood);
  void Answered(std::uint32_t worker, Iteration next) { sides_[worker].answered = next; }
  // It has what it needs to enter this iteration.
  void Asks(std::uint32_t worker, Iteration next) { sides_[worker].asked = next; }

  // It asks for an update while it keeps or awaits so many others: of this neighbour, and in all.
  void Pulls(std::uint32_t worker, Incarnation from, std::size_t of_it, std::size_t all) const;
  void Received(std::uint32_t worker, Incarnation from, Iteration iteration);
  // It is offered an update, before which its neighbour's last one was of iteration `last`.
  void Offered(std::uint32_t worker, Incarnation from, Iteration last, Iteration iteration);
  struct Used {
    Incarnation from = 0;
    Iteration iteration = 0;
    double weight = 0;
    std::uint64_t tag = 0;  // as Replica::tag
  };
  // It sends its replica as it is as its update of this iteration.
  void Publishes(std::uint32_t worker, Iteration iteration);
  void Mixes(std::uint32_t worker, double own_weight, const std::vector<Used>& updates);
  // Before its replica has that iteration.
  void Enters(std::uint32_t worker, Iteration iteration);

 private:
  struct Edge {
    Iteration from = 0;
    double weight = 0;
    std::set<Iteration> lost;  // had come when the edge ended, before it began again
    Iteration ahead = 0;  // of the neighbour, what this worker had asked to enter when it was told
    std::optional<Iteration> received;  // the newest
    std::set<Iteration> skipped;        // by the neighbour
    std::set<Iteration> here;           // all that were received
  };
  struct Side {
    std::map<Incarnation, Edge> in;
    std::map<Incarnation, Edge> before;  // edges that ended, and may begin again
    double own_weight = 1;
    std::size_t slots = 1;
    Iteration at = 0;
    Iteration asked = 0;
    std::optional<Iteration> answered;  // not entered yet
    // Tag of the replica that it entered its iteration with, once it has entered one.
    std::optional<std::uint64_t> entered;
    bool mixed = false;                            // since then
    std::map<Iteration, std::uint64_t> published;  // tags of the updates that it has sent
  };
  void CheckEntered(std::uint32_t worker, const char* what) const;
  void CheckSent(std::uint32_t worker, const Used& used) const;
  bool Fits(std::uint32_t worker, Iteration iteration, const std::vector<Used>& updates) const;
  void CheckMix(std::uint32_t worker, Iteration iteration, double own_weight,
                const std::vector<Used>& updates) const;
  void CheckCount(std::uint32_t worker, Iteration iteration,
                  const std::vector<Used>& updates) const;
  void CheckWeights(std::uint32_t worker, Iteration iteration, double own_weight,
                    const std::vector<Used>& updates) const;

  const World* world_;
  std::vector<NeighbourPlan> plans_;  // by worker
  Stats* stats_;
  std::vector<Side> sides_;  // by worker
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_NEIGHBOUR_BOOK_H_
