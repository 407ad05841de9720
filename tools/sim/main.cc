// prdsim: prd's engines, controller and workers in a simulator. prdsim --help teaches the commands.
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <limits>
#include <string>
#include <string_view>

#include "common/base/fields.h"
#include "tools/sim/commands.h"
#include "tools/sim/mesh_plane.h"
#include "tools/sim/workload.h"

namespace {

using prd::sim::CommandOptions;

constexpr auto kMostSeeds = std::numeric_limits<std::uint64_t>::max();

CLI::Validator Checked(const std::string& allowed, const std::function<bool(const char*)>& fits) {
  const auto check = [allowed, fits](std::string& text) {
    return fits(text.c_str()) ? std::string() : "found " + text + ", allowed is " + allowed;
  };
  return {check, ""};
}

// CLI11 itself takes -1 for the largest number, and what is larger, too.
CLI::Validator Whole(std::uint64_t least, std::uint64_t most, std::string_view unit = {}) {
  std::string allowed =
      "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  if (!unit.empty()) allowed += " (" + std::string(unit) + ")";
  return Checked(allowed, [least, most](const char* text) {
    char* end = nullptr;
    errno = 0;
    const std::uint64_t number = std::strtoull(text, &end, 0);
    return *text >= '0' && *text <= '9' && *end == '\0' && errno == 0 && number >= least &&
           number <= most;
  });
}

CLI::Validator Real(const prd::RealRange& range) {
  return Checked(prd::Allowed({.kind = prd::Field::Real{nullptr, range}}),
                 [range](const char* text) {
                   char* end = nullptr;
                   const double number = std::strtod(text, &end);
                   return end != text && *end == '\0' && number >= range.least &&
                          number < range.below;  // not a NaN
                 });
}

void AddFiles(CLI::App* command, CommandOptions* options) {
  command
      ->add_option("workload", options->files,
                   "TOML files; where several set a key, the last one counts")
      ->required()
      ->check(CLI::ExistingFile);
  command->add_option("--workers", options->workers, "Workers, instead of the workload's")
      ->check(CLI::Range(1, 1'000'000));
  const prd::WholeRange& steps = prd::sim::kStepsRange;
  command
      ->add_option("--steps", options->steps, "Local steps per worker; 0: until the time is over")
      ->check(Whole(static_cast<std::uint64_t>(steps.least), static_cast<std::uint64_t>(steps.most),
                    steps.unit));
  command->add_option("--seconds", options->seconds, "Virtual seconds at most, all finished or not")
      ->check(Real(prd::sim::kSecondsRange));
}

void AddCommon(CLI::App* command, CommandOptions* options) {
  command->add_option("--seed", options->seed, "Seed of all random draws")
      ->check(Whole(0, kMostSeeds))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON instead of text");
}

void AddEngines(CLI::App* command, CommandOptions* options, const char* what) {
  command->add_option("--engine", options->engines, what)->allow_extra_args(false);
}

void AddMesh(CLI::App* command, CommandOptions* options) {
  command->add_flag_callback(
      "--mesh", [options] { options->plane = prd::sim::MakeMeshPlane; },
      "To look for mistakes: workers have the library's own meshes, with replicas of a few numbers "
      "on a network of drawn speeds, in place of a model of them. What [reduce] says costs nothing "
      "then, so that no rates, bytes and waits are told");
}

bool Written() {
  std::cout.flush();  // what CLI11 prints
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
}

}  // namespace

