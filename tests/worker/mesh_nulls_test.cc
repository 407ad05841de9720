// Groups with members of weight 0: what moves between whom, and that everybody gets the same bits.
// First reductions alone, with frames handed over in any order; then meshes with real sockets.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <tuple>

#include "common/base/prng.h"
#include "tests/worker/mesh_ring.h"
#include "tests/worker/numbers.h"
#include "worker/mesh/reduction.h"

namespace prd::mesh_nulls_test {
namespace {

using testing::MeshNode;
using testing::MeshNow;
using testing::Numbers;
using testing::RunUntil;

using Shapes = std::vector<std::pair<DType, std::size_t>>;
constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};
constexpr std::size_t kAlwaysDirect = 1 << 30;

struct GroupSetup {
  std::vector<double> weights;
  Shapes shapes;
  std::size_t chunk_bytes = 64;
  std::size_t direct_bytes = 0;
  double initial_weight = 0;
  std::size_t zeros = 0;  // so many elements at the front of each tensor are 0
};

struct Sent {
  std::size_t from = 0;
  std::size_t to = 0;
  FrameHeader header;
};

// (to, from, stage, chunk, offset, length)
using FrameKey = std::tuple<std::size_t, std::size_t, std::uint32_t, std::uint32_t, std::uint64_t,
                            std::uint64_t>;

FrameKey KeyOf(const Sent& sent) {
  return {sent.to,           sent.from,          sent.header.stage,
          sent.header.chunk, sent.header.offset, sent.header.length};
}

// All members of a group, and a post office that keeps no order.
class Circle {
 public:
  // Contributors hold random numbers, nulls NaN. Results come to a row of their own, to the
  // tensors, and to the tensors as what changes, by turns.
  Circle(GroupSetup setup, std::uint64_t seed)
      : setup_(std::move(setup)), first_(seed), random_(seed) {
    const std::size_t members = setup_.weights.size();
    memory_.resize(members);
    for (std::size_t m = 0; m < members; ++m) {
      memory_[m] = RandomTensors();
      if (setup_.weights[m] == 0) SpoilTensors(&memory_[m]);
      rows_.push_back(LayoutOf(&memory_[m]));
    }
    initial_tensors_ = RandomTensors();
    initial_.resize(bytes());
    LayoutOf(&initial_tensors_).Read(0, bytes(), initial_.data());
    staging_.assign(members, std::vector<std::byte>(bytes(), std::byte{0xff}));
    for (std::size_t m = 0; m < members; ++m) reductions_.push_back(Make(m, &rows_[m]));
    before_ = memory_;
  }

  Reduction Make(std::size_t position, const Layout* row) {
    return Reduction(row, {.weights = setup_.weights,
                           .position = position,
                           .initial = setup_.initial_weight != 0 ? initial_.data() : nullptr,
                           .initial_weight = setup_.initial_weight,
                           .into = IntoOf(position),
                           .staging = staging_[position].data(),
                           .chunk_bytes = setup_.chunk_bytes,
                           .direct_bytes = setup_.direct_bytes});
  }

  // Hands frames over in random order until nothing moves; false when somebody is not through.
  bool Run() {
    std::vector<std::size_t> talking(members());
    for (std::size_t m = 0; m < members(); ++m) talking[m] = m;
    while (!talking.empty() || !post_.empty()) {
      if (!post_.empty() && (talking.empty() || random_.Below(2) == 0)) {
        Deliver(random_.Below(post_.size()));
        continue;
      }
      const std::size_t turn = random_.Below(talking.size());
      std::optional<Reduction::Outgoing> own = reductions_[talking[turn]].NextOwn();
      if (own) {
        Post(talking[turn], std::move(*own));
      } else {
        talking.erase(talking.begin() + static_cast<std::ptrdiff_t>(turn));
      }
    }
    for (const Reduction& reduction : reductions_) {
      if (!reduction.Complete()) return false;
    }
    return true;
  }

  // Results, tensors and bytes moved, after Run.
  void Check() {
    EXPECT_EQ(moved_, ExpectedMoved());
    const std::vector<std::byte> expected = ExpectedRow();
    for (std::size_t m = 0; m < members(); ++m) {
      SCOPED_TRACE("position " + std::to_string(m));
      const std::vector<std::byte> before = BytesAt(before_[m]);
      const std::vector<std::byte> after = BytesAt(memory_[m]);
      if (IntoOf(m) == Reduction::Into::kStaging) {
        EXPECT_TRUE(after == before);
        EXPECT_TRUE(staging_[m] == expected);
      } else if (IntoOf(m) == Reduction::Into::kRow) {
        EXPECT_TRUE(after == expected);
      } else if (setup_.weights[m] != 0 && setup_.initial_weight == 0) {
        EXPECT_TRUE(after == Difference(expected, before));
      }
      rows_[m].Write(0, bytes(), expected.data());
    }
    CheckValues();
  }

