// Finding, loading and refusing the CUDA module, on a host without a GPU.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "worker/device/gpu.h"

namespace prd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// An environment variable for the life of this object.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    const char* before = std::getenv(name);
    if (before != nullptr) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() {
    if (before_.has_value()) {
      setenv(name_, before_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

std::string Output(const std::string& command) {
  std::string output;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  char buffer[4096];
  for (std::size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  return pclose(pipe) == 0 ? output : "";
}

Status OpenWith(const std::string& module, int device = 0) {
  const Variable variable("PRD_CUDA_MODULE", module);
  return OpenGpu(device).status();
}

TEST(HostPointersTest, RefusesADevicesMemoryOnceADriverIsThere) {
  const std::byte host[8] = {};
  EXPECT_TRUE(HostPointers().Check(host).ok());
  void* driver = dlopen(PRD_FAKE_DRIVER, RTLD_NOW);
  ASSERT_NE(driver, nullptr) << dlerror();
  const auto* device = static_cast<const std::byte*>(dlsym(driver, "prd_fake_device_memory"));
  const void* managed = dlsym(driver, "prd_fake_managed_memory");
  ASSERT_TRUE(device != nullptr && managed != nullptr);
  EXPECT_TRUE(HostPointers().Check(host).ok());
  EXPECT_TRUE(HostPointers().Check(managed).ok());
  for (const Status& status : {HostPointers().Check(device), HostPointers().Check(device + 63)}) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("memory of cuda:3"));
    EXPECT_THAT(status.message(), HasSubstr("Replica::device"));
  }
  dlclose(driver);
  EXPECT_TRUE(HostPointers().Check(device).ok());
}

TEST(ParseDeviceTest, NamesTheProcessorOrOneDevice) {
  EXPECT_EQ(*ParseDevice(""), std::nullopt);
  EXPECT_EQ(*ParseDevice("cpu"), std::nullopt);
  EXPECT_EQ(*ParseDevice("cuda"), 0);
  EXPECT_EQ(*ParseDevice("cuda:0"), 0);
  EXPECT_EQ(*ParseDevice("cuda:7"), 7);
  EXPECT_EQ(*ParseDevice("cuda:1023"), 1023);
}

TEST(ParseDeviceTest, RefusesTheRest) {
  const std::vector<std::string> wrong = {"gpu",       "cuda:",
                                          "cuda:-1",   "cuda:+1",
                                          "cuda:1 ",   " cuda:1",
                                          "cuda:1024", "cuda:0x1",
                                          "cuda:1:2",  "CUDA:0",
                                          "cuda 0",    "cuda:99999999999999999999",
                                          "cpu:0",     std::string("cuda:0\0", 7),
                                          "cuda:-0",   std::string(1000, 'x')};
  for (const std::string& device : wrong) {
    const auto found = ParseDevice(device);
    EXPECT_EQ(found.status().code(), Code::kInvalidArgument) << device;
    EXPECT_THAT(found.status().message(), HasSubstr("allowed is cpu, cuda or cuda:0 to cuda:1023"));
    EXPECT_LT(found.status().message().size(), 200u);
  }
}

TEST(ModuleTest, OneThatIsNotThereIsNamed) {
  const Status status = OpenWith("/nowhere/libprd_cuda.so");
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("PRD_CUDA_MODULE"));
  EXPECT_THAT(status.message(), HasSubstr("/nowhere/libprd_cuda.so: cannot open shared object"));
}

TEST(ModuleTest, AFileThatIsNoLibraryIsNamed) {
  const std::string path = ::testing::TempDir() + "/prd_no_library.so";
  std::ofstream(path) << "not a library, but long enough to be looked at as one: " << path << "\n";
  const Status status = OpenWith(path);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(path));
  std::remove(path.c_str());
}

TEST(ModuleTest, ALibraryThatIsNoModuleIsRefused) {
  const Status status = OpenWith("libm.so.6");
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("libm.so.6 is not a CUDA module of prd"));
}

