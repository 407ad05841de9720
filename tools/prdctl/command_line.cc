#include "tools/prdctl/command_line.h"

#include <memory>
#include <utility>

#include "common/base/text.h"
#include "engines/any_engine.h"
#include "tools/prdctl/export.h"
#include "tools/prdctl/interrupt.h"
#include "tools/prdctl/json.h"
#include "tools/prdctl/keygen.h"
#include "tools/prdctl/prune.h"
#include "tools/prdctl/serve.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

// By the ways in which groups come about; a run has one of them.
constexpr const char* kGroupsFooter =
    R"(Groups of members that are ready:
  running    its members reduce
  ok         all have the result
  partial    some have it, and the others copy it from them
  failed     nobody has it
  passive    in a round of gradients, a member that had none
Groups drawn before their members are ready:
  buffered   drawn for when its members ask
  pending    a member has asked for it, but groups before it go first
  waits      announced; the members named compute still
  running    all members are in it
  passive    a member that takes part on another one's account
  conflict   the group was drawn while a member was in another one
Groups that the workers draw themselves are not reported: the schedule in force is shown, by phases.

)";

constexpr const char* kStragglersFooter =
    R"(What a worker waits for, by the way in which workers synchronise:
  groups of members that are ready    from its signal on, for the other members of its group
  groups drawn before that            from its signal on, for groups before its own, then for
                                      members that compute
  averages in the background          nothing: they do not stop the training loop
  updates of neighbours               for neighbours that are not so far, then for their tokens
  parameters in shards                for the slowest clocks

)";

// As the daemon takes it (config/engine_text.h).
std::string EngineLine(const Flags& flags) {
  std::string line = flags.engine;
  for (std::size_t i = 0; i < flags.settings.size(); ++i) {
    line += (i == 0 ? ":" : ",") + flags.settings[i];
  }
  return line;
}

Status Groups(HistorySource& source, const Flags& flags, const Console& console) {
  GroupsQuery query;
  query.filter.rank = flags.rank;
  query.filter.failed = flags.failed;
  query.last = flags.last_groups;
  query.follow = flags.follow;
  for (const GroupKind kind : {GroupKind::kTrain, GroupKind::kRound, GroupKind::kAverage,
                               GroupKind::kInitial, GroupKind::kFinal}) {
    if (flags.kind == KindName(kind)) query.filter.kind = kind;
  }
  if (!flags.since.empty()) {
    Result<DurationNs> since = ParseDuration(flags.since);
    if (!since.ok()) return Status(since.status().code(), "--since: " + since.status().message());
    query.since = *since;
  }
  if (query.follow) EndOnSignals();
  return ShowGroups(source, flags.run, query, console);
}

Status ExportAs(HistorySource& source, const Flags& flags, const Console& console) {
  const ExportFormat format = flags.format == "csv"     ? ExportFormat::kCsv
                              : flags.format == "trace" ? ExportFormat::kTrace
                                                        : ExportFormat::kJsonLines;
  if (!flags.file.empty()) EndOnSignals();
  return Export(source, flags.run, format, flags.file, console);
}

Status Prune(HistorySource& source, const Flags& flags, const Console& console) {
  PruneQuery query{
      .job = flags.run, .wall_ns = {}, .keep = flags.prune.keep, .dry_run = flags.prune.dry_run};
  if (!flags.prune.before.empty()) {
    const Result<std::int64_t> before = ParseDate(flags.prune.before);
    if (!before.ok()) {
      return Status(before.status().code(), "--before: " + before.status().message());
    }
    query.wall_ns = *before;
  }
  return PruneRuns(source, query, console);
}

