// Groups drawn ahead, in the background and by schedule on a random walk: one core against a
// controller, a data plane and a user who do whatever the protocol allows, in any order; what the
// worker says is heard late, so that everything crosses. The reference is too dumb to be wrong: it
// counts.
#include <gtest/gtest.h>

#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "common/base/prng.h"
#include "common/base/static_schedule.h"
#include "tests/plans.h"
#include "tests/worker/core_script.h"

namespace prd::ahead_walk_test {
namespace {

using testing::kMe;
using testing::Script;

class Walk {
 public:
  Walk(const Plan& plan, std::uint64_t seed) : plan_(plan), random_(seed) { s_.Join(plan); }

  void Run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      Act();
      Look();
    }
    Settle();
    EXPECT_TRUE(announced_.empty()) << "a group without a report";
    EXPECT_EQ(finishes_, 1);
    EXPECT_TRUE(released_);
    EXPECT_EQ(told_ + lost_ + inbox_, added_);
  }

  int groups() const { return started_; }
  int answered() const { return answered_; }
  int lives() const { return lives_; }
  int voided() const { return voided_; }
  int waits() const { return waits_; }
  std::int64_t told() const { return told_; }

 private:
  bool Coin(std::uint64_t of = 2) { return random_.Below(of) == 0; }
  bool Background() const { return AveragesInBackground(plan_); }
  bool Scheduled() const { return FollowsSchedule(plan_); }
  std::int64_t Bound() const { return Background() ? RunAhead(plan_) : 0; }

  void Act() {
    s_.now = s_.now + static_cast<DurationNs>(random_.Below(kMillisecond));
    switch (random_.Below(9)) {
      case 0:
      case 1:
        return Call();
      case 2:
        return Apply();
      case 3:
      case 4:
        return EndReduction(Coin(4));
      case 5:
        return Hear();
      case 6:
        return Fetch(Coin(3));
      case 7:
        return Decide();
      default:
        if (Coin(25)) LoseMembership();
    }
  }

  // ---- the user ----

  // First the thread adds what is in the inbox, with its own step; then it calls.
  void Call() {
    if (in_call_ || finishing_) return;
    if (!std::exchange(computed_, true)) {
      discarded_ = Coin(6);
      if (!discarded_) ++replica_;
      rounds_ = TakeInbox();
      return;
    }
    computed_ = false;
    in_call_ = stepping_ = true;
    synchronises_ = !discarded_ && ++section_ >= StepsPerSignal(plan_);
    const bool ends = !synchronises_ && !adopt_ordered_;
    if (synchronises_ && scheduled_) ++reached_;
    known_ = replica_;
    s_.Step(replica_, discarded_, rounds_);
    Look();
    EXPECT_FALSE(ends && in_call_) << "it does not synchronise";
    if (in_call_) ++waits_;
  }

  std::int64_t TakeInbox() {
    replica_ += std::exchange(gained_, 0);
    told_ += inbox_;
    return std::exchange(inbox_, 0);
  }

  void Apply() {
    if (!applying_) return;
    if (!std::exchange(took_, true)) {
      applied_ = TakeInbox();
      rounds_ += applied_;
      return;
    }
    applying_ = took_ = false;
    known_ = replica_;
    s_.Applied(replica_, applied_);
  }

  // ---- the data plane ----

  void EndReduction(bool fails) {
    if (!running_) return;
    const StartReduce was = *std::exchange(running_, std::nullopt);
    if (Scheduled() && was.group.kind == GroupKind::kTrain) ++over_;
    if (!fails && was.group.kind == GroupKind::kTrain) {
      ++added_;
      if (Background()) {
        ++inbox_;
        gained_ += was.gain;
      } else {
        ++told_;
        ++rounds_;
      }
    }
    s_.Reduced(was.group.id, !fails);
  }

  void Fetch(bool fails) {
    if (!std::exchange(fetching_, false)) return;
    adopt_ordered_ = false;
    if (!fails) {
      replica_ += static_cast<Iteration>(random_.Below(50));
      known_ = replica_;
      section_ = 0;
    }
    s_.Fetched(replica_, !fails);
  }

  // ---- the controller ----

