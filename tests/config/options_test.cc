// Every key of every engine: its bounds hold wherever options come from, and each value that is
// allowed can be written and read back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "config/engine_text.h"
#include "engines/draw.h"

namespace prd {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Shows a function each key, which may set it.
class Visitor final : public Fields {
 public:
  explicit Visitor(std::function<void(const Field&)> visit) : visit_(std::move(visit)) {}
  void Table(std::string_view, bool, std::string_view,
             const std::function<void(Fields&)>& describe) override {
    describe(*this);
  }
  void Check(const Status&) override {}

 protected:
  void Add(const Field& field) override { visit_(field); }

 private:
  std::function<void(const Field&)> visit_;
};

// A value of a key: options that have it, as TOML, and what is allowed instead.
struct Case {
  EngineOptions options;
  std::string key;
  std::string value;
  std::string allowed;
};

// The cases of a key whose value `set` changes; it returns false where there is no such value.
template <typename Kind, typename Set>
std::vector<Case> CasesOf(Set set) {
  std::vector<Case> cases;
  for (const EngineOptions& engine : AllEngines()) {
    std::vector<std::string> keys;
    EngineOptions scratch = engine;
    Visitor list([&](const Field& field) { keys.emplace_back(field.key); });
    scratch.Describe(list);
    for (const std::string& key : keys) {
      Case one{.options = engine, .key = key, .value = "", .allowed = ""};
      Visitor change([&](const Field& field) {
        const auto* kind = std::get_if<Kind>(&field.kind);
        if (field.key != key || kind == nullptr || !set(*kind)) return;
        one.value = ValueText(field);
        one.allowed = Allowed(field);
      });
      one.options.Describe(change);
      if (!one.value.empty()) cases.push_back(one);
    }
  }
  return cases;
}

JobSpec SpecOf(const EngineOptions& engine) {
  JobSpec spec;
  spec.name = "job";
  spec.engine = engine;
  return spec;
}

// All that lead to the same keys refuse it, and say so in the same words.
void ExpectRefused(const Case& one) {
  SCOPED_TRACE(one.key + " = " + one.value);
  const std::string what = one.key + ": found " + one.value + ", allowed is " + one.allowed;
  EXPECT_EQ(Validate(one.options, 0).message(), what);
  const std::string name(EngineName(one.options));
  EXPECT_THAT(JobSpecFromToml(JobSpecToToml(SpecOf(one.options))).status().message(),
              HasSubstr(": job." + name + "." + what));
  EXPECT_THAT(ParseEngine(name + ":" + one.key + "=" + one.value).status().message(),
              EndsWith(name + "." + what));
}

// Unless the engine's rules over several keys have something against it.
void ExpectAllowed(const Case& one) {
  SCOPED_TRACE(one.key + " = " + one.value);
  RangeChecker ranges;
  EngineOptions copy = one.options;
  copy.Describe(ranges);
  EXPECT_TRUE(ranges.status().ok()) << ranges.status().message();
  const Status valid = Validate(one.options, 0);
  if (!valid.ok()) {
    EXPECT_THAT(valid.message(), testing::Not(HasSubstr(one.allowed)));
    return;
  }
  const std::string text = JobSpecToToml(SpecOf(one.options));
  EXPECT_THAT(text, HasSubstr("\n" + one.key + " = " + one.value + "\n"));
  const Result<JobSpec> read = JobSpecFromToml(text);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->engine, one.options);
  const Result<EngineOptions> parsed = ParseEngine(EngineText(one.options));
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(*parsed, one.options);
}

TEST(OptionsTest, WholeNumbersAreAllowedUpToTheirBoundsAndNotBeyond) {
  const auto at_least = CasesOf<Field::Whole>([](const auto& of) {
    *of.value = of.range.least;
    return true;
  });
  const auto at_most = CasesOf<Field::Whole>([](const auto& of) {
    *of.value = of.range.most;
    return true;
  });
  const auto below = CasesOf<Field::Whole>([](const auto& of) {
    *of.value = of.range.least - 1;
    for (const Field::NamedNumber& named : of.names) *of.value -= named.value == *of.value;
    return true;
  });
  const auto above = CasesOf<Field::Whole>([](const auto& of) {
    if (of.range.most == std::numeric_limits<std::int64_t>::max()) return false;
    *of.value = of.range.most + 1;
    return true;
  });
  EXPECT_GT(at_least.size(), 25u);
  EXPECT_EQ(at_least.size(), below.size());
  EXPECT_GT(above.size(), 20u);
  for (const Case& one : at_least) ExpectAllowed(one);
  for (const Case& one : at_most) ExpectAllowed(one);
  for (const Case& one : below) ExpectRefused(one);
  for (const Case& one : above) ExpectRefused(one);
}

TEST(OptionsTest, RealNumbersAreAllowedBelowTheirBound) {
  const auto put = [](double (*value)(const RealRange&)) {
    return CasesOf<Field::Real>([value](const auto& of) {
      *of.value = value(of.range);
      return true;
    });
  };
  const auto least = put([](const RealRange& range) { return range.least; });
  EXPECT_GE(least.size(), 2u);
  for (const Case& one : least) ExpectAllowed(one);
  for (const Case& one : put([](const RealRange& r) { return std::nextafter(r.below, r.least); })) {
    ExpectAllowed(one);
  }
  for (const Case& one : put([](const RealRange& range) { return range.below; })) {
    ExpectRefused(one);
  }
  for (const Case& one : put([](const RealRange& range) { return range.least - 0.5; })) {
    ExpectRefused(one);
  }
  for (const Case& one :
       put([](const RealRange&) { return std::numeric_limits<double>::quiet_NaN(); })) {
    EXPECT_THAT(Validate(one.options, 0).message(), StartsWith(one.key + ": found nan"));
  }
}

TEST(OptionsTest, EveryNameIsAllowed) {
  std::size_t names = 0;
  for (std::size_t index = 0; index < 8; ++index) {
    const auto cases = CasesOf<Field::Name>([index](const auto& of) {
      if (index >= of.names.size()) return false;
      *of.value = index;
      return true;
    });
    for (const Case& one : cases) ExpectAllowed(one);
    names += cases.size();
  }
  EXPECT_GT(names, 15u);
}

// What is drawn is allowed, differs from seed to seed, and stays within what the key says.
TEST(OptionsTest, EveryNumberIsDrawnFromItsRange) {
  int keys = 0;
  for (const EngineOptions& engine : AllEngines()) {
    EngineOptions scratch = engine;
    Visitor ranges([&](const Field& field) {
      const auto* whole = std::get_if<Field::Whole>(&field.kind);
      if (whole == nullptr) return;
      ++keys;
      const WholeRange& range = whole->range;
      EXPECT_LT(range.draw.from, range.draw.to) << field.key;
      EXPECT_GE(range.draw.from, range.least) << field.key;
      EXPECT_LE(range.draw.to, range.most) << field.key;
    });
    scratch.Describe(ranges);
    std::vector<std::string> drawn;
    for (std::uint64_t seed = 1; seed <= 300; ++seed) {
      Prng prng(seed);
      const int workers = 1 + static_cast<int>(seed % 12);
      const EngineOptions options = Draw(engine, &prng, workers);
      EXPECT_TRUE(Validate(options, workers).ok());
      drawn.push_back(EngineText(options));
    }
    std::sort(drawn.begin(), drawn.end());
    drawn.erase(std::unique(drawn.begin(), drawn.end()), drawn.end());
    EXPECT_GE(drawn.size(), 2u) << EngineName(engine);
  }
  EXPECT_GT(keys, 25);
}

}  // namespace
}  // namespace prd
