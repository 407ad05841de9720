#include "tools/sim/commands.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>

#include "tools/sim/compare.h"
#include "tools/sim/papers/papers.h"
#include "tools/sim/plot.h"
#include "tools/sim/recorded.h"
#include "tools/sim/report.h"
#include "tools/sim/sweep.h"

namespace prd::sim {
namespace {

int Fail(const Status& status) {
  std::fprintf(stderr, "prdsim: %s\n", status.message().c_str());
  return status.code() == Code::kInvalidArgument ? kUsage : kError;
}

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }
void Print(const Json& json) { Print(json.dump(2) + "\n"); }

Status OneAtMost(const std::vector<std::string>& engines, const std::string& command) {
  if (engines.size() <= 1) return Status::Ok();
  return Status(Code::kInvalidArgument, "engine: found " + std::to_string(engines.size()) +
                                            " of them, " + command + " takes one at most");
}

// Before anything runs for nothing.
Status CheckLoss(const CommandOptions& options, const Workload& workload) {
  if (options.loss.empty() || workload.training.objective != TrainingPart::Objective::kNone) {
    return Status::Ok();
  }
  return Status(Code::kInvalidArgument,
                options.loss + ": there is no loss to draw, as the workload has no objective");
}

// One workload of all files, with what the command line changes.
Result<Workload> Load(const CommandOptions& options) {
  Workload workload;
  workload.job.name = "sim";
  for (const std::string& file : options.files) {
    PRD_RETURN_IF_ERROR(LoadWorkload(file, &workload));
  }
  if (options.workers > 0) workload.cluster.workers = options.workers;
  if (options.steps >= 0) workload.cluster.steps = options.steps;
  if (options.seconds > 0) {
    workload.cluster.cut = options.seconds < workload.cluster.seconds;
    workload.cluster.seconds = options.seconds;
  }
  if (options.engines.size() == 1) {
    Result<EngineOptions> engine = ParseEngine(options.engines[0]);
    if (!engine.ok()) return engine.status();
    workload.job.engine = *engine;
  }
  PRD_RETURN_IF_ERROR(CheckWorkload(workload));
  return workload;
}

void Warn(const Workload& workload) {
  const std::string warning = WorkloadWarning(workload);
  if (!warning.empty()) std::fprintf(stderr, "prdsim: warning: %s\n", warning.c_str());
}

Result<std::vector<EngineOptions>> Engines(const CommandOptions& options,
                                           const Workload& workload) {
  std::vector<EngineOptions> engines;
  for (const std::string& text : options.engines) {
    Result<EngineOptions> engine = ParseEngine(text);
    if (!engine.ok()) return engine.status();
    engines.push_back(*engine);
  }
  const auto workers = static_cast<int>(workload.cluster.workers);
  for (const EngineOptions& engine : engines) PRD_RETURN_IF_ERROR(Validate(engine, workers));
  if (!engines.empty()) return engines;
  std::string left_out;
  for (const EngineOptions& engine : AllEngines()) {
    if (Validate(engine, workers).ok()) {
      engines.push_back(engine);
    } else {
      left_out += (left_out.empty() ? "" : ", ") + EngineText(engine);
    }
  }
  if (!left_out.empty()) {
    std::fprintf(stderr,
                 "prdsim: left out, as their options do not fit the number of workers (%d): %s\n",
                 workers, left_out.c_str());
  }
  return engines;
}

Result<Mutation> FindMutation(const std::string& name) {
  std::string all = "none";
  if (name == all) return Mutation::kNone;
  for (const Mutation mutation : AllMutations()) {
    if (MutationName(mutation) == name) return mutation;
    all += ", " + std::string(MutationName(mutation));
  }
  return Status(Code::kInvalidArgument,
                "mutation: found \"" + name + "\", allowed is one of " + all);
}

void PrintBroken(const RunResult& run) {
  Print("BROKEN " + run.violation + "\nlast events:\n");
  for (const std::string& line : run.last_events) Print("  " + line + "\n");
}

Status Draw(const CommandOptions& options, const Workload& workload, const RunResult& run) {
  const std::string title = workload.name + ": " + EngineText(workload.job.engine);
  if (!options.timeline.empty()) {
    PRD_RETURN_IF_ERROR(PlotTimeline(options.timeline, title, run.stats.slices,
                                     run.stats.workers.size(), options.timeline_s));
  }
  if (!options.loss.empty()) {
    PRD_RETURN_IF_ERROR(PlotLoss(options.loss, title, {{title, run.curve}}));
  }
  return Status::Ok();
}

}  // namespace

