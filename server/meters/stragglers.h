// Stragglers: which workers are slow, by how much, and what the others lost to them.
//
// A worker's own pace is the median of its step times (its own measure of computing, waiting
// excluded); its factor is that over the median worker's.
//
// The waiting is shared out: from the moment a member of a later group is ready until the last one
// is, its waiting is owed to the members still missing, in equal parts. So the parts sum to all the
// waiting for members there was, a worker that everybody waits for alone owes all of that, and one
// whom nobody waits for, however slow, owes nothing. What passes between the last member's signal
// and the group's announcement is the controller's; but where rounds run one at a time, and the
// last one kept the next from forming, it is that round's until it ended.
//
// Where groups are drawn ahead, a worker waits from its signal on: first for groups
// that its group's members are in before, until its group is announced; then for those members,
// passive ones among them, whose training loops still compute, to whom that is owed. In the
// background nobody waits for members. To take part passively is no wait of its own. With a
// run_ahead a signal's wait does not stop the training loop: it is how old the signal got. Of a
// schedule's groups nothing is known here.
//
// Without groups that train, a worker that has computed waits for the updates of neighbours that
// have not entered the iteration whose update it needs, then, with its signal, for whose tokens or
// clocks it needs; to those that is owed. What passes while nobody is missing is moving_ns or
// controller_ns.
//
// Where all workers hold one model, a round may go on without some of them. What that costs the
// model is counted beside: rounds that took effect without anything of a worker, what it computed
// and the job did not use, and gradients that went with it.
#ifndef PRD_SERVER_METERS_STRAGGLERS_H_
#define PRD_SERVER_METERS_STRAGGLERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "server/meters/exchange.h"
#include "server/meters/run_view.h"

namespace prd::meters {

struct WorkerPace {
  Rank rank = kNoRank;
  std::uint64_t steps = 0;
  DurationNs median_step_ns = 0;
  DurationNs slowest_step_ns = 0;
  double factor = 1;           // of the median worker's pace; 1 when nothing is known
  DurationNs computed_ns = 0;  // in all
  DurationNs waited_ns = 0;    // for groups, as the controller saw it
  DurationNs reduced_ns = 0;   // its own measure
  DurationNs cost_ns = 0;      // waiting of others that is owed to it

  // Groups formed ahead that took effect: for it, and passively on somebody else's account.
  std::uint64_t own_groups = 0;
  std::uint64_t passive_groups = 0;

  // Where all workers hold one model, rounds that took effect: with something of it, and, while it
  // was there, without.
  std::uint64_t rounds_in = 0;
  std::uint64_t rounds_without = 0;
  std::uint64_t longest_without = 0;  // of these in a row

  std::uint64_t dropped = 0;  // its updates that came too late
  Instant last_dropped;
  std::string dropped_because;  // the last one
  // The share of what it had for rounds: dropped / (dropped + rounds_in).
  double dropped_share = 0;

  std::uint64_t gradients_lost = 0;  // that were in no round when it left, or was lost

  // Local steps with which it came to a round; 0 as long as it came to none.
  double mean_local_steps = 0;
  std::uint32_t fewest_local_steps = 0;
  std::uint32_t most_local_steps = 0;

  ExchangeRow exchange;  // where no groups train
};

struct PaceReport {
  Instant start;                    // of the run
  DurationNs median_step_ns = 0;    // of the workers' paces
  DurationNs waited_ns = 0;         // by all, for members
  DurationNs round_ns = 0;          // by all, for the round before theirs to end
  DurationNs queued_ns = 0;         // by all, for groups formed ahead before theirs to end
  DurationNs controller_ns = 0;     // by all, from then, or the last signal, to the announcement
  DurationNs moving_ns = 0;         // of all, for updates on their way
  std::uint64_t rounds = 0;         // that took effect
  std::uint64_t train_groups = 0;   // formed
  std::uint64_t conflicts = 0;      // of these (GroupFormed)
  Plan plan;                        // of the run's engine
  std::vector<WorkerPace> workers;  // the slowest first
};

// The middle one, or the mean of the two in the middle; 0 of nothing.
DurationNs Median(std::vector<DurationNs> values);

// How long steps took. The median of more than kExact of them is from a histogram, and off by 0.3 %
// at most; so memory, and the time to ask for it, do not grow with the run.
class StepTimes {
 public:
  static constexpr std::size_t kExact = 512;
  void Add(DurationNs length);
  std::uint64_t count() const { return count_; }
  DurationNs total() const { return total_; }
  DurationNs longest() const { return longest_; }
  DurationNs median() const;

 private:
  static int FieldOf(DurationNs length);

  std::uint64_t count_ = 0;
  DurationNs total_ = 0;
  DurationNs longest_ = 0;
  std::vector<DurationNs> exact_;        // all, while they are few
  std::map<int, std::uint64_t> fields_;  // all, once they are many
};

// Takes the records of a run in order.
class PaceMeter {
 public:
  struct Options {
    bool keep_steps = true;  // else the report tells nothing of the length of steps
    // Told of each wait of a worker. All of them sum to WorkerPace::waited_ns over the workers.
    std::function<void(DurationNs)> on_wait = {};
  };
  PaceMeter() : PaceMeter(Options{}) {}
  explicit PaceMeter(Options options);

  RunView::Change Add(const Record& record);
  PaceReport Report() const;
  // WorkerPace::cost_ns, by rank.
  std::map<Rank, double> Owed() const;
  const Plan& plan() const { return view_.plan(); }

 private:
  struct Tally {
    StepTimes steps;
    StepCounter counter;
    DurationNs waited_ns = 0;
    DurationNs reduced_ns = 0;
    double cost_ns = 0;  // parts of ns add up
    std::uint64_t own_groups = 0;
    std::uint64_t passive_groups = 0;
    std::uint64_t rounds_in = 0;
    std::uint64_t rounds_without = 0;
    std::uint64_t longest_without = 0;
    std::uint64_t without_now = 0;  // in a row
    std::uint64_t dropped = 0;
    Instant last_dropped;
    std::string dropped_because;
    std::uint64_t gradients_lost = 0;
    std::uint64_t local_steps = 0;  // in all rounds
    std::uint32_t fewest_local_steps = 0;
    std::uint32_t most_local_steps = 0;
  };
  void Waited(Rank rank, DurationNs ns);
  void OnMessage(const WorkerEnvelope& envelope, DurationNs age);
  void OnEnded(const GroupRow& group);
  void ShareOut(const GroupRow& group);
  void OnEndedAhead(const GroupRow& group);
  void ShareOutAhead(const GroupRow& group);
  WorkerPace PaceOf(Rank rank, const Tally& tally) const;

  const Options options_;
  RunView view_;
  ExchangeMeter exchange_;
  std::map<Rank, Tally> tallies_;
  Instant round_ended_;  // the last one
  std::uint64_t rounds_ = 0;
  DurationNs round_ns_ = 0;
  DurationNs queued_ns_ = 0;
  DurationNs waited_ns_ = 0;
  DurationNs controller_ns_ = 0;
};

}  // namespace prd::meters

#endif  // PRD_SERVER_METERS_STRAGGLERS_H_
