#include "common/io/heap.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <thread>
#include <vector>

namespace prd {
namespace {

// Each process has one first call, so this takes many. Without the lock, AddressSanitizer's
// allocator in glibc's place, 8% of them crash.
TEST(HeapTest, ManyThreadsTrimItFirst) {
  constexpr int kProcesses = 100;
  constexpr int kThreads = 8;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      std::barrier start(kThreads);
      std::vector<std::thread> threads;
      for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&start] {
          start.arrive_and_wait();
          TrimHeap();
        });
      }
      for (std::thread& thread : threads) thread.join();
      ::_exit(0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }
}

}  // namespace
}  // namespace prd
