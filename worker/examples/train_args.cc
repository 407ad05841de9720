#include "worker/examples/train_args.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <string_view>
#include <vector>

namespace example {
namespace {

// "RANK:FACTOR", or what is wrong with it.
std::string ParseSlow(const std::string& text, std::map<int, double>* slow) {
  const std::string wrong = "found '" + text + "', allowed is RANK:FACTOR with FACTOR >= 1";
  const char* end = text.data() + text.size();
  int rank = 0;
  double factor = 0;
  const auto colon = std::from_chars(text.data(), end, rank);
  if (colon.ec != std::errc() || colon.ptr == end || *colon.ptr != ':' || rank < 0) return wrong;
  const auto rest = std::from_chars(colon.ptr + 1, end, factor);
  if (rest.ec != std::errc() || rest.ptr != end || !(factor >= 1 && factor <= 1e6)) return wrong;
  (*slow)[rank] = factor;
  return "";
}

// The options of TrainArgs on a command line.
class TrainOptions {
 public:
  TrainOptions(CLI::App* app, TrainArgs* args) : app_(app), args_(args) {
    AddLearning();
    AddPace();
    AddEnd();
    AddFiles();
  }

  // Parses; as ParseFashionMnistArgs.
  bool Parse(int argc, char** argv, int* exit_code) {
    try {
      app_->parse(argc, argv);
      Check();
    } catch (const CLI::ParseError& error) {
      *exit_code = app_->exit(error) == 0 ? 0 : 2;
      return false;
    }
    return true;
  }

