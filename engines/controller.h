// The controller without its surroundings: takes messages, steps jobs, appends one batch of
// records, then sends. The daemon and the simulator drive this same class, so the order
// append-before-send is tested under simulated crashes.
//
//   for (;;) { wait for input or NextDeadline();  for each message: Receive(now, m);
//              Tick(now);  while (!Flush().ok()) wait a little; }
//
// No threads, clocks or sockets. Not thread safe.
#ifndef PRD_ENGINES_CONTROLLER_H_
#define PRD_ENGINES_CONTROLLER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "engines/peer_links.h"
#include "engines/ports.h"
#include "engines/presence.h"
#include "engines/replay.h"
#include "engines/restorer.h"
#include "engines/run.h"
#include "engines/tombstones.h"
#include "prd/status.h"

namespace prd {

class Controller {
 public:
  // The spec for a job that a worker names, or why there is none (kNotFound: no pattern matches).
  using Catalog = std::function<Result<JobSpec>(const std::string& job)>;

  struct Options {
    RunId first_run = 1;                     // above every run in the history
    std::uint64_t snapshot_every = 100'000;  // records of a run between snapshots
    // Random bits that no other process draws: identities of runs, and of this controller's life.
    std::function<std::uint64_t()> random;
    // The spec of a run from what its RunStarted says (RunStarted::spec). Needed for switches.
    std::function<Result<JobSpec>(const std::string& text)> spec_of = nullptr;
    // Told of each Hello that is refused and that no run takes note of (HelloRefused). Never called
    // for what a worker does by itself without anybody's mistake.
    std::function<void(const std::string& job, const HelloRefused& refused)> refused = nullptr;
    PeerLinks::OnOverAckLimit over_ack_limit = nullptr;
  };

  // Both ports must outlive the controller.
  Controller(Options options, Catalog catalog, History* history, Messenger* messenger);
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  // Goes on with a run that was read back to the end of its history. One that has ended is accepted
  // and not kept. Leases of its workers start anew at `now`. kDataLoss: its job has another run.
  //
  // A restored run takes no input for a while (restorer.h). If the history has lost its end, the
  // run ends (HistoryLost), and its workers come back to a new one.
  Status Restore(Instant now, StoredRun stored);

  // This run has ended (Tombstones::RememberEnded). No worker that was trained in a run that was
  // finished, or in a run of the job before it, is admitted again.
  void RememberEnded(RunId run, const std::string& job, std::uint64_t identity, bool finished) {
    tombstones_.RememberEnded(run, job, identity, finished);
  }

  // Applies a message of a worker. Sends nothing before Flush. wall_ns is Unix time, for display.
  // REQUIRES: pending() is false or the last Flush was not an error; now does not decrease.
  void Receive(Instant now, std::int64_t wall_ns, const WorkerEnvelope& envelope);

  // Applies what an operator does to this job's run. Sends nothing before Flush. An error says why
  // it cannot be done, and nothing has changed. REQUIRES: as Receive.
  //
  // A switch has the next run's spec, and gets its number here. As soon as the old run has ended,
  // the next one begins, with records in the same batch.
  Status Act(Instant now, const std::string& job, OperatorActed act);

  // The connection over which the newest message of this incarnation came has ended (`there`:
  // false), or it has another one, over which it has sent something (true: call it before Receive).
  // A worker that is not back within death_grace_ms is gone, as if its lease had run out. One of a
  // version that does not come back at once (Hello::returns_at_once) has its lease.
  void Connection(Instant now, Incarnation incarnation, bool there);

  // Until now no message of a worker was taken, whoever sent one: all leases begin anew.
  void HeardNobody(Instant now) { links_.BeginLeases(now); }

  // Expires leases, and deadlines of engines and of workers without a connection, that are due.
  void Tick(Instant now);

