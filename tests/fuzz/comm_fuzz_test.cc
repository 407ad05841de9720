// One worker with a device, among members whose words about communicators are now right and now
// noise: what decodes of it never gives it more communicators than it may have, leaves one behind,
// or makes it say something to a stranger or without end.
//   PRD_FUZZ_SEED  where the runs start (default 1); a failure names the run's
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/feed.h"
#include "tests/worker/device/comm_cluster.h"
#include "tests/worker/device/random_comm_message.h"

namespace prd {
namespace {

using testing::FakeGpu;
using testing::FakeNccl;

constexpr int kRuns = 40;
constexpr int kSteps = 4000;
constexpr std::size_t kLimit = 3;
constexpr Rank kMembers = 6;
constexpr Incarnation kFirst = 1000;  // rank 0's; then the others'

// Nobody is at the other ends: how a communicator's making goes, chance says. Each id stands for a
// meeting of its own, for one who lies may say the same one twice.
class LonelyGpu : public FakeGpu {
 public:
  LonelyGpu(FakeNccl* nccl, Prng* prng) : FakeGpu(nccl), prng_(prng) {}

  Comm CommInit(int ranks, const UniqueId&, int rank) override {
    UniqueId id{};
    std::memcpy(id.data(), &++meetings_, sizeof meetings_);
    return FakeGpu::CommInit(ranks, id, rank);
  }
  Result<bool> CommBusy(Comm comm) override {
    (void)FakeGpu::CommBusy(comm);  // it is there
    const std::uint64_t drawn = prng_->Below(8);
    if (drawn == 0) return Status(Code::kAborted, "unhandled system error");
    return drawn < 4;
  }

 private:
  Prng* prng_;
  std::uint64_t meetings_ = 0;
};

class Victim {
 public:
  explicit Victim(std::uint64_t seed)
      : prng_(seed), gpu_(&nccl_, &prng_), comms_(&gpu_, {.limit = kLimit, .timeout = kSecond}) {
    self_ = kFirst + prng_.Below(kMembers);
    comms_.Join(self_, 1);
  }

  void Step() {
    now_ = now_ + static_cast<DurationNs>(prng_.Below(20)) * kMillisecond;
    switch (prng_.Below(8)) {
      case 0:
        Leave();
        Begin();
        break;
      case 1:
        comms_.Service(now_);
        break;
      case 2:
        if (prng_.Below(20) == 0) comms_.OnLost(now_, AnyMember());
        break;
      case 3:
      case 4:
        HearAnswer();
        break;
      default:
        HearNoise();
    }
    Check();
  }
  void End() {
    Leave();
    comms_.Join(self_, kNoRun);
    EXPECT_EQ(comms_.counters().here, 0u);
    EXPECT_EQ(gpu_.open(), 0u);
  }

  std::uint64_t heard() const { return heard_; }
  std::uint64_t made() const { return comms_.counters().made; }
  std::uint64_t used() const { return used_; }  // groups

 private:
  Incarnation AnyMember() { return kFirst + prng_.Below(kMembers); }
  GroupMember Member(Incarnation who) const {
    return {.rank = static_cast<Rank>(who - kFirst), .incarnation = who, .weight = 1};
  }

  void Begin() {
    std::set<Incarnation> members{self_};
    for (std::uint64_t n = 1 + prng_.Below(3); n > 0; --n) members.insert(AnyMember());
    group_ = {};
    group_.id = ++groups_;
    group_.kind = prng_.Below(20) == 0 ? GroupKind::kAverage : GroupKind::kTrain;
    for (const Incarnation who : members) group_.members.push_back(Member(who));
    known_.insert(members.begin(), members.end());
    choice_ = comms_.Begin(now_, group_);
    runs_ = true;
  }
  void Leave() {
    if (!runs_) return;
    if (!choice_) choice_ = comms_.Told(group_);
    bool ok = prng_.Below(4) != 0;
    if (choice_ && choice_->way != Way::kStaged) {
      const auto use = comms_.Find(choice_->comm, group_);
      ok = ok && use.has_value();
      used_ += ok;
      EXPECT_TRUE(!use || use->ranks.size() == group_.members.size());
      comms_.Hold(choice_->comm);
      if (!ok) comms_.Break(now_, choice_->comm, "the group failed");
      comms_.Release(choice_->comm);
    }
    comms_.End(now_, group_, ok && choice_.has_value());
    runs_ = false;
  }

