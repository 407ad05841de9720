// The CNN's kernels on a GPU, by the CUDA runtime alone. Where prd is built without CUDA, so is
// nothing of this.
#ifndef PRD_WORKER_EXAMPLES_CNN_CUDA_H_
#define PRD_WORKER_EXAMPLES_CNN_CUDA_H_

#include <memory>

#include "worker/examples/cnn.h"

namespace example {

// GPU number `device`, with a stream of its own beside the default stream. Used by the thread that
// makes it. Throws std::runtime_error.
std::unique_ptr<CnnDevice> MakeCudaDevice(int device);

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_CNN_CUDA_H_
