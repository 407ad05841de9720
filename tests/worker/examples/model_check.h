// What the tests of models share.
#ifndef PRD_TESTS_WORKER_EXAMPLES_MODEL_CHECK_H_
#define PRD_TESTS_WORKER_EXAMPLES_MODEL_CHECK_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/examples/dataset.h"
#include "worker/examples/pace.h"
#include "worker/examples/random_bits.h"

namespace example {

inline const Interrupted kNever = [] { return false; };

// Pixels and labels at random.
inline Dataset RandomData(std::size_t examples) {
  Dataset data;
  for (std::size_t i = 0; i < examples * kPixels; ++i) {
    data.images.push_back(static_cast<std::uint8_t>(Mix64(i)));
  }
  for (std::size_t i = 0; i < examples; ++i) {
    data.labels.push_back(static_cast<std::uint8_t>(Mix64(i) % kClasses));
  }
  return data;
}

// Each element is as near as this part of the largest one: sums are added in another order.
inline void ExpectNear(const std::vector<float>& found, const std::vector<float>& expected,
                       double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  float largest = 0;
  for (const float value : expected) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], tolerance * static_cast<double>(largest)) << i;
  }
}

}  // namespace example

#endif  // PRD_TESTS_WORKER_EXAMPLES_MODEL_CHECK_H_
