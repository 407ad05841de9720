// Hop's update queues, note by note (Luo et al., ASPLOS 2019; sections are that paper's).
#include "worker/core/update_queues.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/prng.h"

namespace prd::update_queues_test {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using enum PeerMessage::Kind;
using Counters = UpdateQueues::Counters;

constexpr Incarnation kLeft = 11;
constexpr Incarnation kRight = 12;
constexpr Incarnation kFar = 13;
constexpr Iteration kHuge = std::numeric_limits<Iteration>::max();

PeerItem Update(Iteration iteration) {
  return {.kind = PeerItem::Kind::kUpdate, .stamp = iteration};
}

std::string Text(const PeerMessage& note) {
  const std::string what = std::to_string(note.parcel.stamp);
  if (note.kind == kDeclined) return "decline " + what;
  if (note.kind == kStored) return "stored " + what;
  return "offer " + what + " after " + std::to_string(note.version);
}

// "pull 3 of 11 as #1"; empty for what is tested otherwise.
std::string Text(const Action& action) {
  const auto text = [](auto number) { return std::to_string(number); };
  if (const auto* send = std::get_if<SendNote>(&action)) {
    return Text(send->note) + " to " + text(send->to);
  }
  if (const auto* pull = std::get_if<StartPull>(&action)) {
    return "pull " + text(pull->parcel.stamp) + " of " + text(pull->from) + " as #" +
           text(pull->ticket);
  }
  if (const auto* drop = std::get_if<DropPull>(&action)) return "drop #" + text(drop->ticket);
  if (const auto* publish = std::get_if<PublishUpdate>(&action)) {
    return "publish " + text(publish->iteration);
  }
  if (const auto* retire = std::get_if<RetireUpdate>(&action)) {
    return "retire " + text(retire->iteration);
  }
  if (const auto* serve = std::get_if<Serve>(&action)) return "serve " + text(serve->request);
  if (const auto* refuse = std::get_if<Refuse>(&action)) return "refuse " + text(refuse->request);
  return {};
}

class UpdateQueuesTest : public ::testing::Test {
 protected:
  struct In {
    Incarnation peer = 0;
    double weight = 1;
    Iteration from = 0;
  };
  void SetPeers(std::vector<In> in, std::vector<Incarnation> out, std::uint32_t slots = 3,
                double own_weight = 1, std::optional<Iteration> at = std::nullopt) {
    Neighbourhood hood{.own_weight = own_weight, .slots = slots};
    for (const In& edge : in) {
      hood.in.push_back({.incarnation = edge.peer, .weight = edge.weight});
      hood.from.push_back(edge.from);
    }
    for (const Incarnation peer : out) hood.out.push_back({.incarnation = peer});
    queues.SetNeighbourhood(now, plan, hood, at.value_or(queues.window()), &actions);
  }
  void Hear(Incarnation from, PeerMessage::Kind kind, Iteration iteration) {
    const std::int64_t before = std::max<Iteration>(iteration, 0) - 1;
    queues.OnNote(from, {.kind = kind, .parcel = Update(iteration), .version = before}, &actions);
  }
  void Offer(Incarnation from, Iteration iteration) { Hear(from, kOffer, iteration); }
  void Pulled(Ticket ticket, bool ok = true) {
    queues.OnPulled(now, ticket, ok ? Status::Ok() : Status(Code::kUnavailable, "gone"), &actions);
  }
  // Offered, and pulled with the next ticket.
  void Bring(Incarnation from, Iteration iteration) {
    actions.clear();
    Offer(from, iteration);
    for (const Action& action : Actions(actions)) {
      if (const auto* pull = std::get_if<StartPull>(&action)) Pulled(pull->ticket);
    }
    actions.clear();
  }
  void Request(Incarnation from, prd::Request request, Iteration iteration) {
    queues.OnRequest(from, request, Update(iteration), &actions);
  }
  void Pass(DurationNs time) {
    now = now + time;
    queues.OnTime(now, &actions);
  }
  // What was done since the last time.
  std::vector<std::string> Did() {
    std::vector<std::string> did;
    for (const Action& action : std::exchange(actions, {})) {
      if (std::string text = Text(action); !text.empty()) did.push_back(std::move(text));
    }
    return did;
  }
  // The weights in the average of iteration k: the own one, then by ticket.
  std::vector<double> Mix(Iteration k) {
    actions.clear();
    if (!queues.Mix(k, &actions)) return {};
    const auto& mix = std::get<MixUpdates>(actions.back());
    std::vector<double> weights = {mix.own_weight};
    for (const MixUpdates::Update& update : mix.updates) weights.push_back(update.weight);
    actions.clear();
    return weights;
  }

