// prdbench: measures what prd claims, beside what it is compared with, in the same run.
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "tools/prdbench/broker.h"
#include "tools/prdbench/decide.h"
#include "tools/prdbench/device.h"
#include "tools/prdbench/reduce.h"
#include "tools/prdbench/reduce_device.h"
#include "tools/prdbench/skew.h"
#include "tools/prdbench/skew_process.h"
#include "tools/prdbench/step_process.h"

namespace {

// CLI::Range takes NaN for a number of any range.
CLI::Validator Finite() {
  const auto check = [](std::string& text) {
    const double number = std::strtod(text.c_str(), nullptr);
    return std::isfinite(number) ? std::string() : "found " + text + ", allowed is a finite number";
  };
  return {check, ""};
}

// Sizes of float32; CLI11 itself takes -4 for a large one.
CLI::Validator Floats(std::size_t least, std::size_t most) {
  const auto check = [least, most](std::string& text) {
    char* end = nullptr;
    errno = 0;
    const unsigned long long bytes = std::strtoull(text.c_str(), &end, 0);
    const bool whole = text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0;
    if (whole && bytes >= least && bytes <= most && bytes % sizeof(float) == 0) {
      return std::string();
    }
    return "found " + text + ", allowed are multiples of 4 from " + std::to_string(least) + " to " +
           std::to_string(most);
  };
  return {check, ""};
}

bool Written() {
  std::cout.flush();  // what CLI11 prints
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
}

CLI::App* AddSkew(CLI::App* app, prd::bench::SkewOptions* skew, bool* json) {
  CLI::App* command = app->add_subcommand(
      "skew", "Eager rounds beside Open MPI's MPI_Allreduce, where processes arrive one by one");
  command->add_option("--processes", skew->processes, "How many processes, N")
      ->check(CLI::Range(2, 256))
      ->capture_default_str();
  command
      ->add_option("--skew-ms", skew->skew_ms,
                   "Time between the calls of process i and process i + 1")
      ->check(Finite())
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  command->add_option("--bytes", skew->bytes, "Sizes to reduce: bytes of float32 per process")
      ->check(Floats(prd::bench::kLeastSkewBytes, prd::bench::kMostSkewBytes))
      ->capture_default_str();
  command->add_option("--iterations", skew->iterations, "Iterations measured per size and round")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--warmup", skew->warmup, "Iterations before those, which do not count")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  command
      ->add_option("--rounds", skew->rounds,
                   "Rounds, each with fresh processes; MPI and prd take turns")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--ops", skew->ops, "Operations to measure (below)")
      ->check(CLI::IsMember(prd::bench::SkewOps()))
      ->capture_default_str();
  command->add_flag("--without-mpi", skew->without_mpi, "Leave MPI_Allreduce out");
  command->add_option("--mpirun", skew->mpirun, "Open MPI's mpirun")->capture_default_str();
  command->add_option("--daemon", skew->daemon,
                      "The prd program (default: the one beside prdbench)");
  command->add_flag("--json", *json,
                    "Print a JSON object per operation; mpi_* and ratio are null without MPI");
  command->footer(
      "The microbenchmark of eager-SGD (Li et al., PPoPP 2020, section 6.1 and Fig. 8). In each\n"
      "iteration all processes meet; process i of 1..N waits i x --skew-ms, then calls the "
      "operation.\n"
      "Printed are the mean time from call to return over all processes and iterations, MPI's "
      "mean\n"
      "with the same arrivals, the ratio of MPI's mean to prd's, and the mean number of active\n"
      "processes. A process is active in a round that contains its gradient of this iteration.\n"
      "  solo        engine eager, quorum solo: the first to arrive starts the round\n"
      "  majority    engine eager, quorum majority\n"
      "  all-reduce  engine all-reduce: waits for all processes, as MPI's does\n"
      "prd's processes are workers of a daemon that prdbench starts, with its history on.\n"
      "\n"
      "All of it takes about a minute and a half. One size, for a quick look:\n"
      "  prdbench skew --bytes 64 --rounds 1");
  return command;
}

CLI::App* AddDevice(CLI::App* app, prd::bench::DeviceOptions* device, bool* json) {
  CLI::App* command = app->add_subcommand(
      "device",
      "On a GPU: kernels beside plain copies; or, with --check, correct results across processes");
  command->add_option("--device", device->device, "The device, cuda:N")->capture_default_str();
  command->add_option("--check", device->check, "Run this check instead of the kernels (below)")
      ->check(CLI::IsMember(prd::bench::DeviceChecks()));
  command->add_option("--bytes", device->bytes, "Bytes of a row; the kernels need ten rows")
      ->check(CLI::Range(1 << 16, 1 << 30))
      ->capture_default_str();
  command->add_option("--seconds", device->seconds, "Seconds per kernel case")
      ->check(Finite())
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
  command->add_option("--processes", device->processes, "Processes of a check")
      ->check(CLI::Range(3, 32))
      ->capture_default_str();
  command->add_option("--groups", device->groups, "Groups of the checks `groups` and `leak`")
      ->check(CLI::Range(8, 1000000))
      ->capture_default_str();
  command->add_option("--elements", device->elements, "Elements of each dtype in a check")
      ->check(CLI::Range(64, 1 << 26))
      ->capture_default_str();
  command->add_option("--seed", device->seed, "Seed of memberships, weights and values")
      ->capture_default_str();
  command->add_option("--timeout-ms", device->timeout_ms, "Time limit of a reduction in a check")
      ->check(CLI::Range(100, 600000))
      ->capture_default_str();
  command
      ->add_option("--slack-bytes", device->slack_bytes,
                   "Growth of all processes that `leak` accepts")
      ->capture_default_str();
  command->add_flag("--json", *json, "Always on: prints a JSON object per result");
  command->footer(
      "A kernel's ratio is the copies' time over its own.\n"
      "Checks, each one line {\"check\":..,\"ok\":..} and an exit code:\n"
      "  groups  groups of 2 to 4 processes in changing memberships, random weights, against "
      "float64\n"
      "  dtypes  every dtype alone, and all in one model, by each transport\n"
      "  kill    a member is killed during a reduction: the others get an error in time, and no\n"
      "          parameter changes; groups without that member keep their communicators\n"
      "  leak    memory of the device, while communicators are made and given up all the time\n"
      "All processes share one GPU. NCCL then goes through sockets, which it offers for "
      "functional\n"
      "tests only: the checks show correct results, not the speed of several GPUs.");
  return command;
}

// BenchSkew starts this command; it is hidden.
CLI::App* AddSkewProcess(CLI::App* app, prd::bench::SkewProcessOptions* process) {
  CLI::App* command = app->add_subcommand("skew-process", "One of prdbench skew's processes");
  command->group("");
  command->add_option("--board", process->board)->required();
  command->add_option("--process", process->process)->required();
  command->add_option("--bytes", process->bytes)->required();
  command->add_option("--controller", process->controller)->required();
  command->add_option("--job", process->job)->required();
  return command;
}

// tools/measure starts this command; it is hidden.
CLI::App* AddStepProcess(CLI::App* app, prd::bench::StepProcessOptions* process) {
  CLI::App* command = app->add_subcommand("step-process", "One of tools/measure's processes");
  command->group("");
  command->add_option("--tensors", process->tensors)->check(CLI::Range(1, 100'000));
  command->add_option("--elements", process->elements)->check(CLI::Range(1, 100'000'000));
  command->add_option("--steps", process->steps)->check(CLI::Range(1, 100'000'000));
  command->add_option("--step-ms", process->step_ms)
      ->check(Finite())
      ->check(CLI::Range(0.0, 60'000.0));
  return command;
}

int Run(int argc, char** argv) {
  CLI::App app{
      "Benchmarks of prd. Each figure is measured now, on this machine, and printed beside the "
      "figure of what it is compared with. Compare within a run only.\n"
      "With --json, prints one JSON object per line and result.\n"
      "Exit codes: 0 ok, 1 error, 2 usage, 130 and 143 ended by SIGINT and SIGTERM."};
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  prdbench reduce --workers 4 --bytes 67108864 --beside-torch\n"
      "  prdbench reduce --workers 4 --device cuda:0\n"
      "  prdbench device --check groups\n"
      "  prdbench broker --clients 64\n"
      "  prdbench skew --bytes 64\n"
      "  prdbench decide --json");
  bool json = false;

  prd::bench::ReduceOptions reduce;
  CLI::App* reduce_cmd = app.add_subcommand(
      "reduce", "A group's weighted reduction among processes: first use, repeated use, bandwidth");
  reduce_cmd->add_option("--workers", reduce.workers, "Processes of the group")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  reduce_cmd->add_option("--bytes", reduce.bytes, "Sizes to reduce: bytes of float32 per worker")
      ->check(Floats(sizeof(float), prd::bench::kMostReduceBytes))
      ->capture_default_str();
  reduce_cmd->add_option("--trials", reduce.trials, "Trials per size, each with fresh processes")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  reduce_cmd->add_option("--repeats", reduce.repeats, "Reductions of a group after its first")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  reduce_cmd->add_flag("--tcp", reduce.tcp, "Use tcp between the processes, as between hosts");
  reduce_cmd->add_flag("--beside-torch", reduce.beside_torch,
                       "Measure PyTorch's all_reduce over Gloo too, in turns with ours");
  reduce_cmd
      ->add_option("--mesh-security", reduce.mesh_security,
                   "Measure with this mesh_security too, in turns with none")
      ->check(CLI::IsMember({"none", "aead", "curve"}))
      ->capture_default_str();
  reduce_cmd->add_option("--python", reduce.python, "A Python that has torch")
      ->capture_default_str();
  CLI::Option* on_device = reduce_cmd->add_option(
      "--device", reduce.devices,
      "On GPUs: cuda:N,.. for the workers in turn. Each transport beside ncclAllReduce");
  on_device->delimiter(',');
  reduce_cmd->add_option("--dtype", reduce.dtype, "Element type, with --device")
      ->check(CLI::IsMember({"f32", "f64", "f16", "bf16"}))
      ->needs(on_device)
      ->capture_default_str();
  reduce_cmd->add_flag("--json", json, "Print a JSON object per result; always with --device");
  reduce_cmd->footer("With --device, the ratio is ncclAllReduce's time over the group's.");

  prd::bench::BrokerOptions broker;
  CLI::App* broker_cmd = app.add_subcommand(
      "broker", "The real daemon, with its history, beside a bare ZeroMQ echo under the same load");
  broker_cmd->footer("The ratio is prd's figure over the echo's.");
  broker_cmd
      ->add_option("--clients", broker.clients, "Workers; each has one ready signal under way")
      ->check(CLI::Range(3, 1024))
      ->capture_default_str();
  broker_cmd
      ->add_option("--group-size", broker.group_size, "Workers per group, P; at most --clients")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  broker_cmd->add_flag(
      "--keys", broker.keys,
      "Between workers and daemon with CURVE keys; measures an echo with keys, too");
  broker_cmd->add_option("--seconds", broker.seconds, "Seconds per round")
      ->check(Finite())
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  broker_cmd->add_option("--rounds", broker.rounds, "Rounds of each, in turns; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  broker_cmd->add_option("--daemon", broker.daemon,
                         "The prd program (default: the one beside prdbench)");
  broker_cmd->add_flag("--json", json, "Print a JSON object per result");

  prd::bench::DeviceOptions device;
  CLI::App* device_cmd = AddDevice(&app, &device, &json);

  CLI::App* decide_cmd =
      app.add_subcommand("decide", "An engine's cost per ready signal, from 8 to 100,000 workers");
  prd::bench::DecideOptions decide;
  decide_cmd->add_option("--engine", decide.engines, "Only these (default: all)")
      ->check(CLI::IsMember(prd::bench::DecideEngines()));
  decide_cmd->add_flag("--json", json, "Print a JSON object per result");
  decide_cmd->footer("All of it takes a minute or two; the engine in progress is told on stderr.");

  prd::bench::SkewOptions skew;
  CLI::App* skew_cmd = AddSkew(&app, &skew, &json);
  prd::bench::SkewProcessOptions skew_process;
  CLI::App* skew_process_cmd = AddSkewProcess(&app, &skew_process);
  prd::bench::StepProcessOptions step_process;
  CLI::App* step_process_cmd = AddStepProcess(&app, &step_process);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (*reduce_cmd) {
    reduce.json = json;
    if (!reduce.devices.empty()) return prd::bench::BenchReduceDevice(reduce);
    return prd::bench::BenchReduce(reduce);
  }
  if (*device_cmd) {
    return device.check.empty() ? prd::bench::BenchDevice(device) : prd::bench::CheckDevice(device);
  }
  if (*broker_cmd) {
    broker.json = json;
    return prd::bench::BenchBroker(broker);
  }
  if (*skew_cmd) {
    skew.json = json;
    return prd::bench::BenchSkew(skew);
  }
  if (*skew_process_cmd) return prd::bench::RunSkewProcess(skew_process);
  if (*step_process_cmd) return prd::bench::RunStepProcess(step_process);
  decide.json = json;
  return prd::bench::BenchDecide(decide);
}

}  // namespace

int main(int argc, char** argv) {
  const int code = Run(argc, argv);
  if (Written()) return code;
  std::fputs("prdbench: the standard output cannot be written\n", stderr);
  return 1;
}
