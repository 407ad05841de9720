#include "tests/sim/planted.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace prd::sim {

const char* planted_mesh_bug = nullptr;

namespace {

// Which seed finds it first, from `first` on; 0: none.
std::uint64_t FoundBy(const char* bug, std::uint64_t first, std::uint64_t seeds,
                      const std::function<bool(std::uint64_t)>& breaks) {
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    const pid_t child = fork();
    if (child == 0) {
      if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(2);
      planted_mesh_bug = bug;
      alarm(20);
      _exit(breaks(seed) ? 1 : 0);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      return seed;
    }
  }
  return 0;
}

}  // namespace

void ExpectFound(const char* bug, std::uint64_t seeds,
                 const std::function<bool(std::uint64_t)>& breaks) {
  std::string at;
  int bases = 0;  // from which it is found
  for (const std::uint64_t first : {1u, 100'001u, 200'001u}) {
    const std::uint64_t seed = FoundBy(bug, first, seeds, breaks);
    at += " " + (seed == 0 ? "-" : std::to_string(seed - first + 1));
    if (seed != 0) ++bases;
  }
  EXPECT_GE(bases, 2) << bug << " is found by seed" << at << " of three bases";
  testing::Test::RecordProperty("seeds", at);
  std::printf("%s is found by seed%s of three bases\n", bug, at.c_str());
}

std::string NameOfBug(const testing::TestParamInfo<const char*>& info) {
  std::string name(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace prd::sim
