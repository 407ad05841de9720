// What holds of a run under every engine: pauses, and the replicas that count in the final average.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engines/engine_watch.h"
#include "engines/registry.h"
#include "tests/engines/run_testing.h"

namespace prd {
namespace {

std::string NameOfEngine(const testing::TestParamInfo<EngineOptions>& of) {
  std::string name(EngineName(of.param));
  std::erase(name, '-');
  return name;
}

// ---- pauses ----

// Three workers that do what the run tells them.
class PauseTest : public RunTest, public testing::WithParamInterface<EngineOptions> {
 protected:
  void SetUp() override {
    JobSpec spec;
    spec.make_engine = [](const EngineOptions& options) {
      return std::make_unique<EngineWatch>(MakeEngine(options), options);
    };
    Make(GetParam(), 3, spec);
    plan_ = run_->engine().plan();
    for (Rank r = 0; r < 3; ++r) Join(r);
    for (Rank r = 0; r < 3; ++r) AtOnce(r, Finished{.group = 1});
    Settle();
  }
  // Says it; what the run answers is to be done.
  void AtOnce(Rank rank, WorkerBody body) {
    Say(rank, std::move(body));
    for (std::size_t i = 0; i < out_.sends.size(); ++i) todo_.push_back(out_.sends[i]);
  }
  void Settle() {
    for (int i = 0; i < 1000; ++i) {
      if (!todo_.empty()) {
        const RunOutput::Outgoing next = todo_.front();
        todo_.erase(todo_.begin());
        Heed(next.rank, next.envelope.body);
        continue;
      }
      const std::optional<Instant> deadline = run_->NextDeadline();
      if (!deadline) return;
      now_ = std::max(now_, deadline->ns);
      Step(DeadlineReached{});
      for (const auto& send : out_.sends) todo_.push_back(send);
    }
    FAIL() << "does not come to rest";
  }
  void Heed(Rank rank, const ControllerBody& body) {
    ASSERT_FALSE(std::holds_alternative<Refused>(body)) << std::get<Refused>(body).reason;
    if (const auto* group = std::get_if<Group>(&body)) {
      waits_[rank] = false;
      const bool round = group->kind == GroupKind::kRound;
      const std::uint32_t owed = run_->workers()[static_cast<std::size_t>(rank)].owed;
      bool gives = false;
      for (const GroupMember& of : group->members) gives |= of.rank == rank && of.weight > 0;
      if (!DrawnAhead(plan_)) iteration_[rank] = group->iteration;
      AtOnce(rank, Finished{.group = group->id, .included = round && gives ? owed : 0});
    } else if (std::holds_alternative<Adopt>(body)) {
      const Rank source = std::get<Adopt>(body).source.rank;
      iteration_[rank] = iteration_[source];
      copied_[rank] = true;
      waits_[rank] = false;
      AtOnce(rank, Adopted{.ok = true, .iteration = iteration_[rank]});
    } else if (const auto* reply = std::get_if<QueryReply>(&body)) {
      if (!reply->ready) waits_[rank] = false;
      if (!TrainsInGroups(plan_)) iteration_[rank] = reply->next;
    } else if (const auto* hood = std::get_if<Neighbourhood>(&body)) {
      iteration_[rank] = std::max(iteration_[rank], hood->at);
    } else if (const auto* placement = std::get_if<Placement>(&body)) {
      iteration_[rank] = std::max(iteration_[rank], placement->at);
      AtOnce(rank, Placed{.epoch = placement->epoch});
    } else if (std::holds_alternative<Resumed>(body)) {
      resumed_[rank] = true;
    }
  }
  // A local step of each, and what comes of it.
  void Steps(const std::vector<Rank>& ranks, int times) {
    for (int i = 0; i < times; ++i) {
      for (const Rank rank : ranks) {
        if (waits_[rank]) continue;
        if (FollowsSchedule(plan_)) {
          AtOnce(rank, Progressed{.own = {.steps = ++own_[rank]}});
          continue;
        }
        if (CountsLocalSteps(plan_)) ++iteration_[rank];
        const Iteration iteration = iteration_[rank] + (CountsLocalSteps(plan_) ? 0 : 1);
        waits_[rank] = true;
        AtOnce(rank, Ready{.iteration = iteration,
                           .step_ns = kMillisecond,
                           .gradients = TrainsInRounds(plan_) ? 1u : 0u,
                           .local_steps = AsksBeforeGroups(plan_) ? 1u : 0u,
                           .own = {.steps = ++own_[rank]}});
      }
      Settle();
    }
  }

