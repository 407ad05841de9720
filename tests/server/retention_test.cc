#include "server/history/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/base/prng.h"

namespace prd::history {
namespace {

using ::testing::HasSubstr;

// Ended runs of one job each, with so many bytes.
void AddEnded(Retention* retention, RunId first, int count, const std::string& owner,
              std::uint64_t bytes) {
  for (RunId run = first; run < first + static_cast<RunId>(count); ++run) {
    retention->Begin(run, owner + "-" + std::to_string(run), owner, bytes);
    retention->End(run);
  }
}

// All that goes, in order.
std::vector<RunId> Drain(Retention* retention) {
  std::vector<RunId> gone;
  while (const auto next = retention->Next()) {
    gone.push_back(next->run);
    retention->Remove(next->run);
  }
  return gone;
}

using Runs = std::vector<RunId>;

TEST(Retention, TheOldestEndedRunsOfANameGo) {
  Retention retention({.runs_per_job = 2});
  for (RunId run = 1; run <= 5; ++run) {
    retention.Begin(run, "mnist", "", 10);
    if (run != 2) retention.End(run);
  }
  EXPECT_THAT(retention.Next()->reason, HasSubstr("job mnist has more than 2 ended runs"));
  EXPECT_EQ(Drain(&retention), (Runs{1, 3}));
  EXPECT_EQ(retention.total().ended, 2u);
  EXPECT_EQ(retention.total().bytes, 30u);
}

TEST(Retention, OverTheNumberInAllTheOwnerWithMostGivesUpItsOldest) {
  Retention retention({.runs = 6});
  AddEnded(&retention, 1, 2, "alice", 1'000'000);
  AddEnded(&retention, 10, 7, "eve", 1);
  EXPECT_THAT(retention.Next()->reason, HasSubstr("most are of identity eve"));
  EXPECT_EQ(Drain(&retention), (Runs{10, 11, 12}));
}

TEST(Retention, OverTheBytesInAllTheOwnerWithMostBytesDoes) {
  Retention retention({.bytes = 1000});
  AddEnded(&retention, 1, 50, "eve", 1);
  AddEnded(&retention, 100, 3, "alice", 400);
  EXPECT_THAT(retention.Next()->reason, HasSubstr("more than 1000 bytes (retain_bytes)"));
  EXPECT_EQ(Drain(&retention), (Runs{100}));
}

// Runs that go on count, and cannot go. Others do not pay for them.
TEST(Retention, WhoHasLessThanAnEvenShareLosesNothing) {
  Retention retention({.bytes = 1000});
  AddEnded(&retention, 1, 4, "alice", 100);
  retention.Begin(9, "long", "bob", 5000);
  EXPECT_EQ(retention.Next(), std::nullopt);
  AddEnded(&retention, 20, 2, "alice", 100);
  EXPECT_EQ(Drain(&retention), (Runs{1}));
  retention.End(9);
  EXPECT_EQ(Drain(&retention), (Runs{9}));
}

TEST(Retention, AnOwnerHasBoundsOfItsOwn) {
  Retention retention({.owners = {{"eve", {.runs = 3, .bytes = 1000}}}});
  AddEnded(&retention, 1, 5, "eve", 10);
  AddEnded(&retention, 10, 5, "alice", 10);
  EXPECT_THAT(retention.Next()->reason, HasSubstr("identity eve has more than 3 ended runs"));
  EXPECT_EQ(Drain(&retention), (Runs{1, 2}));
  retention.Grow(4, 985);
  EXPECT_THAT(retention.Next()->reason, HasSubstr("more than 1000 bytes (max_history_bytes)"));
  EXPECT_EQ(Drain(&retention), (Runs{3, 4}));
}

// Behind the last snapshot but one.
TEST(Retention, OfARunThatGoesOnWhatCanGoDoes) {
  Retention retention({.bytes = 1000});
  retention.Begin(9, "long", "bob", 900);
  AddEnded(&retention, 1, 3, "bob", 100);
  EXPECT_EQ(retention.Next()->run, 1u);
  EXPECT_TRUE(retention.Next()->whole);
  retention.MayTrim(9, 700);  // most of what bob has
  EXPECT_EQ(retention.Next()->run, 9u);
  EXPECT_FALSE(retention.Next()->whole);
  EXPECT_THAT(retention.Next()->reason, HasSubstr("retain_bytes"));
  retention.Shrink(9, 700);
  retention.MayTrim(9, 0);
  EXPECT_EQ(retention.Next(), std::nullopt);
  // Less than half: ended runs go first, and then that.
  retention.Grow(9, 600);
  retention.MayTrim(9, 300);
  EXPECT_EQ(retention.Next()->run, 1u);
  for (const RunId run : {1, 2, 3}) retention.Remove(run);
  EXPECT_EQ(retention.Next(), std::nullopt);
  retention.Grow(9, 600);
  EXPECT_EQ(retention.Next()->run, 9u);
  retention.End(9);  // now all of it may go
  EXPECT_TRUE(retention.Next()->whole);
}

TEST(Retention, OtherBoundsCountAtOnce) {
  Retention retention({});
  AddEnded(&retention, 1, 5, "", 10);
  EXPECT_EQ(retention.Next(), std::nullopt);
  retention.SetBounds({.runs = 4, .bytes = 25});
  EXPECT_EQ(Drain(&retention), (Runs{1, 2, 3}));
}

TEST(Retention, ARunsOwnerMayBecomeKnownLater) {
  Retention retention({.runs = 1});
  AddEnded(&retention, 1, 2, "", 10);
  retention.Begin(3, "x", "", 10);
  retention.Own(3, "eve");
  retention.Own(1, "eve");
  EXPECT_EQ(retention.Owners().back().first, "eve");
  EXPECT_EQ(retention.Owners().back().second.bytes, 20u);
  EXPECT_EQ(retention.Owners().back().second.ended, 1u);
  EXPECT_EQ(retention.total().bytes, 30u);
}

// What the header says, by looking at all runs each time.
struct Reference {
  struct Run {
    std::string job, owner;
    std::uint64_t bytes = 0;
    bool ended = false;
  };
  std::map<RunId, Run> runs;

