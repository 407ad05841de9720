#include <charconv>
#include <cstdio>
#include <string>

#include "tests/gpu/gpu_test.h"

namespace prd::testing {
namespace {

std::shared_ptr<Gpu>& Opened() {
  static std::shared_ptr<Gpu> gpu;
  return gpu;
}

struct Flags {
  bool require_gpu = false;
  std::string device = "cuda";
  bool list = false;  // GoogleTest's own: nothing is run
};

// GoogleTest has taken its own flags, but for what only looks like one.
bool Parse(int argc, char** argv, Flags* flags) {
  const std::string device = "--device=";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--require-gpu") {
      flags->require_gpu = true;
    } else if (argument.starts_with(device)) {
      flags->device = "cuda:" + argument.substr(device.size());
    } else {
      std::fprintf(stderr,
                   "prd-gpu-test: found '%s', allowed is --require-gpu, --device=N and %s\n",
                   argv[i], "GoogleTest's flags");
      return false;
    }
  }
  flags->list = GTEST_FLAG_GET(list_tests);
  return true;
}

int Run(const Flags& flags) {
  if (flags.list) return RUN_ALL_TESTS();
  const auto device = ParseDevice(flags.device);
  if (!device.ok() || !device->has_value()) {
    std::fprintf(stderr, "prd-gpu-test: %s\n", device.status().ToString().c_str());
    return 2;
  }
  auto gpu = OpenGpu(**device);
  if (!gpu.ok()) {
    std::printf("no GPU, and nothing tested: %s\n", gpu.status().ToString().c_str());
    return flags.require_gpu ? 1 : 0;
  }
  Opened() = *gpu;
  std::printf("%s, CUDA %s, NCCL %s\n", Opened()->name().c_str(), Opened()->cuda_version().c_str(),
              Opened()->nccl().ok() ? Opened()->nccl_version().c_str()
                                    : Opened()->nccl().ToString().c_str());
  const int result = RUN_ALL_TESTS();
  Opened().reset();
  return result;
}

}  // namespace

const std::shared_ptr<Gpu>& TheGpu() { return Opened(); }

}  // namespace prd::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  prd::testing::Flags flags;
  if (!prd::testing::Parse(argc, argv, &flags)) return 2;
  return prd::testing::Run(flags);
}
