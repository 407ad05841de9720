#include "config/keys.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <variant>
#include <vector>

#include "config/endpoint.h"

namespace prd {
namespace {

using Names = std::span<const std::string_view>;

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

void Describe(Fields& fields, AllReduceOptions* options) {
  static constexpr std::array<std::string_view, 2> kWeights = {"uniform", "samples"};
  fields.Choice("weights", &options->weights, kWeights);
}

void Describe(Fields& fields, PReduceOptions* options) {
  static constexpr std::array<std::string_view, 2> kWeights = {"constant", "dynamic"};
  static constexpr std::array<std::string_view, 3> kMissing = {"initial", "nearest", "renormalize"};
  fields.Whole("group_size", &options->group_size, 2, 100'000, "workers");
  fields.Choice("weights", &options->weights, kWeights);
  fields.Real("alpha", &options->alpha, 0, 1);
  fields.Choice("missing", &options->missing, kMissing);
  fields.Whole("history_window", &options->history_window, 0, 10'000'000, "groups");
  fields.Whole("max_wait_ms", &options->max_wait_ms, 0, 24 * kHourMs, "ms");
  fields.Flag("overlap", &options->overlap);
  fields.Whole("overlap_steps", &options->overlap_steps, 1, 1000, "steps");
}

void Describe(Fields& fields, EagerOptions* options) {
  static constexpr std::array<Fields::Named, 2> kQuorum = {
      {{"solo", EagerOptions::kSolo}, {"majority", EagerOptions::kMajority}}};
  static constexpr std::array<std::string_view, 2> kMissed = {"sum", "latest"};
  fields.NumberOrName("quorum", &options->quorum, 1, kMaxWorkers, "workers", kQuorum);
  fields.Whole("seed", &options->seed, 0, std::numeric_limits<std::int64_t>::max(), "");
  fields.Whole("max_stale_rounds", &options->max_stale_rounds, 0, 1'000'000'000, "rounds");
  fields.Whole("sync_every", &options->sync_every, 0, 1'000'000'000, "rounds");
  fields.Choice("missed", &options->missed, kMissed);
}

void Describe(Fields& fields, BackupOptions* options) {
  fields.Whole("backups", &options->backups, 0, 100'000, "workers");
}

void Describe(Fields& fields, EsyncOptions* options) {
  static constexpr std::array<std::string_view, 2> kModes = {"blocking", "delayed-ack"};
  fields.Choice("mode", &options->mode, kModes);
  fields.Whole("margin_ms", &options->margin_ms, 0, kHourMs, "ms");
  fields.Real("global_lr", &options->global_lr, 0, 10);
  fields.Whole("stall_factor", &options->stall_factor, 0, 1000, "iterations");
}

// A graph of one of these kinds, by their names, or a list of edges.
void DescribeGraph(Fields& fields, std::span<const Graph::Kind> kinds, Graph* graph) {
  std::vector<std::string> texts;
  for (const Graph::Kind kind : kinds) texts.push_back(ToText(Graph{.kind = kind, .edges = {}}));
  const std::vector<std::string_view> names(texts.begin(), texts.end());
  auto index =
      static_cast<std::size_t>(std::find(kinds.begin(), kinds.end(), graph->kind) - kinds.begin());
  fields.NameOrPairs("graph", &index, &graph->edges, names, 0, Graph::kHighestRank);
  graph->kind = index < kinds.size() ? kinds[index] : Graph::Kind::kEdges;
}

void Describe(Fields& fields, AdPsgdOptions* options) {
  static constexpr std::array<Graph::Kind, 2> kGraphs = {Graph::Kind::kRing,
                                                         Graph::Kind::kComplete};
  DescribeGraph(fields, kGraphs, &options->graph);
  fields.Whole("section_length", &options->section_length, 1, 100'000, "steps");
  fields.Flag("overlap", &options->overlap);
  fields.Whole("overlap_steps", &options->overlap_steps, 1, 1000, "steps");
  fields.Whole("seed", &options->seed, 0, std::numeric_limits<std::int64_t>::max(), "");
}

void Describe(Fields& fields, PragueOptions* options) {
  static constexpr std::array<std::string_view, 3> kGenerators = {"random", "static", "smart"};
  fields.Choice("generator", &options->generator, kGenerators);
  fields.Whole("group_size", &options->group_size, 2, 100'000, "workers");
  fields.Whole("section_length", &options->section_length, 1, 100'000, "steps");
  fields.Whole("slowdown_threshold", &options->slowdown_threshold, 1, 1'000'000'000, "groups");
  fields.Flag("inter_intra", &options->inter_intra);
  fields.Flag("request_ahead", &options->request_ahead);
  fields.Whole("workers_per_host", &options->workers_per_host, 0, kMaxWorkers, "workers");
  fields.Flag("overlap", &options->overlap);
  fields.Whole("overlap_steps", &options->overlap_steps, 1, 1000, "steps");
  fields.Whole("seed", &options->seed, 0, std::numeric_limits<std::int64_t>::max(), "");
}

void Describe(Fields& fields, HopOptions* options) {
  static constexpr std::array<Graph::Kind, 5> kGraphs = {
      Graph::Kind::kRing, Graph::Kind::kRingBased, Graph::Kind::kDoubleRing,
      Graph::Kind::kHierarchical, Graph::Kind::kComplete};
  static constexpr std::array<std::string_view, 2> kOrders = {"parallel", "serial"};
  DescribeGraph(fields, kGraphs, &options->graph);
  fields.Flag("directed", &options->directed);
  fields.Whole("workers_per_host", &options->workers_per_host, 0, kMaxWorkers, "workers");
  fields.Whole("max_iteration_gap", &options->max_iteration_gap, 0, 10'000, "iterations");
  fields.Whole("backups", &options->backups, 0, 100'000, "updates");
  fields.Whole("staleness", &options->staleness, 0, 1'000'000, "iterations");
  fields.Whole("max_jump", &options->max_jump, 0, 10'000, "iterations");
  fields.Whole("skip_behind", &options->skip_behind, 1, 10'000, "iterations");
  fields.Choice("order", &options->order, kOrders);
}

void Describe(Fields& fields, SspOptions* options) {
  static constexpr std::array<std::string_view, 2> kRates = {"constant", "staleness-aware"};
  fields.Whole("staleness", &options->staleness, -1, 1'000'000, "clocks");
  fields.Choice("learning_rate", &options->learning_rate, kRates);
  fields.Whole("replicas", &options->replicas, 0, SspOptions::kMostReplicas, "copies");
  fields.Whole("shards", &options->shards, 0, SspOptions::kMostShards, "shards");
}

// Security that cannot be had later: an open port without keys lets anyone train along.
Status CheckCurve(const DaemonConfig& config) {
  const bool secret = !config.curve_secret_key_file.empty();
  const bool clients = !config.curve_authorized_keys_file.empty();
  if (secret != clients) {
    return Status(Code::kInvalidArgument,
                  std::string(secret ? "curve_authorized_keys_file" : "curve_secret_key_file") +
                      ": found \"\", allowed is a file when " +
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
  return Status(Code::kInvalidArgument, "heartbeat_ms: found " + std::to_string(spec.heartbeat_ms) +
                                            ", allowed is less than half of lease_ms (" +
                                            std::to_string(spec.lease_ms) +
                                            "), so that one lost heartbeat is not a death");
}

Status CheckWorkers(const JobSpec& spec) {
  if (spec.workers <= spec.max_workers) return Status::Ok();
  return Status(Code::kInvalidArgument, "workers: found " + std::to_string(spec.workers) +
                                            ", allowed is up to max_workers (" +
                                            std::to_string(spec.max_workers) + ")");
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
  fields.Text("listen", &config->listen, ListenRule);
  fields.Text("admin", &config->admin, AdminRule);
  fields.Text("state_dir", &config->state_dir, DirectoryRule);
  auto level = static_cast<std::size_t>(
      std::find(kLevels.begin(), kLevels.end(), config->log_level) - kLevels.begin());
  fields.Name("log_level", &level, kLevels);
  config->log_level = kLevels[level];
  fields.Text("metrics", &config->metrics, MetricsRule);
  fields.Flag("sync", &config->sync);
  fields.Whole("retain_runs", &config->retain_runs, 1, 1'000'000'000, "runs");
  fields.Whole("snapshot_every", &config->snapshot_every, 1, 1'000'000'000'000, "records");
  fields.Whole("max_message_bytes", &config->max_message_bytes, 4096, 64 << 20, "bytes");
  fields.Text("curve_secret_key_file", &config->curve_secret_key_file, OptionalFileRule);
  fields.Text("curve_authorized_keys_file", &config->curve_authorized_keys_file, OptionalFileRule);
  fields.Check(CheckCurve(*config));
}

void DescribeJob(Fields& fields, std::string* name, Fields::TextRule rule, JobSpec* spec) {
  fields.Text("name", name, rule, Fields::Need::kRequired);
  std::vector<EngineOptions> engines = AllEngines();
  std::vector<std::string_view> names;
  for (const EngineOptions& engine : engines) names.push_back(EngineName(engine));
  std::size_t chosen = spec->engine.index();
  for (EngineOptions& engine : engines) {
    if (engine.index() == chosen) engine = spec->engine;
  }
  fields.Name("engine", &chosen, Names(names), Fields::Need::kRequired);
  fields.Whole("workers", &spec->workers, 0, kMaxWorkers, "workers");
  fields.Whole("max_workers", &spec->max_workers, 1, kMaxWorkers, "workers");
  fields.Check(CheckWorkers(*spec));
  fields.Whole("lease_ms", &spec->lease_ms, 20, kHourMs, "ms");
  fields.Whole("heartbeat_ms", &spec->heartbeat_ms, 1, kHourMs, "ms");
  fields.Check(CheckLease(*spec));
  for (std::size_t i = 0; i < engines.size(); ++i) {
    fields.Table(names[i], i == chosen, [&](Fields& table) {
      std::visit([&](auto& options) { Describe(table, &options); }, engines[i]);
      table.Check(Validate(engines[i], spec->workers));
    });
  }
  spec->engine = engines[chosen];
}

}  // namespace prd
