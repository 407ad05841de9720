// The division of a batch by itself and against brute force; the rule in a simulated cluster.
#include "engines/batch_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/prng.h"

namespace prd::batch_rule_test {
namespace {

using testing::ElementsAre;

constexpr std::uint64_t kSeeds = 5;

// A worker of the simulated cluster: t = (fixed_us + samples * each_us) * noise.
struct Machine {
  double fixed_us = 0;
  double each_us = 1;
};

class Cluster {
 public:
  Cluster(BatchRuleOptions options, std::vector<Machine> machines, std::uint64_t seed = 1)
      : machines_(std::move(machines)), options_(options), rule_(options), prng_(seed) {
    for (std::size_t i = 0; i < machines_.size(); ++i) {
      asked_.push_back({static_cast<Rank>(i), 0});
    }
  }

  std::vector<Machine>& machines() { return machines_; }
  std::vector<BatchRule::Asked>& asked() { return asked_; }
  BatchRule& rule() { return rule_; }
  const std::vector<ShareOf>& shares() const { return shares_; }
  int changes() const { return changes_; }
  const std::string& reason() const { return reason_; }
  double total_us() const { return total_us_; }
  // With the best fixed shares, and the same noise.
  double best_total_us() const { return best_total_us_; }
  void SetNoise(double deviation) { sigma_ = std::sqrt(std::log1p(deviation * deviation)); }
  // This part of the steps takes ten times as long, each by itself.
  void SetOutliers(double part) { outliers_ = part; }

  // The length of a step without noise.
  double Length(const std::vector<ShareOf>& shares) const {
    double longest = 0;
    for (const ShareOf& share : shares) {
      longest = std::max(longest, Time(share.rank, share.samples));
    }
    return longest;
  }
  double Time(Rank rank, std::int64_t samples) const {
    const Machine& machine = machines_[RankIndex(rank)];
    return machine.fixed_us + machine.each_us * static_cast<double>(samples);
  }
  // The length of a step with the best shares, in whole multiples, one after the other.
  std::vector<ShareOf> Best() const {
    std::vector<ShareOf> best;
    for (const BatchRule::Asked& asked : asked_) best.push_back({asked.rank, 1});
    for (std::int64_t n = static_cast<std::int64_t>(best.size()); n < options_.batch; ++n) {
      ShareOf* least = nullptr;
      for (ShareOf& share : best) {
        if (least == nullptr ||
            Time(share.rank, share.samples + 1) < Time(least->rank, least->samples + 1)) {
          least = &share;
        }
      }
      ++least->samples;
    }
    return best;
  }
  double Excess() const { return Length(shares_) / Length(Best()) - 1; }

  void Step() {
    if (auto decision = rule_.Decide(asked_, shares_)) {
      if (!shares_.empty()) ++changes_;
      shares_ = decision->shares;
      reason_ = decision->reason;
    }
    if (best_.empty()) best_ = Best();
    double longest = 0, longest_of_best = 0;
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      const double factor = Factor();
      const double us = Time(shares_[i].rank, shares_[i].samples) * factor;
      longest = std::max(longest, us);
      if (i < best_.size())
        longest_of_best = std::max(longest_of_best, Time(best_[i].rank, best_[i].samples) * factor);
      rule_.Observe(shares_[i].rank, shares_[i].samples, static_cast<DurationNs>(us * 1000));
    }
    total_us_ += longest;
    best_total_us_ += longest_of_best;
    ++steps_;
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) Step();
  }
  // Steps until the shares are within `excess` of the best ones; at most `most`.
  int StepsUntil(double excess, int most = 200) {
    for (int i = 0; i < most; ++i) {
      if (Excess() <= excess) return i;
      Step();
    }
    return most;
  }

 private:
  double Factor() {
    double factor = 1;
    if (sigma_ > 0) {
      const double radius = std::sqrt(-2 * std::log(1 - prng_.Unit()));
      factor = std::exp(sigma_ * radius * std::cos(2 * 3.14159265358979 * prng_.Unit()));
    }
    if (outliers_ > 0 && prng_.Unit() < outliers_ && steps_ >= quiet_until_) {
      factor *= 10;
      quiet_until_ = steps_ + 3;
    }
    return factor;
  }

