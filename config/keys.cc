#include "config/keys.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "config/endpoint.h"
#include "engines/run_limits.h"

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

std::string IdentityNameRule(const std::string& text) {
  const auto allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("._@-").find(c) != std::string_view::npos;
  };
  if (!text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), allowed)) {
    return {};
  }
  return "a name: 1 to 64 letters, digits, and any of . _ @ -";
}

std::string KeyRule(const std::string& text) {
  constexpr std::string_view kOthers = ".-:+=^!/*?&<>()[]{}@%$#";
  const auto allowed = [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kOthers.find(c) != std::string_view::npos;
  };
  if (text.size() == 40 && std::all_of(text.begin(), text.end(), allowed)) return {};
  return "a CURVE public key: 40 characters of Z85, as prdctl keygen writes it";
}

std::string UserRule(const std::string& text) {
  if (!text.empty() && text.size() <= 64 && Printable(text) && text.find(':') == text.npos) {
    return {};
  }
  return "a user of this host, by name or number, or \"*\" for every user";
}

std::string MetricsRule(const std::string& text) {
  if (text.empty() || IsAddressAndPort(text)) return {};
  return "ADDRESS:PORT, or \"\" for off";
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

Status CheckAccess(const DaemonConfig& config, const std::vector<Identity>& identities) {
  const bool secret = !config.curve_secret_key_file.empty();
  if (!secret && !config.curve_authorized_keys_file.empty()) {
    return Wrong(
        "curve_secret_key_file", "\"\"",
        "a file when curve_authorized_keys_file is set: the daemon needs a key of its own");
  }
  for (const Identity& identity : identities) {
    if (!secret && !identity.keys.empty()) {
      return Wrong("curve_secret_key_file", "\"\"",
                   "a file when an identity has keys: the daemon needs a key of its own");
    }
  }
  if (secret && config.curve_authorized_keys_file.empty() && identities.empty()) {
    return Wrong("curve_authorized_keys_file", "\"\"",
                 "a file when curve_secret_key_file is set, or an [[identity]] with keys: nobody "
                 "could connect");
  }
  // Security that cannot be had later: an open port without keys lets anyone train along.
  if (!secret && !IsLoopback(config.listen)) {
    return Status(Code::kInvalidArgument,
                  "listen: found " + TomlText(config.listen) +
                      ", which other hosts can reach; allowed without CURVE keys is loopback or "
                      "ipc. Make a key pair with `prdctl keygen`, set curve_secret_key_file, and "
                      "give each [[identity]] its keys");
  }
  if (!secret && !IsIpc(config.admin)) {
    return Wrong(
        "admin", TomlText(config.admin),
        "ipc:///PATH without curve_secret_key_file: over tcp prdctl shows itself by a key");
  }
  const bool any_port = config.admin.ends_with(":*");
  if (!config.admin.empty() && !any_port && config.admin == config.listen) {
    return Wrong("admin", TomlText(config.admin), "another endpoint than that of `listen`");
  }
  for (const Identity& identity : identities) {
    if (secret || IsIpc(config.listen) || identity.role != Role::kWorker) continue;
    return Wrong("listen", TomlText(config.listen),
                 "ipc:///PATH, or CURVE keys, where an identity may train: over tcp without keys "
                 "nobody knows who connects");
  }
  return Status::Ok();
}

void DescribeIdentity(ListFields& fields, Identity* identity) {
  fields.Text(
      "name", &identity->name, IdentityNameRule,
      "What the log, the audit log and the history call it. A file with identities must not "
      "be open to others for writing.",
      Fields::Need::kRequired);
  fields.Texts("keys", &identity->keys, KeyRule,
               "Whoever connects with one of these keys is this identity. `prdctl keygen` makes a "
               "pair: NAME.pub holds the public key, which stands here; the worker has NAME.key "
               "(PRD_CURVE_SECRET_KEY_FILE). A key that is taken out lets nobody in any more, and "
               "what still comes over its connections is refused: systemctl reload prd.",
               Fields::Need::kOptional);
  fields.Texts("users", &identity->users, UserRule,
               "The same for processes of this host's users, where they connect over ipc and "
               "without keys. The user that prd runs as, and root, may do everything there unless "
               "an identity names them.",
               Fields::Need::kOptional);
  fields.Texts("jobs", &identity->jobs, PatternRule,
               "Its jobs, by patterns of their names. Of other jobs it can neither train in any "
               "nor see any.",
               Fields::Need::kRequired);
  fields.Choice("role", &identity->role, {"worker", "viewer", "operator"},
                "\"worker\": its processes may train in its jobs, and it may look at them "
                "(prdctl). \"viewer\": it may look at them. \"operator\": it may look at them, "
                "and at the daemon itself (prdctl status), and act on them (prdctl evict, drain, "
                "end, pause, resume, switch, prune).");
  constexpr std::int64_t kMost = 1'000'000'000;
  fields.Whole("max_jobs", &identity->max_jobs, {0, kMost, "jobs"},
               "Jobs that its workers may have running at a time. 0: no limit.");
  fields.Whole("max_workers", &identity->max_workers, {0, kMost, "workers"},
               "Its workers at a time, in all jobs together. 0: no limit. Those above wait until "
               "there is room.");
  fields.Whole("max_connections", &identity->max_connections, {0, kMost, "connections"},
               "Connections of its workers to the daemon, which count from their first message. A "
               "worker has one. Those above are told so and ended. 0: no limit.");
  fields.Whole(
      "max_messages_per_s", &identity->max_messages_per_s, {0, kMost, "messages/s"},
      "Messages of its workers, on average; a second's worth may come at once. Those above "
      "are dropped, and workers send them again. A worker sends about 2 per second and 2 "
      "per step. 0: no limit.");
  fields.Whole(
      "max_read_bytes_per_s", &identity->max_read_bytes_per_s, {0, kMost, "bytes/s"},
      "What the daemon answers its prdctl and pages, on average; a second's worth may come "
      "at once. Those above wait for their answers. 0: no limit.");
  fields.Whole("max_runs_per_minute", &identity->max_runs_per_minute, {0, kMost, "runs"},
               "Runs that its workers may begin, on average; a minute's worth may begin at once. "
               "Workers of those above wait until there is room. 0: no limit.");
  fields.Whole("max_runs", &identity->max_runs, {0, kMost, "runs"},
               "Ended runs that it began and that are kept, of all names; the oldest are removed. "
               "0: no limit of its own.");
  fields.Whole("max_history_bytes", &identity->max_history_bytes, {0, 1LL << 50, "bytes"},
               "Bytes of the history that are of runs which it began, counted as retain_bytes "
               "counts them; the oldest ended runs are removed. 0: no limit of its own.");
}

void DescribeDaemon(Fields& fields, DaemonConfig* config) {
  static constexpr std::array<std::string_view, 5> kLevels = {"trace", "debug", "info", "warn",
                                                              "error"};
  fields.Text("listen", &config->listen, ListenRule,
              "Where workers connect. \"\": an ipc socket that no other user can put up, where "
              "workers of this host look by themselves: workers in /run/prd under systemd and for "
              "root, for other users in $XDG_RUNTIME_DIR/prd (or /run/user/UID/prd, or "
              "/tmp/prd-UID). Over ipc the users of this host are told apart: the one that prd "
              "runs as and root get in, and the `users` of each [[identity]]. Other hosts need "
              "tcp, and are let in only with CURVE keys (below), because whoever can connect can "
              "train along: tcp://0.0.0.0:5775 without keys is an error. tcp on loopback without "
              "keys lets in every user of this host; prd warns of it. An IPv6 address stands in "
              "brackets; tcp://[::]:5775 takes connections over IPv6 and over IPv4.");
  fields.Text("admin", &config->admin, EndpointRule,
              "Where prdctl connects. Over ipc the user counts who asks: the one that prd runs as, "
              "root, and the `users` of each [[identity]]. Over tcp, from another host say, the "
              "key counts; that needs curve_secret_key_file. The socket file's folder must be "
              "there.");
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
      "Prometheus metrics at http://ADDRESS:PORT/metrics, probes at /healthz and /readyz. They are "
      "not secret, and not encrypted. An IPv6 address stands in brackets; [::]:9464 takes "
      "connections over IPv6 and over IPv4.");
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
  fields.Whole("retain_runs_in_all", &config->retain_runs_in_all, {1, 1'000'000'000, "runs"},
               "Ended runs kept of all names together. Above that, the oldest one goes of the "
               "identity that began most of them, so that nobody pushes out the runs of those who "
               "have fewer. prd keeps about 1 KiB of memory for each.");
  fields.Whole("retain_bytes", &config->retain_bytes, {1 << 20, 1LL << 50, "bytes"},
               "Bytes of all records and snapshots kept, as they are before compression, which "
               "makes a third to a half of them; RocksDB's own files add up to a tenth, or 30 MB. "
               "Above that, the oldest ended run goes of the identity that has most bytes, unless "
               "it has less than an even share; and of a run that goes on what is behind its last "
               "snapshot but one, if that is most of what the identity has. 8 GiB are some 14 "
               "million steps of workers.");
  fields.Whole("snapshot_every", &config->snapshot_every, {1, 1'000'000'000'000, "records"},
               "Records of a run between two snapshots of its state. A restart replays at most "
               "this many per run; 100000 take a fraction of a second. Fewer make restarts quicker "
               "and normal work a little slower.");
  fields.Whole("max_message_bytes", &config->max_message_bytes, {4096, 64 << 20, "bytes"},
               "A control message over this closes its connection: real ones are below 1 KiB, so "
               "this is a guard against what is not a worker at all.");
  fields.Whole("max_connections", &config->max_connections, {0, 1'000'000, "connections"},
               "Connections of workers at a time; a worker has one. Above that, the one that has "
               "been silent for longest since it was made is ended. Each needs a descriptor: a "
               "number for which the limit on them (LimitNOFILE in prd.service) is too low is an "
               "error. 0: as many as that limit allows, less 512 for prd itself.");
  fields.Whole("max_connections_per_host", &config->max_connections_per_host,
               {0, 1'000'000, "connections"},
               "The same for one host: an IPv4 address, an IPv6 network of 64 bits, or over ipc a "
               "user other than prd's own. 0: no limit. Raise it for more workers on one host, or "
               "behind one address.");
  fields.Text("curve_secret_key_file", &config->curve_secret_key_file, OptionalFileRule,
              "CURVE: the file of the daemon's own key pair, which its owner alone may read. "
              "`prdctl keygen` makes it. Left out: prd-secret-key among systemd's credentials "
              "(LoadCredential), if it is there. With it, on loopback too, only keys of an "
              "[[identity]] or of curve_authorized_keys_file can connect, and traffic between "
              "workers and daemon is encrypted.");
  fields.Text("curve_authorized_keys_file", &config->curve_authorized_keys_file, OptionalFileRule,
              "CURVE: a file of public keys, one per line, that are for all jobs: workers with one "
              "of them may train in any job, and look at any. An empty file lets nobody in. Where "
              "several parties use one daemon, give each an [[identity]] instead.");
  fields.Text("audit_log", &config->audit_log, OptionalFileRule,
              "A file for one line about each worker that is let in and each connection, message "
              "or request that is refused: who, from where, what, and why. The same refusal again, "
              "from the same address, is told every 10 s. \"\": refusals are in the log, and so is "
              "who is let in at the "
              "level debug. Opened anew at a reload.");
}

namespace {

void DescribeMeshSecurity(Fields& fields, MeshSecurity* security, bool* by_keys) {
  static constexpr std::array<std::string_view, 4> kNames = {"auto", "none", "aead", "curve"};
  static constexpr const char* kHelp =
      "How what workers send each other is protected. \"none\": it is sent as it is; where workers "
      "are on several hosts, their network must be trusted, and a bit that it changes is not "
      "noticed. \"aead\": each message is sealed (AES-128-GCM) where it leaves its host, and sent "
      "again if it comes damaged. \"curve\": connections are CURVE's, at an eighth of the speed. "
      "All let in only workers that the daemon has announced, by keys that each worker "
      "draws. \"auto\": as a run begins, \"aead\" if curve_secret_key_file is set, else \"none\".";
  const bool automatic = by_keys != nullptr && *by_keys;
  const auto names = std::span(kNames).subspan(by_keys == nullptr ? 1 : 0);
  const std::size_t first = by_keys == nullptr ? 0 : 1;  // of those that a run can have
  std::size_t chosen = automatic ? 0 : first + static_cast<std::size_t>(*security);
  fields.Name("mesh_security", &chosen, names, kHelp);
  if (by_keys != nullptr) *by_keys = chosen == 0;
  *security = static_cast<MeshSecurity>(chosen < first ? 0 : chosen - first);
}

Status CheckBatch(const JobSpec& spec) {
  if (spec.batch == 0) return Status::Ok();
  const int workers = std::max(spec.workers, 1);
  if (spec.batch < workers) {
    return Wrong("batch", std::to_string(spec.batch),
                 "0, or at least `workers` (" + std::to_string(workers) + ")");
  }
  const Status engine = Validate(spec.engine, spec.workers);
  if (!engine.ok() || MakeEngine(spec.engine)->batches() != Engine::Batches::kNone) {
    return Status::Ok();
  }
  std::string engines;
  for (const EngineOptions& of : AllEngines()) {
    if (MakeEngine(of)->batches() == Engine::Batches::kNone) continue;
    engines += (engines.empty() ? "" : ", ") + std::string(EngineName(of));
  }
  return Wrong("batch", std::to_string(spec.batch),
               "0 under engine " + std::string(EngineName(spec.engine)) +
                   ": only engines that weigh gradients by samples divide a batch (" + engines +
                   ", with weights = \"samples\")");
}

}  // namespace

void DescribeJob(Fields& fields, std::string* name, Field::TextRule rule, JobSpec* spec,
                 JobRule* of) {
  fields.Text("name", name, rule,
              "Which jobs these settings are for: the first [[job]] whose name matches counts.",
              Fields::Need::kRequired);
  std::vector<EngineOptions> engines = AllEngines();
  std::vector<std::string_view> names;
  for (const EngineOptions& engine : engines) names.push_back(EngineName(engine));
  auto chosen = static_cast<std::size_t>(
      std::find(names.begin(), names.end(), EngineName(spec->engine)) - names.begin());
  engines[chosen] = spec->engine;
  fields.Name("engine", &chosen, names,
              "Which consistency engine decides. The tables of other engines may stay in the file, "
              "and are checked: this line alone switches, and no training binary changes.",
              Fields::Need::kRequired);
  if (of != nullptr) {
    fields.Flag(
        "live", &of->live,
        "true: when this table has changed, `systemctl reload prd` switches jobs that run to "
        "what it says now, as `prdctl switch` does: their workers end their steps, take "
        "their average, and go on in the same processes. What cannot be switched is in the "
        "log, and goes on as it is. false: a change counts for runs that begin later.");
  }
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
  fields.CheckOver({"workers", "max_workers", "min_workers"}, CheckWorkers(*spec));
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
  fields.CheckOver({"lease_ms", "heartbeat_ms"}, CheckLease(*spec));
  fields.Whole("death_grace_ms", &spec->death_grace_ms, {0, kHourMs, "ms"},
               "A worker whose connection has ended, as it does when its process ends, has this "
               "long to come back. After that it is dead as one whose lease has run out. Worker "
               "libraries make a connection anew within about 150 ms. 0: leases alone decide. A "
               "process that stands still, or a host that is cut off, keeps its connection: there "
               "lease_ms decides.");
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
      "batch", &spec->batch, {0, kMaxBatch, "samples"},
      "The samples of one step of all workers together. Each worker is told its share "
      "(Session::share), a slow one a smaller share, so that all are ready at the same time; the "
      "shares sum to `batch` in every step, whoever comes and goes. 0: as the first worker "
      "says (PRD_BATCH), or none: each worker chooses its own batch. For all-reduce, backup and "
      "eager, with their weights = \"samples\".");
  fields.Whole("batch_multiple", &spec->batch_multiple, {1, 1'000'000, "samples"},
               "Shares are multiples of so many samples, but for one share that has the rest: for "
               "hardware that computes 8 samples as fast as 5.");
  fields.Real("rebalance_min", &spec->rebalance_min, {0, 10, {0, 0.5}},
              "Shares change where a step is then expected to be faster by more than this part. "
              "When workers come and go, they change in any case.");
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
      "is in the log, in prdctl, and in the metric prd_nonfinite_steps_total; tensors on a GPU "
      "are not looked at. \"drop\": its work is discarded, and it is told as under \"pass\"; "
      "needs gradients. \"stop\": the step fails, and the worker leaves the job.");
  DescribeMeshSecurity(fields, &spec->mesh_security,
                       of == nullptr ? nullptr : &of->mesh_security_by_keys);
  static constexpr std::array<std::string_view, 2> kNetworks = {"untrusted", "trusted"};
  std::size_t network = spec->device_network_trusted ? 1 : 0;
  fields.Name(
      "device_network", &network, kNetworks,
      "NCCL protects nothing of what it sends. \"untrusted\": it is not used under a mesh_security "
      "but \"none\"; groups of GPUs go through host memory. \"trusted\": it is used.");
  spec->device_network_trusted = network == 1;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const EngineAbout& about = engines[i].about();
    const std::string paper = about.paper.empty() ? "" : std::string(about.paper) + ". ";
    fields.Table(names[i], i == chosen, paper + std::string(about.help), [&](Fields& table) {
      engines[i].Describe(table);
      table.Check(Validate(engines[i], spec->workers));
    });
  }
  spec->engine = engines[chosen];
  fields.CheckOver({"batch", "workers", "engine"}, CheckBatch(*spec));
}

}  // namespace prd