int main(int argc, char** argv) {
  CommandOptions options;
  int code = 0;
  CLI::App app(
      "prdsim runs prd's own engines, controller and worker protocol in virtual time.\n"
      "A run follows from its workload file and its seed alone.\n"
      "Exit codes: 0 ok, 1 error, 2 usage (options, or what a workload's keys say), 3 an invariant "
      "is broken, 130 ended by Ctrl-C with what it had.\n"
      "A run that --seconds ends before all have finished says so, and exits with 0.");
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::help);
  app.footer(
      "Examples:\n"
      "  prdsim run tests/sim/workloads/straggler.toml --engine p-reduce:group_size=3\n"
      "  prdsim compare tests/sim/workloads/training.toml --engine all-reduce "
      "--engine p-reduce --seeds 5\n"
      "  prdsim sweep tests/sim/faults/*.toml --seeds 10000\n"
      "  prdsim sweep tests/sim/faults/*.toml --engine eager --seeds 2000\n"
      "  prdsim sweep tests/sim/faults/*.toml --mesh --seeds 2000\n"
      "  prdsim mesh --seeds 10000\n"
      "  prdctl export RUN --format jsonl > run.jsonl; prdsim replay run.jsonl --engine "
      "all-reduce\n"
      "  prdsim keys");

  CLI::App* run = app.add_subcommand("run", "Runs a workload once, and reports");
  AddFiles(run, &options);
  AddCommon(run, &options);
  AddEngines(run, &options, "ENGINE or ENGINE:KEY=VALUE,..., instead of the workload's engine");
  CLI::Option* timeline = run->add_option("--timeline", options.timeline,
                                          "Draw what each worker did into this SVG file");
  run->add_option("--timeline-seconds", options.timeline_s, "How much of it, from the beginning")
      ->needs(timeline)
      ->check(Real(prd::sim::kSecondsRange));
  run->add_option("--loss", options.loss, "Draw the loss over time into this SVG file");
  run->add_flag("--trace", options.trace, "Print every event and record");
  AddMesh(run, &options);
  run->callback([&] { code = prd::sim::RunOnce(options); });

  CLI::App* sweep = app.add_subcommand(
      "sweep",
      "Searches for bugs: many seeds of many workloads. Sizes, engines and options vary by seed; "
      "all invariants are checked; each seed runs twice and has to end equally");
  AddFiles(sweep, &options);
  AddCommon(sweep, &options);
  sweep->add_option("--seeds", options.seeds, "How many seeds, from --seed on")
      ->check(Whole(1, kMostSeeds))
      ->capture_default_str();
  sweep->add_option("--threads", options.threads, "Seeds at a time")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  AddEngines(sweep, &options,
             "Only this engine: NAME with drawn options, or NAME:KEY=VALUE,... as given "
             "(default: all engines)");
  sweep->add_flag("--as-is", options.as_is,
                  "Leave the workloads as they are; only the seed changes");
  sweep->add_flag("--once", options.once, "Run each seed once: half the time");
  sweep->add_flag("--trace", options.trace, "Print every event and record");
  AddMesh(sweep, &options);
  sweep->add_option("--mutation", options.mutation, "Plant this bug, which the sweep should find")
      ->capture_default_str();
  sweep->callback([&] { code = prd::sim::RunSweep(options); });

  CLI::App* compare =
      app.add_subcommand("compare", "Runs one workload under several engines, and prints a table");
  AddFiles(compare, &options);
  AddCommon(compare, &options);
  AddEngines(compare, &options,
             "ENGINE or ENGINE:KEY=VALUE,...; may be repeated (default: all engines)");
  compare->add_option("--seeds", options.runs, "Runs per engine")
      ->check(Whole(1, kMostSeeds))
      ->capture_default_str();
  compare->add_option("--loss", options.loss, "Draw the losses over time into this SVG file");
  compare->footer(
      "Columns, each the mean over the seeds:\n"
      "  to_target_s  virtual seconds until the target loss was met; of the runs that met it\n"
      "  updates      until then; of the same runs\n"
      "  reached      runs that met the target loss, of all\n"
      "  updates/s    groups, rounds or, without them, steps that were answered, from the first to "
      "the last before a worker finished\n"
      "  of_bound     updates/s, of what no grouping could exceed with free communication\n"
      "  steps/s      local steps of all workers together, in the same time\n"
      "  idle         of the workers' time, what they neither computed nor reduced; whole run\n"
      "  stale        iterations that what a worker averages with or reads is behind; whole run\n"
      "  gap          iterations between the first and the last worker; whole run\n"
      "  rho          of the mean matrix of the groups: 1 - rho is the spectral gap; whole run\n"
      "  MB/step      1e6 bytes between workers per local step, in the time of updates/s\n"
      "  loss         at the end, where the workload has an objective\n"
      "Rows are in the order of reached and to_target_s, and without a target loss of steps/s.");
  compare->callback([&] { code = prd::sim::RunCompare(options); });

  CLI::App* replay =
      app.add_subcommand("replay",
                         "Takes the step times of a recorded run, and runs them under other "
                         "engines. Of a job that was "
                         "switched, the file's first run alone; an operator's pauses do not count");
  replay->add_option("history", options.files, "The run, as prdctl export --format jsonl wrote it")
      ->required()
      ->expected(1)
      ->check(CLI::ExistingFile);
  AddCommon(replay, &options);
  AddEngines(replay, &options,
             "ENGINE or ENGINE:KEY=VALUE,...; may be repeated (default: all engines)");
  replay
      ->add_option("--against", options.against,
                   "Another recorded run: predict it, and print the error")
      ->check(CLI::ExistingFile);
  replay->callback([&] { code = prd::sim::RunReplay(options); });

  CLI::App* mesh = app.add_subcommand(
      "mesh",
      "Searches for bugs in the data plane: real meshes on a simulated network, of a few workers "
      "with drawn replicas in host memory or on simulated devices, reductions, copies and faults");
  AddCommon(mesh, &options);
  mesh->add_option("--seeds", options.seeds, "How many seeds, from --seed on")
      ->check(Whole(1, kMostSeeds))
      ->capture_default_str();
  mesh->add_option("--threads", options.threads, "Seeds at a time")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  mesh->add_flag("--trace", options.trace, "Print what happens; of one seed");
  mesh->callback([&] { code = prd::sim::RunMeshSweep(options); });

  CLI::App* papers = app.add_subcommand(
      "papers", "Runs the papers' experiments, and prints their figures beside ours");
  AddCommon(papers, &options);
  papers->add_option("--updates", options.updates, "Updates per run; more make figures more exact")
      ->check(CLI::Range(50, 1'000'000))
      ->capture_default_str();
  papers->callback([&] { code = prd::sim::RunPapersCommand(options); });

  app.add_subcommand(
         "keys",
         "Prints every key of a workload file: its default, the values allowed, and what it "
         "means")
      ->callback([] { std::fputs(prd::sim::WorkloadReference().c_str(), stdout); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    code = app.exit(error) == 0 ? 0 : 2;
  }
  if (Written()) return code;
  std::fputs("prdsim: the standard output cannot be written\n", stderr);
  return 1;
}