  Plan plan_;
  std::vector<RunOutput::Outgoing> todo_;
  std::map<Rank, bool> waits_, copied_, resumed_;
  std::map<Rank, Iteration> iteration_;
  std::map<Rank, std::int64_t> own_;
};

TEST_P(PauseTest, OthersGoOnAndItComesBack) {
  Steps({0, 1, 2}, 4);
  for (int i = 0; waits_[1] && i < 20; ++i) Steps({0, 2}, 1);
  ASSERT_FALSE(waits_[1]) << run_->Explain({now_}, 1);
  const std::int64_t before = own_[0] + own_[2];
  AtOnce(1, Pause{});
  Settle();
  ASSERT_EQ(State(1), WorkerState::kPaused);
  Steps({0, 2}, 10);
  EXPECT_GE(own_[0] + own_[2], before + 10) << "nobody waits for one that pauses";
  copied_.clear();
  AtOnce(1, Resume{});
  Settle();
  EXPECT_TRUE(resumed_[1]);
  EXPECT_EQ(copied_[1], ReplicasAreEqual(plan_));
  ASSERT_EQ(State(1), WorkerState::kActive);
  const std::int64_t own = own_[1];
  Steps({0, 1, 2}, 10);
  EXPECT_GE(own_[1], own + 3) << run_->Explain({now_}, 1);
  // All pause, and the first that is back has nobody to copy from who is newer.
  std::vector<Rank> active = {0, 1, 2};
  for (const Rank r : {0, 1, 2}) {
    for (int i = 0; waits_[r] && i < 20; ++i) Steps(active, 1);
    if (waits_[r]) return;  // its engine has it wait for one that pauses meanwhile
    AtOnce(r, Pause{});
    Settle();
    active.erase(active.begin());
  }
  for (const Rank r : {0, 1, 2}) AtOnce(r, Resume{});
  Settle();
  for (const Rank r : {0, 1, 2}) EXPECT_EQ(State(r), WorkerState::kActive);
  Steps({0, 1, 2}, 4);
  ExpectReplays(run_->spec());
}

INSTANTIATE_TEST_SUITE_P(All, PauseTest, testing::ValuesIn(AllEngines()), NameOfEngine);

// ---- the final average ----

class FinalTest : public RunTest, public testing::WithParamInterface<EngineOptions> {
 protected:
  void Tell(Rank rank, std::int64_t steps) { Say(rank, Progressed{.own = {.steps = steps}}); }
  void Lose(Rank rank) { Step(LeaseExpired{.rank = rank, .incarnation = incarnation_[rank]}); }
  // The weights in the final group that the last step has announced, by rank.
  std::vector<double> Weights() {
    const auto* formed = Recorded<GroupFormed>();
    if (formed == nullptr || formed->kind != GroupKind::kFinal) return {};
    std::vector<double> weights(run_->workers().size());
    for (const GroupShare& share : formed->members) {
      weights[static_cast<std::size_t>(share.rank)] = share.weight;
      const Group* sent = Sent<Group>(share.rank);
      EXPECT_NE(sent, nullptr);
      if (sent == nullptr) continue;
      for (const GroupMember& member : sent->members) {
        EXPECT_TRUE(member.rank != share.rank || member.weight == share.weight);
      }
    }
    return weights;
  }
  std::string Reason() {
    const auto* formed = Recorded<GroupFormed>();
    return formed == nullptr ? "" : formed->reason;
  }
  bool Equal() { return ReplicasAreEqual(run_->engine().plan()); }
};

// One stops at a quarter, waits, and takes what the others end with.
TEST_P(FinalTest, WhoStoppedLongBeforeTakesTheAverageOfTheOthers) {
  Running(GetParam(), 4);
  for (Rank r = 0; r < 4; ++r) Tell(r, 100);
  Say(1, Finish{});
  for (const Rank r : {0, 2, 3}) Tell(r, 100);
  for (const Rank r : {0, 2, 3}) Tell(r, 400);
  for (const Rank r : {0, 2, 3}) Say(r, Finish{});
  if (Equal()) {
    EXPECT_EQ(Weights(), (std::vector<double>{0.25, 0.25, 0.25, 0.25}))
        << "all have the same iteration";
    EXPECT_EQ(Reason(), "final average of all 4 workers");
  } else {
    EXPECT_EQ(Weights(), (std::vector<double>{1.0 / 3, 0, 1.0 / 3, 1.0 / 3}));
    EXPECT_EQ(Reason(), "final average of ranks 0, 2, 3; rank 1 is 900 steps behind and takes it");
  }
  for (Rank r = 0; r < 4; ++r) Done(r);
  EXPECT_TRUE(run_->ended());
  ExpectReplays(run_->spec());
}

// Workers that end one after another, each at its own step, all count.
TEST_P(FinalTest, WhoStopsShortlyBeforeTheOthersCounts) {
  Running(GetParam(), 4);
  for (Rank r = 0; r < 4; ++r) Tell(r, 100);
  Say(1, Finish{});
  for (const Rank r : {0, 2, 3}) Tell(r, 102);
  for (const Rank r : {0, 2, 3}) Say(r, Finish{});
  EXPECT_EQ(Weights(), (std::vector<double>{0.25, 0.25, 0.25, 0.25})) << Reason();
}

// The others have gone since, with all that they had learned.
TEST_P(FinalTest, WhoIsLeftCounts) {
  Running(GetParam(), 3);
  Say(1, Finish{});
  for (const Rank r : {0, 2}) Tell(r, 400);
  Say(0, Leave{.reason = "has enough"});
  Say(2, Finish{});
  EXPECT_EQ(Weights(),
            Equal() ? (std::vector<double>{0, 0.5, 0.5}) : (std::vector<double>{0, 0, 1}));
  Lose(2);
  Done(1, Outcome::kAborted);
  EXPECT_EQ(Weights(), (std::vector<double>{0, 1, 0})) << Reason();
}

INSTANTIATE_TEST_SUITE_P(All, FinalTest, testing::ValuesIn(AllEngines()), NameOfEngine);

}  // namespace
}  // namespace prd