  std::vector<Machine> machines_;
  BatchRuleOptions options_;
  BatchRule rule_;
  Prng prng_;
  std::vector<BatchRule::Asked> asked_;
  std::vector<ShareOf> shares_, best_;
  std::string reason_;
  double sigma_ = 0, outliers_ = 0, total_us_ = 0, best_total_us_ = 0;
  int changes_ = 0, steps_ = 0, quiet_until_ = 0;
};

std::vector<Machine> Machines(std::vector<double> each_us, std::vector<double> fixed_us = {}) {
  std::vector<Machine> machines;
  for (std::size_t i = 0; i < each_us.size(); ++i) {
    machines.push_back({i < fixed_us.size() ? fixed_us[i] : 0, each_us[i]});
  }
  return machines;
}

const std::vector<double> kEqual(8, 1.0);
const std::vector<double> kUnequal = {1, 2, 3, 4, 1, 2, 3, 4};
const BatchRuleOptions kOptions{1024, 1, 0.05};

// A cost that is known without noise.
StepCost Known(double fixed_ns, double each_ns) {
  StepCost cost;
  for (const std::int64_t samples : {100, 100, 100, 100, 200, 200, 200, 400, 400, 400}) {
    const double ns = fixed_ns + each_ns * static_cast<double>(samples);
    cost.Observe(samples, static_cast<DurationNs>(ns));
  }
  return cost;
}

std::int64_t Sum(const std::vector<std::int64_t>& shares) {
  return std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
}

double Longest(std::span<const WorkerLoad> loads, const std::vector<std::int64_t>& shares) {
  double longest = 0;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    longest = std::max(longest, loads[i].cost->Expect(static_cast<double>(shares[i])));
  }
  return longest;
}

// The least longest time of all divisions: samples beside whole multiples for one worker at most.
double BruteForce(std::int64_t left, std::int64_t multiple, std::span<const WorkerLoad> loads,
                  bool exception = true) {
  if (loads.empty()) return left == 0 ? 0 : INFINITY;
  double least = INFINITY;
  for (std::int64_t n = 1; n <= left && (loads[0].limit == 0 || n <= loads[0].limit); ++n) {
    const bool whole = n % multiple == 0;
    if (!whole && !exception) continue;
    const double others = BruteForce(left - n, multiple, loads.subspan(1), exception && whole);
    least = std::min(least, std::max(others, loads[0].cost->Expect(static_cast<double>(n))));
  }
  return least;
}

