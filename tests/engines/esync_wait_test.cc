// How long workers wait under esync, in virtual time: real engine, constant iterations, free
// reductions. "We can guarantee that the blocking time of the aggregation operation is less than
// c_p" (ESync, section 4.1).
#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "common/base/prng.h"
#include "engines/esync/esync.h"
#include "gtest/gtest.h"

namespace prd::esync_wait_test {
namespace {

struct Setting {
  EsyncOptions options;
  std::vector<DurationNs> iteration;   // by rank
  std::vector<DurationNs> round_trip;  // by rank, to the controller and back; empty = none
  DurationNs claimed = 0;              // a worker's own measure of an iteration is this much off
  int rounds = 0;
};

struct Outcome {
  struct Turn {
    Rank rank = kNoRank;
    int round = 0;
    std::uint32_t local_steps = 0;
    DurationNs waited = 0;  // at the barrier
  };
  std::vector<Turn> turns;
  std::vector<Effects> said;
};

// Workers that train, ask, and do as they are told; messages take half a round trip.
class Cluster {
 public:
  explicit Cluster(const Setting& run) : run_(run), engine_(run.options) {
    workers_.resize(run.iteration.size());
    if (run_.round_trip.empty()) run_.round_trip.resize(run.iteration.size());
    for (Rank rank = 0; rank < std::ssize(workers_); ++rank) {
      Step(JoinedEvent{.rank = rank, .host = "h"});
    }
    for (Rank rank = 0; rank < std::ssize(workers_); ++rank) Begin(rank);
  }

  Outcome Go() {
    while (round_ <= run_.rounds) {
      if (coming_.empty()) throw std::runtime_error("deadlock: nothing is to come");
      const Coming next = coming_.top();
      coming_.pop();
      now_ = {next.at};
      Worker& worker = workers_[Index(next.rank)];
      if (next.what == kQuery) {
        Step(ReadyEvent{.rank = next.rank, .ready = next.ready});
      } else if (next.what == kReadyAck) {
        Stop(next.rank);
      } else if (next.training == worker.training) {
        EndIteration(next.rank);
      }
    }
    return std::move(outcome_);
  }

 private:
  enum What { kIteration, kQuery, kReadyAck };
  struct Coming {
    std::int64_t at = 0;
    std::int64_t order = 0;
    Rank rank = kNoRank;
    What what = kIteration;
    std::int64_t training = 0;  // of the iteration that ends: not one cut short
    Ready ready;
    friend bool operator>(const Coming& a, const Coming& b) {
      return std::tie(a.at, a.order) > std::tie(b.at, b.order);
    }
  };
  struct Worker {
    std::uint32_t local_steps = 0;
    std::int64_t training = 0;  // counts iterations, also those cut short
    Instant waits_since;
  };

  static std::size_t Index(Rank rank) { return static_cast<std::size_t>(rank); }
  bool Delayed() const { return run_.options.mode == EsyncOptions::Mode::kDelayedAck; }

  void Push(DurationNs after, Rank rank, What what, const Ready& ready = {}) {
    coming_.push({.at = now_.ns + after,
                  .order = order_++,
                  .rank = rank,
                  .what = what,
                  .training = workers_[Index(rank)].training,
                  .ready = ready});
  }

  void Begin(Rank rank, DurationNs after = 0) {
    ++workers_[Index(rank)].training;
    Push(after + run_.iteration[Index(rank)], rank, kIteration);
  }

  void Send(Rank rank, bool waiting) {
    const DurationNs trip = run_.round_trip[Index(rank)];
    Push(trip / 2, rank, kQuery,
         {.iteration = round_,
          .step_ns = run_.iteration[Index(rank)] + run_.claimed,
          .waiting = waiting,
          .local_steps = workers_[Index(rank)].local_steps,
          .rtt_ns = trip});
  }

  void EndIteration(Rank rank) {
    ++workers_[Index(rank)].local_steps;
    workers_[Index(rank)].waits_since = now_;
    Send(rank, !Delayed());
    if (Delayed()) Begin(rank);
  }

  void Stop(Rank rank) {  // cuts the iteration short, and goes to the barrier
    ++workers_[Index(rank)].training;
    workers_[Index(rank)].waits_since = now_;
    Send(rank, true);
  }

  void Step(const Event& event) {
    Effects& said = outcome_.said.emplace_back();
    engine_.Step(now_, event, &next_group_, &said);
    const Effects heard = said;
    for (const Effect& effect : heard) {
      if (const auto* answer = std::get_if<QueryAnswered>(&effect)) {
        const DurationNs trip = run_.round_trip[Index(answer->rank)];
        if (Delayed()) Push(trip / 2, answer->rank, kReadyAck);
        if (!Delayed() && !answer->ready) Begin(answer->rank, trip / 2);
      } else {
        Reduce(std::get<GroupFormed>(effect));
      }
    }
  }

  void Reduce(const GroupFormed& group) {
    for (const GroupShare& member : group.members) {
      Worker& worker = workers_[Index(member.rank)];
      outcome_.turns.push_back({.rank = member.rank,
                                .round = static_cast<int>(round_),
                                .local_steps = worker.local_steps,
                                .waited = now_ - worker.waits_since});
      worker.local_steps = 0;
    }
    ++round_;
    for (const GroupShare& member : group.members) {
      Step(FinishedEvent{.rank = member.rank, .group = group.id, .ok = true});
      Begin(member.rank, run_.round_trip[Index(member.rank)] / 2);
    }
    Step(EndedEvent{.group = group.id, .ok = true});
  }

