// prdbench: measures what prd claims, beside what it is compared with, in the same run.
#include <CLI/CLI.hpp>

#include "tools/prdbench/broker.h"
#include "tools/prdbench/decide.h"
#include "tools/prdbench/reduce.h"

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

  CLI11_PARSE(app, argc, argv);
  if (*reduce_cmd) {
    reduce.json = json;
    return prd::bench::BenchReduce(reduce);
  }
  if (*broker_cmd) {
    broker.json = json;
    return prd::bench::BenchBroker(broker);
  }
  return prd::bench::BenchDecide(json);
}