bool IsRankText(const std::string& text) {
  return !text.empty() && text.size() < 10 &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

// As a list of values in a help text.
std::string EngineNames() {
  std::string names;
  for (const EngineOptions& options : AllEngines()) {
    names += (names.empty() ? "" : ",") + std::string(EngineName(options));
  }
  return names;
}

CLI::Validator IsRank() {
  return CLI::Validator(
      [](const std::string& text) {
        return IsRankText(text) ? std::string()
                                : "found \"" + text + "\", allowed is a worker's rank: 0, 1, ...";
      },
      "");
}

// An unsigned number, which would be another one with a sign, or with more digits.
CLI::Validator IsCount() {
  return CLI::Validator(
      [](const std::string& text) {
        const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
        return digits && text.size() < 19 ? std::string()
                                          : "found \"" + text + "\", allowed is 0, 1, ...";
      },
      "");
}

CLI::Validator IsFactor() {
  return CLI::Validator(
      [](const std::string& text) {
        double factor = 0;
        return CLI::detail::lexical_cast(text, factor) && factor > 0
                   ? std::string()
                   : "found \"" + text + "\", allowed is a number above 0";
      },
      "");
}

CLI::Validator IsShort() {
  return CLI::Validator(
      [](const std::string& text) {
        return text.size() <= kMaxText ? std::string()
                                       : "found " + std::to_string(text.size()) +
                                             " bytes, allowed are " + std::to_string(kMaxText);
      },
      "");
}

// `explain 3`, `explain mnist`, `explain 3 mnist`, `explain mnist 3`: a number first is a rank.
void ReadRankAndRun(const std::string& first, Flags* f) {
  std::string rank = first;
  if (!first.empty() && !IsRankText(first)) {
    rank = f->run;
    f->run = first;
  }
  if (rank.empty()) return;
  const std::string wrong = IsRank()(rank);
  if (!wrong.empty()) throw CLI::ValidationError("rank", wrong);
  f->rank = static_cast<Rank>(std::stol(rank));
}

// One command that reads a run's history. `run`: it may be named.
CLI::App* Add(CLI::App& app, Flags& f, Command& chosen, const char* name, const char* about,
              Command command, bool run = true) {
  CLI::App* sub = app.add_subcommand(name, about);
  sub->fallthrough();  // --json and the like may stand after the command too
  if (run) sub->add_option("run,-r,--run", f.run, "Run number or job name (default: newest run)");
  sub->callback([&chosen, command = std::move(command)] { chosen = command; });
  return sub;
}

// What there is: runs, workers, groups, shares.
void AddListing(CLI::App& app, Flags& f, Command& chosen) {
  const auto add = [&](const char* name, const char* about, Command command, bool run = true) {
    return Add(app, f, chosen, name, about, std::move(command), run);
  };
  CLI::App* jobs = add(
      "jobs",
      "The newest runs: number, job, engine, state, and why each ended. finished: its workers have "
      "the final average. left: its last worker left before that, by a signal, say. switched: the "
      "job goes on in another run, which END names. lost: its last worker was lost. never began: "
      "too few workers came",
      [&f](auto& s, auto& c) { return ShowJobs(s, f.options, f.all, c); }, false);
  jobs->add_flag("--options", f.options,
                 "Also the engine's options that are not at their defaults");
  jobs->add_flag("--all", f.all,
                 "All runs; otherwise the newest 200, and all that go on. --json has all");
  CLI::App* workers =
      add("workers", "State, position, step time, last heard, pid and host of each worker",
          [&f](auto& s, auto& c) { return ShowWorkers(s, f.run, c); });
  workers->footer(WorkersColumns() + "\n");

  CLI::App* groups = add("groups", "The last groups, with their reasons",
                         [&f](auto& s, auto& c) { return Groups(s, f, c); });
  groups->footer(kGroupsFooter);
  groups->add_option("--rank", f.rank, "Only groups with this rank")->check(IsRank());
  groups
      ->add_option(
          "--kind", f.kind,
          "Only groups of this kind. train: of steps. round: of gradients, with all workers, while "
          "they compute. average: of models, between rounds. initial, final: the common start and "
          "the final average")
      ->check(CLI::IsMember({"train", "round", "average", "initial", "final"}));
  groups->add_flag("--failed", f.failed, "Only groups that failed");
  groups->add_option("--since", f.since,
                     "Only groups formed at most this long before the newest record (90s, 5m)");
  groups->add_option("--last", f.last_groups, "How many groups at most; 0: all")
      ->check(IsCount())
      ->capture_default_str();
  groups->add_flag("--follow,-f", f.follow,
                   "Print each new group as it forms, until the job ends or Ctrl-C");

  CLI::App* group = app.add_subcommand(
      "group",
      "One group: its members, their weights, how long each waited and reduced. Of a round: which "
      "members gave gradients, which had none (passive), which copied the result from a peer");
  group->fallthrough();
  group->add_option("id", f.group, "The group's number")->required()->check(IsCount());
  group->add_option("run,-r,--run", f.run, "Run number or job name (default: newest run)");
  group->callback(
      [&] { chosen = [&f](auto& s, auto& c) { return ShowGroup(s, f.run, f.group, c); }; });

  CLI::App* shares =
      add("shares",
          "The workers' shares of a job's batch: each change of them, and why. "
          "\"3: 128 > 40\" is the share of rank 3 before and after; \"3: +20\" is what "
          "it computes besides, in one step, in place of a worker that was lost",
          [&f](auto& s, auto& c) {
            if (f.follow) EndOnSignals();
            return ShowShares(s, f.run, f.last_groups, f.follow, c);
          });
  shares->add_option("--last", f.last_groups, "How many changes at most; 0: all")
      ->check(IsCount())
      ->capture_default_str();
  shares->add_flag("--follow,-f", f.follow,
                   "Print each change as it is made, until the job ends or Ctrl-C");
}

// What it means: why workers wait, who is slow, how updates spread.
void AddAnalysis(CLI::App& app, Flags& f, Command& chosen) {
  const auto add = [&](const char* name, const char* about, Command command, bool run = true) {
    return Add(app, f, chosen, name, about, std::move(command), run);
  };
  CLI::App* explain = app.add_subcommand("explain",
                                         "Why each worker waits, or what it did last; and which "
                                         "workers were refused, and why. For one "
                                         "worker also: what the other members of its group do, "
                                         "what its neighbours do, or, of a store, "
                                         "the other workers' clocks");
  explain->fallthrough();
  explain->add_option(
      "rank", f.rank_or_job,
      "One worker's rank (default: all); or the job's name, alone or before a rank");
  explain->add_option("run,-r,--run", f.run, "Run number or job name (default: newest run)");
  explain->callback([&] {
    ReadRankAndRun(f.rank_or_job, &f);
    chosen = [&f](auto& s, auto& c) { return Explain(s, f.run, f.rank, c); };
  });

  add("links",
      "Broken links between live workers: since when, and why the controller takes them for "
      "broken. ASKED BY: the worker that probes the other one; the link works again "
      "once that answers. Engines that choose who is in a group put no such two into one; others "
      "go around the link where they can, or wait. Links that no group needed are not known",
      [&f](auto& s, auto& c) { return ShowLinks(s, f.run, c); });

  CLI::App* stragglers =
      add("stragglers",
          "Who is slow, what the others lost waiting for it, and what of its work was not used",
          [&f](auto& s, auto& c) { return ShowStragglers(s, f.run, f.slow_factor, c); });
  stragglers->footer(StragglersColumns() + kStragglersFooter);
  stragglers
      ->add_option("--factor", f.slow_factor,
                   "A worker with steps this many times the median worker's counts as slow")
      ->check(IsFactor())
      ->capture_default_str();

  CLI::App* graph = add(
      "graph",
      "Who synchronised with whom, as a DOT graph. Of rounds of gradients, where everybody gets "
      "the sum: who contributed to the same. Of a static schedule: in how many of its phases a "
      "pair meets.\n"
      "Of neighbours: who sends updates to whom, with their weights, and at which iteration each "
      "is; red: who waits, and an update or token that is missing. Of a store: who has copies of "
      "whose shards; --table: where each shard is",
      [&f](auto& s, auto& c) { return ShowGraph(s, f.run, f.last, f.table, c); });
  graph->add_flag("--table", f.table, "Print a table instead of DOT");
  graph->add_option("--last", f.last, "Count only this many groups, the last ones (default: all)")
      ->check(IsCount());
  CLI::App* gap = add(
      "spectral-gap",
      "How fast an update spreads to all workers: rho and the gap 1 - rho. For engines that "
      "average within groups, by a static schedule, or with neighbours (these also as the paper "
      "of Hop counts the gap). Refused where each update reaches all workers anyway",
      [&f](auto& s, auto& c) { return ShowSpectralGap(s, f.run, f.last, c); });
  gap->add_option("--last", f.last, "Count only this many groups, the last ones (default: all)")
      ->check(IsCount());

  CLI::App* exporting = add(
      "export",
      "A job for other tools: JSON lines, CSV, a trace for Perfetto. A job that was switched is "
      "exported whole; a run's number exports that run alone",
      [&f](auto& s, auto& c) { return ExportAs(s, f, c); });
  exporting
      ->add_option("--format", f.format,
                   "jsonl: all records. csv: one line per group and member. trace: for "
                   "ui.perfetto.dev; work beside the training loop has a track of its own")
      ->check(CLI::IsMember({"jsonl", "csv", "trace"}))
      ->capture_default_str();
  exporting->add_option("-o,--output", f.file, "Write to this file instead of the standard output");
}

// Operators' orders.
void AddOperating(CLI::App& app, Flags& f, Command& chosen) {
  const auto operate = [&](const char* name, const char* about, OperatorVerb verb) {
    CLI::App* sub = app.add_subcommand(name, about);
    sub->fallthrough();
    sub->add_option("--reason", f.reason,
                    "Why: for the history, the audit log, and the workers that are removed")
        ->check(IsShort());
    sub->callback([&f, &chosen, verb] {
      chosen = [&f, verb](auto& s, auto& c) {
        const OperatorActed what{.verb = verb,
                                 .rank = f.rank.value_or(kNoRank),
                                 .host = f.host,
                                 .by = {},
                                 .reason = f.reason,
                                 .spec = EngineLine(f)};
        return Operate(s, f.run, what, c);
      };
    });
    return sub;
  };
  const char* const job = "A job's name, or the number of its run";
  CLI::App* evict = operate(
      "evict",
      "Remove a worker from its job, as if it had left. Its Step returns an error with the reason, "
      "and it does not join again by itself; a new process may. The groups that it is in fail",
      OperatorVerb::kEvict);
  evict->add_option("job", f.run, job)->required();
  evict->add_option("rank", f.rank, "The worker's rank")->required()->check(IsRank());
  CLI::App* drain = operate(
      "drain",
      "Let the workers of a host leave, each once it is in no group: no group fails, and the "
      "others lose nothing. Their Step returns an error with the reason. The host is not closed: "
      "new processes on it may join",
      OperatorVerb::kDrain);
  drain->add_option("host", f.host, "As `prdctl workers` shows it")->required()->check(IsShort());
  drain->add_option("--job", f.run, "Of this job alone: its name, or the number of its run");
  operate("end",
          "End a job as if its goal were reached: each worker's Step says done at its next "
          "boundary, and all take the final average",
          OperatorVerb::kEnd)
      ->add_option("job", f.run, job)
      ->required();
  operate("pause",
          "Hold the signals of a job's workers at the daemon: groups that run end, and no more "
          "form. Workers wait and keep their leases",
          OperatorVerb::kPause)
      ->add_option("job", f.run, job)
      ->required();
  operate("resume", "Let a job that was paused go on", OperatorVerb::kResume)
      ->add_option("job", f.run, job)
      ->required();
  CLI::App* change = operate(
      "switch",
      "Let a running job go on with another engine, or with other options of the same one. Each "
      "worker ends the step that it is in; then all take their average, and go on in the same "
      "processes in another run of the job, which names this one. Refused, before anything stops, "
      "where an option is wrong, or a worker has attached without the gradients that the engine "
      "needs. For this job alone: a later start of it has the engine of the config",
      OperatorVerb::kSwitch);
  change->add_option("job", f.run, job)->required();
  change->add_option("engine", f.engine, "The engine's name, as in the config")
      ->type_name("TEXT:{" + EngineNames() + "}")
      ->required();
  change->add_option("settings", f.settings,
                     "KEY=VALUE, as in the engine's table of the config; others are at their "
                     "defaults, or stay as they are where the engine stays. Also lease_ms and "
                     "heartbeat_ms of the job");
}

// Commands on the history and on the daemon, and keygen.
void AddOthers(CLI::App& app, Flags& f, Command& chosen) {
  const auto add = [&](const char* name, const char* about, Command command, bool run = true) {
    return Add(app, f, chosen, name, about, std::move(command), run);
  };
  CLI::App* prune = app.add_subcommand(
      "prune",
      "Remove ended runs from the history for good, of a running daemon or with --state-dir of a "
      "stopped one: those of a job, those that began before a date, all but the newest of each "
      "job; what is given must all be so. Prints which they were, and their bytes");
  prune->fallthrough();
  auto* of_job = prune->add_option("job", f.run, "A job's name");
  auto* before = prune->add_option("--before", f.prune.before,
                                   "Only runs that began before this date, in UTC: 2026-11-03, or "
                                   "\"2026-11-03 14:05\"");
  auto* keep = prune->add_option("--keep", f.prune.keep, "Keep this many, the newest, of each job")
                   ->check(IsCount());
  prune->add_flag("--dry-run", f.prune.dry_run, "Remove nothing, and print what would go");
  prune->callback([=, &f, &chosen] {
    if (of_job->count() + before->count() + keep->count() == 0) {
      throw CLI::ValidationError("prune", "found none of JOB, --before and --keep, one is needed");
    }
    chosen = [&f](auto& s, auto& c) { return Prune(s, f, c); };
  });

  add("replay",
      "Run the engine again on the recorded inputs: does it decide the same? Of a job that was "
      "switched all runs, and whether each takes over what the one before it has left",
      [&f](auto& s, auto& c) { return Replay(s, f.run, c); });
  add("status", "The daemon: version, uptime, and the counters that Prometheus gets", ShowDaemon,
      false);

  CLI::App* serve = app.add_subcommand(
      "serve",
      "A page that shows the runs in a browser, live or ended: what each worker does, who waits "
      "for whom, groups as they form, links, steps per second, and the loss that training loops "
      "tell. Prints the page's address, which holds a secret token; it is read-only, and refuses "
      "other users of this host but root");
  serve->fallthrough();
  serve
      ->add_option("--listen", f.listen,
                   "ADDRESS:PORT of this host alone: 127.0.0.1, [::1] or localhost. 0: any port")
      ->capture_default_str();
  serve->callback([&] {
    chosen = [&f](auto& s, auto& c) {
      EndOnSignals();
      return Serve(s, f.listen, c);
    };
  });

  CLI::App* keygen =
      app.add_subcommand("keygen", "Make a CURVE key pair: NAME.key (secret) and NAME.pub");
  keygen->fallthrough();
  keygen->add_option("name", f.key_name, "Path of the two files, without .key and .pub")
      ->required();
}

}  // namespace

