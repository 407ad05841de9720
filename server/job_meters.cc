#include "server/job_meters.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "config/config.h"

namespace prd {
namespace {

constexpr const char* kOther = "other";
// While a run has made no step, nobody knows how long one takes.
constexpr double kFirstInterval = 300;
constexpr double kHalfLife = 600;
constexpr DurationNs kWindow = 30 * kSecond;

const std::vector<double>& TimeBounds() {
  static const std::vector<double> bounds = {0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3,
                                             1,      3,     10,    30,   100,  300};
  return bounds;
}

const std::vector<double>& MemberBounds() {
  static const std::vector<double> bounds = {1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
  return bounds;
}

double Seconds(DurationNs ns) { return static_cast<double>(ns) / static_cast<double>(kSecond); }

const char* Word(WorkerState state) {
  switch (state) {
    case WorkerState::kAbsent:
    case WorkerState::kJoining:
    case WorkerState::kStarting:
    case WorkerState::kAdopting:
      return "joining";
    case WorkerState::kActive:
      return "training";
    case WorkerState::kPaused:
      return "paused";
    case WorkerState::kFinishing:
    case WorkerState::kFinal:
      return "finishing";
  }
  return "joining";
}

}  // namespace

JobMeters::Series::Series()
    : waiting(TimeBounds()), reducing(TimeBounds()), members(MemberBounds()) {}

JobMeters::RunMeters& JobMeters::Begin(Instant now, RunId id, const RunStarted& started) {
  Forget(now);
  Key key{started.job, started.engine};
  std::set<std::string_view> own;
  for (const auto& [known, series] : series_) {
    if (known.first != kOther) own.insert(known.first);
  }
  // A job that was switched keeps its name.
  if (own.size() >= kMostJobs && !own.contains(started.job)) key.first = kOther;
  Series* series = &series_[key];
  ++series->runs;
  RunMeters& run = runs_[id];
  run.key = key;
  run.begun = now;
  run.since_at = now;
  run.pace = std::make_unique<meters::PaceMeter>(meters::PaceMeter::Options{
      .keep_steps = false,
      .on_wait = [series](DurationNs waited) { series->waiting.Observe(Seconds(waited)); }});
  // Counted in the run before.
  for (const FormerRank& of : started.former.ranks) run.told[of.rank].steps = of.own.steps;
  return run;
}

void JobMeters::Know(Instant now, const Run& run) {
  const RunStarted started{.job = run.spec().name,
                           .engine = std::string(EngineName(run.spec().engine)),
                           .spec = JobSpecToToml(run.spec())};
  RunMeters& meters = Begin(now, run.id(), started);
  const auto tell = [&](RecordBody body) {
    meters.pace->Add({.run = run.id(), .index = 1, .now = now, .body = std::move(body)});
  };
  tell(started);
  for (Rank rank = 0; static_cast<std::size_t>(rank) < run.workers().size(); ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    const RunWorker& worker = run.workers()[index];
    if (worker.state == WorkerState::kActive) {
      tell(WorkerJoined{
          .rank = rank, .incarnation = worker.incarnation, .iteration = worker.iteration});
      meters.progress = now;
    }
    if (index < run.tallies().size() && run.tallies()[index].known) {
      meters.told[rank] = {.steps = run.tallies()[index].last.steps,
                           .incarnation = worker.incarnation};
    }
  }
  for (const auto& [id, group] : run.groups()) meters.open[id] = group.since;
}

void JobMeters::Add(const Record& record) {
  const auto* started = std::get_if<RunStarted>(&record.body);
  if (started != nullptr) Begin(record.now, record.run, *started);
  const auto found = runs_.find(record.run);
  if (found == runs_.end()) return;
  RunMeters& run = found->second;
  Series& series = series_.at(run.key);
  if (run.pace != nullptr) run.pace->Add(record);
  if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    OnWorker(record.now, from->envelope, &run, &series);
  } else if (std::holds_alternative<RunEnded>(record.body)) {
    --series.runs;
    series.ended = record.now;
    runs_.erase(found);
  } else {
    OnDecision(record, &run, &series);
  }
}

void JobMeters::OnWorker(Instant now, const WorkerEnvelope& envelope, RunMeters* run,
                         Series* series) {
  if (const auto* hello = std::get_if<Hello>(&envelope.body)) {
    run->brought[envelope.incarnation] = hello->own.steps;
  } else if (const auto* ready = std::get_if<Ready>(&envelope.body)) {
    series->stale += ready->dropped;
    series->nonfinite += ready->nonfinite;
    OnSteps(now, envelope, ready->own.steps, run, series);
  } else if (const auto* progressed = std::get_if<Progressed>(&envelope.body)) {
    series->nonfinite += progressed->nonfinite;
    OnSteps(now, envelope, progressed->own.steps, run, series);
  } else if (const auto* finished = std::get_if<Finished>(&envelope.body)) {
    if (finished->group == kNoGroup) return;
    series->reducing.Observe(Seconds(meters::Possible(finished->reduce_ns, now - run->begun)));
  }
}

// A process that takes a rank over goes on from what was told under it. What a worker has done
// while the controller did not hear it is told by its Hello.
void JobMeters::Bring(Rank rank, Incarnation incarnation, RunMeters* run, Series* series) {
  Told& told = run->told[rank];
  if (told.incarnation == incarnation) return;
  told.incarnation = incarnation;
  const auto brought = run->brought.find(incarnation);
  if (brought == run->brought.end()) return;
  if (told.steps && brought->second > *told.steps) {
    series->steps += static_cast<std::uint64_t>(brought->second - *told.steps);
  }
  told.steps = std::max(told.steps.value_or(0), brought->second);
  run->brought.erase(brought);
}

void JobMeters::OnSteps(Instant now, const WorkerEnvelope& envelope, std::int64_t own,
                        RunMeters* run, Series* series) {
  Bring(envelope.rank, envelope.incarnation, run, series);
  Told& told = run->told[envelope.rank];
  const std::int64_t more = own - told.steps.value_or(0);
  if (more <= 0) return;
  told.steps = own;
  series->steps += static_cast<std::uint64_t>(more);
  if (run->progress) {
    const double gap = Seconds(now - *run->progress);
    run->interval_s = std::max(gap, run->interval_s * std::exp2(-gap / kHalfLife));
  }
  run->progress = now;
}

void JobMeters::OnDecision(const Record& record, RunMeters* run, Series* series) {
  const meters::Moved moved(record.body);
  if (const auto* formed = std::get_if<GroupFormed>(&record.body)) {
    series->members.Observe(static_cast<double>(formed->members.size()));
    run->open[formed->id] = record.now;
  } else if (const auto* ended = std::get_if<GroupEnded>(&record.body)) {
    if (!ended->ok) ++series->groups_failed;
    run->open.erase(ended->id);
  } else if (std::holds_alternative<UpdateDropped>(record.body)) {
    ++series->dropped;
  } else if (std::holds_alternative<SharesSet>(record.body)) {
    ++series->share_changes;
  } else if (moved.came != nullptr) {
    ++series->joined;
    Bring(moved.came->rank, moved.came->incarnation, run, series);
    if (!run->progress) run->progress = record.now;
    const bool many = run->told.size() > kMostSharers;
    if (many && run->pace != nullptr && HasStore(run->pace->plan())) run->pace.reset();
  } else if (moved.went != nullptr) {
    run->brought.erase(moved.went->incarnation);
    if (moved.lost) ++series->lost;
  }
}

void JobMeters::Forget(Instant now) {
  std::erase_if(series_, [&](const auto& entry) {
    const Series& series = entry.second;
    return entry.first.first != kOther && series.runs == 0 && now - series.ended > kForget;
  });
}

void JobMeters::Look(Instant now, const Run& run, RunMeters* meters, Now* of) {
  bool trains = false;
  for (const RunWorker& worker : run.workers()) {
    if (worker.state == WorkerState::kAbsent) continue;
    ++of->workers[Word(worker.state)];
    trains = trains || worker.state < WorkerState::kPaused;
  }
  of->started += static_cast<std::size_t>(run.start_workers());
  of->links_broken += run.broken_links().size();
  of->replicas_differ += run.divergence().ranks.size();
  for (const RankTally& tally : run.tallies()) {
    of->memory.host = std::max(of->memory.host, tally.memory.host);
    of->memory.device = std::max(of->memory.device, tally.memory.device);
  }
  of->batch = std::max(of->batch, run.shares().batch());
  for (Rank rank = 0; rank < kMostShares; ++rank) {
    const std::int64_t samples = run.shares().Show(rank).samples;
    if (samples > 0) of->shares[rank] = samples;
  }
  // A worker that pauses or finishes need not make progress, and nobody in a paused job;
  // the clock begins anew when they train again.
  trains = trains && !run.paused();
  if (!trains && meters->progress) meters->progress = now;
  if (trains && meters->progress) {
    of->progress = std::min(of->progress.value_or(*meters->progress), *meters->progress);
    of->interval_s =
        std::max(of->interval_s, meters->interval_s > 0 ? meters->interval_s : kFirstInterval);
  }
  if (StartWaits(run, now).empty()) {
    meters->most_here = 0;
  } else {
    if (run.live() > meters->most_here) meters->came = now;
    meters->most_here = std::max(meters->most_here, run.live());
    of->came = std::min(of->came.value_or(meters->came), meters->came);
  }
  if (!meters->open.empty()) {
    const Instant open = meters->open.begin()->second;
    of->open = std::min(of->open.value_or(open), open);
  }
  if (meters->pace == nullptr) return;
  const std::map<Rank, double> owed = meters->pace->Owed();
  for (const auto& [rank, ns] : owed) {
    const auto before = meters->before.find(rank);
    const double late = ns - (before == meters->before.end() ? 0 : before->second);
    if (late > 0) of->owed[rank] += late;
  }
  if (now - meters->since_at < kWindow) return;
  meters->before = std::exchange(meters->since, owed);
  meters->since_at = now;
}

void JobMeters::Write(Instant now, std::int64_t wall_ns, const Jobs& jobs, MetricsPage* page) {
  Forget(now);
  std::map<Key, Now> present;
  for (const auto& [id, run] : jobs) {
    const auto found = runs_.find(id);
    if (found == runs_.end()) continue;
    RunMeters& meters = found->second;
    Look(now, *run, &meters, &present[meters.key]);
  }
  const auto wall = [&](Instant at) { return Seconds(wall_ns - (now - at)); };
  for (const auto& [key, series] : series_) {
    const MetricsPage::Labels labels = {{"job", key.first}, {"engine", key.second}};
    const auto with = [&](const char* name, const std::string& value) {
      MetricsPage::Labels more = labels;
      more.emplace_back(name, value);
      return more;
    };
    const auto counter = [&](const char* name, std::uint64_t value) {
      page->Add(name, labels, static_cast<double>(value));
    };
    page->Add("job_waiting_seconds", labels, series.waiting);
    page->Add("job_reducing_seconds", labels, series.reducing);
    page->Add("job_group_members", labels, series.members);
    counter("job_groups_failed_total", series.groups_failed);
    counter("job_steps_total", series.steps);
    counter("job_updates_dropped_total", series.dropped);
    counter("job_updates_stale_total", series.stale);
    counter("job_workers_joined_total", series.joined);
    counter("job_workers_lost_total", series.lost);
    counter("nonfinite_steps_total", series.nonfinite);
    if (series.share_changes > 0) counter("share_changes_total", series.share_changes);
    const auto found = present.find(key);
    if (found == present.end()) continue;
    const Now& of = found->second;
    for (const char* state : {"joining", "training", "paused", "finishing"}) {
      const auto workers = of.workers.find(state);
      page->Add("job_workers", with("state", state),
                workers == of.workers.end() ? 0 : static_cast<double>(workers->second));
    }
    counter("job_workers_started", of.started);
    counter("links_broken", of.links_broken);
    page->Add("job_worker_memory_bytes", with("place", "host"),
              static_cast<double>(of.memory.host));
    page->Add("job_worker_memory_bytes", with("place", "device"),
              static_cast<double>(of.memory.device));
    counter("replicas_differ", of.replicas_differ);
    if (of.batch > 0 && key.first != kOther) {
      page->Add("batch_samples", labels, static_cast<double>(of.batch));
      for (const auto& [rank, samples] : of.shares) {
        page->Add("share_samples", with("rank", std::to_string(rank)),
                  static_cast<double>(samples));
      }
    }
    if (of.progress) {
      page->Add("job_last_progress_timestamp_seconds", labels, wall(*of.progress));
      page->Add("job_progress_interval_seconds", labels, of.interval_s);
    }
    if (of.came) {
      page->Add("job_start_last_arrival_timestamp_seconds", labels, wall(*of.came));
    }
    if (of.open) page->Add("job_oldest_open_group_timestamp_seconds", labels, wall(*of.open));
    std::vector<std::pair<double, Rank>> owed;
    double all = 0;
    for (const auto& [rank, ns] : of.owed) {
      owed.emplace_back(ns, rank);
      all += ns;
    }
    std::sort(owed.rbegin(), owed.rend());
    double rest = all;
    for (std::size_t i = 0; i < owed.size() && i < kMostRanks; ++i) {
      page->Add("job_straggler_share", with("rank", std::to_string(owed[i].second)),
                owed[i].first / all);
      rest -= owed[i].first;
    }
    if (owed.size() > kMostRanks) {
      page->Add("job_straggler_share", with("rank", kOther), std::max(0.0, rest) / all);
    }
  }
}

}  // namespace prd
