// Invariants of the history and of what is sent, whatever the engine. Each has a name, under which
// a violation is reported (violation.h):
//
//   one-group            no worker is in two running groups
//   weights              weights are >= 0 and sum to 1 with the initial model's share; those of a
//                        kRound to 1 at most; those of a kAverage are equal
//   members              a group's members are there, joined, and have a signal waiting (but for
//                        those formed ahead: DrawnAhead); those of a kRound or kAverage are all
//                        who have joined, and who contributes to a kRound owes a gradient; nobody
//                        twice
//   one-signal           of a worker, one signal that waits stands at a time; it stands no more
//                        once the worker is to compute more of its step (SharesSet::more)
//   group-order          a worker's groups form in ascending order of ids, and so all workers meet
//                        two groups that they share in the same order
//   schedule             a schedule is for all who have joined, its ids are its own, and no other
//                        group trains beside it
//   one-round            kRounds and kAverages run one at a time
//   round-for-all        when a kRound ends, all of its members that are left have the result, or
//                        none has; it is copied from one who has it to one who lacks it
//   iterations           a worker's iteration never goes back, a group goes on at the largest, and
//                        kRounds that succeeded have numbers without a hole; where replicas are
//                        equal by design, members of a group that trains have models of one
//                        iteration
//   pause                a worker that pauses is in no group that trains
//   gradients            a worker's gradients are in rounds, or lost with it as its end says, and
//                        nobody finishes while it owes one
//   answers              a signal gets one answer at most
//   final-average        where replicas are equal by design, the newest count in it; elsewhere
//                        those that lack little of what was trained (engines/final_average.h); all
//                        that count have one weight, and the others 0
//   goal                 a job reaches its goal once
//   recorded-first       what is announced is in the history before it is sent, and so is what a
//                        message says of the job's training
//   messages-once        the messages of an incarnation are acted on in order, each once; but a
//                        Hello may be heard anew once its first answer has been lost for a lease
//   finished-once        every member reports on a group once, and a group ends when all have
//   deadlines            a run comes to few deadlines at one instant: one that has been handled is
//                        over
//   no-evictions         neither end of the real protocol breaks it
//   history-whole        records follow each other without a hole (history_store.h), and so do
//                        groups, until a link is broken
//
// One more of what is sent is in introductions.h. And one of what workers do:
//   no-hang              from the last fault on, and once it is over, nobody who lives is in a call
//                        of the library for longer than 2 leases, 5 s and four of the longest steps
//                        there were, while nobody computes one step all that time; and all finish
//                        before the run's time is over. A pause takes what it takes: nobody but
//                        those who finish waits for it. Who is ahead in a schedule waits until
//                        others have taken its steps: sixteen steps there.
#ifndef PRD_TOOLS_SIM_LAWS_H_
#define PRD_TOOLS_SIM_LAWS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/history.h"
#include "common/base/messages.h"

namespace prd::sim {

class Laws {
 public:
  // The plan of a run by how it began; none: all runs have the first one.
  using PlanOf = std::function<Plan(const RunStarted&)>;
  explicit Laws(const Plan& plan = {}, PlanOf plan_of = nullptr)
      : plan_(plan), plan_of_(std::move(plan_of)) {}

  // A record that has become durable. Throws Violation.
  void Seen(const Record& record);
  // A message about to leave the controller. Throws Violation.
  void Sent(const ControllerEnvelope& envelope) const;

 private:
  struct Worker {
    Incarnation incarnation = 0;
    Iteration iteration = 0;
    GroupId group = kNoGroup;
    bool passive = false;       // in its group
    GroupId newest = kNoGroup;  // group that it was put into, or the first of a schedule it is in
    std::uint32_t owed = 0;     // gradients in no round
    Iteration signalled = 0;    // its last signal's iteration,
    bool waiting = false;       // which waits for a group,
    bool open = false;          // and has no answer
    Iteration more_of = 0;      // of this step it is to compute more than its share:
    std::uint32_t more = 0;     // so many pieces, and what it signals before is void
    bool joined = false;
    bool ordered = false;    // this rank to adopt, at least once
    bool answered = false;   // a query, at least once
    bool scheduled = false;  // in a schedule, at least once
    bool placed = false;     // neighbours or a placement of shards, at least once
    bool opened = false;     // a placement that was opened, at least once
    bool paused = false;
    std::int64_t stopped = 0;  // steps that the run had when the worker stopped training
    Instant stopped_when;
    bool stands = false;  // it has stopped, and neither resumed nor gone
  };
  struct Told {            // under a rank
    bool known = false;    // a worker has held it
    std::int64_t own = 0;  // the newest steps told
    Instant when;
    std::int64_t before = 0;  // the job's, as its newest Hello says
  };
  struct Running {
    GroupKind kind = GroupKind::kTrain;
    std::vector<Rank> pending;
    std::vector<Rank> have, lack;  // of those that have reported and are still there
    Iteration iteration = 0;
  };
  struct Run {
    Plan plan;
    std::vector<Worker> workers;  // by rank
    std::map<GroupId, Running> groups;
    GroupId last_group = kNoGroup;
    bool lost = false;  // its end, as a worker has proven: it ends as it is
    // A link has been broken: a group may be held back, and form later or never.
    bool broken = false;
    std::set<GroupId> held;
    std::map<Rank, Told> told;
    std::int64_t before = 0;  // steps of the job before this run
    std::int64_t gained = 0;  // in this run
    bool begun = false;       // the common start has been made
    bool done = false;        // the goal has been reached
    Instant deadline;         // the newest, and how often in a row it came then
    int deadlines = 0;
  };
  struct Life {  // of an incarnation
    RunId run = kNoRun;
    Rank rank = kNoRank;
    Seq seq = 0;
    bool there = false;
  };

