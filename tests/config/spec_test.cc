// A job's spec written as TOML and read back is the same spec, and the text is the same text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/engine_text.h"
#include "config/fields.h"
#include "config/glob.h"
#include "engines/draw.h"
#include "engines/p_reduce/options.h"
#include "engines/ssp/options.h"

namespace prd {
namespace {

using ::testing::HasSubstr;

class Random {
 public:
  explicit Random(std::uint64_t seed) : random_(seed) {}
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

JobSpec RandomSpec(Random& draw) {
  JobSpec spec;
  spec.name = draw.Name();
  spec.workers = static_cast<int>(draw.In(0, 40));
  spec.max_workers = static_cast<int>(draw.In(std::max(spec.workers, 1), 100'000));
  spec.min_workers =
      static_cast<int>(draw.In(1, spec.workers > 0 ? spec.workers : spec.max_workers));
  spec.start_grace_ms = static_cast<std::uint32_t>(draw.In(0, 3'600'000));
  spec.lease_ms = static_cast<std::uint32_t>(draw.In(20, 3'600'000));
  spec.heartbeat_ms = static_cast<std::uint32_t>(draw.In(1, (spec.lease_ms - 1) / 2));
  spec.death_grace_ms = static_cast<std::uint32_t>(draw.In(0, 3'600'000));
  spec.goal = {draw.In(0, std::int64_t{1} << 53), draw.In(0, 100)};
  spec.check_replicas_ms = static_cast<std::uint32_t>(draw.In(0, 3'600'000));
  spec.on_divergence = static_cast<JobSpec::OnDivergence>(draw.In(0, 1));
  spec.on_nonfinite = static_cast<OnNonfinite>(draw.In(0, 2));
  spec.mesh_security = static_cast<MeshSecurity>(draw.In(0, 2));
  spec.device_network_trusted = draw.In(0, 1) == 1;
  const std::vector<EngineOptions> engines = AllEngines();
  const auto engine = static_cast<std::size_t>(draw.In(0, std::ssize(engines) - 1));
  Prng prng(static_cast<std::uint64_t>(draw.In(0, 1'000'000)));
  spec.engine = Draw(engines[engine], &prng, std::max(spec.workers, 1));
  return spec;
}

TEST(SpecTest, RoundTripIsExact) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(seed);
    Random draw(seed);
    const JobSpec spec = RandomSpec(draw);
    const std::string text = JobSpecToToml(spec);
    const Result<JobSpec> read = JobSpecFromToml(text);
    ASSERT_TRUE(read.ok()) << read.status().ToString() << "\n" << text;
    EXPECT_EQ(read->name, spec.name);
    EXPECT_EQ(read->engine, spec.engine);
    EXPECT_EQ(read->workers, spec.workers);
    EXPECT_EQ(read->max_workers, spec.max_workers);
    EXPECT_EQ(read->lease_ms, spec.lease_ms);
    EXPECT_EQ(read->min_workers, spec.min_workers);
    EXPECT_EQ(read->start_grace_ms, spec.start_grace_ms);
    EXPECT_EQ(read->heartbeat_ms, spec.heartbeat_ms);
    EXPECT_EQ(read->death_grace_ms, spec.death_grace_ms);
    EXPECT_EQ(read->goal, spec.goal);
    EXPECT_EQ(read->check_replicas_ms, spec.check_replicas_ms);
    EXPECT_EQ(read->on_divergence, spec.on_divergence);
    EXPECT_EQ(read->on_nonfinite, spec.on_nonfinite);
    EXPECT_EQ(read->mesh_security, spec.mesh_security);
    EXPECT_EQ(read->device_network_trusted, spec.device_network_trusted);
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
min_workers = 1
start_grace_ms = 3000
lease_ms = 2000
heartbeat_ms = 500
death_grace_ms = 200
goal_steps = 0
goal_samples = 0
batch = 0
batch_multiple = 1
rebalance_min = 0.05
check_replicas_ms = 5000
on_divergence = "warn"
on_nonfinite = "pass"
mesh_security = "none"
device_network = "untrusted"

[job.p-reduce]
group_size = 0
weights = "constant"
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
    Random draw(seed);
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
  Random draw(7);
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

// ---- switches ----

JobSpec Running() {
  JobSpec spec{.name = "mnist", .engine = PReduceOptions{.group_size = 3, .history_window = 5}};
  spec.workers = 8;
  spec.text = JobSpecToToml(spec);
  return spec;
}

TEST(SwitchedSpecTest, AnotherEngineHasItsDefaultsAndTheRestOfTheJobStays) {
  const Result<JobSpec> to = SwitchedSpec(Running(), "ssp:staleness=2");
  ASSERT_TRUE(to.ok()) << to.status().ToString();
  EXPECT_EQ(to->name, "mnist");
  EXPECT_EQ(to->workers, 8);
  SspOptions due;
  due.staleness = 2;
  EXPECT_EQ(to->engine, EngineOptions(due));
  EXPECT_EQ(JobSpecToToml(*JobSpecFromToml(to->text)), to->text);
}

TEST(SwitchedSpecTest, TheSameEngineKeepsWhatIsNotNamed) {
  const Result<JobSpec> to =
      SwitchedSpec(Running(), "p-reduce:group_size=5,lease_ms=900,heartbeat_ms=100");
  ASSERT_TRUE(to.ok()) << to.status().ToString();
  EXPECT_EQ(to->engine, EngineOptions(PReduceOptions{.group_size = 5, .history_window = 5}));
  EXPECT_EQ(to->lease_ms, 900u);
  EXPECT_EQ(to->heartbeat_ms, 100u);
}

TEST(SwitchedSpecTest, ErrorsNameTheKey) {
  const auto wrong = [](const std::string& text) {
    return SwitchedSpec(Running(), text).status().message();
  };
  EXPECT_THAT(wrong("nonsense"), HasSubstr("engine: found \"nonsense\", allowed is"));
  EXPECT_THAT(wrong("p-reduce:group_sise=5"), HasSubstr("group_sise"));
  EXPECT_THAT(wrong("backup:backups=8"), HasSubstr("backups"));
  EXPECT_THAT(wrong("p-reduce:group_size"), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(wrong("p-reduce:lease_ms=soon"), HasSubstr("lease_ms: found \"soon\""));
  EXPECT_THAT(wrong("p-reduce:lease_ms="), HasSubstr("lease_ms: found \"\""));
  EXPECT_THAT(wrong("p-reduce:lease_ms=900"), HasSubstr("heartbeat_ms: found 500"));
}

TEST(LiveSwitchTest, OnlyWhatIsLiveAndHasChanged) {
  const auto config = [](const std::string& table) {
    const Result<Config> parsed = ParseConfig(
        "[[job]]\nname = \"a\"\n" + table + "[[job]]\nname = \"*\"\nengine = \"hop\"\n", "test");
    EXPECT_TRUE(parsed.ok()) << parsed.status().ToString();
    return *parsed;
  };
  const Config before = config("engine = \"p-reduce\"\n");
  const std::string after = "engine = \"p-reduce\"\nlease_ms = 9000\n";
  EXPECT_FALSE(LiveSwitch(before, config(after), "a")) << "it is not live";
  const std::optional<JobSpec> to = LiveSwitch(before, config(after + "live = true\n"), "a");
  ASSERT_TRUE(to.has_value());
  EXPECT_EQ(to->lease_ms, 9000u);
  EXPECT_EQ(to->name, "a");
  const std::string live = "engine = \"p-reduce\"\nlive = true\n";
  EXPECT_FALSE(LiveSwitch(before, config(live), "a")) << "nothing that a run has has changed";
  EXPECT_FALSE(LiveSwitch(before, config(after + "live = true\n"), "b")) << "another table";
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
