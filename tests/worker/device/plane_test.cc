// Reductions on devices, on a stand-in for CUDA and NCCL (tests/standin): shows that the calls are
// made as they must be, and proves nothing about GPUs. Whatever may run next, runs next.
#include "worker/device/plane.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>

#include "common/base/prng.h"
#include "tests/standin/standin_gpu.h"
#include "tests/worker/mesh_job.h"
#include "tests/worker/numbers.h"

namespace prd::testing {
namespace {

const Shapes kMixed = {{DType::kF16, 5}, {DType::kF32, 33}, {DType::kBF16, 70}, {DType::kF64, 9},
                       {DType::kF32, 1}, {DType::kF16, 40}, {DType::kF64, 31},  {DType::kBF16, 3}};

// One worker: its tensors, on a device of its own.
struct Worker {
  Worker(Rank its_rank, const Shapes& shapes, std::shared_ptr<Hub> hub,
         std::shared_ptr<Problems> problems, std::uint64_t seed,
         const DevicePlane::Options& options)
      : rank(its_rank) {
    StandInOptions made;
    made.make = {.memory = 16 << 20, .seed = seed, .problems = std::move(problems)};
    made.hub = std::move(hub);
    made.busy_polls = static_cast<int>(seed % 4);
    made.busy_polls_of_first_collective = static_cast<int>(seed % 90);
    gpu = StandInGpu::Create(made).value();
    wake = eventfd(0, EFD_NONBLOCK);
    memory = DeviceMemory::Create(gpu, wake).value();
    std::size_t bytes = 0;
    for (const auto& [dtype, count] : shapes) bytes += count * DTypeSize(dtype) + 8;
    block = gpu->Malloc(bytes).value();
    std::vector<Tensor> tensors;
    std::byte* at = block;
    for (const auto& [dtype, count] : shapes) {
      tensors.push_back({at, count, dtype});
      at += count * DTypeSize(dtype);
      at += (block - at) & 7;
    }
    layout = Layout(tensors);
    initial = memory->Allocate(MemoryUse::kResults, layout.bytes());
    row = memory->Allocate(MemoryUse::kResults, layout.bytes());
    plane = DevicePlane::Create(memory.get(), wake, options).value();
    plane->communicators().Join(self(), 1);
  }
  ~Worker() {
    plane.reset();
    initial = Row();
    row = Row();
    memory.reset();
    gpu->Free(block);
    gpu->device().Advance();
    EXPECT_EQ(gpu->comms(), 0u);
    EXPECT_EQ(gpu->handles(), 0u);
    close(wake);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  Incarnation self() const { return 1000 + static_cast<Incarnation>(rank); }
  Communicators& comms() { return plane->communicators(); }

  // The whole row, as bytes: of the tensors, or of a row.
  std::vector<std::byte> Tensors() const {
    std::vector<std::byte> bytes(layout.bytes());
    for (const Layout::Piece& piece : layout.pieces()) {
      const auto part = gpu->Read(piece.data, piece.end - piece.begin);
      std::memcpy(bytes.data() + piece.begin, part.data(), part.size());
    }
    return bytes;
  }
  std::vector<std::byte> RowBytes() const { return gpu->Read(row.data(), layout.bytes()); }
  void SetTensors(const std::vector<std::byte>& bytes) {
    for (const Layout::Piece& piece : layout.pieces()) {
      gpu->Write(piece.data, bytes.data() + piece.begin, piece.end - piece.begin);
    }
  }

  Rank rank;
  std::shared_ptr<StandInGpu> gpu;
  int wake = -1;
  std::unique_ptr<DeviceMemory> memory;
  std::byte* block = nullptr;
  Layout layout;
  Row initial;
  Row row;
  std::unique_ptr<DevicePlane> plane;
  std::optional<Status> status;  // of the newest reduction
};

using Into = DevicePlane::Into;

struct Reduction {
  std::vector<Rank> ranks;
  std::vector<double> weights;  // by position; empty: equal
  double initial_weight = 0;
  Into into = Into::kTensors;
  bool from_row = false;  // always where it goes there
  std::optional<Way> expect;
  bool FromRow() const { return from_row || into == Into::kOwn || into == Into::kChange; }
};

class PlaneTest : public ::testing::Test {
 protected:
  void Make(int n, const Shapes& shapes, std::uint64_t seed = 1, std::uint32_t recurs = 1) {
    workers_.clear();
    random_ = Prng(seed);
    hub_ = std::make_shared<LocalHub>(problems_);
    options_.timeout = kSecond;
    options_.communicators.recurs = recurs;
    for (Rank rank = 0; rank < n; ++rank) {
      workers_.push_back(std::make_unique<Worker>(rank, shapes, hub_, problems_,
                                                  seed == 0 ? 0 : random_.Next(), options_));
    }
  }
  void TearDown() override {
    workers_.clear();
    EXPECT_EQ(problems_->list(), std::vector<std::string>());
  }

