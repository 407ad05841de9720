// prdbench: measures what prd claims, beside what it is compared with, in the same run.
#include <CLI/CLI.hpp>

#include "tools/prdbench/broker.h"
#include "tools/prdbench/decide.h"
#include "tools/prdbench/reduce.h"
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
  reduce_cmd->add_flag("--json", json, "A JSON object per result");

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
    return prd::bench::BenchReduce(reduce);
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
