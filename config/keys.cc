#include "config/keys.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "config/endpoint.h"
#include "engines/job_limits.h"

namespace prd {
namespace {

constexpr std::int64_t kHourMs = 3'600'000;
constexpr std::int64_t kMaxWorkers = 1'000'000;

bool Printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

std::string DirectoryRule(const std::string& text) {
  if (!text.empty() && text.find('\x7f') == std::string::npos) return {};
  return "the path of a directory";
}

std::string OptionalFileRule(const std::string& text) {
  if (text.find('\x7f') == std::string::npos) return {};
  return "the path of a file, or \"\" for none";
}

std::string MetricsRule(const std::string& text) {
  if (text.empty() || IsAddressAndPort(text)) return {};
  return "ADDRESS:PORT, or \"\" for off";
}

// Security that cannot be had later: an open port without keys lets anyone train along.
Status CheckCurve(const DaemonConfig& config) {
  const bool secret = !config.curve_secret_key_file.empty();
  const bool clients = !config.curve_authorized_keys_file.empty();
  if (secret != clients) {
    return Wrong(secret ? "curve_authorized_keys_file" : "curve_secret_key_file", "\"\"",
                 std::string("a file when ") +
                     (secret ? "curve_secret_key_file" : "curve_authorized_keys_file") +
                     " is set: the two go together");
  }
  if (!secret && !IsLoopback(config.listen)) {
    return Status(Code::kInvalidArgument,
                  "listen: found " + TomlText(config.listen) +
                      ", which other hosts can reach; allowed without CURVE keys is loopback or "
                      "ipc. Make a key pair with `prdctl keygen`, then set curve_secret_key_file "
                      "and curve_authorized_keys_file");
  }
  return Status::Ok();
}

Status CheckLease(const JobSpec& spec) {
  if (2 * std::uint64_t{spec.heartbeat_ms} < spec.lease_ms) return Status::Ok();
  return Wrong("heartbeat_ms", std::to_string(spec.heartbeat_ms),
               "less than half of lease_ms (" + std::to_string(spec.lease_ms) +
                   "), so that one lost heartbeat is not a death");
}

Status CheckWorkers(const JobSpec& spec) {
  if (spec.workers > spec.max_workers) {
    return Wrong("workers", std::to_string(spec.workers),
                 "up to max_workers (" + std::to_string(spec.max_workers) + ")");
  }
  const int most = spec.workers > 0 ? spec.workers : spec.max_workers;
  if (spec.min_workers <= most) return Status::Ok();
  return Wrong("min_workers", std::to_string(spec.min_workers),
               "up to " + std::string(spec.workers > 0 ? "workers" : "max_workers") + " (" +
                   std::to_string(most) + ")");
}

}  // namespace

std::string PatternRule(const std::string& text) {
  if (!text.empty() && text.size() <= 200 && Printable(text)) return {};
  return "a pattern of job names: 1 to 200 printable ASCII characters, * for any run of them, ? "
         "for "
         "any one";
}

std::string JobNameRule(const std::string& text) {
  if (!text.empty() && text.size() <= 200 && Printable(text)) return {};
  return "a job name: 1 to 200 printable ASCII characters";
}

void DescribeDaemon(Fields& fields, DaemonConfig* config) {
  static constexpr std::array<std::string_view, 5> kLevels = {"trace", "debug", "info", "warn",
                                                              "error"};
  fields.Text("listen", &config->listen, ListenRule,
              "Where workers connect; ipc for workers on this host only. Other hosts are let in "
              "only with CURVE keys (below), because whoever can connect can train along: "
              "tcp://0.0.0.0:5775 without keys is an error. An IPv6 address stands in brackets; "
              "tcp://[::]:5775 takes connections over IPv6 and over IPv4.");
  fields.Text("admin", &config->admin, AdminRule,
              "Where prdctl connects. The socket file's folder must be there.");
  fields.Text("state_dir", &config->state_dir, DirectoryRule,
              "Where every decision is recorded (RocksDB). One daemon at a time uses it. A daemon "
              "that was killed goes on from here with the same state. About 600 bytes per step of "
              "a worker, before compression.");
  auto level = static_cast<std::size_t>(
      std::find(kLevels.begin(), kLevels.end(), config->log_level) - kLevels.begin());
  fields.Name("log_level", &level, kLevels,
              "The log goes to stderr, so under systemd to the journal.");
  config->log_level = kLevels[level];
  fields.Text(
      "metrics", &config->metrics, MetricsRule,
      "Prometheus metrics at http://ADDRESS:PORT/metrics. They are not secret, and not "
      "encrypted. An IPv6 address needs a civetweb library with IPv6; Debian 12's has none.");
  fields.Flag("sync", &config->sync,
              "false: what is decided is in the operating system's hands before it is announced, "
              "and survives a kill of prd. true: it is on the disk, and survives a power cut; on "
              "most disks that costs milliseconds per batch, which every worker waits for. After a "
              "power cut without it, a run whose last records are gone ends; its workers start a "
              "new one from the replicas that they have.");
  fields.Whole(
      "retain_runs", &config->retain_runs, {1, 1'000'000'000, "runs"},
      "Ended runs kept per job name; older ones are removed from state_dir. After its next "
      "start prd does not know them any more: a worker of such a run that wakes only then "
      "is not refused, and may begin a new run of that name.");
  fields.Whole("snapshot_every", &config->snapshot_every, {1, 1'000'000'000'000, "records"},
               "Records of a run between two snapshots of its state. A restart replays at most "
               "this many per run; 100000 take a fraction of a second. Fewer make restarts quicker "
               "and normal work a little slower.");
  fields.Whole("max_message_bytes", &config->max_message_bytes, {4096, 64 << 20, "bytes"},
               "A control message over this closes its connection: real ones are below 1 KiB, so "
               "this is a guard against what is not a worker at all.");
  fields.Text("curve_secret_key_file", &config->curve_secret_key_file, OptionalFileRule,
              "CURVE: the file of the daemon's own key pair. Given together with "
              "curve_authorized_keys_file, or neither. `prdctl keygen` makes keys. With them, on "
              "loopback too, only listed workers can connect, and traffic between workers and "
              "daemon is encrypted.");
  fields.Text("curve_authorized_keys_file", &config->curve_authorized_keys_file, OptionalFileRule,
              "CURVE: a file of the workers' public keys, one per line.");
  fields.Check(CheckCurve(*config));
}

void DescribeJob(Fields& fields, std::string* name, Field::TextRule rule, JobSpec* spec) {
  fields.Text("name", name, rule,
              "Which jobs these settings are for: the first [[job]] whose name matches counts.",
              Fields::Need::kRequired);
  std::vector<EngineOptions> engines = AllEngines();
  std::vector<std::string_view> names;
  for (const EngineOptions& engine : engines) names.push_back(EngineName(engine));
  std::size_t chosen = spec->engine.index();
  engines[chosen] = spec->engine;
  fields.Name("engine", &chosen, names,
              "Which consistency engine decides. The tables of other engines may stay in the file, "
              "and are checked: this line alone switches, and no training binary changes.",
              Fields::Need::kRequired);
  fields.Whole("workers", &spec->workers, {0, kMaxWorkers, "workers"},
               "Workers that the common start waits for. 0: as many as the first worker's launcher "
               "says it started (WORLD_SIZE of torchrun, SLURM_NTASKS, ...), or 1. Later ones join "
               "the running job.");
  fields.Whole("max_workers", &spec->max_workers, {1, kMaxWorkers, "workers"},
               "Ranks are below this, whatever a message says: a bound on memory, to be raised for "
               "larger jobs.");
  fields.Whole("min_workers", &spec->min_workers, {1, kMaxWorkers, "workers"},
               "Workers that a start needs at least when they come back from a run that the daemon "
               "has lost (its state directory was emptied, or an older copy was put back). Such a "
               "start waits start_grace_ms for the others. A job's first start waits for all "
               "`workers`.");
  fields.Check(CheckWorkers(*spec));
  fields.Whole("start_grace_ms", &spec->start_grace_ms, {0, kHourMs, "ms"},
               "How long that start waits for workers that have not come back. They join the "
               "running job later.");
  fields.Whole("lease_ms", &spec->lease_ms, {20, kHourMs, "ms"},
               "A worker that was silent for this long is dead: its groups are called off and the "
               "others go on without it. Shorter finds deaths sooner; longer forgives a host that "
               "stalls.");
  fields.Whole("heartbeat_ms", &spec->heartbeat_ms, {1, kHourMs, "ms"},
               "Time between heartbeats, less than half of lease_ms. They come from a thread of "
               "the worker library, so a long step is not a death.");
  fields.Check(CheckLease(*spec));
  fields.Whole(
      "goal_steps", &spec->goal.steps, {0, kMaxTrained, "steps"},
      "The job is done once its workers have made so many steps, all together. Each worker "
      "then learns from its next step that training is done. 0: no such goal. With neither "
      "goal_steps nor goal_samples, the goal of the first worker that tells one counts "
      "(PRD_GOAL_STEPS, PRD_GOAL_SAMPLES).");
  fields.Whole(
      "goal_samples", &spec->goal.samples, {0, kMaxTrained, "samples"},
      "The same, in samples, as workers tell them at their steps. With both goals, the one "
      "that is reached first counts.");
  fields.Whole(
      "check_replicas_ms", &spec->check_replicas_ms, {0, kHourMs, "ms"},
      "Where all replicas are to be equal (all-reduce, backup, esync; eager with sync_every), "
      "workers tell a hash of their parameters after a group, once in this time. Replicas "
      "that differ are in the log, in prdctl, and in the metric prd_replicas_differ. 0: "
      "never.");
  fields.Choice(
      "on_divergence", &spec->on_divergence, {"warn", "repair"},
      "\"repair\": a worker whose parameters are not those of most others copies the model "
      "of one of these, and loses the step that it is in. \"warn\": it trains on as it is.");
  fields.Choice(
      "on_nonfinite", &spec->on_nonfinite, {"pass", "drop", "stop"},
      "What becomes of a step whose gradients, or parameters where the engine takes no "
      "gradients, are not all finite (NaN, infinity). \"pass\": it counts as any other, and "
      "is in the log, in prdctl, and in the metric prd_nonfinite_steps_total. \"drop\": the "
      "same, but its work is discarded; needs gradients. \"stop\": the step fails, and the "
      "worker leaves the job.");
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const EngineAbout& about = About(engines[i]);
    const std::string paper = about.paper.empty() ? "" : std::string(about.paper) + ". ";
    fields.Table(names[i], i == chosen, paper + std::string(about.help), [&](Fields& table) {
      Describe(&engines[i], table);
      table.Check(Validate(engines[i], spec->workers));
    });
  }
  spec->engine = engines[chosen];
}

}  // namespace prd
