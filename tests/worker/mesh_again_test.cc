// Reductions in place that are tried again after one that failed: what one member has of the result
// all get, and the rest is summed anew. Reductions alone, with frames handed over in any order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/prng.h"
#include "worker/mesh/reduction.h"

namespace prd::mesh_again_test {
namespace {

constexpr float kWeight = 0.125f;
constexpr float kShare = 0.5f;

struct Member {
  std::vector<float> gave;  // what is summed,
  std::vector<float> base;  // which is `has` less this, or `has` itself
  std::vector<float> has;
  std::vector<float> was;      // before the first group
  std::vector<float> staging;  // a member whose result comes there, as a device's does
  std::vector<float> change;
  std::vector<bool> done;
  Layout layout;   // of `has`
  Layout changes;  // of `change`
};

// Workers that hold whole numbers. Sums are exact, and lower than any of these. `bases`: what they
// give are changes to a row that all have.
class Team {
 public:
  Team(std::size_t elements, std::size_t chunk_bytes, bool bases, std::uint64_t seed)
      : chunk_bytes_(chunk_bytes), bases_(bases), random_(seed), members_(2 + random_.Below(4)) {
    for (Member& member : members_) {
      for (std::size_t i = 0; i < elements; ++i) {
        member.gave.push_back(static_cast<float>(8192 + random_.Below(4096)));
        member.base.push_back(bases ? static_cast<float>(4096 + i) : 0.0f);
        member.has.push_back(member.base[i] + member.gave[i]);
      }
      member.was = member.has;
      if (bases && random_.Below(4) == 0) member.staging.resize(elements);
      member.layout = Layout({{member.has.data(), elements, DType::kF32}});
      member.change = member.gave;
      member.changes = Layout({{member.change.data(), elements, DType::kF32}});
    }
    due_.resize(elements);
  }

  std::size_t size() const { return members_.size(); }

  // A reduction of these members, with equal weights, that ends after so many frames. True: all are
  // through.
  bool Try(const std::vector<std::size_t>& who, std::size_t frames) {
    here_ = who;
    const std::vector<double> weights(who.size(), kWeight);
    std::vector<Reduction> reductions;
    for (std::size_t i = 0; i < who.size(); ++i) {
      Member& each = members_[who[i]];
      Reduction::Options options{.weights = weights,
                                 .position = i,
                                 .into = bases_ ? Reduction::Into::kBase : Reduction::Into::kRow,
                                 .settles = bases_,
                                 .chunk_bytes = chunk_bytes_,
                                 .done = &each.done};
      if (bases_) options.base = reinterpret_cast<const std::byte*>(each.base.data());
      if (bases_) options.share = {kShare, kShare};
      if (!each.staging.empty()) {
        options.into = Reduction::Into::kStaging;
        options.staging = reinterpret_cast<std::byte*>(each.staging.data());
        options.base = nullptr;
        options.done = nullptr;
      }
      reductions.emplace_back(each.staging.empty() ? &each.layout : &each.changes,
                              std::move(options));
    }
    Expect();
    struct Sent {
      std::size_t from = 0;
      Reduction::Outgoing frame;
    };
    std::deque<Sent> post;
    std::vector<std::size_t> talking(who.size());
    std::iota(talking.begin(), talking.end(), 0);
    for (; frames > 0 && !(talking.empty() && post.empty()); --frames) {
      if (!post.empty() && (talking.empty() || random_.Below(2) == 0)) {
        const std::size_t at = random_.Below(post.size());
        Sent sent = std::move(post[at]);
        post.erase(post.begin() + static_cast<std::ptrdiff_t>(at));
        std::vector<Reduction::Outgoing> out;
        const Status status = reductions[sent.frame.to].OnFrame(
            sent.from, sent.frame.header, std::move(sent.frame.payload), &out);
        EXPECT_TRUE(status.ok()) << status.ToString();
        for (Reduction::Outgoing& next : out) post.push_back({sent.frame.to, std::move(next)});
        continue;
      }
      const std::size_t turn = random_.Below(talking.size());
      std::optional<Reduction::Outgoing> own = reductions[talking[turn]].NextOwn();
      if (own) {
        post.push_back({talking[turn], std::move(*own)});
      } else {
        talking.erase(talking.begin() + static_cast<std::ptrdiff_t>(turn));
      }
    }
    const bool through = std::all_of(reductions.begin(), reductions.end(),
                                     [](const Reduction& each) { return each.Complete(); });
    for (std::size_t i = 0; through && i < who.size(); ++i) TakeStaged(who[i], reductions[i]);
    return through;
  }

