// Beginning, and beginning anew: start and reload.
#include <poll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <sstream>
#include <utility>

#include "common/io/clock.h"
#include "common/io/curve.h"
#include "common/io/file_access.h"
#include "common/io/log.h"
#include "common/io/own_socket.h"
#include "common/io/secret.h"
#include "server/daemon.h"

namespace prd {
namespace {

// With fewer descriptors libzmq would abort, or the history find none for its files.
constexpr rlim_t kFewestDescriptors = 256;

// One file descriptor per worker, and ZeroMQ's own limit on sockets is none of connections.
Status RaiseFileLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return Status::Ok();
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max >= kFewestDescriptors) return Status::Ok();
  return Status(Code::kResourceExhausted,
                "found a limit of " + std::to_string(limit.rlim_max) + " descriptors, needed are " +
                    std::to_string(kFewestDescriptors) +
                    " at least: raise it (LimitNOFILE in prd.service, ulimit -n)");
}

constexpr int kRoomPauseMs = 250;  // between looks at a full disk

constexpr DurationNs kLongReading = kSecond;
constexpr DurationNs kTellReading = 5 * kSecond;

// Descriptors that the history, prdctl, the metrics and the libraries need.
constexpr std::size_t kOwnDescriptors = 512;
// Connections that have said nothing. ZeroMQ needs up to 60 KiB for each, and time. A worker speaks
// as soon as it is connected, and those of a job that connect at once do so one after the other.
constexpr std::size_t kSilent = 256;
// TCP connections, on average. To accept one costs some 0.15 ms.
constexpr std::size_t kNewPerS = 500;
// Lines in the log of a reload that is refused.
constexpr int kMostErrors = 20;

// What a connection brings before ZeroMQ has a whole message of it is far below these bounds, also
// while the history cannot be written and nothing is read.
Result<ConnectionGuard::Options> GuardOptions(const DaemonConfig& config) {
  rlimit limit{};
  const bool known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  const std::size_t all = known ? limit.rlim_cur : 65'536;
  const std::size_t most = std::max(all / 4, all - std::min(all, kOwnDescriptors));
  const auto wanted = static_cast<std::size_t>(config.max_connections);
  if (wanted > most) {
    return Status(Code::kInvalidArgument, "max_connections: found " + std::to_string(wanted) +
                                              ", and the limit of " + std::to_string(all) +
                                              " descriptors leaves " + std::to_string(most) +
                                              "; raise it (LimitNOFILE in prd.service, ulimit -n)");
  }
  const auto message = static_cast<std::uint64_t>(config.max_message_bytes);
  return ConnectionGuard::Options{
      .max_connections = wanted > 0 ? wanted : most,
      .max_per_peer = static_cast<std::size_t>(config.max_connections_per_host),
      .max_new_per_s = kNewPerS,
      .max_silent = kSilent,
      .max_unread = std::max<std::uint64_t>(1 << 20, 2 * message),
      .max_unread_silent = 2 * message,
      .max_unread_in_all = std::max<std::uint64_t>(8 << 20, 4 * message),
      .max_backlog = std::max<std::uint64_t>(256 << 10, 4 * message)};
}

history::Bounds BoundsOf(const Config& config) {
  const auto number = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  history::Bounds bounds{.runs_per_job = number(config.daemon.retain_runs),
                         .runs = number(config.daemon.retain_runs_in_all),
                         .bytes = number(config.daemon.retain_bytes),
                         .owners = {}};
  for (const Identity& identity : config.identities) {
    bounds.owners[identity.name] = {.runs = number(identity.max_runs),
                                    .bytes = number(identity.max_history_bytes)};
  }
  return bounds;
}

