// Wakes a thread that waits for descriptors.
#ifndef PRD_COMMON_IO_BELL_H_
#define PRD_COMMON_IO_BELL_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace prd {

class Bell {
 public:
  Bell() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Bell() {
    if (fd_ >= 0) ::close(fd_);
  }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  // An eventfd, readable from Ring to Quiet. -1: no descriptors were left.
  int fd() const { return fd_; }
  // From any thread, and from signal handlers.
  void Ring() const {
    const int saved = errno;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(fd_, &one, sizeof one);
    errno = saved;
  }
  void Quiet() const {
    eventfd_t count = 0;
    (void)::eventfd_read(fd_, &count);
  }

 private:
  const int fd_;
};

}  // namespace prd

#endif  // PRD_COMMON_IO_BELL_H_
