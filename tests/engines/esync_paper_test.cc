// ESync, sentence by sentence: Li et al., ESync: An Efficient Synchronous Parallel Algorithm for
// Distributed ML in Heterogeneous Clusters.
#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engines/esync/esync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prd::esync_paper_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr EsyncOptions kDelayedAck{.mode = EsyncOptions::Mode::kDelayedAck};

// A State Server, asked by hand. Times are in ms.
class Server {
 public:
  explicit Server(int workers, const EsyncOptions& options = {})
      : engine_(std::make_unique<Esync>(options)) {
    for (Rank rank = 0; rank < workers; ++rank) Join(rank);
  }

  void At(std::int64_t ms) { now_ = {ms * kMillisecond}; }
  void Join(Rank rank, Iteration round = 0) {
    Step(JoinedEvent{.rank = rank, .iteration = round, .host = "h"});
  }
  void Leave(Rank rank) { Step(LeftEvent{.rank = rank, .why = LeftReason::kLost}); }

  // QUERY-STATE(rank, k): the answer; nullopt when none is given.
  std::optional<bool> Ask(Rank rank, std::uint32_t k, bool waiting = true, DurationNs rtt = 0,
                          std::int64_t samples = 0) {
    Step(ReadyEvent{.rank = rank,
                    .ready = {.iteration = round_,
                              .samples = samples,
                              .waiting = waiting,
                              .local_steps = k,
                              .rtt_ns = rtt}});
    if (said_.empty() || !std::holds_alternative<QueryAnswered>(said_[0])) return std::nullopt;
    return std::get<QueryAnswered>(said_[0]).ready;
  }

  std::string Why() const { return std::get<QueryAnswered>(said_.at(0)).reason; }
  // The group formed last ends for everybody (but those listed).
  void Finish(const std::vector<Rank>& failed = {}) {
    ASSERT_TRUE(group_);
    const GroupFormed group = *std::exchange(group_, std::nullopt);
    bool any = false;
    for (const GroupShare& member : group.members) {
      const bool ok = std::find(failed.begin(), failed.end(), member.rank) == failed.end();
      any = any || ok;
      Step(FinishedEvent{.rank = member.rank, .group = group.id, .ok = ok});
    }
    if (any) round_ = group.iteration + 1;
    Step(EndedEvent{.group = group.id, .ok = any});
  }
  void Deadline() {
    now_ = *engine_->NextDeadline();
    Step(DeadlineEvent{});
  }

  std::vector<Rank> Members() const {
    std::vector<Rank> ranks;
    if (!group_) return ranks;
    for (const GroupShare& member : group_->members) ranks.push_back(member.rank);
    return ranks;
  }
  std::vector<Rank> ToCatchUp() const {
    std::vector<Rank> ranks;
    for (const Effect& effect : said_) {
      if (const auto* late = std::get_if<UpdateDropped>(&effect)) ranks.push_back(late->rank);
    }
    return ranks;
  }
  const std::optional<GroupFormed>& group() const { return group_; }
  const Effects& said() const { return said_; }
  Esync& engine() { return *engine_; }
  Instant now() const { return now_; }

 private:
  void Step(const Event& event) {
    said_.clear();
    engine_->Step(now_, event, &next_group_, &said_);
    for (const GroupFormed& group : GroupsOf(said_)) group_ = group;
  }

  std::unique_ptr<Esync> engine_;
  Instant now_;
  GroupId next_group_ = 1;
  Iteration round_ = 1;
  Effects said_;  // on the last event
  std::optional<GroupFormed> group_;
};

