// The daemon: sockets, clock, history and signals around the controller, in one thread.
//
// Each turn reads workers' messages, lets the controller decide, appends one batch to the history,
// sends, and only then reads on. While the history has no room, the daemon takes no worker's
// message and decides nothing: a sender hears why it waits, and sends it again. The daemon tries
// again with growing pauses, and nothing is lost. If a write fails half-way, the daemon ends, and
// the next one goes on from the recorded history.
#ifndef PRD_SERVER_DAEMON_H_
#define PRD_SERVER_DAEMON_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <zmq.hpp>

#include "common/base/admin.h"
#include "common/io/curve.h"
#include "config/config.h"
#include "engines/controller.h"
#include "server/access.h"
#include "server/admin_server.h"
#include "server/audit_log.h"
#include "server/daemon_counts.h"
#include "server/gate.h"
#include "server/history/rocks_history.h"
#include "server/history_writer.h"
#include "server/input_wait.h"
#include "server/job_end.h"
#include "server/metrics_publisher.h"
#include "server/notices.h"
#include "server/notify.h"
#include "server/recorder.h"
#include "server/restore.h"
#include "server/revocation.h"
#include "server/worker_socket.h"
#include "server/zap.h"

namespace prd {

// What the keys of [daemon] are where the file does not say.
DaemonConfig DaemonDefaults();

// A worker that is put off comes again after so long.
inline constexpr std::uint32_t kPutOffMs = 500;

class Daemon {
 public:
  // Opens the history, restores its runs, and listens. `signals` is a signalfd of SIGTERM, SIGINT
  // and SIGHUP, which are blocked in all threads. Errors say what to do. A full disk is waited for,
  // and a long history takes minutes; kCancelled: one of the first two signals has come meanwhile.
  static Result<std::unique_ptr<Daemon>> Start(Config config, Notifier notifier, int signals);
  ~Daemon();

  // Until SIGTERM or SIGINT: true. False: the history failed.
  bool Run();

  // From now on Run ends by itself, too: once its job is over (job_end.h).
  void EndWithItsJob() { job_end_.emplace(); }

  // Where workers connect.
  const std::string& endpoint() const { return workers_->listener().endpoint(); }

 private:
  class StartSignals;

  Daemon(Config config, Notifier notifier);
  using Keys = std::optional<CurveKeys>;  // its own
  Result<Keys> OwnKeys() const;
  Status OpenHistory(const Keys& keys, StartSignals* signals);
  Status ListenToWorkers(const Keys& keys);
  Status ListenToAdmin(const Keys& keys);
  LocalUsers WhoMayTrain() const;
  Status Recover(StartSignals* signals);
  void TellReading(const RestoreProgress& progress, Instant* tell_at);

  Instant Now() const;
  void Wait(Instant now);
  void OnSignal(std::uint32_t signal);
  void Reload();
  Status CheckKey(const std::string& file, std::string* restart) const;
  void SwitchLive(const Config& before);
  std::string ThisReload() const;
  void Turn(Instant now);
  void TakeMessages(Instant now, bool hellos);
  void Serve(Instant now);
  bool Flush(Instant now);
  void Housekeep(Instant now);
  void TrimHistory();
  void Publish(Instant now);
  bool JobIsOver(Instant now);
  void Drain();

  AdminReply AnswerHere(Instant now, const Rights& rights, const AdminRequest& request);
  Result<std::string> ActOn(Instant now, const Rights& rights, const Act& act);
  Result<std::string> Remove(const Rights& rights, const Prune& prune);

  Config config_;
  Notifier notifier_;
  std::string public_key_;       // its own; empty: without keys
  DurationNs clock_offset_ = 0;  // so that the clock does not run behind what is recorded

  // In this order: sockets are closed before the context.
  zmq::context_t context_;
  std::unique_ptr<RocksHistory> history_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<Access> access_;
  AuditLog audit_;
  std::unique_ptr<ZapHandler> zap_;
  std::unique_ptr<WorkerSocket> workers_;
  std::unique_ptr<AdminServer> admin_;
  std::unique_ptr<MetricsPublisher> metrics_;  // null when off
  std::unique_ptr<Controller> controller_;
  std::unique_ptr<Gate> gate_;
  std::unique_ptr<HistoryWriter> writer_;
  std::unique_ptr<Revocation> revocation_;
  std::unique_ptr<DaemonCounts> counts_;
  std::unique_ptr<InputWait> inputs_;
  std::optional<JobEnd> job_end_;  // of an ephemeral prd
  Notices notices_;

  bool stopping_ = false;
  bool turned_ = false;  // something happened since the last housekeeping
  Instant housekeep_at_;
  bool reload_refused_ = false;  // the last one
};

}  // namespace prd

#endif  // PRD_SERVER_DAEMON_H_
