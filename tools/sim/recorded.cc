#include "tools/sim/recorded.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "config/config.h"

namespace prd::sim {
namespace {

constexpr std::size_t kMaxLine = 16 << 20;
constexpr std::int64_t kMaxRank = 1'000'000;
constexpr double kLatencyUs = 50;  // of a hop, where reductions are long enough to hide it

std::int64_t Median(std::vector<std::int64_t>* values) {
  if (values->empty()) return 0;
  const auto middle = values->begin() + static_cast<std::ptrdiff_t>(values->size() / 2);
  std::nth_element(values->begin(), middle, values->end());
  return *middle;
}

class Reader {
 public:
  // False: not what export writes.
  bool Add(const nlohmann::json& json);
  RecordedRun Finish();
  Status error = Status::Ok();

 private:
  struct Worker {
    std::optional<std::int64_t> reported;  // when, if nothing came after it
  };
  struct Group {
    std::size_t members = 0;
    std::int64_t least_wait = std::numeric_limits<std::int64_t>::max();
  };

  bool Whole(const nlohmann::json& json, const char* key, std::int64_t* value) const {
    const auto it = json.find(key);
    if (it == json.end() || !it->is_number_integer()) return false;
    *value = it->get<std::int64_t>();
    return true;
  }
  bool OnStarted(const nlohmann::json& json);
  void OnActed(const std::string& verb, std::int64_t now);
  void ScaleSteps();
  // As if the job had never been paused.
  std::int64_t Trained(std::int64_t now) const { return paused_at_.value_or(now) - paused_; }
  bool OnReady(const nlohmann::json& json, std::int64_t now, std::int64_t rank);
  bool OnFinished(const nlohmann::json& json, std::int64_t now, std::int64_t rank);
  bool OnFormed(const nlohmann::json& json);

