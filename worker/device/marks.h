// Events of a device, taken from a pool: recorded once, asked until they are done, used again.
#ifndef PRD_WORKER_DEVICE_MARKS_H_
#define PRD_WORKER_DEVICE_MARKS_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "worker/device/gpu.h"

namespace prd {

// A moment of a stream: when all that was there is done. Its event goes back when the last pointer
// to it goes.
using Mark = std::shared_ptr<EventHandle>;

// Threads: any.
class Marks : public std::enable_shared_from_this<Marks> {
 public:
  explicit Marks(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~Marks() {
    for (const Gpu::Event event : unused_) gpu_->DestroyEvent(event);
  }

  Result<Mark> Record(Gpu::Stream stream) {
    Gpu::Event event = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (!unused_.empty()) {
        event = unused_.back();
        unused_.pop_back();
      }
    }
    if (event == nullptr) {
      const Result<Gpu::Event> created = gpu_->CreateEvent();
      if (!created.ok()) return created.status();
      event = *created;
    }
    Mark mark(event, [self = shared_from_this()](Gpu::Event used) {
      const std::lock_guard lock(self->mutex_);
      self->unused_.push_back(used);
    });
    PRD_RETURN_IF_ERROR(gpu_->Record(event, stream));
    return mark;
  }

 private:
  std::shared_ptr<Gpu> gpu_;
  std::mutex mutex_;
  std::vector<Gpu::Event> unused_;
};

}  // namespace prd

#endif  // PRD_WORKER_DEVICE_MARKS_H_