  // Appends all decisions since the last Flush, then sends them. After an error nothing was sent,
  // and the next Flush tries the same again.
  Status Flush();
  bool pending() const { return !records_.empty() || !sends_.empty(); }

  // The next time at which Tick has something to do.
  std::optional<Instant> NextDeadline() const;

  // The runs that have not ended, by id.
  const std::map<RunId, std::unique_ptr<Run>>& runs() const { return runs_; }
  // ns since the worker was last heard of; nullopt if it is not there.
  std::optional<DurationNs> Silence(Instant now, RunId run, Rank rank) const {
    return links_.Silence(now, run, rank);
  }

  using Share = Presence::Share;
  const Share* ShareOf(const std::string& identity) const { return presence_.ShareOf(identity); }
  // The run of this name that has not ended; kNoRun: there is none.
  RunId RunOf(const std::string& job) const;
  // A worker of this identity, in any run.
  bool IsHere(Incarnation incarnation, const std::string& identity) const {
    return presence_.IsHere(incarnation, identity);
  }

  struct Counters : PeerLinks::Counters {
    std::uint64_t messages = 0;    // received
    std::uint64_t duplicates = 0;  // dropped, acknowledged again
    std::uint64_t gaps = 0;        // dropped, will come again
    std::uint64_t refused = 0;
    std::uint64_t foreign = 0;  // dropped: in the name of another worker
    std::uint64_t records = 0;
    std::uint64_t histories_lost = 0;  // runs that ended because their history had lost its end
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Noted {  // a refusal that the run took note of
    Instant at;
    HelloRefused refused;
  };
  struct RunState {  // beside the job
    std::uint64_t snapshot_at = 0;
    std::deque<Noted> noted;     // in the last minute
    std::optional<Instant> due;  // as in `due_`
  };

  void StepRun(Instant now, Run* run, const Input& input);
  Status CheckSwitch(const Run& run, OperatorActed* act) const;
  void StartNextRun(Instant now, RunId run, const NextRun& next);
  void StartNextRuns(Instant now);
  void Begin(Instant now, std::int64_t wall_ns, const FormerRun& former, std::unique_ptr<Run> run);
  bool Foreign(const WorkerEnvelope& envelope) const;
  Run* Running(const std::string& name) const;
  void OnHello(Instant now, std::int64_t wall_ns, const WorkerEnvelope& envelope);
  void RefuseHello(Instant now, Run* run, const WorkerEnvelope& envelope, Refused refusal);
  void OnMember(Instant now, Run* run, const WorkerEnvelope& envelope);
  bool Confirm(Instant now, Run* run, Rank rank, const WorkerEnvelope& envelope);
  void TakeHeld(Instant now, Run* run);
  void NoteGone(const Run& run, std::span<const Record> records);
  void NoteGone(const Run& run, Incarnation incarnation);
  void Refuse(Incarnation to, Refused refusal);
  void AckUnreachable(Instant now, const Run& run, const std::vector<Rank>& ranks);
  void Schedule(const Run& run);
  void TakeSnapshots();
  void DropEnded();

  Options options_;
  Catalog catalog_;
  History* history_;
  Messenger* messenger_;
  RunId next_run_;
  std::uint64_t epoch_;
  std::map<RunId, std::unique_ptr<Run>> runs_;
  std::map<RunId, RunState> states_;
  std::map<std::string, RunId> by_name_;  // runs that have not ended
  Presence presence_;
  // A turn looks at the runs for which something is due or has happened, however many there are.
  std::set<std::pair<Instant, RunId>> due_;  // when Tick has something to do
  std::vector<RunId> ended_;                 // of `runs_`
  std::vector<Record> records_;
  std::vector<ControllerEnvelope> sends_;
  Tombstones tombstones_;
  Restorer restorer_;
  RunOutput output_;  // of one step; kept for its memory
  Counters counters_;
  PeerLinks links_;
};

}  // namespace prd

#endif  // PRD_ENGINES_CONTROLLER_H_
