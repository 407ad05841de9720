// prdbench decide: what an engine's decisions cost.
#ifndef PRD_TOOLS_PRDBENCH_DECIDE_H_
#define PRD_TOOLS_PRDBENCH_DECIDE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engines/any_engine.h"

namespace prd::bench {

struct DecideCost {
  std::int64_t workers = 0;
  double ns_per_signal = 0;  // median of the rounds
};

// The cost of the engine alone, per ready signal, at each of these numbers of workers: its share of
// Ready, Finished and Ended events, and the groups it gives. The workers run in a closed loop in
// virtual time: steps of 100 ms +- 50%, reductions of 2 ms +- 50%, so that they come back in an
// order of their own. The events are worked out beforehand, and only the engine is timed; the sizes
// take turns, so that a noisy machine treats them alike.
std::vector<DecideCost> MeasureDecide(const EngineOptions& options,
                                      const std::vector<std::int64_t>& workers,
                                      std::int64_t signals_per_round, int rounds);

// What can be measured: every engine with its default options, and some with others.
std::vector<std::string> DecideEngines();

struct DecideOptions {
  std::vector<std::string> engines;  // of DecideEngines; empty: all
  bool json = false;
};

// These engines at 8, 100, 10,000 and 100,000 workers, to standard output, engine by engine;
// progress goes to stderr.
// With json, a line per result: {"bench":"decide","engine":"NAME","workers":100,
// "ns_per_signal":..}. Returns the exit code.
int BenchDecide(const DecideOptions& options);

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_DECIDE_H_
