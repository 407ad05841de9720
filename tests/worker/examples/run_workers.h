// Training programs, run as they are.
#ifndef PRD_TESTS_WORKER_EXAMPLES_RUN_WORKERS_H_
#define PRD_TESTS_WORKER_EXAMPLES_RUN_WORKERS_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/examples/temp_dir.h"
#include "tests/worker/fake_daemon.h"

namespace example {

// A file of JSON lines.
using Lines = std::vector<nlohmann::json>;

inline Lines ReadLines(const std::string& path) {
  Lines lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

struct Worker {
  int exit_code = -1;
  Lines log;
  Lines output;
};

// Runs the command of each rank, under a controller with this engine, until all have ended: a
// program with its options, which is given the job in its environment and a --log.
inline std::vector<Worker> RunWorkers(const prd::EngineOptions& engine,
                                      const std::vector<std::string>& commands) {
  const TempDir dir;
  prd::testing::FakeDaemon daemon(prd::testing::SpecFor(engine, static_cast<int>(commands.size())));
  std::vector<Worker> workers(commands.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < commands.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::string files = dir.path() + "/" + std::to_string(rank);
      const std::string command = "PRD_CONTROLLER=" + daemon.endpoint() +
                                  " PRD_JOB=trainer PRD_RANK=" + std::to_string(rank) +
                                  " timeout -k 5 60 " + commands[rank] + " --log " + files +
                                  ".log > " + files + ".out";
      Worker& worker = workers[rank];
      worker.exit_code = std::system(command.c_str());
      worker.log = ReadLines(files + ".log");
      worker.output = ReadLines(files + ".out");
    });
  }
  for (std::thread& thread : threads) thread.join();
  return workers;
}

// All have ended well, each after so many steps. Line N of its log is step N's.
inline void ExpectFinished(const std::vector<Worker>& workers, std::size_t steps) {
  for (const Worker& worker : workers) {
    ASSERT_EQ(worker.exit_code, 0);
    ASSERT_EQ(worker.log.size(), steps + 2);
    EXPECT_EQ(worker.log[steps + 1]["finished"], true);
  }
}

// Runs a command that fails, and gives the first line that it says of that.
inline std::string FirstError(const std::string& command) {
  const TempDir dir;
  const std::string error = dir.path() + "/error";
  EXPECT_NE(std::system((command + " 2> " + error).c_str()), 0);
  std::string line;
  std::getline(std::ifstream(error), line);
  return line;
}

}  // namespace example

#endif  // PRD_TESTS_WORKER_EXAMPLES_RUN_WORKERS_H_