  std::size_t members() const { return setup_.weights.size(); }
  std::size_t bytes() const { return rows_[0].bytes(); }
  std::size_t contributors() const { return Places().size(); }
  const std::vector<Sent>& log() const { return log_; }
  const Layout& row(std::size_t position) const { return rows_[position]; }
  Reduction& reduction(std::size_t position) { return reductions_[position]; }
  const std::vector<std::byte>& staging(std::size_t position) const { return staging_[position]; }

  // From now on all results come to `staging`.
  void StageAll() {
    stage_all_ = true;
    reductions_.clear();
    for (std::size_t m = 0; m < members(); ++m) reductions_.push_back(Make(m, &rows_[m]));
  }

  // By rows that are plain bytes instead of tensors from now on.
  void MoveIntoRows() {
    plain_.resize(members());
    for (std::size_t m = 0; m < members(); ++m) {
      plain_[m] = BytesAt(memory_[m]);
      SpoilTensors(&memory_[m]);
      before_ = memory_;
      std::vector<Tensor> views;
      std::size_t at = 0;
      for (const std::size_t size : {8u, 4u, 2u}) {
        for (const auto& [dtype, count] : setup_.shapes) {
          if (DTypeSize(dtype) != size) continue;
          views.push_back({plain_[m].data() + at, count, dtype});
          at += count * size;
        }
      }
      rows_[m] = Layout(views);
    }
  }

 private:
  std::vector<Numbers> RandomTensors() {
    std::vector<Numbers> tensors;
    for (const auto& [dtype, count] : setup_.shapes) {
      tensors.emplace_back(dtype, count);
      for (std::size_t i = 0; i < count; ++i) {
        tensors.back().Set(i, i < setup_.zeros ? 0 : random_.Unit() * 2 - 1);
      }
    }
    return tensors;
  }

  static void SpoilTensors(std::vector<Numbers>* tensors) {
    for (Numbers& numbers : *tensors) {
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        numbers.Set(i, std::numeric_limits<double>::quiet_NaN());
      }
    }
  }

  static Layout LayoutOf(std::vector<Numbers>* tensors) {
    std::vector<Tensor> views;
    for (Numbers& numbers : *tensors) views.push_back(numbers.tensor());
    return Layout(views);
  }

  static std::vector<std::byte> BytesAt(std::vector<Numbers>& tensors) {
    const Layout layout = LayoutOf(&tensors);
    std::vector<std::byte> bytes(layout.bytes());
    layout.Read(0, bytes.size(), bytes.data());
    return bytes;
  }

  Reduction::Into IntoOf(std::size_t position) const {
    using enum Reduction::Into;
    if (stage_all_) return kStaging;
    return std::array{kStaging, kRow, kChange}[(position + first_) % 3];
  }

  std::vector<std::byte> Difference(const std::vector<std::byte>& from,
                                    const std::vector<std::byte>& what) {
    std::vector<std::byte> difference(bytes());
    rows_[0].ForEach(0, bytes(),
                     [&](DType dtype, const std::byte*, std::size_t run, std::size_t at) {
                       Scale(dtype, difference.data() + at, what.data() + at, run, {-1, -1});
                       AddScaled(dtype, difference.data() + at, from.data() + at, run, {1, 1});
                     });
    return difference;
  }

  // The positions of the contributors, in order.
  std::vector<std::size_t> Places() const {
    std::vector<std::size_t> places;
    for (std::size_t m = 0; m < members(); ++m) {
      if (setup_.weights[m] != 0) places.push_back(m);
    }
    return places;
  }

  bool small() const { return bytes() <= setup_.direct_bytes; }

  std::size_t ExpectedMoved() const {
    const std::size_t q = contributors();
    if (q == 0 || members() == 1) return 0;
    const bool direct = small() && members() <= Reduction::kDirectMembers;
    return bytes() * (direct ? q * (members() - 1) : (q - 1) + (members() - 1)) -
           (small() ? 0 : ZeroBytes() * (members() - 1));
  }

  std::size_t ShardBytes() const {
    return ((bytes() + contributors() - 1) / contributors() + 63) / 64 * 64;
  }

