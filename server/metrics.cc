#include "server/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "common/io/clock.h"
#include "common/io/http_server.h"

namespace prd {
namespace {

using prometheus::MetricType;

struct Meaning {
  MetricType type;
  const char* help;
};

// All but the counters that the daemon names itself (HelpOf).
const std::map<std::string, Meaning>& Meanings() {
  static const std::map<std::string, Meaning> meanings = {
      {"build_info", {MetricType::Gauge, "1; the labels say what this is"}},
      {"start_time_seconds", {MetricType::Gauge, "When the daemon started, as Unix time"}},
      {"jobs", {MetricType::Gauge, "Runs that go on"}},
      {"workers", {MetricType::Gauge, "Workers that are there, of all jobs"}},
      {"jobs_waiting_for_start",
       {MetricType::Gauge, "Runs whose first workers wait for the others"}},
      {"history_bytes", {MetricType::Gauge, "Files in state_dir"}},
      {"history_free_bytes", {MetricType::Gauge, "Free space on the disk that state_dir is on"}},
      {"history_runs", {MetricType::Gauge, "Ended runs in the history"}},
      {"history_identity_bytes",
       {MetricType::Gauge, "Bytes of the history, before compression, by who began the run"}},
      {"history_stalled",
       {MetricType::Gauge, "1: the history cannot be written, and nothing is decided"}},
      {"flush_seconds",
       {MetricType::Histogram, "Recording and sending what one turn of the controller decided"}},
      {"groups_formed_total", {MetricType::Counter, "Groups announced, by engine"}},
      {"job_waiting_seconds",
       {MetricType::Histogram,
        "Waits of a worker: for a group, or for what it needs of its neighbours or of the store"}},
      {"job_reducing_seconds",
       {MetricType::Histogram, "Reductions of a worker, from the announcement to its result"}},
      {"job_group_members", {MetricType::Histogram, "Members of the groups announced"}},
      {"job_groups_failed_total", {MetricType::Counter, "Groups that failed"}},
      {"job_steps_total", {MetricType::Counter, "Steps trained, by all workers"}},
      {"job_last_progress_timestamp_seconds",
       {MetricType::Gauge, "When a worker last completed a step, as Unix time"}},
      {"job_progress_interval_seconds",
       {MetricType::Gauge,
        "The longest time without a step of late; half of what it was counts after 10 minutes"}},
      {"job_start_last_arrival_timestamp_seconds",
       {MetricType::Gauge,
        "Of a job whose workers wait for a common start: when there came to be as many of them as "
        "ever, as Unix time"}},
      {"job_oldest_open_group_timestamp_seconds",
       {MetricType::Gauge,
        "When the oldest group was announced that has not ended; none where there is none"}},
      {"job_straggler_share",
       {MetricType::Gauge,
        "Share of the job's waiting in the last half to one minute that is owed to a rank; the 8 "
        "largest, and the others together"}},
      {"job_updates_dropped_total",
       {MetricType::Counter, "Updates of workers that came too late and were not used"}},
      {"job_updates_stale_total",
       {MetricType::Counter, "Updates of neighbours that came and were not used"}},
      {"job_workers", {MetricType::Gauge, "Workers that are there, by what they do"}},
      {"job_worker_memory_bytes",
       {MetricType::Gauge,
        "Bytes that a worker's library holds beside its program's tensors; of a job's workers, the "
        "most"}},
      {"job_workers_started", {MetricType::Gauge, "Workers that the run began with"}},
      {"job_workers_joined_total", {MetricType::Counter, "Times that a worker began to train"}},
      {"job_workers_lost_total", {MetricType::Counter, "Workers lost, failed or evicted"}},
      {"batch_samples",
       {MetricType::Gauge, "Samples of a step of all workers of a job whose batch is divided"}},
      {"share_samples",
       {MetricType::Gauge, "A worker's share of its job's batch, of the ranks 0 to 63"}},
      {"share_changes_total",
       {MetricType::Counter, "Times that the shares of a job's batch were decided anew"}},
      {"links_broken",
       {MetricType::Gauge, "Pairs of a job's workers that do not reach each other"}},
      {"replicas_differ",
       {MetricType::Gauge,
        "Workers of a job whose parameters are not those of most, where all are to be equal"}},
      {"nonfinite_steps_total",
       {MetricType::Counter, "Steps of a job with values that are not finite"}}};
  return meanings;
}

// What the names of the daemon's counters do not tell.
const char* HelpOf(const std::string& counter) {
  static const std::map<std::string, const char*> help = {
      {"rounds_formed", "Rounds of gradients in which all workers of a job take part"},
      {"round_contributors", "Workers that gave gradients to a round, summed over the rounds"},
      {"updates_dropped", "Updates of workers that came too late and were not used"},
      {"iterations_granted", "Answers that let a worker go on to its next iteration (hop, ssp)"},
      {"iterations_skipped", "Iterations that workers skipped (hop)"},
      {"graph_changes", "Times that a worker was told its neighbours (hop)"},
      {"placements_opened", "Placements of shards that were complete and opened (ssp)"},
      {"queries_ready", "State queries of workers answered: come to the round"},
      {"queries_not_ready", "State queries of workers answered: train on"},
      {"results_fetched", "Orders to take a failed round's result from a peer that has it"},
      {"histories_lost",
       "Runs that ended because a worker knew of messages that their history had lost"},
      {"history_runs_removed", "Ended runs that were over a bound of the history"},
      {"connections_denied",
       "Connections that were refused: an unknown key or user, another server key, or no keys"},
      {"connections_refused",
       "Connections that were ended: too many, in all or of one host, or of a user of this host "
       "whom no identity names"},
      {"connections_cut", "Connections that were ended: too many bytes without a whole message"},
      {"connections_rushed", "Times that connections came too fast, and hosts had to wait"},
      {"messages_forbidden", "Messages of workers that may not, or are over a quota"},
      {"messages_over_quota", "Messages of workers whose identity is over a quota"},
      {"messages_foreign", "Messages in the name of another worker"},
      {"gradients_lost", "Gradients in no round yet when their worker went"}};
  const auto found = help.find(counter);
  return found == help.end() ? "Since the daemon started" : found->second;
}

prometheus::ClientMetric Labelled(const MetricsPage::Labels& labels) {
  prometheus::ClientMetric metric;
  for (const auto& [name, value] : labels) metric.label.push_back({name, value});
  return metric;
}

}  // namespace

void Distribution::Observe(double value) {
  const auto at = std::lower_bound(bounds_->begin(), bounds_->end(), value);
  ++counts_[static_cast<std::size_t>(at - bounds_->begin())];
  sum_ += value;
}

// ---- the page ----

struct MetricsPage::Families {
  std::map<std::string, prometheus::MetricFamily> by_name;
};

std::string MetricsPage::Text() const {
  std::vector<prometheus::MetricFamily> families;
  for (const auto& [name, family] : families_->by_name) families.push_back(family);
  return prometheus::TextSerializer().Serialize(families);
}

MetricsPage::MetricsPage() : families_(std::make_unique<Families>()) {
  for (const auto& [name, meaning] : Meanings()) {
    families_->by_name[name] = {"prd_" + name, meaning.help, meaning.type, {}};
  }
}
MetricsPage::~MetricsPage() = default;
MetricsPage::MetricsPage(MetricsPage&&) noexcept = default;
MetricsPage& MetricsPage::operator=(MetricsPage&&) noexcept = default;

void MetricsPage::Add(const std::string& name, const Labels& labels, double value) {
  prometheus::MetricFamily& family = families_->by_name.at(name);
  prometheus::ClientMetric metric = Labelled(labels);
  (family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  family.metric.push_back(std::move(metric));
}

void MetricsPage::Add(const std::string& name, const Labels& labels,
                      const Distribution& distribution) {
  prometheus::ClientMetric metric = Labelled(labels);
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < distribution.bounds().size(); ++i) {
    below += distribution.counts()[i];
    metric.histogram.bucket.push_back({below, distribution.bounds()[i]});
  }
  metric.histogram.sample_count = below + distribution.counts().back();
  metric.histogram.sample_sum = distribution.sum();
  families_->by_name.at(name).metric.push_back(std::move(metric));
}

void MetricsPage::AddCounter(const std::string& name, std::uint64_t value) {
  prometheus::MetricFamily& family = families_->by_name[name + "_total"];
  family = {"prd_" + name + "_total", HelpOf(name), MetricType::Counter, {}};
  family.metric.emplace_back().counter.value = static_cast<double>(value);
}

// ---- serving it ----

// Probes come often from many places, and a page may be large: each connection holds the same text.
struct Metrics::Impl {
  explicit Impl(DurationNs dead) : dead_after(dead) {}

