// Rounds in the background on a random walk: one core against a controller, a data plane and a user
// who do whatever the protocol allows, in any order. The reference is too dumb to be wrong: a list
// of gradients, each of which must end in exactly one round, or be owed still, or be lost with the
// incarnation that owed it.
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "common/base/prng.h"
#include "tests/plans.h"
#include "tests/worker/core_script.h"

namespace prd::rounds_walk_test {
namespace {

using testing::kMe;
using testing::kPeer;
using testing::Script;

class Walk {
 public:
  explicit Walk(std::uint64_t seed) : random_(seed) { s_.Join(plans::kRounds); }

  void Run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      Act();
      Look();
    }
    Settle();
    EXPECT_TRUE(outbox_.empty());
    EXPECT_EQ(controller_.finishes, 1);
  }

  int rounds() const { return seen_.rounds; }
  int fetched() const { return seen_.fetched; }
  int undone() const { return seen_.undone; }
  int lives() const { return seen_.lives; }
  std::size_t included() const { return included_.size(); }

 private:
  enum class Fate { kNone, kRuns, kFailed, kFetched };

  bool Coin(std::uint64_t of = 2) { return random_.Below(of) == 0; }

  void Act() {
    switch (random_.Below(8)) {
      case 0:
      case 1:
        return Call();
      case 2:
        return Apply();
      case 3:
        return Announce();
      case 4:
      case 5:
        return EndRound();
      case 6:
        return Decide();
      default:
        if (Coin(12)) LoseMembership();
    }
  }

  // ---- the user ----

  void Call() {
    if (s_.core.in_call()) return;
    step_.gradient = ++gradients_;
    step_.discarded = Coin(5);
    step_.stepping = true;
    s_.Step(0, step_.discarded);
  }

  // The caller's thread takes what is in the inbox by now; later it says so.
  void Apply() {
    if (!step_.applying) return;
    if (!std::exchange(step_.took, true)) {
      step_.included = inbox_.contains(step_.gradient);
      inbox_.clear();
      step_.rounds = std::exchange(inbox_rounds_, 0);
      if (step_.rounds > 0) replica_ = inbox_round_;
      return;
    }
    step_.applying = step_.took = false;
    s_.Applied(replica_, step_.rounds);
  }

  // ---- the controller ----

  bool Idle() const { return controller_.fate == Fate::kNone && controller_.joined; }

  void Announce() {
    if (!Idle()) return;
    if (controller_.waits && Coin(6)) return Average();
    controller_.gives = controller_.known > 0 && !Coin(4);
    controller_.group = ++controller_.groups;
    controller_.round = newest_ + 1;
    controller_.fate = Fate::kRuns;
    given_ = controller_.gives ? outbox_ : std::set<int>();
    ++seen_.rounds;
    s_.Round(controller_.group, controller_.round, controller_.gives);
  }

  void Average() {
    s_.Say(Script::MakeGroup(++controller_.groups, GroupKind::kAverage, newest_));
    s_.Reduced(controller_.groups, Coin());
  }

  // A running round or copy ends, in one way or another.
  void EndRound() {
    if (controller_.fate == Fate::kFetched) {
      const bool ok = Coin();
      controller_.fate = ok ? Fate::kNone : Fate::kFailed;
      if (ok) Commit();
      if (ok) ++seen_.fetched;
      return s_.Fetched(controller_.round, ok);
    }
    if (controller_.fate != Fate::kRuns) return;
    const std::uint64_t how = random_.Below(4);
    controller_.fate = how < 2 ? Fate::kNone : Fate::kFailed;
    if (how < 2) {
      Commit();
      s_.Reduced(controller_.group);
    } else if (how == 2) {
      s_.Reduced(controller_.group, false);
      if (Coin()) s_.Say(Abort{.group = controller_.group, .reason = "crossed"});
    } else {
      s_.Say(Abort{.group = controller_.group, .reason = "so"});
      if (Coin()) s_.Reduced(controller_.group);  // of a reduction that is off
    }
  }