  // The bytes of the ring's chunks that are zeros in every contributor's row.
  std::size_t ZeroBytes() const {
    std::size_t zeros = 0;
    for (std::size_t begin = 0; begin < bytes(); begin += ShardBytes()) {
      const std::size_t end = std::min(begin + ShardBytes(), bytes());
      for (std::size_t at = begin; at < end; at += setup_.chunk_bytes) {
        const std::size_t length = std::min(setup_.chunk_bytes, end - at);
        bool zero = true;
        for (const std::size_t m : Places()) {
          std::vector<Numbers> before = before_[m];
          const std::vector<std::byte> row = BytesAt(before);
          for (std::size_t i = at; i < at + length; ++i) zero = zero && row[i] == std::byte{0};
        }
        if (zero) zeros += length;
      }
    }
    return zeros;
  }

  // What the sums of contributors first, first + 1, .. around their ring are, bit for bit.
  std::vector<std::byte> SumFrom(std::size_t first) {
    const std::vector<std::size_t> places = Places();
    std::vector<double> shares = setup_.weights;
    shares.push_back(setup_.initial_weight);
    const std::vector<Weight> weights = RoundWeights(shares);
    std::vector<std::byte> sum(bytes());
    for (std::size_t i = 0; i < places.size(); ++i) {
      const std::size_t position = places[(first + i) % places.size()];
      const std::vector<std::byte> part = BytesAt(before_[position]);
      rows_[0].ForEach(0, bytes(),
                       [&](DType dtype, const std::byte*, std::size_t run, std::size_t at) {
                         (i == 0 ? Scale : AddScaled)(dtype, sum.data() + at, part.data() + at, run,
                                                      weights[position]);
                       });
    }
    if (setup_.initial_weight == 0) return sum;
    rows_[0].ForEach(0, bytes(),
                     [&](DType dtype, const std::byte*, std::size_t run, std::size_t at) {
                       AddScaled(dtype, sum.data() + at, initial_.data() + at, run, weights.back());
                     });
    return sum;
  }

  // What the contributor at this place sends up the tree, bit for bit.
  std::vector<std::byte> SumBelow(std::size_t place, const std::vector<Weight>& weights) {
    const std::vector<std::size_t> places = Places();
    std::vector<std::byte> sum(bytes());
    const auto add = [&](const std::vector<std::byte>& part, Weight weight, bool first) {
      rows_[0].ForEach(
          0, bytes(), [&](DType dtype, const std::byte*, std::size_t run, std::size_t at) {
            (first ? Scale : AddScaled)(dtype, sum.data() + at, part.data() + at, run, weight);
          });
    };
    add(BytesAt(before_[places[place]]), weights[places[place]], true);
    for (std::size_t child = 0; child < places.size(); ++child) {
      if (child == 0 || (child - 1) / Reduction::kTreeFanOut != place) continue;
      add(SumBelow(child, weights), Weight{1, 1}, false);
    }
    if (place == 0 && setup_.initial_weight != 0) {
      rows_[0].ForEach(
          0, bytes(), [&](DType dtype, const std::byte*, std::size_t run, std::size_t at) {
            AddScaled(dtype, sum.data() + at, initial_.data() + at, run, weights.back());
          });
    }
    return sum;
  }

  std::vector<std::byte> ExpectedRow() {
    const std::size_t q = contributors();
    if (small() && q > 0 && members() > Reduction::kDirectMembers) {
      std::vector<double> shares = setup_.weights;
      shares.push_back(setup_.initial_weight);
      return SumBelow(0, RoundWeights(shares));
    }
    if (bytes() <= setup_.direct_bytes || q == 0) return SumFrom(0);
    const std::size_t shard = ShardBytes();
    std::vector<std::byte> row(bytes());
    for (std::size_t s = 0; s * shard < bytes(); ++s) {
      const std::vector<std::byte> sum = SumFrom(s);
      const std::size_t length = std::min(shard, bytes() - s * shard);
      std::memcpy(row.data() + s * shard, sum.data() + s * shard, length);
    }
    return row;
  }

  // The committed tensors against sums in double precision.
  void CheckValues() {
    for (std::size_t t = 0; t < setup_.shapes.size(); ++t) {
      const double tolerance =
          testing::Epsilon(setup_.shapes[t].first) * static_cast<double>(members() + 2);
      for (std::size_t i = 0; i < setup_.shapes[t].second; ++i) {
        double sum = setup_.initial_weight * initial_tensors_[t].Get(i);
        for (std::size_t m : Places()) sum += setup_.weights[m] * before_[m][t].Get(i);
        ASSERT_NEAR(memory_[0][t].Get(i), sum, tolerance) << "tensor " << t << " element " << i;
      }
    }
  }

  void Post(std::size_t from, Reduction::Outgoing out) {
    EXPECT_TRUE(reductions_[from].Needs(out.to)) << from << " has no connection to " << out.to;
    EXPECT_EQ(out.header.length, out.payload.size());
    moved_ += out.payload.size();
    log_.push_back({from, out.to, out.header});
    post_.emplace_back(from, std::move(out));
  }

