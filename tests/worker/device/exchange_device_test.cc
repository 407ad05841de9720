// Hop's updates and ssp's shards with replicas on devices against the same on hosts, bit for bit:
// what goes between workers goes through host memory, in pieces, and the arithmetic is the same. On
// a stand-in for CUDA, which proves nothing about GPUs.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "common/base/prng.h"
#include "tests/plans.h"
#include "tests/worker/mesh_devices.h"

namespace prd::testing {
namespace {

constexpr std::size_t kWorkers = 3;
constexpr std::uint32_t kShards = 5;

// The same workers twice; what one is told, the other is, too.
class Jobs {
 public:
  Jobs(const std::vector<bool>& on_device, const Shapes& shapes, const Plan& plan,
       std::uint64_t seed)
      : prng_(seed),
        hosts_(std::vector<bool>(kWorkers, false), shapes, plan, seed),
        devices_(on_device, shapes, plan, seed) {
    for (PlacedJob* job : {&hosts_, &devices_}) {
      SetPeers meet;
      for (std::size_t i = 0; i < kWorkers; ++i) {
        Mesh* mesh = &(*job)[i].mesh();
        meet.peers.push_back((*job)[i].node->AsMember(0));
        (*job)[i].node->on_request = [mesh](Incarnation, Request request, const PeerItem& parcel) {
          mesh->Do(MeshNow(), Serve{request, parcel, {}});
        };
      }
      for (std::size_t i = 0; i < kWorkers; ++i) (*job)[i].mesh().Do(MeshNow(), meet);
    }
    for (std::size_t i = 0; i < kWorkers; ++i) Randomise(i);
  }

  // The training loop writes the parameters.
  void Randomise(std::size_t worker) {
    const std::uint64_t seed = prng_.Next();
    for (PlacedJob* job : {&hosts_, &devices_}) {
      Prng values(seed);
      PlacedWorker& placed = (*job)[worker];
      Fill(&placed.parameters, [&] { return values.Unit() * 2 - 1; });
      placed.Write(&placed.parameters);
    }
  }
  template <typename Action>
  void Do(std::size_t worker, const Action& action) {
    for (PlacedJob* job : {&hosts_, &devices_}) (*job)[worker].mesh().Do(MeshNow(), action);
  }
  void SetBase(std::size_t worker) {
    for (PlacedJob* job : {&hosts_, &devices_}) (*job)[worker].store().SetBase();
  }
  // Told, and not waited for.
  Ticket Pull(std::size_t taker, std::size_t source, const PeerItem& parcel) {
    ++last_;
    for (PlacedJob* job : {&hosts_, &devices_}) {
      const Incarnation from = (*job)[source].node->AsMember(0).incarnation;
      (*job)[taker].mesh().Do(MeshNow(), StartPull{last_, from, parcel});
    }
    open_.emplace_back(taker, last_);
    return last_;
  }
  void AwaitPulls() {
    for (PlacedJob* job : {&hosts_, &devices_}) {
      const auto there = [&](const std::pair<std::size_t, Ticket>& pull) {
        return (*job)[pull.first].node->pulled.contains(pull.second);
      };
      ASSERT_TRUE(job->RunUntil([&] { return std::all_of(open_.begin(), open_.end(), there); }));
      for (const auto& [taker, ticket] : open_) {
        const Status& status = (*job)[taker].node->pulled.at(ticket).status;
        ASSERT_TRUE(status.ok()) << status.ToString();
      }
    }
    open_.clear();
  }
  void ExpectSame() {
    for (std::size_t i = 0; i < kWorkers; ++i) {
      ASSERT_EQ(hosts_[i].Read(&hosts_[i].parameters), devices_[i].Read(&devices_[i].parameters))
          << "worker " << i;
      ASSERT_EQ(devices_[i].store().memory->failure(), Status::Ok());
    }
  }
  Prng& prng() { return prng_; }