TEST(StepCostTest, SeparatesTheFixedPartFromTheSamples) {
  const StepCost cost = Known(5'000'000, 20'000);
  EXPECT_NEAR(cost.scale(), 20'000, 200);
  EXPECT_NEAR(cost.fixed(), 250, 5);
  EXPECT_NEAR(cost.Expect(300), 11e6, 1e5);
}

TEST(StepCostTest, IgnoresTheFirstStepAndWhatIsNoTime) {
  StepCost cost;
  cost.Observe(0, 100);
  cost.Observe(10, 0);
  cost.Observe(10, 50'000);
  EXPECT_FALSE(cost.known());
  cost.Observe(10, 1000);
  ASSERT_TRUE(cost.known());
  EXPECT_NEAR(cost.Expect(10), 1000, 1e-6);
  EXPECT_GT(cost.error(), 0.02);  // one step is not certain
}

TEST(StepCostTest, FindsALastingChangeWithinThreeStepsAndTakesNoOutlierForOne) {
  StepCost cost;
  for (int i = 0; i < 21; ++i) cost.Observe(100, 1'000'000 + 1000 * (i % 3));
  for (int i = 0; i < 2; ++i) {
    cost.Observe(100, 10'000'000);
    EXPECT_FALSE(cost.changed());
  }
  cost.Observe(100, 1'000'000);
  EXPECT_NEAR(cost.Expect(100), 1e6, 1e5);
  for (int i = 0; i < 20; ++i) cost.Observe(100, 1'000'000);
  cost.Observe(100, 2'000'000);
  cost.Observe(100, 2'000'000);
  EXPECT_FALSE(cost.changed());
  cost.Observe(100, 2'000'000);
  EXPECT_TRUE(cost.changed());
  EXPECT_NEAR(cost.Expect(100), 2e6, 1);
}

TEST(DivideBatchTest, GivesEqualSharesToUnknownAndEqualWorkers) {
  const std::vector<WorkerLoad> unknown = {{0}, {1}, {5}};
  EXPECT_THAT(DivideBatch(10, 1, unknown), ElementsAre(4, 3, 3));
  EXPECT_THAT(DivideBatch(3, 1, unknown), ElementsAre(1, 1, 1));
  EXPECT_THAT(DivideBatch(26, 4, unknown), ElementsAre(10, 8, 8));
  EXPECT_THAT(DivideBatch(11, 4, unknown), ElementsAre(4, 4, 3));
  EXPECT_TRUE(DivideBatch(10, 1, {}).empty());
}

TEST(DivideBatchTest, TakesTheMeanForAnUnknownWorker) {
  const StepCost fast = Known(0, 1000), slow = Known(0, 3000);
  const std::vector<WorkerLoad> loads = {{0, &fast}, {1, &slow}, {2, nullptr}};
  EXPECT_THAT(DivideBatch(1100, 1, loads), ElementsAre(600, 200, 300));
}

TEST(DivideBatchTest, KeepsLimits) {
  EXPECT_THAT(DivideBatch(30, 1, std::vector<WorkerLoad>{{0, nullptr, 4}, {1}, {2}}),
              ElementsAre(4, 13, 13));
  EXPECT_THAT(DivideBatch(30, 1, std::vector<WorkerLoad>{{0, nullptr, 4}, {1, nullptr, 5}}),
              ElementsAre(4, 5));
  // A limit of 7 is one of 4; nothing else holds the last samples; a limit of 3 is taken whole.
  EXPECT_THAT(DivideBatch(24, 4, std::vector<WorkerLoad>{{0, nullptr, 7}, {1}}),
              ElementsAre(4, 20));
  EXPECT_THAT(DivideBatch(14, 4, std::vector<WorkerLoad>{{0, nullptr, 7}, {1, nullptr, 7}}),
              ElementsAre(7, 7));
  EXPECT_THAT(DivideBatch(23, 4, std::vector<WorkerLoad>{{0, nullptr, 3}, {1}, {2}}),
              ElementsAre(3, 12, 8));
}

TEST(DivideBatchTest, IsAsGoodAsBruteForce) {
  Prng prng(7);
  for (int round = 0; round < 400; ++round) {
    const std::int64_t multiple = 1 + static_cast<std::int64_t>(prng.Below(4));
    std::vector<StepCost> costs;
    for (std::uint64_t i = 1 + prng.Below(4); i > 0; --i) {
      costs.push_back(Known(prng.Below(2) == 0 ? 0 : 1e7 * prng.Unit(), 1e4 + 1e6 * prng.Unit()));
    }
    std::vector<WorkerLoad> loads;
    std::int64_t limits = 0;
    for (const StepCost& cost : costs) {
      const std::int64_t limit = multiple * static_cast<std::int64_t>(2 + prng.Below(8));
      loads.push_back({static_cast<Rank>(loads.size()), &cost, limit});
      limits += limit;
    }
    const std::int64_t least = multiple * static_cast<std::int64_t>(loads.size());
    const std::int64_t batch =
        least + static_cast<std::int64_t>(prng.Below(static_cast<std::uint64_t>(limits - least)));
    const std::vector<std::int64_t> shares = DivideBatch(batch, multiple, loads);
    EXPECT_EQ(Sum(shares), batch);
    EXPECT_LE(std::count_if(shares.begin(), shares.end(),
                            [&](std::int64_t n) { return n % multiple != 0; }),
              1);
    for (std::size_t i = 0; i < shares.size(); ++i) {
      EXPECT_GE(shares[i], 1);
      EXPECT_LE(shares[i], loads[i].limit);
    }
    const double best = BruteForce(batch, multiple, loads);
    EXPECT_NEAR(Longest(loads, shares), best, 1e-9 * best) << "round " << round;
  }
}

TEST(DivideBatchTest, DividesAmongThousands) {
  Prng prng(3);
  std::vector<StepCost> costs;
  std::vector<WorkerLoad> loads;
  for (int i = 0; i < 4096; ++i) costs.push_back(Known(0, 1000 + 9000 * prng.Unit()));
  for (const StepCost& cost : costs) loads.push_back({static_cast<Rank>(loads.size()), &cost});
  const std::vector<std::int64_t> shares = DivideBatch(4096 * 64, 8, loads);
  EXPECT_EQ(Sum(shares), 4096 * 64);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    EXPECT_EQ(shares[i] % 8, 0);
    // Nobody is ready before the slowest one by more than one unit.
    EXPECT_GE(costs[i].Expect(static_cast<double>(shares[i] + 8)), 0.999 * Longest(loads, shares));
  }
}

// Within 2 % after so many steps, and no change after that.
void ExpectConverges(BatchRuleOptions options, std::vector<Machine> machines, int steps) {
  Cluster cluster(options, std::move(machines));
  cluster.Step();
  EXPECT_LE(1 + cluster.StepsUntil(0.02), steps);
  cluster.Steps(40);
  const int changes = cluster.changes();
  cluster.Steps(300);
  EXPECT_EQ(cluster.changes(), changes) << cluster.reason();
  EXPECT_LE(cluster.Excess(), 0.02);
}

TEST(BatchRuleTest, ConvergesWithinAFewSteps) {
  ExpectConverges(kOptions, Machines({1, 1, 1, 5, 1, 1, 1, 1}), 5);
  ExpectConverges(kOptions, Machines({1, 1, 1, 3, 1, 2, 1, 1}), 5);
}

TEST(BatchRuleTest, ConvergesWithFixedParts) {
  const std::vector<double> fixed = {0, 100, 200, 0, 100, 200, 0, 100};
  const std::vector<double> each = {1, 4, 1, 4, 1, 4, 1, 4};
  ExpectConverges({1024, 1, 0.01}, Machines(each, fixed), 20);
  Cluster cluster(kOptions, Machines(each, fixed));
  cluster.Step();
  EXPECT_LE(1 + cluster.StepsUntil(0.05), 10);
}

TEST(BatchRuleTest, SaysWhyInFigures) {
  Cluster cluster(kOptions, Machines({1, 1, 1, 5, 1, 1, 1, 1}));
  cluster.Step();
  EXPECT_EQ(cluster.reason(), "the first shares of 8 workers");
  cluster.Steps(10);
  EXPECT_EQ(cluster.reason(),
            "rank 3 needs 5.0 us for each sample, the mean of the others is 1.0 us: "
            "steps of 143.0 us instead of 640.0 us");
  EXPECT_EQ(cluster.rule().Expected(3, 100), 500'000);
  EXPECT_EQ(cluster.rule().Expected(9, 100), 0);
  EXPECT_EQ(cluster.changes(), 1);
}

TEST(BatchRuleTest, FollowsAWorkerThatBecomesSlowAndRecovers) {
  Cluster cluster(kOptions, Machines(kEqual));
  cluster.Steps(100);
  cluster.machines()[2].each_us = 4;
  EXPECT_LE(cluster.StepsUntil(0.02), 6);
  cluster.Steps(100);
  cluster.machines()[2].each_us = 1;
  EXPECT_LE(cluster.StepsUntil(0.02), 8);
  EXPECT_LE(cluster.changes(), 4);
}

TEST(BatchRuleTest, LeavesEqualWorkersAlone) {
  Cluster cluster(kOptions, Machines(kEqual));
  cluster.Steps(1000);
  EXPECT_EQ(cluster.changes(), 0);
}

TEST(BatchRuleTest, StaysCalmUnderNoise) {
  for (const auto& each_us : {kEqual, kUnequal}) {
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      Cluster cluster(kOptions, Machines(each_us), seed);
      cluster.SetNoise(0.3);
      cluster.Steps(3000);
      EXPECT_LE(cluster.changes(), 60) << seed;
      EXPECT_LE(cluster.total_us(), 1.03 * cluster.best_total_us()) << seed;
    }
  }
}

TEST(BatchRuleTest, IgnoresOutliers) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Cluster equal(kOptions, Machines(kEqual), seed), unequal(kOptions, Machines(kUnequal), seed);
    equal.SetOutliers(0.01);
    unequal.SetOutliers(0.01);
    equal.Steps(3000);
    unequal.Steps(3000);
    EXPECT_EQ(equal.changes(), 0) << seed << equal.reason();
    EXPECT_LE(unequal.changes(), 2) << seed << unequal.reason();
    EXPECT_LE(unequal.Excess(), 0.05) << seed;
  }
}

