#include "server/daemon.h"

#include <unordered_set>

#include "common/io/clock.h"
#include "common/io/log.h"
#include "server/operate.h"

namespace prd {
namespace {

constexpr DurationNs kHousekeeping = 500 * kMillisecond;
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
    if (metrics_ != nullptr) metrics_->metrics()->Alive();
    Housekeep(now);
    if (job_end_ && JobIsOver(now)) break;
    Wait(Now());
  }
  if (!writer_->failed()) Drain();
  return !writer_->failed();
}

// ---- one turn ----

void Daemon::Turn(Instant now) {
  if (writer_->stalled()) {
    if (now < writer_->retry_at() || !Flush(now)) {
      return workers_->PutOff(*access_, "prd cannot write its history now (see its log)",
                              kPutOffMs);
    }
    controller_->HeardNobody(now);
  }
  if (revocation_->due()) revocation_->Evict(now, ThisReload());
  TakeMessages(now, true);
  controller_->Tick(now);
  if (controller_->pending()) Flush(now);
}

void Daemon::TakeMessages(Instant now, bool hellos) {
  const std::int64_t wall_ns = WallNs();
  WorkerSocket::Turn turn;
  while (const WorkerEnvelope* envelope = workers_->Receive(now, gate_.get(), &turn)) {
    // Before its answer a worker repeats its Hello, so the next daemon will get it.
    if (!hellos && std::holds_alternative<Hello>(envelope->body)) continue;
    if (workers_->fresh()) controller_->Connection(now, envelope->incarnation, true);
    controller_->Receive(now, wall_ns, *envelope);
  }
  for (const Incarnation ended : workers_->TakeEnded()) controller_->Connection(now, ended, false);
  turned_ = turned_ || turn.taken > 0;
}

// False while the history cannot be written.
bool Daemon::Flush(Instant now) {
  turned_ = true;
  return writer_->Flush(now);
}

void Daemon::Serve(Instant now) {
  if (inputs_->TakeRequests()) {
    admin_->Serve([this, now](const Rights& rights, const AdminRequest& request) {
      return AnswerHere(now, rights, request);
    });
  }
  inputs_->ServeArrivals();
}

void Daemon::Wait(Instant now) {
  Instant until = now + 60 * kSecond;
  const auto consider = [&until](std::optional<Instant> at) {
    if (at && *at < until) until = *at;
  };
  const bool stalled = writer_->stalled();
  consider(stalled ? writer_->retry_at() : controller_->NextDeadline());
  if (job_end_) consider(job_end_->at());
  consider(notifier_.alive_at());
  if (turned_) consider(housekeep_at_);
  if (metrics_ != nullptr) consider(metrics_->refresh_at());
  for (const std::uint32_t signal : inputs_->Wait(until - now, !stalled)) OnSignal(signal);
}

// ---- now and then ----

void Daemon::Housekeep(Instant now) {
  notifier_.Alive(now);
  const bool refresh = metrics_ != nullptr && metrics_->refresh_at() <= now;
  if (!refresh && (!turned_ || now < housekeep_at_)) return;
  turned_ = false;
  housekeep_at_ = now + kHousekeeping;
  const std::size_t workers = counts_->Workers();
  if (workers_->routes() > 2 * workers + kSpareRoutes) {
    std::unordered_set<Incarnation> live;
    for (const auto& [id, run] : controller_->runs()) {
      for (const RunWorker& worker : run->workers()) {
        if (worker.state != WorkerState::kAbsent) live.insert(worker.incarnation);
      }
    }
    workers_->Prune(live);
  }
  notifier_.TellStatus(std::to_string(controller_->runs().size()) + " jobs, " +
                       std::to_string(workers) + " workers, listening on " +
                       workers_->listener().endpoint() +
                       (writer_->stalled() ? "; the history cannot be written, see the log" : "") +
                       (reload_refused_ ? "; the last reload was refused, see the log" : ""));
  TrimHistory();
  notices_.TellStarts(now, *controller_);
  notices_.TellConnections(counts_->Connections());
  recorder_->TellLeftOut(now);
  if (metrics_ != nullptr) Publish(now);
}

// What is over the bounds where no run ends, as after a reload.
void Daemon::TrimHistory() {
  const auto times = [this] { return history_->trimmed().runs + history_->trimmed().running; };
  const std::uint64_t before = times();
  history_->Trim(kTrimAtOnce);
  turned_ = turned_ || times() > before;  // there may be more
  notices_.TellTrimmed(history_->trimmed());
}

void Daemon::Publish(Instant now) {
  metrics_->Publish(now, *counts_, controller_->runs(), notices_.runs_that_wait());
}

bool Daemon::JobIsOver(Instant now) {
  if (!controller_->runs().empty()) {
    job_end_->Goes();
    return false;
  }
  if (writer_->stalled() || !job_end_->IsOver(now, *history_, counts_->Connections().open))
    return false;
  spdlog::info("the job is over");
  return true;
}

// Takes what has already come, but no new workers; then goes. Workers train on, and find the next
// daemon by themselves.
void Daemon::Drain() {
  notifier_.Stopping();
  if (metrics_ != nullptr) metrics_->metrics()->SetUnready("stopping");
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

// ---- prdctl ----

AdminReply Daemon::AnswerHere(Instant now, const Rights& rights, const AdminRequest& request) {
  if (std::holds_alternative<GetStatus>(request)) return counts_->StatusAt(now);
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

}  // namespace prd
