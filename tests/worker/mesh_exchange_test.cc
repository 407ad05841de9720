// What workers ask of each other outside of groups, between real meshes: notes and pulls arrive as
// they were sent, a store's shards are what a plain model of it says, and peers that die, lie or
// say nothing cost the pull that is theirs and nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <string>

#include "common/base/prng.h"
#include "tests/plans.h"
#include "tests/worker/mesh_job.h"

namespace prd::mesh_exchange_test {
namespace {

using testing::EveryDType;
using testing::Fill;
using testing::kDTypes;
using testing::MeshJob;
using testing::MeshNode;
using testing::MeshNow;
using testing::MeshWorker;
using testing::RunUntil;
using testing::Shapes;
using testing::ValuesOf;

constexpr std::size_t kLarge = 300'007;  // f32: 3 parts

PeerItem UpdateOf(Iteration iteration) {
  return {.kind = PeerItem::Kind::kUpdate, .stamp = iteration};
}

Incarnation IdOf(MeshWorker& worker) { return worker.node->AsMember(0).incarnation; }

// Serves whatever it is asked for, with this enclosure.
void ServeAll(MeshWorker& worker, const ShardHeader& enclosure = {}) {
  Mesh* mesh = &worker.mesh();
  worker.node->on_request = [mesh, enclosure](Incarnation, Request request,
                                              const PeerItem& parcel) {
    mesh->Do(MeshNow(), Serve{request, parcel, enclosure});
  };
}

void MeetAll(MeshJob& job) {
  SetPeers meet;
  for (std::size_t i = 0; i < job.size(); ++i) {
    if (job[i].node) meet.peers.push_back(job[i].node->AsMember(0));
  }
  for (std::size_t i = 0; i < job.size(); ++i) {
    if (job[i].node) job[i].mesh().Do(MeshNow(), meet);
  }
}

void StartPullOf(MeshWorker& taker, MeshWorker& source, Ticket ticket, const PeerItem& parcel) {
  taker.mesh().Do(MeshNow(), StartPull{ticket, IdOf(source), parcel});
}

// How the pull ended.
Code AwaitPull(const MeshJob& job, const MeshWorker& taker, Ticket ticket) {
  EXPECT_TRUE(RunUntil(job.Nodes(), [&] { return taker.node->pulled.contains(ticket); }));
  const auto it = taker.node->pulled.find(ticket);
  return it == taker.node->pulled.end() ? Code::kInternal : it->second.status.code();
}

Code PullNow(const MeshJob& job, MeshWorker& taker, MeshWorker& source, Ticket ticket,
             const PeerItem& parcel) {
  StartPullOf(taker, source, ticket, parcel);
  return AwaitPull(job, taker, ticket);
}

void Randomise(MeshWorker& worker, Prng& prng) {
  Fill(&worker.parameters, [&] { return prng.Unit() * 2 - 1; });
}

// ---- notes ----

TEST(MeshExchangeTest, NotesArriveInOrderAndWhole) {
  MeshJob job(3, EveryDType(10), plans::kNeighbours);
  MeetAll(job);
  std::vector<PeerMessage> notes;
  for (int i = 0; i < 100; ++i) {
    notes.push_back({.kind = static_cast<PeerMessage::Kind>(i % 3),
                     .parcel = {.kind = static_cast<PeerItem::Kind>(i % 4),
                                .shard = static_cast<std::uint32_t>(i),
                                .epoch = ~std::uint64_t{0} - static_cast<std::uint64_t>(i),
                                .stamp = i == 0 ? -1 : kMaxExchangeNumber - i},
                     .version = i * 7 - 1,
                     .workers = static_cast<std::uint32_t>(-i)});
  }
  for (const PeerMessage& note : notes) {
    job[0].mesh().Do(MeshNow(), SendNote{IdOf(job[1]), note});
    job[1].mesh().Do(MeshNow(), SendNote{IdOf(job[0]), note});
  }
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] {
    return job[0].node->notes.size() == notes.size() && job[1].node->notes.size() == notes.size();
  }));
  for (std::size_t i = 0; i < notes.size(); ++i) {
    EXPECT_EQ(job[0].node->notes[i], std::pair(IdOf(job[1]), notes[i]));
    EXPECT_EQ(job[1].node->notes[i], std::pair(IdOf(job[0]), notes[i]));
  }
  EXPECT_TRUE(job[2].node->notes.empty());
}

TEST(MeshExchangeTest, WhatComesBeforeThePeerIsMetIsHeardThen) {
  MeshJob job(2, EveryDType(100), plans::kNeighbours);
  ServeAll(job[1]);
  job[1].mesh().Do(MeshNow(), PublishUpdate{3});
  const PeerMessage note{.kind = PeerMessage::Kind::kOffer, .parcel = UpdateOf(3)};
  job[1].mesh().Announce(MeshNow(), {job[0].node->AsMember(0)});
  job[0].mesh().Do(MeshNow(), SetPeers{{job[1].node->AsMember(0)}});
  job[0].mesh().Do(MeshNow(), SendNote{IdOf(job[1]), note});
  StartPullOf(job[0], job[1], 1, UpdateOf(3));
  StartPullOf(job[0], job[1], 2, UpdateOf(3));
  job[0].mesh().Do(MeshNow(), DropPull{2});
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return job[1].mesh().counters().received == 4; }));
  EXPECT_TRUE(job[1].node->notes.empty());
  EXPECT_TRUE(job[0].node->pulled.empty());

  MeetAll(job);
  EXPECT_EQ(AwaitPull(job, job[0], 1), Code::kOk);
  ASSERT_EQ(job[1].node->notes.size(), 1u);
  EXPECT_EQ(job[1].node->notes[0], std::pair(IdOf(job[0]), note));
  EXPECT_FALSE(job[0].node->pulled.contains(2));
}

// ---- updates of neighbours ----

