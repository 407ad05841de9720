#include "tools/sim/workload.h"

#include <fstream>
#include <utility>

#include "config/config.h"
#include "config/fields.h"
#include "config/keys.h"

namespace prd::sim {
namespace {

constexpr std::size_t kMaxFileBytes = 4 << 20;
constexpr std::int64_t kMany = 1'000'000;
constexpr double kDayMs = 86'400'000;

void Chance(Fields& f, std::string_view key, double* value, std::string_view help) {
  f.Real(key, value, {0, 1.0000001}, help);
}
void Ms(Fields& f, std::string_view key, double* value, std::string_view help) {
  f.Real(key, value, {0, kDayMs}, help);
}
void Us(Fields& f, std::string_view key, double* value, std::string_view help) {
  f.Real(key, value, {0, kDayMs}, help);
}

void Describe(Fields& f, ClusterPart* part) {
  f.Whole("workers", &part->workers, {1, kMany, "workers"}, "How many workers the job has.");
  f.Whole("workers_per_host", &part->workers_per_host, {1, kMany, "workers"},
          "Workers 0 to workers_per_host - 1 are on the first host, and so on. What workers of one "
          "host send each other goes over reduce.local_*, the rest over the links between hosts: "
          "with as many as `workers` there are none.");
  f.Whole("steps", &part->steps, kStepsRange,
          "Local steps until a worker finishes; 0: until `seconds` are over.");
  f.Real("seconds", &part->seconds, kSecondsRange,
         "Virtual seconds after which the run stops, whatever it does.");
  Ms(f, "start_spread_ms", &part->start_spread_ms, "Workers start within this time.");
  f.Whole("samples", &part->samples, {0, 1'000'000'000, "samples"},
          "Per step; engines may weigh by it.");
  f.Whole("batch", &part->batch, {0, kMaxBatch, "samples"},
          "What workers tell as the job's batch: samples of a step of all together, which engines "
          "that divide a batch give out; 0: nothing (as job.batch, which counts first).");
  f.Whole("max_share", &part->max_share, {0, kMaxBatch, "samples"},
          "Jobs with a batch: samples of one pass of a worker at most; 0: any number.");
  Chance(f, "limited", &part->limited,
         "The part of the workers for whom max_share holds; the seed says which.");
  Chance(f, "accumulates", &part->accumulates,
         "The part of the workers whose training loop adds up the gradients of several passes.");
  f.Whole("lead", &part->lead, {0, 1000, "steps"},
          "For how many steps to come a worker's loader has drawn samples, at most.");
  Chance(f, "pauses", &part->pauses,
         "The probability that a pause of the training loop follows a step.");
  Ms(f, "pause_ms", &part->pause_ms, "Of a pause, at most.");
  Chance(f, "averages", &part->averages,
         "The probability that an average of all replicas follows a step or a pause.");
}

void Describe(Fields& f, ComputePart* part) {
  f.Choice("model", &part->model, {"constant", "normal", "lognormal", "pareto"},
           "How the time of a local step is distributed.");
  f.Real("mean_ms", &part->mean_ms, {0.001, kDayMs},
         "Of a step, without delays, hiccups and what slow workers take longer.");
  f.Real("spread", &part->spread, {0, 100},
         "Of \"normal\" and \"lognormal\": standard deviation, as a part of the mean.");
  f.Real("tail", &part->tail, {1.01, 1000},
         "Of \"pareto\": its shape; the smaller, the longer the tail, up to 50 times the mean.");
  f.Whole("slow_workers", &part->slow_workers, {0, kMany, "workers"},
          "How many, the first ones, take slow_factor times as long.");
  f.Real("slow_factor", &part->slow_factor, {0.001, 1e6}, "See slow_workers.");
  Ms(f, "slow_from_ms", &part->slow_from_ms, "They are slow from then on,");
  Ms(f, "slow_to_ms", &part->slow_to_ms, "until then; 0: to the end.");
  Chance(f, "fixed_part", &part->fixed_part,
         "Jobs with a batch: a pass over n samples takes fixed_part + (1 - fixed_part) n / "
         "cluster.samples of a step's time.");
  Chance(f, "hiccup_probability", &part->hiccup_probability,
         "Of a step to take hiccup_factor times as long.");
  f.Real("hiccup_factor", &part->hiccup_factor, {0.001, 1e6}, "See hiccup_probability.");
  f.Choice("inject", &part->inject, {"none", "one", "shifted"},
           "Delays on top of steps. \"one\": at each step one worker of all, drawn at random, by "
           "inject_max_ms. \"shifted\": all, linearly from inject_min_ms to inject_max_ms; who is "
           "delayed by how much moves on by one worker after each step.");
  Ms(f, "inject_min_ms", &part->inject_min_ms, "See inject.");
  Ms(f, "inject_max_ms", &part->inject_max_ms, "See inject.");
  Ms(f, "poll_ms", &part->poll_ms,
     "How often a step looks whether it is to be cut short (Session::Interrupted); 0: never.");
  f.Whole("shared_workers", &part->shared_workers, {0, kMany, "workers"},
          "How many, the first ones, compute on one device.");
  f.Real("contention", &part->contention, {0, 1000},
         "While k workers of one device compute, each takes 1 + (k - 1) contention times as long: "
         "1: the device does the work of one, 0: it has room for all.");
  f.Whole("workers_per_device", &part->workers_per_device, {1, kMany, "workers"},
          "Of those that are not among shared_workers; 1: each has its own.");
}

void Describe(Fields& f, NetworkPart* part) {
  Us(f, "delay_us", &part->delay_us, "Of a control message, each way.");
  Us(f, "jitter_us", &part->jitter_us,
     "On top of it, uniform up to this. Those of one worker keep their order.");
  Chance(f, "slow_probability", &part->slow_probability,
         "Of a control message to take slow_ms more, and to be overtaken.");
  Ms(f, "slow_ms", &part->slow_ms, "See slow_probability.");
}

void Describe(Fields& f, ReducePart* part) {
  f.Real("bytes", &part->bytes, {0, 1e15},
         "Of the parameters. A ring of n workers takes overhead_us + 2 (n - 1) latency + 2 (n - 1) "
         "/ n bytes / bandwidth, by its slowest link; a copy, one latency + bytes / bandwidth.");
  Us(f, "overhead_us", &part->overhead_us, "Of each reduction.");
  Us(f, "latency_us", &part->latency_us, "Of a link between hosts, per stage of a ring.");
  f.Real("bandwidth_mb_per_s", &part->bandwidth_mb_per_s, {0.001, 1e9},
         "Of a link between hosts, each way: 1e6 bytes per second, so 1 Gbit/s is 125. Counts for "
         "nothing within a host (cluster.workers_per_host).");
  f.Real("host_bandwidth_mb_per_s", &part->host_bandwidth_mb_per_s, {0, 1e9},
         "Of a host's network card, each way, which all that goes to and from other hosts shares; "
         "0: bandwidth_mb_per_s.");
  Us(f, "local_latency_us", &part->local_latency_us, "As latency_us, between workers of one host.");
  f.Real("local_bandwidth_mb_per_s", &part->local_bandwidth_mb_per_s, {0.001, 1e9},
         "As bandwidth_mb_per_s, between workers of one host.");
}

// By its name; its options have rules of their own.
std::string EngineRule(const std::string& text) {
  if (text.empty()) return {};
  std::string allowed;
  for (const EngineOptions& engine : AllEngines()) {
    const std::string name(EngineName(engine));
    if (text.substr(0, text.find(':')) == name) return {};
    allowed += ", " + TomlText(name);
  }
  return "NAME or NAME:KEY=VALUE,..., with a NAME of" + allowed.substr(1);
}

Status OptionsRule(const std::string& engine) {
  if (engine.empty()) return Status::Ok();
  const Status status = ParseEngine(engine).status();
  return status.ok() ? status : Status(status.code(), "switch_to: " + status.message());
}

void Describe(Fields& f, WorkerFaults* part) {
  Chance(
      f, "worker_dies", &part->worker_dies,
      "Per step: the worker is killed, and comes back within return_ms. The probability, as below "
      "where no unit is named.");
  Chance(f, "worker_leaves", &part->worker_leaves,
         "Per step: it says Leave, and comes back as another process.");
  Chance(f, "worker_stops", &part->worker_stops,
         "Per step: it cancels the call of the step, then the same.");
  Chance(f, "notices", &part->notices,
         "Per step: it gets notice that it is to leave, within 100 ms (Session::LeaveSoon), every "
         "other time with a grace of up to 200 ms; then the same.");
  Ms(f, "return_ms", &part->return_ms, "See worker_dies.");
  Chance(f, "late", &part->late, "Of a worker to start up to late_ms after the others.");
  Ms(f, "late_ms", &part->late_ms, "See late.");
  f.Real("worker_freezes_per_s", &part->worker_freezes_per_s, {0, 1000},
         "Per worker: it stands still for 1 to freeze_leases leases, then takes all that has come "
         "meanwhile.");
  Chance(f, "flips", &part->flips,
         "Where all replicas are to be equal: of a step to change its worker's replica by itself.");
  f.Whole(
      "state_not_told", &part->state_not_told, {0, 1, "0 or 1"},
      "1: what workers keep beside their parameters (Replica::state) is not copied with them, as "
      "if users had not told of it.");
  f.Real("launcher_restarts_per_s", &part->launcher_restarts_per_s, {0, 1000},
         "The launcher kills its workers and starts them anew as another launch;");
  Chance(f, "remains", &part->remains,
         "so many of those of the launch before survive, and go on until they are told that they "
         "are of no use.");
}

void Describe(Fields& f, NetworkFaults* part) {
  Chance(f, "loss", &part->loss, "Of a control message.");
  Chance(f, "duplicate", &part->duplicate, "Of a control message.");
  f.Real("partitions_per_s", &part->partitions_per_s, {0, 1000},
         "Per worker: cut off from the controller for up to partition_ms.");
  Ms(f, "partition_ms", &part->partition_ms, "See partitions_per_s.");
  Chance(f, "reduce_fails", &part->reduce_fails, "Of a member in a group.");
  Chance(f, "fetch_fails", &part->fetch_fails, "Of a copy.");
  f.Real("link_cuts_per_s", &part->link_cuts_per_s, {0, 1000},
         "Per worker: its link to another one loses everything for up to link_cut_ms.");
  f.Real("large_cuts_per_s", &part->large_cuts_per_s, {0, 1000},
         "The same of large packets alone, as where a path's MTU is smaller than its ends know.");
  Ms(f, "link_cut_ms", &part->link_cut_ms, "See link_cuts_per_s.");
  Chance(f, "one_way", &part->one_way,
         "The part of these links that does so in one direction alone.");
  f.Real(
      "slow_links_per_s", &part->slow_links_per_s, {0, 1000},
      "Per worker: for up to slow_link_ms, what goes over its link to another one takes up to as "
      "much longer.");
  Ms(f, "slow_link_ms", &part->slow_link_ms, "See slow_links_per_s.");
  f.Real("connection_breaks_per_s", &part->connection_breaks_per_s, {0, 1000},
         "Per worker: its connection to the controller ends, and another one is made within "
         "connection_break_ms.");
  Ms(f, "connection_break_ms", &part->connection_break_ms, "See connection_breaks_per_s.");
  Chance(f, "ends_told", &part->ends_told,
         "The part of the connections that end so, or with their process, whose end the controller "
         "learns of; the others seem alive, as where a host has lost its power.");
  f.Real("forgeries_per_s", &part->forgeries_per_s, {0, 1000},
         "Per worker: a peer that knows all of it but its token sends a message in its name.");
}

void Describe(Fields& f, ControllerFaults* part) {
  Chance(f, "append_fails", &part->append_fails, "Of a write to the history.");
  f.Real("controller_dies_per_s", &part->controller_dies_per_s, {0, 1000},
         "The controller crashes, and is back after controller_away_ms.");
  Ms(f, "controller_away_ms", &part->controller_away_ms, "See controller_dies_per_s.");
  Chance(f, "torn", &part->torn,
         "Of a write to the history to end in the controller's death, half on disk.");
  Chance(
      f, "forget", &part->forget,
      "At a death of the controller: its history comes back without the last batches of records,");
  f.Whole("forget_batches", &part->forget_batches, {1, kMany, "batches"}, "up to so many.");
  Chance(f, "wipe", &part->wipe, "At a death of the controller: its history comes back empty.");
  Chance(
      f, "old_copy", &part->old_copy,
      "At a death of the controller: its history comes back as it was up to old_copy_ms before.");
  Ms(f, "old_copy_ms", &part->old_copy_ms, "See old_copy.");
  f.Real("controller_freezes_per_s", &part->controller_freezes_per_s, {0, 1000},
         "The controller stands still for 1 to freeze_leases leases, then takes all that has come "
         "meanwhile.");
  f.Real("freeze_leases", &part->freeze_leases, {1, 1000}, "See controller_freezes_per_s.");
  f.Real("clock_steps_per_s", &part->clock_steps_per_s, {0, 1000},
         "The controller's wall clock jumps by up to clock_step_ms.");
  Ms(f, "clock_step_ms", &part->clock_step_ms, "See clock_steps_per_s.");
}

void Describe(Fields& f, OperatorFaults* part) {
  f.Real("evictions_per_s", &part->evictions_per_s, {0, 1000},
         "An operator evicts a worker, which comes back as a new process within return_ms.");
  f.Real("drains_per_s", &part->drains_per_s, {0, 1000},
         "An operator drains a host; its workers come back in the same way.");
  f.Real("operator_pauses_per_s", &part->operator_pauses_per_s, {0, 1000},
         "An operator pauses the job for up to operator_pause_ms.");
  f.Real("operator_pause_ms", &part->operator_pause_ms, {0, 1e6}, "See operator_pauses_per_s.");
  f.Real("operator_ends_per_s", &part->operator_ends_per_s, {0, 1000}, "An operator ends the job.");
  f.Real("switches_per_s", &part->switches_per_s, {0, 1000},
         "An operator switches the job to any engine, with any options.");
  Ms(f, "switch_at_ms", &part->switch_at_ms,
     "An operator switches the job to switch_to then; 0: never.");
  f.Text("switch_to", &part->switch_to, EngineRule, "As prdsim's --engine.");
  f.Check(OptionsRule(part->switch_to));
}

void Describe(Fields& f, FaultsPart* part) {
  Ms(f, "until_ms", &part->until_ms,
     "Faults begin until then; afterwards everybody must go on, and come to an end.");
  Describe(f, static_cast<WorkerFaults*>(part));
  Describe(f, static_cast<NetworkFaults*>(part));
  Describe(f, static_cast<ControllerFaults*>(part));
  Describe(f, static_cast<OperatorFaults*>(part));
}

void Describe(Fields& f, ControllerPart* part) {
  Us(f, "service_us", &part->service_us,
     "Of the controller, per message; messages that come meanwhile are one batch.");
  f.Whole("snapshot_every", &part->snapshot_every, {1, 1'000'000'000'000, "records"},
          "Between two snapshots.");
  f.Whole("keep_records", &part->keep_records, {0, 1, "0 or 1"},
          "0: records are checked and forgotten, so that no crash can be survived.");
}

void Describe(Fields& f, TrainingPart* part) {
  f.Choice("objective", &part->objective, {"none", "quadratic", "logistic"},
           "What every worker trains: a sum of squares, or logistic regression.");
  f.Whole("dimensions", &part->dimensions, {1, 100'000, "numbers"}, "Of the model.");
  f.Real("learning_rate", &part->learning_rate, {0, 1000}, "Of a step.");
  f.Real("noise", &part->noise, {0, 1e6}, "\"quadratic\": of a gradient's entries.");
  f.Real("skew", &part->skew, {0, 1.0000001},
         "0: all workers' shards alike; 1: as different as they get.");
  f.Whole("examples", &part->examples, {10, 10'000'000, "examples"}, "\"logistic\": in all.");
  f.Whole("batch", &part->batch, {1, 1'000'000, "examples"}, "\"logistic\": examples per step.");
  f.Real("target_loss", &part->target_loss, {0, 1e9}, "Above the least loss there is; 0: none.");
  f.Real("evaluate_ms", &part->evaluate_ms, {0.01, kDayMs},
         "Between two evaluations of the mean model.");
}

void DescribeAll(Fields& root, Workload* workload) {
  const auto table = [&](std::string_view key, auto* part) {
    root.Table(key, false, "", [&](Fields& fields) { Describe(fields, part); });
  };
  table("cluster", &workload->cluster);
  table("compute", &workload->compute);
  table("network", &workload->network);
  table("reduce", &workload->reduce);
  table("faults", &workload->faults);
  table("controller", &workload->controller);
  table("training", &workload->training);
  root.Table("job", false, "", [&](Fields& fields) {
    DescribeJob(fields, &workload->job.name, JobNameRule, &workload->job, nullptr);
  });
}

bool Has(const TomlTable& root, std::string_view table, std::string_view key) {
  const TomlTable::Entry* entry = root.Find(table);
  const TomlTable* inner = entry != nullptr ? entry->node.table() : nullptr;
  return inner != nullptr && inner->Find(key) != nullptr;
}

}  // namespace

Status ReadWorkload(std::string_view text, const std::string& file, Workload* workload) {
  Result<TomlTable> root = ParseToml(text, file);
  if (!root.ok()) return root.status();
  ConfigErrors errors(file);
  FieldReader reader(&*root, "", 0, &errors);
  DescribeAll(reader, workload);
  reader.RefuseOthers();
  for (const char* key : {"host_bandwidth_mb_per_s", "latency_us", "bandwidth_mb_per_s"}) {
    if (Has(*root, "reduce", key)) workload->between_hosts = std::string("reduce.") + key;
  }
  return errors.ToStatus();
}

Status LoadWorkload(const std::string& path, Workload* workload) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Status(Code::kNotFound, path + ": cannot be read");
  std::string text(kMaxFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (in.bad() || text.size() > kMaxFileBytes) {
    return Status(Code::kInvalidArgument, path + ": cannot be read, or has over 4 MiB");
  }
  PRD_RETURN_IF_ERROR(ReadWorkload(text, path, workload));
  std::string name = path.substr(path.find_last_of('/') + 1);
  if (name.ends_with(".toml")) name.resize(name.size() - 5);
  workload->name += (workload->name.empty() ? "" : "+") + name;
  return Status::Ok();
}

Status CheckWorkload(const Workload& workload) {
  const std::int64_t workers = workload.cluster.workers;
  if (workload.job.workers > workers) {
    return Wrong("job.workers", std::to_string(workload.job.workers),
                 "up to cluster.workers (" + std::to_string(workers) +
                     "): the common start would wait for ever");
  }
  if (workers > workload.job.max_workers) {
    return Wrong("cluster.workers", std::to_string(workers),
                 "up to job.max_workers (" + std::to_string(workload.job.max_workers) + ")");
  }
  if (workload.controller.keep_records == 0 &&
      (workload.faults.controller_dies_per_s > 0 || workload.faults.torn > 0)) {
    return Wrong("controller.keep_records", "0", "1 where the controller may crash");
  }
  for (const auto& [key, some] :
       {std::pair("compute.slow_workers", workload.compute.slow_workers),
        std::pair("compute.shared_workers", workload.compute.shared_workers)}) {
    if (some <= workers) continue;
    return Wrong(key, std::to_string(some),
                 "up to cluster.workers (" + std::to_string(workers) + ")");
  }
  if (workload.compute.inject_min_ms > workload.compute.inject_max_ms) {
    return Status(Code::kInvalidArgument, "compute.inject_min_ms: allowed is up to inject_max_ms");
  }
  const int start = workload.job.workers > 0 ? workload.job.workers : static_cast<int>(workers);
  return Validate(workload.job.engine, start);
}

std::string WorkloadWarning(const Workload& workload) {
  const ClusterPart& cluster = workload.cluster;
  if (workload.between_hosts.empty() || cluster.workers > cluster.workers_per_host) return {};
  return workload.between_hosts + " is of links between hosts, and all " +
         std::to_string(cluster.workers) +
         " workers are on one host (cluster.workers_per_host is " +
         std::to_string(cluster.workers_per_host) + "), where reduce.local_* counts";
}

std::string WorkloadReference() {
  Workload workload;
  workload.job.name = "sim";
  std::string text;
  FieldLister lister("");
  DescribeAll(lister, &workload);
  for (const FieldLister::Line& line : lister.lines()) {
    text += line.key + " = " + line.value + "   " + line.allowed + "\n";
    if (!line.help.empty()) text += "    " + line.help + "\n";
  }
  return text;
}

}  // namespace prd::sim