std::function<void(const std::string&)> Tracer(const CommandOptions& options) {
  if (!options.trace) return nullptr;
  std::FILE* to = options.json ? stderr : stdout;
  return [to](const std::string& line) { std::fprintf(to, "%s\n", line.c_str()); };
}

int RunOnce(const CommandOptions& options) {
  const Status one = OneAtMost(options.engines, "a run");
  if (!one.ok()) return Fail(one);
  Result<Workload> workload = Load(options);
  if (!workload.ok()) return Fail(workload.status());
  const Status drawable = CheckLoss(options, *workload);
  if (!drawable.ok()) return Fail(drawable);
  if (!options.plane) Warn(*workload);
  if (options.seconds > 0) workload->cluster.cut = true;  // also where it is more than the file's
  const auto begin = std::chrono::steady_clock::now();
  const RunResult run = Simulate(*workload, {.seed = options.seed,
                                             .keep_slices = !options.timeline.empty(),
                                             .trace = Tracer(options),
                                             .plane = options.plane});
  const double wall =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (options.json) {
    Json json = JsonReport(*workload, run, !options.plane);
    json["wall_s"] = wall;
    json["events_per_wall_s"] = static_cast<double>(run.events) / wall;
    Print(json);
  } else {
    Print("workload          " + workload->name + ", seed " + std::to_string(options.seed) + "\n");
    Print(TextReport(*workload, run, !options.plane));
    Print("simulated in " + Fixed(wall, 2) + " s, " +
          Fixed(static_cast<double>(run.events) / wall / 1e3, 0) + " k events/s\n");
  }
  const Status drawn = Draw(options, *workload, run);
  if (!drawn.ok()) return Fail(drawn);
  if (run.invariant.empty()) return 0;
  if (!options.json) PrintBroken(run);
  return kBroken;
}

// ---- sweep ----

namespace {

std::string Command(const CommandOptions& options, const SweepFailure& failure) {
  std::string text = "prdsim sweep";
  for (const std::string& file : options.files) text += " " + file;
  text += " --seed " + std::to_string(failure.seed) + " --seeds 1 --trace";
  if (options.mutation != "none") text += " --mutation " + options.mutation;
  if (options.as_is) text += " --as-is";
  if (options.plane) text += " --mesh";
  for (const std::string& engine : options.engines) text += " --engine " + engine;
  if (options.workers > 0) text += " --workers " + std::to_string(options.workers);
  if (options.steps >= 0) text += " --steps " + std::to_string(options.steps);
  if (options.seconds > 0) text += " --seconds " + TomlReal(options.seconds);
  return text;
}

void PrintSweep(const CommandOptions& options, const SweepResult& sweep) {
  Print(std::to_string(sweep.seeds) + " seeds" + (options.once ? "" : ", each run twice") +
        ", in " + Fixed(sweep.seconds, 1) + " s: " + std::to_string(sweep.failures.size()) +
        " with a violation\n");
  for (const auto& [engine, seeds] : sweep.by_engine) {
    Print("  " + engine + ": " + std::to_string(seeds) + " seeds\n");
  }
  Print("  " + std::to_string(sweep.events) + " events, " + std::to_string(sweep.groups) +
        " groups formed, " + std::to_string(sweep.failed_groups) + " failed, " +
        std::to_string(sweep.restarts) + " controller restarts, " + std::to_string(sweep.expired) +
        " leases run out, " + std::to_string(sweep.adoptions) + " models copied\n");
  for (const SweepFailure& failure : sweep.failures) {
    Print("\nseed " + std::to_string(failure.seed) + ", " + failure.workload + ", " +
          failure.engine + "\n");
    PrintBroken(failure.result);
    Print("again: " + Command(options, failure) + "\n");
  }
}

Json ToJson(const CommandOptions& options, const SweepResult& sweep) {
  Json json = {{"seeds", sweep.seeds},
               {"wall_s", sweep.seconds},
               {"events", sweep.events},
               {"groups", sweep.groups},
               {"failed_groups", sweep.failed_groups},
               {"controller_restarts", sweep.restarts},
               {"leases_expired", sweep.expired},
               {"models_copied", sweep.adoptions},
               {"seeds_by_engine", sweep.by_engine},
               {"violations", Json::array()}};
  for (const SweepFailure& failure : sweep.failures) {
    json["violations"].push_back({{"seed", failure.seed},
                                  {"workload", failure.workload},
                                  {"engine", failure.engine},
                                  {"invariant", failure.result.invariant},
                                  {"violation", failure.result.violation},
                                  {"last_events", failure.result.last_events},
                                  {"again", Command(options, failure)}});
  }
  return json;
}

// The engine that a sweep which varies keeps to, if any.
Result<std::optional<OneEngine>> Only(const CommandOptions& options) {
  PRD_RETURN_IF_ERROR(OneAtMost(options.engines, "a sweep"));
  if (options.as_is || options.engines.empty()) return std::optional<OneEngine>();
  const std::string& text = options.engines[0];
  const Result<EngineOptions> engine = ParseEngine(text);
  if (!engine.ok()) return engine.status();
  Status valid;
  for (int workers = 1; workers <= kMaxVaried; ++workers) {
    valid = Validate(*engine, workers);
    if (valid.ok()) break;
  }
  PRD_RETURN_IF_ERROR(valid);
  return std::optional(
      OneEngine{.engine = *engine, .as_given = text.find(':') != std::string::npos});
}

}  // namespace