// What is pulled is what was published, whatever happens to the parameters meanwhile, and a mix is
// what double precision says, but for the roundings of a reduction.
TEST(MeshExchangeTest, MixesWhatNeighboursPublished) {
  Prng prng(11);
  std::vector<Shapes> all = {EveryDType(1), EveryDType(1001)};
  for (const DType dtype : kDTypes) all.push_back({{dtype, 20'003}});
  all.push_back({{DType::kF32, kLarge}, {DType::kBF16, 7}});
  for (const Shapes& shapes : all) {
    for (const bool tcp : {false, true}) {
      MeshJob job(0, shapes, plans::kNeighbours);
      constexpr std::size_t kWorkers = 4;
      std::vector<std::unique_ptr<MeshWorker>> workers;
      SetPeers meet;
      std::vector<MeshNode*> nodes;
      for (std::size_t i = 0; i < kWorkers; ++i) {
        Mesh::Options options;
        if (tcp) options.host = "host" + std::to_string(i);
        workers.push_back(std::make_unique<MeshWorker>(shapes, options, plans::kNeighbours));
        meet.peers.push_back(workers[i]->node->AsMember(0));
        nodes.push_back(workers[i]->node.get());
      }
      std::vector<std::vector<double>> published;
      for (auto& worker : workers) {
        ServeAll(*worker);
        worker->mesh().Do(MeshNow(), meet);
        Randomise(*worker, prng);
        published.push_back(ValuesOf(worker->parameters));
        worker->mesh().Do(MeshNow(), PublishUpdate{5});
        Randomise(*worker, prng);
      }
      const auto left = [](std::size_t i) { return (i + kWorkers - 1) % kWorkers; };
      const auto right = [](std::size_t i) { return (i + 1) % kWorkers; };
      for (std::size_t i = 0; i < kWorkers; ++i) {
        StartPullOf(*workers[i], *workers[left(i)], 1, UpdateOf(5));
        StartPullOf(*workers[i], *workers[right(i)], 2, UpdateOf(5));
      }
      ASSERT_TRUE(RunUntil(nodes, [&] {
        return std::all_of(nodes.begin(), nodes.end(),
                           [](MeshNode* node) { return node->pulled.size() == 2; });
      }));
      for (std::size_t i = 0; i < kWorkers; ++i) {
        MeshWorker& worker = *workers[i];
        for (const auto& [ticket, pulled] : worker.node->pulled) {
          ASSERT_TRUE(pulled.status.ok()) << pulled.status.ToString();
        }
        const std::vector<double> own = ValuesOf(worker.parameters);
        // One slot, two neighbours: two models, and nothing once they are used.
        const std::size_t model = worker.store().parameters.bytes();
        EXPECT_EQ(worker.mesh().exchanged().held_bytes, 2 * model);
        worker.mesh().Do(MeshNow(), MixUpdates{0.5, {{1, 0.3}, {2, 0.2}}});
        EXPECT_EQ(worker.mesh().exchanged().held_bytes, 0u);
        EXPECT_EQ(worker.mesh().exchanged().most_held_bytes, 2 * model);
        EXPECT_EQ(worker.mesh().exchanged().sent_bytes, 2 * model);
        const std::vector<double> mixed = ValuesOf(worker.parameters);
        std::size_t at = 0;
        for (const auto& [dtype, count] : shapes) {
          for (std::size_t end = at + count; at < end; ++at) {
            const double expected =
                0.5 * own[at] + 0.3 * published[left(i)][at] + 0.2 * published[right(i)][at];
            ASSERT_NEAR(mixed[at], expected, 4 * testing::Epsilon(dtype)) << i << " " << at;
          }
        }
      }
    }
  }
}

TEST(MeshExchangeTest, AnUpdateIsThereUntilItIsRetired) {
  Prng prng(3);
  MeshJob job(2, EveryDType(1000), plans::kNeighbours);
  MeetAll(job);
  ServeAll(job[1]);
  for (const Iteration k : {4, 6}) {
    Fill(&job[1].parameters, [&] { return static_cast<double>(k); });
    job[1].mesh().Do(MeshNow(), PublishUpdate{k});
  }
  job[1].mesh().Do(MeshNow(), SetIteration{7});
  EXPECT_EQ(job[1].store().iteration, 7);
  for (const Iteration k : {6, 4}) {
    ASSERT_EQ(PullNow(job, job[0], job[1], static_cast<Ticket>(k), UpdateOf(k)), Code::kOk);
    job[0].mesh().Do(MeshNow(), MixUpdates{0, {{static_cast<Ticket>(k), 1}}});
    for (const double value : ValuesOf(job[0].parameters)) {
      ASSERT_EQ(value, static_cast<double>(k));
    }
  }
  job[1].mesh().Do(MeshNow(), RetireUpdate{4});
  EXPECT_EQ(PullNow(job, job[0], job[1], 10, UpdateOf(4)), Code::kNotFound);
  EXPECT_EQ(PullNow(job, job[0], job[1], 11, UpdateOf(5)), Code::kNotFound);
  EXPECT_EQ(PullNow(job, job[0], job[1], 12, UpdateOf(6)), Code::kOk);
}

// Everybody pulls many updates from everybody, some are not wanted any more halfway.
TEST(MeshExchangeTest, ManyPullsAtOnce) {
  Prng prng(5);
  constexpr std::size_t kWorkers = 4;
  constexpr Iteration kUpdates = 6;
  MeshJob job(kWorkers, {{DType::kF64, 150'001}}, plans::kNeighbours);
  MeetAll(job);
  std::vector<std::vector<std::vector<double>>> published(kWorkers);
  for (std::size_t i = 0; i < kWorkers; ++i) {
    ServeAll(job[i]);
    for (Iteration k = 0; k < kUpdates; ++k) {
      Randomise(job[i], prng);
      published[i].push_back(ValuesOf(job[i].parameters));
      job[i].mesh().Do(MeshNow(), PublishUpdate{k});
    }
  }
  struct Wanted {
    std::size_t taker, source;
    Ticket ticket;
    Iteration k;
    bool dropped;
  };
  std::vector<Wanted> all;
  Ticket last = 0;
  for (Iteration k = 0; k < kUpdates; ++k) {
    for (std::size_t taker = 0; taker < kWorkers; ++taker) {
      for (std::size_t source = 0; source < kWorkers; ++source) {
        if (source == taker) continue;
        all.push_back({taker, source, ++last, k, prng.Below(3) == 0});
        StartPullOf(job[taker], job[source], last, UpdateOf(k));
      }
    }
  }
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return job[0].mesh().exchanged().held_bytes > 0; }));
  for (const Wanted& wanted : all) {
    if (wanted.dropped) job[wanted.taker].mesh().Do(MeshNow(), DropPull{wanted.ticket});
  }
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] {
    return std::all_of(all.begin(), all.end(), [&](const Wanted& wanted) {
      return wanted.dropped || job[wanted.taker].node->pulled.contains(wanted.ticket);
    });
  }));
  for (const Wanted& wanted : all) {
    if (wanted.dropped) continue;
    MeshWorker& taker = job[wanted.taker];
    ASSERT_TRUE(taker.node->pulled.at(wanted.ticket).status.ok());
    taker.mesh().Do(MeshNow(), MixUpdates{0, {{wanted.ticket, 1}}});
    ASSERT_EQ(ValuesOf(taker.parameters),
              published[wanted.source][static_cast<std::size_t>(wanted.k)]);
  }
  for (std::size_t i = 0; i < kWorkers; ++i) EXPECT_EQ(job[i].mesh().exchanged().held_bytes, 0u);
}

