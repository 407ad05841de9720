// Eq. 9 and section 3.3.3 of the P-Reduce paper: the weight generator against the book.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "common/base/prng.h"
#include "engines/p_reduce/rules.h"
#include "engines/p_reduce/weights.h"
#include "gtest/gtest.h"

namespace prd::p_reduce_weights_test {
namespace {

using Missing = PReduceOptions::Missing;
constexpr auto kDynamic = PReduceOptions::Weights::kDynamic;
constexpr Missing kAllMissing[] = {Missing::kInitial, Missing::kNearest, Missing::kRenormalize};

struct Shares {
  std::vector<double> weights;  // by place in the iterations given
  double initial = 0;
  double Sum() const {
    double sum = initial;
    for (const double weight : weights) sum += weight;
    return sum;
  }
};

Shares Weigh(double alpha, Missing missing, const std::vector<Iteration>& iterations) {
  std::vector<GroupShare> members;
  for (std::size_t i = 0; i < iterations.size(); ++i) {
    members.push_back({.rank = static_cast<Rank>(i), .weight = -1, .iteration = iterations[i]});
  }
  Shares shares;
  shares.initial = SetWeights({.weights = kDynamic, .alpha = alpha, .missing = missing}, &members);
  shares.weights.resize(members.size());
  for (const GroupShare& member : members) {
    shares.weights[static_cast<std::size_t>(member.rank)] = member.weight;
  }
  return shares;
}

// "beta_i = (1 - alpha) alpha^(k-i) / (1 - alpha^k)" with the newest model's the largest, when
// every relative iteration is there.
TEST(WeightsTest, Equation9WhenNoneIsMissing) {
  for (const Missing missing : kAllMissing) {
    const Shares shares = Weigh(0.5, missing, {7, 9, 8});
    EXPECT_NEAR(shares.weights[1], 4.0 / 7, 1e-15);
    EXPECT_NEAR(shares.weights[2], 2.0 / 7, 1e-15);
    EXPECT_NEAR(shares.weights[0], 1.0 / 7, 1e-15);
    EXPECT_EQ(shares.initial, 0);
  }
}

// "a conservative approximation of using the initial model x_1 to approximate all the intermediate
// model versions"
TEST(WeightsTest, MissingInitial) {
  const Shares shares = Weigh(0.5, Missing::kInitial, {10, 7});  // r = 1 and 4
  EXPECT_NEAR(shares.weights[0], 8.0 / 15, 1e-15);
  EXPECT_NEAR(shares.weights[1], 1.0 / 15, 1e-15);
  EXPECT_NEAR(shares.initial, 6.0 / 15, 1e-15);
}

// "approximate intermediate model to the version of the closest iteration number"; of two equally
// close ones the newer.
TEST(WeightsTest, MissingNearest) {
  const Shares even = Weigh(0.5, Missing::kNearest, {10, 7});  // r = 2 to 1, r = 3 to 4
  EXPECT_NEAR(even.weights[0], 12.0 / 15, 1e-15);
  EXPECT_NEAR(even.weights[1], 3.0 / 15, 1e-15);
  const Shares tie = Weigh(0.5, Missing::kNearest, {10, 8});  // r = 2 is as near to 1 as to 3
  EXPECT_NEAR(tie.weights[0], 6.0 / 7, 1e-15);
  EXPECT_NEAR(tie.weights[1], 1.0 / 7, 1e-15);
}

TEST(WeightsTest, MissingRenormalize) {
  const Shares shares = Weigh(0.5, Missing::kRenormalize, {10, 7});
  EXPECT_NEAR(shares.weights[0], 8.0 / 9, 1e-15);
  EXPECT_NEAR(shares.weights[1], 1.0 / 9, 1e-15);
}

// "If some workers have the same relative iteration number, their weights are divided equally."
TEST(WeightsTest, EqualIterationsDivideTheirShare) {
  for (const Missing missing : kAllMissing) {
    const Shares shares = Weigh(0.25, missing, {5, 4, 5});
    EXPECT_NEAR(shares.weights[0], 0.4, 1e-15);
    EXPECT_NEAR(shares.weights[1], 0.2, 1e-15);
    EXPECT_NEAR(shares.weights[2], 0.4, 1e-15);
    EXPECT_EQ(Weigh(0.25, missing, {3, 3}).weights, (std::vector<double>{0.5, 0.5}));
  }
}

// A decay of 0 forgets everything but the newest.
TEST(WeightsTest, NoDecayLeavesAllToTheNewest) {
  for (const Missing missing : kAllMissing) {
    const Shares shares = Weigh(0, missing, {3, 1, 3, 2});
    EXPECT_EQ(shares.weights, (std::vector<double>{0.5, 0, 0.5, 0}));
    EXPECT_EQ(shares.initial, 0);
  }
}

TEST(WeightsTest, RandomGroupsAreByTheBook) {
  Prng random(1);
  for (int i = 0; i < 5000; ++i) {
    std::vector<Iteration> iterations(1 + random.Below(8));
    const std::uint64_t spread = 1 + random.Below(60);
    for (Iteration& k : iterations) k = static_cast<Iteration>(1000 + random.Below(spread));
    const double alpha = random.Below(10) == 0 ? 0 : random.Unit();
    for (const Missing missing : kAllMissing) {
      const Shares shares = Weigh(alpha, missing, iterations);
      const auto book =
          WeightsByTheBook({.weights = kDynamic, .alpha = alpha, .missing = missing}, iterations);
      for (std::size_t m = 0; m < iterations.size(); ++m) {
        ASSERT_NEAR(shares.weights[m], book[m], 1e-10) << "alpha " << alpha << ", case " << i;
      }
      ASSERT_NEAR(shares.initial, book.back(), 1e-10);
      ASSERT_NEAR(shares.Sum(), 1, 1e-12);
    }
  }
}

// Gaps of any size and decays close to 0 and 1 neither take time nor lose the sum.
TEST(WeightsTest, ExtremesSumToOne) {
  const Iteration huge = std::numeric_limits<Iteration>::max();
  const double alphas[] = {0,        std::numeric_limits<double>::denorm_min(),
                           1e-300,   1e-9,
                           0.5,      0.9,
                           1 - 1e-9, std::nextafter(1.0, 0.0)};
  const std::vector<Iteration> cases[] = {
      {0, huge}, {5, 5'000'000, 4'999'999}, {0, 1, huge, huge}, {7}, {1, 2, 3, 4'000'000'000}};
  for (const double alpha : alphas) {
    for (const auto& iterations : cases) {
      for (const Missing missing : kAllMissing) {
        const Shares shares = Weigh(alpha, missing, iterations);
        EXPECT_NEAR(shares.Sum(), 1, 1e-12) << alpha;
        EXPECT_GE(shares.initial, 0);
        const auto newest = std::max_element(iterations.begin(), iterations.end());
        const double top = shares.weights[static_cast<std::size_t>(newest - iterations.begin())];
        for (const double weight : shares.weights) EXPECT_GE(weight, 0);
        if (alpha < 0.5) {
          EXPECT_EQ(top, *std::max_element(shares.weights.begin(), shares.weights.end()));
        }
      }
    }
  }
}

}  // namespace
}  // namespace prd::p_reduce_weights_test
