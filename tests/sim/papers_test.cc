#include "tools/sim/papers.h"

#include <gtest/gtest.h>

namespace prd::sim {
namespace {

TEST(Papers, OursBesideThePapers) {
  const Papers papers = RunPapers(1, 200);
  ASSERT_EQ(papers.table1.size(), 30u);  // three models, two levels, five methods
  for (const PaperRatio& ratio : papers.table1) {
    const std::string cell =
        ratio.model + " HL=" + std::to_string(ratio.level) + " " + ratio.method;
    if (ratio.method == "all-reduce") {
      EXPECT_EQ(ratio.ours, 1) << cell;
      continue;
    }
    EXPECT_LT(ratio.ours, 1) << cell;
    const auto far = [&](double ours) { return std::abs(ours / ratio.paper - 1) > 0.2; };
    EXPECT_EQ(far(ratio.ours) || far(ratio.steady), !ratio.why.empty()) << cell;
    EXPECT_NEAR(ratio.ours / ratio.paper, 1, 0.3) << cell;
  }
  // Figure 8's shape: larger groups take longer, and fewer of them are needed.
  ASSERT_EQ(papers.figure8.size(), 7u);
  for (std::size_t i = 1; i < papers.figure8.size(); ++i) {
    EXPECT_GT(papers.figure8[i].update_s, papers.figure8[i - 1].update_s);
    EXPECT_LT(papers.figure8[i].updates, papers.figure8[i - 1].updates);
  }
  ASSERT_EQ(papers.figure4.size(), 2u);
  EXPECT_NEAR(papers.figure4[0].ours, 0.5, 0.03);
  EXPECT_NEAR(papers.figure4[1].ours, 0.625, 0.1);
  EXPECT_GT(papers.figure4[1].ours, papers.figure4[0].ours);

  EXPECT_NE(TextPapers(papers).find("Figure 8"), std::string::npos);
  EXPECT_EQ(JsonPapers(papers)["table1"].size(), 30u);
}

}  // namespace
}  // namespace prd::sim
