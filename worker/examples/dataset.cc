#include "worker/examples/dataset.h"

#include <zlib.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <stdexcept>

namespace example {
namespace {

constexpr std::size_t kMaxExamples = 1'000'000;  // what a header may claim, before memory is taken

struct GzClose {
  void operator()(gzFile_s* file) const { gzclose(file); }
};

// One IDX file, read in order.
class IdxFile {
 public:
  explicit IdxFile(std::string path) : path_(std::move(path)), file_(gzopen(path_.c_str(), "rb")) {
    if (!file_)
      throw std::runtime_error(path_ + ": cannot be opened (package dataset-fashion-mnist)");
  }

  std::uint32_t Word() {
    std::uint8_t bytes[4];
    Read(bytes, sizeof bytes);
    return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
           std::uint32_t{bytes[2]} << 8 | bytes[3];
  }

  void Expect(std::uint32_t allowed, const char* what) {
    const std::uint32_t found = Word();
    if (found != allowed) {
      throw std::runtime_error(path_ + ": " + what + ": found " + std::to_string(found) +
                               ", allowed is " + std::to_string(allowed));
    }
  }

  std::size_t Count() {
    const std::size_t count = Word();
    if (count == 0 || count > kMaxExamples) {
      throw std::runtime_error(path_ + ": number of examples: found " + std::to_string(count) +
                               ", allowed is 1 to " + std::to_string(kMaxExamples));
    }
    return count;
  }

  std::vector<std::uint8_t> Bytes(std::size_t count) {
    std::vector<std::uint8_t> bytes(count);
    Read(bytes.data(), count);
    return bytes;
  }

 private:
  void Read(std::uint8_t* to, std::size_t count) {
    if (gzfread(to, 1, count, file_.get()) != count) {
      throw std::runtime_error(path_ + ": ends early or is damaged");
    }
  }

  const std::string path_;
  const std::unique_ptr<gzFile_s, GzClose> file_;
};

}  // namespace

Dataset LoadDataset(const std::string& dir, const std::string& prefix) {
  Dataset set;
  IdxFile images(dir + "/" + prefix + "-images-idx3-ubyte.gz");
  images.Expect(0x803, "magic number");
  const std::size_t count = images.Count();
  images.Expect(kSide, "rows");
  images.Expect(kSide, "columns");
  set.images = images.Bytes(count * kPixels);

  const std::string labels_path = dir + "/" + prefix + "-labels-idx1-ubyte.gz";
  IdxFile labels(labels_path);
  labels.Expect(0x801, "magic number");
  labels.Expect(static_cast<std::uint32_t>(count), "number of labels");
  set.labels = labels.Bytes(count);
  for (const std::uint8_t label : set.labels) {
    if (label >= kClasses) {
      throw std::runtime_error(labels_path + ": found label " + std::to_string(label) +
                               ", allowed is 0 to 9");
    }
  }
  return set;
}

std::vector<float> MeanImage(const Dataset& set) {
  std::vector<double> sum(kPixels, 0.0);
  for (std::size_t i = 0; i < set.images.size(); ++i) sum[i % kPixels] += set.images[i];
  std::vector<float> mean;
  for (const double pixel : sum) {
    mean.push_back(static_cast<float>(pixel / static_cast<double>(set.size())));
  }
  return mean;
}

Dataset TakeShard(const Dataset& all, Sharding sharding, int rank, int workers,
                  std::uint64_t seed) {
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937_64 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  if (sharding == Sharding::kLabels) {
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return all.labels[a] < all.labels[b]; });
  }
  const std::size_t parts = static_cast<std::size_t>(std::max(1, workers));
  const std::size_t each = all.size() / parts;
  if (each == 0) {
    throw std::runtime_error(std::to_string(all.size()) + " examples are too few for " +
                             std::to_string(workers) + " workers");
  }
  const std::size_t first = static_cast<std::size_t>(std::max(0, rank)) % parts * each;
  Dataset shard;
  shard.images.reserve(each * kPixels);
  shard.labels.reserve(each);
  for (std::size_t i = first; i < first + each; ++i) {
    const std::uint8_t* image = all.images.data() + order[i] * kPixels;
    shard.images.insert(shard.images.end(), image, image + kPixels);
    shard.labels.push_back(all.labels[order[i]]);
  }
  return shard;
}

Sampler::Sampler(std::size_t size, std::uint64_t seed) : random_(seed), order_(size) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  next_ = size;
}

std::size_t Sampler::Next() {
  if (next_ == order_.size()) {
    std::shuffle(order_.begin(), order_.end(), random_);
    next_ = 0;
  }
  return order_[next_++];
}

std::vector<std::size_t> JobOrder::Part(std::int64_t step, std::int64_t first, std::int64_t samples,
                                        std::int64_t batch) {
  std::vector<std::size_t> part;
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto place = static_cast<std::uint64_t>((step - 1) * batch + first + i);
    if (place / size_ != pass_) {
      pass_ = place / size_;
      order_.resize(size_);
      std::iota(order_.begin(), order_.end(), std::size_t{0});
      std::mt19937_64 random(seed_ * 1'000'003 + pass_);
      std::shuffle(order_.begin(), order_.end(), random);
    }
    part.push_back(order_[place % size_]);
  }
  return part;
}

}  // namespace example
