#include "tests/sim/sim_testing.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace prd::sim {
namespace {

void MustBeOk(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

}  // namespace

Workload Loaded(const std::string& path) {
  Workload workload;
  MustBeOk(LoadWorkload(SIM_TESTS_DIR "/" + path, &workload));
  MustBeOk(CheckWorkload(workload));
  return workload;
}

std::vector<Workload> FaultWorkloads() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(SIM_TESTS_DIR "/faults")) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  std::vector<Workload> workloads;
  for (const std::string& name : names) workloads.push_back(Loaded("faults/" + name));
  return workloads;
}

Workload FromText(const std::string& text) {
  Workload workload;
  MustBeOk(ReadWorkload(text, "test", &workload));
  MustBeOk(CheckWorkload(workload));
  return workload;
}

}  // namespace prd::sim
