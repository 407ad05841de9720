// The bugs of mesh_bugs.py, and whether they are found.
#ifndef PRD_TESTS_SIM_PLANTED_H_
#define PRD_TESTS_SIM_PLANTED_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

namespace prd::sim {

// Expects that the median of three bases is found within `seeds` seeds: that from two of them on,
// one of so many finds the bug, by breaks(seed), or a check that fails, a crash or a hang. Each
// seed has a process of its own.
void ExpectFound(const char* bug, std::uint64_t seeds,
                 const std::function<bool(std::uint64_t)>& breaks);

std::string NameOfBug(const testing::TestParamInfo<const char*>& info);

}  // namespace prd::sim

#endif  // PRD_TESTS_SIM_PLANTED_H_