// A server on which c is 10 ms for rank 0, 40 ms for rank 1, and 100 ms for rank 2, and round 2 has
// begun at 200 ms.
Server Calibrated(const EsyncOptions& options = {}) {
  Server server(3, options);
  const bool waits = options.mode == EsyncOptions::Mode::kBlocking;
  const std::int64_t iteration_ms[] = {10, 40, 100};
  std::vector<Rank> training = {2, 1, 0};
  for (std::int64_t ms = 10; !training.empty(); ms += 10) {
    server.At(ms);
    std::erase_if(training, [&](Rank rank) {
      const std::int64_t each = iteration_ms[rank];
      return ms % each == 0 &&
             server.Ask(rank, static_cast<std::uint32_t>(ms / each), waits) == true;
    });
  }
  for (const Rank rank : {0, 1, 2}) {
    if (!waits) server.Ask(rank, 100, true);
  }
  server.At(200);
  server.Finish();
  return server;
}

// ---- Algorithm 1 ----

// Line 3: "c <- RUN-BATCH-DATA-TEST(b)": every worker's first iteration; nobody is ready before all
// have done it.
TEST(EsyncPaperTest, TheFirstIterationIsTheBatchDataTest) {
  Server server(3);
  server.At(10);
  EXPECT_EQ(server.Ask(0, 1), false);
  EXPECT_EQ(server.Why(), "rank 1 is in its first iteration");
  server.At(20);
  EXPECT_EQ(server.Ask(0, 2), false);
  server.At(40);
  EXPECT_EQ(server.Ask(1, 1), false);
  server.At(100);
  EXPECT_EQ(server.Ask(2, 1), true) << "the slowest";
  EXPECT_FALSE(server.group());
}

// Lines 16-25: who is ready takes part; the mean of the differences (Eq. 7: 1/p each) makes round
// t + 1, and the server starts anew.
TEST(EsyncPaperTest, AllAggregateWithEqualWeights) {
  Server server(2);
  for (const std::uint32_t step : {1u, 2u, 3u}) {
    server.At(10 * step);
    EXPECT_EQ(server.Ask(0, step), false);
  }
  server.At(40);
  EXPECT_EQ(server.Ask(1, 1), true);
  EXPECT_EQ(server.Ask(0, 4), true);
  EXPECT_THAT(server.Members(), ElementsAre(0, 1));
  EXPECT_EQ(server.group()->members[0].weight, 0.5);
  EXPECT_EQ(server.group()->members[1].weight, 0.5);
  EXPECT_EQ(server.group()->iteration, 1);
  EXPECT_THAT(server.group()->reason, HasSubstr("local iterations 1 to 4, 5 in all"));
  server.Finish();
  server.At(50);
  EXPECT_EQ(server.Ask(0, 1), false) << "the next round";
  EXPECT_EQ(OuterRate(Esync({.global_lr = 0.5}).plan()), 0.5);
}

// Unequal batches: a change counts for the samples in a batch, not for how many local iterations
// its worker had time for. So the weights are those of Eq. 7 where batches are equal.
TEST(EsyncPaperTest, ChangesCountByTheSamplesInALocalIteration) {
  const auto weights = [](const EsyncOptions& options, std::vector<std::int64_t> fast,
                          std::int64_t slow) {
    Server server(2, options);
    for (std::uint32_t step = 1; step <= 3; ++step) {
      server.At(10 * step);
      server.Ask(0, step, true, 0, fast[step - 1]);
    }
    server.At(40);
    server.Ask(1, 1, true, 0, slow);
    server.Ask(0, 4, true, 0, fast[3]);
    return std::pair(server.group()->members[0].weight, server.group()->members[1].weight);
  };
  const std::pair equal(0.5, 0.5);
  EXPECT_EQ(weights({}, {64, 64, 64, 64}, 64), equal);
  EXPECT_EQ(weights({}, {64, 64, 64, 64}, 16), std::pair(0.8, 0.2));
  EXPECT_EQ(weights({}, {48, 16, 48, 16}, 96), std::pair(0.25, 0.75)) << "32 on average";
  EXPECT_EQ(weights({}, {64, 0, 64, 64}, 16), equal) << "one is not told";
  EXPECT_EQ(weights({}, {64, 64, 64, 64}, 0), equal);
  EXPECT_EQ(weights({.weights = EsyncOptions::Weights::kUniform}, {64, 64, 64, 64}, 16), equal);
}

