// The metrics of jobs beside the records they are made of: the sum over the series of each counter
// is what the records say, whatever happens to the jobs.
#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/engine_text.h"
#include "server/job_meters.h"
#include "tools/sim/cluster.h"

namespace prd {
namespace {

using Sums = std::map<std::string, double>;

// By name, over all labels.
Sums SumsOf(const std::string& text) {
  Sums sums;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#') || line.find("_bucket{") != std::string::npos) continue;
    const std::string name = line.substr(0, line.find_first_of("{ "));
    sums[name] += std::stod(line.substr(line.rfind(' ')));
  }
  return sums;
}

// "...; the job has trained 986 steps, ..."; 0: it does not say.
double TrainedOf(const std::string& reason) {
  static const std::string kWords = "the job has trained ";
  const std::size_t at = reason.rfind(kWords);
  double steps = 0;
  if (at == std::string::npos) return steps;
  const char* begin = reason.data() + at + kWords.size();
  (void)std::from_chars(begin, reason.data() + reason.size(), steps);
  return steps;
}

// What the records say, counted without the meters; waits by a PaceMeter of each run.
class Truth {
 public:
  void Add(const Record& record) {
    Run& run = runs_[record.run];
    run.pace.Add(record);
    if (const auto* started = std::get_if<RunStarted>(&record.body)) {
      run.before = static_cast<double>(started->former.trained.steps);
    } else if (const auto* formed = std::get_if<GroupFormed>(&record.body)) {
      sums_["prd_job_group_members_count"] += 1;
      sums_["prd_job_group_members_sum"] += static_cast<double>(formed->members.size());
    } else if (const auto* group = std::get_if<GroupEnded>(&record.body)) {
      sums_["prd_job_groups_failed_total"] += group->ok ? 0 : 1;
    } else if (std::holds_alternative<UpdateDropped>(record.body)) {
      sums_["prd_job_updates_dropped_total"] += 1;
    } else if (std::holds_alternative<WorkerJoined>(record.body)) {
      sums_["prd_job_workers_joined_total"] += 1;
      run.begun = true;
    } else if (const auto* left = std::get_if<WorkerLeft>(&record.body)) {
      evicted_ += left->why == LeftReason::kEvicted ? 1 : 0;
      const bool lost = left->why == LeftReason::kLost || left->why == LeftReason::kEvicted ||
                        left->why == LeftReason::kFailed;
      sums_["prd_job_workers_lost_total"] += lost ? 1 : 0;
    } else if (const auto* ended = std::get_if<RunEnded>(&record.body)) {
      switches_ += ended->next != kNoRun ? 1 : 0;
      sums_["prd_job_steps_total"] += std::max(0.0, TrainedOf(ended->reason) - run.before);
      for (const meters::WorkerPace& worker : run.pace.Report().workers) {
        sums_["prd_job_waiting_seconds_sum"] += static_cast<double>(worker.waited_ns) / 1e9;
      }
      runs_.erase(record.run);
    } else if (const auto* from = std::get_if<FromWorker>(&record.body)) {
      const auto* finished = std::get_if<Finished>(&from->envelope.body);
      if (finished != nullptr && finished->group != kNoGroup) {
        sums_["prd_job_reducing_seconds_count"] += 1;
        sums_["prd_job_reducing_seconds_sum"] += static_cast<double>(finished->reduce_ns) / 1e9;
      }
      if (const auto* ready = std::get_if<Ready>(&from->envelope.body)) {
        sums_["prd_job_updates_stale_total"] += ready->dropped;
      }
    }
  }

  const Sums& sums() const { return sums_; }
  int switches() const { return switches_; }
  int evicted() const { return evicted_; }
  // Runs in which somebody has trained, and that have not ended.
  std::ptrdiff_t open() const {
    return std::count_if(runs_.begin(), runs_.end(),
                         [](const auto& entry) { return entry.second.begun; });
  }

 private:
  struct Run {
    meters::PaceMeter pace;
    double before = 0;
    bool begun = false;
  };
  std::map<RunId, Run> runs_;
  Sums sums_;
  int switches_ = 0;
  int evicted_ = 0;
};

// More jobs than have series of their own, each with faults of its own: workers die, operators
// evict and drain them and switch the engine, and the controller dies.
TEST(JobSums, AreWhatTheRecordsSay) {
  JobMeters meters;
  Truth truth;
  const char* const kEngines[] = {"p-reduce", "all-reduce", "hop", "ssp", "eager"};
  const auto jobs = static_cast<std::uint64_t>(JobMeters::kMostJobs) + 10;
  Instant now;
  for (std::uint64_t seed = 1; seed <= jobs; ++seed) {
    sim::Workload workload;
    workload.job.name = "job-" + std::to_string(seed);
    const Result<Config> config = ParseConfig(
        "[[job]]\nname = \"*\"\nengine = \"" + std::string(kEngines[seed % 5]) + "\"\n", "");
    ASSERT_TRUE(config.ok()) << config.status().message();
    workload.job.engine = FindJob(*config, workload.job.name)->engine;
    workload.job.lease_ms = 400;
    workload.job.heartbeat_ms = 100;
    workload.cluster.workers = 4;
    workload.cluster.steps = 20;
    workload.cluster.seconds = 120;
    workload.faults.until_ms = 1000;
    workload.faults.worker_dies = 0.01;
    workload.faults.evictions_per_s = 1;
    workload.faults.drains_per_s = 0.3;
    workload.faults.switches_per_s = 2;
    workload.faults.controller_dies_per_s = 0.3;
    const auto add = [&](const Record& record) {
      Record written = record;
      written.run += 1000 * seed;
      written.now = {written.now.ns + static_cast<std::int64_t>(seed) * kSecond};
      if (auto* started = std::get_if<RunStarted>(&written.body)) {
        // The simulator's words for an engine; a daemon writes TOML.
        JobSpec spec = workload.job;
        if (const auto engine = ParseEngine(started->spec); engine.ok()) spec.engine = *engine;
        started->job = spec.name;
        started->spec = JobSpecToToml(spec);
      }
      now = std::max(now, written.now);
      meters.Add(written);
      truth.Add(written);
    };
    const sim::RunResult run = sim::Simulate(workload, {.seed = seed, .on_record = add});
    ASSERT_EQ(run.invariant, "") << run.violation;
    ASSERT_TRUE(run.all_finished);
  }
  ASSERT_EQ(truth.open(), 0);
  EXPECT_GT(truth.switches(), 50);
  EXPECT_GT(truth.evicted(), 20);
  MetricsPage page;
  meters.Write(now, 0, {}, &page);
  const std::string text = page.Text();
  const Sums sums = SumsOf(text);
  for (const auto& [name, value] : truth.sums()) {
    ASSERT_TRUE(sums.contains(name)) << name;
    EXPECT_NEAR(sums.at(name), value, 1e-6 * std::max(1.0, value)) << name;
  }
  // As many jobs as may have series of their own; the others together.
  std::set<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("prd_job_steps_total{job=\"")) continue;
    const std::size_t begin = line.find('"') + 1;
    names.insert(line.substr(begin, line.find('"', begin) - begin));
  }
  EXPECT_EQ(names.size(), JobMeters::kMostJobs + 1);
  EXPECT_TRUE(names.contains("other"));
}

}  // namespace
}  // namespace prd
