// The program itself: commands, exit codes, files it draws, and what it is linked with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

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

Output Prdsim(const std::string& arguments, const std::string& redirected = "") {
  return Shell("( " PRD_BIN_DIR "/prdsim " + arguments + redirected + " )");
}

const std::string kData = PRD_SOURCE_DIR "/tests/sim/";
const std::string kStraggler = kData + "workloads/straggler.toml";

TEST(Prdsim, RunReports) {
  const Output text = Prdsim("run " + kStraggler + " --steps 20");
  EXPECT_EQ(text.code, 0) << text.text;
  EXPECT_THAT(text.text, HasSubstr("of the bound"));
  EXPECT_THAT(text.text, HasSubstr("spectral gap"));
  EXPECT_THAT(text.text, Not(HasSubstr("warning")));
  const Output json = Prdsim("run " + kStraggler + " --steps 20 --json --engine all-reduce");
  const Json parsed = Json::parse(json.text, nullptr, false);
  ASSERT_TRUE(parsed.is_object()) << json.text;
  EXPECT_EQ(parsed["engine"], "all-reduce");
  EXPECT_EQ(parsed["groups"], 20);
  EXPECT_TRUE(parsed["slowest_sets_pace"].is_null());
}

TEST(Prdsim, TellsWhereOneSlowWorkerSetsThePace) {
  const std::string few = kStraggler + " --workers 5 --steps 5";
  EXPECT_THAT(Prdsim("run " + few + " --engine prague").text,
              HasSubstr("\nwarning           group_size 3 of 5 workers is one group of all"));
  const Output table = Prdsim("compare " + few + " --engine prague --engine p-reduce");
  EXPECT_THAT(table.text,
              HasSubstr("\none slow worker sets the pace of all: prague: group_size 3"));
  EXPECT_THAT(table.text, Not(HasSubstr("all: p-reduce")));
}

TEST(Prdsim, MeshSearchesTheDataPlane) {
  const Output json = Prdsim("mesh --seeds 20 --seed 7 --json");
  EXPECT_EQ(json.code, 0) << json.text;
  const Json parsed = Json::parse(json.text, nullptr, false);
  ASSERT_TRUE(parsed.is_object()) << json.text;
  EXPECT_EQ(parsed["seeds"], 20);
  EXPECT_GT(parsed["groups_ok"], 100);
  EXPECT_TRUE(parsed["violations"].empty());
  EXPECT_EQ(Json::parse(Prdsim("mesh --seed 7 --trace --json", " 2> /dev/null").text, nullptr,
                        false)["seeds"],
            1);
  const Output trace = Prdsim("mesh --seed 7 --trace");
  EXPECT_EQ(trace.code, 0) << trace.text;
  EXPECT_THAT(trace.text, HasSubstr("begins group 1 of "));
  EXPECT_THAT(trace.text, HasSubstr("seed 7: "));
}

