// The files an operator reads: each loads, and the manual tells the truth about every key.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/keys.h"

namespace prd {
namespace {

const std::string kFolder = std::string(PRD_SOURCE_DIR) + "/config";

std::string Read(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// "daemon.sync" -> "true", as the code has it.
std::map<std::string, std::string> KeysOfTheCode() {
  DaemonConfig daemon;
  JobSpec spec;
  std::string name;
  FieldLister of_daemon("daemon"), of_job("job");
  DescribeDaemon(of_daemon, &daemon);
  DescribeJob(of_job, &name, PatternRule, &spec);
  std::map<std::string, std::string> keys;
  for (const FieldLister* lister : {&of_daemon, &of_job}) {
    for (const FieldLister::Line& line : lister->lines()) keys[line.key] = line.preset;
  }
  return keys;
}

// The same from the manual's text; also says which keys have no comment before them.
std::map<std::string, std::string> KeysOfTheManual(std::vector<std::string>* bare) {
  std::map<std::string, std::string> keys;
  std::istringstream in(Read(kFolder + "/prd.toml"));
  std::string line, table;
  bool explained = false;
  while (std::getline(in, line)) {
    const std::size_t equals = line.find(" = ");
    if (line.empty()) {
      explained = false;
    } else if (line[0] == '#') {
      explained = true;
    } else if (line[0] == '[') {
      table = line.substr(line.find_last_of('[') + 1);
      table.resize(table.find(']'));
    } else {
      const std::string key = table + "." + line.substr(0, equals);
      keys[key] = line.substr(equals + 3);
      if (!explained) bare->push_back(key);
    }
  }
  return keys;
}

TEST(ManualTest, HasEveryKeyWithItsTrueDefaultAndAReason) {
  std::vector<std::string> bare;
  std::map<std::string, std::string> manual = KeysOfTheManual(&bare);
  EXPECT_TRUE(bare.empty()) << bare.front() << " has no comment before it";
  for (const auto& [key, preset] : KeysOfTheCode()) {
    ASSERT_TRUE(manual.contains(key)) << "prd.toml lacks " << key;
    if (!preset.empty()) {
      EXPECT_EQ(manual[key], preset) << key;
    }
    manual.erase(key);
  }
  EXPECT_TRUE(manual.empty()) << "prd.toml has " << manual.begin()->first << ", which prd does not";
}

TEST(ManualTest, IsAValidConfigurationOfDefaults) {
  const Result<Config> config = LoadConfig(kFolder + "/prd.toml");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->daemon, DaemonConfig{});
  ASSERT_EQ(config->jobs.size(), 1u);
  EXPECT_EQ(config->jobs[0].spec.engine, EngineOptions(PReduceOptions{}));
}

TEST(ManualTest, EverySampleLoadsAndEveryEngineHasOne) {
  std::map<std::string, int> samples;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".toml") continue;
    const Result<Config> config = LoadConfig(entry.path().string());
    ASSERT_TRUE(config.ok()) << config.status().ToString();
    const std::string engine(EngineName(config->jobs.at(0).spec.engine));
    if (entry.path().stem() == engine) ++samples[engine];
  }
  for (const EngineOptions& engine : AllEngines()) {
    EXPECT_EQ(samples[std::string(EngineName(engine))], 1) << EngineName(engine);
  }
}

TEST(ManualTest, ReferenceListsEveryKey) {
  const std::string reference = ConfigReference();
  for (const auto& [key, preset] : KeysOfTheCode()) {
    EXPECT_NE(reference.find(key + " = " + (preset.empty() ? "(required)" : preset)),
              std::string::npos)
        << key;
  }
}

}  // namespace
}  // namespace prd
