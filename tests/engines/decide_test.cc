#include "tools/prdbench/decide.h"

#include "engines/prague/options.h"
#include "gtest/gtest.h"

namespace prd::bench {
namespace {

// The loop closes: every size of every engine gets through its rounds, and each has a cost. (What
// it is, only prdbench says: a test must not depend on a timing.)
TEST(DecideTest, EveryEngineHasACostAtEverySize) {
  const std::vector<std::int64_t> sizes = {1, 2, 8, 100};
  std::vector<EngineOptions> engines = AllEngines();
  engines.push_back(PragueOptions{.generator = PragueOptions::Generator::kRandom});
  for (const EngineOptions& options : engines) {
    const std::vector<DecideCost> costs = MeasureDecide(options, sizes, 500, 3);
    ASSERT_EQ(costs.size(), sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(costs[i].workers, sizes[i]);
      EXPECT_GT(costs[i].ns_per_signal, 0);
    }
  }
}

}  // namespace
}  // namespace prd::bench
