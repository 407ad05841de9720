#include "server/daemon.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <unordered_set>

#include "common/io/clock.h"
#include "common/io/log.h"
#include "common/io/poll.h"
#include "server/operate.h"

namespace prd {
namespace {

constexpr DurationNs kHousekeeping = 500 * kMillisecond;
// What changes without a turn, for the metrics.
constexpr DurationNs kRefresh = 10 * kSecond;
constexpr DurationNs kDrainTimeout = 2 * kSecond;
constexpr std::size_t kSpareRoutes = 4096;
constexpr std::size_t kTrimAtOnce = 64;  // runs

}  // namespace

Instant Daemon::Now() const { return {MonotonicNs() + clock_offset_}; }

bool Daemon::Run() {
  while (!stopping_ && !writer_->failed()) {
    const Instant now = Now();
    Turn(now);
    Serve(now);
    if (metrics_ != nullptr) metrics_->Alive();
    Housekeep(now);
    if (job_end_ && JobIsOver(now)) break;
    Wait(Now());
  }
  if (!writer_->failed()) Drain();
  return !writer_->failed();
}

// ---- one turn ----

void Daemon::Turn(Instant now) {
  if (writer_->stalled() && (now < writer_->retry_at() || !Flush(now))) return;
  if (revocation_->due()) revocation_->Evict(now, ThisReload());
  TakeMessages(now, true);
  controller_->Tick(now);
  if (controller_->pending()) Flush(now);
}

void Daemon::TakeMessages(Instant now, bool hellos) {
  const std::int64_t wall_ns = WallNs();
  WorkerSocket::Turn turn;
  while (workers_->Receive(now, gate_.get(), &turn, &envelope_)) {
    // Before its answer a worker repeats its Hello, so the next daemon will get it.
    if (!hellos && std::holds_alternative<Hello>(envelope_.body)) continue;
    if (workers_->fresh()) controller_->Connection(now, envelope_.incarnation, true);
    controller_->Receive(now, wall_ns, envelope_);
  }
  for (const Incarnation ended : workers_->TakeEnded()) controller_->Connection(now, ended, false);
  turned_ = turned_ || turn.taken > 0;
}

// False while the history cannot be written.
bool Daemon::Flush(Instant now) {
  turned_ = true;
  return writer_->Flush(now);
}

// Asking a socket costs a system call, so those that others seldom use are asked when their
// descriptors have told of something.
void Daemon::Serve(Instant now) {
  if (requests_) {
    requests_ = false;
    admin_->Serve([this, now](const Rights& rights, const AdminRequest& request) {
      return AnswerHere(now, rights, request);
    });
  }
  if (arrivals_) {
    zap_->Serve();
    arrivals_ = HasMessage(zap_->socket());
  }
}

void Daemon::Wait(Instant now) {
  Instant until = now + 60 * kSecond;
  const auto consider = [&until](std::optional<Instant> at) {
    if (at && *at < until) until = *at;
  };
  const bool stalled = writer_->stalled();
  consider(stalled ? writer_->retry_at() : controller_->NextDeadline());
  if (job_end_) consider(job_end_->at());
  consider(watchdog_at_);
  if (turned_) consider(housekeep_at_);
  if (metrics_ != nullptr) consider(refresh_at_);
  // Rounded up: a wait that ends early would only be repeated.
  const DurationNs left = std::max<DurationNs>(until - now, 0);
  const auto timeout_ms = static_cast<int>((left + kMillisecond - 1) / kMillisecond);

  const bool waits =
      !requests_ && !arrivals_ && (stalled || !HasMessage(workers_->listener().socket()));
  std::array<pollfd, 5> items{};
  std::size_t count = 0;
  const auto add = [&](int fd) -> const pollfd& {
    items[count] = {.fd = fd, .events = POLLIN, .revents = 0};
    return items[count++];
  };
  const pollfd& signals = add(signals_);
  const pollfd& admin = add(admin_->descriptor());
  const pollfd& zap = add(zap_->socket().get(zmq::sockopt::fd));
  if (!stalled) {
    add(workers_->listener().socket().get(zmq::sockopt::fd));
    add(workers_->listener().guard().ended());
  }
  if (::poll(items.data(), count, waits ? timeout_ms : 0) <= 0) return;
  requests_ = requests_ || admin.revents != 0;
  arrivals_ = arrivals_ || zap.revents != 0;
  if (signals.revents != 0) ReadSignals();
}

// ---- now and then ----

void Daemon::Housekeep(Instant now) {
  if (watchdog_at_ && *watchdog_at_ <= now) {
    notifier_.Send("WATCHDOG=1");
    watchdog_at_ = now + *notifier_.watchdog_interval();
  }
  const bool refresh = metrics_ != nullptr && refresh_at_ <= now;
  if (!refresh && (!turned_ || now < housekeep_at_)) return;
  turned_ = false;
  housekeep_at_ = now + kHousekeeping;
  const std::size_t workers = Workers();
  if (workers_->routes() > 2 * workers + kSpareRoutes) {
    std::unordered_set<Incarnation> live;
    for (const auto& [id, run] : controller_->runs()) {
      for (const RunWorker& worker : run->workers()) {
        if (worker.state != WorkerState::kAbsent) live.insert(worker.incarnation);
      }
    }
    workers_->Prune(live);
  }
  const std::string status =
      "STATUS=" + std::to_string(controller_->runs().size()) + " jobs, " + std::to_string(workers) +
      " workers, listening on " + workers_->listener().endpoint() +
      (writer_->stalled() ? "; the history cannot be written, see the log" : "") +
      (reload_refused_ ? "; the last reload was refused, see the log" : "");
  if (status != told_status_) notifier_.Send(status);
  told_status_ = status;
  TrimHistory();
  notices_.TellStarts(now, *controller_);
  notices_.TellConnections(Connections());
  recorder_->TellLeftOut(now);
  if (metrics_ != nullptr) PublishMetrics(now);
}

// What is over the bounds where no run ends, as after a reload.
void Daemon::TrimHistory() {
  const auto times = [this] { return history_->trimmed().runs + history_->trimmed().running; };
  const std::uint64_t before = times();
  history_->Trim(kTrimAtOnce);
  turned_ = turned_ || times() > before;  // there may be more
  notices_.TellTrimmed(history_->trimmed());
}

void Daemon::PublishMetrics(Instant now) {
  if (refresh_at_ <= now) {
    refresh_at_ = now + kRefresh;
    disk_ = DiskUseOf(config_.daemon.state_dir);
  }
  const auto number = [](auto value) { return static_cast<double>(value); };
  MetricsPage page;
  for (const auto& [name, value] : Counters()) page.AddCounter(name, value);
  for (const auto& [engine, groups] : recorder_->groups()) {
    page.Add("groups_formed_total", {{"engine", engine}}, number(groups));
  }
  page.Add("build_info", {{"version", PRD_VERSION}, {"protocol", std::to_string(kProtocolVersion)}},
           1);
  page.Add("start_time_seconds", {}, number(started_wall_ns_) / number(kSecond));
  page.Add("jobs", {}, number(controller_->runs().size()));
  page.Add("workers", {}, number(Workers()));
  page.Add("jobs_waiting_for_start", {}, number(notices_.runs_that_wait()));
  page.Add("history_bytes", {}, number(disk_.bytes));
  page.Add("history_free_bytes", {}, number(disk_.free));
  page.Add("history_runs", {}, number(history_->retention().total().ended));
  for (const auto& [owner, use] : history_->retention().Owners()) {
    page.Add("history_identity_bytes", {{"identity", owner}}, number(use.bytes));
  }
  page.Add("history_stalled", {}, writer_->stalled() ? 1 : 0);
  page.Add("flush_seconds", {}, writer_->seconds());
  meters_->Write(now, WallNs(), controller_->runs(), &page);
  metrics_->Publish(std::move(page));
}

bool Daemon::JobIsOver(Instant now) {
  if (!controller_->runs().empty()) {
    job_end_->Goes();
    return false;
  }
  if (writer_->stalled() || !job_end_->IsOver(now, *history_, Connections().open)) return false;
  spdlog::info("the job is over");
  return true;
}

// Takes what has already come, but no new workers; then goes. Workers train on, and find the next
// daemon by themselves.
void Daemon::Drain() {
  notifier_.Stopping();
  if (metrics_ != nullptr) metrics_->SetUnready("stopping");
  const Instant until = Now() + kDrainTimeout;
  bool flushed = !writer_->stalled() || Flush(Now());
  if (flushed) TakeMessages(Now(), false);
  while (flushed = Flush(Now()), !flushed && !writer_->failed() && Now() < until) {
    // Nothing else is left to do while the disk gets another moment.
    (void)::zmq_poll(nullptr, 0, 50);
  }
  if (!flushed) {
    spdlog::warn("stops with messages that could not be recorded; workers send them again");
  }
  admin_->Stop();
  spdlog::info("stopped: {} jobs go on with the next prd", controller_->runs().size());
}

// ---- what there is ----

std::size_t Daemon::Workers() const {
  std::size_t workers = 0;
  for (const auto& [id, run] : controller_->runs())
    workers += static_cast<std::size_t>(run->live());
  return workers;
}

// Connections of workers and of prdctl.
ConnectionGuard::Counters Daemon::Connections() const {
  ConnectionGuard::Counters all = workers_->listener().guard().counters();
  const ConnectionGuard::Counters admin = admin_->connections();
  all.refused += admin.refused;
  all.cut += admin.cut;
  all.rushes += admin.rushes;
  return all;
}

std::vector<std::pair<std::string, std::uint64_t>> Daemon::Counters() const {
  const Controller::Counters& controller = controller_->counters();
  const WorkerSocket::Counters& socket = workers_->counters();
  const ConnectionGuard::Counters connections = Connections();
  const Decided& decided = recorder_->decided();
  return {{"messages", controller.messages},
          {"messages_duplicate", controller.duplicates},
          {"messages_out_of_order", controller.gaps},
          {"messages_foreign", controller.foreign + socket.foreign},
          {"messages_refused", controller.refused},
          {"messages_malformed", socket.malformed},
          {"messages_resent", controller.resent},
          {"acknowledgements_missing", controller.over_ack_limit},
          {"messages_unroutable", socket.unroutable},
          {"messages_blocked", socket.blocked},
          {"messages_forbidden", socket.forbidden},
          {"messages_over_quota", gate_->over_quota()},
          {"connections_denied", zap_->denied() + admin_->denied()},
          {"connections_refused", connections.refused},
          {"connections_cut", connections.cut},
          {"connections_rushed", connections.rushes},
          {"leases_expired", controller.leases_expired},
          {"processes_ended", controller.processes_ended},
          {"histories_lost", controller.histories_lost},
          {"records", controller.records},
          {"rounds_formed", decided.rounds_formed},
          {"round_contributors", decided.round_contributors},
          {"updates_dropped", decided.updates_dropped},
          {"iterations_granted", decided.iterations_granted},
          {"iterations_skipped", decided.iterations_skipped},
          {"graph_changes", decided.graph_changes},
          {"placements_opened", decided.placements_opened},
          {"queries_ready", decided.queries_ready},
          {"queries_not_ready", decided.queries_not_ready},
          {"results_fetched", decided.results_fetched},
          {"gradients_lost", decided.gradients_lost},
          {"snapshots", recorder_->snapshots()},
          {"history_runs_removed", history_->trimmed().runs},
          {"history_errors", writer_->errors()}};
}

AdminReply Daemon::AnswerHere(Instant now, const Rights& rights, const AdminRequest& request) {
  if (std::holds_alternative<GetStatus>(request)) return StatusAt(now);
  const auto* act = std::get_if<Act>(&request);
  const Result<std::string> done =
      act != nullptr ? ActOn(now, rights, *act) : Remove(rights, std::get<Prune>(request));
  return done.ok() ? AdminReply(Acted{*done}) : ToReply(done.status());
}

// Ended runs, for good.
Result<std::string> Daemon::Remove(const Rights& rights, const Prune& prune) {
  if (!rights.operates) {
    return Status(Code::kFailedPrecondition, "permission denied: only an operator may prune");
  }
  for (const RunId run : prune.runs) {
    const std::optional<std::string> job = history_->JobOf(run);
    if (!job || rights.Covers(*job)) continue;
    return Status(Code::kNotFound, "run " + std::to_string(run) + " is not in the history");
  }
  const Result<std::size_t> removed = history_->Prune(prune.runs);
  if (!removed.ok()) return removed.status();
  turned_ = true;  // to tell the metrics
  return std::to_string(*removed) + " runs removed";
}

// An operator's word counts once it is recorded.
Result<std::string> Daemon::ActOn(Instant now, const Rights& rights, const Act& act) {
  const Status unwritten(Code::kUnavailable, "the history cannot be written now (see the log)");
  if (writer_->stalled()) return unwritten;
  Result<std::string> done = Operate(now, rights, act, controller_.get());
  if (!done.ok() || Flush(now)) return done;
  return Status(unwritten.code(), unwritten.message() + "; it is done once that works again");
}

DaemonStatus Daemon::StatusAt(Instant now) const {
  DaemonStatus status{.version = PRD_VERSION,
                      .pid = static_cast<std::uint32_t>(::getpid()),
                      .uptime_ns = MonotonicNs() - started_ns_,
                      .now = now,
                      .counters = Counters(),
                      .silences = {}};
  std::uint64_t groups = 0;
  for (const auto& [engine, formed] : recorder_->groups()) groups += formed;
  status.counters.emplace_back("groups_formed", groups);
  for (const auto& [id, run] : controller_->runs()) {
    for (Rank rank = 0; static_cast<std::size_t>(rank) < run->workers().size(); ++rank) {
      if (const std::optional<DurationNs> silent = controller_->Silence(now, id, rank)) {
        status.silences.push_back({.run = id, .rank = rank, .silent_ns = *silent});
      }
    }
  }
  return status;
}

}  // namespace prd
