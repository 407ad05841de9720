// Tensors of any dtype as test values.
#ifndef PRD_TESTS_WORKER_NUMBERS_H_
#define PRD_TESTS_WORKER_NUMBERS_H_

#include <cstddef>
#include <vector>

#include "prd/session.h"
#include "tools/reference/numbers.h"

namespace prd::testing {

using reference::Decode;
using reference::DecodeHalf;
using reference::Encode;
using reference::EncodeHalf;
using reference::Epsilon;

class Numbers {
 public:
  Numbers(DType dtype, std::size_t count)
      : dtype_(dtype), count_(count), bytes_(count * DTypeSize(dtype)) {}

  std::size_t size() const { return count_; }
  Tensor tensor() { return {bytes_.data(), count_, dtype_}; }

  double Get(std::size_t i) const { return Decode(dtype_, bytes_.data() + i * DTypeSize(dtype_)); }
  void Set(std::size_t i, double value) {
    Encode(dtype_, value, bytes_.data() + i * DTypeSize(dtype_));
  }
  // Bit for bit.
  friend bool operator==(const Numbers& a, const Numbers& b) { return a.bytes_ == b.bytes_; }

 private:
  DType dtype_;
  std::size_t count_;
  std::vector<std::byte> bytes_;
};

}  // namespace prd::testing

#endif  // PRD_TESTS_WORKER_NUMBERS_H_