// The keys of [daemon] that a reload cannot change, where they differ.
std::string NeedRestart(const DaemonConfig& running, const DaemonConfig& wanted) {
  std::string keys;
  const auto compare = [&keys](const char* key, const auto& a, const auto& b) {
    if (a != b) keys += (keys.empty() ? "" : ", ") + std::string(key);
  };
  compare("listen", running.listen, wanted.listen);
  compare("admin", running.admin, wanted.admin);
  compare("state_dir", running.state_dir, wanted.state_dir);
  compare("metrics", running.metrics, wanted.metrics);
  compare("sync", running.sync, wanted.sync);
  compare("snapshot_every", running.snapshot_every, wanted.snapshot_every);
  compare("max_message_bytes", running.max_message_bytes, wanted.max_message_bytes);
  compare("max_connections", running.max_connections, wanted.max_connections);
  compare("max_connections_per_host", running.max_connections_per_host,
          wanted.max_connections_per_host);
  compare("curve_secret_key_file", running.curve_secret_key_file, wanted.curve_secret_key_file);
  return keys;
}

}  // namespace

// Signals that come while prd starts. A reload is for the daemon that runs.
class Daemon::StartSignals {
 public:
  explicit StartSignals(int fd) : fd_(fd) {}
  // The number of one that ends prd, if it comes within the pause.
  std::optional<std::uint32_t> Ending(int pause_ms) {
    pollfd item{.fd = fd_, .events = POLLIN, .revents = 0};
    if (::poll(&item, 1, pause_ms) <= 0) return std::nullopt;
    signalfd_siginfo info{};
    while (::read(fd_, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo != SIGHUP) return info.ssi_signo;
      reload_ = true;
    }
    return std::nullopt;
  }
  // The start is over: what was not for it comes again.
  void GiveBack() const {
    if (reload_) ::kill(::getpid(), SIGHUP);
  }

 private:
  const int fd_;
  bool reload_ = false;
};

Daemon::Daemon(Config config, Notifier notifier)
    : config_(std::move(config)), notifier_(std::move(notifier)) {}

Daemon::~Daemon() = default;

Result<std::unique_ptr<Daemon>> Daemon::Start(Config config, Notifier notifier, int signals) {
  const std::int64_t started_ns = MonotonicNs();
  const std::int64_t started_wall_ns = WallNs();
  PRD_RETURN_IF_ERROR(RaiseFileLimit());
  std::unique_ptr<Daemon> daemon(new Daemon(std::move(config), std::move(notifier)));
  const DaemonConfig& settings = daemon->config_.daemon;
  if (!settings.metrics.empty()) {
    Result<std::unique_ptr<Metrics>> metrics = Metrics::Serve(settings.metrics);
    if (!metrics.ok()) return metrics.status();
    daemon->metrics_ = std::make_unique<MetricsPublisher>(std::move(*metrics), settings.state_dir);
  }
  StartSignals start_signals(signals);
  const Result<Keys> keys = daemon->OwnKeys();
  if (!keys.ok()) return keys.status();
  PRD_RETURN_IF_ERROR(daemon->OpenHistory(*keys, &start_signals));
  daemon->recorder_ = std::make_unique<Recorder>(daemon->history_.get());
  if (daemon->workers_ == nullptr) PRD_RETURN_IF_ERROR(daemon->ListenToWorkers(*keys));
  PRD_RETURN_IF_ERROR(daemon->ListenToAdmin(*keys));
  PRD_RETURN_IF_ERROR(daemon->Recover(&start_signals));
  daemon->counts_ =
      std::make_unique<DaemonCounts>(DaemonCounts::Sources{.controller = daemon->controller_.get(),
                                                           .recorder = daemon->recorder_.get(),
                                                           .history = daemon->history_.get(),
                                                           .writer = daemon->writer_.get(),
                                                           .workers = daemon->workers_.get(),
                                                           .admin = daemon->admin_.get(),
                                                           .zap = daemon->zap_.get(),
                                                           .gate = daemon->gate_.get()},
                                     started_ns, started_wall_ns);
  daemon->inputs_ = std::make_unique<InputWait>(signals, daemon->admin_.get(), daemon->zap_.get(),
                                                daemon->workers_.get());
  daemon->notifier_.Alive(daemon->Now());
  daemon->turned_ = true;  // to tell the status
  spdlog::info("prd {} listens on {}, admin {}, state in {}", PRD_VERSION,
               daemon->workers_->listener().endpoint(), daemon->admin_->endpoint(),
               settings.state_dir);
  if (daemon->metrics_ != nullptr) {
    daemon->Publish(daemon->Now());  // a scraper may ask before the first turn
    daemon->metrics_->metrics()->SetUnready("");
  }
  daemon->notifier_.Ready();
  start_signals.GiveBack();
  return daemon;
}