// A worker that does not take what it asked for holds up nobody else, and at most a few parts of
// its own; once it says that it does not want it, no more is sent.
TEST(MeshExchangeTest, ASlowPullerHoldsUpOnlyItself) {
  MeshJob job(3, {{DType::kF32, 6'000'001}}, plans::kNeighbours);  // 46 parts
  MeetAll(job);
  ServeAll(job[0]);
  job[0].mesh().Do(MeshNow(), PublishUpdate{1});
  StartPullOf(job[1], job[0], 1, UpdateOf(1));
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return job[1].mesh().exchanged().held_bytes > 0; }));
  StartPullOf(job[2], job[0], 1, UpdateOf(1));
  const std::vector<MeshNode*> others = {job[0].node.get(), job[2].node.get()};
  ASSERT_TRUE(RunUntil(others, [&] { return job[2].node->pulled.contains(1); }));
  EXPECT_TRUE(job[2].node->pulled.at(1).status.ok());
  const std::size_t model = job[0].store().parameters.bytes();
  EXPECT_LT(job[0].mesh().exchanged().sent_bytes, 2 * model);
  EXPECT_FALSE(job[1].node->pulled.contains(1));

  job[1].mesh().Do(MeshNow(), DropPull{1});
  EXPECT_EQ(job[1].mesh().exchanged().held_bytes, 0u);
  const PeerMessage note{.kind = PeerMessage::Kind::kOffer, .parcel = UpdateOf(1)};
  job[0].mesh().Do(MeshNow(), SendNote{IdOf(job[1]), note});
  job[1].mesh().Do(MeshNow(), SendNote{IdOf(job[0]), note});
  ASSERT_TRUE(RunUntil(job.Nodes(),
                       [&] { return !job[0].node->notes.empty() && !job[1].node->notes.empty(); }));
  EXPECT_LT(job[0].mesh().exchanged().sent_bytes, 2 * model);
  EXPECT_EQ(PullNow(job, job[1], job[0], 2, UpdateOf(1)), Code::kOk);
}

// ---- shards ----

TEST(MeshExchangeTest, ShardsCoverARowAndNeverSplitAnElement) {
  for (const std::size_t bytes : {0u, 2u, 8u, 10u, 16u, 100u, 4096u, 1'000'006u}) {
    for (const std::uint32_t shards : {1u, 2u, 3u, 7u, 16u, 1000u}) {
      std::size_t at = 0;
      std::size_t least = bytes;
      std::size_t most = 0;
      for (std::uint32_t i = 0; i < shards; ++i) {
        const ByteRange range = ShardRange(bytes, shards, i);
        ASSERT_EQ(range.begin, at);
        ASSERT_TRUE(at % 8 == 0 || at == bytes);
        at += range.length;
        least = std::min(least, range.length);
        most = std::max(most, range.length);
      }
      EXPECT_EQ(at, bytes);
      EXPECT_LT(most - least, 16u);
    }
  }
  const std::size_t huge = std::numeric_limits<std::size_t>::max() / 2;
  const std::uint32_t shards = std::numeric_limits<std::uint32_t>::max();
  const ByteRange last = ShardRange(huge, shards, shards - 1);
  EXPECT_EQ(last.begin + last.length, huge);
}

// A store as plain as can be: vectors of doubles.
struct PlainShard {
  std::vector<double> values;
  std::vector<double> pending;
};

// A model of f64, whose shards are ranges of elements.
class Store {
 public:
  Store(std::size_t workers, std::size_t count, std::uint32_t shards, bool lockstep)
      : job_(workers, {{DType::kF64, count}}, plans::Store(lockstep ? 0 : 2)),
        shards_(shards),
        base_(workers),
        delta_(workers),
        kept_(workers) {
    for (std::size_t w = 0; w < workers; ++w) {
      ServeAll(job_[w], {.version = 3, .readable = 2, .clocks = {{1, 5}, {9, 0}}});
      Fill(&job_[w].parameters, [&] { return prng_.Unit(); });
      job_[w].store().SetBase();
      base_[w] = Parameters(w);
      job_[w].mesh().Do(MeshNow(), CutShards{shards});
    }
    MeetAll(job_);
  }

  std::vector<double> Parameters(std::size_t w) { return ValuesOf(job_[w].parameters); }
  ByteRange Elements(std::uint32_t shard) {
    const ByteRange range = ShardRange(job_[0].store().parameters.bytes(), shards_, shard);
    return {range.begin / 8, range.length / 8};
  }
  std::vector<double> Part(const std::vector<double>& row, std::uint32_t shard) {
    const ByteRange range = Elements(shard);
    const auto begin = row.begin() + static_cast<std::ptrdiff_t>(range.begin);
    return {begin, begin + static_cast<std::ptrdiff_t>(range.length)};
  }
  template <typename Action>
  void Do(std::size_t w, const Action& action) {
    job_[w].mesh().Do(MeshNow(), action);
  }