  // What becomes of a round that failed here.
  void Decide() {
    if (controller_.fate != Fate::kFailed) return;
    if (Coin()) {
      controller_.fate = Fate::kFetched;
      return s_.SayAdopt(controller_.group);
    }
    controller_.fate = Fate::kNone;
    ++seen_.undone;
    given_.clear();
    s_.Say(Abort{.group = controller_.group, .reason = "nobody has it", .undone = true});
  }

  // The mesh: the result is in the inbox, and what was given is out of the outbox.
  void Commit() {
    for (const int gradient : given_) {
      EXPECT_TRUE(outbox_.erase(gradient) == 1) << "given twice";
      EXPECT_TRUE(included_.insert(gradient).second) << "counted twice";
      inbox_.insert(gradient);
    }
    controller_.expected = static_cast<std::uint32_t>(given_.size());
    given_.clear();
    newest_ = inbox_round_ = controller_.round;
    ++inbox_rounds_;
  }

  void LoseMembership() {
    if (!controller_.joined) return;
    ++seen_.lives;
    s_.core.GiveIncarnation(kMe);
    s_.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
    s_.Pass(kSecond);
    while (step_.applying) {  // until then it says no Hello
      EXPECT_TRUE(s_.Said<Hello>().empty());
      Apply();
    }
    s_.Pass(0);
    Look();
    outbox_.clear();
    given_.clear();
    inbox_.clear();
    inbox_rounds_ = 0;
    controller_.known = 0;
    controller_.groups = 1;
    controller_.group = kNoGroup;
    controller_.fate = Fate::kNone;
    controller_.joined = controller_.waits = false;
    Look();
    s_.Welcome(plans::kRounds);
    s_.SayAdopt();
    Look();
  }

  // ---- what the core did ----

  void Look() {
    for (const Action& action : std::exchange(s_.actions, {})) {
      if (std::holds_alternative<Deposit>(action)) {
        EXPECT_TRUE(step_.stepping && !step_.discarded);
        EXPECT_TRUE(given_.empty()) << "the outbox is under way";
        EXPECT_TRUE(outbox_.insert(step_.gradient).second);
      } else if (std::holds_alternative<ApplyNow>(action)) {
        EXPECT_FALSE(step_.applying);
        step_.applying = true;
      } else if (const auto* fetch = std::get_if<StartFetch>(&action)) {
        if (fetch->result == kNoGroup) return Fetched();
        EXPECT_EQ(fetch->contributed, controller_.gives);
      } else if (const auto* send = std::get_if<SendToController>(&action)) {
        Hear(send->envelope.body);
      } else if (const auto* done = std::get_if<CallDone>(&action)) {
        Done(*done);
      }
    }
  }

  // The source has applied all, or has some rounds in its inbox.
  void Fetched() {
    newest_ += static_cast<Iteration>(random_.Below(3));
    inbox_rounds_ = Coin() ? 1 : 0;
    inbox_round_ = newest_;
    replica_ = newest_ - inbox_rounds_;
    controller_.joined = true;
    s_.Fetched(newest_, true, inbox_rounds_);
    Look();
  }

  void Hear(const WorkerBody& body) {
    if (const auto* ready = std::get_if<Ready>(&body)) {
      EXPECT_FALSE(controller_.waits && ready->waiting) << "a second signal that waits";
      EXPECT_FALSE(inbox_rounds_ > 0 && ready->waiting) << "it has something to apply";
      EXPECT_EQ(ready->iteration, s_.core.iteration() + 1);
      controller_.waits = ready->waiting;
      controller_.known += ready->gradients;
    } else if (const auto* finished = std::get_if<Finished>(&body)) {
      if (finished->outcome == Outcome::kOk && finished->group == controller_.group)
        Counted(finished->included);
    } else if (const auto* adopted = std::get_if<Adopted>(&body)) {
      if (adopted->ok) Counted(adopted->included);
    } else if (const auto* hello = std::get_if<Hello>(&body)) {
      EXPECT_EQ(hello->iteration, replica_) << "what it brings";
    } else if (std::holds_alternative<Finish>(body)) {
      ++controller_.finishes;
      EXPECT_TRUE(outbox_.empty()) << "owes something still";
    }
  }
  void Counted(std::uint32_t included) {
    EXPECT_EQ(included, std::exchange(controller_.expected, 0));
    EXPECT_GE(controller_.known, included) << "the controller has not heard of them all";
    controller_.known -= included;
    controller_.waits = false;
  }

