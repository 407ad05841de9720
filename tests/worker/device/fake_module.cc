// A module that has no device, and says what it was asked.
#include <cstddef>
#include <cstdio>

#include "worker/device/gpu.h"

extern "C" prd::Gpu* prd_gpu_open(int interface, const char* version, int device, char* error,
                                  std::size_t error_bytes) {
  std::snprintf(error, error_bytes, "a fake of interface %d was asked for device %d by prd %s",
                interface, device, version);
  return nullptr;
}