  void Train(std::size_t w, double share) {
    Fill(&job_[w].parameters, [&] { return prng_.Unit(); });
    Do(w, TakeDelta{share});
    delta_[w] = Parameters(w);
    for (std::size_t i = 0; i < delta_[w].size(); ++i) {
      delta_[w][i] = share * (delta_[w][i] - base_[w][i]);
    }
  }
  void KeepOwn(std::size_t w, std::uint32_t shard) {
    Do(w, KeepShard{shard, 0});
    PlainShard& kept = kept_[w][shard];
    kept.values = Part(base_[w], shard);
    kept.pending.assign(kept.values.size(), 0);
  }
  void KeepOf(std::size_t w, std::size_t from, std::uint32_t shard) {
    Do(w, KeepShard{shard, Pull(w, from, PeerItem::Kind::kState, shard)});
    kept_[w][shard] = kept_[from].at(shard);
  }
  void Push(std::size_t w, std::size_t owner, std::uint32_t shard, double factor, bool pending) {
    const Ticket ticket = w == owner ? 0 : Pull(owner, w, PeerItem::Kind::kDelta, shard);
    Do(owner, AddDelta{shard, ticket, factor, pending});
    PlainShard& kept = kept_[owner].at(shard);
    std::vector<double>& row = pending ? kept.pending : kept.values;
    const std::vector<double> delta = Part(delta_[w], shard);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] += delta[i] * factor;
  }
  void Merge(std::size_t w, std::uint32_t shard) {
    Do(w, MergePending{shard});
    PlainShard& kept = kept_[w].at(shard);
    for (std::size_t i = 0; i < kept.values.size(); ++i) kept.values[i] += kept.pending[i];
    kept.pending.assign(kept.pending.size(), 0);
  }
  void Read(std::size_t w, std::size_t owner, std::uint32_t shard, bool keeps_move) {
    std::vector<double> expected = Parameters(w);
    const Ticket ticket = w == owner ? 0 : Pull(w, owner, PeerItem::Kind::kShard, shard);
    Do(w, ReadShard{shard, ticket, keeps_move});
    const std::vector<double>& values = kept_[owner].at(shard).values;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t at = Elements(shard).begin + i;
      const double move = expected[at] - base_[w][at];
      expected[at] = keeps_move ? move + values[i] : values[i];
      base_[w][at] = values[i];
    }
    ASSERT_EQ(Parameters(w), expected);
  }

  MeshJob& job() { return job_; }
  Prng& prng() { return prng_; }

 private:
  Ticket Pull(std::size_t taker, std::size_t source, PeerItem::Kind kind, std::uint32_t shard) {
    const PeerItem parcel{.kind = kind, .shard = shard, .epoch = 1, .stamp = 2};
    EXPECT_EQ(PullNow(job_, job_[taker], job_[source], ++last_, parcel), Code::kOk);
    const ShardHeader& enclosure = job_[taker].node->pulled.at(last_).enclosure;
    EXPECT_EQ(enclosure, (ShardHeader{3, 2, {{1, 5}, {9, 0}}}));
    return last_;
  }

  Prng prng_{17};
  MeshJob job_;
  std::uint32_t shards_;
  Ticket last_ = 0;
  std::vector<std::vector<double>> base_, delta_;
  std::vector<std::map<std::uint32_t, PlainShard>> kept_;
};