  Group GroupOf(const Reduction& reduction, GroupKind kind = GroupKind::kTrain) {
    Group group{.id = ++newest_, .kind = kind, .members = {}, .reason = {}};
    group.initial_weight = reduction.initial_weight;
    const double share =
        (1 - reduction.initial_weight) / static_cast<double>(reduction.ranks.size());
    for (std::size_t i = 0; i < reduction.ranks.size(); ++i) {
      group.members.push_back({.rank = reduction.ranks[i],
                               .incarnation = At(reduction.ranks[i]).self(),
                               .weight = reduction.weights.empty() ? share : reduction.weights[i],
                               .host = {},
                               .endpoints = {}});
    }
    return group;
  }
  Worker& At(Rank rank) { return *workers_[static_cast<std::size_t>(rank)]; }

  // One thing that may happen.
  void Turn() {
    Worker& worker = *workers_[random_.Below(workers_.size())];
    if (random_.Below(3) != 0) {
      worker.gpu->device().Turn();
      return;
    }
    if (worker.plane->running()) {
      if (const std::optional<Status> status = worker.plane->Ended(now_)) worker.status = *status;
    }
    worker.comms().Service(now_);
    Deliver();
    now_ = now_ + 10 * kMicrosecond;
  }
  void Deliver() {
    for (bool any = true; any;) {
      any = false;
      for (const auto& worker : workers_) {
        for (const Communicators::Outgoing& out : worker->comms().TakeOutgoing()) {
          At(out.to.rank).comms().OnMessage(now_, worker->self(), out.message);
          any = true;
        }
      }
    }
  }
  void Turns(int count) {
    for (int i = 0; i < count; ++i) Turn();
  }

  // A staged group of these succeeds: so they share a communicator soon.
  void SetPeers(const std::vector<Rank>& ranks, GroupKind kind = GroupKind::kTrain) {
    const Group group = GroupOf({.ranks = ranks}, kind);
    for (const Rank rank : ranks) (void)At(rank).comms().Begin(now_, group);
    Deliver();
    for (const Rank rank : ranks) At(rank).comms().End(now_, group, true);
    Deliver();
    for (int i = 0; i < 2000 && At(ranks[0]).comms().Usable().empty(); ++i) Turn();
    Turns(500);
  }

