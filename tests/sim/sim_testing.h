// Shared by the tests of the simulator.
#ifndef PRD_TESTS_SIM_SIM_TESTING_H_
#define PRD_TESTS_SIM_SIM_TESTING_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engines/violation.h"
#include "tools/sim/workload.h"

namespace prd::sim {

// A workload of tests/sim by its path there; fails hard when it does not load.
Workload Loaded(const std::string& path);

// All of tests/sim/faults, by name.
std::vector<Workload> FaultWorkloads();

// From TOML text, over the defaults.
Workload FromText(const std::string& text);

// Calls `what`, and fails the test unless that breaks this invariant.
template <typename F>
void Breaks(const std::string& invariant, F&& what) {
  try {
    what();
    ADD_FAILURE() << invariant << " is not found broken";
  } catch (const Violation& violation) {
    EXPECT_EQ(violation.invariant(), invariant) << violation.what();
  }
}

}  // namespace prd::sim

#endif  // PRD_TESTS_SIM_SIM_TESTING_H_
