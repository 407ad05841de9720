// prdbench: measures what prd claims, beside what it is compared with, in the same run.
#include <CLI/CLI.hpp>

#include "tools/prdbench/broker.h"
#include "tools/prdbench/decide.h"
#include "tools/prdbench/device.h"
#include "tools/prdbench/reduce.h"
#include "tools/prdbench/reduce_device.h"
#include "tools/prdbench/skew.h"
#include "tools/prdbench/skew_process.h"

namespace {

CLI::App* AddSkew(CLI::App* app, prd::bench::SkewOptions* skew, bool* json) {
  CLI::App* command = app->add_subcommand(
      "skew", "Eager rounds beside Open MPI's MPI_Allreduce when processes arrive one by one");
  command->add_option("--processes", skew->processes, "N")
      ->check(CLI::Range(2, 256))
      ->capture_default_str();
  command->add_option("--skew-ms", skew->skew_ms, "Between the calls of process i and i + 1")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  command->add_option("--bytes", skew->bytes, "Sizes to reduce, float32, bytes per process")
      ->capture_default_str();
  command->add_option("--iterations", skew->iterations, "Measured, per size and round")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--warmup", skew->warmup, "Iterations before them that do not count")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  command->add_option("--rounds", skew->rounds, "Fresh processes each; MPI and prd take turns")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--ops", skew->ops, "Which operations")
      ->check(CLI::IsMember(prd::bench::SkewOps()))
      ->capture_default_str();
  command->add_flag("--without-mpi", skew->without_mpi, "Leave MPI_Allreduce out");
  command->add_option("--mpirun", skew->mpirun, "Open MPI's")->capture_default_str();
  command->add_option("--daemon", skew->daemon, "The prd binary (default: the one beside this)");
  command->add_flag("--json", *json, "A JSON object per operation; mpi_* are null without MPI");
  command->footer(
      "The microbenchmark of eager-SGD (Li et al., PPoPP 2020, section 6.1 and Fig. 8). In each\n"
      "iteration all processes meet, process i of 1..N waits i x --skew-ms and calls the "
      "operation.\n"
      "Printed are the mean time from call to return over all processes and iterations, MPI's "
      "with\n"
      "the same arrivals, and the mean number of active processes: those whose gradient of this\n"
      "iteration is in the round.\n"
      "  solo        engine eager, quorum solo: the first to arrive starts the round\n"
      "  majority    engine eager, quorum majority\n"
      "  all-reduce  engine all-reduce: the full collective, as MPI's\n"
      "prd's processes are workers of a daemon that is started for this, with its history on.\n"
      "\n"
      "All of it takes about a minute and a half. One size, in a hurry:\n"
      "  prdbench skew --bytes 64 --rounds 1");
  return command;
}

CLI::App* AddDevice(CLI::App* app, prd::bench::DeviceOptions* device, bool* json) {
  CLI::App* command = app->add_subcommand(
      "device",
      "On a GPU: kernels beside plain copies; or --check, what is right across processes");
  command->add_option("--device", device->device, "cuda:N")->capture_default_str();
  command->add_option("--check", device->check, "Instead of the kernels")
      ->check(CLI::IsMember(prd::bench::DeviceChecks()));
  command->add_option("--bytes", device->bytes, "Of a row; the kernels need ten of them")
      ->check(CLI::Range(1 << 16, 1 << 30))
      ->capture_default_str();
  command->add_option("--seconds", device->seconds, "Per case of the kernels")
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
  command->add_option("--processes", device->processes, "Of a check")
      ->check(CLI::Range(3, 32))
      ->capture_default_str();
  command->add_option("--groups", device->groups, "Of `groups` and `leak`")
      ->check(CLI::Range(8, 1000000))
      ->capture_default_str();
  command->add_option("--elements", device->elements, "Of each dtype, in a check")
      ->check(CLI::Range(64, 1 << 26))
      ->capture_default_str();
  command->add_option("--seed", device->seed, "Of memberships, weights and values")
      ->capture_default_str();
  command->add_option("--timeout-ms", device->timeout_ms, "Of a reduction in a check")
      ->check(CLI::Range(100, 600000))
      ->capture_default_str();
  command->add_option("--slack-bytes", device->slack_bytes, "That `leak` lets go, of all processes")
      ->capture_default_str();
  command->add_flag("--json", *json, "Is always so: a JSON object per result");
  command->footer(
      "Checks, each one line {\"check\":..,\"ok\":..} and an exit code:\n"
      "  groups  groups of 2 to 4 processes in changing memberships, random weights, against "
      "float64\n"
      "  dtypes  every dtype alone, and all in one model, by every way\n"
      "  kill    a member is killed in mid-reduce: the others end with an error in time, nothing "
      "is\n"
      "          changed, groups without it go on with the communicators that they had\n"
      "  leak    memory of the device, while communicators are made and given up all the time\n"
      "All processes share the one GPU, which NCCL is for functional tests only (it goes through\n"
      "sockets): the figures say what is right, not how fast several GPUs are.");
  return command;
}