TEST(Prdsim, ABrokenInvariantIsToldWithTheCommandThatShowsItAgain) {
  const std::string files = kData + "faults/none.toml";
  const std::string limits = " --workers 6 --steps 30 --seconds 300.5";
  const Output output = Prdsim("sweep " + files + " --mutation weight-not-normalised" + limits);
  EXPECT_EQ(output.code, 3);
  EXPECT_THAT(output.text, HasSubstr("BROKEN weights: "));
  EXPECT_THAT(output.text, HasSubstr(limits + "\n"));
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
  EXPECT_THAT(run.text, HasSubstr("\nupdates/s         -\n"));
  EXPECT_THAT(run.text, HasSubstr("\nmoved             - between workers"));
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

// The slow worker makes its steps alone once the others have finished: that time does not count.
TEST(Prdsim, ComparesWhatAllWorkersDoTogether) {
  for (const char* limit : {" --steps 40", " --steps 0 --seconds 21"}) {
    const Output json = Prdsim("compare " + kStraggler + limit +
                               " --json --engine all-reduce --engine hop --engine p-reduce");
    const Json rows = Json::parse(json.text, nullptr, false);
    ASSERT_EQ(rows.size(), 3u) << json.text;
    EXPECT_EQ(rows[0]["engine"], "p-reduce") << json.text;
    EXPECT_GT(rows[0]["steps_per_s"].get<double>(), 50);  // of 72
    for (const Json& row : rows) {
      if (row["engine"] != "all-reduce") continue;
      EXPECT_NEAR(row["steps_per_s"].get<double>(), 8 * row["updates_per_s"].get<double>(), 1e-6);
      EXPECT_NEAR(row["bytes_per_step"].get<double>(), 2 * 7. / 8 * 4e6, 1);
    }
  }
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
  EXPECT_EQ(Prdsim(sweep + " --engine eager --engine backup").code, 2);
  EXPECT_EQ(Prdsim(sweep + " --engine backup:backups=50").code, 2);
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

// A workload of forty steps of 20 ms, which do not fit into half a second.
class TooShort {
 public:
  TooShort() { std::ofstream(path_) << "[cluster]\nworkers = 2\nsteps = 40\nseconds = 0.5\n"; }
  ~TooShort() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_ =
      testing::TempDir() + "/prdsim_too_short_" + std::to_string(getpid()) + ".toml";
};

TEST(Prdsim, CompareTellsWhichRunsHaveBrokenAnInvariant) {
  const TooShort workload;
  const std::string compare = "compare " + workload.path() + " --engine all-reduce --seeds 2";
  const Output text = Prdsim(compare);
  EXPECT_EQ(text.code, 3) << text.text;
  EXPECT_THAT(text.text, HasSubstr("BROKEN all-reduce, seed 1: no-hang: "));
  EXPECT_THAT(text.text, HasSubstr("BROKEN all-reduce, seed 2: no-hang: "));
  const Output json = Prdsim(compare + " --json");
  EXPECT_EQ(json.code, 3);
  const Json row = Json::parse(json.text, nullptr, false)[0];
  ASSERT_EQ(row["broken"].size(), 2u) << json.text;
  EXPECT_EQ(row["broken"][1]["seed"], 2);
  EXPECT_EQ(row["broken"][1]["invariant"], "no-hang");
  EXPECT_TRUE(row["loss"].is_null());  // nothing is trained
}

TEST(Prdsim, ComparesSeedsUpToTheLastOne) {
  const Output json = Prdsim("compare " + kStraggler + " --steps 2 --engine all-reduce --json " +
                             "--seed 18446744073709551615 --seeds 2");
  EXPECT_EQ(json.code, 0) << json.text;
  EXPECT_EQ(Json::parse(json.text, nullptr, false)[0]["runs"], 2) << json.text;
}

TEST(Prdsim, ComparesTheEnginesThatFitWhereNoneIsNamed) {
  const std::string compare = "compare " + kStraggler + " --steps 2 --workers 1";
  const Output all = Prdsim(compare);
  EXPECT_EQ(all.code, 0) << all.text;
  EXPECT_THAT(all.text, HasSubstr("left out, as their options do not fit"));
  EXPECT_THAT(all.text, HasSubstr("all-reduce "));
  EXPECT_EQ(Prdsim(compare + " --engine backup").code, 2);
}

TEST(Prdsim, TimeThatTheUserLimitsIsNoBrokenInvariant) {
  const TooShort workload;
  const std::string& path = workload.path();
  EXPECT_EQ(Prdsim("run " + path).code, 3);
  const Output text = Prdsim("run " + path + " --seconds 0.6");
  EXPECT_EQ(text.code, 0) << text.text;
  EXPECT_THAT(text.text, HasSubstr("2 of 2 workers had not finished by 0.6 s\n"));
  const Output json = Prdsim("run " + kStraggler + " --seconds 1 --json");
  EXPECT_EQ(json.code, 0);
  EXPECT_EQ(Json::parse(json.text, nullptr, false)["unfinished_workers"], 8) << json.text;
  EXPECT_EQ(Prdsim("compare " + path + " --engine ssp --seconds 0.4").code, 0);
  EXPECT_EQ(Prdsim("compare " + path + " --engine ssp --seconds 0.6").code, 3);
}

TEST(Prdsim, RefusesNumbersThatAreNotAllowed) {
  for (const char* seconds : {"inf", "nan", "-1", "0", "1e300", "x"}) {
    const Output output = Prdsim("run " + kStraggler + " --seconds " + seconds);
    EXPECT_EQ(output.code, 2) << seconds;
    EXPECT_THAT(output.text, HasSubstr("--seconds: found " + std::string(seconds) +
                                       ", allowed is a number from 0.001 to below 1e+09"));
  }
  EXPECT_THAT(Prdsim("run " + kStraggler + " --steps -1").text,
              HasSubstr("--steps: found -1, allowed is a whole number from 0 to 1000000000"));
  for (const char* command : {"compare", "sweep"}) {
    for (const char* numbers : {"--seeds 0", "--seeds -1", "--seed -1"}) {
      EXPECT_EQ(Prdsim(command + (" " + kStraggler) + " " + numbers).code, 2) << numbers;
    }
  }
  EXPECT_EQ(Prdsim("mesh --seeds 0").code, 2);
}

TEST(Prdsim, ARunTakesOneEngine) {
  const std::string two = kStraggler + " --engine ssp --engine hop";
  const Output run = Prdsim("run " + two);
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.text, HasSubstr("engine: found 2 of them, a run takes one"));
  EXPECT_EQ(Prdsim("sweep --as-is " + two).code, 2);
}

TEST(Prdsim, OutputThatCannotBeWrittenIsAnError) {
  const std::string short_run = "run " + kData + "workloads/training.toml --seconds 1";
  const std::string stdouts[] = {short_run, short_run + " --json", "keys", "--help"};
  for (const std::string& arguments : stdouts) {
    const Output output = Prdsim(arguments, " > /dev/full");
    EXPECT_EQ(output.code, 1) << arguments;
    EXPECT_THAT(output.text, HasSubstr("the standard output cannot be written")) << arguments;
  }
  for (const char* option : {" --loss", " --timeline"}) {
    const Output output = Prdsim(short_run + option + " /dev/full");
    EXPECT_EQ(output.code, 1) << option;
    EXPECT_THAT(output.text, HasSubstr("/dev/full: cannot be written: No space left"));
  }
}

TEST(Prdsim, BesideJsonATraceGoesToStderr) {
  for (const char* command : {"run ", "sweep --seeds 1 "}) {
    const Output output =
        Prdsim(command + kData + "faults/none.toml --json --trace", " 2> /dev/null");
    EXPECT_TRUE(Json::parse(output.text, nullptr, false).is_object()) << output.text;
  }
}

TEST(Prdsim, NoLossIsDrawnWhereThereIsNoObjective) {
  for (const char* command : {"run ", "compare "}) {
    const Output output = Prdsim(command + kStraggler + " --loss /nonexistent/l.svg");
    EXPECT_EQ(output.code, 2);
    EXPECT_THAT(output.text, HasSubstr("the workload has no objective"));
  }
}

TEST(Prdsim, ErrorsAndUsage) {
  EXPECT_EQ(Prdsim("run /nonexistent.toml").code, 2);
  EXPECT_EQ(Prdsim("frobnicate").code, 2);
  EXPECT_EQ(Prdsim("--help").code, 0);
  const Output engine = Prdsim("run " + kStraggler + " --engine p-reduce:group_size=1");
  EXPECT_EQ(engine.code, 2);
  EXPECT_THAT(engine.text, HasSubstr("prdsim: p-reduce.group_size: found 1"));
  const Output mutation = Prdsim("sweep " + kStraggler + " --mutation x");
  EXPECT_EQ(mutation.code, 2);
  EXPECT_THAT(mutation.text, HasSubstr("dead-in-queue"));
  EXPECT_EQ(Prdsim("replay " + kStraggler).code, 1);  // no history
  EXPECT_EQ(Prdsim("run " + kStraggler + " --timeline-seconds 3").code, 2);
  EXPECT_THAT(Prdsim("keys").text, HasSubstr("faults.controller_dies_per_s = 0.0"));
  EXPECT_THAT(Prdsim("compare --help").text, HasSubstr("\n  of_bound "));
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