  Setting run_;
  Esync engine_;
  Instant now_;
  GroupId next_group_ = 1;
  Iteration round_ = 1;
  std::int64_t order_ = 0;
  std::vector<Worker> workers_;
  std::priority_queue<Coming, std::vector<Coming>, std::greater<>> coming_;
  Outcome outcome_;
};

// Up to 20 workers whose iterations take 1 to 100 ms.
std::vector<DurationNs> Mix(Prng* random) {
  std::vector<DurationNs> iteration(1 + random->Below(20));
  for (DurationNs& each : iteration) {
    each = kMillisecond + static_cast<DurationNs>(random->Below(99 * kMillisecond));
    if (random->Below(4) == 0) each = iteration[0];  // equals among them
  }
  return iteration;
}

// From the second round on, when all are known: each waits for less than one of its own iterations
// (and the margin), and has done as many as there was time for.
TEST(EsyncWaitTest, LessThanOneIterationOfOnesOwn) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Prng random(seed);
    Setting run{.iteration = Mix(&random), .rounds = 20};
    run.options.margin_ms = static_cast<std::int64_t>(random.Below(3));
    const DurationNs margin = run.options.margin_ms * kMillisecond;
    const DurationNs slowest = *std::max_element(run.iteration.begin(), run.iteration.end());
    const Outcome outcome = Cluster(run).Go();
    ASSERT_EQ(outcome.turns.size(), run.iteration.size() * 20);
    for (const Outcome::Turn& turn : outcome.turns) {
      if (turn.round == 1) continue;
      const DurationNs c = run.iteration[static_cast<std::size_t>(turn.rank)];
      ASSERT_LT(turn.waited, c + margin + 1) << "seed " << seed << ", rank " << turn.rank;
      ASSERT_TRUE(c < slowest || turn.waited == 0) << "seed " << seed;
      const auto fit = std::max<std::int64_t>(1, (slowest - margin) / c);
      ASSERT_GE(turn.local_steps, fit) << "seed " << seed << ", rank " << turn.rank;
      ASSERT_LE(turn.local_steps, slowest / c) << "seed " << seed << ", rank " << turn.rank;
    }
  }
}

// The same with equal round trips, which are part of c.
TEST(EsyncWaitTest, ARoundTripIsPartOfAnIteration) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Prng random(seed);
    Setting run{.iteration = Mix(&random), .rounds = 20};
    const auto trip = static_cast<DurationNs>(random.Below(20 * kMillisecond)) / 2 * 2;
    run.round_trip.assign(run.iteration.size(), trip);
    for (const Outcome::Turn& turn : Cluster(run).Go().turns) {
      if (turn.round == 1) continue;
      const DurationNs c = run.iteration[static_cast<std::size_t>(turn.rank)] + trip;
      ASSERT_LE(turn.waited, c + kMillisecond + trip) << "seed " << seed << ", rank " << turn.rank;
    }
  }
}

// Section 4.2: with delayed ACK nobody computes less for the round trips than with free ones, but
// for what is cut short: delta - 1 iterations more, those that fit into a round trip.
TEST(EsyncWaitTest, DelayedAckTrainsThroughTheRoundTrip) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Prng random(seed);
    Setting run{.options = {.mode = EsyncOptions::Mode::kDelayedAck},
                .iteration = Mix(&random),
                .rounds = 20};
    for (std::size_t i = 0; i < run.iteration.size(); ++i) {
      run.round_trip.push_back(static_cast<DurationNs>(random.Below(10 * kMillisecond)) * 2);
    }
    const DurationNs slowest = *std::max_element(run.iteration.begin(), run.iteration.end());
    const DurationNs longest_trip = *std::max_element(run.round_trip.begin(), run.round_trip.end());
    const Outcome outcome = Cluster(run).Go();
    ASSERT_EQ(outcome.turns.size(), run.iteration.size() * 20) << "all in every round";
    for (const Outcome::Turn& turn : outcome.turns) {
      const DurationNs c = run.iteration[static_cast<std::size_t>(turn.rank)];
      ASSERT_GE(turn.local_steps, 1u);
      if (turn.round == 1) continue;
      const std::int64_t most = (slowest + 2 * longest_trip) / c + 1;
      ASSERT_LE(turn.local_steps, most) << "seed " << seed << ", rank " << turn.rank;
      ASSERT_LE(turn.waited, c + kMillisecond + 3 * longest_trip) << "seed " << seed;
    }
  }
}

// A worker's own measure of its iterations, off by an hour, changes nothing.
TEST(EsyncWaitTest, WorkersClocksDoNotCount) {
  for (const auto mode : {EsyncOptions::Mode::kBlocking, EsyncOptions::Mode::kDelayedAck}) {
    Prng random(3);
    Setting run{.options = {.mode = mode}, .iteration = Mix(&random), .rounds = 10};
    const Outcome right = Cluster(run).Go();
    run.claimed = 3600 * kSecond;
    EXPECT_EQ(Cluster(run).Go().said, right.said);
  }
}

}  // namespace
}  // namespace prd::esync_wait_test