// What BenchSkew starts; not for people.
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

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Benchmarks of prd. Every figure is measured now, on this machine, and printed with what it "
      "stands beside; compare within a run only.\n"
      "With --json, one JSON object per line and result."};
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
  reduce_cmd->add_option("--workers", reduce.workers, "Processes")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  reduce_cmd->add_option("--bytes", reduce.bytes, "Sizes to reduce, float32, bytes per worker")
      ->capture_default_str();
  reduce_cmd->add_option("--trials", reduce.trials, "Fresh sets of processes per size")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  reduce_cmd->add_option("--repeats", reduce.repeats, "Reductions of a group after its first")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  reduce_cmd->add_flag("--tcp", reduce.tcp, "tcp between the processes, as between hosts");
  reduce_cmd->add_flag("--beside-torch", reduce.beside_torch,
                       "PyTorch's all_reduce over Gloo, alternating with ours");
  reduce_cmd->add_option("--python", reduce.python, "The Python that has torch")
      ->capture_default_str();
  reduce_cmd
      ->add_option("--device", reduce.devices,
                   "On GPUs, cuda:N,.. of the workers in turn: by every way, beside ncclAllReduce")
      ->delimiter(',');
  reduce_cmd->add_option("--dtype", reduce.dtype, "With --device")
      ->check(CLI::IsMember({"f32", "f64", "f16", "bf16"}))
      ->capture_default_str();
  reduce_cmd->add_flag("--json", json, "A JSON object per result; with --device always");

  prd::bench::BrokerOptions broker;
  CLI::App* broker_cmd = app.add_subcommand(
      "broker", "The real daemon, history on, beside a bare ZeroMQ echo under the same load");
  broker_cmd->add_option("--clients", broker.clients, "Workers, each with one signal under way")
      ->check(CLI::Range(3, 1024))
      ->capture_default_str();
  broker_cmd->add_option("--group-size", broker.group_size, "P")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  broker_cmd->add_option("--seconds", broker.seconds, "Per round")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  broker_cmd->add_option("--rounds", broker.rounds, "Of each, alternating; medians are reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  broker_cmd->add_option("--daemon", broker.daemon,
                         "The prd binary (default: the one beside this)");
  broker_cmd->add_flag("--json", json, "A JSON object per result");

  prd::bench::DeviceOptions device;
  CLI::App* device_cmd = AddDevice(&app, &device, &json);

  CLI::App* decide_cmd =
      app.add_subcommand("decide", "An engine's cost per ready signal, from 8 to 100,000 workers");
  decide_cmd->add_flag("--json", json, "A JSON object per result");

  prd::bench::SkewOptions skew;
  CLI::App* skew_cmd = AddSkew(&app, &skew, &json);
  prd::bench::SkewProcessOptions skew_process;
  CLI::App* skew_process_cmd = AddSkewProcess(&app, &skew_process);

  CLI11_PARSE(app, argc, argv);
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
  return prd::bench::BenchDecide(json);
}
