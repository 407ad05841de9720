// Miao et al., Heterogeneity-Aware Distributed Machine Learning Training via Partial Reduce, SIGMOD
// 2021: Table 1 (per-update times), Figure 8 (the group size P), Figure 4 (rho).
//
// What the paper does not say about its machines is calibrated from its all-reduce column alone:
// with HL of eight workers on one GPU that does the work of one, its two all-reduce times are
//   t(1) = step + reduce(8),   t(HL) = HL * step + reduce(8),
// which gives the step and the reduction; a reduction among n costs (n - 1) / n of the same. How
// much steps vary from one to the next is in neither: figures are given for steady steps (3%) and
// for steps that vary (20%), calibrated each by itself.
#include <array>
#include <cmath>

#include "engines/registry.h"
#include "tools/sim/cluster.h"
#include "tools/sim/papers/papers.h"

namespace prd::sim {
namespace {

constexpr int kTableWorkers = 8;
constexpr double kSteady = 0.03;  // how much steps vary
constexpr double kVaries = 0.2;

// Table 1, per-update times in s. Columns of engines that prd does not have are not listed.
struct PaperModel {
  const char* name;
  int level;  // HL of the second row; of the first it is 1
  std::array<double, 2> all_reduce;
  std::array<double, 2> constant3, dynamic3, constant5, dynamic5;
};
constexpr std::array<PaperModel, 3> kTable1 = {{
    {"ResNet-34",
     3,
     {0.432, 0.807},
     {0.140, 0.196},
     {0.145, 0.200},
     {0.299, 0.398},
     {0.307, 0.406}},
    {"VGG-19", 3, {0.286, 0.443}, {0.093, 0.115}, {0.095, 0.118}, {0.197, 0.248}, {0.203, 0.249}},
    {"DenseNet-121",
     2,
     {0.820, 1.273},
     {0.236, 0.271},
     {0.253, 0.283},
     {0.532, 0.576},
     {0.495, 0.606}},
}};

struct TableCosts {
  double step_s = 0;
  double reduce8_s = 0;
};

PReduceOptions PartialReduce(int p, PReduceOptions::Weights weights) {
  PReduceOptions options;
  options.group_size = p;
  options.weights = weights;
  return options;
}

Workload TableWorkload(const TableCosts& costs, double spread, int level,
                       const EngineOptions& engine) {
  Workload workload;
  workload.name = "p-reduce table 1";
  workload.cluster.workers = kTableWorkers;
  workload.cluster.workers_per_host = kTableWorkers;
  workload.cluster.steps = 0;
  workload.compute.model = ComputePart::Model::kNormal;
  workload.compute.spread = spread;
  workload.compute.mean_ms = costs.step_s * 1e3;
  workload.compute.shared_workers = level;
  workload.compute.contention = 1;
  workload.reduce.bytes = 1e6;
  workload.reduce.local_latency_us = 0;
  workload.reduce.local_bandwidth_mb_per_s =
      2.0 * (kTableWorkers - 1) / kTableWorkers / costs.reduce8_s;
  workload.job.engine = engine;
  workload.job.name = "sim";
  return workload;
}

double UpdateSeconds(Workload workload, std::uint64_t seed, std::int64_t updates) {
  const double guess = workload.compute.mean_ms / 1e3 * 4;  // an update's time at most
  workload.cluster.seconds = guess * static_cast<double>(updates);
  const RunResult run = Simulate(workload, {.seed = seed});
  return run.updates_per_s > 0 ? 1 / run.updates_per_s : 0;
}

// From the all-reduce column, corrected for what steps that vary and messages cost there.
TableCosts Calibrate(const PaperModel& model, double spread, std::uint64_t seed,
                     std::int64_t updates) {
  TableCosts costs;
  costs.step_s = (model.all_reduce[1] - model.all_reduce[0]) / (model.level - 1);
  costs.reduce8_s = model.all_reduce[0] - costs.step_s;
  for (int i = 0; i < 3; ++i) {
    const double found1 =
        UpdateSeconds(TableWorkload(costs, spread, 1, AllReduceOptions{}), seed, updates);
    const double found2 =
        UpdateSeconds(TableWorkload(costs, spread, model.level, AllReduceOptions{}), seed, updates);
    const double slope = (model.all_reduce[1] - model.all_reduce[0]) / (found2 - found1);
    costs.step_s *= slope;
    costs.reduce8_s += (model.all_reduce[0] - found1) + costs.step_s / slope - costs.step_s;
  }
  return costs;
}

bool IsFar(double ours, double paper) { return std::abs(ours / paper - 1) > 0.2; }

void AddModel(const PaperModel& model, std::uint64_t seed, std::int64_t updates,
              std::vector<PaperRow>* rows) {
  const TableCosts steady = Calibrate(model, kSteady, seed, updates);
  const TableCosts varies = Calibrate(model, kVaries, seed, updates);
  using Weights = PReduceOptions::Weights;
  struct Method {
    const char* name;
    EngineOptions engine;
    const std::array<double, 2>* paper;
  };
  const std::vector<Method> methods = {
      {"all-reduce", AllReduceOptions{}, &model.all_reduce},
      {"P=3 constant", PartialReduce(3, Weights::kConstant), &model.constant3},
      {"P=3 dynamic", PartialReduce(3, Weights::kDynamic), &model.dynamic3},
      {"P=5 constant", PartialReduce(5, Weights::kConstant), &model.constant5},
      {"P=5 dynamic", PartialReduce(5, Weights::kDynamic), &model.dynamic5},
  };
  for (std::size_t row = 0; row < 2; ++row) {
    const int level = row == 0 ? 1 : model.level;
    const auto seconds = [&](const TableCosts& costs, double spread, const EngineOptions& engine) {
      return UpdateSeconds(TableWorkload(costs, spread, level, engine), seed, updates);
    };
    const double steady_base = seconds(steady, kSteady, AllReduceOptions{});
    const double varies_base = seconds(varies, kVaries, AllReduceOptions{});
    for (const Method& method : methods) {
      PaperRow cell{
          .engine = "p-reduce",
          .figure = "Table 1",
          .setting = std::string(model.name) + " HL=" + std::to_string(level) + " " + method.name,
          .unit = "steady",
          .paper = (*method.paper)[row] / model.all_reduce[row],
          .ours = seconds(steady, kSteady, method.engine) / steady_base,
          .digits = 3};
      if (IsFar(*cell.ours, *cell.paper)) {
        cell.why =
            "with steady steps equal workers stay in step: of eight, two (P=3) or three (P=5) "
            "wait at any time for the next group to come back";
      }
      rows->push_back(cell);
      cell.unit = "varying";
      cell.ours = seconds(varies, kVaries, method.engine) / varies_base;
      cell.why = {};
      if (IsFar(*cell.ours, *cell.paper)) {
        cell.why = *cell.ours > *cell.paper
                       ? "its groups reduce in less than a ring's share of the reduction among "
                         "eight, which is all the calibration knows"
                       : "its groups cost more than a ring's share of the reduction among eight "
                         "(a prototype's queue and set-up), which is all the calibration knows";
      }
      rows->push_back(cell);
    }
  }
}

void AddGroupSizes(std::uint64_t seed, std::int64_t updates, std::vector<PaperRow>* rows) {
  const TableCosts costs = Calibrate(kTable1[1], kVaries, seed, updates);  // VGG-19, HL = 1
  for (int p = 2; p <= kTableWorkers; ++p) {
    Workload workload =
        TableWorkload(costs, kVaries, 1, PartialReduce(p, PReduceOptions::Weights::kConstant));
    workload.training = {.objective = TrainingPart::Objective::kQuadratic,
                         .dimensions = 50,
                         .learning_rate = 0.1,
                         .noise = 1.0,
                         .skew = 0,
                         .examples = 2000,
                         .batch = 16,
                         .target_loss = 0.16,
                         .evaluate_ms = costs.step_s * 200};
    workload.cluster.seconds = costs.step_s * 20000;
    double made = 0, run_time_s = 0;
    int reached = 0;
    constexpr int kRuns = 5;
    for (int i = 0; i < kRuns; ++i) {
      const RunResult run = Simulate(
          workload, {.seed = seed + static_cast<std::uint64_t>(i), .stop_at_target = true});
      if (!run.target) continue;
      ++reached;
      made += static_cast<double>(run.target->updates);
      run_time_s += static_cast<double>(run.target->at.ns) / 1e9;
    }
    const auto add = [&](const char* unit, std::optional<double> ours, int digits) {
      rows->push_back({.engine = "p-reduce",
                       .figure = "Figure 8",
                       .setting = "P=" + std::to_string(p),
                       .unit = unit,
                       .ours = reached > 0 ? ours : std::nullopt,
                       .digits = digits});
    };
    add("s/update", run_time_s / made, 4);
    add("updates", made / reached, 0);
    add("run time s", run_time_s / reached, 1);
  }
}

PaperRow Rho(const std::string& setting, double factor, double paper, std::uint64_t seed,
             std::int64_t updates) {
  Workload workload;
  workload.job.name = "sim";
  workload.job.engine = PartialReduce(2, PReduceOptions::Weights::kConstant);
  workload.cluster.workers = 3;
  workload.cluster.steps = 0;
  workload.cluster.seconds = 0.1 * static_cast<double>(updates) * 10;
  workload.compute.model = ComputePart::Model::kNormal;
  workload.compute.spread = 0.3;
  workload.compute.mean_ms = 100;
  workload.compute.slow_workers = factor > 1 ? 1 : 0;
  workload.compute.slow_factor = factor;
  workload.reduce.bytes = 1;
  const RunResult run = Simulate(workload, {.seed = seed});
  PaperRow rho{.engine = "p-reduce",
               .figure = "Figure 4",
               .setting = setting,
               .unit = "rho",
               .paper = paper,
               .ours = run.rho.value_or(1),
               .digits = 3};
  if (IsFar(*rho.ours, paper)) {
    rho.why = "the paper draws one schedule; ours forms groups first come, first served";
  }
  return rho;
}

}  // namespace

std::vector<Paper> PartialReducePapers(std::uint64_t seed, std::int64_t updates) {
  std::vector<Paper> papers(3);
  papers[0].about =
      "P-Reduce (SIGMOD 2021), Table 1: time per update over all-reduce's, 8 workers, HL of them "
      "on one GPU.\nCalibrated from the paper's all-reduce column only, which does not tell how "
      "much steps vary: ours for steady steps\n(3%) and for steps that vary (20%).";
  for (const PaperModel& model : kTable1) AddModel(model, seed, updates, &papers[0].rows);
  papers[1].about =
      "P-Reduce, Figure 8: the group size P (VGG-19, HL=1, constant weights, steps that vary). In "
      "the paper the time per update\ngrows with P, the number of updates falls, and their product "
      "is least at P=3 and 5. Ours, on a noisy quadratic:";
  AddGroupSizes(seed, updates, &papers[1].rows);
  papers[2].about = "P-Reduce, Figure 4: rho for N=3, P=2.";
  papers[2].rows = {Rho("(a) three equal workers, P=2", 1, 0.5, seed, updates),
                    Rho("(b) one of them two times slower", 2, 0.625, seed, updates)};
  return papers;
}

}  // namespace prd::sim
