// The commands of prdsim, each from its options to its output. All print to stdout and return the
// program's exit code: 0 ok, 1 an error and 2 wrong usage (both said on stderr), 3 an invariant is
// broken.
#ifndef PRD_TOOLS_SIM_COMMANDS_H_
#define PRD_TOOLS_SIM_COMMANDS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/sim/plane.h"

namespace prd::sim {

struct CommandOptions {
  std::vector<std::string> files;    // workloads, in order; or the history to replay
  std::vector<std::string> engines;  // ParseEngine's texts
  std::uint64_t seed = 1;
  std::uint64_t seeds = 1000;  // sweep, mesh
  std::uint64_t runs = 1;      // compare: per engine
  std::int64_t workers = 0;    // instead of the workload's; 0: as it says
  std::int64_t steps = -1;     // the same; -1
  double seconds = 0;          // the same; 0
  int threads = 2;
  bool json = false;
  bool trace = false;
  bool as_is = false;    // sweep: do not vary the workloads
  bool once = false;     // sweep: do not run seeds twice
  MakePlane plane = {};  // run, sweep: RunOptions'; `prdsim ... --mesh`
  std::string mutation = "none";
  std::string timeline;  // files to draw
  std::string loss;
  std::string against;  // replay: a history to compare the prediction with
  double timeline_s = 0;
  std::int64_t updates = 2000;  // papers
};

// Prints what happens, if it is to be printed: beside JSON, to stderr.
std::function<void(const std::string&)> Tracer(const CommandOptions& options);

// Exit codes.
inline constexpr int kError = 1, kUsage = 2, kBroken = 3, kInterrupted = 130;

int RunOnce(const CommandOptions& options);
int RunSweep(const CommandOptions& options);
// From the first call on Ctrl-C only says that no further seed is run; a second one ends at once.
// Whether it has been pressed.
bool Interrupted();
int RunCompare(const CommandOptions& options);
int RunReplay(const CommandOptions& options);
int RunMeshSweep(const CommandOptions& options);  // mesh_command.cc
int RunPapersCommand(const CommandOptions& options);

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_COMMANDS_H_