// At random: updates, pushes, merges, reads, and shards that move or are copied.
TEST(MeshExchangeTest, AStoreIsWhatAPlainOneIs) {
  constexpr std::size_t kWorkers = 3;
  for (const bool lockstep : {false, true}) {
    for (const std::size_t count : {2u, 1000u, 70'003u}) {
      constexpr std::uint32_t kShards = 5;  // with 2 elements, 3 are empty
      Store store(kWorkers, count, kShards, lockstep);
      Prng& prng = store.prng();
      std::vector<std::size_t> owner(kShards);
      for (std::uint32_t s = 0; s < kShards; ++s) store.KeepOwn(owner[s] = s % kWorkers, s);
      for (std::size_t w = 0; w < kWorkers; ++w) store.Train(w, 1.0 / kWorkers);
      for (int i = 0; i < 150; ++i) {
        const auto s = static_cast<std::uint32_t>(prng.Below(kShards));
        const auto w = static_cast<std::size_t>(prng.Below(kWorkers));
        const std::uint64_t what = prng.Below(8);
        if (what == 0) store.Train(w, prng.Unit());
        if (what >= 1 && what <= 3) store.Push(w, owner[s], s, prng.Unit(), lockstep);
        if (what == 4 && lockstep) store.Merge(owner[s], s);
        if (what == 5 || what == 6) store.Read(w, owner[s], s, what == 6);
        if (what == 7 && w != owner[s]) {
          store.KeepOf(w, owner[s], s);
          store.Do(owner[s], ForgetShard{s});
          owner[s] = w;
        }
        if (::testing::Test::HasFailure()) return;
      }
      for (std::size_t w = 0; w < kWorkers; ++w) {
        for (std::uint32_t s = 0; s < kShards; ++s) store.Read(w, owner[s], s, false);
        EXPECT_EQ(store.Parameters(w), store.Parameters(0));
        EXPECT_EQ(store.job()[w].mesh().exchanged().held_bytes, 0u);
      }
    }
  }
}

// A difference and its addition in every dtype: exact for small numbers of few bits.
TEST(MeshExchangeTest, ShardsOfEveryDType) {
  constexpr std::uint32_t kShards = 4;
  MeshJob job(2, EveryDType(333), plans::Store(0));
  MeetAll(job);
  Ticket last = 0;
  for (std::size_t w = 0; w < 2; ++w) {
    ServeAll(job[w]);
    Fill(&job[w].parameters, [] { return 1.0; });
    job[w].store().SetBase();
    job[w].mesh().Do(MeshNow(), CutShards{kShards});
  }
  for (std::uint32_t s = 0; s < kShards; ++s) job[0].mesh().Do(MeshNow(), KeepShard{s, 0});
  double next = 0;
  Fill(&job[1].parameters, [&] { return next = next < 16 ? next + 1 : 1; });
  const std::vector<double> trained = ValuesOf(job[1].parameters);
  job[1].mesh().Do(MeshNow(), TakeDelta{0.5});
  for (std::uint32_t s = 0; s < kShards; ++s) {
    const PeerItem delta{.kind = PeerItem::Kind::kDelta, .shard = s, .epoch = 1, .stamp = 1};
    ASSERT_EQ(PullNow(job, job[0], job[1], ++last, delta), Code::kOk);
    job[0].mesh().Do(MeshNow(), AddDelta{s, last, 0.5, true});
    job[0].mesh().Do(MeshNow(), MergePending{s});
    const PeerItem shard{.kind = PeerItem::Kind::kShard, .shard = s, .epoch = 1, .stamp = 1};
    ASSERT_EQ(PullNow(job, job[1], job[0], ++last, shard), Code::kOk);
    job[1].mesh().Do(MeshNow(), ReadShard{s, last});
    job[0].mesh().Do(MeshNow(), ReadShard{s, 0});
  }
  std::vector<double> expected;
  for (const double value : trained) expected.push_back(1 + 0.25 * (value - 1));
  EXPECT_EQ(ValuesOf(job[1].parameters), expected);
  EXPECT_EQ(ValuesOf(job[0].parameters), expected);
  // What was read is what the next update starts from.
  job[1].mesh().Do(MeshNow(), TakeDelta{1});
  const PeerItem delta{.kind = PeerItem::Kind::kDelta, .shard = 0, .epoch = 1, .stamp = 2};
  ASSERT_EQ(PullNow(job, job[0], job[1], ++last, delta), Code::kOk);
  job[0].mesh().Do(MeshNow(), AddDelta{0, last, 1, false});
  job[0].mesh().Do(MeshNow(), ReadShard{0, 0});
  EXPECT_EQ(ValuesOf(job[0].parameters), expected);
}

// A step that was cut short pushes nothing, whatever its parameters have become.
TEST(MeshExchangeTest, AnUpdateOfNoShareIsNothing) {
  MeshJob job(1, EveryDType(33), plans::Store(2));
  Fill(&job[0].parameters, [] { return 2.0; });
  job[0].store().SetBase();
  job[0].mesh().Do(MeshNow(), CutShards{1});
  job[0].mesh().Do(MeshNow(), KeepShard{0, 0});
  Fill(&job[0].parameters, [] { return std::numeric_limits<double>::quiet_NaN(); });
  job[0].mesh().Do(MeshNow(), TakeDelta{0});
  job[0].mesh().Do(MeshNow(), AddDelta{0, 0, 1, false});
  job[0].mesh().Do(MeshNow(), ReadShard{0, 0});
  EXPECT_EQ(ValuesOf(job[0].parameters),
            std::vector<double>(ValuesOf(job[0].parameters).size(), 2.0));
}

// What is being sent is the shard of the moment in which it was served, and one copy of it.
TEST(MeshExchangeTest, AShardThatChangesWhileItIsSent) {
  constexpr std::size_t kCount = 400'000;
  MeshJob job(4, {{DType::kF64, kCount}}, plans::Store(-1));
  MeetAll(job);
  std::vector<Request> asked;
  for (std::size_t w = 0; w < 4; ++w) {
    job[w].store().SetBase();
    job[w].mesh().Do(MeshNow(), CutShards{1});
  }
  job[0].node->on_request = [&](Incarnation, Request request, const PeerItem&) {
    asked.push_back(request);
  };
  job[0].mesh().Do(MeshNow(), KeepShard{0, 0});
  Fill(&job[0].parameters, [] { return 1.0; });
  job[0].mesh().Do(MeshNow(), TakeDelta{1});
  const PeerItem shard{.kind = PeerItem::Kind::kShard, .shard = 0};
  const PeerItem state{.kind = PeerItem::Kind::kState, .shard = 0};
  for (std::size_t w = 1; w < 4; ++w) StartPullOf(job[w], job[0], 1, w == 3 ? state : shard);
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return asked.size() == 3; }));
  for (const Request request : asked) {
    job[0].mesh().Do(MeshNow(), Serve{request, request == asked[2] ? state : shard, {}});
    job[0].mesh().Do(MeshNow(), AddDelta{0, 0, 1, false});
  }
  std::multiset<double> values;
  for (std::size_t w = 1; w < 4; ++w) {
    ASSERT_EQ(AwaitPull(job, job[w], 1), Code::kOk);
    if (w == 3) job[w].mesh().Do(MeshNow(), KeepShard{0, 1});
    job[w].mesh().Do(MeshNow(), ReadShard{0, w == 3 ? Ticket{0} : Ticket{1}});
    const std::vector<double> row = ValuesOf(job[w].parameters);
    EXPECT_EQ(row, std::vector<double>(kCount, row[0]));
    values.insert(row[0]);
  }
  EXPECT_EQ(values, (std::multiset<double>{0, 1, 2}));
}

// The store's start: what the common start left, or a peer's replica without its own update.
TEST(MeshExchangeTest, TheFirstUpdateIsAgainstTheCommonStartOrTheAdoptedReplica) {
  MeshJob job(3, {{DType::kF64, 100}}, plans::Store(1));
  for (std::size_t w = 0; w < 3; ++w) {
    Fill(&job[w].parameters, [&] { return static_cast<double>(w) + 1; });
  }
  job.ReduceOk(GroupKind::kInitial, 0, {0, 1}, {1, 0});
  Fill(&job[0].parameters, [] { return 8.0; });
  ASSERT_TRUE(job.Fetch(2, 0).status.ok());
  EXPECT_EQ(ValuesOf(job[2].parameters), std::vector<double>(100, 1));
  MeetAll(job);
  for (std::size_t w = 0; w < 3; ++w) {
    job[w].mesh().Do(MeshNow(), CutShards{2});
    Fill(&job[w].parameters, [&] { return static_cast<double>(w) + 2; });
    job[w].mesh().Do(MeshNow(), KeepShard{1, 0});
    job[w].mesh().Do(MeshNow(), TakeDelta{1});
    job[w].mesh().Do(MeshNow(), AddDelta{1, 0, 10, false});
    job[w].mesh().Do(MeshNow(), ReadShard{1, 0});
    const double own = static_cast<double>(w) + 2;
    EXPECT_EQ(ValuesOf(job[w].parameters)[0], own);
    EXPECT_EQ(ValuesOf(job[w].parameters)[99], 1 + 10 * (own - 1)) << "without its own step";
  }
}

