// An operator, who does whatever operators do while the job is in any state: much of it is refused.
// What it has paused it resumes, whatever goes wrong.
#ifndef PRD_TOOLS_SIM_OPERATOR_H_
#define PRD_TOOLS_SIM_OPERATOR_H_

#include <string>

#include "tools/sim/sim_controller.h"
#include "tools/sim/world.h"

namespace prd::sim {

class Operator {
 public:
  Operator(World* world, SimController* controller) : world_(world), controller_(controller) {}

  // What comes to its mind in this share of a second.
  void Act(double share);
  // The controller has forgotten something, perhaps that a paused job was to go on.
  void Forgot();
  // It is to resume what it has paused.
  bool resumes() const { return resumes_at_.ns > 0; }

 private:
  bool Switch(const std::string& engine);

  World* world_;
  SimController* controller_;
  Instant resumes_at_;     // what is paused
  bool switched_ = false;  // at switch_at_ms
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_OPERATOR_H_
