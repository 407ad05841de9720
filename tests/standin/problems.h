// What was done with the stand-in that CUDA or NCCL does not allow. Tests want it empty.
#ifndef PRD_TESTS_STANDIN_PROBLEMS_H_
#define PRD_TESTS_STANDIN_PROBLEMS_H_

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace prd::testing {

// Threads: any.
class Problems {
 public:
  // `fatal`: of a process that nobody asks: the first one ends it.
  explicit Problems(bool fatal = false) : fatal_(fatal) {}

  void Add(std::string what) {
    if (fatal_) {
      std::fprintf(stderr, "stand-in for CUDA and NCCL: problem: %s\n", what.c_str());
      std::abort();
    }
    const std::lock_guard lock(mutex_);
    list_.push_back(std::move(what));
  }
  std::vector<std::string> list() const {
    const std::lock_guard lock(mutex_);
    return list_;
  }

 private:
  const bool fatal_;
  mutable std::mutex mutex_;
  std::vector<std::string> list_;
};

}  // namespace prd::testing

#endif  // PRD_TESTS_STANDIN_PROBLEMS_H_