  void Done(const CallDone& done) {
    EXPECT_TRUE(done.status.ok()) << done.status.ToString();
    EXPECT_FALSE(step_.applying);
    if (!step_.stepping) return;
    step_.stepping = false;
    EXPECT_EQ(done.step.iteration, done.step.adopted ? newest_ : replica_);
    if (done.step.adopted) return;
    EXPECT_GT(done.step.rounds, 0);
    EXPECT_EQ(done.step.rounds, step_.rounds);
    EXPECT_EQ(done.step.included, step_.included);
  }

  // No faults any more: the step ends, and so does Finish.
  void Settle() {
    bool finishing = false;
    for (int i = 0; i < 200 && controller_.finishes == 0 && !::testing::Test::HasFailure(); ++i) {
      if (!s_.core.in_call() && !finishing) {
        finishing = true;
        s_.core.Finish(s_.now, &s_.actions);
      }
      Look();
      Apply();
      Look();
      if (controller_.fate == Fate::kRuns) {
        controller_.fate = Fate::kNone;
        Commit();
        s_.Reduced(controller_.group);
      } else if (controller_.fate == Fate::kFetched) {
        controller_.fate = Fate::kNone;
        Commit();
        s_.Fetched(controller_.round);
      } else if (controller_.fate == Fate::kFailed) {
        Decide();
      } else if (controller_.waits) {
        Announce();
      }
      Look();
    }
  }

  Script s_;
  Prng random_;
  int gradients_ = 0;
  // The outbox and the inbox as sets of gradients.
  std::set<int> outbox_;
  std::set<int> inbox_;
  std::set<int> given_;  // in the round that runs, or whose fate is open
  std::set<int> included_;
  std::int64_t inbox_rounds_ = 0;
  Iteration inbox_round_ = 0;
  Iteration replica_ = 0;
  Iteration newest_ = 0;
  struct StepAtHand {
    int gradient = 0;
    bool stepping = false;
    bool discarded = false;
    bool applying = false;
    bool took = false;
    bool included = false;
    std::int64_t rounds = 0;
  };
  StepAtHand step_;
  struct Controller {  // what it knows
    bool joined = true;
    bool waits = false;
    std::uint32_t known = 0;
    GroupId groups = 1;
    GroupId group = 0;
    Iteration round = 0;
    bool gives = false;
    Fate fate = Fate::kNone;
    std::uint32_t expected = 0;
    int finishes = 0;
  };
  Controller controller_;
  struct Seen {  // so much
    int rounds = 0;
    int fetched = 0;
    int undone = 0;
    int lives = 0;
  };
  Seen seen_;
};

TEST(RoundsWalkTest, EveryGradientIsInOneRoundOrStillOwed) {
  int rounds = 0;
  int fetched = 0;
  int undone = 0;
  int lives = 0;
  std::size_t included = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Walk walk(seed);
    walk.Run(400);
    ASSERT_FALSE(HasFailure());
    rounds += walk.rounds();
    fetched += walk.fetched();
    undone += walk.undone();
    lives += walk.lives();
    included += walk.included();
  }
  EXPECT_GT(rounds, 10'000);
  EXPECT_GT(fetched, 1'000);
  EXPECT_GT(undone, 1'000);
  EXPECT_GT(lives, 1'000);
  EXPECT_GT(included, 5'000u);
}

}  // namespace
}  // namespace prd::rounds_walk_test