  // What an honest member says next, so that communicators come to be and are used.
  void HearAnswer() {
    if (answers_.empty()) return Propose();
    const auto [from, message] = answers_.front();
    answers_.pop_front();
    comms_.OnMessage(now_, from, message);
  }
  void Propose() {
    const std::vector<Incarnation> members = SomeMembers();
    if (members.empty()) return;
    comms_.OnMessage(now_, members.front(),
                     {.kind = CommMessage::Kind::kPropose,
                      .comm = {.leader = members.front(), .number = ++numbers_},
                      .cover = prng_.Below(2) == 0,
                      .members = members});
  }
  void Answer(const Communicators::Outgoing& out) {
    using Kind = CommMessage::Kind;
    const std::map<Kind, Kind> next{
        {Kind::kPropose, Kind::kAccept}, {Kind::kAccept, Kind::kCreate},
        {Kind::kCreate, Kind::kReady},   {Kind::kReady, Kind::kUse},
        {Kind::kUse, Kind::kRetire},     {Kind::kRetired, Kind::kRetired}};
    const auto kind = next.find(out.message.kind);
    if (kind == next.end() || prng_.Below(8) == 0) return;
    answers_.emplace_back(
        out.to.incarnation,
        CommMessage{.kind = kind->second, .comm = out.message.comm, .group = groups_});
  }

  // A message of somebody, about something that may be there; or what is left of its bytes.
  void HearNoise() {
    CommMessage message = RandomCommMessage(prng_, prng_.Below(kCommKinds), 0);
    if (prng_.Below(8) != 0) message.comm = AnyComm();
    if (prng_.Below(8) != 0) message.group = groups_ + prng_.Below(3);
    if (prng_.Below(2) == 0) message.members = SomeMembers();
    const std::vector<std::byte> encoded = EncodeCommMessage(message);
    std::string bytes(reinterpret_cast<const char*>(encoded.data()), encoded.size());
    if (prng_.Below(4) == 0) Mutate(prng_, &bytes);
    const auto told = DecodeCommMessage(std::as_bytes(std::span(bytes)));
    if (!told) return;
    ++heard_;
    comms_.OnMessage(now_, prng_.Below(16) == 0 ? prng_.Next() : AnyMember(), *told);
  }
  CommId AnyComm() {
    if (!seen_.empty() && prng_.Below(4) != 0) return seen_[prng_.Below(seen_.size())];
    return {.leader = AnyMember(), .number = prng_.Below(4)};
  }
  std::vector<Incarnation> SomeMembers() {
    std::vector<Incarnation> members;
    for (Incarnation who = kFirst; who < kFirst + static_cast<Incarnation>(kMembers); ++who) {
      if (prng_.Below(2) == 0) members.push_back(who);
    }
    return members;
  }

  void Check() {
    const auto outgoing = comms_.TakeOutgoing();
    EXPECT_LE(outgoing.size(), 4 * (kLimit + 1) * static_cast<std::size_t>(kMembers));
    for (const Communicators::Outgoing& out : outgoing) {
      EXPECT_NE(out.to.incarnation, self_);
      EXPECT_EQ(known_.count(out.to.incarnation), 1u);
      seen_.push_back(out.message.comm);
      Answer(out);
    }
    if (seen_.size() > 16) seen_.erase(seen_.begin(), seen_.end() - 16);
    EXPECT_LE(comms_.counters().here, kLimit);
    EXPECT_LE(gpu_.open(), kLimit);
  }

  Prng prng_;
  FakeNccl nccl_;
  LonelyGpu gpu_;
  Communicators comms_;
  Incarnation self_ = 0;
  Instant now_{1};
  GroupId groups_ = kNoGroup;
  bool runs_ = false;
  Group group_;
  std::optional<Communicators::Choice> choice_;
  std::set<Incarnation> known_;
  std::vector<CommId> seen_;  // of which it has spoken
  std::deque<std::pair<Incarnation, CommMessage>> answers_;
  std::uint64_t numbers_ = 1000;
  std::uint64_t heard_ = 0;
  std::uint64_t used_ = 0;
};

TEST(CommFuzz, AWorkerLivesThroughWhatMembersSay) {
  const char* value = std::getenv("PRD_FUZZ_SEED");
  const std::uint64_t first = value == nullptr ? 1 : std::strtoull(value, nullptr, 10);
  std::uint64_t heard = 0;
  std::uint64_t made = 0;
  std::uint64_t used = 0;
  for (std::uint64_t seed = first; seed < first + kRuns; ++seed) {
    Victim victim(seed);
    for (int step = 0; step < kSteps && !::testing::Test::HasFailure(); ++step) victim.Step();
    victim.End();
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
    heard += victim.heard();
    made += victim.made();
    used += victim.used();
  }
  // Or the noise proves little.
  EXPECT_GT(heard, kRuns * kSteps / 4);
  EXPECT_GT(made, kRuns);
  EXPECT_GT(used, kRuns);
  std::printf("%llu messages heard, %llu communicators made, %llu groups on them\n",
              static_cast<unsigned long long>(heard), static_cast<unsigned long long>(made),
              static_cast<unsigned long long>(used));
}

}  // namespace
}  // namespace prd