// The samples of one round are not those of the next; a round that failed for all is the same one.
TEST(EsyncPaperTest, SamplesAreThoseOfTheRound) {
  Server server(2, {.margin_ms = 0});
  // Rank 0 does two local iterations, rank 1 one.
  const auto round = [&server](std::int64_t first, std::int64_t second) {
    const std::int64_t begun = server.now().ns / kMillisecond;
    server.At(begun + 5);
    EXPECT_EQ(server.Ask(0, 1, true, 0, first), false);
    server.At(begun + 20);
    EXPECT_EQ(server.Ask(1, 1, true, 0, second), true);
    EXPECT_EQ(server.Ask(0, 2, true, 0, first), true);
    return server.group() ? server.group()->members[0].weight : 0;
  };
  EXPECT_EQ(round(64, 64), 0.5);
  server.Finish();
  EXPECT_EQ(round(16, 48), 0.25);
  server.Finish({0, 1});
  server.Ask(0, 2, true, 0, 16);
  server.Ask(1, 1, true, 0, 48);
  ASSERT_TRUE(server.group());
  EXPECT_EQ(server.group()->members[0].weight, 0.25) << "signalled again";
  server.Finish();
  EXPECT_EQ(round(48, 16), 0.75);
  server.Finish({0});  // rank 0 copies the result, and begins a round of its own
  EXPECT_EQ(round(16, 48), 0.25);
}

// ---- Algorithm 2 ----

// Line 5: "if k == 0 ...: return false".
TEST(EsyncPaperTest, Line5NothingToAggregate) {
  Server server = Calibrated();
  server.At(300);
  EXPECT_EQ(server.Ask(2, 0), false);
  EXPECT_EQ(server.Why(), "no local iteration yet");
}

// Line 5: "... or slowest has not complete the PULL operation yet: return false".
TEST(EsyncPaperTest, Line5TheSlowestStillReduces) {
  Esync engine({});
  Effects said;
  GroupId next = 1;
  const auto step = [&](std::int64_t ms, const Event& event) {
    said.clear();
    engine.Step({ms * kMillisecond}, event, &next, &said);
  };
  for (const Rank rank : {0, 1}) step(0, JoinedEvent{.rank = rank, .host = "h"});
  step(10, ReadyEvent{.rank = 0, .ready = {.iteration = 1, .local_steps = 1}});
  step(100, ReadyEvent{.rank = 1, .ready = {.iteration = 1, .local_steps = 1}});
  step(100, ReadyEvent{.rank = 0, .ready = {.iteration = 1, .local_steps = 2}});
  ASSERT_EQ(GroupsOf(said).size(), 1u);
  step(110, FinishedEvent{.rank = 0, .group = 1, .ok = true});
  step(205, ReadyEvent{.rank = 0, .ready = {.iteration = 2, .local_steps = 1}});
  EXPECT_EQ(std::get<QueryAnswered>(said.at(0)).reason, "the slowest, rank 1, still reduces");
  EXPECT_FALSE(std::get<QueryAnswered>(said.at(0)).ready);
}

// Line 8: "rest_time <- slowest.get_capability() - current_time + slowest.get_last_finish_time()";
// line 9: "current.get_capability() + epsilon > rest_time: return true".
TEST(EsyncPaperTest, Line9TheNextIterationWouldEndTooLate) {
  Server server = Calibrated();
  for (std::int64_t ms = 210; ms < 290; ms += 10) {
    server.At(ms);
    EXPECT_EQ(server.Ask(0, static_cast<std::uint32_t>(ms - 200) / 10), false) << ms;
  }
  server.At(290);  // 10 ms to go: another 10 ms fit, but not with the margin
  EXPECT_EQ(server.Ask(0, 9), true);
  EXPECT_EQ(server.Why(), "the slowest, rank 2, is ready in 10.0 ms; an iteration takes 10.0 ms");
}

