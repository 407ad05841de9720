#include "worker/examples/dataset.h"

#include <gmock/gmock.h>
#include <zlib.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "tests/worker/examples/temp_dir.h"

namespace example::dataset_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string Word(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
  return bytes;
}

void WriteGz(const std::string& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
            static_cast<int>(bytes.size()));
  ASSERT_EQ(gzclose(file), Z_OK);
}

// `count` examples: example i has the label i % 10, and every pixel is i % 251.
class DatasetTest : public ::testing::Test {
 protected:
  void WriteImages(std::uint32_t magic, std::uint32_t claimed, int count) {
    std::string bytes = Word(magic) + Word(claimed) + Word(28) + Word(28);
    for (int i = 0; i < count; ++i) bytes += std::string(kPixels, static_cast<char>(i % 251));
    WriteGz(dir_.path() + "/train-images-idx3-ubyte.gz", bytes);
  }
  void WriteLabels(std::uint32_t claimed, int count, int first = 0) {
    std::string bytes = Word(0x801) + Word(claimed);
    for (int i = 0; i < count; ++i) bytes += static_cast<char>(first + i % 10);
    WriteGz(dir_.path() + "/train-labels-idx1-ubyte.gz", bytes);
  }
  Dataset Load() { return LoadDataset(dir_.path(), "train"); }

  TempDir dir_;
};

TEST_F(DatasetTest, ReadsImagesAndLabels) {
  WriteImages(0x803, 20, 20);
  WriteLabels(20, 20);
  const Dataset set = Load();
  ASSERT_EQ(set.size(), 20U);
  ASSERT_EQ(set.images.size(), 20 * kPixels);
  EXPECT_EQ(set.labels[13], 3);
  EXPECT_EQ(set.images[13 * kPixels], 13);
  EXPECT_EQ(set.images[14 * kPixels - 1], 13);
}

TEST_F(DatasetTest, MeanImageIsPerPixel) {
  WriteImages(0x803, 20, 20);
  WriteLabels(20, 20);
  Dataset set = Load();
  set.images[0] = 200;  // was 0, the first pixel of the first example
  const std::vector<float> mean = MeanImage(set);
  ASSERT_EQ(mean.size(), kPixels);
  EXPECT_FLOAT_EQ(mean[0], 19.5F);
  EXPECT_FLOAT_EQ(mean[kPixels - 1], 9.5F);
}

TEST_F(DatasetTest, NamesTheFileAndWhatIsWrong) {
  EXPECT_THAT([&] { Load(); },
              ThrowsMessage<std::runtime_error>(HasSubstr("train-images-idx3-ubyte.gz: cannot")));
  WriteLabels(20, 20);
  WriteImages(0x801, 20, 20);
  EXPECT_THAT([&] { Load(); },
              ThrowsMessage<std::runtime_error>(HasSubstr("magic number: found 2049, allowed")));
  WriteImages(0x803, 20, 19);
  EXPECT_THAT([&] { Load(); }, ThrowsMessage<std::runtime_error>(HasSubstr("ends early")));
  WriteImages(0x803, 0xffffffff, 1);
  EXPECT_THAT([&] { Load(); },
              ThrowsMessage<std::runtime_error>(HasSubstr("found 4294967295, allowed is 1 to")));
  WriteImages(0x803, 20, 20);
  WriteLabels(19, 19);
  EXPECT_THAT([&] { Load(); },
              ThrowsMessage<std::runtime_error>(HasSubstr("number of labels: found 19")));
  WriteLabels(20, 20, 1);
  EXPECT_THAT([&] { Load(); }, ThrowsMessage<std::runtime_error>(HasSubstr("found label 10")));
}

class ShardTest : public DatasetTest {
 protected:
  void SetUp() override {
    WriteImages(0x803, 203, 203);
    WriteLabels(203, 203);
    all_ = Load();
  }
  // Examples by their pixels, which are all different here.
  static std::set<int> Examples(const Dataset& shard) {
    std::set<int> examples;
    for (std::size_t i = 0; i < shard.size(); ++i) examples.insert(shard.images[i * kPixels]);
    return examples;
  }
  Dataset all_;
};

TEST_F(ShardTest, PartsAreEqualAndDisjoint) {
  for (const Sharding sharding : {Sharding::kIid, Sharding::kLabels}) {
    std::set<int> seen;
    for (int rank = 0; rank < 4; ++rank) {
      const Dataset shard = TakeShard(all_, sharding, rank, 4, 7);
      EXPECT_EQ(shard.size(), 50U);
      for (std::size_t i = 0; i < shard.size(); ++i) {
        EXPECT_EQ(shard.labels[i], shard.images[i * kPixels] % 10);
      }
      seen.merge(Examples(shard));
    }
    EXPECT_EQ(seen.size(), 200U);
  }
}

TEST_F(ShardTest, IidPartsHaveAllClassesAndLabelPartsFew) {
  const Dataset iid = TakeShard(all_, Sharding::kIid, 1, 4, 7);
  EXPECT_EQ(std::set<int>(iid.labels.begin(), iid.labels.end()).size(), 10U);
  const Dataset skewed = TakeShard(all_, Sharding::kLabels, 1, 8, 7);
  EXPECT_LE(std::set<int>(skewed.labels.begin(), skewed.labels.end()).size(), 3U);
}

TEST_F(ShardTest, ALateRankSharesAPart) {
  EXPECT_EQ(Examples(TakeShard(all_, Sharding::kIid, 5, 4, 7)),
            Examples(TakeShard(all_, Sharding::kIid, 1, 4, 7)));
}

TEST_F(ShardTest, TooManyWorkersIsAnError) {
  EXPECT_THROW(TakeShard(all_, Sharding::kIid, 0, 204, 7), std::runtime_error);
}

TEST(SamplerTest, EveryPassHasEveryExampleOnceInANewOrder) {
  Sampler sampler(50, 3);
  std::vector<std::vector<std::size_t>> passes(2);
  for (auto& pass : passes) {
    for (int i = 0; i < 50; ++i) pass.push_back(sampler.Next());
    EXPECT_EQ(std::set<std::size_t>(pass.begin(), pass.end()).size(), 50U);
  }
  EXPECT_NE(passes[0], passes[1]);
}

TEST(JobOrderTest, EachStepsBatchIsTheSameHoweverItIsDivided) {
  constexpr std::size_t kSize = 50;
  JobOrder whole(kSize, 3);
  JobOrder parts(kSize, 3);
  std::vector<std::size_t> pass;
  for (std::int64_t step = 1; step <= 10; ++step) {  // four steps of 15 are more than a pass
    const std::vector<std::size_t> batch = whole.Part(step, 0, 15, 15);
    std::vector<std::size_t> joined;
    const std::int64_t cut = step % 14 + 1;
    // The later part first: no part depends on what was asked for before.
    const std::vector<std::size_t> rest = parts.Part(step, cut, 15 - cut, 15);
    joined = parts.Part(step, 0, cut, 15);
    joined.insert(joined.end(), rest.begin(), rest.end());
    EXPECT_EQ(joined, batch);
    pass.insert(pass.end(), batch.begin(), batch.end());
  }
  for (std::size_t first = 0; first + kSize <= pass.size(); first += kSize) {
    const auto from = pass.begin() + static_cast<std::ptrdiff_t>(first);
    EXPECT_EQ(std::set<std::size_t>(from, from + kSize).size(), kSize);
  }
  EXPECT_NE(JobOrder(kSize, 4).Part(1, 0, 15, 15), whole.Part(1, 0, 15, 15));
}

}  // namespace
}  // namespace example::dataset_test