  // Every element is what was given, or what is due: the average that a member had of it when the
  // newest group began, or the sum of what its members gave. Returns how many had an average.
  std::size_t Check(bool through) {
    std::size_t had = 0;
    for (std::size_t i = 0; i < due_.size(); ++i) {
      had += due_[i] ? 1 : 0;
      float sum = 0;
      for (const std::size_t m : here_) sum += kWeight * members_[m].gave[i];
      if (bases_) sum = members_[0].base[i] + kShare * sum;
      const float due = due_[i].value_or(sum);
      for (const std::size_t m : here_) {
        const float has = members_[m].has[i];
        EXPECT_TRUE(has == due || (!through && has == before_[m][i]))
            << "element " << i << " is " << has << ", and " << due << " is due";
      }
    }
    return had;
  }

 private:
  void TakeStaged(std::size_t m, const Reduction& reduction) {
    Member& member = members_[m];
    const std::vector<bool>& settled = reduction.settled();
    for (std::size_t i = 0; i < member.staging.size(); ++i) {
      const std::size_t cell = i * sizeof(float) / reduction.cell_bytes();
      const bool is = cell < settled.size() && settled[cell];
      member.has[i] = is ? member.staging[i] : member.base[i] + kShare * member.staging[i];
    }
  }
  void Expect() {
    before_.assign(members_.size(), {});
    std::fill(due_.begin(), due_.end(), std::nullopt);
    for (const std::size_t m : here_) {
      before_[m] = members_[m].has;
      for (std::size_t i = 0; i < due_.size(); ++i) {
        if (members_[m].has[i] != members_[m].was[i]) due_[i] = members_[m].has[i];
      }
    }
  }

  const std::size_t chunk_bytes_;
  const bool bases_;
  Prng random_;
  std::vector<Member> members_;
  std::vector<std::size_t> here_;
  std::vector<std::vector<float>> before_;
  std::vector<std::optional<float>> due_;  // averages that a member has
};

class ReductionAgainTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Of, ReductionAgainTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Changes" : "Rows"; });

// Rows and chunks have all sizes, and each try loses a member or none.
TEST_P(ReductionAgainTest, OneAverageOfEachElement) {
  std::size_t had = 0;
  std::size_t tries = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng random(seed);
    const std::size_t chunk_bytes = 8 * (1 + random.Below(60));
    Team team(1 + random.Below(400), chunk_bytes, GetParam(), seed);
    std::vector<std::size_t> who(team.size());
    std::iota(who.begin(), who.end(), 0);
    bool through = false;
    for (int turn = 0; turn < 4 && !through; ++turn) {
      ++tries;
      through = team.Try(who, turn == 3 ? SIZE_MAX : random.Below(200));
      had += team.Check(through);
      if (who.size() > 1 && random.Below(2) == 0) {
        who.erase(who.begin() + static_cast<std::ptrdiff_t>(random.Below(who.size())));
      }
    }
    ASSERT_TRUE(through);
    if (HasFailure()) return;
  }
  EXPECT_GT(had, 1000u);
  EXPECT_GT(tries, 2500u);
}

// A frame that says more cells are done than its chunk has; or, of what is not a change, where
// nothing is summed any more.
TEST_P(ReductionAgainTest, CellsThatAreNotThereAreRefused) {
  std::vector<float> row(32);
  const Layout layout({{row.data(), row.size(), DType::kF32}});
  const auto refused = [&](std::uint32_t stage, std::size_t offset, std::uint64_t done) {
    Reduction reduction(&layout, {.weights = {0.5, 0.5},
                                  .position = 0,
                                  .into = Reduction::Into::kRow,
                                  .settles = GetParam(),
                                  .chunk_bytes = 64});
    const FrameHeader header{
        .kind = FrameKind::kRing, .stage = stage, .offset = offset, .length = 64, .done = done};
    std::vector<Reduction::Outgoing> out;
    return reduction.OnFrame(1, header, SharedBytes(64), &out).code() == Code::kDataLoss;
  };
  EXPECT_FALSE(refused(0, 64, 0xff));  // 64 bytes of a chunk of 64 are 8 cells of 8
  EXPECT_TRUE(refused(0, 64, 0x100));
  EXPECT_FALSE(refused(1, 0, 0));
  EXPECT_EQ(refused(1, 0, 1), !GetParam());
  EXPECT_TRUE(refused(1, 0, 0x100));
}

}  // namespace
}  // namespace prd::mesh_again_test
