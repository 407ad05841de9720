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
    EXPECT_EQ(finishes_, 1);
  }

  int rounds() const { return rounds_; }
  int fetched() const { return fetched_; }
  int undone() const { return undone_; }
  int lives() const { return lives_; }
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
    step_gradient_ = ++gradients_;
    discarded_ = Coin(5);
    stepping_ = true;
    s_.Step(0, discarded_);
  }

  // The caller's thread takes what is in the inbox by now; later it says so.
  void Apply() {
    if (!applying_) return;
    if (!std::exchange(took_, true)) {
      step_included_ = inbox_.contains(step_gradient_);
      inbox_.clear();
      step_rounds_ = std::exchange(inbox_rounds_, 0);
      if (step_rounds_ > 0) replica_ = inbox_round_;
      return;
    }
    applying_ = took_ = false;
    s_.Applied(replica_, step_rounds_);
  }

  // ---- the controller ----

  bool Idle() const { return fate_ == Fate::kNone && joined_; }

  void Announce() {
    if (!Idle()) return;
    if (waits_ && Coin(6)) return Average();
    gives_ = known_ > 0 && !Coin(4);
    group_ = ++groups_;
    round_ = newest_ + 1;
    fate_ = Fate::kRuns;
    given_ = gives_ ? outbox_ : std::set<int>();
    ++rounds_;
    s_.Round(group_, round_, gives_);
  }

  void Average() {
    s_.Say(Script::MakeGroup(++groups_, GroupKind::kAverage, newest_));
    s_.Reduced(groups_, Coin());
  }

  // A running round or copy ends, in one way or another.
  void EndRound() {
    if (fate_ == Fate::kFetched) {
      const bool ok = Coin();
      fate_ = ok ? Fate::kNone : Fate::kFailed;
      if (ok) Commit();
      if (ok) ++fetched_;
      return s_.Fetched(round_, ok);
    }
    if (fate_ != Fate::kRuns) return;
    const std::uint64_t how = random_.Below(4);
    fate_ = how < 2 ? Fate::kNone : Fate::kFailed;
    if (how < 2) {
      Commit();
      s_.Reduced(group_);
    } else if (how == 2) {
      s_.Reduced(group_, false);
      if (Coin()) s_.Say(Abort{.group = group_, .reason = "crossed"});
    } else {
      s_.Say(Abort{.group = group_, .reason = "so"});
      if (Coin()) s_.Reduced(group_);  // of a reduction that is off
    }
  }

  // What becomes of a round that failed here.
  void Decide() {
    if (fate_ != Fate::kFailed) return;
    if (Coin()) {
      fate_ = Fate::kFetched;
      return s_.SayAdopt(group_);
    }
    fate_ = Fate::kNone;
    ++undone_;
    given_.clear();
    s_.Say(Abort{.group = group_, .reason = "nobody has it", .undone = true});
  }

  // The mesh: the result is in the inbox, and what was given is out of the outbox.
  void Commit() {
    for (const int gradient : given_) {
      EXPECT_TRUE(outbox_.erase(gradient) == 1) << "given twice";
      EXPECT_TRUE(included_.insert(gradient).second) << "counted twice";
      inbox_.insert(gradient);
    }
    expected_ = static_cast<std::uint32_t>(given_.size());
    given_.clear();
    newest_ = inbox_round_ = round_;
    ++inbox_rounds_;
  }

  void LoseMembership() {
    if (!joined_) return;
    ++lives_;
    s_.core.GiveIncarnation(kMe);
    s_.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
    s_.Pass(kSecond);
    while (applying_) {  // until then it says no Hello
      EXPECT_TRUE(s_.Said<Hello>().empty());
      Apply();
    }
    s_.Pass(0);
    Look();
    outbox_.clear();
    given_.clear();
    inbox_.clear();
    inbox_rounds_ = 0;
    known_ = 0;
    groups_ = 1;
    group_ = kNoGroup;
    fate_ = Fate::kNone;
    joined_ = waits_ = false;
    Look();
    s_.Welcome(plans::kRounds);
    s_.SayAdopt();
    Look();
  }

  // ---- what the core did ----

  void Look() {
    for (const Action& action : std::exchange(s_.actions, {})) {
      if (std::holds_alternative<Deposit>(action)) {
        EXPECT_TRUE(stepping_ && !discarded_);
        EXPECT_TRUE(given_.empty()) << "the outbox is under way";
        EXPECT_TRUE(outbox_.insert(step_gradient_).second);
      } else if (std::holds_alternative<ApplyNow>(action)) {
        EXPECT_FALSE(applying_);
        applying_ = true;
      } else if (const auto* fetch = std::get_if<StartFetch>(&action)) {
        if (fetch->result == kNoGroup) return Fetched();
        EXPECT_EQ(fetch->contributed, gives_);
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
    joined_ = true;
    s_.Fetched(newest_, true, inbox_rounds_);
    Look();
  }

  void Hear(const WorkerBody& body) {
    if (const auto* ready = std::get_if<Ready>(&body)) {
      EXPECT_FALSE(waits_ && ready->waiting) << "a second signal that waits";
      EXPECT_FALSE(inbox_rounds_ > 0 && ready->waiting) << "it has something to apply";
      EXPECT_EQ(ready->iteration, s_.core.iteration() + 1);
      waits_ = ready->waiting;
      known_ += ready->gradients;
    } else if (const auto* finished = std::get_if<Finished>(&body)) {
      if (finished->outcome == Outcome::kOk && finished->group == group_)
        Counted(finished->included);
    } else if (const auto* adopted = std::get_if<Adopted>(&body)) {
      if (adopted->ok) Counted(adopted->included);
    } else if (const auto* hello = std::get_if<Hello>(&body)) {
      EXPECT_EQ(hello->iteration, replica_) << "what it brings";
    } else if (std::holds_alternative<Finish>(body)) {
      ++finishes_;
      EXPECT_TRUE(outbox_.empty()) << "owes something still";
    }
  }
  void Counted(std::uint32_t included) {
    EXPECT_EQ(included, std::exchange(expected_, 0));
    EXPECT_GE(known_, included) << "the controller has not heard of them all";
    known_ -= included;
    waits_ = false;
  }

  void Done(const CallDone& done) {
    EXPECT_TRUE(done.status.ok()) << done.status.ToString();
    EXPECT_FALSE(applying_);
    if (!stepping_) return;
    stepping_ = false;
    EXPECT_EQ(done.step.iteration, done.step.adopted ? newest_ : replica_);
    if (done.step.adopted) return;
    EXPECT_GT(done.step.rounds, 0);
    EXPECT_EQ(done.step.rounds, step_rounds_);
    EXPECT_EQ(done.step.included, step_included_);
  }

  // No faults any more: the step ends, and so does Finish.
  void Settle() {
    bool finishing = false;
    for (int i = 0; i < 200 && finishes_ == 0 && !::testing::Test::HasFailure(); ++i) {
      if (!s_.core.in_call() && !finishing) {
        finishing = true;
        s_.core.Finish(s_.now, &s_.actions);
      }
      Look();
      Apply();
      Look();
      if (fate_ == Fate::kRuns) {
        fate_ = Fate::kNone;
        Commit();
        s_.Reduced(group_);
      } else if (fate_ == Fate::kFetched) {
        fate_ = Fate::kNone;
        Commit();
        s_.Fetched(round_);
      } else if (fate_ == Fate::kFailed) {
        Decide();
      } else if (waits_) {
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
  // The step in progress.
  int step_gradient_ = 0;
  bool stepping_ = false;
  bool discarded_ = false;
  bool applying_ = false;
  bool took_ = false;
  bool step_included_ = false;
  std::int64_t step_rounds_ = 0;
  // The controller's view.
  bool joined_ = true;
  bool waits_ = false;
  std::uint32_t known_ = 0;
  GroupId groups_ = 1;
  GroupId group_ = 0;
  Iteration round_ = 0;
  bool gives_ = false;
  Fate fate_ = Fate::kNone;
  std::uint32_t expected_ = 0;
  int finishes_ = 0;
  // How much was seen.
  int rounds_ = 0;
  int fetched_ = 0;
  int undone_ = 0;
  int lives_ = 0;
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
