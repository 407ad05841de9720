// Prints what the simulation in tools/reference gives, for the demo's own to be compared with:
//   demo_reference GROUP_SIZE UPDATES STEP_S...
#include <cstdio>
#include <cstdlib>

#include "tools/reference/fifo_reference.h"

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  prd::StepTimes times;
  for (int i = 3; i < argc; ++i) times.mean_s.push_back(std::strtod(argv[i], nullptr));
  const int group_size = std::atoi(argv[1]);
  std::printf("%.17g %.17g\n", prd::FifoUpdatesPerSecond(times, group_size, std::atoll(argv[2])),
              prd::UpdateBound(times, group_size));
  return 0;
}
