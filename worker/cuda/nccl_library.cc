#include "worker/cuda/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>

namespace prd::cuda {
namespace {

// "2.28.9" of 22809.
std::string NcclVersionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
         std::to_string(version % 100);
}

Status NoLibrary(const std::string& why) { return Status(Code::kUnavailable, why); }

template <typename F>
bool Find(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  return *function != nullptr;
}

Status FindAll(void* library, NcclLibrary* nccl) {
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto* function) {
    if (!Find(library, name, function) && missing == nullptr) missing = name;
  };
  find("ncclGetVersion", &nccl->GetVersion);
  find("ncclGetErrorString", &nccl->GetErrorString);
  find("ncclGetLastError", &nccl->GetLastError);
  find("ncclGetUniqueId", &nccl->GetUniqueId);
  find("ncclCommInitRankConfig", &nccl->CommInitRankConfig);
  find("ncclCommGetAsyncError", &nccl->CommGetAsyncError);
  find("ncclCommFinalize", &nccl->CommFinalize);
  find("ncclCommDestroy", &nccl->CommDestroy);
  find("ncclCommAbort", &nccl->CommAbort);
  find("ncclRedOpCreatePreMulSum", &nccl->RedOpCreatePreMulSum);
  find("ncclRedOpDestroy", &nccl->RedOpDestroy);
  find("ncclAllReduce", &nccl->AllReduce);
  find("ncclSend", &nccl->Send);
  find("ncclRecv", &nccl->Recv);
  find("ncclGroupStart", &nccl->GroupStart);
  find("ncclGroupEnd", &nccl->GroupEnd);
  if (missing == nullptr) return Status::Ok();
  return NoLibrary(std::string("it has no ") + missing);
}

Status Load(const std::string& path, NcclLibrary* nccl) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return NoLibrary(dlerror());
  PRD_RETURN_IF_ERROR(FindAll(library, nccl));
  int version = 0;
  if (nccl->GetVersion(&version) != ncclSuccess) return NoLibrary("ncclGetVersion failed");
  if (version < kOldestNccl) {
    return NoLibrary("it is NCCL " + NcclVersionText(version) + ", needed is " +
                     NcclVersionText(kOldestNccl) + " or newer");
  }
  const char* blocking = std::getenv("NCCL_COMM_BLOCKING");
  if (blocking != nullptr && std::string(blocking) == "1") {  // it wins over ncclConfig_t
    return NoLibrary("NCCL_COMM_BLOCKING=1 is set, and prd's communicators may not block");
  }
  nccl->version = NcclVersionText(version);
  return Status::Ok();
}

}  // namespace

const NcclLibrary& NcclLibrary::Get() {
  static const NcclLibrary library = [] {
    const char* named = std::getenv("PRD_NCCL_LIBRARY");
    const std::string path = named != nullptr && *named != '\0' ? named : "libnccl.so.2";
    NcclLibrary nccl;
    const Status status = Load(path, &nccl);
    if (!status.ok()) {
      nccl = NcclLibrary();
      nccl.status = Status(status.code(), "NCCL (" + path + "): " + status.message());
    }
    return nccl;
  }();
  return library;
}

}  // namespace prd::cuda
