// The command lines of the training programs.
#ifndef PRD_WORKER_EXAMPLES_TRAIN_ARGS_H_
#define PRD_WORKER_EXAMPLES_TRAIN_ARGS_H_

#include <cstdint>
#include <map>
#include <string>

#include "worker/examples/dataset.h"
#include "worker/examples/inject.h"

namespace example {

// What every training program takes.
struct TrainArgs {
  std::size_t batch = 128;
  double learning_rate = 0.2;
  double decay_steps = 0;  // learning rate / (1 + steps per worker / decay_steps); 0 = constant
  std::uint64_t seed = 1;
  double step_ms = 0;          // 0 = no padding
  std::map<int, double> slow;  // rank -> factor of step_ms, >= 1
  Injection injection;
  std::int64_t steps = 0;           // 0 = no limit
  double seconds = 0;               // 0 = no limit
  std::int64_t evaluate_every = 0;  // own steps; rank 0 pauses to tell its accuracy; 0 = never
  std::string snapshot_dir;         // empty = no snapshots
  std::int64_t snapshot_ms = 500;
  std::string log;  // empty = none
};

struct FashionMnistArgs {
  TrainArgs train;
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::string model = "mlp";
  Sharding sharding = Sharding::kIid;
  double momentum = 0;
  bool evaluate = false;  // rank 0 tells the test accuracy at the end, and every evaluate_every
};

struct FashionMnistCudaArgs {
  FashionMnistArgs common;  // but for the model, which is the CNN
  int device = 0;           // number of the GPU; -1: the processor
};

// Fill *args and return true; or print why not (or the help) and set *exit_code.
bool ParseFashionMnistArgs(int argc, char** argv, FashionMnistArgs* args, int* exit_code);
bool ParseFashionMnistCudaArgs(int argc, char** argv, FashionMnistCudaArgs* args, int* exit_code);
bool ParseHyperplaneArgs(int argc, char** argv, TrainArgs* args, int* exit_code);

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_TRAIN_ARGS_H_
