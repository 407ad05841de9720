// Looks for misuse of a replica's tensors (SessionOptions::check_tensors). Slow: it reads all
// parameters twice in each call, and all gradients and parameters around `apply`.
#ifndef PRD_WORKER_TENSOR_WATCH_H_
#define PRD_WORKER_TENSOR_WATCH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "prd/replica.h"
#include "prd/status.h"
#include "worker/memory/layout.h"
#include "worker/memory/memory.h"

namespace prd {

// `memory`: where the tensors are; a device's are read through the host. Not thread safe. REQUIRES:
// the replica's tensors are not written during a call.
class TensorWatch {
 public:
  // Applies that may leave a parameter as it is although its gradient is not zero.
  static constexpr int kUnchanged = 16;

  TensorWatch(const std::vector<Tensor>& parameters, const std::vector<Tensor>& gradients);

  // At a call's end: remembers the parameters.
  void Note(Memory& memory);
  // At the next call's begin. kFailedPrecondition names a tensor that is not as it was. Remembers
  // it as it is now.
  Status Check(Memory& memory);

  void BeforeApply(Memory& memory);
  // What is to be said of tensors that have not changed for too long; each is named once.
  std::vector<std::string> AfterApply(Memory& memory);

 private:
  struct Watched {
    std::uint64_t digest = 0;
    bool gradient = false;  // has an element that is not zero
    int unchanged = 0;      // applies in a row
    bool named = false;
  };
  std::vector<std::uint64_t> Digests(Memory& memory) const;

  const std::vector<Tensor> parameters_;
  const std::vector<Tensor> gradients_;
  std::vector<std::uint64_t> zeros_;  // by gradient: the digest of one that is 0
  std::vector<Watched> watched_;      // by parameter
  std::vector<std::uint64_t> before_;
  bool noted_ = false;
};

}  // namespace prd

#endif  // PRD_WORKER_TENSOR_WATCH_H_