  // Small numbers, some of them in all workers' tensors; what the reference says is in `expected_`.
  void Fill(const Reduction& reduction) {
    const Layout& layout = At(0).layout;
    expected_.assign(layout.bytes(), 0);  // by the byte at which an element begins
    std::vector<double> largest(layout.bytes(), 0);
    const Group group = GroupOf(reduction);
    --newest_;
    const auto add = [&](const std::vector<std::byte>& bytes, double weight) {
      ForElements(bytes, [&](std::size_t at, double value) {
        if (weight == 0) return;
        expected_[at] += weight * value;
        largest_[at] = std::max(largest_[at], std::fabs(value));
      });
    };
    largest_.assign(layout.bytes(), 0);
    for (const auto& worker : workers_) {
      worker->SetTensors(Numbers(0.0));
      const std::vector<std::byte> rows = Numbers(0.0);
      worker->gpu->Write(worker->row.data(), rows.data(), rows.size());
    }
    for (const GroupMember& member : group.members) {
      Worker& worker = At(member.rank);
      const std::vector<std::byte> own = Numbers(member.weight == 0 ? NAN : 1.0);
      if (reduction.FromRow()) {
        worker.gpu->Write(worker.row.data(), own.data(), own.size());
      } else {
        worker.SetTensors(own);
      }
      add(own, member.weight);
    }
    const std::vector<std::byte> initial = Numbers(1.0);
    for (const auto& worker : workers_) {
      worker->gpu->Write(worker->initial.data(), initial.data(), initial.size());
    }
    add(initial, reduction.initial_weight);
  }
  // A row of numbers up to `scale`; of NaN.
  std::vector<std::byte> Numbers(double scale) {
    std::vector<std::byte> bytes(At(0).layout.bytes());
    for (const Layout::Piece& run : At(0).layout.Runs()) {
      testing::Numbers numbers(run.dtype, (run.end - run.begin) / DTypeSize(run.dtype));
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        numbers.Set(i, scale * (2 * random_.Unit() - 1));
      }
      std::memcpy(bytes.data() + run.begin, numbers.tensor().data, run.end - run.begin);
    }
    return bytes;
  }
  template <typename F>
  void ForElements(const std::vector<std::byte>& bytes, F&& f) {
    for (const Layout::Piece& run : At(0).layout.Runs()) {
      const std::size_t size = DTypeSize(run.dtype);
      testing::Numbers numbers(run.dtype, (run.end - run.begin) / size);
      std::memcpy(numbers.tensor().data, bytes.data() + run.begin, run.end - run.begin);
      for (std::size_t i = 0; i < numbers.size(); ++i) f(run.begin + i * size, numbers.Get(i));
    }
  }
  DType DTypeAt(std::size_t at) {
    for (const Layout::Piece& run : At(0).layout.Runs()) {
      if (at < run.end) return run.dtype;
    }
    return DType::kF32;
  }

  // The choice of its members, who agree.
  Communicators::Choice Agree(const Group& group) {
    std::map<Rank, std::optional<Communicators::Choice>> choices;
    for (const GroupMember& member : group.members) {
      choices[member.rank] = At(member.rank).comms().Begin(now_, group);
    }
    Deliver();
    for (auto& [rank, choice] : choices) {
      if (!choice) choice = At(rank).comms().Told(group);
      EXPECT_TRUE(choice);
      EXPECT_EQ(*choice, *choices.begin()->second);
    }
    return *choices.begin()->second;
  }
  void StartAt(Rank rank, const Group& group, const Communicators::Choice& choice,
               const Reduction& reduction) {
    Worker& worker = At(rank);
    DevicePlane::Part part{.layout = &worker.layout,
                           .row = reduction.FromRow() ? worker.row.data() : nullptr,
                           .position = 0,
                           .into = reduction.into,
                           .initial = nullptr};
    if (reduction.initial_weight != 0) part.initial = worker.initial.data();
    while (group.members[part.position].rank != rank) ++part.position;
    worker.status.reset();
    worker.plane->Start(now_, group, choice, part);
  }
  bool AllEnded(const std::vector<Rank>& ranks) {
    return std::all_of(ranks.begin(), ranks.end(),
                       [&](Rank rank) { return At(rank).status.has_value(); });
  }
  void EndAll(const Group& group) {
    for (const GroupMember& member : group.members) {
      Worker& worker = At(member.rank);
      worker.comms().End(now_, group, worker.status && worker.status->ok());
    }
    Deliver();
  }

