// A thread that does what may take long, one thing after another.
#ifndef PRD_WORKER_CUDA_TASKS_H_
#define PRD_WORKER_CUDA_TASKS_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace prd::cuda {

// Threads: any.
class Tasks {
 public:
  // Each task runs with this device as its thread's.
  explicit Tasks(int device) : device_(device) {}
  // Does what has been asked, and ends the thread.
  ~Tasks();
  Tasks(const Tasks&) = delete;
  Tasks& operator=(const Tasks&) = delete;

  // Does it after all that was asked before.
  void Ask(std::function<void()> task);

 private:
  void Run();

  const int device_;
  std::mutex mutex_;
  std::condition_variable asked_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;  // started with the first task
};

}  // namespace prd::cuda

#endif  // PRD_WORKER_CUDA_TASKS_H_