// ---- peers that die, lie or say nothing ----

TEST(MeshExchangeTest, PullsThatCannotBe) {
  Mesh::Options options;
  options.timeout = 60 * kSecond;  // not what ends them
  MeshJob job(3, EveryDType(1000), plans::Store(0), options);
  job[0].mesh().Do(MeshNow(), SetPeers{{job[0].node->AsMember(0), job[1].node->AsMember(0)}});
  job[1].mesh().Do(MeshNow(), SetPeers{{job[0].node->AsMember(0)}});
  for (std::size_t w = 0; w < 2; ++w) job[w].mesh().Do(MeshNow(), CutShards{2});
  const PeerItem shard{.kind = PeerItem::Kind::kShard, .shard = 1};
  const PeerItem none{.kind = PeerItem::Kind::kShard, .shard = 2};
  EXPECT_EQ(PullNow(job, job[0], job[2], 1, shard), Code::kUnavailable);  // not met
  EXPECT_EQ(PullNow(job, job[0], job[0], 2, shard), Code::kUnavailable);  // itself
  EXPECT_EQ(PullNow(job, job[0], job[1], 3, none), Code::kInvalidArgument);
  EXPECT_EQ(PullNow(job, job[0], job[1], 4, shard), Code::kNotFound);  // refused
  ServeAll(job[1]);
  EXPECT_EQ(PullNow(job, job[0], job[1], 5, shard), Code::kNotFound);  // not kept there
  job[1].mesh().Do(MeshNow(), CutShards{1});
  job[1].store().SetBase();
  job[1].mesh().Do(MeshNow(), KeepShard{0, 0});
  const PeerItem other{.kind = PeerItem::Kind::kShard, .shard = 0};
  EXPECT_EQ(PullNow(job, job[0], job[1], 6, other), Code::kDataLoss);  // of another size
  EXPECT_EQ(job[0].mesh().exchanged().held_bytes, 0u);
  job[0].mesh().Do(MeshNow(), DropPull{6});  // it is over: nothing happens
  job[0].mesh().Do(MeshNow(), DropPull{99});
  job[1].mesh().Do(MeshNow(), CutShards{2});
  job[1].mesh().Do(MeshNow(), KeepShard{1, 0});
  EXPECT_EQ(PullNow(job, job[0], job[1], 7, shard), Code::kOk);
}

TEST(MeshExchangeTest, ALostPeerFailsItsPullsAtOnceAlsoAfterAGroup) {
  Mesh::Options options;
  options.timeout = 60 * kSecond;
  MeshJob job(3, {{DType::kF32, kLarge}}, plans::kNeighbours, options);
  MeetAll(job);
  std::vector<Request> asked;
  job[1].node->on_request = [&](Incarnation, Request request, const PeerItem&) {
    asked.push_back(request);
  };
  ServeAll(job[2]);
  job[2].mesh().Do(MeshNow(), PublishUpdate{0});
  job[1].mesh().Do(MeshNow(), PublishUpdate{0});
  StartPullOf(job[0], job[1], 1, UpdateOf(0));
  StartPullOf(job[0], job[1], 2, UpdateOf(0));
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return asked.size() == 2; }));
  // Connections are let go when a group is over; not those that pulls need.
  job.ReduceOk(GroupKind::kInitial, 0, {0, 1, 2}, {0, 1, 0});
  job[1].mesh().Do(MeshNow(), Serve{asked[0], UpdateOf(0), {}});
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return job[0].mesh().exchanged().held_bytes > 0; }));
  job[1].node.reset();
  if (AwaitPull(job, job[0], 1) != Code::kOk) {  // it may have been complete
    EXPECT_EQ(job[0].node->pulled.at(1).status.code(), Code::kUnavailable);
  }
  EXPECT_EQ(AwaitPull(job, job[0], 2), Code::kUnavailable);
  EXPECT_EQ(PullNow(job, job[0], job[2], 3, UpdateOf(0)), Code::kOk);
}

TEST(MeshExchangeTest, SilenceEndsAPullAndItsAnswerIsTooLate) {
  Mesh::Options options;
  options.timeout = 20 * kMillisecond;
  MeshJob job(2, EveryDType(1000), plans::kNeighbours, options);
  MeetAll(job);
  std::vector<Request> asked;
  job[1].node->on_request = [&](Incarnation, Request request, const PeerItem&) {
    asked.push_back(request);
  };
  job[1].mesh().Do(MeshNow(), PublishUpdate{0});
  StartPullOf(job[0], job[1], 1, UpdateOf(0));
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return asked.size() == 1; }));
  // From now on the source says nothing.
  ASSERT_TRUE(RunUntil({job[0].node.get()}, [&] { return job[0].node->pulled.contains(1); }));
  EXPECT_EQ(job[0].node->pulled.at(1).status.code(), Code::kDeadlineExceeded);
  const PeerMessage note{.parcel = UpdateOf(0)};
  job[0].mesh().Do(MeshNow(), SendNote{IdOf(job[1]), note});
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return !job[1].node->notes.empty(); }));
  // Before the note it heard that the pull is over.
  job[1].mesh().Do(MeshNow(), Serve{asked[0], UpdateOf(0), {}});
  job[1].mesh().Do(MeshNow(), Refuse{asked[0]});
  EXPECT_EQ(job[1].mesh().exchanged().sent_bytes, 0u);
}

