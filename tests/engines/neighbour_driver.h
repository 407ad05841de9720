// Workers that exchange updates with their neighbours, which are there at once: a worker signals
// once Recv of its iteration may end (Luo et al., ASPLOS 2019, Figures 4, 8 and 9).
#ifndef PRD_TESTS_ENGINES_NEIGHBOUR_DRIVER_H_
#define PRD_TESTS_ENGINES_NEIGHBOUR_DRIVER_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/engines/engine_driver.h"

namespace prd {

class NeighbourDriver final : public EngineDriver {
 public:
  explicit NeighbourDriver(Engine* engine, std::uint64_t seed = 1, Rank max_workers = 1)
      : EngineDriver(engine, seed, max_workers, 2 * kMillisecond, 3) {}

  // Each of these returns "" or what is wrong.
  std::string Join(Rank rank, Iteration iteration = 0, const std::string& host = "h");
  std::string Leave(Rank rank, LeftReason why = LeftReason::kLost);
  // REQUIRES: CanSignal(rank).
  std::string Signal(Rank rank);

  // It has computed, and Recv of its iteration may end.
  bool CanSignal(Rank rank) const;
  std::vector<Rank> WhoCanSignal() const;
  std::vector<Rank> Present() const override;
  bool Waits(Rank rank) const { return workers_.at(rank).waiting; }
  // That it has entered; with a jump, only after the Recv before it.
  Iteration Iter(Rank rank) const { return workers_.at(rank).entered; }
  std::size_t most_queued() const { return most_queued_; }

 private:
  struct Worker {
    Iteration let_into = 0;
    Iteration entered = 0;
    std::map<Rank, Iteration> in;  // the first iteration whose updates come
    std::set<Rank> out;
    bool placed = false;
    bool waiting = false;
    std::map<Rank, std::set<Iteration>> received;
    std::set<Iteration> published;
    int steps = 0;
  };

  std::string Heed(const Effect& effect, const Event& cause) override;
  std::string Look() override;
  std::string JoinOne() override;
  std::string LeaveOne(Rank rank) override;
  bool Act(bool storms, std::uint64_t dice, std::string* wrong) override;
  void ForgetSteps() override;
  bool AllHave(int steps) const override;

  bool MayEndRecv(const Worker& worker, Iteration k) const;
  void Publish(Rank rank, Iteration k);
  void EnterWhoCan();

  std::map<Rank, Worker> workers_;
  std::set<Rank> told_;          // their neighbours, on the event at hand
  std::size_t most_queued_ = 0;  // updates of one neighbour's that were not used yet
};

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_NEIGHBOUR_DRIVER_H_
