// The standard output as a stream that knows why writing failed.
#ifndef PRD_TOOLS_PRDCTL_OUTPUT_H_
#define PRD_TOOLS_PRDCTL_OUTPUT_H_

#include <unistd.h>

#include <array>
#include <cerrno>
#include <streambuf>

namespace prd::ctl {

class OutputBuffer : public std::streambuf {
 public:
  explicit OutputBuffer(int fd) : fd_(fd) { setp(buffer_.data(), buffer_.data() + buffer_.size()); }

  // The errno of the first write that failed; 0: none did.
  int error() const { return error_; }

 protected:
  int sync() override {
    for (const char* from = pbase(); from < pptr() && error_ == 0;) {
      const ssize_t written = write(fd_, from, static_cast<std::size_t>(pptr() - from));
      if (written >= 0) {
        from += written;
      } else if (errno != EINTR) {
        error_ = errno;
      }
    }
    setp(buffer_.data(), buffer_.data() + buffer_.size());
    return error_ == 0 ? 0 : -1;
  }
  int_type overflow(int_type c) override {
    if (sync() != 0) return traits_type::eof();
    if (!traits_type::eq_int_type(c, traits_type::eof())) sputc(traits_type::to_char_type(c));
    return traits_type::not_eof(c);
  }

 private:
  const int fd_;
  int error_ = 0;
  std::array<char, 1 << 16> buffer_;
};

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_OUTPUT_H_
