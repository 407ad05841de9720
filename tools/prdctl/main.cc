// prdctl: reads the command line, opens the history, does the command.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/io/curve.h"
#include "common/io/secret.h"
#include "tools/prdctl/admin_source.h"
#include "tools/prdctl/command_line.h"
#include "tools/prdctl/files_source.h"
#include "tools/prdctl/interrupt.h"
#include "tools/prdctl/output.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

constexpr const char* kAbout =
    "Shows what prd's jobs do and did: which workers synchronised with which, why a worker waits, "
    "which workers are slow. Operators evict workers, drain hosts, end, pause and resume jobs, and "
    "switch their engines.\n"
    "Asks a running daemon (--admin), or reads the history of a stopped one (--state-dir).";

constexpr const char* kFooter =
    R"(A run is one execution of a job, from its first worker to its end. RUN is a run's number, or
a job's name for the newest run of that job. Without RUN, the newest run of all is shown.

A job that was switched (prdctl switch) has a run per engine. `export`, `replay`, `groups
--follow`, `shares --follow` and `serve` show these as one, unless RUN is a number. The others show
the newest, and name the runs before it. Across a switch `iteration` goes on from the highest that
a worker had in the run before, which the final average has; from there on it counts what the new
engine counts: steps, rounds, or a store's clock. `steps` and `samples` of each worker and of the
job go on too.

Examples:
  prdctl jobs                            the newest runs; --all: every run in the history
  prdctl workers mnist                   the workers of job mnist: iteration, pace, state
  prdctl explain mnist                   why each worker of job mnist waits
  prdctl explain 3                       why rank 3 waits, or what rank 3 did last
  prdctl links                           which workers do not reach each other
  prdctl groups --follow                 groups as they form
  prdctl groups --rank 3 --failed        the last failed groups of rank 3
  prdctl groups --kind train             groups that wait, for which members, and the next
  prdctl group 12                        members and weights; in a round, who gave gradients
  prdctl shares mnist                    how the batch of job mnist is divided, and why
  prdctl stragglers                      which workers are slow, and what the others lost to them
  prdctl graph | dot -Tsvg > sync.svg    which workers synchronised with which, as a picture
  prdctl graph --table                   neighbours: tokens, waits on each edge; where each shard is
  prdctl export --format trace -o t.json a trace to open at ui.perfetto.dev
  prdctl serve                           a page for the browser; it prints its address
  prdctl drain node7 --reason "new disk" the workers of host node7 leave; no group fails
  prdctl evict mnist 3                   rank 3 of job mnist is removed
  prdctl pause mnist; prdctl resume mnist
  prdctl prune mnist --keep 3 --dry-run  which runs of mnist would go from the history
  prdctl switch mnist p-reduce group_size=3
  prdctl --state-dir /var/lib/prd replay 7
                                         from the files: does run 7's history lead to its decisions?
  prdctl --json workers | jq '.workers[] | select(.state == "waiting") | .rank'

Exit codes: 0 ok; 1 error; 2 wrong usage; 3 not found (run, rank, group, history);
4 no daemon answers; 5 the history is damaged, or its replay gives other decisions.)";

int ExitCode(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return 0;
    case Code::kInvalidArgument:
      return 2;
    case Code::kNotFound:
      return 3;
    case Code::kUnavailable:
    case Code::kDeadlineExceeded:
      return 4;
    case Code::kDataLoss:
      return 5;
    default:
      return 1;
  }
}

// How to show oneself to a daemon on tcp.
Result<AdminOptions> AdminOf(const Access& access) {
  AdminOptions options{.endpoint = access.admin,
                       .timeout_ns = access.timeout_ms * kMillisecond,
                       .stop_fd = InterruptFd(),
                       .keys = {},
                       .server_key = access.server_key};
  if (!access.admin.starts_with("tcp://")) return options;
  if (access.key.empty() || access.server_key.empty()) {
    return Status(Code::kInvalidArgument,
                  "--admin " + access.admin +
                      ": over tcp a daemon lets in whom it knows by a key: give --key FILE, your "
                      "secret key, and --server-key KEY, the daemon's public key");
  }
  PRD_RETURN_IF_ERROR(TakeKey("--server-key (PRD_CURVE_SERVER_KEY)", &options.server_key));
  Result<CurveKeys> keys = ReadSecretKeyFile(access.key);
  if (!keys.ok()) return keys.status();
  options.keys = std::move(*keys);
  HideMemory();
  return options;
}

