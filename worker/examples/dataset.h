// Fashion-MNIST as it is distributed (four gzip files in the IDX format), and its division among
// workers.
#ifndef PRD_WORKER_EXAMPLES_DATASET_H_
#define PRD_WORKER_EXAMPLES_DATASET_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace example {

constexpr std::size_t kSide = 28;  // pixels
constexpr std::size_t kPixels = kSide * kSide;
constexpr int kClasses = 10;

struct Dataset {
  std::vector<std::uint8_t> images;  // kPixels each, row by row
  std::vector<std::uint8_t> labels;  // 0 <= label < kClasses
  std::size_t size() const { return labels.size(); }
};

// Reads DIR/PREFIX-images-idx3-ubyte.gz and DIR/PREFIX-labels-idx1-ubyte.gz; prefix is "train" or
// "t10k". Throws std::runtime_error that names the file and what is wrong with it.
Dataset LoadDataset(const std::string& dir, const std::string& prefix);

// Each pixel's mean over the set, 0 to 255: kPixels of them.
std::vector<float> MeanImage(const Dataset& set);

enum class Sharding {
  kIid,     // a random part each
  kLabels,  // sorted by label first: each worker has only one or two of the ten classes
};

// The part of `rank` among `workers` equal ones (the last examples that do not fill a part are
// dropped). The same seed on all workers makes the parts disjoint. A rank beyond them, of a worker
// that came later, shares the part of rank % workers.
Dataset TakeShard(const Dataset& all, Sharding sharding, int rank, int workers, std::uint64_t seed);

// Endless passes over `size` examples, each in a new random order.
class Sampler {
 public:
  Sampler(std::size_t size, std::uint64_t seed);
  std::size_t Next();

 private:
  std::mt19937_64 random_;
  std::vector<std::size_t> order_;
  std::size_t next_ = 0;
};

// The order in which a job with a batch learns from `size` examples: endless passes, each in an
// order of its own. Each worker works it out, so that the batch of a step is the same whoever
// computes which part of it.
class JobOrder {
 public:
  JobOrder(std::size_t size, std::uint64_t seed) : size_(size), seed_(seed) {}

  // `samples` examples from the one at `first` on, of the batch of `step` (from 1).
  // REQUIRES: step >= 1, 0 <= first, 0 < samples, first + samples <= batch.
  std::vector<std::size_t> Part(std::int64_t step, std::int64_t first, std::int64_t samples,
                                std::int64_t batch);

 private:
  const std::size_t size_;
  const std::uint64_t seed_;
  std::uint64_t pass_ = ~std::uint64_t{0};
  std::vector<std::size_t> order_;  // of the pass
};

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_DATASET_H_