  void Deliver(std::size_t index) {
    std::swap(post_[index], post_.back());
    auto [from, frame] = std::move(post_.back());
    post_.pop_back();
    std::vector<Reduction::Outgoing> out;
    const std::size_t to = frame.to;
    const Status status =
        reductions_[to].OnFrame(from, frame.header, std::move(frame.payload), &out);
    EXPECT_TRUE(status.ok()) << status.ToString();
    for (Reduction::Outgoing& next : out) Post(to, std::move(next));
  }

  GroupSetup setup_;
  std::uint64_t first_;
  bool stage_all_ = false;
  Prng random_;
  std::vector<std::vector<Numbers>> memory_;
  std::vector<std::vector<Numbers>> before_;
  std::vector<std::vector<std::byte>> plain_;
  std::vector<Layout> rows_;
  std::vector<Numbers> initial_tensors_;
  std::vector<std::byte> initial_;
  std::vector<std::vector<std::byte>> staging_;
  std::vector<Reduction> reductions_;
  std::vector<std::pair<std::size_t, Reduction::Outgoing>> post_;
  std::vector<Sent> log_;
  std::size_t moved_ = 0;
};

// Weights whose sum with the initial model's is 1, where there is a contributor; bit i of `pattern`
// says whether the member at position i is one.
std::vector<double> WeightsOf(std::size_t members, std::uint64_t pattern, double initial_weight,
                              Prng* random) {
  std::vector<double> weights(members);
  double sum = 0;
  for (std::size_t m = 0; m < members; ++m) {
    weights[m] = (pattern >> m & 1) != 0 ? random->Unit() + 0.01 : 0.0;
    sum += weights[m];
  }
  for (double& weight : weights) weight = sum == 0 ? 0 : weight / sum * (1 - initial_weight);
  return weights;
}

// All subsets of up to five members; of more, all, none, one, all but one, and a sample.
std::vector<std::uint64_t> Patterns(std::size_t members, Prng* random) {
  const std::uint64_t all = (std::uint64_t{1} << members) - 1;
  std::set<std::uint64_t> patterns = {0, all};
  for (std::uint64_t p = 0; members <= 5 && p <= all; ++p) patterns.insert(p);
  for (std::size_t m = 0; m < members; ++m) {
    patterns.insert(std::uint64_t{1} << m);
    patterns.insert(all ^ std::uint64_t{1} << m);
  }
  while (members > 5 && patterns.size() < 2 + 3 * members) patterns.insert(random->Below(all));
  return {patterns.begin(), patterns.end()};
}