  // Members keep their signals and their own count of iterations.
  static bool Ahead(const Plan& plan, GroupKind kind) {
    return kind == GroupKind::kTrain && DrawnAhead(plan);
  }
  Run& RunOf(RunId run);
  void OnStarted(Run* run, const RunStarted& started);
  Worker& At(Run* run, Rank rank);
  void OnMessage(const Record& record, const WorkerEnvelope& envelope);
  static void OnReady(const Plan& plan, Worker* worker, Rank rank, const Ready& ready);
  void OnAdopted(Run* run, Rank rank, const Adopted& adopted);
  void OnFinished(Run* run, Rank rank, const Finished& finished);
  void HasResult(Run* run, Rank rank, GroupId group, std::uint32_t included);
  void OnJoined(Run* run, const WorkerJoined& joined);
  void OnLeft(Run* run, Instant now, const WorkerLeft& left);
  static void OnDeadline(Run* run, Instant now);
  void OnFormed(Run* run, const GroupFormed& formed);
  void CheckId(const Run& run, const GroupFormed& formed) const;
  static void CheckBase(const Run& run, const GroupFormed& formed);
  static void CheckMember(const Plan& plan, const Worker& worker, const GroupFormed& formed,
                          const GroupShare& share);
  void CheckRound(const Run& run, const GroupFormed& formed) const;
  void OnEnded(Run* run, const GroupEnded& ended);
  void OnOrdered(Run* run, const AdoptOrdered& ordered);
  void OnAnswered(Run* run, const QueryAnswered& answered);
  void OnScheduled(Run* run, const ScheduleSet& set);
  void OnNeighbours(Run* run, const NeighboursSet& set);
  void OnPlaced(Run* run, const PlacementSet& set);
  void OnShares(Run* run, const SharesSet& set);
  // What is trained (laws_training.cc).
  static void OnTold(Run* run, Instant now, Rank rank, const WorkerBody& body);
  void CheckFinal(const Run& run, const GroupFormed& formed) const;
  static void TakeStart(Run* run, const GroupFormed& formed);
  static void CheckProgress(const Run& run, const JobProgress& progress);

  const Plan plan_;  // of runs of which nothing else is known
  const PlanOf plan_of_;
  std::map<RunId, Run> runs_;
  std::unordered_map<Incarnation, Life> lives_;  // looked up only, never walked
};

// no-hang: looks at all workers once per `limit`, and what steps take, from the last fault on.
class HangWatch {
 public:
  enum class Doing : std::uint8_t {
    kComputes,
    kWaits,     // in Attach, Step or Leave
    kFinishes,  // waits for those who train, or pause
    kPauses,
    kThrough,  // or not there
  };
  struct Worker {
    Doing doing = Doing::kThrough;
    std::uint64_t progress = 0;  // grows with each call completed, and each life
    std::uint64_t step = 0;      // that it computes
  };

  // `steps`: of the longest there were, how many one may wait for, one after another.
  explicit HangWatch(DurationNs limit, int steps = 4) : limit_(limit), steps_(steps) {}

  // Faults, or what comes of them, last until then.
  void Disturbed(Instant until) {
    if (until > quiet_) before_.clear();
    quiet_ = std::max(quiet_, until);
  }
  // The longest step that anybody has computed.
  void Computed(DurationNs longest) { longest_ = longest; }
  // When Hangs is to be asked next.
  Instant due() const { return before_.empty() ? quiet_ : looked_ + limit_ + steps_ * longest_; }
  // Whether somebody has got nowhere since it was asked before. Ask at due().
  bool Hangs(std::vector<Worker> workers);

 private:
  const DurationNs limit_;
  Instant quiet_;
  const int steps_;
  DurationNs longest_ = 0;
  Instant looked_;
  std::vector<Worker> before_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_LAWS_H_