// Waits for room where the disk is full, as a prd that runs does. Workers hear why they wait.
Status Daemon::OpenHistory(const Keys& keys, StartSignals* signals) {
  const DaemonConfig& settings = config_.daemon;
  for (bool told = false;; told = true) {
    Result<std::unique_ptr<RocksHistory>> history = RocksHistory::Open(
        settings.state_dir, {.sync = settings.sync, .bounds = BoundsOf(config_)});
    if (history.ok()) {
      history_ = std::move(*history);
      return Status::Ok();
    }
    const Status& full = history.status();
    if (full.code() != Code::kResourceExhausted) return full;
    if (!told) {
      spdlog::error("{}. prd starts once there is room; nothing is lost, and workers wait",
                    full.message());
    }
    if (workers_ == nullptr) PRD_RETURN_IF_ERROR(ListenToWorkers(keys));
    zap_->Serve();
    workers_->PutOff(*access_, "prd has just started and waits for room on its disk", kPutOffMs);
    notifier_.TellStatus("waits for room on the disk of " + settings.state_dir);
    notifier_.Send("EXTEND_TIMEOUT_USEC=60000000");
    if (metrics_ != nullptr) metrics_->TellFull(full.message());
    if (const auto signal = signals->Ending(kRoomPauseMs)) {
      return Status(Code::kCancelled, "stopping on signal " + std::to_string(*signal));
    }
  }
}

// The daemon's own; without them workers are told apart by their users.
Result<Daemon::Keys> Daemon::OwnKeys() const {
  const std::string& file = config_.daemon.curve_secret_key_file;
  if (file.empty()) return Keys();
  Result<CurveKeys> read = ReadSecretKeyFile(file);
  if (!read.ok()) return read.status();
  HideMemory();
  return Keys(std::move(*read));
}

// Messages may queue up from here on; none counts before the runs are back.
Status Daemon::ListenToWorkers(const Keys& keys) {
  const DaemonConfig& settings = config_.daemon;
  Result<Access> access = Access::Load(config_);
  if (!access.ok()) return access.status();
  access_ = std::make_unique<Access>(std::move(*access));
  PRD_RETURN_IF_ERROR(audit_.Open(settings.audit_log));
  Result<std::unique_ptr<ZapHandler>> zap = ZapHandler::Make(context_, access_.get(), &audit_);
  if (!zap.ok()) return zap.status();
  zap_ = std::move(*zap);
  public_key_ = keys ? keys->public_key : "";
  std::string listen = settings.listen;
  if (listen.empty()) {
    Result<std::string> own = MakeOwnEndpoint();
    if (!own.ok()) return own.status();
    listen = std::move(*own);
  } else if (!keys && !listen.starts_with("ipc://")) {
    spdlog::warn(
        "listen = \"{}\" without CURVE keys: every user of this host can train along, and be in "
        "the "
        "place of prd while it does not run; ipc tells users apart",
        listen);
  }
  Result<ConnectionGuard::Options> guard = GuardOptions(settings);
  if (!guard.ok()) return guard.status();
  Result<std::unique_ptr<Listener>> workers =
      Listener::Make(context_, {.key = "listen",
                                .endpoint = listen,
                                .zap_domain = std::string(kWorkersDomain),
                                .keys = keys,
                                .users = WhoMayTrain(),
                                .guard = *guard,
                                .audit = &audit_,
                                .max_part_bytes = settings.max_message_bytes});
  if (!workers.ok()) return workers.status();
  workers_ = std::make_unique<WorkerSocket>(std::move(*workers));
  return Status::Ok();
}

Status Daemon::ListenToAdmin(const Keys& keys) {
  Result<std::unique_ptr<AdminServer>> admin = AdminServer::Make(
      {.endpoint = config_.daemon.admin, .keys = keys}, history_.get(), *access_, &audit_);
  if (!admin.ok()) return admin.status();
  admin_ = std::move(*admin);
  if (metrics_ != nullptr) recorder_->TellMeters(metrics_->meters());
  return Status::Ok();
}