  // In the server's thread.
  HttpAnswer Answer(const HttpRequest& request) {
    if (request.path == "/metrics") return Page();
    if (request.path == "/healthz") return Probe(Dead());
    if (request.path == "/readyz") return Probe(Unready());
    return {.code = 404, .body = std::string("/metrics, /healthz and /readyz are here\n")};
  }

  std::mutex mutex;
  std::shared_ptr<const MetricsPage> page = std::make_shared<MetricsPage>();
  std::string unready = "starting: the history is read";
  std::atomic<std::int64_t> alive_ns{MonotonicNs()};
  const DurationNs dead_after;

 private:
  HttpAnswer Page() {
    std::shared_ptr<const MetricsPage> newest;
    {
      const std::lock_guard lock(mutex);
      newest = page;
    }
    if (newest != written_) text_ = std::make_shared<const std::string>(newest->Text());
    written_ = std::move(newest);
    return {.type = kType, .body = text_};
  }
  std::string Dead() const {
    const DurationNs silent = MonotonicNs() - alive_ns;
    if (silent <= dead_after) return "";
    return "the daemon's thread has not turned for " + std::to_string(silent / kSecond) + " s";
  }
  std::string Unready() {
    const std::lock_guard lock(mutex);
    return unready;
  }
  static HttpAnswer Probe(const std::string& wrong) {
    if (wrong.empty()) return {.type = kType, .body = std::string("ok\n")};
    return {.code = 503, .type = kType, .body = wrong + "\n"};
  }