  std::map<std::string, Retention::Use> Owners() const {
    std::map<std::string, Retention::Use> uses;
    for (const auto& [id, run] : runs) {
      uses[run.owner].ended += run.ended ? 1 : 0;
      uses[run.owner].bytes += run.bytes;
    }
    return uses;
  }
  // Whether this run may be the next to go.
  bool MayGo(const Bounds& bounds, RunId id) const {
    const Run& it = runs.at(id);
    if (!it.ended) return false;
    std::uint64_t of_job = 0, all = 0, bytes = 0;
    bool oldest_of_job = true, oldest_of_owner = true;
    for (const auto& [other, run] : runs) {
      bytes += run.bytes;
      if (!run.ended) continue;
      ++all;
      of_job += run.job == it.job ? 1 : 0;
      if (other < id && run.job == it.job) oldest_of_job = false;
      if (other < id && run.owner == it.owner) oldest_of_owner = false;
    }
    if (of_job > bounds.runs_per_job && oldest_of_job) return true;
    if (!oldest_of_owner) return false;
    const auto uses = Owners();
    const Retention::Use mine = uses.at(it.owner);
    const auto own = bounds.owners.find(it.owner);
    if (own != bounds.owners.end()) {
      if (own->second.runs > 0 && mine.ended > own->second.runs) return true;
      if (own->second.bytes > 0 && mine.bytes > own->second.bytes) return true;
    }
    const auto has_most = [&](auto of) {
      return std::all_of(uses.begin(), uses.end(), [&](const auto& use) {
        return use.second.ended == 0 || of(use.second) <= of(mine);
      });
    };
    if (all > bounds.runs) return has_most([](const auto& use) { return use.ended; });
    return bytes > bounds.bytes && mine.bytes > bounds.bytes / uses.size() &&
           has_most([](const auto& use) { return use.bytes; });
  }
};

TEST(Retention, AgreesWithALookAtAllRuns) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Prng prng(seed);
    const auto below = [&](std::uint64_t n) { return prng.Below(n); };
    Bounds bounds{.runs_per_job = 1 + below(6), .runs = 1 + below(30), .bytes = 100 + below(3000)};
    bounds.owners["a"] = {.runs = below(8), .bytes = below(900)};
    Retention retention(bounds);
    Reference reference;
    RunId next = 1;
    int removed = 0;
    for (int step = 0; step < 400; ++step) {
      const std::string owner(1, static_cast<char>('a' + below(3)));
      if (below(3) == 0) {
        const Reference::Run run{
            .job = "j" + std::to_string(below(6)), .owner = owner, .bytes = below(50)};
        retention.Begin(next, run.job, run.owner, run.bytes);
        reference.runs[next++] = run;
      } else if (!reference.runs.empty()) {
        auto at = std::next(reference.runs.begin(),
                            static_cast<std::ptrdiff_t>(below(reference.runs.size())));
        const std::uint64_t bytes = below(60);
        if (below(2) == 0) {
          retention.Grow(at->first, bytes);
          at->second.bytes += bytes;
        } else {
          retention.End(at->first);
          at->second.ended = true;
        }
      }
      while (const auto verdict = retention.Next()) {
        ASSERT_TRUE(reference.MayGo(bounds, verdict->run))
            << "seed " << seed << ": " << verdict->reason;
        retention.Remove(verdict->run);
        reference.runs.erase(verdict->run);
        ++removed;
      }
      for (const auto& [id, run] : reference.runs) {
        ASSERT_FALSE(reference.MayGo(bounds, id)) << "seed " << seed << ": run " << id << " stays";
      }
      const auto uses = reference.Owners();
      ASSERT_EQ(retention.Owners().size(), uses.size());
      for (const auto& [name, use] : retention.Owners()) {
        ASSERT_EQ(use.bytes, uses.at(name).bytes);
        ASSERT_EQ(use.ended, uses.at(name).ended);
      }
    }
    EXPECT_GT(removed, 0) << "seed " << seed;
  }
}

}  // namespace
}  // namespace prd::history