// Over ipc. With keys, a key decides and not the user.
LocalUsers Daemon::WhoMayTrain() const {
  if (!config_.daemon.curve_secret_key_file.empty()) return std::nullopt;
  return access_->local_users();
}

// While the history is read, everybody hears that the daemon is there, and how far it is.
// `tell_at`: when those are told who do not ask.
void Daemon::TellReading(const RestoreProgress& progress, Instant* tell_at) {
  const std::string how = "prd has just started and reads its history, " +
                          std::to_string(progress.percent) + " % so far";
  zap_->Serve();
  workers_->PutOff(*access_, how, kPutOffMs);
  admin_->Serve([&how](const Rights&, const AdminRequest&) -> AdminReply {
    return AdminError{.code = Code::kUnavailable, .message = how + "; try again when it has"};
  });
  const Instant now{MonotonicNs()};
  if (now < *tell_at) return;
  *tell_at = now + kTellReading;
  spdlog::info("reads the history of run {} of job {}: record {} of {}", progress.run, progress.job,
               progress.read, progress.records);
  notifier_.TellStatus(how);
  notifier_.Send("EXTEND_TIMEOUT_USEC=60000000");
  if (metrics_ != nullptr) metrics_->TellUnready(how);
}

Status Daemon::Recover(StartSignals* signals) {
  const Result<Instant> last = LastRecordedNow(*history_);
  if (!last.ok()) return last.status();
  clock_offset_ = std::max<DurationNs>(0, *last - Instant{MonotonicNs()});
  controller_ = std::make_unique<Controller>(
      Controller::Options{
          .first_run = history_->last_run() + 1,
          .snapshot_every = config_.daemon.snapshot_every,
          .random = RandomBits,
          .spec_of = JobSpecFromToml,
          .refused = [this](const std::string& job,
                            const HelloRefused& refused) { notices_.TellRefused(job, refused); },
          .over_ack_limit =
              [](const prd::Run& run, Rank rank) {
                spdlog::warn(
                    "run {}: rank {} acknowledges nothing; no message is taken from it "
                    "until it does, or its lease runs out",
                    run.id(), rank);
              }},
      [this](const std::string& job) { return FindJob(config_, job); }, recorder_.get(),
      workers_.get());
  gate_ = std::make_unique<Gate>(access_.get(), controller_.get(), &audit_);
  writer_ = std::make_unique<HistoryWriter>(controller_.get(), history_.get(),
                                            metrics_ != nullptr ? metrics_->metrics() : nullptr);
  revocation_ = std::make_unique<Revocation>(access_.get(), workers_.get(), controller_.get());
  // A message that comes before this stays in the socket until the runs are back.
  const Instant long_at{MonotonicNs() + kLongReading};
  Instant tell_at;
  const auto watch = [&](const RestoreProgress& progress) {
    if (const auto signal = signals->Ending(0)) {
      return Status(Code::kCancelled, "stopping on signal " + std::to_string(*signal));
    }
    if (Instant{MonotonicNs()} >= long_at) TellReading(progress, &tell_at);
    return Status::Ok();
  };
  const Result<RestoreSummary> summary =
      RestoreRuns([this] { return Now(); }, history_.get(), controller_.get(), watch);
  if (!summary.ok()) return summary.status();
  revocation_->SetDue();  // by what the config said before
  for (const auto& [id, run] : controller_->runs()) {
    recorder_->Know(id, std::string(EngineName(run->spec().engine)));
    if (metrics_ != nullptr) metrics_->meters()->Know(Now(), *run);
    for (const RunWorker& worker : run->workers()) {
      if (worker.state != WorkerState::kAbsent) workers_->Know(worker.incarnation, worker.token);
    }
  }
  return Status::Ok();
}

void Daemon::OnSignal(std::uint32_t signal) {
  if (signal == SIGHUP && job_end_) {
    spdlog::info("SIGHUP changes nothing: the keys of prd --ephemeral are in no file");
  } else if (signal == SIGHUP) {
    Reload();
  } else {
    spdlog::info("stopping on signal {}", signal);
    stopping_ = true;
  }
}

