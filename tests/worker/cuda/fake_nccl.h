// What the fake of NCCL (fake_nccl.cc) was asked, and what it shall do; by its own C functions, as
// it is loaded and not linked.
#ifndef PRD_TESTS_WORKER_CUDA_FAKE_NCCL_H_
#define PRD_TESTS_WORKER_CUDA_FAKE_NCCL_H_

namespace prd::testing {

struct FakeNccl {
  int version = 22809;
  // ncclCommGetAsyncError says ncclInProgress so often after each call.
  int busy = 0;
  int inits = 0, aborts = 0, finalized = 0, destroyed = 0, comms = 0;
  int aborts_together = 0;                // ncclCommAbort returns when there were so many
  bool finalize_hangs = false;            // until the communicator is aborted
  int operators = 0, most_operators = 0;  // that are there
  int groups = 0;
  bool init_blocks = false;  // until it is false again
  int wrong = 0;             // what NCCL does not allow: see stderr
};
using FakeNcclGet = FakeNccl* (*)();  // "fake_nccl"

}  // namespace prd::testing

#endif  // PRD_TESTS_WORKER_CUDA_FAKE_NCCL_H_