void AddCommands(CLI::App& app, Flags& flags, Command& chosen) {
  AddListing(app, flags, chosen);
  AddAnalysis(app, flags, chosen);
  AddOperating(app, flags, chosen);
  AddOthers(app, flags, chosen);
}

Status Keygen(const Flags& flags, const Console& console) {
  Result<KeyFiles> files = GenerateKeyFiles(flags.key_name);
  if (!files.ok()) return files.status();
  if (console.json) {
    console.out << Dump({{"secret_file", files->secret_file},
                         {"public_file", files->public_file},
                         {"public_key", files->public_key}})
                << '\n';
    return Status::Ok();
  }
  console.out
      << files->secret_file << "  the secret key: keep it where only its owner can read it\n"
      << files->public_file << "  the public key: " << files->public_key << '\n'
      << "For the daemon: curve_secret_key_file = \"" << files->secret_file
      << "\"; its workers get the public key as PRD_CURVE_SERVER_KEY.\n"
      << "For a worker: PRD_CURVE_SECRET_KEY_FILE=" << files->secret_file
      << "; the public key becomes one of `keys` of an [[identity]] in the daemon's config, or a "
         "line of its curve_authorized_keys_file.\n"
      << "For prdctl over tcp: --key " << files->secret_file
      << "; the public key goes to the same place.\n";
  return Status::Ok();
}

}  // namespace prd::ctl