void Daemon::Reload() {
  notifier_.Reloading();
  Result<Config> loaded = LoadConfig(config_.file, DaemonDefaults());
  Status status = loaded.status();
  std::optional<Access> access;
  if (status.ok()) {
    Config wanted = *loaded;  // keys or none: as it runs
    wanted.daemon.curve_secret_key_file = config_.daemon.curve_secret_key_file;
    Result<Access> read = Access::Load(wanted);
    status = read.ok() ? audit_.Open(loaded->daemon.audit_log) : read.status();
    if (read.ok()) access = std::move(*read);
  }
  reload_refused_ = !status.ok();
  turned_ = true;  // to tell the status
  if (!status.ok()) {
    spdlog::error("reload refused; the configuration that was running stays in force:");
    std::istringstream lines(status.message());
    int told = 0;
    for (std::string line; std::getline(lines, line);) {
      if (++told <= kMostErrors) spdlog::error("  {}", line);
    }
    if (told > kMostErrors) {
      spdlog::error("  and {} more, which prd --check-config shows", told - kMostErrors);
    }
    notifier_.Ready();
    return;
  }
  const Config before = config_;
  std::string restart = NeedRestart(config_.daemon, loaded->daemon);
  const Status key = CheckKey(loaded->daemon.curve_secret_key_file, &restart);
  DaemonConfig settings = config_.daemon;
  settings.log_level = loaded->daemon.log_level;
  settings.retain_runs = loaded->daemon.retain_runs;
  settings.retain_runs_in_all = loaded->daemon.retain_runs_in_all;
  settings.retain_bytes = loaded->daemon.retain_bytes;
  settings.curve_authorized_keys_file = loaded->daemon.curve_authorized_keys_file;
  settings.audit_log = loaded->daemon.audit_log;
  config_ = std::move(*loaded);
  config_.daemon = std::move(settings);
  SetLogLevel(config_.daemon.log_level);
  history_->SetBounds(BoundsOf(config_));
  *access_ = *std::move(access);
  admin_->SetAccess(*access_);
  const Status opened = workers_->listener().LetIn(WhoMayTrain());
  if (!opened.ok()) spdlog::error("{}", opened.message());
  revocation_->SetDue();
  if (!writer_->stalled()) revocation_->Evict(Now(), ThisReload());
  spdlog::info("reloaded {}; it counts for runs that begin from now on", config_.file);
  SwitchLive(before);
  if (!restart.empty()) spdlog::warn("changed, but only from the next start on: {}", restart);
  if (!key.ok()) {
    spdlog::warn("the next start will fail: curve_secret_key_file: {}", key.message());
  }
  notifier_.Ready();
}

// The daemon's own key, which a start reads: whether it can, and that it is another one.
Status Daemon::CheckKey(const std::string& file, std::string* restart) const {
  if (file.empty()) return Status::Ok();
  const Result<CurveKeys> keys = ReadSecretKeyFile(file);
  if (!keys.ok()) return keys.status();
  if (keys->public_key != public_key_) {
    *restart += (restart->empty() ? "" : ", ") + std::string("the key in ") + file;
  }
  return Status::Ok();
}

// What the history names as the cause of what a reload does.
std::string Daemon::ThisReload() const { return "a reload of " + config_.file.substr(0, 100); }

// Jobs that run and whose tables say that a reload counts for them.
void Daemon::SwitchLive(const Config& before) {
  std::vector<std::string> jobs;
  for (const auto& [id, run] : controller_->runs()) {
    if (!run->ended()) jobs.push_back(run->spec().name);
  }
  for (const std::string& job : jobs) {
    const std::optional<JobSpec> to = LiveSwitch(before, config_, job);
    if (!to) continue;
    const Status status =
        writer_->stalled()
            ? Status(Code::kUnavailable, "the history cannot be written now")
            : controller_->Act(
                  Now(), job,
                  {.verb = OperatorVerb::kSwitch, .by = ThisReload(), .spec = to->text});
    if (status.ok()) {
      spdlog::info("job {} goes on with engine {} once its workers have ended their steps", job,
                   EngineName(to->engine));
    } else {
      spdlog::error("job {} goes on as it is, though its table has live = true: {}", job,
                    status.message());
    }
  }
}

DaemonConfig DaemonDefaults() {
  DaemonConfig config;
  config.curve_secret_key_file = CredentialFile("prd-secret-key");
  return config;
}

}  // namespace prd