  void Hear() {
    if (flight_.empty()) return;
    const WorkerBody body = std::move(flight_.front());
    flight_.pop_front();
    if (const auto* ready = std::get_if<Ready>(&body)) {
      EXPECT_TRUE(active_ && !Scheduled());
      EXPECT_FALSE(signal_.has_value()) << "a second signal";
      EXPECT_TRUE(DrawnAhead(plan_) || group_ == kNoGroup) << "a signal in a group";
      EXPECT_GE(ready->iteration, heard_iteration_);
      heard_iteration_ = ready->iteration;
      signal_ = *ready;
    } else if (const auto* finished = std::get_if<Finished>(&body)) {
      EXPECT_EQ(finished->group, group_);
      group_ = kNoGroup;
      if (finished->outcome == Outcome::kOk && DrawnAhead(plan_) && !passive_) signal_.reset();
      if (finished->outcome == Outcome::kOk && !DrawnAhead(plan_))
        heard_iteration_ = group_iteration_;
    } else if (const auto* adopted = std::get_if<Adopted>(&body)) {
      if (adopted->ok) {
        active_ = true;
        heard_iteration_ = adopted->iteration;
      } else {
        Adopt();
      }
    } else if (std::holds_alternative<prd::Finish>(body)) {
      EXPECT_TRUE(active_ && !signal_) << "finished with a signal standing";
      EXPECT_TRUE(DrawnAhead(plan_) || group_ == kNoGroup);
      active_ = false;
      leaving_ = true;
    }
  }

  void Adopt() {
    adopt_ordered_ = true;
    s_.SayAdopt();
  }

  void Decide() {
    if (group_ != kNoGroup && Coin(4)) return s_.Say(Abort{.group = group_, .reason = "so"});
    if (!active_) return;
    if (Scheduled()) {
      if (!scheduled_ || Coin(8)) SaySchedule();
    } else if (DrawnAhead(plan_) && signal_ && Coin(4)) {
      SayAnswer();
    } else if (group_ == kNoGroup && (DrawnAhead(plan_) || signal_)) {
      Announce(Coin());
    }
  }

  void SayAnswer() {
    const Iteration iteration = signal_->iteration;
    signal_.reset();
    if (stands_ && iteration == said_.iteration) Answered();
    s_.Say(QueryReply{.iteration = iteration});
  }

  void Announce(bool passive) {
    prd::Group group = Script::MakeGroup(++groups_, GroupKind::kTrain, 0);
    passive_ = DrawnAhead(plan_) && passive;
    group.members.Mutable()[0].passive = passive_;
    if (!DrawnAhead(plan_)) {
      group_iteration_ = signal_->iteration + static_cast<Iteration>(random_.Below(3));
      group.iteration = group_iteration_;
      signal_.reset();
      stands_ = false;
    }
    group_ = group.id;
    announced_.insert(group.id);
    s_.Say(group);
  }

  void SaySchedule() {
    roster_ = {.first = groups_ + 1, .members = {}, .hosts = {}, .reason = "so"};
    const std::size_t workers = 1 + random_.Below(7);
    self_ = random_.Below(workers);
    for (std::size_t i = 0; i < workers; ++i) {
      roster_.hosts.push_back(static_cast<std::int32_t>(random_.Below(3)));
      roster_.members.push_back(
          {.rank = static_cast<Rank>(i), .incarnation = i == self_ ? kMe : kMe + 1 + i});
    }
    groups_ += kScheduleSpan;
    if (std::exchange(scheduled_, true) && running_) ++voided_;
    over_ = 0;
    reached_ = stepping_ && !applying_ ? 1 : 0;
    s_.Say(roster_);
  }

  void LoseMembership() {
    if (!active_ && !leaving_) return;
    ++lives_;
    s_.core.GiveIncarnation(kMe);
    s_.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
    s_.Pass(kSecond);
    while (applying_) Apply();  // until then it says no Hello
    s_.Pass(0);
    Look();
    flight_.clear();
    announced_.clear();
    signal_.reset();
    active_ = leaving_ = stands_ = awaits_ = scheduled_ = fetching_ = false;
    reached_ = over_ = beyond_ = finishes_ = 0;
    groups_ = 1;
    group_ = kNoGroup;
    s_.Welcome(plan_);
    Adopt();
  }

  // ---- what the core did ----