bool Interrupted() {
  static volatile std::sig_atomic_t interrupted = 0;
  static const auto before = std::signal(SIGINT, [](int) {
    interrupted = 1;
    std::signal(SIGINT, SIG_DFL);
  });
  (void)before;
  return interrupted != 0;
}

int RunSweep(const CommandOptions& options) {
  const Result<std::optional<OneEngine>> only = Only(options);
  if (!only.ok()) return Fail(only.status());
  std::vector<Workload> workloads;
  for (const std::string& file : options.files) {
    CommandOptions one = options;
    one.files = {file};
    if (!options.as_is) one.engines.clear();
    Result<Workload> workload = Load(one);
    if (!workload.ok()) return Fail(workload.status());
    workloads.push_back(std::move(workload).value());
  }
  const Result<Mutation> mutation = FindMutation(options.mutation);
  if (!mutation.ok()) return Fail(mutation.status());
  const SweepResult sweep = Sweep(workloads, {.first_seed = options.seed,
                                              .seeds = options.seeds,
                                              .threads = options.trace ? 1 : options.threads,
                                              .mutation = *mutation,
                                              .vary = !options.as_is,
                                              .only = *only,
                                              .twice = !options.once && !options.trace,
                                              .plane = options.plane,
                                              .ends = Interrupted,
                                              .trace = Tracer(options)});
  if (options.json) {
    Print(ToJson(options, sweep));
  } else {
    PrintSweep(options, sweep);
  }
  if (!sweep.failures.empty()) return kBroken;
  return Interrupted() ? kInterrupted : 0;
}

// ---- compare, replay, papers ----

int RunCompare(const CommandOptions& options) {
  CommandOptions plain = options;
  plain.engines.clear();
  const Result<Workload> workload = Load(plain);
  if (!workload.ok()) return Fail(workload.status());
  const Status drawable = CheckLoss(options, *workload);
  if (!drawable.ok()) return Fail(drawable);
  Warn(*workload);
  const auto engines = Engines(options, *workload);
  if (!engines.ok()) return Fail(engines.status());
  const std::vector<Compared> rows = Compare(*workload, *engines, options.seed, options.runs);
  if (options.json) {
    Print(JsonTable(rows));
  } else {
    Print(TextTable(rows));
  }
  if (!options.loss.empty()) {
    std::vector<std::pair<std::string, std::vector<LossPoint>>> curves;
    for (const Compared& row : rows) curves.emplace_back(EngineText(row.engine), row.curve);
    const Status drawn = PlotLoss(options.loss, workload->name, curves);
    if (!drawn.ok()) return Fail(drawn);
  }
  const bool broken = std::any_of(rows.begin(), rows.end(),
                                  [](const Compared& row) { return !row.broken.empty(); });
  return broken ? kBroken : 0;
}