// Calls f(weights, initial weight, seed) for every group worth a test.
void ForEveryGroup(
    const std::function<void(const std::vector<double>&, double, std::uint64_t)>& f) {
  Prng random(1);
  std::uint64_t seed = 0;
  for (std::size_t members = 1; members <= 7; ++members) {
    for (const std::uint64_t pattern : Patterns(members, &random)) {
      for (const double initial_weight : {0.0, pattern == 0 ? 1.0 : 0.25}) {
        SCOPED_TRACE(std::to_string(members) + " members, contributors " + std::to_string(pattern) +
                     ", initial " + std::to_string(initial_weight));
        f(WeightsOf(members, pattern, initial_weight, &random), initial_weight, ++seed);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(NullsTest, EveryPatternDtypeAndSizeByRingTreeAndDirectly) {
  ForEveryGroup([](const std::vector<double>& weights, double initial_weight, std::uint64_t seed) {
    for (const DType dtype : kDTypes) {
      for (const std::size_t count : {1, 17, 211}) {
        for (const std::size_t direct : {std::size_t{0}, kAlwaysDirect}) {
          Circle circle({.weights = weights,
                         .shapes = {{dtype, count}},
                         .direct_bytes = direct,
                         .initial_weight = initial_weight},
                        seed);
          ASSERT_TRUE(circle.Run()) << "somebody waits for ever";
          circle.Check();
        }
      }
    }
  });
}

// Deep enough that what a member passes up or down has been passed before.
TEST(NullsTest, TreesOfSeveralLevels) {
  for (const std::size_t members : {10, 23, 80}) {
    for (const std::size_t contributors : {std::size_t{1}, members / 2, members - 1, members}) {
      std::vector<double> weights(members, 0);
      for (std::size_t i = 0; i < contributors; ++i) weights[i * 7 % members] = 0.5;
      for (const DType dtype : kDTypes) {
        Circle circle({.weights = weights,
                       .shapes = {{dtype, 19}},
                       .direct_bytes = kAlwaysDirect,
                       .initial_weight = 0.25},
                      members);
        ASSERT_TRUE(circle.Run()) << "somebody waits for ever";
        circle.Check();
      }
    }
  }
}

TEST(NullsTest, MixedDtypesAndChunksThatDoNotDivideTheShards) {
  const Shapes shapes = {{DType::kF16, 131}, {DType::kF32, 0},   {DType::kF64, 77},
                         {DType::kBF16, 65}, {DType::kF32, 203}, {DType::kF16, 2}};
  ForEveryGroup([&](const std::vector<double>& weights, double initial_weight, std::uint64_t seed) {
    for (const std::size_t chunk : {8, 104, 4096}) {
      Circle circle({.weights = weights,
                     .shapes = shapes,
                     .chunk_bytes = chunk,
                     .initial_weight = initial_weight},
                    seed);
      ASSERT_TRUE(circle.Run()) << "somebody waits for ever";
      circle.Check();
    }
  });
}

// As state that no step has written yet: its chunks are passed on without their bytes.
TEST(NullsTest, ZerosAreKnownWithoutTheirBytes) {
  const Shapes shapes = {{DType::kF32, 203}, {DType::kF64, 150}, {DType::kBF16, 400}};
  ForEveryGroup([&](const std::vector<double>& weights, double initial_weight, std::uint64_t seed) {
    for (const std::size_t zeros : {60, 1000}) {
      Circle circle(
          {.weights = weights, .shapes = shapes, .initial_weight = initial_weight, .zeros = zeros},
          seed);
      ASSERT_TRUE(circle.Run()) << "somebody waits for ever";
      circle.Check();
      const auto empty = [](const Sent& sent) { return sent.header.length == 0; };
      const bool any = std::any_of(circle.log().begin(), circle.log().end(), empty);
      EXPECT_EQ(any, circle.contributors() > 0 && circle.members() > 1);
    }
  });
}

TEST(NullsTest, TheDirectLimitItselfIsDirect) {
  for (const std::size_t direct : {400, 399}) {
    Circle circle(
        {.weights = {0.5, 0, 0.5, 0}, .shapes = {{DType::kF32, 100}}, .direct_bytes = direct}, 1);
    ASSERT_TRUE(circle.Run());
    circle.Check();
    EXPECT_EQ(circle.log().front().header.kind,
              direct == 400 ? FrameKind::kDirect : FrameKind::kRing);
  }
}

TEST(NullsTest, NoBytesNoFrames) {
  for (const std::size_t direct : {std::size_t{0}, kAlwaysDirect}) {
    Circle circle({.weights = {0, 1}, .shapes = {{DType::kF32, 0}}, .direct_bytes = direct}, 1);
    ASSERT_TRUE(circle.Run());
    circle.Check();
  }
}

// The textbook's ring: at stage t the member at position p sends chunks of shard (p - t) mod n to
// position p + 1.
TEST(NullsTest, WithoutNullsItIsTheTextbooksRing) {
  constexpr std::size_t kCount = 1003;
  constexpr std::size_t kChunk = 128;
  for (std::size_t n = 2; n <= 7; ++n) {
    Circle circle({.weights = std::vector<double>(n, 1.0 / static_cast<double>(n)),
                   .shapes = {{DType::kF32, kCount}},
                   .chunk_bytes = kChunk},
                  n);
    ASSERT_TRUE(circle.Run());
    circle.Check();
    std::set<FrameKey> sent;
    for (const Sent& frame : circle.log()) EXPECT_TRUE(sent.insert(KeyOf(frame)).second);
    std::set<FrameKey> expected;
    const std::size_t shard = ((circle.bytes() + n - 1) / n + 63) / 64 * 64;
    for (std::uint32_t t = 0; t < 2 * n - 2; ++t) {
      for (std::size_t p = 0; p < n; ++p) {
        const std::size_t begin = (p + 2 * n - t) % n * shard;
        const std::size_t end = std::min(begin + shard, circle.bytes());
        std::uint32_t chunk = 0;
        for (std::size_t at = begin; at < end; at += kChunk) {
          expected.insert({(p + 1) % n, p, t, chunk++, at, std::min(kChunk, end - at)});
        }
      }
    }
    EXPECT_TRUE(sent == expected) << n << " members";
  }
}

// The pairs that exchange messages, for contributors that do not stand first.
TEST(NullsTest, SumsPassContributorsOnlyAndNullsNeverStartAnything) {
  Circle circle({.weights = {0, 0.5, 0, 0.25, 0.25}, .shapes = {{DType::kF32, 300}}}, 1);
  ASSERT_TRUE(circle.Run());
  const auto after = [](std::vector<std::size_t> ring, std::size_t position) {
    const auto at = std::find(ring.begin(), ring.end(), position) - ring.begin();
    return ring[static_cast<std::size_t>(at + 1) % ring.size()];
  };
  for (const Sent& sent : circle.log()) {
    if (sent.header.stage < 2) {
      EXPECT_NE(sent.from, 0u);
      EXPECT_NE(sent.from, 2u);
      EXPECT_EQ(sent.to, after({1, 3, 4}, sent.from));
    } else {
      EXPECT_EQ(sent.to, after({1, 3, 4, 0, 2}, sent.from));
    }
  }
  for (const std::size_t null : {0, 2}) EXPECT_FALSE(circle.reduction(null).OwnTo().has_value());
}

// Rounds whose members compute on meanwhile: the input is a row of bytes, the result stays in one.
TEST(NullsTest, PlainRowsInAndOut) {
  const Shapes shapes = {{DType::kF16, 131}, {DType::kF64, 77}, {DType::kF32, 203}};
  const std::vector<std::vector<double>> groups = {{1}, {0.5, 0.5}, {0.5, 0, 0.5}, {0, 1, 0}};
  for (const std::vector<double>& weights : groups) {
    for (const std::size_t direct : {std::size_t{0}, kAlwaysDirect}) {
      const GroupSetup setup{.weights = weights, .shapes = shapes, .direct_bytes = direct};
      Circle tensors(setup, 5);
      Circle rows(setup, 5);
      rows.MoveIntoRows();
      tensors.StageAll();
      rows.StageAll();
      ASSERT_TRUE(tensors.Run());
      ASSERT_TRUE(rows.Run());
      for (std::size_t m = 0; m < weights.size(); ++m) {
        EXPECT_TRUE(rows.staging(m) == tensors.staging(m));
      }
    }
  }
}

// Exactly the frames count that a good run sends, and each once; or instead of a chunk of the
// result, one that says that it is zeros.
TEST(NullsTest, FramesThatDoNotBelongAreRefused) {
  const std::vector<std::vector<double>> groups = {{1},
                                                   {0, 0},
                                                   {1, 0},
                                                   {0, 1, 0},
                                                   {0.5, 0, 0.5},
                                                   {0.5, 0.25, 0.25},
                                                   {0, 0.5, 0, 0.5},
                                                   {0.1, 0.1, 0, 0.2, 0.2, 0.2, 0.2}};
  for (const std::vector<double>& weights : groups) {
    for (const std::size_t direct : {std::size_t{0}, kAlwaysDirect}) {
      const bool tree = direct != 0 && weights.size() > Reduction::kDirectMembers;
      const FrameKind right = tree          ? FrameKind::kTree
                              : direct != 0 ? FrameKind::kDirect
                                            : FrameKind::kRing;
      const std::size_t n = weights.size();
      Circle circle({.weights = weights, .shapes = {{DType::kF32, 61}}, .direct_bytes = direct}, 1);
      ASSERT_TRUE(circle.Run());
      std::set<FrameKey> good;
      std::set<std::pair<std::uint64_t, std::uint64_t>> places = {
          {0, 0}, {0, 8}, {8, 64}, {0, 244}};
      for (const Sent& sent : circle.log()) {
        good.insert(KeyOf(sent));
        places.insert({sent.header.offset, sent.header.length});
        if (right != FrameKind::kRing) continue;
        places.insert({sent.header.offset, 0});
        Sent zeros = sent;
        zeros.header.length = 0;
        if (sent.header.stage + 1 >= circle.contributors()) good.insert(KeyOf(zeros));
      }
      for (std::size_t to = 0; to < n; ++to) {
        std::size_t accepted = 0;
        for (std::size_t from = 0; from <= n; ++from) {
          for (const FrameKind kind :
               {FrameKind::kRing, FrameKind::kDirect, FrameKind::kTree, FrameKind::kChunk}) {
            for (const std::uint32_t stage : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, -1}) {
              for (const std::uint32_t chunk : {0, 1, 2, 3, -1}) {
                for (const auto& [offset, length] : places) {
                  // A direct frame is its payload: the other fields have no meaning.
                  if (right == FrameKind::kDirect && (stage != 0 || chunk != 0 || offset != 0))
                    continue;
                  const FrameHeader header{.kind = kind,
                                           .stage = stage,
                                           .chunk = chunk,
                                           .offset = offset,
                                           .length = length};
                  // A contributor's part must be on its way up before a result can come down.
                  const bool early = tree && stage == 1 && weights[to] != 0;
                  const bool expected =
                      kind == right && !early && good.contains(KeyOf({from, to, header}));
                  Reduction reduction = circle.Make(to, &circle.row(to));
                  std::vector<Reduction::Outgoing> out;
                  const Status first = reduction.OnFrame(from, header, SharedBytes(length), &out);
                  ASSERT_EQ(first.ok(), expected) << first.ToString();
                  if (!expected) {
                    ASSERT_EQ(first.code(), Code::kDataLoss);
                    ASSERT_TRUE(out.empty());
                    continue;
                  }
                  ++accepted;
                  out.clear();
                  ASSERT_EQ(reduction.OnFrame(from, header, SharedBytes(length), &out).code(),
                            Code::kDataLoss)
                      << "twice";
                  ASSERT_TRUE(out.empty());
                }
              }
            }
          }
        }
        EXPECT_EQ(accepted, std::count_if(good.begin(), good.end(), [&](const FrameKey& key) {
                    const bool early = tree && std::get<2>(key) == 1 && weights[to] != 0;
                    return std::get<0>(key) == to && !early;
                  }));
      }
    }
  }
}

// ---- over sockets ----

struct Node {
  Node(float value, std::size_t count, Mesh::Options options) : values(count, value) {
    incarnation = testing::FreshIncarnation();
    options.incarnation = incarnation;
    options.host = "host";
    mesh = std::make_unique<MeshNode>(
        options, std::vector<Tensor>{{values.data(), values.size(), DType::kF32}});
  }
  Incarnation incarnation = 0;
  std::vector<float> values;
  std::unique_ptr<MeshNode> mesh;
};

std::vector<std::unique_ptr<Node>> Nodes(std::size_t nodes, std::size_t count,
                                         const Mesh::Options& options) {
  std::vector<std::unique_ptr<Node>> made;
  for (std::size_t i = 0; i < nodes; ++i) {
    made.push_back(std::make_unique<Node>(static_cast<float>(1 << i), count, options));
  }
  return made;
}

std::vector<MeshNode*> Meshes(const std::vector<std::unique_ptr<Node>>& nodes) {
  std::vector<MeshNode*> meshes;
  for (const auto& node : nodes) meshes.push_back(node->mesh.get());
  return meshes;
}

Group Among(const std::vector<MeshNode*>& nodes, const std::vector<double>& weights) {
  Group group{.id = 1};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    group.members.push_back(nodes[i]->AsMember(weights[i]));
  }
  testing::Announce(nodes, group.members);
  return group;
}

TEST(NullsMeshTest, MovesWhatTheContributorsBring) {
  constexpr std::size_t kCount = 20'000;
  Mesh::Options options;
  options.chunk_bytes = 4096;
  for (const std::size_t direct : {std::size_t{0}, kAlwaysDirect}) {
    options.direct_bytes = direct;
    const auto nodes = Nodes(4, kCount, options);
    for (std::uint64_t pattern = 0; pattern < 16; ++pattern) {
      std::vector<double> weights(4);
      float expected = 0;
      std::uint64_t q = 0;
      for (std::size_t i = 0; i < 4; ++i) {
        const bool contributes = (pattern >> i & 1) != 0;
        std::fill(nodes[i]->values.begin(), nodes[i]->values.end(),
                  contributes ? static_cast<float>(1 << i) : NAN);
        weights[i] = contributes ? 0.25 : 0;
        expected += contributes ? 0.25f * static_cast<float>(1 << i) : 0;
        q += contributes ? 1 : 0;
      }
      std::uint64_t sent = 0;
      for (const Status& status : testing::ReduceAll(Meshes(nodes), weights, {.id = pattern + 1})) {
        ASSERT_TRUE(status.ok()) << status.ToString();
      }
      for (const auto& node : nodes) {
        EXPECT_EQ(node->values, std::vector<float>(kCount, expected)) << "pattern " << pattern;
        sent += node->mesh->reduced->sent;
      }
      const std::uint64_t rows = q == 0 ? 0 : direct != 0 ? q * 3 : q - 1 + 3;
      EXPECT_EQ(sent, rows * kCount * sizeof(float)) << "pattern " << pattern;
    }
  }
}

// A contributor is through as soon as it has sent its bytes; who is behind a null that dies then
// hears of it all the same.
TEST(NullsMeshTest, NullThatVanishesFailsThoseBehindItAtOnce) {
  Mesh::Options options;
  options.chunk_bytes = 8192;
  options.timeout = 60 * kSecond;  // not what ends the wait
  auto nodes = Nodes(4, 100'000, options);
  const std::vector<MeshNode*> all = Meshes(nodes);
  const Group group = Among(all, {1, 0, 0, 0});
  for (const std::size_t i : {0, 1, 3}) all[i]->mesh->StartReduce(MeshNow(), group);
  ASSERT_TRUE(
      RunUntil({all[0], all[1], all[3]}, [&] { return all[0]->reduced && all[1]->reduced; }));
  EXPECT_TRUE(all[0]->reduced->status.ok()) << all[0]->reduced->status.ToString();
  nodes[2].reset();
  ASSERT_TRUE(RunUntil({all[0], all[1], all[3]}, [&] { return all[3]->reduced.has_value(); }));
  EXPECT_EQ(all[3]->reduced->status.code(), Code::kUnavailable);
  EXPECT_EQ(nodes[3]->values, std::vector<float>(100'000, 8.f));
}

TEST(NullsMeshTest, ContributorThatVanishesFailsTheNullsAtOnce) {
  Mesh::Options options;
  options.timeout = 60 * kSecond;
  for (const std::size_t direct : {std::size_t{0}, kAlwaysDirect}) {
    options.direct_bytes = direct;
    auto nodes = Nodes(4, 1000, options);
    const std::vector<MeshNode*> all = Meshes(nodes);
    const Group group = Among(all, {0, 0, 1, 0});
    for (const std::size_t i : {0, 1, 3}) all[i]->mesh->StartReduce(MeshNow(), group);
    nodes[2].reset();
    ASSERT_TRUE(RunUntil({all[0], all[1], all[3]},
                         [&] { return all[0]->reduced && all[1]->reduced && all[3]->reduced; }));
    for (const std::size_t i : {0, 1, 3}) {
      EXPECT_FALSE(all[i]->reduced->status.ok());
      EXPECT_EQ(nodes[i]->values, std::vector<float>(1000, static_cast<float>(1 << i)));
    }
  }
}

TEST(NullsMeshTest, NullThatSendsItsOwnBytesFailsTheGroup) {
  for (const std::size_t direct : {std::size_t{0}, kAlwaysDirect}) {
    Mesh::Options options;
    options.chunk_bytes = 4000;
    options.direct_bytes = direct;
    const auto nodes = Nodes(3, 1000, options);
    const std::vector<MeshNode*> all = Meshes(nodes);
    const Group group = Among(all, {0.5, 0.5, 0});
    all[0]->mesh->StartReduce(MeshNow(), group);
    testing::PlayedWorker null(all[0], *all[2]);
    const std::string payload(direct != 0 ? 4000 : 1984, 'x');
    const FrameHeader header{.kind = direct != 0 ? FrameKind::kDirect : FrameKind::kRing,
                             .run = 1,
                             .group = 1,
                             .from = nodes[2]->incarnation,
                             .to = nodes[0]->incarnation,
                             .offset = direct != 0 ? 0u : 2048u - 32u,
                             .length = payload.size(),
                             .members = MarkOf(group)};
    null.Send(header, payload);
    ASSERT_TRUE(RunUntil({all[0]}, [&] { return all[0]->reduced.has_value(); }));
    EXPECT_EQ(all[0]->reduced->status.code(), Code::kDataLoss);
    EXPECT_EQ(nodes[0]->values, std::vector<float>(1000, 1.f));
  }
}

// Nothing ever comes back to a sole contributor: that it can send on is what shows that the others
// live. In a time of the test's own, of which each step is nearly the time limit.
TEST(NullsMeshTest, SoleContributorIsAliveWhileItSends) {
  Mesh::Options options;
  options.chunk_bytes = 1024;
  options.timeout = kSecond;
  const auto nodes = Nodes(2, 1'000'000, options);
  const std::vector<MeshNode*> all = Meshes(nodes);
  const Group group = Among(all, {1, 0});
  const Instant start{};
  for (MeshNode* node : all) node->mesh->StartReduce(start, group);
  all[0]->mesh->Service(start);  // at most 64 frames
  const Instant later = start + 900 * kMillisecond;
  const Instant give_up = MeshNow() + 20 * kSecond;
  while (all[1]->mesh->counters().received <= 64 && MeshNow() < give_up) {
    for (MeshNode* node : all) node->mesh->Service(later);
  }
  const Instant last = later + 900 * kMillisecond;
  while (!(all[0]->reduced && all[1]->reduced) && MeshNow() < give_up) {
    for (MeshNode* node : all) node->mesh->Service(last);
  }
  for (MeshNode* node : all) {
    ASSERT_TRUE(node->reduced.has_value());
    EXPECT_TRUE(node->reduced->status.ok()) << node->reduced->status.ToString();
  }
  EXPECT_EQ(nodes[1]->values, nodes[0]->values);
}

}  // namespace
}  // namespace prd::mesh_nulls_test
