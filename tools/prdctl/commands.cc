#include "tools/prdctl/commands.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "config/config.h"
#include "config/engine_text.h"
#include "engines/words.h"
#include "tools/prdctl/columns.h"
#include "tools/prdctl/commands_exchange.h"
#include "tools/prdctl/json.h"
#include "tools/prdctl/present.h"
#include "tools/prdctl/replay.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

using Align = Table::Align;

constexpr std::size_t kJobsListed = 200;  // runs of `prdctl jobs`

std::string Age(const std::optional<DurationNs>& ns) {
  return ns ? words::Duration(*ns) : std::string();
}

Json OrNull(const std::optional<DurationNs>& ns) { return ns ? Json(*ns) : Json(nullptr); }

std::string MiB(std::uint64_t bytes) {
  return bytes == 0 ? "" : std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

std::string Hex(std::uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

// What a run has trained; nullopt: not known.
std::optional<Trained> TrainedOf(const RunInfo& run, const std::optional<RunProgress>& of) {
  return of ? of->job.trained : TrainedAtEnd(run);
}

// A number of that, if it is known and not 0.
std::string TrainedText(const std::optional<Trained>& of, std::int64_t Trained::*number) {
  return of && (*of).*number > 0 ? std::to_string((*of).*number) : "";
}

std::string PausedText(const PauseRow& paused) {
  return "paused by " + paused.by + " since " + WallTime(paused.since_wall_ns) + " UTC" +
         (paused.reason.empty() ? "" : " (" + paused.reason + ")");
}

// Where a worker listens for other hosts.
std::string ForOtherHosts(const std::vector<std::string>& endpoints) {
  std::string text;
  for (const std::string& endpoint : endpoints) {
    if (!endpoint.starts_with("ipc://")) text += (text.empty() ? "" : ", ") + endpoint;
  }
  return text.empty() ? "ipc alone" : text;
}

Json PausedJson(const std::optional<PauseRow>& paused) {
  if (!paused) return nullptr;
  return {{"by", paused->by}, {"since_wall_ns", paused->since_wall_ns}, {"reason", paused->reason}};
}

void PrintStall(const std::optional<StallRow>& stalled, const Console& console) {
  if (!stalled) return;
  console.out << "the daemon's history has been stalled for " << words::Duration(stalled->for_ns)
              << (stalled->reason.empty() ? "" : " (" + Harmless(stalled->reason) + ")")
              << ": until it can be written nothing is decided, and workers wait for that\n";
}

Json StallJson(const std::optional<StallRow>& stalled) {
  if (!stalled) return nullptr;
  return {{"for_ns", stalled->for_ns}, {"reason", stalled->reason}};
}

// What else there is to say of the state of a run.
std::string Besides(const std::optional<RunProgress>& of) {
  if (!of) return "";
  std::string text = of->job.done ? ", goal reached" : "";
  if (!of->stopped.empty()) text = ", " + Harmless(of->stopped);
  if (of->paused) text += ", " + PausedText(*of->paused);
  if (of->differ.empty()) return text;
  return text + ", " + words::Ranks(of->differ) + (of->differ.size() == 1 ? " differs" : " differ");
}

std::string Title(const RunInfo& run) {
  return "run " + std::to_string(run.run) + " of " + Harmless(run.job) + " (" + run.engine + ", " +
         StateOfRun(run) + ")";
}

// Its steps are not reported.
bool Unknown(const Present& present, const WorkerRow& worker) {
  return FollowsSchedule(present.plan) && worker.here && worker.state == "training";
}

std::string LastGroup(const WorkerRow& worker) {
  if (worker.last_group == kNoGroup) return "";
  return std::to_string(worker.last_group) + (worker.last_ok ? "" : " failed");
}

// A worker of `prdctl workers`.
struct WorkerLine {
  const Present* present;
  const WorkerRow* worker;
  std::optional<ExchangeLine> exchange;  // where no groups train
};

const char* IterationTitle(const Plan& plan) {
  return CountsRounds(plan) ? "ROUND" : HasStore(plan) ? "CLOCK" : "ITERATION";
}

std::vector<Column<WorkerLine>> WorkerColumns(const Plan& plan) {
  using Line = WorkerLine;
  std::vector<Column<Line>> columns = {
      {"RANK", "rank", "", "", [](const Line& w) { return w.worker->rank; }, Shown::kAlways},
      {"STATE", "state", "", "what it does; in brackets, what else there is to say",
       [](const Line& w) { return w.worker->state; }, Shown::kAlways,
       [](const Line& w) {
         const WorkerRow& row = *w.worker;
         return row.detail.empty() ? row.state : row.state + " (" + row.detail + ")";
       },
       Align::kLeft},
      {"", "detail", "", "what stands in brackets", [](const Line& w) { return w.worker->detail; },
       Shown::kInJson},
      {"", "here", "", "it has not gone", [](const Line& w) { return w.worker->here; },
       Shown::kInJson},
      {IterationTitle(plan), "iteration", "",
       "where it is: its iteration; under ROUND, the newest round in its replica; under CLOCK, its "
       "clock",
       [](const Line& w) {
         if (w.exchange) return Json(w.exchange->worker->iteration);
         return Unknown(*w.present, *w.worker) ? Json(nullptr) : Json(w.worker->iteration);
       },
       Shown::kAlways},
      {"STEPS", "steps", "steps", "steps trained under its rank, over all its processes",
       [](const Line& w) {
         return w.worker->trained ? Json(w.worker->trained->steps) : Json(nullptr);
       },
       Shown::kWhereTold},
      {"SAMPLES", "samples", "samples", "samples trained under its rank, as far as steps told them",
       [](const Line& w) {
         return w.worker->trained ? Json(w.worker->trained->samples) : Json(nullptr);
       },
       Shown::kWhereNotZero},
      {"NOT FINITE", "nonfinite", "steps",
       "steps under its rank with values that are not finite (on_nonfinite)",
       [](const Line& w) { return w.worker->nonfinite; }, Shown::kWhereNotZero},
      {"LAST GROUP", "last_group", "", "the last one that it reported on",
       [](const Line& w) {
         return w.worker->last_group == kNoGroup ? Json(nullptr) : Json(w.worker->last_group);
       },
       TrainsInGroups(plan) ? Shown::kWhereTold : Shown::kInJson,
       [](const Line& w) { return LastGroup(*w.worker); }},
      {"", "last_ok", "", "that group succeeded", [](const Line& w) { return w.worker->last_ok; },
       Shown::kInJson},
      {"", "owed_gradients", "gradients", "gradients of its steps that no round has taken yet",
       [](const Line& w) { return w.worker->owed; }, Shown::kInJson},
      {"", "local_steps", "steps", "local steps since its last round, as it last told",
       [](const Line& w) { return w.worker->local_steps; }, Shown::kInJson},
  };
  Append<Line>(
      ExchangeColumns(), [](const Line& w) { return w.exchange; }, &columns);
  const std::vector<Column<Line>> rest = {
      {"SHARE", "share", "samples", "of a job with a batch: its part of each step's samples",
       [](const Line& w) { return w.worker->share ? Json(*w.worker->share) : Json(nullptr); },
       Shown::kWhereTold},
      {"EXPECTED", "share_expected_ns", "ns",
       "how long it is expected to compute its share; STEP is what its last step took",
       [](const Line& w) { return OrNull(w.worker->expected_ns); }, Shown::kWhereTold},
      {"MEMORY", "host_bytes", "bytes", "that its library holds in host memory beside its tensors",
       [](const Line& w) { return w.worker->memory.host; }, Shown::kWhereNotZero,
       [](const Line& w) { return MiB(w.worker->memory.host); }},
      {"", "host_peak_bytes", "bytes", "the most of these so far",
       [](const Line& w) { return w.worker->memory.host_peak; }, Shown::kInJson},
      {"ON DEVICE", "device_bytes", "bytes", "that its library holds on the device",
       [](const Line& w) { return w.worker->memory.device; }, Shown::kWhereNotZero,
       [](const Line& w) { return MiB(w.worker->memory.device); }},
      {"", "device_peak_bytes", "bytes", "the most of these so far",
       [](const Line& w) { return w.worker->memory.device_peak; }, Shown::kInJson},
      {"STEP", "step_ns", "ns", "its last step, waiting excluded",
       [](const Line& w) { return OrNull(w.worker->step_ns); }, Shown::kAlways},
      {"HEARD", "heard_ns", "ns",
       "how long ago it was last heard of; nothing of a run that is over",
       [](const Line& w) { return OrNull(w.worker->heard_ns); }, Shown::kWhereTold,
       [](const Line& w) {
         return w.worker->heard_ns ? Age(w.worker->heard_ns) + " ago" : std::string();
       }},
      {"PID", "pid", "", "of its process", [](const Line& w) { return w.worker->pid; },
       Shown::kAlways},
      {"HOST", "host_name", "", "its host's name",
       [](const Line& w) { return w.worker->host_name; }, Shown::kAlways, nullptr, Align::kLeft},
      {"", "why", "", "why it waits, what it last did, or why it is gone",
       [](const Line& w) { return w.worker->why; }, Shown::kInJson},
  };
  columns.insert(columns.end(), rest.begin(), rest.end());
  return columns;
}

// The options of the run's engine that are not at their defaults.
Result<std::string> OptionsOf(HistorySource& source, RunId run) {
  std::string text;
  PRD_RETURN_IF_ERROR(ForEachRecord(source, run, 0, [&](const Record& record) {
    const auto* started = std::get_if<RunStarted>(&record.body);
    const Result<JobSpec> spec = JobSpecFromToml(started == nullptr ? "" : started->spec);
    text = spec.ok() ? OptionsText(spec->engine) : "?";
    return false;  // the first record says it
  }));
  return text;
}

Json RefusedJson(const std::vector<RefusalRow>& refusals) {
  Json refused = Json::array();
  for (const RefusalRow& row : refusals) {
    refused.push_back({{"rank", row.refused.rank},
                       {"host_name", row.refused.host_name},
                       {"pid", row.refused.pid},
                       {"code", CodeName(row.refused.code)},
                       {"reason", row.refused.reason},
                       {"ago_ns", row.ago_ns}});
  }
  return refused;
}

void PrintRefused(const std::vector<RefusalRow>& refusals, const Console& console) {
  for (const auto& [refused, ago_ns] : refusals) {
    console.out << "refused " << words::Duration(ago_ns)
                << " ago: " << (refused.rank == kNoRank ? "a worker" : RankName(refused.rank))
                << " (pid " << refused.pid << " on " << Harmless(refused.host_name)
                << "): " << Harmless(refused.reason) << '\n';
  }
}

}  // namespace

Status PrintInTurn(HistorySource& source, const RunInfo& run, const Console& console,
                   const char* before) {
  if (console.json) return Status::Ok();
  if (run.first > 0) console.out << before << TrimmedText(run) << '\n';
  const Result<std::string> text = InTurnText(source, run);
  if (!text.ok()) return text.status();
  if (!text->empty()) console.out << before << *text << '\n';
  return Status::Ok();
}

Status ShowJobs(HistorySource& source, bool options, bool all_runs, const Console& console) {
  const bool every = all_runs || console.json;
  Result<HistorySource::RecentRuns> recent =
      source.Recent(every ? std::numeric_limits<std::size_t>::max() : kJobsListed);
  if (!recent.ok()) return recent.status();
  const std::vector<RunInfo>* runs = &recent->runs;
  std::vector<std::string> texts;
  for (const RunInfo& run : *runs) {
    Result<std::string> text = options ? OptionsOf(source, run.run) : std::string();
    if (!text.ok()) return text.status();
    texts.push_back(*std::move(text));
  }
  std::optional<StallRow> stalled;
  if (std::any_of(runs->begin(), runs->end(), [](const RunInfo& run) { return !run.ended; })) {
    const Result<DaemonStatus> daemon = source.Daemon();
    if (daemon.ok()) stalled = StallOf(*daemon);
  }
  std::vector<std::optional<RunProgress>> progress;
  for (const RunInfo& run : *runs) progress.push_back(LoadProgress(source, run));
  if (console.json) {
    Json all = Json::array();
    for (std::size_t i = 0; i < runs->size(); ++i) {
      all.push_back(ToJson((*runs)[i]));
      const std::optional<RunProgress>& of = progress[i];
      const std::optional<Trained> trained = TrainedOf((*runs)[i], of);
      all.back()["steps"] = trained ? Json(trained->steps) : Json(nullptr);
      all.back()["samples"] = trained ? Json(trained->samples) : Json(nullptr);
      all.back()["done"] = of ? Json(of->job.done) : Json(nullptr);
      all.back()["stopped"] = of && !of->stopped.empty() ? Json(of->stopped) : Json(nullptr);
      all.back()["differ"] = of ? Json(of->differ) : Json(nullptr);
      all.back()["paused"] = of ? PausedJson(of->paused) : Json(nullptr);
      if (options) all.back()["options"] = texts[i];
    }
    console.out << Dump({{"stalled", StallJson(stalled)}, {"runs", std::move(all)}}) << '\n';
    return Status::Ok();
  }
  PrintStall(stalled, console);
  std::vector<Table::Column> columns = {{"RUN", Align::kRight},
                                        {"JOB"},
                                        {"ENGINE"},
                                        {"STATE"},
                                        {"STEPS", Align::kRight},
                                        {"SAMPLES", Align::kRight},
                                        {"RECORDS", Align::kRight},
                                        {"STARTED (UTC)"}};
  if (options) columns.push_back({"OPTIONS"});
  columns.push_back({"END"});
  Table table(columns);
  for (std::size_t i = 0; i < runs->size(); ++i) {
    const RunInfo& run = (*runs)[i];
    const std::optional<Trained> trained = TrainedOf(run, progress[i]);
    std::vector<std::string> cells = {std::to_string(run.run),
                                      run.job,
                                      run.engine,
                                      StateOfRun(run) + Besides(progress[i]),
                                      TrainedText(trained, &Trained::steps),
                                      TrainedText(trained, &Trained::samples),
                                      std::to_string(run.records),
                                      WallTime(run.started_wall_ns)};
    if (options) cells.push_back(texts[i]);
    cells.push_back(run.end);
    table.Add(std::move(cells));
  }
  table.Print(console.out);
  if (!recent->all) console.out << "(older runs that have ended are left out: --all shows them)\n";
  return Status::Ok();
}

Status ShowWorkers(HistorySource& source, const std::string& run, const Console& console) {
  Result<RunInfo> info = FindRun(source, run);
  if (!info.ok()) return info.status();
  Result<Present> present = LoadPresent(source, *info);
  if (!present.ok()) return present.status();
  // What they are at now comes from all that was recorded, not from the controller's state.
  const bool exchanges = !TrainsInGroups(present->plan);
  Result<ExchangeMeter> exchange =
      exchanges ? MeasureExchange(source, *info) : Result<ExchangeMeter>(ExchangeMeter());
  if (!exchange.ok()) return exchange.status();
  std::vector<WorkerLine> lines;
  for (const WorkerRow& worker : present->workers) {
    lines.push_back({&*present, &worker,
                     exchanges ? LineOf(*exchange, worker.rank) : std::optional<ExchangeLine>()});
  }
  const std::vector<Column<WorkerLine>> columns = WorkerColumns(present->plan);
  if (console.json) {
    Json workers = Json::array();
    for (const WorkerLine& line : lines) {
      workers.push_back(Json::object());
      AddValues(columns, line, &workers.back());
    }
    console.out << Dump({{"run", ToJson(*info)}, {"workers", std::move(workers)}}) << '\n';
    return Status::Ok();
  }
  console.out << Title(*info) << '\n';
  PRD_RETURN_IF_ERROR(PrintInTurn(source, *info, console));
  TableOf(columns, lines).Print(console.out);
  if (FollowsSchedule(present->plan)) {
    console.out << "workers follow a schedule (prdctl groups) and report no groups\n";
  }
  return Status::Ok();
}

std::string WorkersColumns() { return HelpOf(WorkerColumns({})); }

Status Explain(HistorySource& source, const std::string& run, std::optional<Rank> rank,
               const Console& console) {
  Result<RunInfo> info = FindRun(source, run);
  if (!info.ok()) return info.status();
  Result<Present> present = LoadPresent(source, *info);
  if (!present.ok()) return present.status();
  if (!TrainsInGroups(present->plan)) {
    Result<ExchangeMeter> exchange = MeasureExchange(source, *info);
    if (!exchange.ok()) return exchange.status();
    for (WorkerRow& w : present->workers) w.others = OthersOf(*exchange, w.rank);
  }
  Json workers = Json::array();
  Table table({{"RANK", Align::kRight}, {"STATE"}, {"WHY"}});
  for (const WorkerRow& w : present->workers) {
    if (rank && w.rank != *rank) continue;
    workers.push_back({{"rank", w.rank}, {"state", w.state}, {"here", w.here}, {"why", w.why}});
    for (const auto& [other, does] : w.others) {
      workers.back()["others"].push_back({{"rank", other}, {"does", does}});
    }
    table.Add({std::to_string(w.rank), w.state, w.why});
  }
  std::vector<RefusalRow> refusals = present->refusals;
  if (rank) std::erase_if(refusals, [&](const auto& row) { return row.refused.rank != *rank; });
  if (rank && workers.empty() && refusals.empty()) {
    std::vector<Rank> ranks;
    for (const WorkerRow& w : present->workers) ranks.push_back(w.rank);
    return Status(Code::kNotFound, "rank: found " + std::to_string(*rank) + ", in " + Title(*info) +
                                       (ranks.empty() ? " nobody has come yet"
                                                      : " there are " + words::Ranks(ranks)));
  }
  if (console.json) {
    console.out << Dump({{"run", ToJson(*info)},
                         {"stalled", StallJson(present->stalled)},
                         {"paused", PausedJson(present->paused)},
                         {"warning", present->pace.empty() ? Json(nullptr) : Json(present->pace)},
                         {"workers", std::move(workers)},
                         {"refused", RefusedJson(refusals)}})
                << '\n';
    return Status::Ok();
  }
  PrintStall(present->stalled, console);
  if (rank) {
    if (present->paused) console.out << Harmless(PausedText(*present->paused)) << '\n';
    PrintRefused(refusals, console);
    if (workers.empty()) return Status::Ok();
    console.out << "rank " << *rank << ": " << Harmless(workers[0]["why"].get<std::string>())
                << '\n';
    for (const Json& other : workers[0].value("others", Json::array())) {
      console.out << "  rank " << other["rank"].get<Rank>() << ": "
                  << Harmless(other["does"].get<std::string>()) << '\n';
    }
    return Status::Ok();
  }
  console.out << Title(*info) << '\n';
  PRD_RETURN_IF_ERROR(PrintInTurn(source, *info, console));
  if (present->paused) console.out << Harmless(PausedText(*present->paused)) << '\n';
  if (!present->pace.empty()) console.out << "warning: " << present->pace << '\n';
  table.Print(console.out);
  PrintRefused(refusals, console);
  return Status::Ok();
}

Status ShowLinks(HistorySource& source, const std::string& run, const Console& console) {
  Result<RunInfo> info = FindRun(source, run);
  if (!info.ok()) return info.status();
  Result<Present> present = LoadPresent(source, *info);
  if (!present.ok()) return present.status();
  Json links = Json::array();
  Table table({{"A", Align::kRight},
               {"B", Align::kRight},
               {"BROKEN FOR", Align::kRight},
               {"ASKED BY", Align::kRight},
               {"A AT"},
               {"B AT"},
               {"WHY"}});
  for (const LinkRow& link : present->links) {
    links.push_back({{"a", link.a},
                     {"b", link.b},
                     {"broken_ns", link.broken_ns},
                     {"asked_by", link.asks},
                     {"a_endpoints", link.a_endpoints},
                     {"b_endpoints", link.b_endpoints},
                     {"reason", link.reason}});
    table.Add({std::to_string(link.a), std::to_string(link.b), words::Duration(link.broken_ns),
               std::to_string(link.asks), ForOtherHosts(link.a_endpoints),
               ForOtherHosts(link.b_endpoints), link.reason});
  }
  if (console.json) {
    console.out << Dump({{"run", ToJson(*info)}, {"links", std::move(links)}}) << '\n';
    return Status::Ok();
  }
  console.out << Title(*info) << '\n';
  PRD_RETURN_IF_ERROR(PrintInTurn(source, *info, console));
  if (links.empty()) {
    console.out << "no link between workers is known to be broken\n";
  } else {
    table.Print(console.out);
  }
  return Status::Ok();
}

Status ShowDaemon(HistorySource& source, const Console& console) {
  Result<DaemonStatus> daemon = source.Daemon();
  if (!daemon.ok()) return daemon.status();
  const bool told = !daemon->counters.empty();
  if (console.json) {
    Json counters = Json::object();
    for (const auto& [name, value] : daemon->counters) counters[name] = value;
    console.out << Dump({{"version", daemon->version},
                         {"pid", daemon->pid},
                         {"uptime_ns", daemon->uptime_ns},
                         {"now_ns", daemon->now.ns},
                         {"workers", daemon->silences.size()},
                         {"counters", told ? std::move(counters) : Json(nullptr)}})
                << '\n';
    return Status::Ok();
  }
  console.out << "prd " << Harmless(daemon->version) << ", pid " << daemon->pid << ", up "
              << words::Duration(daemon->uptime_ns) << ", " << daemon->silences.size()
              << " workers\n";
  if (!told) {
    console.out << "its counters are for operators ([[identity]] role = \"operator\")\n";
    return Status::Ok();
  }
  Table table({{"COUNTER"}, {"VALUE", Align::kRight}});
  for (const auto& [name, value] : daemon->counters) table.Add({name, std::to_string(value)});
  table.Print(console.out);
  return Status::Ok();
}

Status Operate(HistorySource& source, const std::string& run, const OperatorActed& what,
               const Console& console) {
  Act act{.job = {}, .what = what};
  if (!run.empty()) {
    const Result<std::vector<RunInfo>> runs = source.Runs();
    if (!runs.ok()) return runs.status();
    const Result<RunInfo> info = FindRunIn(*runs, run);
    if (!info.ok()) return info.status();
    const bool two = info->job != run && std::any_of(runs->begin(), runs->end(), [&](auto& other) {
                       return !other.ended && other.job == run;
                     });
    if (two) {
      return Status(Code::kInvalidArgument,
                    "\"" + run + "\" is a run of job " + info->job +
                        ", and the name of another job: give the number of that job's run, or the "
                        "name of this run's job (prdctl jobs)");
    }
    if (info->ended) {
      return Status(Code::kNotFound, "run " + std::to_string(info->run) + " of job " + info->job +
                                         " has ended: " + info->end);
    }
    act.job = info->job;
  }
  const Result<std::string> done = source.Act(act);
  if (!done.ok()) return done.status();
  if (console.json) {
    console.out << Dump({{"verb", VerbName(what.verb)}, {"done", *done}}) << '\n';
  } else {
    console.out << Harmless(*done) << '\n';
  }
  return Status::Ok();
}

Status Replay(HistorySource& source, const std::string& run, const Console& console) {
  Result<std::vector<RunInfo>> runs = FindRunsInTurn(source, run);
  if (!runs.ok()) return runs.status();
  Json all = Json::array();
  std::uint64_t inputs = 0, decisions = 0, open = 0;
  std::optional<FormerRun> left;  // what the run before leaves to the next
  for (const RunInfo& info : *runs) {
    Replayer replayer;
    FormerRun taken;
    PRD_RETURN_IF_ERROR(ReplayAll(source, info, &replayer, [&](const Record& record) {
      if (const auto* started = std::get_if<RunStarted>(&record.body)) taken = started->former;
    }));
    if (left && !(taken == *left)) {
      return Status(Code::kDataLoss, "run " + std::to_string(info.run) +
                                         " does not take over what run " +
                                         std::to_string(info.former) + " has left to it");
    }
    left =
        replayer.run()->next() == nullptr ? std::nullopt : std::optional(*replayer.run()->next());
    inputs += replayer.inputs();
    decisions += replayer.decisions();
    open += replayer.open();
    all.push_back({{"run", info.run},
                   {"engine", info.engine},
                   {"inputs", replayer.inputs()},
                   {"decisions", replayer.decisions()},
                   {"not_recorded", replayer.open()},
                   {"state_hash", Hex(replayer.run()->StateHash())}});
    if (console.json) continue;
    console.out << Title(info) << ": " << replayer.inputs() << " inputs replayed, all "
                << replayer.decisions()
                << " decisions are the recorded ones\nhash of the controller's state after them: "
                << all.back()["state_hash"].get<std::string>()
                << " (the same for the same history and version of prd)\n";
    if (replayer.open() > 0) {
      console.out
          << replayer.open()
          << " decisions of the last input are not recorded: the history ends in the middle\n";
    }
  }
  if (console.json) {
    console.out << Dump({{"run", ToJson(runs->back())},
                         {"inputs", inputs},
                         {"decisions", decisions},
                         {"not_recorded", open},
                         {"state_hash", all.back()["state_hash"]},
                         {"runs", std::move(all)}})
                << '\n';
    return Status::Ok();
  }
  if (runs->size() > 1) {
    console.out << "each run takes over what the one before it has left\n";
    return Status::Ok();
  }
  return PrintInTurn(source, runs->back(), console);
}

}  // namespace prd::ctl