  // All of it, and nothing goes wrong.
  void Reduce(const Reduction& reduction) {
    Fill(reduction);
    const Group group = GroupOf(reduction);
    const Communicators::Choice choice = Agree(group);
    if (reduction.expect) {
      ASSERT_EQ(choice.way, *reduction.expect);
    }
    ASSERT_NE(choice.way, Way::kStaged);
    std::vector<Rank> order = reduction.ranks;
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.Below(i)]);
    std::map<Rank, std::vector<std::byte>> before, own;
    for (const Rank rank : order) {
      before[rank] = At(rank).Tensors();
      own[rank] = At(rank).RowBytes();
      StartAt(rank, group, choice, reduction);
      Turns(static_cast<int>(random_.Below(20)));
    }
    for (int i = 0; i < 50'000 && !AllEnded(order); ++i) Turn();
    ASSERT_TRUE(AllEnded(order));
    EndAll(group);
    for (const Rank rank : order) {
      Worker& worker = At(rank);
      ASSERT_TRUE(worker.status->ok()) << worker.status->ToString();
      worker.gpu->device().Advance();
      if (reduction.into != Into::kTensors) {
        EXPECT_EQ(worker.Tensors(), before[rank]);
      }
      if (reduction.into == Into::kRow || reduction.into == Into::kTensors) {
        EXPECT_EQ(worker.RowBytes(), own[rank]);
      }
      if (reduction.into == Into::kChange) {
        ExpectChange(worker.RowBytes(), own[rank]);
      } else {
        EXPECT_EQ(ResultOf(worker, reduction.into), ResultOf(At(order[0]), reduction.into));
        ExpectRight(ResultOf(worker, reduction.into));
      }
    }
  }
  std::vector<std::byte> ResultOf(Worker& worker, Into into) {
    if (into == Into::kTensors) return worker.Tensors();
    if (into == Into::kOwn) return worker.RowBytes();
    return worker.gpu->Read(worker.plane->result(), worker.layout.bytes());
  }
  void ExpectChange(const std::vector<std::byte>& change, const std::vector<std::byte>& own) {
    std::map<std::size_t, double> values;
    ForElements(own, [&](std::size_t at, double value) { values[at] = value; });
    ForElements(change, [&](std::size_t at, double value) {
      // A null's own part is NaN, and so is what changes it.
      if (std::isnan(values[at])) {
        EXPECT_TRUE(std::isnan(value));
        return;
      }
      const double slack = 8 * Epsilon(DTypeAt(at)) * (largest_[at] + std::fabs(values[at]));
      EXPECT_NEAR(value, expected_[at] - values[at], slack + 1e-30) << at;
    });
  }
  // The number of windows that are not as they were, of which each byte is of the result.
  int ExpectWindows(const std::vector<std::byte>& found, const std::vector<std::byte>& before) {
    int changed = 0;
    for (std::size_t at = 0; at < found.size(); at += options_.window_bytes) {
      const std::size_t size = std::min(options_.window_bytes, found.size() - at);
      if (std::memcmp(found.data() + at, before.data() + at, size) == 0) {
        ForElements(found, [&](std::size_t byte, double) {
          if (byte >= at && byte < at + size) skipped_.insert(byte);
        });
      } else {
        ++changed;
      }
    }
    ExpectRight(found);
    skipped_.clear();
    return changed;
  }
  void ExpectRight(const std::vector<std::byte>& result) {
    int wrong = 0;
    ForElements(result, [&](std::size_t at, double value) {
      const double slack = 6 * Epsilon(DTypeAt(at)) * largest_[at] + 1e-30;
      if (!skipped_.contains(at) && !(std::fabs(value - expected_[at]) <= slack) && ++wrong < 4) {
        ADD_FAILURE() << "at " << at << ": " << value << ", expected " << expected_[at];
      }
    });
    EXPECT_EQ(wrong, 0);
  }