  RecordedRun run_;
  std::vector<std::vector<std::int64_t>> samples_;  // of run_.steps
  std::optional<std::int64_t> paused_at_;
  std::int64_t paused_ = 0;  // ns, in pauses that are over
  std::set<std::string> hosts_;
  std::map<std::int64_t, Worker> workers_;
  std::map<std::int64_t, Group> groups_;  // running, of training
  std::vector<std::int64_t> overheads_, reduces_, round_trips_;
  double members_ = 0, formed_ = 0, bytes_ = 0, reports_ = 0;
  std::optional<std::int64_t> from_, to_;
  std::int64_t last_ = 0;
  std::uint64_t updates_ = 0;
  std::int64_t first_update_ = 0, last_update_ = 0;
};

bool Reader::Add(const nlohmann::json& json) {
  std::int64_t run = 0;
  std::int64_t now = 0;
  const auto type = json.find("type");
  if (!Whole(json, "run", &run) || !Whole(json, "now_ns", &now)) return false;
  if (type == json.end() || !type->is_string()) return false;
  const std::string& what = type->get_ref<const std::string&>();
  if (run_.id < 0) run_.id = run;
  if (run != run_.id) {
    std::string& engine = run_.left_out[run];
    if (what == "run_started") engine = json.value("engine", "");
    return true;
  }
  last_ = Trained(now);
  std::int64_t rank = 0;
  if (what == "run_started") return OnStarted(json);
  if (what == "hello") hosts_.insert(json.value("host", ""));
  if (what == "group_formed") return OnFormed(json);
  if (what == "operator_acted") OnActed(json.value("verb", ""), now);
  if (what == "shares_set") run_.batch = std::max(run_.batch, json.value("batch", run_.batch));
  if (what == "worker_joined" && !from_) from_ = last_;
  if (what == "worker_left" && json.value("why", "") == "finished" && !to_) to_ = last_;
  if (what == "group_ended") {
    std::int64_t group = 0;
    if (!Whole(json, "group", &group)) return false;
    const auto it = groups_.find(group);
    if (it == groups_.end()) return true;
    if (json.value("ok", false) && !to_) {
      if (updates_++ == 0) first_update_ = last_;
      last_update_ = last_;
    }
    round_trips_.push_back(it->second.least_wait);
    groups_.erase(it);
    return true;
  }
  if (what != "ready" && what != "finished") return true;
  if (!Whole(json, "rank", &rank) || rank < 0 || rank > kMaxRank) return false;
  return what == "ready" ? OnReady(json, now, rank) : OnFinished(json, now, rank);
}

bool Reader::OnStarted(const nlohmann::json& json) {
  run_.job = json.value("job", "");
  run_.engine = json.value("engine", "");
  Result<JobSpec> spec = JobSpecFromToml(json.value("spec", ""));
  if (!spec.ok()) {
    error = spec.status();
    return false;
  }
  run_.spec = std::move(spec).value();
  return true;
}

void Reader::OnActed(const std::string& verb, std::int64_t now) {
  if (verb == "pause" && !paused_at_) paused_at_ = now;
  if (verb != "resume" || !paused_at_) return;
  paused_ += now - *paused_at_;
  paused_at_.reset();
}

bool Reader::OnFormed(const nlohmann::json& json) {
  if (json.value("kind", "") != "train") return true;
  std::int64_t group = 0;
  const auto members = json.find("members");
  if (!Whole(json, "group", &group) || members == json.end() || !members->is_array()) return false;
  groups_[group].members = members->size();
  members_ += static_cast<double>(members->size());
  ++formed_;
  return true;
}

bool Reader::OnReady(const nlohmann::json& json, std::int64_t now, std::int64_t rank) {
  std::int64_t step = 0;
  if (!Whole(json, "step_ns", &step) || step < 0) return false;
  const auto index = static_cast<std::size_t>(rank);
  if (index >= run_.steps.size()) {
    run_.steps.resize(index + 1);
    samples_.resize(index + 1);
  }
  if (run_.steps[index].size() < kMaxSteps) {
    run_.steps[index].push_back(step);
    samples_[index].push_back(std::max<std::int64_t>(json.value("samples", std::int64_t{0}), 0));
  }
  Worker& worker = workers_[rank];
  if (worker.reported)
    overheads_.push_back(std::max<std::int64_t>(now - *worker.reported - step, 0));
  worker.reported.reset();
  return true;
}

bool Reader::OnFinished(const nlohmann::json& json, std::int64_t now, std::int64_t rank) {
  std::int64_t group = 0;
  std::int64_t wait = 0;
  std::int64_t reduce = 0;
  std::int64_t bytes = 0;
  if (!Whole(json, "group", &group) || !Whole(json, "wait_ns", &wait) ||
      !Whole(json, "reduce_ns", &reduce) || !Whole(json, "bytes", &bytes)) {
    return false;
  }
  const auto it = groups_.find(group);
  if (it == groups_.end()) return true;  // the common start, or the final average
  if (json.value("outcome", "") != "ok") return true;
  workers_[rank].reported = now;
  it->second.least_wait = std::min(it->second.least_wait, wait);
  const auto n = static_cast<double>(it->second.members);
  if (n < 2) return true;
  reduces_.push_back(reduce);
  bytes_ += static_cast<double>(bytes) * n / (2 * (n - 1));
  ++reports_;
  return true;
}

void Reader::ScaleSteps() {
  if (run_.batch <= 0) {
    std::vector<std::int64_t> all;
    for (const std::vector<std::int64_t>& of : samples_)
      all.insert(all.end(), of.begin(), of.end());
    run_.samples = Median(&all);
    return;
  }
  const auto workers = static_cast<std::int64_t>(run_.steps.size());
  run_.samples = std::max<std::int64_t>(run_.batch / std::max<std::int64_t>(workers, 1), 1);
  for (std::size_t rank = 0; rank < samples_.size(); ++rank) {
    for (std::size_t i = 0; i < samples_[rank].size(); ++i) {
      const auto samples = static_cast<double>(std::max<std::int64_t>(samples_[rank][i], 1));
      const double ns = static_cast<double>(run_.steps[rank][i]) / samples;
      run_.steps[rank][i] = static_cast<DurationNs>(ns * static_cast<double>(run_.samples));
    }
  }
}

RecordedRun Reader::Finish() {
  ScaleSteps();
  const std::int64_t overhead = Median(&overheads_);
  for (std::vector<DurationNs>& steps : run_.steps) {
    for (DurationNs& ns : steps) ns = std::max<DurationNs>(ns + overhead, 1);
  }
  run_.hosts = hosts_.size();
  run_.round_trip_ns = std::max<std::int64_t>(Median(&round_trips_), 0);
  run_.reduce_ns = Median(&reduces_);
  run_.group_size = formed_ > 0 ? members_ / formed_ : 0;
  run_.bytes = reports_ > 0 ? bytes_ / reports_ : 0;
  if (from_) run_.seconds = static_cast<double>(to_.value_or(last_) - *from_) / 1e9;
  const auto ns = static_cast<double>(last_update_ - first_update_);
  if (ns > 0) run_.updates_per_s = static_cast<double>(updates_ - 1) / (ns / 1e9);
  return std::move(run_);
}

}  // namespace

Result<RecordedRun> ReadRecorded(std::istream* in, const std::string& name) {
  Reader reader;
  std::string line;
  for (std::uint64_t number = 1; std::getline(*in, line); ++number) {
    if (line.empty()) continue;
    const std::string where = name + ":" + std::to_string(number) + ": ";
    if (line.size() > kMaxLine) return Status(Code::kDataLoss, where + "a line of over 16 MiB");
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    bool fits = false;
    try {  // the library throws where a value has another type than the caller's default
      fits = json.is_object() && reader.Add(json);
    } catch (const nlohmann::json::exception&) {
    }
    if (!reader.error.ok()) return Status(Code::kDataLoss, where + reader.error.message());
    if (!fits) {
      return Status(Code::kDataLoss, where + "not a record as `prdctl export` writes it (jsonl)");
    }
  }
  RecordedRun run = reader.Finish();
  if (run.steps.empty() || run.seconds <= 0) {
    return Status(Code::kDataLoss, name + ": no worker has trained in it");
  }
  for (std::size_t rank = 0; rank < run.steps.size(); ++rank) {
    if (!run.steps[rank].empty()) continue;
    return Status(Code::kDataLoss, name + ": rank " + std::to_string(rank) + " has made no step");
  }
  return run;
}

Result<RecordedRun> LoadRecorded(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Status(Code::kNotFound, path + ": cannot be read");
  return ReadRecorded(&in, path);
}

Workload AsWorkload(const RecordedRun& run, const EngineOptions& engine) {
  Workload workload;
  workload.name = run.job;
  workload.job = run.spec;
  workload.job.engine = engine;
  workload.recorded = run.steps;
  const auto workers = static_cast<std::int64_t>(run.steps.size());
  workload.job.workers = static_cast<int>(workers);
  workload.job.max_workers = std::max(workload.job.max_workers, workload.job.workers);
  workload.cluster.workers = workers;
  workload.cluster.workers_per_host = workers;
  workload.cluster.batch = run.batch;
  if (run.samples > 0) workload.cluster.samples = run.samples;
  workload.cluster.steps = 0;
  workload.cluster.seconds = std::max(run.seconds, 0.001);
  workload.cluster.start_spread_ms = 1;
  workload.network.delay_us = static_cast<double>(run.round_trip_ns) / 2e3;
  workload.network.jitter_us = 0;
  ReducePart& reduce = workload.reduce;
  const double n = std::max(run.group_size, 2.0);
  const double us = static_cast<double>(run.reduce_ns) / 1e3;
  reduce.bytes = std::max(run.bytes, 1.0);
  reduce.latency_us = std::min(kLatencyUs, us / (4 * (n - 1)));
  if (run.hosts == 1) reduce.latency_us = us / (2 * (n - 1));
  const double rest_us = std::max(us - 2 * (n - 1) * reduce.latency_us, 1e-3);
  reduce.bandwidth_mb_per_s = 2 * (n - 1) / n * reduce.bytes / rest_us;  // bytes per us
  reduce.local_latency_us = reduce.latency_us;
  reduce.local_bandwidth_mb_per_s = reduce.bandwidth_mb_per_s;
  return workload;
}

}  // namespace prd::sim