TEST(EsyncPaperTest, Line9TheMarginDecides) {
  for (const std::int64_t margin : {0, 1, 20, 21}) {
    Server server = Calibrated({.margin_ms = margin});
    server.At(240);  // an iteration took 40 ms, 60 ms to go
    EXPECT_EQ(server.Ask(1, 1), margin > 20) << margin;
  }
}

// Line 9: "if current == slowest ...".
TEST(EsyncPaperTest, Line9TheSlowestItself) {
  Server server = Calibrated();
  server.At(300);
  EXPECT_EQ(server.Ask(2, 1), true);
  EXPECT_EQ(server.Why(), "the slowest: an iteration takes 100.0 ms");
}

// Line 9: "... or slowest is ready ...".
TEST(EsyncPaperTest, Line9TheSlowestIsReady) {
  Server server = Calibrated();
  server.At(240);
  EXPECT_EQ(server.Ask(0, 1), false);
  server.At(250);
  EXPECT_EQ(server.Ask(2, 1), true) << "quicker than before, and yet the slowest";
  server.At(251);
  EXPECT_EQ(server.Ask(0, 2), true);
  EXPECT_EQ(server.Why(), "the slowest, rank 2, is ready");
}

// The slowest takes longer than it did: rest_time is negative, and others do not begin anew.
TEST(EsyncPaperTest, Line9TheSlowestIsOverdue) {
  Server server = Calibrated();
  server.At(240);
  EXPECT_EQ(server.Ask(1, 1), false);
  server.At(310);
  EXPECT_EQ(server.Ask(1, 2), true);
  EXPECT_THAT(server.Why(), StartsWith("the slowest, rank 2, is 10.0 ms overdue"));
  EXPECT_EQ(server.engine().Explain(server.now(), 1),
            "waiting: 1 of 3 ready; in a local iteration: ranks 0, 2; taken out in 690.0 "
            "ms at the earliest");
}

// Line 3: capability is what it was last ("capabilities may change", section 4.1).
TEST(EsyncPaperTest, TheSlowestMayChange) {
  Server server = Calibrated();
  server.At(250);
  EXPECT_EQ(server.Ask(2, 1), true) << "50 ms now, still the slowest";
  server.At(290);
  EXPECT_EQ(server.Ask(1, 1), true) << "90 ms, and so the slowest";
  EXPECT_THAT(server.Why(), StartsWith("the slowest:"));
}

// ---- section 4.1 ----

// "Suppose there are two straggling devices A and B with the same computing capabilities. Although
// A and B complete computations at the same time, there will be a device that first reports":
// neither may begin another iteration while the other waits.
TEST(EsyncPaperTest, TwoEqualStragglersAreReadyTogether) {
  for (const std::int64_t earlier_ms : {0, 1}) {
    for (const Rank first : {1, 2}) {
      Server server(3);
      for (std::int64_t ms = 10; !server.group(); ms += 10) {
        server.At(ms);
        const auto k = static_cast<std::uint32_t>(ms / 10);
        if (ms % 100 == 0) {
          server.Ask(1, k / 10);
          if (ms == 100) server.Ask(2, 1);  // the last to be known, so ready at once
        }
        if (!server.group()) server.Ask(0, k);
      }
      server.Finish();
      const Instant begin = server.now();
      server.At(begin.ns / kMillisecond + 100 - earlier_ms);
      EXPECT_EQ(server.Ask(first, 1), true) << "reports first";
      server.At(begin.ns / kMillisecond + 100);
      EXPECT_EQ(server.Ask(3 - first, 1), true) << "reports second";
    }
  }
}

// ---- section 4.2 ----

