// prdsim: prd's engines, controller and workers in a simulator. prdsim --help teaches the commands.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "tools/sim/commands.h"
#include "tools/sim/workload.h"

namespace {

using prd::sim::CommandOptions;

void AddFiles(CLI::App* command, CommandOptions* options) {
  command->add_option("workload", options->files, "TOML files; later ones win")
      ->required()
      ->check(CLI::ExistingFile);
  command->add_option("--workers", options->workers, "instead of the workload's")
      ->check(CLI::Range(1, 1'000'000));
  command->add_option("--steps", options->steps, "local steps per worker; 0: until time is over");
  command->add_option("--seconds", options->seconds, "virtual seconds at most");
}

void AddCommon(CLI::App* command, CommandOptions* options) {
  command->add_option("--seed", options->seed, "of everything random")->capture_default_str();
  command->add_flag("--json", options->json, "JSON instead of text");
}

void AddEngines(CLI::App* command, CommandOptions* options, const char* what) {
  command->add_option("--engine", options->engines, what)->allow_extra_args(false);
}

}  // namespace

int main(int argc, char** argv) {
  CommandOptions options;
  int code = 0;
  CLI::App app(
      "prdsim runs prd's engines, its controller and its workers in virtual time, from one seed.\n"
      "Exit codes: 0 ok, 1 error, 2 usage, 3 an invariant is broken.");
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::help);
  app.footer(
      "Examples:\n"
      "  prdsim run tests/sim/workloads/straggler.toml --engine p-reduce:group_size=3\n"
      "  prdsim compare tests/sim/workloads/training.toml --engine all-reduce "
      "--engine p-reduce --seeds 5\n"
      "  prdsim sweep tests/sim/faults/*.toml --seeds 10000\n"
      "  prdsim sweep tests/sim/faults/*.toml --engine eager --seeds 2000\n"
      "  prdctl export RUN --format jsonl > run.jsonl; prdsim replay run.jsonl --engine "
      "all-reduce\n"
      "  prdsim keys");

  CLI::App* run = app.add_subcommand("run", "One run of a workload, with a report");
  AddFiles(run, &options);
  AddCommon(run, &options);
  AddEngines(run, &options, "ENGINE or ENGINE:KEY=VALUE,..., instead of the workload's");
  run->add_option("--timeline", options.timeline, "draws what workers did, as SVG");
  run->add_option("--timeline-seconds", options.timeline_s, "of it, from the beginning");
  run->add_option("--loss", options.loss, "draws the loss over time, as SVG");
  run->add_flag("--trace", options.trace, "prints every event and record");
  run->callback([&] { code = prd::sim::Run(options); });

  CLI::App* sweep = app.add_subcommand(
      "sweep",
      "Many seeds of many workloads: sizes, engines and options vary by seed, all "
      "invariants are checked, every seed runs twice");
  AddFiles(sweep, &options);
  AddCommon(sweep, &options);
  sweep->add_option("--seeds", options.seeds, "how many, from --seed on")->default_val(1000);
  sweep->add_option("--threads", options.threads, "seeds at a time")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  AddEngines(sweep, &options,
             "only this one: NAME with options drawn, or NAME:KEY=VALUE,... as given; "
             "default: all there are");
  sweep->add_flag("--as-is", options.as_is, "workloads as they are, only the seed changes");
  sweep->add_flag("--once", options.once, "every seed once, half the time");
  sweep->add_flag("--trace", options.trace, "prints every event and record");
  sweep->add_option("--mutation", options.mutation, "plants a bug that the sweep should find")
      ->capture_default_str();
  sweep->callback([&] { code = prd::sim::RunSweep(options); });

  CLI::App* compare =
      app.add_subcommand("compare", "One workload under several engines, as a table");
  AddFiles(compare, &options);
  AddCommon(compare, &options);
  AddEngines(compare, &options,
             "ENGINE or ENGINE:KEY=VALUE,...; repeat it; default: all there are");
  compare->add_option("--seeds", options.seeds, "runs per engine")->default_val(1);
  compare->add_option("--loss", options.loss, "draws the losses over time, as SVG");
  compare->callback([&] { code = prd::sim::RunCompare(options); });

  CLI::App* replay = app.add_subcommand(
      "replay", "What the workers of a recorded run would have done under other engines");
  replay->add_option("history", options.files, "JSON lines of prdctl export")
      ->required()
      ->expected(1)
      ->check(CLI::ExistingFile);
  AddCommon(replay, &options);
  AddEngines(replay, &options, "ENGINE or ENGINE:KEY=VALUE,...; repeat it; default: all there are");
  replay
      ->add_option("--against", options.against,
                   "another recorded run: predicts it, and says how far off")
      ->check(CLI::ExistingFile);
  replay->callback([&] { code = prd::sim::RunReplay(options); });

  CLI::App* papers =
      app.add_subcommand("papers", "The papers' experiments, their figures beside ours");
  AddCommon(papers, &options);
  papers->add_option("--updates", options.updates, "per run: more are more exact")
      ->check(CLI::Range(50, 1'000'000))
      ->capture_default_str();
  papers->callback([&] { code = prd::sim::RunPapersCommand(options); });

  app.add_subcommand("keys", "Every key of a workload, with its default and what is allowed")
      ->callback([] { std::fputs(prd::sim::WorkloadReference().c_str(), stdout); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return code;
}