TEST(BatchRuleTest, FindsByProbesThatAWorkerHasRecovered) {
  Cluster cluster(kOptions, Machines({1, 150, 1, 1}, {0, 200, 0, 0}));
  cluster.Steps(150);
  EXPECT_EQ(cluster.shares()[1].samples, 1);
  cluster.machines()[1].each_us = 1;
  bool probed = false;
  int steps = 0;
  for (; steps < 300 && cluster.Excess() > 0.06; ++steps) {
    cluster.Step();
    probed = probed || cluster.reason().starts_with("probe: rank 1 has ");
  }
  EXPECT_TRUE(probed);
  EXPECT_LT(steps, 300);
}

TEST(BatchRuleTest, EndsAProbeAfterOneStep) {
  Cluster cluster(kOptions, Machines({1, 60, 1, 1}, {0, 280, 0, 0}));
  cluster.Steps(40);
  const std::vector<ShareOf> calm = cluster.shares();
  int other = 0;
  for (int i = 0; i < 600; ++i) {
    cluster.Step();
    if (cluster.shares() == calm) continue;
    ++other;
    cluster.Step();
    EXPECT_EQ(cluster.shares(), calm) << cluster.reason();
    EXPECT_EQ(cluster.reason(), "probe: rank 1 has its former share again");
  }
  EXPECT_GE(other, 1);
  EXPECT_LE(other, 5);
}

