#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <system_error>

#include "worker/device/gpu.h"

namespace prd {
namespace {

[[maybe_unused]] constexpr char kModule[] = "libprd_cuda.so";
constexpr int kMaxDevice = 1023;

// cuda.h's cuPointerGetAttribute, CUpointer_attribute and CUmemorytype.
using PointerGetAttribute = int (*)(void* value, int attribute, std::uintptr_t pointer);
constexpr int kMemoryType = 2;
constexpr int kIsManaged = 8;
constexpr int kDeviceOrdinal = 9;
constexpr unsigned kOfDevice = 2;

Status Unavailable(const std::string& why) { return Status(Code::kUnavailable, why); }

// The folder of the library or program that this function is in, with a slash; empty if unknown.
[[maybe_unused]] std::string Folder() {
  Dl_info info;
  link_map* map = nullptr;
  void* here = reinterpret_cast<void*>(&Folder);
  if (dladdr1(here, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0) return "";
  std::string path = map != nullptr ? map->l_name : "";
  if (path.empty()) {  // the program itself
    char exe[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", exe, sizeof(exe));
    if (length > 0) path.assign(exe, static_cast<std::size_t>(length));
  }
  return path.substr(0, path.rfind('/') + 1);
}

Result<void*> Load(const std::string& path) {
  dlerror();
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module != nullptr) return module;
  const char* why = dlerror();
  return Unavailable(why != nullptr ? why : path + ": cannot be loaded");
}

// Never unloaded: CUDA's own threads and exit handlers are in it.
Result<void*> LoadModule(std::string* path) {
  if (const char* named = std::getenv("PRD_CUDA_MODULE"); named != nullptr && *named != '\0') {
    *path = named;
    Result<void*> module = Load(*path);
    if (module.ok()) return module;
    return Unavailable("the CUDA module that PRD_CUDA_MODULE names cannot be loaded: " +
                       module.status().message());
  }
#if PRD_HAS_CUDA
  *path = Folder() + kModule;
  Result<void*> beside = Load(*path);
  if (beside.ok()) return beside;
  if (access(path->c_str(), F_OK) == 0) {  // it is there, and of no use
    return Unavailable("the CUDA module cannot be loaded: " + beside.status().message());
  }
  *path = kModule;
  Result<void*> installed = Load(*path);
  if (installed.ok()) return installed;
  return Unavailable("the CUDA module is not there: tried " + Folder() + kModule + "; " +
                     installed.status().message());
#else
  return Unavailable(
      "this prd was built without CUDA; build it where a CUDA toolkit is, or let PRD_CUDA_MODULE "
      "name a module of the same version");
#endif
}

}  // namespace

Result<std::shared_ptr<Gpu>> OpenGpu(int device) {
  std::string path;
  const Result<void*> module = LoadModule(&path);
  if (!module.ok()) return module.status();
  const auto open = reinterpret_cast<GpuOpen>(dlsym(*module, "prd_gpu_open"));
  if (open == nullptr) return Unavailable(path + " is not a CUDA module of prd: no prd_gpu_open");
  char error[1024] = "";
  Gpu* gpu = open(kGpuInterface, PRD_VERSION, device, error, sizeof(error));
  if (gpu == nullptr) {
    return Unavailable("cuda:" + std::to_string(device) + ": " +
                       (error[0] != '\0' ? error : path + " gave no device and no reason"));
  }
  return std::shared_ptr<Gpu>(gpu);
}

HostPointers::HostPointers() : driver_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)) {}

HostPointers::~HostPointers() {
  if (driver_ != nullptr) dlclose(driver_);
}

Status HostPointers::Check(const void* data) const {
  if (driver_ == nullptr) return Status::Ok();
  const auto get = reinterpret_cast<PointerGetAttribute>(dlsym(driver_, "cuPointerGetAttribute"));
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  unsigned type = 0;
  unsigned managed = 0;
  int device = -1;
  // It gives an error for memory that it does not know.
  const bool known = get != nullptr && get(&type, kMemoryType, at) == 0 &&
                     get(&managed, kIsManaged, at) == 0 && get(&device, kDeviceOrdinal, at) == 0;
  if (!known || type != kOfDevice || managed != 0) return Status::Ok();
  const std::string name = "cuda:" + std::to_string(device);
  return Status(Code::kInvalidArgument, "it is memory of " + name +
                                            ", and the replica's device is the processor; let "
                                            "Replica::device be " +
                                            name);
}

Result<std::optional<int>> ParseDevice(const std::string& device) {
  if (device.empty() || device == "cpu") return std::optional<int>();
  if (device == "cuda") return std::optional<int>(0);
  constexpr char kPrefix[] = "cuda:";
  int number = -1;
  if (device.starts_with(kPrefix)) {
    const char* begin = device.data() + sizeof(kPrefix) - 1;
    const char* end = device.data() + device.size();
    const auto [stop, error] = std::from_chars(begin, end, number);
    if (error != std::errc() || stop != end || *begin == '-') number = -1;
  }
  if (number < 0 || number > kMaxDevice) {
    return Status(Code::kInvalidArgument,
                  "device: found '" + device.substr(0, 64) +
                      "', allowed is cpu, cuda or cuda:0 to cuda:" + std::to_string(kMaxDevice));
  }
  return std::optional<int>(number);
}

}  // namespace prd
