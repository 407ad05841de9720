// The history as the controller sees it: each record is also logged and counted.
#ifndef PRD_SERVER_RECORDER_H_
#define PRD_SERVER_RECORDER_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "engines/any_engine.h"
#include "engines/ports.h"
#include "server/job_meters.h"
#include "server/run_log.h"

namespace prd {

// Since the daemon started, over all jobs; as counters they keep these names.
struct Decided {
  std::uint64_t rounds_formed = 0;       // of gradients, in which all take part (GroupKind::kRound)
  std::uint64_t round_contributors = 0;  // members that gave something, summed over the rounds
  std::uint64_t updates_dropped = 0;
  std::uint64_t iterations_granted = 0;  // answers that let a worker go on (hop, ssp)
  std::uint64_t iterations_skipped = 0;  // with these, beyond the one asked for
  std::uint64_t graph_changes = 0;       // neighbours that a worker was told (hop)
  std::uint64_t placements_opened = 0;   // of shards (ssp)
  std::uint64_t queries_ready = 0;       // answered so; not those above
  std::uint64_t queries_not_ready = 0;   // the same
  std::uint64_t results_fetched = 0;  // ordered: a round that failed on a worker, taken from a peer
  std::uint64_t gradients_lost = 0;   // that were in no round when their worker went
};

// "rank 2 (pid 7 on host) is refused:", for the log.
std::string RefusedWorker(const HelloRefused& refused);

class Recorder final : public History {
 public:
  // `history` must outlive this.
  explicit Recorder(History* history) : history_(history) {}

  Status Append(std::span<const Record> records) override;
  Status SaveSnapshot(RunId run, std::uint64_t index, std::string_view state) override;

  // A run was restored.
  void Know(RunId run, const std::string& engine) { engines_[run] = engine; }

  // Every record that is appended from now on goes there too; it must outlive this. Null: nowhere.
  void TellMeters(JobMeters* meters) { meters_ = meters; }

  // Tells how many lines of the log were left out, where that is due.
  void TellLeftOut(Instant now) { log_.Tell(now); }

  // Groups formed since the daemon started, by engine.
  const std::map<std::string, std::uint64_t>& groups() const { return groups_; }
  std::uint64_t snapshots() const { return snapshots_; }
  const Decided& decided() const { return decided_; }

 private:
  void Note(const Record& record);
  void NoteNonfinite(const Record& record, const FromWorker& from);
  void NotePace(RunId run, std::int64_t workers);
  void Count(const QueryAnswered& answer);

  struct Nonfinite {  // steps of a rank
    std::uint64_t steps = 0;
    Instant told;  // in the log
    GrowingPause pause;
  };

  History* history_;
  JobMeters* meters_ = nullptr;
  RunLog log_;
  std::map<std::pair<RunId, Rank>, Nonfinite> nonfinite_;
  std::map<RunId, std::string> engines_;
  std::map<RunId, EngineOptions> beginning_;  // of runs whose workers have not started together yet
  std::map<std::string, std::uint64_t> groups_;
  std::uint64_t snapshots_ = 0;
  Decided decided_;
};

}  // namespace prd

#endif  // PRD_SERVER_RECORDER_H_