  Prng random_{1};
  Instant now_{1};
  GroupId newest_ = 0;
  std::shared_ptr<Problems> problems_ = std::make_shared<Problems>();
  std::shared_ptr<Hub> hub_;
  DevicePlane::Options options_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<double> expected_;
  std::vector<double> largest_;
  std::set<std::size_t> skipped_;  // elements that are as they were
};

class PlaneWalkTest : public PlaneTest, public ::testing::WithParamInterface<std::uint64_t> {};

TEST_P(PlaneWalkTest, EveryWayGivesWhatTheWeightsSay) {
  for (const bool exchange : {false, true}) {
    options_.window_bytes = GetParam() % 2 == 0 ? 64 + 64 * GetParam() : 1 << 20;
    Make(6, kMixed, GetParam(), exchange ? 1000 : 1);
    SetPeers({0, 1, 2, 3, 4, 5}, GroupKind::kInitial);
    if (!exchange) SetPeers({1, 4, 3, 0});
    for (const Into into : {Into::kRow, Into::kTensors, Into::kOwn, Into::kChange}) {
      for (const bool from_row : {true, false}) {
        Reduction each{.ranks = {4, 1, 3, 0}, .into = into, .from_row = from_row};
        each.expect = exchange ? Way::kExchange : Way::kCollective;
        Reduce(each);
        for (const std::vector<double>& weights :
             std::vector<std::vector<double>>{{0.1, 0.2, 0.3, 0.4},
                                              {0, 0.5, 0.5, 0},
                                              {0, 0, 0, 1},
                                              {1. / 3, 0, 1. / 3, 1. / 3}}) {
          each.weights = weights;
          Reduce(each);
        }
        each.weights = {0.2, 0, 0.3, 0.3};
        each.initial_weight = 0.2;
        Reduce(each);
        if (HasFailure()) return;
      }
    }
  }
}

// Changing groups one after another, as far as each worker is concerned: many at once.
TEST_P(PlaneWalkTest, GroupsThatShareSomeMembersFollowEachOther) {
  Make(6, {{DType::kF32, 50}}, GetParam());
  SetPeers({0, 1, 2, 3, 4, 5}, GroupKind::kInitial);
  for (int i = 0; i < 25 && !HasFailure(); ++i) {
    Reduction each;
    std::vector<Rank> all = {0, 1, 2, 3, 4, 5};
    for (std::size_t k = all.size(); k > 1; --k) std::swap(all[k - 1], all[random_.Below(k)]);
    each.ranks.assign(all.begin(), all.begin() + 2 + static_cast<std::ptrdiff_t>(random_.Below(3)));
    each.into = random_.Below(2) == 0 ? Into::kTensors : Into::kRow;
    Reduce(each);
    Turns(static_cast<int>(random_.Below(300)));
  }
}

// A member gives it up after every possible number of turns: whoever says ok has all of the result,
// and of others each window has all of it, or of what was there. Communicators of others are as
// good as before.
TEST_P(PlaneWalkTest, CalledOffAtAnyTimeEachWindowIsAllOrNothing) {
  options_.window_bytes = GetParam() % 2 == 0 ? 64 : 1 << 20;
  Make(5, {{DType::kF32, 40}, {DType::kF64, 7}}, GetParam());
  int ok = 0;
  int failed = 0;
  int parts = 0;
  for (int turns = 0; turns < 60 && !HasFailure(); ++turns) {
    const bool exchange = random_.Below(2) == 0;
    const Into into = random_.Below(4) == 0 ? Into::kRow : Into::kTensors;
    const Reduction each{.ranks = {0, 2, 4}, .into = into};
    if (exchange) SetPeers({0, 1, 2, 3, 4}, GroupKind::kInitial);
    if (!exchange) SetPeers({0, 2, 4});
    if (turns == 0) SetPeers({1, 3});
    Fill(each);
    const Group group = GroupOf(each);
    const Communicators::Choice choice = Agree(group);
    if (choice.way == Way::kStaged) {  // still put off after the last time
      for (const Rank rank : each.ranks) At(rank).comms().End(now_, group, true);
      Deliver();
      Turns(500);
      continue;
    }
    std::map<Rank, std::vector<std::byte>> before;
    for (const Rank rank : each.ranks) before[rank] = At(rank).Tensors();
    for (const Rank rank : each.ranks) StartAt(rank, group, choice, each);
    Turns(turns * turns / 2);
    const Rank quits = each.ranks[random_.Below(3)];
    At(quits).plane->Cancel(now_, "the group was called off");
    if (!At(quits).plane->running() && !At(quits).status) {
      At(quits).status = Status(Code::kCancelled, "");
    }
    for (int i = 0; i < 100'000 && !AllEnded(each.ranks); ++i) Turn();
    ASSERT_TRUE(AllEnded(each.ranks));
    EndAll(group);
    for (const Rank rank : each.ranks) {
      Worker& worker = At(rank);
      worker.gpu->device().Advance();
      ++(worker.status->ok() ? ok : failed);
      if (into == Into::kRow) {
        EXPECT_EQ(worker.Tensors(), before[rank]) << worker.status->ToString();
      } else if (worker.status->ok()) {
        ExpectRight(worker.Tensors());
      } else {
        parts += ExpectWindows(worker.Tensors(), before[rank]);
      }
    }
    Turns(1000);
    Reduce({.ranks = {3, 1}});
  }
  EXPECT_GT(ok, 0);
  EXPECT_GT(failed, 0);
  EXPECT_EQ(parts > 0, GetParam() % 2 == 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, PlaneWalkTest, ::testing::Range<std::uint64_t>(0, 4));

TEST_F(PlaneTest, EachDTypeAloneAndInOnePiece) {
  options_.window_bytes = 192;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    for (const std::size_t count : {1u, 3u, 64u, 1001u}) {
      Make(4, {{dtype, count}});
      SetPeers({0, 1, 2, 3}, GroupKind::kInitial);
      Reduce({.ranks = {0, 1, 2, 3}, .weights = {0.4, 0.3, 0.2, 0.1}, .expect = Way::kCollective});
      Reduce({.ranks = {2, 1, 3}, .expect = Way::kExchange});
      Reduce({.ranks = {2, 1, 3}, .into = Into::kChange, .expect = Way::kExchange});
    }
  }
}

TEST_F(PlaneTest, MoreMembersThanALaunchTakes) {
  Make(20, {{DType::kF32, 333}, {DType::kF16, 30}});
  std::vector<Rank> all;
  for (Rank rank = 0; rank < 20; ++rank) all.push_back(rank);
  SetPeers(all, GroupKind::kInitial);
  all.erase(all.begin());
  Reduce({.ranks = all, .expect = Way::kExchange});
}

// A member that never comes: the others give up in time, and what else they have stays.
TEST_F(PlaneTest, AMemberThatNeverComesFailsItInTime) {
  Make(4, kMixed);
  SetPeers({0, 1, 2, 3}, GroupKind::kInitial);
  SetPeers({0, 1});
  const Reduction each{.ranks = {0, 1, 2, 3}};
  Fill(each);
  const Group group = GroupOf(each);
  const Communicators::Choice choice = Agree(group);
  const std::vector<std::byte> before = At(1).Tensors();
  for (const Rank rank : {0, 1, 2}) StartAt(rank, group, choice, each);
  Turns(5000);
  EXPECT_FALSE(AllEnded({0}));
  ASSERT_TRUE(At(0).plane->NextDeadline());
  now_ = now_ + kSecond;
  Turns(2000);
  now_ = now_ + kSecond;
  Turns(2000);
  ASSERT_TRUE(AllEnded({0, 1, 2}));
  At(3).status = Status(Code::kAborted, "it never came");
  EndAll(group);
  int late = 0;
  for (const Rank rank : {0, 1, 2}) {
    const Code code = At(rank).status->code();
    EXPECT_TRUE(code == Code::kDeadlineExceeded || code == Code::kAborted);
    late += code == Code::kDeadlineExceeded ? 1 : 0;
  }
  EXPECT_GT(late, 0);
  EXPECT_EQ(At(1).Tensors(), before);
  Reduce({.ranks = {0, 1}, .expect = Way::kCollective});
}

TEST_F(PlaneTest, WhoIsOnItsWayIsWaitedForLonger) {
  Make(2, {{DType::kF32, 10}});
  SetPeers({0, 1}, GroupKind::kInitial);
  const Reduction each{.ranks = {0, 1}};
  Fill(each);
  const Group group = GroupOf(each);
  const Communicators::Choice choice = Agree(group);
  StartAt(0, group, choice, each);
  for (int i = 0; i < 10; ++i) {
    Turns(100);
    now_ = now_ + kSecond / 2;
    At(0).plane->Extend(now_);
  }
  StartAt(1, group, choice, each);
  for (int i = 0; i < 20'000 && !AllEnded({0, 1}); ++i) Turn();
  ASSERT_TRUE(AllEnded({0, 1}));
  EXPECT_TRUE(At(0).status->ok());
  EndAll(group);
}

TEST_F(PlaneTest, WhatIsBrokenBeforeTheStartFailsAtOnce) {
  Make(3, kMixed);
  SetPeers({0, 1, 2}, GroupKind::kInitial);
  const Reduction each{.ranks = {0, 1, 2}};
  const Group group = GroupOf(each);
  const Communicators::Choice choice = Agree(group);
  At(2).comms().OnLost(now_, At(1).self());
  Deliver();
  StartAt(0, group, choice, each);
  const std::optional<Status> status = At(0).plane->Ended(now_);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->code(), Code::kAborted);
  EXPECT_FALSE(At(0).plane->running());
}

TEST_F(PlaneTest, ACommunicatorsErrorEndsIt) {
  Make(2, kMixed);
  SetPeers({0, 1}, GroupKind::kInitial);
  const Reduction each{.ranks = {0, 1}};
  Fill(each);
  const Group group = GroupOf(each);
  const Communicators::Choice choice = Agree(group);
  StartAt(0, group, choice, each);
  At(0).gpu->FailComm(nullptr);
  for (int i = 0; i < 1000 && !AllEnded({0}); ++i) Turn();
  ASSERT_TRUE(AllEnded({0}));
  EXPECT_EQ(At(0).status->code(), Code::kAborted);
  EXPECT_TRUE(At(0).memory->failure().ok()) << "the device itself is well";
}

// Each call of the device fails in turn: there is an end, in words, and no ok.
TEST_F(PlaneTest, ADeviceThatFailsEndsItWithItsError) {
  for (std::uint64_t k = 1; k < 40; ++k) {
    for (const bool operation : {false, true}) {
      options_.window_bytes = k % 2 == 0 ? 128 : 1 << 20;
      Make(2, kMixed, k);
      SetPeers({0, 1}, GroupKind::kInitial);
      const Reduction each{.ranks = {0, 1}};
      Fill(each);
      const Group group = GroupOf(each);
      const Communicators::Choice choice = Agree(group);
      StandInDevice& device = At(0).gpu->device();
      operation ? device.FailOperation(k) : device.FailCall(k);
      for (const Rank rank : {0, 1}) StartAt(rank, group, choice, each);
      for (int i = 0; i < 3000 && !AllEnded({0, 1}); ++i) Turn();
      now_ = now_ + 3 * kSecond;
      for (int i = 0; i < 3000 && !AllEnded({0, 1}); ++i) Turn();
      now_ = now_ + 3 * kSecond;
      for (int i = 0; i < 3000 && !AllEnded({0, 1}); ++i) Turn();
      ASSERT_TRUE(AllEnded({0, 1})) << k;
      EXPECT_FALSE(At(0).status->ok() && !At(0).memory->failure().ok() && !operation) << k;
    }
  }
}

TEST_F(PlaneTest, TheEventfdTellsOfTheEnd) {
  options_.window_bytes = 64;
  Make(2, kMixed);
  SetPeers({0, 1}, GroupKind::kInitial);
  for (const Into into : {Into::kTensors, Into::kRow}) {
    const Reduction each{.ranks = {0, 1}, .into = into};
    Fill(each);
    const Group group = GroupOf(each);
    const Communicators::Choice choice = Agree(group);
    for (const Rank rank : {0, 1}) StartAt(rank, group, choice, each);
    std::uint64_t count = 0;
    while (read(At(0).wake, &count, sizeof count) > 0) {
    }
    while (!At(0).plane->Enqueued() || !At(1).plane->Enqueued()) {
      for (const Rank rank : {0, 1}) (void)At(rank).plane->Ended(now_);
      EXPECT_LT(read(At(0).wake, &count, sizeof count), 0) << "told of a window";
    }
    for (std::size_t i = 0; i <= At(0).layout.bytes() / options_.window_bytes; ++i) {
      At(0).gpu->device().Advance();
      At(1).gpu->device().Advance();
    }
    At(0).gpu->device().Advance();
    EXPECT_EQ(read(At(0).wake, &count, sizeof count), static_cast<ssize_t>(sizeof count));
    EXPECT_EQ(count, 1u) << "not of each window";
    for (const Rank rank : {0, 1}) At(rank).status = At(rank).plane->Ended(now_);
    EndAll(group);
    EXPECT_TRUE(At(0).status && At(0).status->ok());
    EXPECT_EQ(At(0).plane->sent_bytes(), At(0).layout.bytes());
  }
}

}  // namespace
}  // namespace prd::testing