TEST(MeshExchangeTest, WhoIsNotMetAnyMoreGetsAndGivesNothing) {
  Mesh::Options options;
  options.timeout = 60 * kSecond;
  MeshJob job(2, EveryDType(1000), plans::kNeighbours, options);
  MeetAll(job);
  std::vector<Request> asked;
  for (std::size_t w = 0; w < 2; ++w) {
    job[w].node->on_request = [&](Incarnation, Request request, const PeerItem&) {
      asked.push_back(request);
    };
    job[w].mesh().Do(MeshNow(), PublishUpdate{0});
    StartPullOf(job[w], job[1 - w], 1, UpdateOf(0));
  }
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return asked.size() == 2; }));
  job[0].mesh().Do(MeshNow(), SetPeers{});
  EXPECT_EQ(AwaitPull(job, job[0], 1), Code::kUnavailable);
  EXPECT_EQ(AwaitPull(job, job[1], 1), Code::kNotFound);
  job[0].mesh().Do(MeshNow(), SendNote{IdOf(job[1]), {.parcel = UpdateOf(0)}});
  MeetAll(job);
  job[0].mesh().Do(MeshNow(), SendNote{IdOf(job[1]), {.parcel = UpdateOf(1)}});
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return !job[1].node->notes.empty(); }));
  EXPECT_EQ(job[1].node->notes[0].second.parcel, UpdateOf(1));
}

TEST(MeshExchangeTest, ANewIncarnationAndANewRunStartFromNothing) {
  MeshJob job(2, {{DType::kF32, kLarge}}, plans::kNeighbours);
  MeetAll(job);
  ServeAll(job[0]);
  ServeAll(job[1]);
  job[1].mesh().Do(MeshNow(), PublishUpdate{0});
  StartPullOf(job[0], job[1], 1, UpdateOf(0));
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return job[0].mesh().exchanged().held_bytes > 0; }));
  job[0].mesh().SetIncarnation(4711);
  EXPECT_EQ(job[0].mesh().exchanged().held_bytes, 0u);
  job[0].mesh().JoinRun(1, plans::kNeighbours);
  GroupMember again = job[0].node->AsMember(0);
  again.incarnation = 4711;
  job[0].mesh().Do(MeshNow(), SetPeers{{job[1].node->AsMember(0)}});
  job[1].mesh().Announce(MeshNow(), {again});
  job[1].mesh().Do(MeshNow(), SetPeers{{again}});
  EXPECT_EQ(PullNow(job, job[0], job[1], 1, UpdateOf(0)), Code::kOk);
  // Its update is of that run.
  job[1].mesh().JoinRun(2, plans::kNeighbours);
  job[0].mesh().JoinRun(2, plans::kNeighbours);
  job[0].mesh().Do(MeshNow(), SetPeers{{job[1].node->AsMember(0)}});
  job[1].mesh().Do(MeshNow(), SetPeers{{again}});
  EXPECT_EQ(PullNow(job, job[0], job[1], 2, UpdateOf(0)), Code::kNotFound);
}