// "NOT-READY ACKs are received by default ... until an explicit READY ACK is received": only READY
// is answered, once; the worker's next signal waits.
TEST(EsyncPaperTest, DelayedAckAnswersReadyAlone) {
  Server server = Calibrated(kDelayedAck);
  EXPECT_TRUE(AcknowledgesLate(server.engine().plan()));
  server.At(210);
  EXPECT_EQ(server.Ask(0, 1, false), std::nullopt);
  server.At(300);
  EXPECT_EQ(server.Ask(2, 1, false), true);
  server.At(301);
  EXPECT_EQ(server.Ask(2, 2, false), std::nullopt) << "was told, and is not told again";
  EXPECT_EQ(server.Ask(0, 2, false), true);
  EXPECT_EQ(server.Ask(1, 2, false), true);
  EXPECT_FALSE(server.group()) << "nobody is at the barrier yet";
  for (const Rank rank : {2, 0, 1}) EXPECT_EQ(server.Ask(rank, 2, true), std::nullopt);
  EXPECT_THAT(server.Members(), ElementsAre(0, 1, 2));
}

// "We redefine capability c_i as the time to process b samples and the RTT of state query
// operation".
TEST(EsyncPaperTest, DelayedAckAddsTheRoundTrip) {
  Server server = Calibrated(kDelayedAck);
  server.At(240);
  EXPECT_EQ(server.Ask(1, 1, false, 18 * kMillisecond), std::nullopt) << "58 + 1 of 60 ms";
  server = Calibrated(kDelayedAck);
  server.At(240);
  EXPECT_EQ(server.Ask(1, 1, false, 20 * kMillisecond), true) << "60 + 1 of 60 ms";
  // What a worker claims does not break the sums.
  server.At(250);
  server.Ask(0, 1, false, std::numeric_limits<DurationNs>::max());
  server.At(260);
  server.Ask(0, 2, false, std::numeric_limits<DurationNs>::min());
}

// ---- beyond the paper: workers that come, go, fail and stall ----

TEST(EsyncTest, OneWorkerReducesAfterEachIteration) {
  Server server(1);
  for (int round = 1; round <= 3; ++round) {
    server.At(10 * round);
    EXPECT_EQ(server.Ask(0, 1), true);
    EXPECT_THAT(server.Members(), ElementsAre(0));
    server.Finish();
  }
}

TEST(EsyncTest, ADeathReleasesThoseWhoWait) {
  Server server = Calibrated();
  server.At(295);
  EXPECT_EQ(server.Ask(0, 1), true);
  server.Leave(2);
  EXPECT_FALSE(server.group());
  server.Leave(1);
  EXPECT_THAT(server.Members(), ElementsAre(0));
}

TEST(EsyncTest, WhoeverHasStalledIsTakenOut) {
  Server server = Calibrated();
  server.At(295);
  server.Ask(0, 1);
  EXPECT_TRUE(server.engine().NextDeadline()) << "should the others stop here";
  server.At(296);
  server.Ask(1, 1);
  ASSERT_FALSE(server.group());
  server.Deadline();
  EXPECT_EQ(server.now(), Instant{1000 * kMillisecond}) << "8 times 100 ms after 200 ms";
  EXPECT_THAT(server.Members(), ElementsAre(0, 1));
  EXPECT_THAT(server.group()->reason, HasSubstr("without rank 2, not heard of for 800.0 ms"));
  server.At(1010);
  server.Finish();
  EXPECT_THAT(server.ToCatchUp(), ElementsAre(2));
  EXPECT_THAT(std::get<UpdateDropped>(server.said()[0]).reason, HasSubstr("overdue by 10.0 ms"));
  // Until it is heard of, nobody waits for it: rank 1 is the slowest now.
  server.At(1106);
  EXPECT_EQ(server.Ask(1, 1), true);
  EXPECT_EQ(server.Ask(0, 1), true);
  EXPECT_THAT(server.Members(), ElementsAre(0, 1));
  server.Finish();
  // Its first signal is of the replica that it copied then: late again, but now it is waited for.
  server.At(1110);
  Effects said;
  GroupId next = 100;
  server.engine().Step(server.now(),
                       ReadyEvent{.rank = 2, .ready = {.iteration = 3, .local_steps = 1}}, &next,
                       &said);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(std::get<UpdateDropped>(said[0]).reason,
              StartsWith("late: 1 local iteration for round 3"));
  server.At(1116);
  EXPECT_EQ(server.Ask(0, 1), false);
  EXPECT_EQ(server.Why(), "the slowest, rank 2, catches up");
  server.At(1300);
  EXPECT_EQ(server.Ask(2, 1), true);
}