TEST(BatchRuleTest, ChangesSharesWhenWorkersComeAndGo) {
  Cluster cluster(kOptions, Machines({1, 1, 1, 4, 1, 1, 1, 1}));
  cluster.Steps(20);
  cluster.asked().pop_back();
  cluster.asked().erase(cluster.asked().begin());
  cluster.Step();
  EXPECT_EQ(cluster.reason(), "ranks 0, 7 have gone");
  EXPECT_EQ(cluster.shares().size(), 6u);
  EXPECT_NEAR(static_cast<double>(cluster.shares()[2].samples), 1024 / 5.25 / 4, 2);
  cluster.rule().Forget(7);
  EXPECT_EQ(cluster.rule().Expected(7, 10), 0);
  cluster.asked().push_back({7, 100});
  cluster.Step();
  EXPECT_EQ(cluster.reason(), "rank 7 has come");
  EXPECT_LE(cluster.shares().back().samples, 100);
  cluster.Steps(5);
  cluster.asked().back().limit = 20;
  cluster.Step();
  EXPECT_EQ(cluster.reason(), "rank 7 has another limit");
  EXPECT_EQ(cluster.shares().back().samples, 20);
  cluster.asked().back().limit = 0;
  cluster.Step();
  EXPECT_GT(cluster.shares().back().samples, 100);
}

TEST(BatchRuleTest, KeepsTheSumTheLimitsAndTheMultiples) {
  Cluster cluster({1030, 8, 0.05}, Machines(kUnequal));
  cluster.SetNoise(0.3);
  cluster.asked()[0].limit = 100;
  for (int i = 0; i < 500; ++i) {
    cluster.Step();
    std::int64_t sum = 0, others = 0;
    for (const ShareOf& share : cluster.shares()) {
      sum += share.samples;
      others += share.samples % 8 != 0;
    }
    ASSERT_EQ(sum, 1030) << cluster.reason();
    ASSERT_EQ(others, 1) << cluster.reason();
    ASSERT_LE(cluster.shares()[0].samples, 100) << cluster.reason();
  }
  EXPECT_GT(cluster.changes(), 0);
}

TEST(BatchRuleTest, HasNoChoiceWithOneSampleEach) {
  Cluster cluster({8, 4, 0.05}, Machines(kUnequal));
  cluster.Steps(100);
  EXPECT_EQ(cluster.changes(), 0);
  for (const ShareOf& share : cluster.shares()) EXPECT_EQ(share.samples, 1);
}

TEST(BatchRuleTest, GoesOnFromItsArchive) {
  for (const int before : {2, 9, 130, 300}) {
    Cluster one(kOptions, Machines({1, 150, 1, 1}, {0, 200, 0, 0}), 5);
    one.SetNoise(0.1);
    one.Steps(before);
    const std::string saved = SaveState(one.rule());
    Cluster other = one;
    other.rule() = BatchRule(kOptions);
    StateArchive ar = StateArchive::Loader(saved);
    other.rule().Archive(ar);
    ASSERT_TRUE(ar.ok() && ar.AtEnd());
    EXPECT_EQ(SaveState(other.rule()), saved);
    for (int i = 0; i < 300; ++i) {
      one.Step();
      other.Step();
      ASSERT_EQ(one.shares(), other.shares());
      ASSERT_EQ(one.reason(), other.reason());
    }
    EXPECT_EQ(SaveState(one.rule()), SaveState(other.rule()));
  }
}

}  // namespace
}  // namespace prd::batch_rule_test
