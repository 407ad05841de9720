// The files that an operator reads are what the descriptions of the keys give, and load.
// PRD_REWRITE=1 writes prd.toml and the engines' samples anew.
#include "config/manual.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>

#include "config/config.h"
#include "config/fields.h"
#include "config/keys.h"

namespace prd {
namespace {

const std::string kFolder = std::string(PRD_SOURCE_DIR) + "/config/";

void ExpectInFile(const std::string& name, const std::string& text) {
  if (std::getenv("PRD_REWRITE") != nullptr) std::ofstream(kFolder + name) << text;
  std::ifstream in(kFolder + name);
  std::ostringstream file;
  file << in.rdbuf();
  EXPECT_EQ(file.str(), text) << "PRD_REWRITE=1 config_test writes config/" << name;
}

TEST(ManualTest, IsWhatTheDescriptionsGive) { ExpectInFile("prd.toml", ConfigManual()); }

TEST(ManualTest, SoIsTheSampleOfEachEngine) {
  for (const EngineOptions& engine : AllEngines()) {
    ExpectInFile(std::string(EngineName(engine)) + ".toml", ConfigSample(engine));
  }
}

TEST(ManualTest, IsAValidConfigurationOfDefaults) {
  const Result<Config> config = LoadConfig(kFolder + "prd.toml");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->daemon, DaemonConfig{});
  ASSERT_EQ(config->jobs.size(), 1u);
  EXPECT_EQ(config->jobs[0].spec.engine, JobSpec().engine);
}

TEST(ManualTest, EverySampleLoads) {
  int samples = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".toml") continue;
    const Result<Config> config = LoadConfig(entry.path().string());
    ASSERT_TRUE(config.ok()) << config.status().ToString();
    ++samples;
    const JobSpec& first = config->jobs.at(0).spec;
    for (const EngineOptions& engine : AllEngines()) {
      if (entry.path().stem() != EngineName(engine)) continue;
      EXPECT_EQ(first.engine, engine);
    }
  }
  EXPECT_GT(samples, static_cast<int>(AllEngines().size()));
}

// What no key may lack: words for the manual.
class Explained final : public Fields {
 public:
  void Table(std::string_view key, bool, std::string_view help,
             const std::function<void(Fields&)>& describe) override {
    EXPECT_FALSE(help.empty()) << key;
    describe(*this);
  }
  void Check(const Status&) override {}

 protected:
  void Add(const Field& field) override { EXPECT_FALSE(field.help.empty()) << field.key; }
};

TEST(ManualTest, EveryKeyIsExplainedAndListed) {
  DaemonConfig daemon;
  JobSpec spec;
  std::string name;
  Explained explained;
  DescribeDaemon(explained, &daemon);
  JobRule rule;
  DescribeJob(explained, &name, PatternRule, &spec, &rule);
  const std::string reference = ConfigReference();
  FieldLister lister("job");
  DescribeJob(lister, &name, PatternRule, &spec, &rule);
  EXPECT_GT(lister.lines().size(), 50u);
  for (const FieldLister::Line& line : lister.lines()) {
    EXPECT_NE(reference.find(line.key + " = " + (line.value.empty() ? "(required)" : line.value)),
              std::string::npos)
        << line.key;
  }
}

}  // namespace
}  // namespace prd