TEST(EsyncTest, NobodyIsTakenOutWithoutAStallFactor) {
  Server server = Calibrated({.stall_factor = 0});
  server.At(295);
  server.Ask(0, 1);
  server.Ask(1, 1);
  EXPECT_EQ(server.engine().NextDeadline(), std::nullopt);
}

// A worker that stalls while it catches up keeps the others from aggregating for no longer than
// that.
TEST(EsyncTest, CatchingUpMayBeOverdue) {
  Server server = Calibrated();
  server.At(290);
  for (const Rank rank : {0, 1}) server.Ask(rank, 2);
  server.At(300);
  server.Ask(2, 1);
  ASSERT_TRUE(server.group());
  server.At(310);
  server.Finish({2});  // copies the result by the job's order, from 310 ms on
  std::uint32_t k = 1;
  for (std::int64_t ms = 320; ms < 1110; ms += 10) {
    server.At(ms);
    EXPECT_EQ(server.Ask(0, k++), false);
    EXPECT_EQ(server.Why(), "the slowest, rank 2, catches up");
  }
  server.At(1110);
  EXPECT_EQ(server.Ask(0, k), true) << "800 ms later, rank 2 counts no more";
}

TEST(EsyncTest, LateJoinersDelayNobodyBeforeTheirFirstQuery) {
  Server server = Calibrated();
  server.At(210);
  server.Join(3, 1);
  server.At(296);
  for (const Rank rank : {0, 1, 2}) EXPECT_EQ(server.Ask(rank, 1), true);
  EXPECT_THAT(server.Members(), ElementsAre(0, 1, 2));
  server.Finish();
  EXPECT_THAT(server.ToCatchUp(), ElementsAre()) << "its first iteration is its test";
  server.At(510);
  Effects said;
  GroupId next = 100;
  server.engine().Step(server.now(),
                       ReadyEvent{.rank = 3, .ready = {.iteration = 2, .local_steps = 1}}, &next,
                       &said);
  EXPECT_TRUE(std::holds_alternative<UpdateDropped>(said.at(0)));
  EXPECT_EQ(server.Ask(2, 1), false) << "rank 3 takes 300 ms and is waited for";
}

TEST(EsyncTest, AfterAFailureEverywhereMembersAreReadyStill) {
  for (const EsyncOptions& options : {EsyncOptions{}, kDelayedAck}) {
    Server server = Calibrated(options);
    server.At(296);
    const bool waits = options.mode == EsyncOptions::Mode::kBlocking;
    for (const Rank rank : {2, 0, 1}) EXPECT_EQ(server.Ask(rank, 1, waits), true);
    if (!waits) {
      for (const Rank rank : {0, 1, 2}) server.Ask(rank, 1, true);
    }
    ASSERT_TRUE(server.group());
    server.At(5000);
    server.Finish({0, 1, 2});
    EXPECT_THAT(server.ToCatchUp(), ElementsAre());
    for (const Rank rank : {0, 1, 2}) server.Ask(rank, 1, true);
    EXPECT_THAT(server.Members(), ElementsAre(0, 1, 2));
    EXPECT_EQ(server.group()->iteration, 2) << "the same round";
  }
}

}  // namespace
}  // namespace prd::esync_paper_test
