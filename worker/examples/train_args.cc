#include "worker/examples/train_args.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <vector>

namespace example {
namespace {

// "RANK:FACTOR", or what is wrong with it.
std::string ParseSlow(const std::string& text, std::map<int, double>* slow) {
  const std::string allowed = ": found '" + text + "', allowed is RANK:FACTOR with FACTOR >= 1";
  const char* end = text.data() + text.size();
  int rank = 0;
  double factor = 0;
  const auto colon = std::from_chars(text.data(), end, rank);
  if (colon.ec != std::errc() || colon.ptr == end || *colon.ptr != ':' || rank < 0) return allowed;
  const auto rest = std::from_chars(colon.ptr + 1, end, factor);
  if (rest.ec != std::errc() || rest.ptr != end || !(factor >= 1 && factor <= 1e6)) return allowed;
  (*slow)[rank] = factor;
  return "";
}

}  // namespace

bool ParseTrainArgs(int argc, char** argv, TrainArgs* args, int* exit_code) {
  CLI::App app{
      "Trains a model on Fashion-MNIST as one worker of a prd job. Start one process per worker;\n"
      "PRD_CONTROLLER, PRD_JOB and PRD_RANK (or the variables of torchrun, Slurm and MPI) say "
      "which."};
  std::vector<std::string> slow;
  app.add_option("--data", args->data, "Folder of the four gzip files")->capture_default_str();
  app.add_option("--model", args->model, "mlp or cnn")
      ->check(CLI::IsMember({"mlp", "cnn"}))
      ->capture_default_str();
  const std::map<std::string, Sharding> shardings{{"iid", Sharding::kIid},
                                                  {"labels", Sharding::kLabels}};
  app.add_option("--shards", args->sharding,
                 "iid: a random part of the data for each worker; labels: one or two classes each")
      ->transform(CLI::CheckedTransformer(shardings));
  app.add_option("--batch", args->batch, "Examples per step")
      ->check(CLI::Range(1, 60'000))
      ->capture_default_str();
  app.add_option("--lr", args->learning_rate, "Learning rate of SGD")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option(
         "--lr-decay", args->decay_steps,
         "STEPS: at the replica's iteration i, the learning rate is LR / (1 + i / STEPS); 0 = "
         "constant")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--momentum", args->momentum, "Momentum of SGD")
      ->check(CLI::Range(0.0, 0.9999))
      ->capture_default_str();
  app.add_option("--seed", args->seed, "Of the initial model, the shards and the batches")
      ->capture_default_str();
  app.add_option("--step-ms", args->step_ms,
                 "Makes every local step last this long, as on a slower device; 0 = as it comes")
      ->check(CLI::Range(0.0, 3'600'000.0))
      ->capture_default_str();
  app.add_option("--slow", slow, "RANK:FACTOR: that worker's steps last FACTOR times --step-ms")
      ->take_all();
  app.add_option("--steps", args->steps, "Ends after this many local steps; 0 = no limit")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--seconds", args->seconds, "Ends after this long; 0 = no limit")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--stop-file", args->stop_file, "Ends when this file is there (or on SIGTERM)");
  app.add_option("--snapshot-dir", args->snapshot_dir,
                 "Leaves snapshots of the parameters here, for prd-evaluate");
  app.add_option("--snapshot-ms", args->snapshot_ms, "Time between two snapshots")
      ->check(CLI::Range(1, 3'600'000))
      ->capture_default_str();
  app.add_option("--log", args->log, "Writes a JSON line per step to this file");
  try {
    app.parse(argc, argv);
    for (const std::string& text : slow) {
      const std::string wrong = ParseSlow(text, &args->slow);
      if (!wrong.empty()) throw CLI::ValidationError("--slow", wrong.substr(2));
    }
    if (!args->slow.empty() && args->step_ms == 0) {
      throw CLI::ValidationError("--slow", "needs --step-ms, which it multiplies");
    }
  } catch (const CLI::ParseError& error) {
    *exit_code = app.exit(error) == 0 ? 0 : 2;
    return false;
  }
  return true;
}

}  // namespace example
