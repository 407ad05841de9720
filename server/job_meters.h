// The metrics of jobs, from their records: the daemon's counters by job and engine.
//
// Only so many jobs have series of their own, so that thousands of names do no harm: those that
// came first, with a series for each engine that they have had. The others are counted together as
// job="other", by engine. A job's series go when no run of it has gone on for a while, and its
// place is free again.
#ifndef PRD_SERVER_JOB_METERS_H_
#define PRD_SERVER_JOB_METERS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/base/history.h"
#include "engines/run.h"
#include "server/meters/stragglers.h"
#include "server/metrics.h"

namespace prd {

class JobMeters {
 public:
  using Jobs = std::map<RunId, std::unique_ptr<Run>>;

  static constexpr std::size_t kMostJobs = 100;
  static constexpr DurationNs kForget = 600 * kSecond;
  // Ranks with a series of their own among those that others wait for.
  static constexpr std::size_t kMostRanks = 8;
  // Ranks from 0 on whose shares of the batch are told.
  static constexpr Rank kMostShares = 64;
  // Where parameters are in shards, each step asks about all workers: with more of them it is not
  // told who keeps whom waiting.
  static constexpr std::size_t kMostSharers = 256;

  // The records of all runs, in order.
  void Add(const Record& record);
  // A run that was restored: what came before is not counted.
  void Know(Instant now, const Run& run);
  // `wall_ns`: the Unix time of `now`.
  void Write(Instant now, std::int64_t wall_ns, const Jobs& jobs, MetricsPage* page);

 private:
  using Key = std::pair<std::string, std::string>;  // job, engine

  // A job under an engine, over all its runs.
  struct Series {
    Series();
    int runs = 0;   // that go on
    Instant ended;  // the last one
    Distribution waiting, reducing, members;
    std::uint64_t groups_failed = 0;
    std::uint64_t steps = 0;
    std::uint64_t dropped = 0;
    std::uint64_t stale = 0;
    std::uint64_t joined = 0;
    std::uint64_t lost = 0;
    std::uint64_t nonfinite = 0;
    std::uint64_t share_changes = 0;
  };

  // Steps that were told under a rank.
  struct Told {
    std::optional<std::int64_t> steps;
    Incarnation incarnation = 0;
  };

  struct RunMeters {
    Key key;
    Instant begun;
    std::unique_ptr<meters::PaceMeter> pace;
    std::map<Incarnation, std::int64_t> brought;  // steps, as Hellos say
    std::map<Rank, Told> told;
    std::map<GroupId, Instant> open;
    // While a common start waits: the most workers that were there, and since when. A worker that
    // comes and goes again and again is no more of them.
    int most_here = 0;
    Instant came;
    std::optional<Instant> progress;  // the last
    double interval_s = 0;            // the longest of late; 0: not known
    // What each worker owed at two times, half a minute apart.
    std::map<Rank, double> before, since;
    Instant since_at;
  };

  // What is told of runs, summed up by series.
  struct Now {
    std::map<std::string, std::size_t> workers;  // by what they do
    std::size_t started = 0;
    std::size_t links_broken = 0;
    std::size_t replicas_differ = 0;
    std::optional<Instant> progress;  // the oldest
    double interval_s = 0;
    std::optional<Instant> open;  // the oldest
    std::optional<Instant> came;  // RunMeters::came, the oldest
    std::map<Rank, double> owed;  // of late
    std::int64_t batch = 0;       // 0: there is none
    std::map<Rank, std::int64_t> shares;
    HeldMemory memory;  // the most of a worker
  };

  RunMeters& Begin(Instant now, RunId run, const RunStarted& started);
  void OnWorker(Instant now, const WorkerEnvelope& envelope, RunMeters* run, Series* series);
  void OnDecision(const Record& record, RunMeters* run, Series* series);
  void Bring(Rank rank, Incarnation incarnation, RunMeters* run, Series* series);
  void OnSteps(Instant now, const WorkerEnvelope& envelope, std::int64_t own, RunMeters* run,
               Series* series);
  void Look(Instant now, const Run& run, RunMeters* meters, Now* of);
  void Forget(Instant now);

  std::map<RunId, RunMeters> runs_;
  std::map<Key, Series> series_;
};

}  // namespace prd

#endif  // PRD_SERVER_JOB_METERS_H_
