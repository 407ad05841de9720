// Workers under engine `hop`, whose updates are there at once: what the engine's rules allow to
// happen, and nothing else. Follows each event by Hop's definitions, too simple to be wrong, and
// says where the engine decides otherwise.
#ifndef PRD_TESTS_ENGINES_HOP_WORLD_H_
#define PRD_TESTS_ENGINES_HOP_WORLD_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/prng.h"
#include "engines/engine.h"
#include "engines/hop/options.h"
#include "tests/engines/engine_driver.h"

namespace prd {

class HopWorld {
 public:
  HopWorld(const HopOptions& options, Engine* engine) : options_(options), engine_(engine) {}

  // Each of these returns "" or what is wrong.
  std::string Join(Rank rank, Iteration iteration = 0, const std::string& host = "h");
  std::string Leave(Rank rank, LeftReason why = LeftReason::kLost);
  std::string PassDeadline();
  // REQUIRES: CanSignal(rank).
  std::string Signal(Rank rank);

  // It has computed, and Recv of its iteration may end.
  bool CanSignal(Rank rank) const;
  std::vector<Rank> WhoCanSignal() const;
  std::vector<Rank> Present() const;
  bool Waits(Rank rank) const { return workers_.at(rank).waiting; }
  // That it has entered; with a jump, only after the Recv before it.
  Iteration Iter(Rank rank) const { return workers_.at(rank).entered; }
  int steps(Rank rank) const { return workers_.at(rank).steps; }

  // Random events, faults among them; then everybody must get on; then all leave one by one.
  std::string Storm(Prng* random, int events, Rank max_workers);
  std::string Calm(Prng* random, int steps);
  std::string Drain(Prng* random);

  const std::vector<Applied>& applied() const { return applied_; }
  int jumps() const { return jumps_; }
  int waits() const { return waits_; }
  int rewired() const { return rewired_; }
  std::size_t most_queued() const { return most_queued_; }

 private:
  struct Worker {
    Iteration let_into = 0;
    Iteration entered = 0;
    std::string host;
    std::map<Rank, InEdge> in;
    std::set<Rank> out;
    double own_weight = 1;
    std::uint32_t slots = 1;
    bool placed = false;
    bool waiting = false;
    bool jumped = false;  // let in by a jump; its next signal ends that
    std::map<Rank, std::set<Iteration>> received;
    std::set<Iteration> published;
    int steps = 0;
  };

  std::string Apply(const Event& event);
  std::string Heed(const Answer& answer);
  std::string Heed(const NeighboursSet& set);
  bool HasTokens(const Worker& worker) const;
  bool MayEndRecv(const Worker& worker, Iteration k) const;
  Iteration Target(const Worker& worker) const;
  void EnterWhoCan();
  void Publish(Rank rank, Iteration k);
  std::string CheckPlaced() const;

  const HopOptions options_;
  Engine* const engine_;
  Instant now_;
  GroupId next_group_ = 1;
  std::map<Rank, Worker> workers_;
  std::vector<Applied> applied_;
  int jumps_ = 0;
  int waits_ = 0;
  int rewired_ = 0;
  std::size_t most_queued_ = 0;  // updates of one neighbour's that were not used yet
};

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_HOP_WORLD_H_
