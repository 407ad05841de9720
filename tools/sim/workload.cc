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

void Chance(Fields& f, std::string_view key, double* value) { f.Real(key, value, {0, 1.0000001}); }
void Ms(Fields& f, std::string_view key, double* value) { f.Real(key, value, {0, kDayMs}); }
void Us(Fields& f, std::string_view key, double* value) { f.Real(key, value, {0, kDayMs}); }

void Describe(Fields& f, ClusterPart* part) {
  f.Whole("workers", &part->workers, {1, kMany, "workers"});
  f.Whole("workers_per_host", &part->workers_per_host, {1, kMany, "workers"});
  f.Whole("steps", &part->steps, kStepsRange);
  f.Real("seconds", &part->seconds, kSecondsRange);
  Ms(f, "start_spread_ms", &part->start_spread_ms);
  f.Whole("samples", &part->samples, {0, 1'000'000'000, "samples"});
  f.Whole("batch", &part->batch, {0, kMaxBatch, "samples"});
  f.Whole("max_share", &part->max_share, {0, kMaxBatch, "samples"});
  Chance(f, "limited", &part->limited);
  Chance(f, "accumulates", &part->accumulates);
  f.Whole("lead", &part->lead, {0, 1000, "steps"});
  Chance(f, "pauses", &part->pauses);
  Ms(f, "pause_ms", &part->pause_ms);
  Chance(f, "averages", &part->averages);
}

void Describe(Fields& f, ComputePart* part) {
  f.Choice("model", &part->model, {"constant", "normal", "lognormal", "pareto"});
  f.Real("mean_ms", &part->mean_ms, {0.001, kDayMs});
  f.Real("spread", &part->spread, {0, 100});
  f.Real("tail", &part->tail, {1.01, 1000});
  f.Whole("slow_workers", &part->slow_workers, {0, kMany, "workers"});
  f.Real("slow_factor", &part->slow_factor, {0.001, 1e6});
  Ms(f, "slow_from_ms", &part->slow_from_ms);
  Ms(f, "slow_to_ms", &part->slow_to_ms);
  Chance(f, "fixed_part", &part->fixed_part);
  Chance(f, "hiccup_probability", &part->hiccup_probability);
  f.Real("hiccup_factor", &part->hiccup_factor, {0.001, 1e6});
  f.Choice("inject", &part->inject, {"none", "one", "shifted"});
  Ms(f, "inject_min_ms", &part->inject_min_ms);
  Ms(f, "inject_max_ms", &part->inject_max_ms);
  Ms(f, "poll_ms", &part->poll_ms);
  f.Whole("shared_workers", &part->shared_workers, {0, kMany, "workers"});
  f.Real("contention", &part->contention, {0, 1000});
  f.Whole("workers_per_device", &part->workers_per_device, {1, kMany, "workers"});
}

void Describe(Fields& f, NetworkPart* part) {
  Us(f, "delay_us", &part->delay_us);
  Us(f, "jitter_us", &part->jitter_us);
  Chance(f, "slow_probability", &part->slow_probability);
  Ms(f, "slow_ms", &part->slow_ms);
}

void Describe(Fields& f, ReducePart* part) {
  f.Real("bytes", &part->bytes, {0, 1e15});
  Us(f, "overhead_us", &part->overhead_us);
  Us(f, "latency_us", &part->latency_us);
  f.Real("bandwidth_mb_per_s", &part->bandwidth_mb_per_s, {0.001, 1e9});
  f.Real("host_bandwidth_mb_per_s", &part->host_bandwidth_mb_per_s, {0, 1e9});
  Us(f, "local_latency_us", &part->local_latency_us);
  f.Real("local_bandwidth_mb_per_s", &part->local_bandwidth_mb_per_s, {0.001, 1e9});
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

void Describe(Fields& f, FaultsPart* part) {
  Ms(f, "until_ms", &part->until_ms);
  Chance(f, "loss", &part->loss);
  Chance(f, "duplicate", &part->duplicate);
  f.Real("partitions_per_s", &part->partitions_per_s, {0, 1000});
  Ms(f, "partition_ms", &part->partition_ms);
  Chance(f, "reduce_fails", &part->reduce_fails);
  Chance(f, "fetch_fails", &part->fetch_fails);
  Chance(f, "worker_dies", &part->worker_dies);
  Chance(f, "worker_leaves", &part->worker_leaves);
  Chance(f, "worker_stops", &part->worker_stops);
  Chance(f, "notices", &part->notices);
  Ms(f, "return_ms", &part->return_ms);
  Chance(f, "late", &part->late);
  Ms(f, "late_ms", &part->late_ms);
  Chance(f, "append_fails", &part->append_fails);
  f.Real("controller_dies_per_s", &part->controller_dies_per_s, {0, 1000});
  Ms(f, "controller_away_ms", &part->controller_away_ms);
  Chance(f, "torn", &part->torn);
  Chance(f, "forget", &part->forget);
  f.Whole("forget_batches", &part->forget_batches, {1, kMany, "batches"});
  Chance(f, "wipe", &part->wipe);
  Chance(f, "old_copy", &part->old_copy);
  Ms(f, "old_copy_ms", &part->old_copy_ms);
  f.Real("controller_freezes_per_s", &part->controller_freezes_per_s, {0, 1000});
  f.Real("worker_freezes_per_s", &part->worker_freezes_per_s, {0, 1000});
  f.Real("freeze_leases", &part->freeze_leases, {1, 1000});
  f.Real("link_cuts_per_s", &part->link_cuts_per_s, {0, 1000});
  Ms(f, "link_cut_ms", &part->link_cut_ms);
  Chance(f, "one_way", &part->one_way);
  f.Real("slow_links_per_s", &part->slow_links_per_s, {0, 1000});
  Ms(f, "slow_link_ms", &part->slow_link_ms);
  f.Real("connection_breaks_per_s", &part->connection_breaks_per_s, {0, 1000});
  Ms(f, "connection_break_ms", &part->connection_break_ms);
  Chance(f, "ends_told", &part->ends_told);
  f.Real("clock_steps_per_s", &part->clock_steps_per_s, {0, 1000});
  Ms(f, "clock_step_ms", &part->clock_step_ms);
  Chance(f, "flips", &part->flips);
  f.Whole("state_not_told", &part->state_not_told, {0, 1, "0 or 1"});
  f.Real("launcher_restarts_per_s", &part->launcher_restarts_per_s, {0, 1000});
  Chance(f, "remains", &part->remains);
  f.Real("forgeries_per_s", &part->forgeries_per_s, {0, 1000});
  f.Real("evictions_per_s", &part->evictions_per_s, {0, 1000});
  f.Real("drains_per_s", &part->drains_per_s, {0, 1000});
  f.Real("operator_pauses_per_s", &part->operator_pauses_per_s, {0, 1000});
  f.Real("operator_pause_ms", &part->operator_pause_ms, {0, 1e6});
  f.Real("operator_ends_per_s", &part->operator_ends_per_s, {0, 1000});
  f.Real("switches_per_s", &part->switches_per_s, {0, 1000});
  Ms(f, "switch_at_ms", &part->switch_at_ms);
  f.Text("switch_to", &part->switch_to, EngineRule, "");
  f.Check(OptionsRule(part->switch_to));
}

void Describe(Fields& f, ControllerPart* part) {
  Us(f, "service_us", &part->service_us);
  f.Whole("snapshot_every", &part->snapshot_every, {1, 1'000'000'000'000, "records"});
  f.Whole("keep_records", &part->keep_records, {0, 1, "0 or 1"});
}

void Describe(Fields& f, TrainingPart* part) {
  f.Choice("objective", &part->objective, {"none", "quadratic", "logistic"});
  f.Whole("dimensions", &part->dimensions, {1, 100'000, "numbers"});
  f.Real("learning_rate", &part->learning_rate, {0, 1000});
  f.Real("noise", &part->noise, {0, 1e6});
  f.Real("skew", &part->skew, {0, 1.0000001});
  f.Whole("examples", &part->examples, {10, 10'000'000, "examples"});
  f.Whole("batch", &part->batch, {1, 1'000'000, "examples"});
  f.Real("target_loss", &part->target_loss, {0, 1e9});
  f.Real("evaluate_ms", &part->evaluate_ms, {0.01, kDayMs});
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

}  // namespace

Status ReadWorkload(std::string_view text, const std::string& file, Workload* workload) {
  Result<TomlTable> root = ParseToml(text, file);
  if (!root.ok()) return root.status();
  ConfigErrors errors(file);
  FieldReader reader(&*root, "", 0, &errors);
  DescribeAll(reader, workload);
  reader.RefuseOthers();
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

std::string WorkloadReference() {
  Workload workload;
  workload.job.name = "sim";
  std::string text;
  FieldLister lister("");
  DescribeAll(lister, &workload);
  for (const FieldLister::Line& line : lister.lines()) {
    text += line.key + " = " + line.value + "   " + line.allowed + "\n";
  }
  return text;
}

}  // namespace prd::sim
