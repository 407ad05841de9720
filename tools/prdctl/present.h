// The present of a run: who is there, doing what, and why.
#ifndef PRD_TOOLS_PRDCTL_PRESENT_H_
#define PRD_TOOLS_PRDCTL_PRESENT_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/prdctl/replay.h"
#include "tools/prdctl/source.h"

namespace prd::ctl {

struct WorkerRow {
  Rank rank = kNoRank;
  std::string state;  // "computing", "waiting", "in group 7", "joining", "lost", ...
  // What else there is to say in a few words: "owes 1 gradient", "in round 7 meanwhile".
  std::string detail;
  bool here = false;
  Iteration iteration = 0;        // the newest round in its replica, where the engine counts rounds
  GroupId last_group = kNoGroup;  // the last one it reported on, and how
  bool last_ok = false;
  std::uint32_t owed = 0;          // gradients in no round yet
  std::uint32_t local_steps = 0;   // since its last round, as last told
  std::optional<Trained> trained;  // under its rank so far, where anything was told
  std::uint64_t nonfinite = 0;     // steps under its rank that were not finite
  HeldMemory memory;               // bytes of its library's; zeros: not told
  std::string host_name;
  std::uint32_t pid = 0;
  std::optional<std::int64_t> share;      // samples of each step, of a job with a batch
  std::optional<DurationNs> expected_ns;  // of computing them, once the controller has an estimate
  std::optional<DurationNs> step_ns;      // of its last step, where the records read tell
  std::optional<DurationNs> heard_ns;     // ago; none where the run has ended
  std::string why;                        // it waits, or what it last did, or why it is gone
  // What the other members of its group, announced or only drawn, do (where groups form ahead), or
  // those that it exchanges with (`prdctl explain`).
  std::vector<std::pair<Rank, std::string>> others;
};

// A link between two workers that is broken.
struct LinkRow {
  Rank a = kNoRank;  // a < b
  Rank b = kNoRank;
  Rank asks = kNoRank;       // of the two, the one that probes the other
  DurationNs broken_ns = 0;  // for so long
  std::string reason;
  std::vector<std::string> a_endpoints;  // where each listens for peers
  std::vector<std::string> b_endpoints;
};

// A worker that was refused, and has not joined since.
struct RefusalRow {
  HelloRefused refused;
  DurationNs ago_ns = 0;
};

// An operator has paused the run.
struct PauseRow {
  std::string by;
  std::string reason;
  std::int64_t since_wall_ns = 0;  // Unix time
};

// The daemon cannot record, so it decides nothing, whoever waits.
struct StallRow {
  DurationNs for_ns = 0;
  std::string reason;  // empty: not told
};
std::optional<StallRow> StallOf(const DaemonStatus& daemon);

// All workers that are there, and those of the records read that have gone, by rank. `now` is the
// controller's clock from a daemon; from files it is the newest record's.
struct Present {
  RunInfo run;
  Plan plan;  // of the run's engine
  Instant now;
  std::string pace;  // why one slow worker sets the pace of all (SlowestSetsPace)
  std::vector<WorkerRow> workers;
  std::vector<LinkRow> links;        // those that are broken, by a and b
  std::vector<RefusalRow> refusals;  // the newest 8, the newest first
  // LoadPresent's alone: a PresentReader does not tell these two.
  std::optional<PauseRow> paused;
  std::optional<StallRow> stalled;
};

// Follows a run from its first record on.
class PresentReader {
 public:
  PresentReader();
  ~PresentReader();

  // As Replayer::Add.
  Status Add(const Record& record);
  // Null before the first record.
  const Run* run() const;
  // `daemon`: null where there is none that runs. REQUIRES: a record was added.
  Present Read(const RunInfo& info, const DaemonStatus* daemon) const;

 private:
  friend Result<Present> LoadPresent(HistorySource& source, const RunInfo& info);
  struct State;
  std::unique_ptr<State> state_;
};

Result<Present> LoadPresent(HistorySource& source, const RunInfo& run);

// How far a run is.
struct RunProgress {
  JobProgress job;
  std::vector<Rank> differ;  // whose replicas are to be as those of most, and are not
  std::optional<PauseRow> paused;
  std::string stopped;  // "stopped by rank 0: REASON"; empty: nobody has stopped it
};

// nullopt: it has ended, or cannot be replayed.
std::optional<RunProgress> LoadProgress(HistorySource& source, const RunInfo& run);
// What a run that has ended had trained, as RunInfo::end says; nullopt: it does not say.
std::optional<Trained> TrainedAtEnd(const RunInfo& run);

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_PRESENT_H_