// A peer that is met and sends what it likes.
class Liar {
 public:
  explicit Liar(MeshWorker& to)
      : to_(IdOf(to)), worker_(to.node.get(), kId, 900, {deaf_.endpoint()}) {}
  GroupMember AsMember() {
    GroupMember member = worker_.AsMember();
    member.host = "elsewhere";
    return member;
  }
  void Send(FrameHeader header, const std::string& payload) {
    if (header.run == kNoRun) header.run = 1;
    header.from = kId;
    header.to = to_;
    header.length = payload.size();
    worker_.Send(header, payload);
  }
  void Describe(Ticket ticket, const ParcelInfo& info) {
    const std::vector<std::byte> bytes = EncodeParcelInfo(info);
    Send({.kind = FrameKind::kParcel, .group = ticket},
         {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  void Part(Ticket ticket, std::size_t offset, std::size_t length) {
    Send({.kind = FrameKind::kPart, .group = ticket, .offset = offset}, std::string(length, '\0'));
  }

  static constexpr Incarnation kId = 77;

 private:
  Incarnation to_;
  testing::DeafEnd deaf_;
  testing::PlayedWorker worker_;
};

TEST(MeshExchangeTest, WhatDoesNotFitFailsThePullThatItIsFor) {
  constexpr std::size_t kBytes = 4000;
  MeshJob job(1, {{DType::kF32, kBytes / 4}}, plans::kNeighbours);
  Liar liar(job[0]);
  job[0].mesh().Do(MeshNow(), SetPeers{{liar.AsMember()}});
  Ticket last = 0;
  const auto expect = [&](Code code, const std::function<void(Ticket)>& lie) {
    const Ticket ticket = ++last;
    job[0].mesh().Do(MeshNow(), StartPull{ticket, Liar::kId, UpdateOf(0)});
    lie(ticket);
    EXPECT_EQ(AwaitPull(job, job[0], ticket), code) << ticket;
    if (code == Code::kOk) job[0].mesh().Do(MeshNow(), DropPull{ticket});
    EXPECT_EQ(job[0].mesh().exchanged().held_bytes, 0u);
  };
  const ParcelInfo right{.bytes = kBytes, .enclosure = {}};
  expect(Code::kOk, [&](Ticket t) {
    liar.Describe(t, right);
    liar.Part(t, 0, 1);  // cut anywhere
    liar.Part(t, 1, kBytes - 1);
    liar.Part(t, kBytes, 1);  // comes too late to matter
  });
  expect(Code::kDataLoss, [&](Ticket t) { liar.Part(t, 0, 8); });
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{kBytes - 4},
                                    std::uint64_t{kBytes + 4}, ~std::uint64_t{0}}) {
    expect(Code::kDataLoss, [&](Ticket t) { liar.Describe(t, {.bytes = bytes, .enclosure = {}}); });
  }
  expect(Code::kDataLoss, [&](Ticket t) {
    liar.Describe(t, right);
    liar.Describe(t, right);
  });
  for (const auto& [offset, length] :
       std::vector<std::pair<std::size_t, std::size_t>>{{4, 8}, {0, kBytes + 1}, {0, 0}}) {
    expect(Code::kDataLoss, [&, offset = offset, length = length](Ticket t) {
      liar.Describe(t, right);
      liar.Part(t, offset, length);
    });
  }
  expect(Code::kDataLoss, [&](Ticket t) {
    liar.Describe(t, right);
    liar.Part(t, 0, 8);
    liar.Part(t, 0, 8);
  });
  using Clocks = std::vector<ShardHeader::Clock>;
  const std::vector<ShardHeader> wrong = {
      {.version = -2, .readable = 0, .clocks = {}},
      {.version = 0, .readable = kMaxExchangeNumber + 1, .clocks = {}},
      {.version = 0, .readable = 0, .clocks = {{2, 0}, {1, 0}}},
      {.version = 0, .readable = 0, .clocks = {{1, 0}, {1, 0}}},
      {.version = 0, .readable = 0, .clocks = {{1, std::numeric_limits<std::int64_t>::min()}}},
      {.version = 0, .readable = 0, .clocks = Clocks(kMaxClocks + 1)}};
  for (const ShardHeader& enclosure : wrong) {
    expect(Code::kDataLoss,
           [&](Ticket t) { liar.Describe(t, {.bytes = kBytes, .enclosure = enclosure}); });
  }
  expect(Code::kDataLoss, [&](Ticket t) {
    liar.Send({.kind = FrameKind::kParcel, .group = t}, std::string(25, 'x'));
  });
  expect(Code::kNotFound,
         [&](Ticket t) { liar.Send({.kind = FrameKind::kRefused, .group = t}, {}); });
}

TEST(MeshExchangeTest, NoiseHarmsNobody) {
  Prng prng(23);
  MeshJob job(2, EveryDType(50'000), plans::Store(0));
  Liar liar(job[0]);
  SetPeers meet{{liar.AsMember(), job[0].node->AsMember(0), job[1].node->AsMember(0)}};
  for (std::size_t w = 0; w < 2; ++w) {
    ServeAll(job[w]);
    job[w].mesh().Do(MeshNow(), meet);
    job[w].mesh().Do(MeshNow(), CutShards{3});
    job[w].store().SetBase();
    for (std::uint32_t s = 0; s < 3; ++s) job[w].mesh().Do(MeshNow(), KeepShard{s, 0});
  }
  const std::vector<double> before = ValuesOf(job[0].parameters);
  Ticket last = 0;
  std::set<Ticket> open;
  const auto counted = [&] {
    return job[0].mesh().counters().received + job[0].mesh().counters().dropped;
  };
  constexpr std::uint64_t kFrames = 4000;
  const std::uint64_t start = counted();
  for (std::uint64_t i = 0; i < kFrames; ++i) {
    if (i % 40 == 0) {
      open.insert(++last);
      const PeerItem parcel{.kind = PeerItem::Kind::kState, .shard = last % 3 == 0 ? 0u : 1u};
      job[0].mesh().Do(MeshNow(), StartPull{last, Liar::kId, parcel});
    }
    FrameHeader header{.kind = static_cast<FrameKind>(
                           static_cast<std::uint64_t>(FrameKind::kNote) +
                           prng.Below(static_cast<std::uint64_t>(FrameKind::kStop) -
                                      static_cast<std::uint64_t>(FrameKind::kNote) + 1)),
                       .group = last == 0 ? 0 : last - prng.Below(2),
                       .offset = prng.Below(3) == 0 ? prng.Below(100) : 0};
    std::string payload;
    switch (prng.Below(4)) {
      case 0:
        payload.resize(prng.Below(200));
        for (char& c : payload) c = static_cast<char>(prng.Below(256));
        break;
      case 1: {
        const PeerItem parcel{.kind = static_cast<PeerItem::Kind>(prng.Below(4)),
                              .shard = static_cast<std::uint32_t>(prng.Below(5)),
                              .stamp = static_cast<std::int64_t>(prng.Below(3))};
        const std::vector<std::byte> bytes = EncodeParcel(parcel);
        payload.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        header.group = i;
        break;
      }
      case 2: {
        const std::vector<std::byte> bytes = EncodeNote({});
        payload.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        break;
      }
      default: {
        const std::size_t bytes = job[0].store().parameters.bytes();
        const ParcelInfo info{.bytes = 2 * ShardRange(bytes, 3, 1).length, .enclosure = {}};
        const std::vector<std::byte> encoded = EncodeParcelInfo(info);
        payload.assign(reinterpret_cast<const char*>(encoded.data()), encoded.size());
        break;
      }
    }
    liar.Send(header, payload);
    if (i % 100 == 0) {
      ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return counted() - start >= i; }));
    }
  }
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return counted() - start >= kFrames; }));
  for (const Ticket ticket : open) job[0].mesh().Do(MeshNow(), DropPull{ticket});
  EXPECT_EQ(job[0].mesh().exchanged().held_bytes, 0u);
  EXPECT_EQ(ValuesOf(job[0].parameters), before);
  const PeerItem state{.kind = PeerItem::Kind::kState, .shard = 2};
  EXPECT_EQ(PullNow(job, job[0], job[1], ++last, state), Code::kOk);
  EXPECT_EQ(PullNow(job, job[1], job[0], ++last, state), Code::kOk);
}

// What a peer asks for beyond all use is refused; what is open is served.
TEST(MeshExchangeTest, RequestsAreBounded) {
  MeshJob job(2, EveryDType(10), plans::kNeighbours);
  MeetAll(job);
  std::vector<Request> asked;
  job[1].node->on_request = [&](Incarnation, Request request, const PeerItem&) {
    asked.push_back(request);
  };
  job[1].mesh().Do(MeshNow(), PublishUpdate{0});
  constexpr Ticket kTickets = Exchange::kMaxRequests + 10;
  for (Ticket t = 1; t <= kTickets; ++t) StartPullOf(job[0], job[1], t, UpdateOf(0));
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return job[0].node->pulled.size() == 10; }));
  ASSERT_EQ(asked.size(), Exchange::kMaxRequests);
  for (const auto& [ticket, pulled] : job[0].node->pulled) {
    EXPECT_EQ(pulled.status.code(), Code::kNotFound);
  }
  for (const Request request : asked) job[1].mesh().Do(MeshNow(), Serve{request, UpdateOf(0), {}});
  ASSERT_TRUE(RunUntil(job.Nodes(), [&] { return job[0].node->pulled.size() == kTickets; }));
  const std::size_t model = job[0].store().parameters.bytes();
  EXPECT_EQ(job[0].mesh().exchanged().held_bytes, Exchange::kMaxRequests * model);
}

}  // namespace
}  // namespace prd::mesh_exchange_test
