// What the stand-in's module has besides, for standin_worker.cc: work on a stream is put there by
// the module's own code, since the waits of std::atomic do not reach from one image to another.
#include <utility>

#include "tests/standin/device.h"

extern "C" {

prd::testing::StandInDevice* prd_standin_device(int device);

// False: it was refused.
bool prd_standin_enqueue(int device, void* stream,
                         prd::testing::StandInDevice::Operation* operation) {
  return prd_standin_device(device)->Enqueue(stream, std::move(*operation)).ok();
}

}  // extern "C"
