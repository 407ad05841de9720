// The command line of prd-train.
#ifndef PRD_WORKER_EXAMPLES_TRAIN_ARGS_H_
#define PRD_WORKER_EXAMPLES_TRAIN_ARGS_H_

#include <cstdint>
#include <map>
#include <string>

#include "worker/examples/dataset.h"

namespace example {

struct TrainArgs {
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::string model = "mlp";
  Sharding sharding = Sharding::kIid;
  std::size_t batch = 128;
  double learning_rate = 0.2;
  double decay_steps = 0;  // learning rate / (1 + iteration / decay_steps); 0 = constant
  double momentum = 0;
  std::uint64_t seed = 1;
  double step_ms = 0;          // 0 = no padding
  std::map<int, double> slow;  // rank -> factor of step_ms, >= 1
  std::int64_t steps = 0;      // 0 = no limit
  double seconds = 0;          // 0 = no limit
  std::string stop_file;       // training ends when this file is there
  std::string snapshot_dir;    // empty = no snapshots
  std::int64_t snapshot_ms = 500;
  std::string log;  // empty = none
};

// Fills *args and returns true; or prints why not (or the help) and sets *exit_code.
bool ParseTrainArgs(int argc, char** argv, TrainArgs* args, int* exit_code);

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_TRAIN_ARGS_H_
