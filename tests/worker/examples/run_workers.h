// Training programs, run as they are.
#ifndef PRD_TESTS_WORKER_EXAMPLES_RUN_WORKERS_H_
#define PRD_TESTS_WORKER_EXAMPLES_RUN_WORKERS_H_

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/examples/temp_dir.h"

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

// Runs the command of each rank until all have ended: a program with its options, which is given
// the job in its environment and a --log.
inline std::vector<Worker> RunWorkers(const std::string& endpoint,
                                      const std::vector<std::string>& commands) {
  const TempDir dir;
  std::vector<Worker> workers(commands.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < commands.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::string files = dir.path() + "/" + std::to_string(rank);
      const std::string command =
          "PRD_CONTROLLER=" + endpoint + " PRD_JOB=trainer PRD_RANK=" + std::to_string(rank) +
          " timeout -k 5 60 " + commands[rank] + " --log " + files + ".log > " + files + ".out";
      Worker& worker = workers[rank];
      worker.exit_code = std::system(command.c_str());
      worker.log = ReadLines(files + ".log");
      worker.output = ReadLines(files + ".out");
    });
  }
  for (std::thread& thread : threads) thread.join();
  return workers;
}

}  // namespace example

#endif  // PRD_TESTS_WORKER_EXAMPLES_RUN_WORKERS_H_