  void Look() {
    for (const Action& action : std::exchange(s_.actions, {})) {
      if (const auto* send = std::get_if<SendToController>(&action)) {
        if (send->envelope.seq == 0) continue;
        Said(send->envelope.body);
        flight_.push_back(send->envelope.body);
      } else if (const auto* start = std::get_if<StartReduce>(&action)) {
        Started(*start);
      } else if (std::holds_alternative<CancelReduce>(action)) {
        EXPECT_TRUE(running_.has_value());
        running_.reset();
      } else if (std::holds_alternative<BecomeIncarnation>(action)) {
        lost_ += std::exchange(inbox_, 0);
        gained_ = 0;
      } else if (std::holds_alternative<StartFetch>(action)) {
        EXPECT_TRUE(in_call_ && !running_);
        fetching_ = true;
      } else if (std::holds_alternative<ApplyNow>(action)) {
        EXPECT_TRUE(in_call_ && !applying_ && Background());
        applying_ = true;
      } else if (const auto* done = std::get_if<CallDone>(&action)) {
        Done(*done);
      }
    }
  }

  void Started(const StartReduce& start) {
    EXPECT_FALSE(running_.has_value()) << "one at a time";
    EXPECT_TRUE(in_call_ || Background()) << "its training loop computes";
    running_ = start;
    ++started_;
    if (start.group.kind == GroupKind::kFinal) {
      EXPECT_EQ(inbox_, 0) << "part of the parameters is missing";
    } else if (Scheduled()) {
      SkipSlots();
      ASSERT_LT(over_, reached_) << "a slot that nobody has reached";
      const StaticMembers members = StaticGroup(roster_.hosts, Slot(), self_);
      EXPECT_EQ(start.group.id,
                StaticGroupId(roster_.first, roster_.hosts.size(), Slot(), members));
      EXPECT_EQ(start.group.members.size(), members.size());
    } else if (!Background()) {
      EXPECT_TRUE(stands_ || finishes_ > 0) << "it says Ready first";
    }
  }
  std::uint64_t Slot() const { return static_cast<std::uint64_t>(over_); }
  // Slots without a group are over in their turn.
  void SkipSlots() {
    while (over_ < reached_ && StaticGroup(roster_.hosts, Slot(), self_).empty()) ++over_;
  }

  void Said(const WorkerBody& body) {
    if (const auto* ready = std::get_if<Ready>(&body)) {
      EXPECT_FALSE(stands_) << "one stands";
      EXPECT_EQ(ready->iteration, known_);
      EXPECT_TRUE(DrawnAhead(plan_) || inbox_ == 0) << "it signals less than it has";
      stands_ = true;
      said_ = *ready;
      if (!std::exchange(awaits_, true)) beyond_ = 0;
    } else if (const auto* finished = std::get_if<Finished>(&body)) {
      EXPECT_EQ(announced_.erase(finished->group), 1u) << "group " << finished->group;
      if (finished->outcome == Outcome::kOk && finished->group == group_ && !passive_) Answered();
    } else if (std::holds_alternative<prd::Finish>(body)) {
      ++finishes_;
      EXPECT_TRUE(finishing_ && !stands_ && !awaits_);
      if (Background() && Scheduled()) SkipSlots();
      EXPECT_EQ(over_, reached_);
    }
  }

  void Answered() {
    if (awaits_) ++answered_;
    stands_ = awaits_ = false;
  }

  void Done(const CallDone& done) {
    EXPECT_TRUE(in_call_) << "a call ended twice";
    EXPECT_FALSE(applying_);
    EXPECT_TRUE(done.status.ok()) << done.status.ToString();
    in_call_ = false;
    if (!std::exchange(stepping_, false)) {
      released_ = true;
      return;
    }
    EXPECT_EQ(done.step.iteration, replica_);
    EXPECT_EQ(done.step.rounds, rounds_);
    EXPECT_EQ(done.step.included, rounds_ > 0);
    if (done.step.adopted || !synchronises_) return;
    section_ = 0;
    if (Scheduled()) {
      if (!running_) SkipSlots();
      EXPECT_LE(reached_ - over_, Bound()) << "too many slots are open";
    } else if (awaits_) {
      EXPECT_LE(++beyond_, Bound()) << "it ran ahead too far";
    }
  }

