// prd-evaluate: how good the average of all workers' models is, over time, from the snapshots that
// prd-train or prd-train-hyperplane leave. Runs beside the training (it lowers its own priority) or
// after it; the times it prints are those at which the snapshots were taken, from the first one on.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "worker/examples/dataset.h"
#include "worker/examples/hyperplane.h"
#include "worker/examples/model.h"
#include "worker/examples/snapshot.h"
#include "worker/examples/snapshot_average.h"

namespace {

using example::MonotonicNs;

// A snapshot has its name this long after its time stamp at the latest, unless the host stalls;
// one that is later still counts for the next evaluation.
constexpr std::int64_t kSettleNs = 300'000'000;

volatile std::sig_atomic_t g_stop = 0;

void OnSignal(int) { g_stop = 1; }

struct Args {
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::string model = "mlp";
  std::uint64_t seed = 1;
  std::string snapshot_dir;
  std::size_t workers = 1;
  std::int64_t every_ms = 1000;
  double live_s = 10;
  double timeout_s = 120;
  bool keep = false;
};

bool ParseArgs(int argc, char** argv, Args* args, int* exit_code) {
  CLI::App app{
      "Prints the test accuracy (hyperplane: the held-out loss) of the average of all workers'\n"
      "newest snapshots, as a JSON line per evaluation; the last line, of the final models, has\n"
      "\"final\": true. Exits 0 after it."};
  app.add_option("--snapshot-dir", args->snapshot_dir, "The folder that the workers write to")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("--data", args->data, "Folder of the four gzip files")->capture_default_str();
  app.add_option("--model", args->model, "As given to prd-train; or that of prd-train-hyperplane")
      ->check(CLI::IsMember({"mlp", "cnn", "hyperplane"}))
      ->capture_default_str();
  app.add_option("--seed", args->seed, "As given to prd-train-hyperplane")->capture_default_str();
  app.add_option("--workers", args->workers, "Begins when this many have left a snapshot")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--every-ms", args->every_ms, "Time between two evaluations")
      ->check(CLI::Range(10, 3'600'000))
      ->capture_default_str();
  app.add_option("--live-s", args->live_s,
                 "A worker without a snapshot for this long is dead, and left out")
      ->check(CLI::Range(0.1, 86'400.0))
      ->capture_default_str();
  app.add_option("--timeout-s", args->timeout_s, "How long to wait for the first snapshots")
      ->check(CLI::Range(0.0, 86'400.0))
      ->capture_default_str();
  app.add_flag("--keep", args->keep, "Leaves used snapshots in the folder; else they are removed");
  app.footer(
      "Of several trainings that left snapshots in the folder, it evaluates the newest. If that "
      "has "
      "ended before, it says so: for the next one, use an empty folder.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    *exit_code = app.exit(error) == 0 ? 0 : 2;
    return false;
  }
  return true;
}

// What tells how good a model is.
class Judge {
 public:
  virtual ~Judge() = default;
  virtual const char* Measure() const = 0;  // by what
  virtual std::size_t ParameterCount() = 0;
  virtual double Judgement(const std::vector<float>& parameters) = 0;
};

class FashionMnistJudge : public Judge {
 public:
  explicit FashionMnistJudge(const Args& args)
      : test_(example::LoadDataset(args.data, "t10k")),
        model_(args.model, 1, MeanImage(example::LoadDataset(args.data, "train"))) {}
  const char* Measure() const override { return "accuracy"; }
  std::size_t ParameterCount() override { return model_.ParameterCount(); }
  double Judgement(const std::vector<float>& parameters) override {
    model_.SetParameters(parameters);
    return model_.Accuracy(test_);
  }

 private:
  const example::Dataset test_;
  example::Model model_;
};

class HyperplaneJudge : public Judge {
 public:
  explicit HyperplaneJudge(const Args& args) : model_(example::kHyperplaneDimensions, args.seed) {}
  const char* Measure() const override { return "loss"; }
  std::size_t ParameterCount() override { return model_.parameters().size(); }
  double Judgement(const std::vector<float>& parameters) override {
    model_.parameters() = parameters;
    return model_.Loss(example::HyperplaneData::kHeldOut, example::kHeldOutExamples);
  }

 private:
  example::Hyperplane model_;
};

std::unique_ptr<Judge> MakeJudge(const Args& args) {
  if (args.model == "hyperplane") return std::make_unique<HyperplaneJudge>(args);
  return std::make_unique<FashionMnistJudge>(args);
}

class Evaluation {
 public:
  explicit Evaluation(const Args& args)
      : args_(args),
        judge_(MakeJudge(args)),
        snapshots_(args.snapshot_dir, judge_->ParameterCount(),
                   static_cast<std::int64_t>(args.live_s * 1e9), args.keep) {}

  int Run() {
    if (!WaitForStart()) return 1;
    if (snapshots_.Ended(MonotonicNs())) {
      std::fprintf(stderr,
                   "prd-evaluate: the training that left these snapshots ended %.0f s ago\n",
                   static_cast<double>(MonotonicNs() - snapshots_.LastNs()) / 1e9);
    }
    for (std::int64_t at_ns = snapshots_.BegunNs(args_.workers); !g_stop;
         at_ns += args_.every_ms * 1'000'000) {
      if (!WaitUntil(at_ns + kSettleNs)) break;
      snapshots_.Look();
      // After the training, as fast as it comes, up to the last snapshot.
      if (at_ns > snapshots_.LastNs() && snapshots_.Ended(at_ns)) break;
      Print(snapshots_.Average(at_ns), at_ns, false);
    }
    const example::AveragedModel last = snapshots_.AverageFinals();
    if (!g_stop) snapshots_.Clear();
    if (last.live == 0) {
      std::fprintf(stderr, "prd-evaluate: no worker left a final model\n");
      return 1;
    }
    Print(last, snapshots_.LastNs(), true);
    return 0;
  }

 private:
  bool WaitForStart() {
    const std::int64_t until_ns = MonotonicNs() + static_cast<std::int64_t>(args_.timeout_s * 1e9);
    while (snapshots_.Look(), snapshots_.workers() < args_.workers) {
      if (g_stop || MonotonicNs() > until_ns) {
        std::fprintf(stderr, "prd-evaluate: %zu of %zu workers have left a snapshot in %s\n",
                     snapshots_.workers(), args_.workers, args_.snapshot_dir.c_str());
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return true;
  }

  // False if the program is to end before that time.
  static bool WaitUntil(std::int64_t monotonic_ns) {
    while (!g_stop && MonotonicNs() < monotonic_ns) {
      const std::int64_t left_ns = monotonic_ns - MonotonicNs();
      std::this_thread::sleep_for(
          std::chrono::nanoseconds(std::min<std::int64_t>(left_ns, 100'000'000)));
    }
    return !g_stop;
  }

  void Print(const example::AveragedModel& average, std::int64_t at_ns, bool final) {
    if (average.live == 0) return;
    std::printf(
        "{\"time_s\":%.3f,\"%s\":%s,\"updates\":%.0f,\"samples\":%lld,\"steps\":%lld,"
        "\"live\":%d,\"spread\":%.3g,\"final\":%s}\n",
        static_cast<double>(at_ns - snapshots_.FirstNs()) / 1e9, judge_->Measure(),
        Number(judge_->Judgement(average.parameters)).c_str(), average.updates,
        static_cast<long long>(average.samples), static_cast<long long>(average.steps),
        average.live, average.spread, final ? "true" : "false");
    std::fflush(stdout);
  }

  // As JSON, which has no infinity and no NaN.
  static std::string Number(double value) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.6g", value);
    return std::isfinite(value) ? text : "null";
  }

  const Args& args_;
  const std::unique_ptr<Judge> judge_;
  example::SnapshotAverager snapshots_;
};

}  // namespace

int main(int argc, char** argv) {
  Args args;
  int exit_code = 0;
  if (!ParseArgs(argc, argv, &args, &exit_code)) return exit_code;
  std::signal(SIGTERM, OnSignal);
  std::signal(SIGINT, OnSignal);
  if (nice(19) == -1) std::fprintf(stderr, "prd-evaluate: priority not lowered\n");
  try {
    example::ComputeOnOneThread();
    return Evaluation(args).Run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "prd-evaluate: %s\n", error.what());
    return 1;
  }
}
