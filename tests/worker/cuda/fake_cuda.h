// What the fake of CUDA's runtime (fake_cuda.cc) shall do.
#ifndef PRD_TESTS_WORKER_CUDA_FAKE_CUDA_H_
#define PRD_TESTS_WORKER_CUDA_FAKE_CUDA_H_

namespace prd::testing {

// Events that are asked about are not reached yet.
void FakeCudaRuns(bool so);
// Whether a memory pool can be made; the device says that it has them in either case.
void FakeCudaHasPools(bool so);

}  // namespace prd::testing

#endif  // PRD_TESTS_WORKER_CUDA_FAKE_CUDA_H_