// fake_module.cc gives back what it was asked.
TEST(ModuleTest, TheModulesOwnReasonIsGiven) {
  const Status status = OpenWith(PRD_FAKE_MODULE, 3);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(), "cuda:3: a fake of interface " + std::to_string(kGpuInterface) +
                                  " was asked for device 3 by prd " PRD_VERSION);
}

#if PRD_HAS_CUDA

const std::string kModule = PRD_BIN_DIR "/libprd_cuda.so";

class Module {
 public:
  Module() : handle_(dlopen(kModule.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ != nullptr) open = reinterpret_cast<GpuOpen>(dlsym(handle_, "prd_gpu_open"));
  }
  GpuOpen open = nullptr;

 private:
  void* handle_;  // stays, as in OpenGpu
};

TEST(ModuleTest, AnotherVersionIsRefused) {
  const Module module;
  ASSERT_NE(module.open, nullptr) << dlerror();
  char error[256] = "";
  EXPECT_EQ(module.open(kGpuInterface + 1, PRD_VERSION, 0, error, sizeof(error)), nullptr);
  EXPECT_THAT(error, HasSubstr("the library of prd " PRD_VERSION " (interface " +
                               std::to_string(kGpuInterface + 1) + ")"));
  EXPECT_EQ(module.open(kGpuInterface, "0.0.1", 0, error, sizeof(error)), nullptr);
  EXPECT_THAT(error, HasSubstr("the CUDA module is of prd " PRD_VERSION));
  EXPECT_THAT(error, HasSubstr("the library of prd 0.0.1"));
}

TEST(ModuleTest, AReasonIsCutToItsPlace) {
  const Module module;
  ASSERT_NE(module.open, nullptr) << dlerror();
  char error[16];
  std::fill(std::begin(error), std::end(error), 'x');
  EXPECT_EQ(module.open(kGpuInterface + 1, PRD_VERSION, 0, error, 8), nullptr);
  EXPECT_STREQ(error, "the CUD");
  EXPECT_EQ(error[8], 'x');
}

TEST(ModuleTest, WithoutADriverItSaysSo) {
  const auto gpu = OpenGpu(0);  // found beside this program
  if (gpu.ok()) GTEST_SKIP() << "this host has a driver and " << (*gpu)->name();
  EXPECT_EQ(gpu.status().code(), Code::kUnavailable);
  if (gpu.status().message().find("driver is missing") == std::string::npos) {
    GTEST_SKIP() << "this host has a driver: " << gpu.status().ToString();
  }
  EXPECT_THAT(gpu.status().message(),
              HasSubstr("cuda:0: the NVIDIA driver is missing or older than CUDA "));
  EXPECT_THAT(gpu.status().message(), HasSubstr("found "));
}

// A host without a driver, a CUDA toolkit or NCCL can load it.
TEST(ModuleTest, NeedsNeitherDriverNorToolkitNorNccl) {
  const std::string needed = Output("readelf -d " + kModule);
  ASSERT_THAT(needed, HasSubstr("(NEEDED)"));
  for (const char* library : {"libcuda", "libcudart", "libnccl"}) {
    EXPECT_THAT(needed, Not(HasSubstr(library)));
  }
}

TEST(ModuleTest, ExportsOneFunction) {
  const std::string symbols = Output("nm -D --defined-only " + kModule);
  EXPECT_THAT(symbols, ::testing::EndsWith(" T prd_gpu_open\n"));
  EXPECT_EQ(std::count(symbols.begin(), symbols.end(), '\n'), 1) << symbols;
}

#else

TEST(ModuleTest, WithoutCudaItSaysSo) {
  unsetenv("PRD_CUDA_MODULE");
  const Status status = OpenGpu(0).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("built without CUDA"));
}

#endif

// Training binaries start where neither the module nor what it uses is.
TEST(ModuleTest, TheWorkerLibraryDoesNotNeedIt) {
  const std::string needed = Output("readelf -d " PRD_BIN_DIR "/../worker/libprd.so");
  ASSERT_THAT(needed, HasSubstr("(NEEDED)"));
  for (const char* library : {"libprd_cuda", "libcuda", "libcudart", "libnccl"}) {
    EXPECT_THAT(needed, Not(HasSubstr(library)));
  }
}

}  // namespace
}  // namespace prd
