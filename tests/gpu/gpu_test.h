// What the tests of prd-gpu-test share: the device, and bytes that go there and back.
#ifndef PRD_TESTS_GPU_GPU_TEST_H_
#define PRD_TESTS_GPU_GPU_TEST_H_

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "worker/device/gpu.h"

namespace prd::testing {

// The one that main opened.
const std::shared_ptr<Gpu>& TheGpu();

// Asks until it is true; false when it never was.
inline bool Within(std::chrono::seconds limit, const std::function<bool()>& is_so) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > end) return false;
    poll(nullptr, 0, 1);
  }
  return true;
}

#define ASSERT_OK(expr)                                               \
  do {                                                                \
    const ::prd::Status status_ = (expr);                             \
    ASSERT_TRUE(status_.ok()) << #expr << ": " << status_.ToString(); \
  } while (false)

// A stream, waited for at the end: nothing that is freed is in use.
class OnStream {
 public:
  explicit OnStream(Gpu& gpu)
      : gpu_(gpu), stream_(gpu.CreateStream().value()), event_(gpu.CreateEvent().value()) {}
  ~OnStream() {
    gpu_.DestroyStream(stream_);
    gpu_.DestroyEvent(event_);
  }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

  operator Gpu::Stream() const { return stream_; }
  Status Wait() {
    PRD_RETURN_IF_ERROR(gpu_.Record(event_, stream_));
    return gpu_.Synchronize(event_);
  }

 private:
  Gpu& gpu_;
  Gpu::Stream stream_;
  Gpu::Event event_;
};

// Bytes of the device, and pinned ones as many to look at them.
class Bytes {
 public:
  Bytes(Gpu& gpu, std::size_t size)
      : gpu_(gpu),
        size_(size),
        device_(gpu.Malloc(size).value()),
        host_(gpu.MallocHost(size).value()) {
    std::memset(host_, 0, size);
  }
  ~Bytes() {
    gpu_.Free(device_);
    gpu_.FreeHost(host_);
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  std::byte* device() { return device_; }
  std::byte* host() { return host_; }
  std::size_t size() const { return size_; }

  // Both wait.
  Status Put(OnStream& stream) {
    PRD_RETURN_IF_ERROR(gpu_.Copy(device_, host_, size_, stream));
    return stream.Wait();
  }
  Status Get(OnStream& stream) {
    PRD_RETURN_IF_ERROR(gpu_.Copy(host_, device_, size_, stream));
    return stream.Wait();
  }

 private:
  Gpu& gpu_;
  const std::size_t size_;
  std::byte* device_;
  std::byte* host_;
};

}  // namespace prd::testing

#endif  // PRD_TESTS_GPU_GPU_TEST_H_
