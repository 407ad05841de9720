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
    EXPECT_TRUE(worker_.announced.empty()) << "a group without a report";
    EXPECT_EQ(worker_.finishes, 1);
    EXPECT_TRUE(user_.released);
    EXPECT_EQ(told_ + lost_ + inbox_, added_);
  }

  int groups() const { return seen_.started; }
  int answered() const { return seen_.answered; }
  int lives() const { return seen_.lives; }
  int voided() const { return seen_.voided; }
  int waits() const { return seen_.waits; }
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
    if (user_.in_call || user_.finishing) return;
    if (!std::exchange(user_.computed, true)) {
      user_.discarded = Coin(6);
      if (!user_.discarded) ++replica_;
      user_.rounds = TakeInbox();
      return;
    }
    user_.computed = false;
    user_.in_call = user_.stepping = true;
    user_.synchronises = !user_.discarded && ++user_.section >= StepsPerSignal(plan_);
    const bool ends = !user_.synchronises && !controller_.adopt_ordered;
    if (user_.synchronises && schedule_.scheduled) ++schedule_.reached;
    known_ = replica_;
    s_.Step(replica_, user_.discarded, user_.rounds);
    Look();
    EXPECT_FALSE(ends && user_.in_call) << "it does not synchronise";
    if (user_.in_call) ++seen_.waits;
  }

  std::int64_t TakeInbox() {
    replica_ += std::exchange(gained_, 0);
    told_ += inbox_;
    return std::exchange(inbox_, 0);
  }

  void Apply() {
    if (!user_.applying) return;
    if (!std::exchange(user_.took, true)) {
      user_.applied = TakeInbox();
      user_.rounds += user_.applied;
      return;
    }
    user_.applying = user_.took = false;
    known_ = replica_;
    s_.Applied(replica_, user_.applied);
  }

  // ---- the data plane ----

  void EndReduction(bool fails) {
    if (!running_) return;
    const StartReduce was = *std::exchange(running_, std::nullopt);
    if (Scheduled() && was.group.kind == GroupKind::kTrain) ++schedule_.over;
    if (!fails && was.group.kind == GroupKind::kTrain) {
      ++added_;
      if (Background()) {
        ++inbox_;
        gained_ += was.gain;
      } else {
        ++told_;
        ++user_.rounds;
      }
    }
    s_.Reduced(was.group.id, !fails);
  }

  void Fetch(bool fails) {
    if (!std::exchange(fetching_, false)) return;
    controller_.adopt_ordered = false;
    if (!fails) {
      replica_ += static_cast<Iteration>(random_.Below(50));
      known_ = replica_;
      user_.section = 0;
    }
    s_.Fetched(replica_, !fails);
  }

  // ---- the controller ----

  void Hear() {
    if (controller_.flight.empty()) return;
    const WorkerBody body = std::move(controller_.flight.front());
    controller_.flight.pop_front();
    if (const auto* ready = std::get_if<Ready>(&body)) {
      EXPECT_TRUE(controller_.active && !Scheduled());
      EXPECT_FALSE(controller_.signal.has_value()) << "a second signal";
      EXPECT_TRUE(DrawnAhead(plan_) || controller_.group == kNoGroup) << "a signal in a group";
      EXPECT_GE(ready->iteration, controller_.heard_iteration);
      controller_.heard_iteration = ready->iteration;
      controller_.signal = *ready;
    } else if (const auto* finished = std::get_if<Finished>(&body)) {
      EXPECT_EQ(finished->group, controller_.group);
      controller_.group = kNoGroup;
      if (finished->outcome == Outcome::kOk && DrawnAhead(plan_) && !controller_.passive)
        controller_.signal.reset();
      if (finished->outcome == Outcome::kOk && !DrawnAhead(plan_))
        controller_.heard_iteration = controller_.group_iteration;
    } else if (const auto* adopted = std::get_if<Adopted>(&body)) {
      if (adopted->ok) {
        controller_.active = true;
        controller_.heard_iteration = adopted->iteration;
      } else {
        Adopt();
      }
    } else if (std::holds_alternative<prd::Finish>(body)) {
      EXPECT_TRUE(controller_.active && !controller_.signal) << "finished with a signal standing";
      EXPECT_TRUE(DrawnAhead(plan_) || controller_.group == kNoGroup);
      controller_.active = false;
      controller_.leaving = true;
    }
  }

  void Adopt() {
    controller_.adopt_ordered = true;
    s_.SayAdopt();
  }

  void Decide() {
    if (controller_.group != kNoGroup && Coin(4))
      return s_.Say(Abort{.group = controller_.group, .reason = "so"});
    if (!controller_.active) return;
    if (Scheduled()) {
      if (!schedule_.scheduled || Coin(8)) SaySchedule();
    } else if (DrawnAhead(plan_) && controller_.signal && Coin(4)) {
      SayAnswer();
    } else if (controller_.group == kNoGroup && (DrawnAhead(plan_) || controller_.signal)) {
      Announce(Coin());
    }
  }

  void SayAnswer() {
    const Iteration iteration = controller_.signal->iteration;
    controller_.signal.reset();
    if (worker_.stands && iteration == worker_.said.iteration) Answered();
    s_.Say(QueryReply{.iteration = iteration});
  }

  void Announce(bool passive) {
    prd::Group group = Script::MakeGroup(++controller_.groups, GroupKind::kTrain, 0);
    controller_.passive = DrawnAhead(plan_) && passive;
    group.members.Mutable()[0].passive = controller_.passive;
    if (!DrawnAhead(plan_)) {
      controller_.group_iteration =
          controller_.signal->iteration + static_cast<Iteration>(random_.Below(3));
      group.iteration = controller_.group_iteration;
      controller_.signal.reset();
      worker_.stands = false;
    }
    controller_.group = group.id;
    worker_.announced.insert(group.id);
    s_.Say(group);
  }

  void SaySchedule() {
    schedule_.roster = {
        .first = controller_.groups + 1, .members = {}, .hosts = {}, .reason = "so"};
    const std::size_t workers = 1 + random_.Below(7);
    schedule_.self = random_.Below(workers);
    for (std::size_t i = 0; i < workers; ++i) {
      schedule_.roster.hosts.push_back(static_cast<std::int32_t>(random_.Below(3)));
      schedule_.roster.members.push_back(
          {.rank = static_cast<Rank>(i), .incarnation = i == schedule_.self ? kMe : kMe + 1 + i});
    }
    controller_.groups += kScheduleSpan;
    if (std::exchange(schedule_.scheduled, true) && running_) ++seen_.voided;
    schedule_.over = 0;
    schedule_.reached = user_.stepping && !user_.applying ? 1 : 0;
    s_.Say(schedule_.roster);
  }

  void LoseMembership() {
    if (!controller_.active && !controller_.leaving) return;
    ++seen_.lives;
    s_.core.GiveIncarnation(kMe);
    s_.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
    s_.Pass(kSecond);
    while (user_.applying) Apply();  // until then it says no Hello
    s_.Pass(0);
    Look();
    controller_.flight.clear();
    worker_.announced.clear();
    controller_.signal.reset();
    controller_.active = controller_.leaving = worker_.stands = worker_.awaits =
        schedule_.scheduled = fetching_ = false;
    schedule_.reached = schedule_.over = worker_.beyond = worker_.finishes = 0;
    controller_.groups = 1;
    controller_.group = kNoGroup;
    s_.Welcome(plan_);
    Adopt();
  }

  // ---- what the core did ----

  void Look() {
    for (const Action& action : std::exchange(s_.actions, {})) {
      if (const auto* send = std::get_if<SendToController>(&action)) {
        if (send->envelope.seq == 0) continue;
        Said(send->envelope.body);
        controller_.flight.push_back(send->envelope.body);
      } else if (const auto* start = std::get_if<StartReduce>(&action)) {
        Started(*start);
      } else if (std::holds_alternative<CancelReduce>(action)) {
        EXPECT_TRUE(running_.has_value());
        running_.reset();
      } else if (std::holds_alternative<BecomeIncarnation>(action)) {
        lost_ += std::exchange(inbox_, 0);
        gained_ = 0;
      } else if (std::holds_alternative<StartFetch>(action)) {
        EXPECT_TRUE(user_.in_call && !running_);
        fetching_ = true;
      } else if (std::holds_alternative<ApplyNow>(action)) {
        EXPECT_TRUE(user_.in_call && !user_.applying && Background());
        user_.applying = true;
      } else if (const auto* done = std::get_if<CallDone>(&action)) {
        Done(*done);
      }
    }
  }

  void Started(const StartReduce& start) {
    EXPECT_FALSE(running_.has_value()) << "one at a time";
    EXPECT_TRUE(user_.in_call || Background()) << "its training loop computes";
    running_ = start;
    ++seen_.started;
    if (start.group.kind == GroupKind::kFinal) {
      EXPECT_EQ(inbox_, 0) << "part of the parameters is missing";
    } else if (Scheduled()) {
      SkipSlots();
      ASSERT_LT(schedule_.over, schedule_.reached) << "a slot that nobody has reached";
      const StaticMembers members = StaticGroup(schedule_.roster.hosts, Slot(), schedule_.self);
      EXPECT_EQ(start.group.id, StaticGroupId(schedule_.roster.first, schedule_.roster.hosts.size(),
                                              Slot(), members));
      EXPECT_EQ(start.group.members.size(), members.size());
    } else if (!Background()) {
      EXPECT_TRUE(worker_.stands || worker_.finishes > 0) << "it says Ready first";
    }
  }
  std::uint64_t Slot() const { return static_cast<std::uint64_t>(schedule_.over); }
  // Slots without a group are over in their turn.
  void SkipSlots() {
    while (schedule_.over < schedule_.reached &&
           StaticGroup(schedule_.roster.hosts, Slot(), schedule_.self).empty())
      ++schedule_.over;
  }

  void Said(const WorkerBody& body) {
    if (const auto* ready = std::get_if<Ready>(&body)) {
      EXPECT_FALSE(worker_.stands) << "one stands";
      EXPECT_EQ(ready->iteration, known_);
      EXPECT_TRUE(DrawnAhead(plan_) || inbox_ == 0) << "it signals less than it has";
      worker_.stands = true;
      worker_.said = *ready;
      if (!std::exchange(worker_.awaits, true)) worker_.beyond = 0;
    } else if (const auto* finished = std::get_if<Finished>(&body)) {
      EXPECT_EQ(worker_.announced.erase(finished->group), 1u) << "group " << finished->group;
      if (finished->outcome == Outcome::kOk && finished->group == controller_.group &&
          !controller_.passive)
        Answered();
    } else if (std::holds_alternative<prd::Finish>(body)) {
      ++worker_.finishes;
      EXPECT_TRUE(user_.finishing && !worker_.stands && !worker_.awaits);
      if (Background() && Scheduled()) SkipSlots();
      EXPECT_EQ(schedule_.over, schedule_.reached);
    }
  }

  void Answered() {
    if (worker_.awaits) ++seen_.answered;
    worker_.stands = worker_.awaits = false;
  }

  void Done(const CallDone& done) {
    EXPECT_TRUE(user_.in_call) << "a call ended twice";
    EXPECT_FALSE(user_.applying);
    EXPECT_TRUE(done.status.ok()) << done.status.ToString();
    user_.in_call = false;
    if (!std::exchange(user_.stepping, false)) {
      user_.released = true;
      return;
    }
    EXPECT_EQ(done.step.iteration, replica_);
    EXPECT_EQ(done.step.rounds, user_.rounds);
    EXPECT_EQ(done.step.included, user_.rounds > 0);
    if (done.step.adopted || !user_.synchronises) return;
    user_.section = 0;
    if (Scheduled()) {
      if (!running_) SkipSlots();
      EXPECT_LE(schedule_.reached - schedule_.over, Bound()) << "too many slots are open";
    } else if (worker_.awaits) {
      EXPECT_LE(++worker_.beyond, Bound()) << "it ran ahead too far";
    }
  }

  // No faults any more: the step ends, and so does Finish.
  void Settle() {
    bool final = false;
    for (int i = 0; i < 400 && !user_.released && !::testing::Test::HasFailure(); ++i) {
      if (user_.computed) Call();
      if (!user_.in_call && !user_.finishing) {
        user_.finishing = user_.in_call = true;
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
      while (!controller_.flight.empty()) Hear();
      Look();
      if (released) s_.Say(Released{.reason = "done"});
      if (controller_.leaving && controller_.group == kNoGroup && !final) {
        final = true;
        controller_.group = ++controller_.groups;
        worker_.announced.insert(controller_.group);
        s_.Say(Script::MakeGroup(controller_.group, GroupKind::kFinal, replica_));
      } else if (controller_.active && Scheduled() && !schedule_.scheduled) {
        SaySchedule();
      } else if (controller_.active && controller_.signal && controller_.group == kNoGroup) {
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
  struct User {
    bool computed = false;
    bool discarded = false;
    bool in_call = false;
    bool stepping = false;
    bool finishing = false;
    bool synchronises = false;
    bool applying = false;
    bool took = false;
    bool released = false;
    std::int64_t applied = 0;
    std::int64_t rounds = 0;  // of the step in progress
    std::uint32_t section = 0;
  };
  User user_;
  // The data plane.
  std::optional<StartReduce> running_;
  bool fetching_ = false;
  struct Worker {  // what it has said, and has not been answered
    bool stands = false;
    bool awaits = false;  // the same, over failures of groups
    Ready said;
    std::int64_t beyond = 0;  // steps that ended since
    int finishes = 0;
    std::set<GroupId> announced;  // and not reported
  };
  Worker worker_;
  struct Controller {  // hears later
    std::deque<WorkerBody> flight;
    bool active = true;
    bool leaving = false;
    bool adopt_ordered = false;
    std::optional<Ready> signal;
    Iteration heard_iteration = 0;
    GroupId groups = 1;
    GroupId group = kNoGroup;
    bool passive = false;
    Iteration group_iteration = 0;
  };
  Controller controller_;
  struct Drawn {
    bool scheduled = false;
    Schedule roster;
    std::size_t self = 0;
    std::int64_t reached = 0;
    std::int64_t over = 0;
  };
  Drawn schedule_;
  struct Seen {  // so much
    int started = 0;
    int answered = 0;
    int lives = 0;
    int voided = 0;
    int waits = 0;
  };
  Seen seen_;
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