namespace {

Result<RecordedRun> LoadHistory(const std::string& path) {
  Result<RecordedRun> recorded = LoadRecorded(path);
  if (!recorded.ok() || recorded->left_out.empty()) return recorded;
  std::string others;
  for (const auto& [run, engine] : recorded->left_out) {
    others += (others.empty() ? "run " : ", run ") + std::to_string(run);
    if (!engine.empty()) others += " (" + engine + ")";
  }
  std::fprintf(stderr, "prdsim: %s: run %lld (%s) is taken; left out: %s\n", path.c_str(),
               static_cast<long long>(recorded->id), recorded->engine.c_str(), others.c_str());
  return recorded;
}

}  // namespace

int RunReplay(const CommandOptions& options) {
  const Result<RecordedRun> recorded = LoadHistory(options.files.at(0));
  if (!recorded.ok()) return Fail(recorded.status());
  const Workload base = AsWorkload(*recorded, recorded->spec.engine);
  std::vector<EngineOptions> engines = {recorded->spec.engine};
  if (!options.engines.empty() || options.against.empty()) {
    const auto more = Engines(options, base);
    if (!more.ok()) return Fail(more.status());
    for (const EngineOptions& engine : *more) {
      if (engine != engines[0]) engines.push_back(engine);
    }
  }
  double measured_other = 0;
  if (!options.against.empty()) {
    const Result<RecordedRun> other = LoadHistory(options.against);
    if (!other.ok()) return Fail(other.status());
    engines = {recorded->spec.engine, other->spec.engine};
    measured_other = other->updates_per_s;
  }
  Json json = {{"history", options.files.at(0)},
               {"job", recorded->job},
               {"recorded_engine", EngineText(recorded->spec.engine)},
               {"measured_updates_per_s", recorded->updates_per_s},
               {"reduce_s", static_cast<double>(recorded->reduce_ns) / 1e9},
               {"round_trip_s", static_cast<double>(recorded->round_trip_ns) / 1e9},
               {"predictions", Json::array()}};
  std::vector<std::vector<std::string>> rows = {
      {"engine", "predicted updates/s", "measured", "off", "idle"}};
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const RunResult run = Simulate(AsWorkload(*recorded, engines[i]), {.seed = options.seed});
    if (!run.invariant.empty()) return Fail(Status(Code::kInternal, run.violation));
    const double measured = i == 0 ? recorded->updates_per_s : i == 1 ? measured_other : 0;
    const double off = measured > 0 ? run.updates_per_s / measured - 1 : 0;
    double idle = 0;
    for (const WorkerStats& worker : run.stats.workers) {
      idle += worker.IdleShare() / static_cast<double>(run.stats.workers.size());
    }
    rows.push_back({EngineText(engines[i]), Fixed(run.updates_per_s, 3),
                    measured > 0 ? Fixed(measured, 3) : "-",
                    measured > 0 ? Fixed(100 * off, 1) + "%" : "-", Fixed(100 * idle, 1) + "%"});
    json["predictions"].push_back(
        {{"engine", EngineText(engines[i])},
         {"updates_per_s", run.updates_per_s},
         {"measured_updates_per_s", measured > 0 ? Json(measured) : Json(nullptr)},
         {"off", measured > 0 ? Json(off) : Json(nullptr)},
         {"idle_share", idle}});
  }
  if (options.json) {
    Print(json);
  } else {
    Print(Table(rows));
  }
  return 0;
}

int RunPapersCommand(const CommandOptions& options) {
  const std::vector<Paper> papers = RunPapers(options.seed, options.updates);
  if (options.json) {
    Print(JsonPapers(papers));
  } else {
    Print(TextPapers(papers));
  }
  return 0;
}

}  // namespace prd::sim
