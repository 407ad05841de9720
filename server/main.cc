// prd: the controller daemon.
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/io/curve.h"
#include "common/io/file_access.h"
#include "common/io/log.h"
#include "config/config.h"
#include "config/engines_json.h"
#include "server/access.h"
#include "server/daemon.h"
#include "server/ephemeral.h"

namespace {

constexpr int kFailed = 1;     // something that may be different the next time
constexpr int kBadConfig = 2;  // the configuration or the command line
constexpr std::string_view kIpc = "ipc://";

constexpr const char* kAbout =
    "prd keeps data-parallel training fast when workers are unequal. It takes a ready signal per\n"
    "step from each training process, decides which of them synchronise, and records every\n"
    "decision.";

constexpr const char* kMore =
    "A first run:\n"
    "  prd --config prd.toml --check-config    checks the file; each error names its line\n"
    "  prd --config prd.toml                   runs in the foreground; the log is on stderr\n"
    "  PRD_JOB=mnist ./trainer                 starts a program that links the worker library\n"
    "  prdctl jobs                             shows the runs; prdctl --help has more\n"
    "\n"
    "For one job alone, as its user and without root, also on a cluster with strangers:\n"
    "  prd --ephemeral --config job.toml --env-file prd.env & \n"
    "  until [ -e prd.env ]; do sleep 0.1; done; . ./prd.env\n"
    "  mpirun --enable-recovery -np 8 ./trainer    the others go on when one dies\n"
    "PRD_JOB is in prd.env if job.toml has one [[job]], whose name is no pattern.\n"
    "\n"
    "As a service: `systemctl enable --now prd` starts it with the system, and again when it has\n"
    "failed, or has hung for 10 s. A wrong configuration it does not start again; `systemctl "
    "status\n"
    "prd` and `journalctl -u prd` say what is wrong. `systemctl reload prd` checks the file "
    "first,\n"
    "and fails if it is wrong. A drop-in (`systemctl edit prd`) names the networks that may "
    "connect\n"
    "(IPAddressAllow=) and the secret key (LoadCredential=prd-secret-key:FILE). A worker may be a\n"
    "service, too: prd-worker@.service among the samples is an example.\n"
    "\n"
    "Signals: SIGHUP reads the file again. Runs that begin later use it; a file with errors "
    "changes\n"
    "nothing. SIGTERM and SIGINT stop prd. Workers train on and find the next prd by themselves.\n"
    "Exit codes: 0 stopped or checked, 1 cannot run now, 2 wrong configuration or flags.";

// What to do without a configuration. The samples are installed beside this program.
std::string Advice() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path samples = (self.parent_path() / PRD_TO_SAMPLES).lexically_normal();
  if (!std::filesystem::exists(samples, error)) {
    return "A commented sample is config/prd.toml among prd's sources; name another file with "
           "--config";
  }
  return "A commented sample is in " + samples.string() +
         "; copy it, or name another file with --config";
}

prd::Status CheckKeys(const prd::Config& config) {
  const std::string& file = config.daemon.curve_secret_key_file;
  const prd::Status read = file.empty() ? prd::Status::Ok() : prd::ReadSecretKeyFile(file).status();
  if (!read.ok()) {
    return prd::Status(read.code(),
                       config.file + ": daemon.curve_secret_key_file: " + read.message());
  }
  return prd::Access::Load(config).status();
}

// Without the folder of this file or ipc endpoint a start would fail. The unit makes /run/prd and
// /var/log/prd as it starts.
prd::Status CheckFolder(const prd::Config& config, const char* key, std::string_view value) {
  const std::string_view path = value.starts_with(kIpc) ? value.substr(kIpc.size()) : value;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (folder.empty() || folder == "/run/prd" || folder == "/var/log/prd" ||
      std::filesystem::exists(folder, error) || error) {
    return prd::Status::Ok();
  }
  return prd::Status(prd::Code::kInvalidArgument,
                     config.file + ": daemon." + key + ": found \"" + std::string(value) +
                         "\", and there is no folder " + folder.string());
}

// A start makes it. Whose it is shows only then: prd may run as another user. The unit sets the
// mode of /var/lib/prd as it starts.
prd::Status CheckStateDir(const prd::Config& config) {
  const std::string& dir = config.daemon.state_dir;
  std::error_code error;
  if (dir == "/var/lib/prd" || !std::filesystem::exists(dir, error)) return prd::Status::Ok();
  return prd::CheckClosedFolder(config.file + ": daemon.state_dir", dir);
}

prd::Status CheckFolders(const prd::Config& config) {
  const prd::DaemonConfig& daemon = config.daemon;
  PRD_RETURN_IF_ERROR(CheckStateDir(config));
  PRD_RETURN_IF_ERROR(CheckFolder(config, "audit_log", daemon.audit_log));
  if (daemon.listen.starts_with(kIpc)) {
    PRD_RETURN_IF_ERROR(CheckFolder(config, "listen", daemon.listen));
  }
  return daemon.admin.starts_with(kIpc) ? CheckFolder(config, "admin", daemon.admin)
                                        : prd::Status::Ok();
}