 private:
  Prng prng_;
  PlacedJob hosts_, devices_;
  Ticket last_ = 0;
  std::vector<std::pair<std::size_t, Ticket>> open_;
};

PeerItem UpdateOf(Iteration iteration) {
  return {.kind = PeerItem::Kind::kUpdate, .stamp = iteration};
}

PeerItem OfShard(PeerItem::Kind kind, std::uint32_t shard) {
  return {.kind = kind, .shard = shard, .epoch = 1, .stamp = 2};
}

class ExchangeDeviceTest : public ::testing::TestWithParam<std::vector<bool>> {};

INSTANTIATE_TEST_SUITE_P(Places, ExchangeDeviceTest,
                         ::testing::Values(std::vector<bool>{true, true, true},
                                           std::vector<bool>{true, false, true}));

TEST_P(ExchangeDeviceTest, NeighboursMixWhatTheyWouldOnHosts) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    Jobs jobs(GetParam(), EveryDType(5'003), plans::kNeighbours, seed);
    for (Iteration k = 0; k < 6; ++k) {
      for (std::size_t w = 0; w < kWorkers; ++w) {
        jobs.Do(w, PublishUpdate{k});
        jobs.Do(w, RetireUpdate{k - 2});
      }
      std::vector<MixUpdates> mixes;
      for (std::size_t w = 0; w < kWorkers; ++w) {
        const Ticket left = jobs.Pull(w, (w + 1) % kWorkers, UpdateOf(k));
        // Under staleness, one that is older.
        const Ticket right = jobs.Pull(w, (w + 2) % kWorkers, UpdateOf(k == 0 ? k : k - 1));
        mixes.push_back({0.5, {{left, 0.3}, {right, 0.2}}});
      }
      jobs.AwaitPulls();
      for (std::size_t w = 0; w < kWorkers; ++w) jobs.Do(w, mixes[w]);
      if (k % 2 == 1) jobs.ExpectSame();
      if (HasFatalFailure()) return;
      if (k % 3 == 0) jobs.Randomise(static_cast<std::size_t>(jobs.prng().Below(kWorkers)));
    }
  }
}

// At random: updates, pushes, merges, reads, and shards that move.
class Shared {
 public:
  Shared(Jobs* jobs, bool lockstep) : jobs_(*jobs), lockstep_(lockstep), owner_(kShards) {
    for (std::size_t w = 0; w < kWorkers; ++w) {
      jobs_.SetBase(w);
      jobs_.Do(w, CutShards{kShards});
    }
    for (std::uint32_t s = 0; s < kShards; ++s) jobs_.Do(owner_[s] = s % kWorkers, KeepShard{s, 0});
    for (std::size_t w = 0; w < kWorkers; ++w) Train(w, 0.25);
  }

  void Step() {
    Prng& prng = jobs_.prng();
    const auto s = static_cast<std::uint32_t>(prng.Below(kShards));
    const auto w = static_cast<std::size_t>(prng.Below(kWorkers));
    const std::uint64_t what = prng.Below(7);
    switch (what) {
      case 0:
        return Train(w, prng.Unit());
      case 1:
      case 2:
        return jobs_.Do(owner_[s], AddDelta{s, Get(owner_[s], w, PeerItem::Kind::kDelta, s),
                                            prng.Unit(), lockstep_});
      case 3:
        if (lockstep_) jobs_.Do(owner_[s], MergePending{s});
        return;
      case 4:
      case 5:
        return jobs_.Do(w, ReadShard{s, Get(w, owner_[s], PeerItem::Kind::kShard, s), what == 5});
      default:
        return Move(w, s);
    }
  }

 private:
  void Train(std::size_t w, double share) {
    jobs_.Randomise(w);
    jobs_.Do(w, TakeDelta{share});
  }
  Ticket Get(std::size_t taker, std::size_t source, PeerItem::Kind kind, std::uint32_t shard) {
    if (taker == source) return 0;
    const Ticket ticket = jobs_.Pull(taker, source, OfShard(kind, shard));
    jobs_.AwaitPulls();
    return ticket;
  }
  void Move(std::size_t w, std::uint32_t s) {
    if (w == owner_[s]) return;
    jobs_.Do(w, KeepShard{s, Get(w, owner_[s], PeerItem::Kind::kState, s)});
    jobs_.Do(owner_[s], ForgetShard{s});
    owner_[s] = w;
  }

  Jobs& jobs_;
  bool lockstep_;
  std::vector<std::size_t> owner_;
};

TEST_P(ExchangeDeviceTest, AStoreIsWhatItWouldBeOnHosts) {
  for (const bool lockstep : {false, true}) {
    Jobs jobs(GetParam(), EveryDType(3'001), plans::Store(lockstep ? 0 : 2), lockstep ? 5 : 6);
    Shared shared(&jobs, lockstep);
    for (int i = 0; i < 120; ++i) {
      shared.Step();
      if (i % 20 == 19) jobs.ExpectSame();
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace prd::testing
