// A job's spec written as TOML and read back is the same spec, and the text is the same text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "config/config.h"
#include "config/fields.h"
#include "config/glob.h"

namespace prd {
namespace {

using ::testing::HasSubstr;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::int64_t In(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  double Real() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  std::string Name() {
    std::string name;
    for (std::int64_t n = In(1, 30); n > 0; --n) name += static_cast<char>(In(0x20, 0x7e));
    return name;
  }

 private:
  std::mt19937_64 random_;
};

AdPsgdOptions RandomAdPsgd(Draw& draw, int workers) {
  AdPsgdOptions options{.graph = {.kind = Graph::Kind(draw.In(0, 2)), .edges = {}},
                        .section_length = draw.In(1, 100'000),
                        .overlap = draw.In(0, 1) == 1,
                        .overlap_steps = static_cast<int>(draw.In(1, 1000)),
                        .seed = draw.In(0, 100'000)};
  for (Rank rank = 1; options.graph.kind == Graph::Kind::kEdges && rank < workers + 2; ++rank) {
    options.graph.edges.emplace_back(rank, static_cast<Rank>(draw.In(0, rank - 1)));
  }
  return options;
}

PragueOptions RandomPrague(Draw& draw) {
  return {.generator = PragueOptions::Generator(draw.In(0, 2)),
          .group_size = static_cast<int>(draw.In(2, 100'000)),
          .section_length = draw.In(1, 100'000),
          .slowdown_threshold = draw.In(1, 1000),
          .inter_intra = draw.In(0, 1) == 1,
          .request_ahead = draw.In(0, 1) == 1,
          .workers_per_host = static_cast<int>(draw.In(0, 64)),
          .overlap = draw.In(0, 1) == 1,
          .overlap_steps = static_cast<int>(draw.In(1, 1000)),
          .seed = draw.In(0, 100'000)};
}

HopOptions RandomHop(Draw& draw, int workers) {
  HopOptions options{.graph = {.kind = Graph::Kind(draw.In(0, 5)), .edges = {}},
                     .workers_per_host = static_cast<int>(draw.In(0, 64)),
                     .max_iteration_gap = static_cast<int>(draw.In(1, 10'000)),
                     .backups = workers == 1 ? 0 : static_cast<int>(draw.In(0, 1)),
                     .staleness = static_cast<int>(draw.In(0, 1000)),
                     .max_jump = static_cast<int>(draw.In(0, 10'000)),
                     .skip_behind = static_cast<int>(draw.In(1, 10'000)),
                     .order = HopOptions::Order(draw.In(0, 1))};
  if (options.graph.kind == Graph::Kind::kHierarchical) options.backups = 0;
  if (options.graph.kind != Graph::Kind::kEdges) return options;
  options.directed = draw.In(0, 1) == 1;
  const Rank ranks = workers + 2;
  for (Rank rank = 0; rank < ranks; ++rank) {
    if (options.directed) {
      options.graph.edges.emplace_back(rank, (rank + 1) % ranks);
    } else if (rank > 0) {
      options.graph.edges.emplace_back(rank, static_cast<Rank>(draw.In(0, rank - 1)));
    }
  }
  return options;
}

SspOptions RandomSsp(Draw& draw) {
  return {.staleness = static_cast<int>(draw.In(-1, 1000)),
          .learning_rate = SspOptions::LearningRate(draw.In(0, 1)),
          .replicas = static_cast<int>(draw.In(0, 16)),
          .shards = static_cast<int>(draw.In(0, 10'000))};
}

JobSpec RandomSpec(Draw& draw) {
  JobSpec spec;
  spec.name = draw.Name();
  spec.workers = static_cast<int>(draw.In(0, 40));
  spec.max_workers = static_cast<int>(draw.In(std::max(spec.workers, 1), 100'000));
  spec.lease_ms = static_cast<std::uint32_t>(draw.In(20, 3'600'000));
  spec.heartbeat_ms = static_cast<std::uint32_t>(draw.In(1, (spec.lease_ms - 1) / 2));
  const std::int64_t engine = draw.In(0, 8);
  if (engine == 0) {
    spec.engine = EagerOptions{.quorum = draw.In(0, 4),
                               .seed = draw.In(0, 100'000),
                               .max_stale_rounds = draw.In(0, 100),
                               .sync_every = draw.In(0, 1000),
                               .missed = EagerOptions::Missed(draw.In(0, 1))};
  } else if (engine == 1) {
    const std::int64_t most = spec.workers > 0 ? spec.workers - 1 : 100;
    spec.engine = BackupOptions{.backups = static_cast<int>(draw.In(0, most))};
  } else if (engine == 2) {
    spec.engine = EsyncOptions{.mode = EsyncOptions::Mode(draw.In(0, 1)),
                               .margin_ms = draw.In(0, 100),
                               .global_lr = 9.9 * draw.Real() + 0.05,
                               .stall_factor = draw.In(2, 1000)};
  } else if (engine == 5) {
    spec.engine = RandomAdPsgd(draw, spec.workers);
  } else if (engine == 6) {
    spec.engine = RandomPrague(draw);
  } else if (engine == 7) {
    spec.engine = RandomHop(draw, spec.workers);
  } else if (engine == 8) {
    spec.engine = RandomSsp(draw);
  } else if (engine == 3) {
    spec.engine = AllReduceOptions{.weights = AllReduceOptions::Weights(draw.In(0, 1))};
  } else {
    spec.engine = PReduceOptions{.group_size = static_cast<int>(draw.In(2, 5)),
                                 .weights = PReduceOptions::Weights(draw.In(0, 1)),
                                 .alpha = draw.Real(),
                                 .missing = PReduceOptions::Missing(draw.In(0, 2)),
                                 .history_window = static_cast<int>(draw.In(40, 100)),
                                 .max_wait_ms = draw.In(0, 100'000),
                                 .overlap = draw.In(0, 1) == 1,
                                 .overlap_steps = static_cast<int>(draw.In(1, 1000))};
  }
  return spec;
}

TEST(SpecTest, RoundTripIsExact) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const JobSpec spec = RandomSpec(draw);
    const std::string text = JobSpecToToml(spec);
    const Result<JobSpec> read = JobSpecFromToml(text);
    ASSERT_TRUE(read.ok()) << read.status().ToString() << "\n" << text;
    EXPECT_EQ(read->name, spec.name);
    EXPECT_EQ(read->engine, spec.engine);
    EXPECT_EQ(read->workers, spec.workers);
    EXPECT_EQ(read->max_workers, spec.max_workers);
    EXPECT_EQ(read->lease_ms, spec.lease_ms);
    EXPECT_EQ(read->heartbeat_ms, spec.heartbeat_ms);
    EXPECT_EQ(read->text, text);
    EXPECT_EQ(JobSpecToToml(*read), text);
  }
}

TEST(SpecTest, EveryKeyIsWrittenOut) {
  JobSpec spec;
  spec.name = "mnist";
  spec.engine = PReduceOptions{};
  EXPECT_EQ(JobSpecToToml(spec), R"([job]
name = "mnist"
engine = "p-reduce"
workers = 0
max_workers = 4096
lease_ms = 2000
heartbeat_ms = 500

[job.p-reduce]
group_size = 3
weights = "dynamic"
alpha = 0.5
missing = "nearest"
history_window = 0
max_wait_ms = 0
overlap = false
overlap_steps = 2
)");
}

TEST(SpecTest, DamagedTextIsRefused) {
  EXPECT_THAT(JobSpecFromToml("[job]\nname = \"a\"\n").status().message(),
              HasSubstr("job spec:1: job.engine: found nothing"));
  EXPECT_THAT(JobSpecFromToml("").status().message(), HasSubstr("job.name: found nothing"));
  EXPECT_FALSE(JobSpecFromToml("[job").ok());
}

// Random damage to good files ends in an error or in a config, never in anything else.
TEST(SpecTest, MutatedTextNeverCrashes) {
  JobSpec spec;
  spec.name = "mnist";
  spec.engine = PReduceOptions{};
  const std::string good = JobSpecToToml(spec);
  int refused = 0;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    Draw draw(seed);
    std::string text = good;
    for (std::int64_t n = draw.In(1, 4); n > 0; --n) {
      const auto at =
          static_cast<std::size_t>(draw.In(0, static_cast<std::int64_t>(text.size()) - 1));
      if (draw.In(0, 2) == 0) {
        text.erase(at, static_cast<std::size_t>(draw.In(1, 9)));
      } else {
        text[at] = static_cast<char>(draw.In(0, 255));
      }
    }
    const Result<JobSpec> read = JobSpecFromToml(text);
    if (!read.ok()) {
      ++refused;
      EXPECT_EQ(read.status().code(), Code::kInvalidArgument);
      EXPECT_FALSE(read.status().message().empty());
    }
    (void)ParseConfig(text, "f");
  }
  EXPECT_GT(refused, 1000);
}

// Every way to split the text, so slow that it is obviously right.
bool SlowMatch(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] == '*') {
    for (std::size_t i = 0; i <= text.size(); ++i) {
      if (SlowMatch(pattern.substr(1), text.substr(i))) return true;
    }
    return false;
  }
  return !text.empty() && (pattern[0] == '?' || pattern[0] == text[0]) &&
         SlowMatch(pattern.substr(1), text.substr(1));
}

TEST(GlobTest, AgreesWithTheObviousMatcher) {
  Draw draw(7);
  int matched = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string pattern, text;
    for (std::int64_t n = draw.In(0, 6); n > 0; --n) {
      pattern += "ab*?"[static_cast<std::size_t>(draw.In(0, 3))];
    }
    for (std::int64_t n = draw.In(0, 6); n > 0; --n) {
      text += "ab"[static_cast<std::size_t>(draw.In(0, 1))];
    }
    const bool matches = GlobMatches(pattern, text);
    EXPECT_EQ(matches, SlowMatch(pattern, text)) << pattern << " " << text;
    matched += matches ? 1 : 0;
  }
  EXPECT_GT(matched, 1000);
}

TEST(GlobTest, ManyStarsStayCheap) {
  std::string pattern;
  for (int i = 0; i < 100; ++i) pattern += "*a";
  EXPECT_FALSE(GlobMatches(pattern + "b", std::string(200, 'a')));
  EXPECT_TRUE(GlobMatches(pattern, std::string(200, 'a')));
}

TEST(NearestWordTest, FindsTypingErrorsAndNothingElse) {
  const std::vector<std::string> words = {"group_size", "history_window", "alpha"};
  EXPECT_EQ(NearestWord("grop_size", words), "group_size");
  EXPECT_EQ(NearestWord("historywindow", words), "history_window");
  EXPECT_EQ(NearestWord("alhpa", words), "alpha");
  EXPECT_EQ(NearestWord("unrelated", words), "");
  EXPECT_EQ(NearestWord(std::string(1 << 20, 'x'), words), "");
}

}  // namespace
}  // namespace prd