// Jobs in which one slow worker holds up all, by a line each: the file is right, and may not be
// what was meant.
std::string Paces(const prd::Config& config) {
  std::string lines;
  for (const prd::JobRule& rule : config.jobs) {
    const int workers = rule.spec.workers != 0 ? rule.spec.workers : rule.spec.max_workers;
    const std::string why = prd::SlowestSetsPace(rule.spec.engine, workers);
    if (why.empty()) continue;
    lines +=
        config.file + ":" + std::to_string(rule.line) + ": job " + rule.pattern + ": " + why + "\n";
  }
  return lines;
}

// Blocked in this thread and, as they inherit it, in all that the libraries start.
int BlockSignals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&set, number);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  // Where a limit on files stands in for a full disk, writes shall fail and not kill.
  std::signal(SIGXFSZ, SIG_IGN);
  return ::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

int Fail(const prd::Status& status, int code) {
  std::fprintf(stderr, "prd: %s\n", status.message().c_str());
  return code;
}

int Print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return 0;
  return Fail({prd::Code::kUnavailable,
               std::string("the output cannot be written: ") + std::strerror(errno)},
              kFailed);
}

// `ephemeral` may be null.
int Serve(prd::Config config, prd::Ephemeral* ephemeral) {
  const int signals = BlockSignals();
  prd::StartLog(config.daemon.log_level);
  auto notifier = prd::Notifier::FromEnvironment();
  if (!notifier.ok()) {
    spdlog::warn("systemd will not be told prd's state: {}", notifier.status().message());
    notifier = prd::Notifier();
  }
  auto daemon = prd::Daemon::Start(std::move(config), std::move(*notifier), signals);
  if (daemon.status().code() == prd::Code::kCancelled) {
    spdlog::info("{}", daemon.status().message());
    return 0;
  }
  if (!daemon.ok()) return Fail(daemon.status(), kFailed);
  if (ephemeral != nullptr) {
    (*daemon)->EndWithItsJob();
    const prd::Status told = ephemeral->Tell((*daemon)->endpoint());
    if (!told.ok()) return Fail(told, kFailed);
  }
  return (*daemon)->Run() ? 0 : kFailed;
}

}  // namespace

int main(int argc, char** argv) {
  std::string file = PRD_CONFIG_FILE;
  bool check = false;
  bool keys = false;
  bool engines = false;
  bool ephemeral = false;
  prd::Ephemeral::Options options;
  CLI::App app{kAbout, "prd"};
  app.footer(kMore);
  app.add_option("--config", file, "The configuration file (TOML)")->capture_default_str();
  app.add_flag("--check-config", check,
               "Print all errors of the configuration, and exit. An address in use, a state_dir of "
               "another user, or a max_connections above the limit on descriptors, only a start "
               "finds");
  app.add_flag("--list-keys", keys,
               "Print every key of the configuration: its default, and the values allowed");
  app.add_flag("--engines-json", engines,
               "Print the engines and their options, with types, ranges and defaults, as JSON");
  CLI::Option* alone = app.add_flag(
      "--ephemeral", ephemeral,
      "Be the controller of one job: with fresh keys and a folder of its own, until the job's "
      "workers have finished. Tells their environment. Of the file, [[job]] counts, and of "
      "[daemon] "
      "what is not told here");
  app.add_option(
         "--env-file", options.env_file,
         "The workers' environment goes there, for this user alone, as lines for a shell; and "
         "their secret key to this name with .key, in a folder that all hosts of the job see. Both "
         "are removed at the end, and are no other prd's that runs. Default: to the standard "
         "output, with the key")
      ->needs(alone);
  app.add_option("--listen", options.listen, "Where the job's workers connect")
      ->needs(alone)
      ->capture_default_str();
  app.add_option("--address", options.address,
                 "What workers on other hosts know this host by. Default: its name")
      ->needs(alone);
  app.add_option("--dir", options.folder,
                 "Where the folder is made that has the history. Default: $TMPDIR, or /tmp")
      ->needs(alone);
  app.add_flag("--keep", options.keep, "Leave that folder there at the end")->needs(alone);
  app.set_version_flag("--version", std::string("prd ") + PRD_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadConfig;
  }
  if (keys) return Print(prd::ConfigReference());
  if (engines) return Print(prd::EnginesJson());
  auto config = prd::LoadConfig(file, prd::DaemonDefaults());
  if (config.status().code() == prd::Code::kNotFound) {
    return Fail({prd::Code::kNotFound, config.status().message() + "\n  " + Advice()}, kBadConfig);
  }
  if (!config.ok()) return Fail(config.status(), kBadConfig);
  std::unique_ptr<prd::Ephemeral> own;
  if (ephemeral && !check) {
    auto made = prd::Ephemeral::Make(options, &*config);
    if (!made.ok()) return Fail(made.status(), kBadConfig);
    own = std::move(*made);
  }
  if (const prd::Status status = CheckKeys(*config); !status.ok()) {
    return Fail(status, kBadConfig);
  }
  if (check) {
    if (const prd::Status status = CheckFolders(*config); !status.ok()) {
      return Fail(status, kBadConfig);
    }
    const std::string& listen = config->daemon.listen;
    return Print(file + ": ok: " + std::to_string(config->jobs.size()) + " [[job]], listens on " +
                 (listen.empty() ? "an ipc socket of its own" : listen) + "\n" + Paces(*config));
  }
  return Serve(std::move(*config), own.get());
}