 private:
  void AddLearning() {
    app_->add_option("--batch", args_->batch,
                     "Examples per step, which lasts --step-ms. In a job with a batch each step "
                     "has the worker's share of it, and lasts as much longer or shorter")
        ->check(CLI::Range(1, 60'000))
        ->capture_default_str();
    app_->add_option("--lr", args_->learning_rate, "Learning rate of SGD")
        ->check(CLI::Range(0.0, 100.0))
        ->capture_default_str();
    app_->add_option("--lr-decay", args_->decay_steps,
                     "STEPS: once the job's workers have made s steps each on average, the "
                     "learning rate is LR / (1 + s / STEPS); 0 = constant")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app_->add_option("--seed", args_->seed, "Of everything that is random; the same on all workers")
        ->capture_default_str();
  }

  void AddPace() {
    app_->add_option("--step-ms", args_->step_ms,
                     "Makes every local step last this long, as on a slower device; 0 = as it "
                     "comes")
        ->check(CLI::Range(0.0, 3'600'000.0))
        ->capture_default_str();
    app_->add_option("--slow", slow_,
                     "RANK:FACTOR: that worker's steps last FACTOR times --step-ms")
        ->take_all();
    app_->add_option(
        "--inject", inject_,
        "Delays on top of the steps. one:MS: in every step one worker, drawn at "
        "random, by MS; shifted:MIN:MAX: all workers, from MIN to MAX ms, shifted by "
        "one worker after each step; random:FACTOR:P: each step of each worker lasts "
        "FACTOR times --step-ms with probability P (without :P, one over the workers)");
  }

  void AddEnd() {
    app_->add_option("--steps", args_->steps,
                     "Ends after this many local steps; 0 = at the job's goal, or a signal")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app_->add_option("--seconds", args_->seconds, "Ends after this long; 0 = no limit")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
  }

  void AddFiles() {
    app_->add_option("--snapshot-dir", args_->snapshot_dir,
                     "Leaves snapshots of the parameters here, for prd-evaluate");
    app_->add_option("--snapshot-ms", args_->snapshot_ms, "Time between two snapshots")
        ->check(CLI::Range(1, 3'600'000))
        ->capture_default_str();
    app_->add_option("--log", args_->log, "Writes a JSON line per step to this file");
  }

  void Check() {
    for (const std::string& text : slow_) {
      const std::string wrong = ParseSlow(text, &args_->slow);
      if (!wrong.empty()) throw CLI::ValidationError("--slow", wrong);
    }
    if (!args_->slow.empty() && args_->step_ms == 0) {
      throw CLI::ValidationError("--slow", "needs --step-ms, which it multiplies");
    }
    if (inject_.empty()) return;
    const std::string wrong = ParseInjection(inject_, &args_->injection);
    if (!wrong.empty()) throw CLI::ValidationError("--inject", wrong);
    if (args_->injection.kind == Injection::Kind::kRandom && args_->step_ms == 0) {
      throw CLI::ValidationError("--inject", "random needs --step-ms, which it multiplies");
    }
  }

  CLI::App* const app_;
  TrainArgs* const args_;
  std::vector<std::string> slow_;
  std::string inject_;
};

constexpr const char* kOneProcessPerWorker =
    " as one worker of a prd job. Start one process per worker;\n"
    "PRD_CONTROLLER, PRD_JOB and PRD_RANK (or the variables of torchrun, Slurm and MPI) say which.";

void AddFashionMnist(CLI::App& app, FashionMnistArgs* args) {
  app.add_option("--data", args->data, "Folder of the four gzip files")->capture_default_str();
  const std::map<std::string, Sharding> shardings{{"iid", Sharding::kIid},
                                                  {"labels", Sharding::kLabels}};
  app.add_option("--shards", args->sharding,
                 "iid: a random part of the data for each worker; labels: one or two classes each")
      ->transform(CLI::CheckedTransformer(shardings));
  app.add_option("--momentum", args->momentum, "Momentum of SGD")
      ->check(CLI::Range(0.0, 0.9999))
      ->capture_default_str();
  auto* evaluate = app.add_flag("--evaluate", args->evaluate,
                                "Rank 0 prints the final model's test accuracy, as a JSON line");
  app.add_option("--evaluate-every", args->train.evaluate_every,
                 "STEPS: rank 0 pauses after so many of its own steps, again and again, and prints "
                 "its model's test accuracy; 0 = never")
      ->needs(evaluate)
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

// "cpu", "cuda" or "cuda:N", or what is wrong with it.
std::string ParseDevice(const std::string& text, int* device) {
  const std::string_view prefix = "cuda:";
  if (text == "cpu") {
    *device = -1;
  } else if (text == "cuda") {
    *device = 0;
  } else {
    const char* end = text.data() + text.size();
    const bool numbered = text.starts_with(prefix);
    const auto [at, error] =
        std::from_chars(numbered ? text.data() + prefix.size() : end, end, *device);
    if (error != std::errc() || at != end || *device < 0) {
      return "found '" + text + "', allowed is cuda:N, cuda (the first) or cpu";
    }
  }
  return "";
}

}  // namespace

bool ParseFashionMnistArgs(int argc, char** argv, FashionMnistArgs* args, int* exit_code) {
  CLI::App app{std::string("Trains a model on Fashion-MNIST") + kOneProcessPerWorker};
  app.add_option("--model", args->model, "mlp or cnn")
      ->check(CLI::IsMember({"mlp", "cnn"}))
      ->capture_default_str();
  AddFashionMnist(app, args);
  return TrainOptions(&app, &args->train).Parse(argc, argv, exit_code);
}

bool ParseFashionMnistCudaArgs(int argc, char** argv, FashionMnistCudaArgs* args, int* exit_code) {
  CLI::App app{std::string("Trains a small CNN on Fashion-MNIST, on a GPU,") +
               kOneProcessPerWorker};
  app.add_option_function<std::string>(
         "--device",
         [args](const std::string& text) {
           const std::string wrong = ParseDevice(text, &args->device);
           if (!wrong.empty()) throw CLI::ValidationError("--device", wrong);
         },
         "Where the replica lives and its steps are computed: cuda:N, or cpu, with the same "
         "kernels as loops")
      ->default_str("cuda:0");
  AddFashionMnist(app, &args->common);
  return TrainOptions(&app, &args->common.train).Parse(argc, argv, exit_code);
}

bool ParseHyperplaneArgs(int argc, char** argv, TrainArgs* args, int* exit_code) {
  CLI::App app{std::string("Learns a hyperplane of 8,192 dimensions") + kOneProcessPerWorker};
  return TrainOptions(&app, args).Parse(argc, argv, exit_code);
}

}  // namespace example