// An unset variable of a script would mean all there is.
void RefuseEmptyWords(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.empty() && !(word.starts_with("--") && word.ends_with('='))) continue;
    throw CLI::ValidationError(word.empty() ? "argument " + std::to_string(i) : std::string(word),
                               "found nothing in it, allowed is a word");
  }
}

// 1 when output could not be written. A reader that went away (`| head`) is no error.
int Written(std::ostream& out, const OutputBuffer& buffer) {
  out.flush();
  if (buffer.error() == 0 || buffer.error() == EPIPE) return 0;
  std::cerr << "prdctl: the output cannot be written: " << std::strerror(buffer.error()) << '\n';
  return 1;
}

int Report(const Status& status) {
  if (!status.ok()) std::cerr << "prdctl: " << Harmless(status.message()) << '\n';
  return ExitCode(status);
}

int NoCommand(const CLI::App& app) {
  std::string all;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    all += (all.empty() ? "" : ", ") + sub->get_name();
  }
  const std::vector<std::string> words = app.remaining();
  std::cerr << "prdctl: " << (words.empty() ? "no command" : "\"" + words[0] + "\" is no command")
            << "; allowed are " << all << " (prdctl --help)\n";
  return 2;
}

int Main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow: an error as others
  if (const Status opened = OpenInterrupts(); !opened.ok()) return Report(opened);
  Flags flags;
  Command command;
  CLI::App app(kAbout, "prdctl");
  app.set_version_flag("--version", std::string("prdctl ") + PRD_VERSION);
  app.require_subcommand(1);
  // A default only: an endpoint in the environment does not contradict --state-dir.
  if (const char* endpoint = std::getenv("PRD_ADMIN")) flags.access.admin = endpoint;
  auto* admin = app.add_option("--admin", flags.access.admin,
                               "The daemon's admin endpoint (also from PRD_ADMIN)")
                    ->capture_default_str();
  if (const char* file = std::getenv("PRD_CURVE_SECRET_KEY_FILE")) flags.access.key = file;
  if (const char* key = std::getenv("PRD_CURVE_SERVER_KEY")) flags.access.server_key = key;
  app.add_option("--key", flags.access.key,
                 "For --admin tcp://HOST:PORT: the file of your secret key (also from "
                 "PRD_CURVE_SECRET_KEY_FILE)");
  app.add_option("--server-key", flags.access.server_key,
                 "The same: the daemon's public key (also from PRD_CURVE_SERVER_KEY)");
  app.add_option("--state-dir", flags.access.state_dir,
                 "Read the history in this directory instead of asking a daemon")
      ->excludes(admin);
  app.add_option("--timeout-ms", flags.access.timeout_ms,
                 "How long to wait for the daemon's answer")
      ->check(CLI::Range(1, 600'000))
      ->capture_default_str();
  app.add_flag("--json", flags.json, "Print JSON");
  AddCommands(app, flags, command);
  for (CLI::App* sub : app.get_subcommands({})) {
    const std::string own = sub->get_footer();
    sub->footer(own + (own.empty() ? "" : "\n\n") + "Examples, exit codes: prdctl --help");
  }
  app.footer(kFooter);  // a command made after it would have it, too
  try {
    RefuseEmptyWords(argc, argv);
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr &&
        app.get_subcommands().empty()) {
      return NoCommand(app);
    }
    return app.exit(error) == 0 ? 0 : 2;
  }
  OutputBuffer buffer(STDOUT_FILENO);
  std::ostream out(&buffer);
  const Console console{.out = out, .json = flags.json, .stop = Interrupted};
  if (app.got_subcommand("keygen")) {
    const int code = Report(Keygen(flags, console));
    const int written = Written(out, buffer);
    return code != 0 ? code : written;
  }
  std::unique_ptr<HistorySource> source;
  if (!flags.access.state_dir.empty()) {
    Result<std::unique_ptr<HistorySource>> files = OpenFilesSource(flags.access.state_dir);
    if (!files.ok()) return Report(files.status());
    source = std::move(files).value();
  } else {
    Result<AdminOptions> options = AdminOf(flags.access);
    if (!options.ok()) return Report(options.status());
    source = MakeAdminSource(std::move(options).value());
  }
  const Status status = command(*source, console);
  const int written = Written(out, buffer);
  const int code = Report(status);
  return code != 0 ? code : written;
}

}  // namespace
}  // namespace prd::ctl

int main(int argc, char** argv) { return prd::ctl::Main(argc, argv); }