  // No faults any more: the step ends, and so does Finish.
  void Settle() {
    bool final = false;
    for (int i = 0; i < 400 && !released_ && !::testing::Test::HasFailure(); ++i) {
      if (computed_) Call();
      if (!in_call_ && !finishing_) {
        finishing_ = in_call_ = true;
        s_.core.Finish(s_.now, &s_.actions);
      }
      Look();
      Apply();
      Look();
      Fetch(false);
      Look();
      const bool released = final && running_;
      EndReduction(false);
      Look();
      while (!flight_.empty()) Hear();
      Look();
      if (released) s_.Say(Released{.reason = "done"});
      if (leaving_ && group_ == kNoGroup && !final) {
        final = true;
        group_ = ++groups_;
        announced_.insert(group_);
        s_.Say(Script::MakeGroup(group_, GroupKind::kFinal, replica_));
      } else if (active_ && Scheduled() && !scheduled_) {
        SaySchedule();
      } else if (active_ && signal_ && group_ == kNoGroup) {
        if (DrawnAhead(plan_) && Coin()) {
          SayAnswer();
        } else {
          Announce(false);
        }
      }
      Look();
    }
  }

  const Plan plan_;
  Script s_;
  Prng random_;
  // The replica, and the inbox: averages, and what they add to its count.
  Iteration replica_ = 0;
  Iteration known_ = 0;  // its count as the core was told last
  std::int64_t inbox_ = 0;
  Iteration gained_ = 0;
  // Averages: made, told to steps or Finish, lost with an incarnation.
  std::int64_t added_ = 0;
  std::int64_t told_ = 0;
  std::int64_t lost_ = 0;
  // The user.
  bool computed_ = false;
  bool discarded_ = false;
  bool in_call_ = false;
  bool stepping_ = false;
  bool finishing_ = false;
  bool synchronises_ = false;
  bool applying_ = false;
  bool took_ = false;
  bool released_ = false;
  std::int64_t applied_ = 0;
  std::int64_t rounds_ = 0;  // of the step in progress
  std::uint32_t section_ = 0;
  // The data plane.
  std::optional<StartReduce> running_;
  bool fetching_ = false;
  // What the worker has said, and has not been answered.
  bool stands_ = false;
  bool awaits_ = false;  // the same, over failures of groups
  Ready said_;
  std::int64_t beyond_ = 0;  // steps that ended since
  int finishes_ = 0;
  std::set<GroupId> announced_;  // and not reported
  // The controller: it hears later.
  std::deque<WorkerBody> flight_;
  bool active_ = true;
  bool leaving_ = false;
  bool adopt_ordered_ = false;
  std::optional<Ready> signal_;
  Iteration heard_iteration_ = 0;
  GroupId groups_ = 1;
  GroupId group_ = kNoGroup;
  bool passive_ = false;
  Iteration group_iteration_ = 0;
  // The schedule.
  bool scheduled_ = false;
  Schedule roster_;
  std::size_t self_ = 0;
  std::int64_t reached_ = 0;
  std::int64_t over_ = 0;
  // How much was seen.
  int started_ = 0;
  int answered_ = 0;
  int lives_ = 0;
  int voided_ = 0;
  int waits_ = 0;
};

struct Way {
  const char* name;
  Plan plan;
};

const Way kWays[] = {
    {"p-reduce with overlap", plans::Background(2)},
    {"prague", plans::kAhead},
    {"ad-psgd", plans::Background(0, Membership::kAhead)},
    {"prague with overlap", plans::Background(3, Membership::kAhead)},
    {"static", plans::kSchedule},
    {"static with overlap", plans::Background(2, Membership::kSchedule)},
};

TEST(AheadWalkTest, NothingIsLostDoneTwiceOrAheadOfItsTime) {
  for (const Way& way : kWays) {
    for (const std::uint32_t section : {1u, 3u}) {
      Plan plan = way.plan;
      plan.every = section;
      int groups = 0;
      int answered = 0;
      int lives = 0;
      int voided = 0;
      int waits = 0;
      std::int64_t told = 0;
      for (std::uint64_t seed = 1; seed <= 300; ++seed) {
        SCOPED_TRACE(std::string(way.name) + ", section " + std::to_string(section) + ", seed " +
                     std::to_string(seed));
        Walk walk(plan, seed);
        walk.Run(500);
        if (HasFailure()) return;
        groups += walk.groups();
        answered += walk.answered();
        lives += walk.lives();
        voided += walk.voided();
        waits += walk.waits();
        told += walk.told();
      }
      SCOPED_TRACE(way.name);
      EXPECT_GT(groups, 2000);
      EXPECT_GT(told, 1000);
      EXPECT_GT(lives, 200);
      EXPECT_GT(waits, 500);
      EXPECT_GT(FollowsSchedule(plan) ? voided : answered, 100);
    }
  }
}

}  // namespace
}  // namespace prd::ahead_walk_test