  static constexpr const char* kType = "text/plain; version=0.0.4; charset=utf-8";
  // On the server's thread: a page is written once, when it is first asked for.
  std::shared_ptr<const MetricsPage> written_;
  std::shared_ptr<const std::string> text_;

 public:
  std::unique_ptr<HttpServer> server;  // the last one: its thread ends first
};

Metrics::Metrics(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Metrics::~Metrics() = default;

Result<std::unique_ptr<Metrics>> Metrics::Serve(const std::string& address, DurationNs dead_after) {
  auto impl = std::make_unique<Impl>(dead_after);
  const auto start = [&impl, &address] {
    Result<std::unique_ptr<HttpServer>> server = HttpServer::Listen(address);
    if (!server.ok()) return server.status();
    impl->server = std::move(*server);
    return impl->server->Start(
        [raw = impl.get()](const HttpRequest& request) { return raw->Answer(request); },
        {.loop = {.headers = {{"Cache-Control", "no-store"}}}});
  };
  const Status started = start();
  if (started.ok()) return std::unique_ptr<Metrics>(new Metrics(std::move(impl)));
  return Status(started.code(), "metrics = \"" + address + "\": " + started.message());
}

void Metrics::Publish(MetricsPage page) {
  auto shown = std::make_shared<const MetricsPage>(std::move(page));
  const std::lock_guard lock(impl_->mutex);
  impl_->page.swap(shown);
}

void Metrics::SetUnready(const std::string& why) {
  const std::lock_guard lock(impl_->mutex);
  impl_->unready = why;
}

void Metrics::Alive() { impl_->alive_ns = MonotonicNs(); }

}  // namespace prd
