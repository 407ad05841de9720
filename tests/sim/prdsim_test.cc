// The program itself: commands, exit codes, files it draws, and what it is linked with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "tools/sim/report.h"

namespace prd::sim {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Output {
  int code = -1;
  std::string text;  // stdout and stderr
};

Output Shell(const std::string& command) {
  Output output;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return output;
  char chunk[4096];
  for (std::size_t n = 0; (n = std::fread(chunk, 1, sizeof chunk, pipe)) > 0;) {
    output.text.append(chunk, n);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) output.code = WEXITSTATUS(status);
  return output;
}

Output Prdsim(const std::string& arguments) { return Shell(PRD_BIN_DIR "/prdsim " + arguments); }

const std::string kData = PRD_SOURCE_DIR "/tests/sim/";
const std::string kStraggler = kData + "workloads/straggler.toml";

TEST(Prdsim, RunReports) {
  const Output text = Prdsim("run " + kStraggler + " --steps 20");
  EXPECT_EQ(text.code, 0) << text.text;
  EXPECT_THAT(text.text, HasSubstr("of the bound"));
  EXPECT_THAT(text.text, HasSubstr("spectral gap"));
  const Output json = Prdsim("run " + kStraggler + " --steps 20 --json --engine all-reduce");
  const Json parsed = Json::parse(json.text, nullptr, false);
  ASSERT_TRUE(parsed.is_object()) << json.text;
  EXPECT_EQ(parsed["engine"], "all-reduce");
  EXPECT_EQ(parsed["groups"], 20);
}

TEST(Prdsim, MeshSearchesTheDataPlane) {
  const Output json = Prdsim("mesh --seeds 20 --seed 7 --json");
  EXPECT_EQ(json.code, 0) << json.text;
  const Json parsed = Json::parse(json.text, nullptr, false);
  ASSERT_TRUE(parsed.is_object()) << json.text;
  EXPECT_EQ(parsed["seeds"], 20);
  EXPECT_GT(parsed["groups_ok"], 100);
  EXPECT_TRUE(parsed["violations"].empty());
  const Output trace = Prdsim("mesh --seed 7 --trace");
  EXPECT_EQ(trace.code, 0) << trace.text;
  EXPECT_THAT(trace.text, HasSubstr("begins group 1 of "));
  EXPECT_THAT(trace.text, HasSubstr("seed 7: "));
}

TEST(Prdsim, ABrokenInvariantIsToldWithTheCommandThatShowsItAgain) {
  const std::string files = kData + "faults/none.toml";
  const Output output = Prdsim("sweep " + files + " --mutation weight-not-normalised");
  EXPECT_EQ(output.code, 3);
  EXPECT_THAT(output.text, HasSubstr("BROKEN weights: "));
  const std::size_t at = output.text.find("again: prdsim ");
  ASSERT_NE(at, std::string::npos) << output.text;
  std::string again = output.text.substr(at + 14);
  again.resize(again.find('\n'));
  const Output repeated = Prdsim(again);
  EXPECT_EQ(repeated.code, 3) << again;
  EXPECT_THAT(repeated.text, HasSubstr("BROKEN weights: "));
  EXPECT_THAT(repeated.text, HasSubstr("record 1/0: run of "));
}

TEST(Prdsim, ARunWithMeshesSaysSoInTheCommandThatShowsItAgain) {
  const std::string files = kData + "faults/none.toml --mesh --seeds 20";
  EXPECT_EQ(Prdsim("sweep " + files).code, 0);
  const Output output = Prdsim("sweep " + files + " --mutation weight-not-normalised");
  EXPECT_EQ(output.code, 3);
  EXPECT_THAT(output.text, HasSubstr("BROKEN weights: "));
  EXPECT_THAT(output.text, HasSubstr("again: prdsim sweep "));
  EXPECT_THAT(output.text, HasSubstr(" --mesh"));
  const Output run = Prdsim("run " + kData + "faults/none.toml --mesh --trace");
  EXPECT_EQ(run.code, 0) << run.text;
  EXPECT_THAT(run.text, HasSubstr("mesh of worker 0: ends group 1: ok"));
}

TEST(Prdsim, SweepAndCompareSpeakJson) {
  const Output sweep = Prdsim("sweep " + kData + "faults/everything.toml --seeds 5 --json");
  EXPECT_EQ(sweep.code, 0) << sweep.text;
  EXPECT_EQ(Json::parse(sweep.text, nullptr, false)["seeds"], 5) << sweep.text;
  const Output compare = Prdsim("compare " + kStraggler + " --steps 10 --json");
  EXPECT_EQ(compare.code, 0) << compare.text;
  const Json rows = Json::parse(compare.text, nullptr, false);
  EXPECT_GE(rows.size(), 2u) << compare.text;
  for (const Json& row : rows) EXPECT_EQ(row["runs"], 1) << compare.text;
}

TEST(Prdsim, ASweepKeepsToTheEngineItIsGiven) {
  const std::string sweep = "sweep " + kData + "faults/everything.toml --once --json --seeds 40";
  for (const char* engine : {"eager", "p-reduce:group_size=4", "backup:backups=3"}) {
    const Output output = Prdsim(sweep + " --engine " + engine);
    EXPECT_EQ(output.code, 0) << output.text;
    const Json by_engine = Json::parse(output.text, nullptr, false)["seeds_by_engine"];
    const std::string name = std::string(engine).substr(0, std::string(engine).find(':'));
    EXPECT_EQ(by_engine, Json({{name, 40}})) << output.text;
  }
  EXPECT_EQ(Prdsim(sweep + " --engine eager --engine backup").code, 1);
  EXPECT_EQ(Prdsim(sweep + " --engine backup:backups=50").code, 1);
}

TEST(Prdsim, Draws) {
  const std::string dir = testing::TempDir() + "/prdsim_draws";
  std::filesystem::create_directories(dir);
  const Output output = Prdsim("run " + kData + "workloads/training.toml --seconds 3 --timeline " +
                               dir + "/t.svg --loss " + dir + "/l.svg");
  ASSERT_EQ(output.code, 0) << output.text;
  for (const char* name : {"/t.svg", "/l.svg"}) {
    std::ifstream in(dir + name);
    const std::string svg{std::istreambuf_iterator<char>(in), {}};
    EXPECT_THAT(svg, HasSubstr("<svg")) << name;
    EXPECT_THAT(svg, HasSubstr("</svg>")) << name;
  }
  std::filesystem::remove_all(dir);
}

TEST(Prdsim, ErrorsAndUsage) {
  EXPECT_EQ(Prdsim("run /nonexistent.toml").code, 2);
  EXPECT_EQ(Prdsim("frobnicate").code, 2);
  EXPECT_EQ(Prdsim("--help").code, 0);
  const Output engine = Prdsim("run " + kStraggler + " --engine p-reduce:group_size=1");
  EXPECT_EQ(engine.code, 1);
  EXPECT_THAT(engine.text, HasSubstr("group_size: found 1"));
  const Output mutation = Prdsim("sweep " + kStraggler + " --mutation x");
  EXPECT_EQ(mutation.code, 1);
  EXPECT_THAT(mutation.text, HasSubstr("dead-in-queue"));
  EXPECT_EQ(Prdsim("replay " + kStraggler).code, 1);  // no history
  EXPECT_THAT(Prdsim("keys").text, HasSubstr("faults.controller_dies_per_s = 0.0"));
}

TEST(Prdsim, LinksNeitherZeroMqNorRocksDb) {
  const Output libraries = Shell("ldd " PRD_BIN_DIR "/prdsim");
  ASSERT_EQ(libraries.code, 0) << libraries.text;
  EXPECT_THAT(libraries.text, HasSubstr("libc.so"));
  EXPECT_THAT(libraries.text, Not(HasSubstr("zmq")));
  EXPECT_THAT(libraries.text, Not(HasSubstr("rocksdb")));
}

}  // namespace
}  // namespace prd::sim