  NeighbourPlan plan;
  UpdateQueues queues;
  Actions actions;
  Instant now{1'000'000'000};
};

// ---- receiving ----

// So that never more are here than there are slots for.
TEST_F(UpdateQueuesTest, WhatIsPastGoesBeforeOthersArePulled) {
  SetPeers({{.peer = kLeft}, {.peer = kRight}}, {}, 1);
  Bring(kLeft, 0);
  Bring(kRight, 0);
  Offer(kLeft, 5);
  Offer(kRight, 5);
  EXPECT_THAT(Did(), IsEmpty());
  queues.MoveTo(5, &actions);
  EXPECT_THAT(Did(), ElementsAre("drop #1", "drop #2", "pull 5 of 11 as #3", "pull 5 of 12 as #4"));
}

TEST_F(UpdateQueuesTest, WhoIsGoneMakesRoomBeforeOthersArePulled) {
  SetPeers({{.peer = kLeft}, {.peer = kRight}}, {}, 1);
  Bring(kLeft, 0);
  Bring(kRight, 0);
  Offer(kLeft, 5);
  Offer(kRight, 5);
  SetPeers({{.peer = kRight}}, {}, 1, 1, 5);
  EXPECT_THAT(Did(), ElementsAre("drop #1", "drop #2", "pull 5 of 12 as #3"));
}

TEST_F(UpdateQueuesTest, WaitsForTheUpdateOfThatIterationFromAll) {
  SetPeers({{kLeft, 0.25}, {kRight, 0.25}}, {}, 3, 0.5);
  EXPECT_FALSE(queues.CanReceive(0));
  Offer(kLeft, 0);
  Offer(kRight, 1);
  EXPECT_THAT(Did(), ElementsAre("pull 0 of 11 as #1", "pull 1 of 12 as #2"));
  Pulled(1);
  Pulled(2);
  EXPECT_THAT(Did(), ElementsAre("stored 0 to 11", "stored 1 to 12"));
  EXPECT_FALSE(queues.CanReceive(0));  // Right's is of iteration 1
  Bring(kRight, 0);
  EXPECT_TRUE(queues.CanReceive(0));
  EXPECT_THAT(Mix(0), ElementsAre(DoubleEq(0.5), DoubleEq(0.25), DoubleEq(0.25)));
  queues.MoveTo(1, &actions);
  EXPECT_FALSE(queues.CanReceive(1));
  Bring(kLeft, 1);
  EXPECT_TRUE(queues.CanReceive(1));
}

TEST_F(UpdateQueuesTest, WhoIsAloneGoesOnWithItsOwn) {
  SetPeers({}, {});
  EXPECT_TRUE(queues.CanReceive(7));
  EXPECT_THAT(Mix(7), IsEmpty());
}

// Section 6.1.
TEST_F(UpdateQueuesTest, PullsSoManyIterationsAtOnceAndRemembersTheOthers) {
  SetPeers({{kLeft}}, {}, 2);
  for (Iteration i = 3; i >= 0; --i) Offer(kLeft, i);
  EXPECT_THAT(Did(), ElementsAre("pull 1 of 11 as #1", "pull 0 of 11 as #2"));
  Pulled(2);
  EXPECT_THAT(Mix(0), ElementsAre(0.5, 0.5));
  queues.MoveTo(1, &actions);
  EXPECT_THAT(Did(), ElementsAre("pull 2 of 11 as #3"));
  SetPeers({{kLeft}}, {}, 3);
  EXPECT_THAT(Did(), ElementsAre("pull 3 of 11 as #4"));
}

// Section 4.3, Figure 8.
TEST_F(UpdateQueuesTest, GoesOnWithoutBackupsAndTakesWhatIsThere) {
  plan.backups = 1;
  SetPeers({{kLeft, 0.2}, {kRight, 0.3}, {kFar, 0.1}}, {}, 3, 0.4);
  Bring(kLeft, 0);
  EXPECT_FALSE(queues.CanReceive(0));
  Bring(kRight, 0);
  EXPECT_TRUE(queues.CanReceive(0));
  Bring(kLeft, 1);
  Bring(kRight, 1);
  Bring(kFar, 1);
  // Those of the one that is missing are shared by the others.
  EXPECT_THAT(Mix(0), ElementsAre(DoubleEq(0.4 / 0.9), DoubleEq(0.2 / 0.9), DoubleEq(0.3 / 0.9)));
  queues.MoveTo(1, &actions);
  EXPECT_THAT(Mix(1), ElementsAre(DoubleEq(0.4), DoubleEq(0.2), DoubleEq(0.3), DoubleEq(0.1)));
}

TEST_F(UpdateQueuesTest, MoreBackupsThanNeighboursNeedNobody) {
  plan.backups = 5;
  SetPeers({{kLeft}, {kRight}}, {});
  EXPECT_TRUE(queues.CanReceive(0));
  EXPECT_THAT(Mix(0), IsEmpty());
}

// Section 6.2: what is past is declined, and dropped where it was here already.
TEST_F(UpdateQueuesTest, DeclinesAndDropsWhatItIsPast) {
  plan.backups = 2;
  SetPeers({{kLeft}, {kRight}, {kFar}}, {}, 2);
  Bring(kLeft, 0);
  Offer(kRight, 0);
  Offer(kFar, 3);
  EXPECT_THAT(Did(), ElementsAre("pull 0 of 12 as #2"));
  EXPECT_EQ(queues.TakeCounters(), (Counters{.queued = 1}));
  queues.MoveTo(4, &actions);
  EXPECT_THAT(Did(), ElementsAre("drop #1", "drop #2", "decline 0 to 12", "decline 3 to 13"));
  Pulled(2);  // crossed with the drop
  Offer(kLeft, 3);
  EXPECT_THAT(Did(), ElementsAre("decline 3 to 11"));
  EXPECT_EQ(queues.TakeCounters(), (Counters{.dropped = 1}));
  EXPECT_EQ(queues.TakeCounters(), Counters{});
}

TEST_F(UpdateQueuesTest, DoesNotWaitForUpdatesFromBeforeANeighbourWasOne) {
  SetPeers({{kLeft, 1, 0}, {kRight, 1, 2}}, {});
  Bring(kLeft, 0);
  EXPECT_TRUE(queues.CanReceive(0));
  Bring(kLeft, 1);
  EXPECT_TRUE(queues.CanReceive(1));
  Bring(kLeft, 2);
  EXPECT_FALSE(queues.CanReceive(2));
  Bring(kRight, 2);
  EXPECT_TRUE(queues.CanReceive(2));
}

// Section 5: a sender that jumps from 1 to 5 has no updates of 2, 3 and 4.
TEST_F(UpdateQueuesTest, DoesNotWaitForUpdatesThatTheirSenderSkipped) {
  SetPeers({{kLeft}}, {}, 2);
  const auto offer = [this](Iteration stamp, std::int64_t before) {
    queues.OnNote(kLeft, {.kind = kOffer, .parcel = Update(stamp), .version = before}, &actions);
  };
  offer(5, 1);  // beyond what there is room for
  EXPECT_THAT(Did(), IsEmpty());
  EXPECT_FALSE(queues.CanReceive(0));
  EXPECT_FALSE(queues.CanReceive(1));
  EXPECT_TRUE(queues.CanReceive(2));
  EXPECT_TRUE(queues.CanReceive(4));
  EXPECT_FALSE(queues.CanReceive(5));
  EXPECT_FALSE(queues.CanReceive(6));
  offer(9, 5);
  queues.MoveTo(5, &actions);
  EXPECT_FALSE(queues.CanReceive(5));
  EXPECT_TRUE(queues.CanReceive(8));
  offer(20, 30);  // makes no sense
  offer(20, -7);
  offer(20, std::numeric_limits<std::int64_t>::min());
  EXPECT_FALSE(queues.CanReceive(12));
}

// There are three neighbours and one backup. A neighbour that skips 2 and 3 is that backup; but
// where two skip an iteration, the third one's update is enough.
TEST_F(UpdateQueuesTest, CountsWhoSkippedAmongTheBackups) {
  constexpr Incarnation kThird = 77;
  plan.backups = 1;
  SetPeers({{kLeft}, {kRight}, {kThird}}, {}, 8);
  const auto offer = [this](Incarnation from, Iteration stamp, std::int64_t before) {
    queues.OnNote(from, {.kind = kOffer, .parcel = Update(stamp), .version = before}, &actions);
  };
  offer(kLeft, 4, 1);
  Bring(kRight, 2);
  EXPECT_FALSE(queues.CanReceive(2)) << "two of three are needed";
  Bring(kThird, 2);
  EXPECT_TRUE(queues.CanReceive(2));
  EXPECT_FALSE(queues.CanReceive(3));
  offer(kRight, 4, 2);
  EXPECT_FALSE(queues.CanReceive(3)) << "the third one's is to come";
  Bring(kThird, 3);
  EXPECT_TRUE(queues.CanReceive(3));
  EXPECT_FALSE(queues.CanReceive(4));
  Bring(kThird, 4);
  EXPECT_FALSE(queues.CanReceive(4)) << "nobody skipped it: two of three are needed";
}

// Section 4.4, Equation 2, in iteration 10 with a staleness of 3: an update of iteration i counts
// i - 7 + 1 times, so its own 4 times.
TEST_F(UpdateQueuesTest, WeighsNewerUpdatesMore) {
  plan.staleness = 3;
  SetPeers({{kLeft, 0.25}, {kRight, 0.25}}, {}, 1, 0.5);
  queues.MoveTo(10, &actions);
  Bring(kLeft, 7);
  EXPECT_FALSE(queues.CanReceive(10));
  Bring(kRight, 12);  // it may be ahead
  EXPECT_TRUE(queues.CanReceive(10));
  const double sum = 0.5 * 4 + 0.25 * 1 + 0.25 * 6;
  EXPECT_THAT(Mix(10), ElementsAre(DoubleEq(2 / sum), DoubleEq(0.25 / sum), DoubleEq(1.5 / sum)));
  // "Newly received" ones alone are averaged; that of 12 is recent enough up to 15.
  queues.MoveTo(11, &actions);
  EXPECT_FALSE(queues.CanReceive(11));
  Bring(kLeft, 8);
  EXPECT_TRUE(queues.CanReceive(11));
  EXPECT_THAT(Mix(11), ElementsAre(DoubleEq(2 / 2.25), DoubleEq(0.25 / 2.25)));
  Bring(kLeft, 15);
  EXPECT_TRUE(queues.CanReceive(15));
  EXPECT_FALSE(queues.CanReceive(16));
}

TEST_F(UpdateQueuesTest, WithStalenessKeepsTheNewestAndPullsOneMore) {
  plan.staleness = 2;
  SetPeers({{kLeft}}, {}, 1);
  Offer(kLeft, 0);
  Offer(kLeft, 1);
  Offer(kLeft, 3);
  Offer(kLeft, 2);
  EXPECT_THAT(Did(), ElementsAre("pull 0 of 11 as #1"));
  Pulled(1);
  EXPECT_THAT(Did(), ElementsAre("stored 0 to 11", "pull 3 of 11 as #2"));
  Offer(kLeft, 1);  // late
  EXPECT_THAT(Did(), ElementsAre("decline 1 to 11"));
  EXPECT_EQ(queues.TakeCounters(), (Counters{.queued = 1}));
  Pulled(2);
  EXPECT_THAT(Did(), ElementsAre("stored 3 to 11", "drop #1"));
  EXPECT_EQ(queues.TakeCounters(), (Counters{.queued = 1, .dropped = 1}));
  Offer(kLeft, 3);
  EXPECT_THAT(Did(), ElementsAre("stored 3 to 11"));
  queues.MoveTo(6, &actions);  // 3 is older than 6 - 2
  EXPECT_THAT(Did(), ElementsAre("drop #2"));
  EXPECT_THAT(Mix(6), IsEmpty());
}

// Table 1, "hybrid".
TEST_F(UpdateQueuesTest, WithStalenessAndBackupsSomeMayBeTooOld) {
  plan.staleness = 2;
  plan.backups = 1;
  SetPeers({{kLeft}, {kRight}, {kFar}}, {}, 1);
  for (const Incarnation peer : {kLeft, kRight, kFar}) Bring(peer, 0);
  EXPECT_TRUE(queues.CanReceive(2));
  EXPECT_FALSE(queues.CanReceive(3));
  Bring(kLeft, 1);
  EXPECT_FALSE(queues.CanReceive(3));
  Bring(kFar, 2);
  EXPECT_TRUE(queues.CanReceive(3));
}

TEST_F(UpdateQueuesTest, TriesFailedPullsAgain) {
  SetPeers({{kLeft}}, {});
  Offer(kLeft, 0);
  Did();
  Pulled(1, false);
  Ticket ticket = 1;
  for (const int ms : {100, 200, 400, 800, 1600, 2000, 2000}) {
    EXPECT_EQ(queues.NextDeadline(), now + ms * kMillisecond);
    Pass(ms * kMillisecond - 1);
    EXPECT_THAT(Did(), IsEmpty());
    Pass(1);
    EXPECT_THAT(Did(), ElementsAre("pull 0 of 11 as #" + std::to_string(++ticket)));
    EXPECT_FALSE(queues.NextDeadline());
    Pulled(ticket, false);
  }
  Offer(kLeft, 0);
  EXPECT_THAT(Did(), IsEmpty());
  queues.MoveTo(1, &actions);
  EXPECT_THAT(Did(), ElementsAre("decline 0 to 11"));
  EXPECT_FALSE(queues.NextDeadline());
}

TEST_F(UpdateQueuesTest, WithStalenessTakesTheNextOneInsteadOfOneThatFailed) {
  plan.staleness = 4;
  SetPeers({{kLeft}}, {}, 1);
  Offer(kLeft, 0);
  Offer(kLeft, 1);
  Did();
  Pulled(1, false);  // it was replaced meanwhile
  EXPECT_THAT(Did(), ElementsAre("pull 1 of 11 as #2"));
  Pulled(2, false);
  EXPECT_THAT(Did(), IsEmpty());
  Offer(kLeft, 0);  // late; 1 is tried again
  EXPECT_THAT(Did(), ElementsAre("decline 0 to 11"));
  Offer(kLeft, 2);
  EXPECT_THAT(Did(), ElementsAre("pull 2 of 11 as #3"));
  EXPECT_FALSE(queues.NextDeadline());
}

// ---- sending ----

TEST_F(UpdateQueuesTest, KeepsAnUpdateUntilAllHaveAnswered) {
  SetPeers({}, {kLeft, kRight});
  queues.Publish(now, 0, &actions);
  EXPECT_THAT(Did(), ElementsAre("publish 0", "offer 0 after -1 to 11", "offer 0 after -1 to 12"));
  queues.Publish(now, 0, &actions);
  EXPECT_THAT(Did(), IsEmpty());
  Request(kLeft, 1, 0);
  EXPECT_THAT(Did(), ElementsAre("serve 1"));
  queues.Publish(now, 1, &actions);
  EXPECT_THAT(Did(), ElementsAre("publish 1", "offer 1 after 0 to 11", "offer 1 after 0 to 12"));
  Hear(kLeft, kStored, 0);
  Hear(kLeft, kStored, 0);
  EXPECT_THAT(Did(), IsEmpty());
  Hear(kRight, kDeclined, 0);
  EXPECT_THAT(Did(), ElementsAre("retire 0"));
  Request(kLeft, 2, 0);
  EXPECT_THAT(Did(), ElementsAre("refuse 2"));
  EXPECT_EQ(queues.TakeCounters(), (Counters{.suppressed = 1}));
  // The newest one stays.
  Hear(kLeft, kStored, 1);
  Hear(kRight, kStored, 1);
  EXPECT_THAT(Did(), IsEmpty());
  queues.Publish(now, 5, &actions);  // after a jump
  EXPECT_THAT(Did(), ElementsAre("publish 5", "retire 1", "offer 5 after 1 to 11",
                                 "offer 5 after 1 to 12"));
  EXPECT_EQ(queues.TakeCounters(), Counters{});
}

TEST_F(UpdateQueuesTest, WithStalenessOffersTheNewestAlone) {
  plan.staleness = 1;
  SetPeers({}, {kLeft, kRight});
  queues.Publish(now, 0, &actions);
  Request(kLeft, 1, 0);
  Did();
  queues.Publish(now, 1, &actions);
  EXPECT_THAT(Did(), ElementsAre("publish 1", "retire 0", "offer 1 after 0 to 11",
                                 "offer 1 after 0 to 12"));
  EXPECT_EQ(queues.TakeCounters(), (Counters{.suppressed = 1}));  // Left had asked for it
  Hear(kLeft, kStored, 0);
  Request(kRight, 2, 0);
  EXPECT_THAT(Did(), ElementsAre("refuse 2"));
}

TEST_F(UpdateQueuesTest, OffersAgainUntilThereIsAnAnswer) {
  SetPeers({}, {kLeft});
  queues.Publish(now, 0, &actions);
  Did();
  for (const int ms : {500, 1000, 2000, 4000, 4000}) {
    EXPECT_EQ(queues.NextDeadline(), now + ms * kMillisecond);
    Pass(ms * kMillisecond);
    EXPECT_THAT(Did(), ElementsAre("offer 0 after -1 to 11"));
  }
  Request(kLeft, 1, 0);  // which may come to nothing
  EXPECT_EQ(queues.NextDeadline(), now + 4 * kSecond);
  Hear(kLeft, kStored, 0);
  EXPECT_FALSE(queues.NextDeadline());
}

TEST_F(UpdateQueuesTest, KeepsNoMoreForThoseWhoNeverAnswer) {
  SetPeers({}, {kLeft}, 3);
  for (Iteration i = 0; i < 1000; ++i) {
    queues.Publish(now, i, &actions);
    ASSERT_LE(queues.published(), 67u);
  }
  EXPECT_EQ(queues.published(), 67u);
  EXPECT_EQ(queues.TakeCounters(), (Counters{.suppressed = 1000 - 67}));
  Did();
  Request(kLeft, 1, 1000 - 67);
  Request(kLeft, 2, 1000 - 68);
  EXPECT_THAT(Did(), ElementsAre("serve 1", "refuse 2"));
}

// ---- neighbours come and go ----

TEST_F(UpdateQueuesTest, MeetsAllNeighboursOnce) {
  SetPeers({{kLeft}, {kRight}}, {kRight, kFar});
  const auto& meet = std::get<prd::SetPeers>(actions.front());
  std::vector<Incarnation> met;
  for (const GroupMember& peer : meet.peers) met.push_back(peer.incarnation);
  EXPECT_THAT(met, ElementsAre(kLeft, kRight, kFar));
}

TEST_F(UpdateQueuesTest, LetsGoOfFormerNeighboursAndOffersToNewOnes) {
  SetPeers({{kLeft}, {kRight}}, {kLeft, kRight});
  queues.Publish(now, 0, &actions);
  queues.Publish(now, 1, &actions);
  Hear(kLeft, kStored, 0);
  Bring(kLeft, 0);
  Bring(kRight, 0);
  Offer(kRight, 1);
  Did();
  SetPeers({{kLeft}, {kFar, 1, 2}}, {kLeft, kFar});
  EXPECT_THAT(Did(), ElementsAre("drop #2", "drop #3", "retire 0", "offer 1 after 0 to 13"));
  EXPECT_EQ(queues.TakeCounters(), (Counters{.queued = 1, .dropped = 1}));
  Pulled(3);
  Request(kRight, 1, 1);
  EXPECT_THAT(Did(), ElementsAre("refuse 1"));
  EXPECT_TRUE(queues.CanReceive(0));
}

// A sender that learns first that it is a neighbour again takes what is said before for an answer.
TEST_F(UpdateQueuesTest, DoesNotWaitForWhatItHadAsAFormerNeighbour) {
  SetPeers({{kLeft}, {kRight}}, {});
  Bring(kRight, 0);
  Bring(kLeft, 0);
  Bring(kLeft, 1);
  Offer(kLeft, 1);
  EXPECT_THAT(Did(), ElementsAre("stored 1 to 11"));
  SetPeers({{kRight}}, {});
  SetPeers({{kLeft, 1, 1}, {kRight}}, {});
  EXPECT_TRUE(queues.CanReceive(0));
  Bring(kRight, 1);
  EXPECT_TRUE(queues.CanReceive(1));
  Bring(kRight, 2);
  EXPECT_FALSE(queues.CanReceive(2));
  EXPECT_THAT(Mix(1), ElementsAre(0.5, 0.5));
}

TEST_F(UpdateQueuesTest, WithStalenessRemembersTheNewestOfAFormerNeighbour) {
  plan.staleness = 2;
  SetPeers({{kLeft}}, {}, 1);
  Bring(kLeft, 4);
  EXPECT_THAT(Mix(4), ElementsAre(0.5, 0.5));
  SetPeers({}, {}, 1);
  SetPeers({{kLeft, 1, 4}}, {}, 1);
  EXPECT_TRUE(queues.CanReceive(6));
  EXPECT_FALSE(queues.CanReceive(7));
}

TEST_F(UpdateQueuesTest, TakesOffersOfThoseWhoLearnOfItFirst) {
  Offer(kLeft, 0);
  Offer(kFar, 0);
  EXPECT_THAT(Did(), IsEmpty());
  SetPeers({{kLeft}}, {});
  EXPECT_THAT(Did(), ElementsAre("pull 0 of 11 as #1"));
  Offer(kRight, 0);
  SetPeers({{kLeft}, {kRight}}, {});
  EXPECT_THAT(Did(), ElementsAre("pull 0 of 12 as #2"));
}

TEST_F(UpdateQueuesTest, ClosedItLetsEverythingGo) {
  SetPeers({{kLeft}, {kRight}}, {kLeft});
  queues.Publish(now, 0, &actions);
  Bring(kLeft, 0);
  Offer(kRight, 0);
  Did();
  queues.Close(&actions);
  ASSERT_FALSE(actions.empty());
  EXPECT_THAT(std::get<prd::SetPeers>(actions.back()).peers, IsEmpty());
  EXPECT_THAT(Did(), ElementsAre("drop #1", "drop #2", "retire 0"));
  Offer(kLeft, 1);
  Pulled(2);
  Request(kLeft, 7, 0);
  queues.Publish(now, 1, &actions);
  SetPeers({{kLeft}}, {kLeft});
  queues.Close(&actions);
  EXPECT_THAT(Did(), ElementsAre("refuse 7"));
  EXPECT_FALSE(queues.NextDeadline());
}

// ---- whatever a peer sends ----

TEST_F(UpdateQueuesTest, DisregardsWhatMakesNoSense) {
  SetPeers({{kLeft}}, {kRight});
  queues.Publish(now, 3, &actions);
  Did();
  for (const Iteration absurd : {Iteration{-1}, std::numeric_limits<Iteration>::min(), kHuge}) {
    for (const PeerMessage::Kind kind :
         {kOffer, kStored, kDeclined, static_cast<PeerMessage::Kind>(9)}) {
      for (const Incarnation from : {kLeft, kRight, kFar}) Hear(from, kind, absurd);
    }
    Request(kRight, 1, absurd);
    EXPECT_THAT(Did(), ElementsAre("refuse 1"));
  }
  PeerMessage shard{.kind = kOffer, .parcel = {.kind = PeerItem::Kind::kShard, .stamp = 0}};
  queues.OnNote(kLeft, shard, &actions);
  shard.parcel = {.kind = PeerItem::Kind::kUpdate, .epoch = 1, .stamp = 0};
  queues.OnNote(kLeft, shard, &actions);
  EXPECT_THAT(Did(), IsEmpty());
  queues.OnRequest(kRight, 1, {.kind = PeerItem::Kind::kDelta, .stamp = 3}, &actions);
  queues.OnRequest(kRight, 2, {.kind = PeerItem::Kind::kUpdate, .shard = 1, .stamp = 3}, &actions);
  Request(kLeft, 3, 3);  // gets none of its updates
  Request(kRight, 4, 2);
  Hear(kLeft, kStored, 3);
  Hear(kRight, kStored, 2);
  Pulled(99);
  EXPECT_THAT(Did(), ElementsAre("refuse 1", "refuse 2", "refuse 3", "refuse 4"));
  EXPECT_TRUE(queues.NextDeadline());  // the offer still stands
}

TEST_F(UpdateQueuesTest, AFloodOfOffersTakesNoMoreMemory) {
  SetPeers({{kLeft}}, {}, 2);
  for (Iteration i = 0; i < 100'000; ++i) {
    Offer(kLeft, 1'000'000 - i);
    Offer(kFar, i);
    queues.OnNote(kLeft, {.kind = kOffer, .parcel = Update(5 * i + 7), .version = 5 * i}, &actions);
  }
  EXPECT_THAT(Did(), IsEmpty());
  // What is asked for next was not pushed out by what is far ahead.
  Offer(kLeft, 2);
  queues.MoveTo(2, &actions);
  EXPECT_THAT(Did(), ElementsAre("pull 2 of 11 as #1"));
  queues.MoveTo(2'000'000, &actions);
  EXPECT_LE(Did().size(), 258u);
  SetPeers({{kLeft}, {kFar}}, {}, 2);
  EXPECT_LE(Did().size(), 4096u);
}

// Peers who say anything at any time, and neighbourhoods that change at random: what is held for a
// neighbour stays within bounds, each ticket is used or dropped once, and what is served is there.
class Anything : public UpdateQueuesTest {
 protected:
  void Run(std::uint64_t seed) {
    Prng random(seed);
    plan.staleness = static_cast<std::int32_t>(random.Below(3));
    plan.backups = static_cast<std::uint32_t>(random.Below(3));
    const auto peer = [&] { return kLeft + random.Below(4); };
    const auto near = [&] {
      if (random.Below(8) > 0) return k_ - 4 + static_cast<Iteration>(random.Below(12));
      return static_cast<Iteration>(random.Next());
    };
    for (int i = 0; i < 2000; ++i) {
      const std::uint64_t what = random.Below(16);
      if (what == 0) {
        std::vector<In> in;
        std::vector<Incarnation> out;
        for (Incarnation p = kLeft; p < kLeft + 4; ++p) {
          if (random.Below(2) > 0) in.push_back({p, 1, k_ + static_cast<Iteration>(p % 3)});
          if (random.Below(2) > 0) out.push_back(p);
        }
        SetPeers(in, out, kSlots);
      } else if (what == 1 && queues.CanReceive(k_)) {
        queues.Mix(k_, &actions);
        k_ += 1 + static_cast<Iteration>(random.Below(2));
        queues.MoveTo(k_, &actions);
        queues.Publish(now, k_, &actions);
      } else if (what < 5) {
        Request(peer(), ++requests_, near());
      } else if (what < 9 && !open_.empty()) {
        const auto pull = std::next(open_.begin(), static_cast<int>(random.Below(open_.size())));
        EndPull(pull->first, random.Below(4) > 0);
      } else if (what == 9) {
        Pass(static_cast<DurationNs>(random.Below(2 * kSecond)));
      } else {
        PeerMessage note{.kind = static_cast<PeerMessage::Kind>(random.Below(4)),
                         .parcel = Update(near())};
        note.version = near();
        queues.OnNote(peer(), note, &actions);
      }
      Look();
      if (HasFatalFailure()) return;
    }
  }
  void EndPull(Ticket ticket, bool ok) {
    if (std::exchange(open_.at(ticket).here, true)) return;
    if (!ok) open_.erase(ticket);
    Pulled(ticket, ok);
  }
  void Look() {
    for (const Action& action : std::exchange(actions, {})) {
      if (const auto* pull = std::get_if<StartPull>(&action)) {
        ASSERT_TRUE(open_.emplace(pull->ticket, Open{pull->from}).second);
      } else if (const auto* drop = std::get_if<DropPull>(&action)) {
        ASSERT_EQ(open_.erase(drop->ticket), 1u);
      } else if (const auto* mix = std::get_if<MixUpdates>(&action)) {
        for (const auto& update : mix->updates) ASSERT_EQ(open_.erase(update.ticket), 1u);
      } else if (const auto* publish = std::get_if<PublishUpdate>(&action)) {
        ASSERT_TRUE(published_.insert(publish->iteration).second);
      } else if (const auto* retire = std::get_if<RetireUpdate>(&action)) {
        ASSERT_EQ(published_.erase(retire->iteration), 1u);
      } else if (const auto* serve = std::get_if<Serve>(&action)) {
        ASSERT_TRUE(published_.contains(serve->parcel.stamp));
      }
    }
    ASSERT_EQ(queues.published(), published_.size());
    std::map<Incarnation, std::uint32_t> held;
    for (const auto& [ticket, pull] : open_) {
      ASSERT_LE(++held[pull.from], plan.staleness > 0 ? 2 : kSlots);
    }
  }

  static constexpr std::uint32_t kSlots = 3;
  Iteration k_ = 0;
  prd::Request requests_ = 0;
  struct Open {
    Incarnation from = 0;
    bool here = false;
  };
  std::map<Ticket, Open> open_;  // under way, or here and not used yet
  std::set<Iteration> published_;
};

TEST_F(Anything, LeavesItWithinItsBounds) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    queues = {};
    open_.clear();
    published_.clear();
    k_ = 0;
    Run(seed);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace prd::update_queues_test
