// What a worker and the controller have said to each other: the signal that stands, and in which
// run the worker's replica was trained.
//
//   told        a Hello says the iteration of the parameters that the worker brings
//   run-ahead   in the background, a step returns only while the signal that stands is not older
//               than the plan allows: of so many synchronising steps, its own among them
#ifndef PRD_TOOLS_SIM_DIALOGUE_H_
#define PRD_TOOLS_SIM_DIALOGUE_H_

#include <cstdint>

#include "common/base/messages.h"
#include "tools/sim/world.h"

namespace prd::sim {

class Dialogue {
 public:
  void Init(World* world, std::uint32_t worker) {
    world_ = world;
    worker_ = worker;
  }

  // The worker is another incarnation.
  void Anew() {
    greeted_ = false;
    signal_ = said_ = heard_ = 0;
  }
  // It says this. Gives whether that is a signal that it says for the first time. Throws Violation.
  bool Says(const WorkerEnvelope& envelope);
  // This incarnation, `self`, is told this. Gives whether it is the next in order.
  bool Hears(const ControllerEnvelope& envelope, Incarnation self);
  // A signal stands no more.
  void Answered() { signal_ = 0; }
  // A step has been made.
  void Stepped() { ++since_signal_; }
  // A step of this plan returns.
  void CheckRunAhead(const Plan& plan) const;

  // The run that the worker's replica was trained in, by its number (run_table.h).
  RunId former() const { return former_; }

 private:
  void OnHello(const Hello& hello);

  World* world_ = nullptr;
  std::uint32_t worker_ = 0;
  bool greeted_ = false;           // this incarnation has said Hello,
  RunId former_ = kNoRun;          // and that its replica is of this run
  Seq signal_ = 0;                 // the newest, as long as it stands; 0: none does
  Seq said_ = 0;                   // the newest
  Seq heard_ = 0;                  // the controller's newest message in order
  std::int64_t since_signal_ = 0;  // steps completed, its own among them
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_DIALOGUE_H_
