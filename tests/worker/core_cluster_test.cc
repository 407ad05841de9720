// Several session cores and the real pump in virtual time, on a network that loses, doubles and
// reorders, with reductions that fail, controllers that restart and leases that run out. Nobody may
// break the protocol, and once the faults stop everybody must finish. Every seed runs twice, to the
// same history.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "tests/sim/mutant_hunt.h"
#include "tests/worker/virtual_pump.h"

namespace prd {
namespace {

struct Faults {
  double loss = 0;
  double duplicate = 0;
  double reduce_fails = 0;
  double restart = 0;  // of the controller, per 100 ms
  double mute = 0;     // of a worker for longer than its lease, per 100 ms
};

class Cluster : public VirtualPump {
 public:
  Cluster(std::uint64_t seed, int workers, EngineOptions engine, Faults faults,
          sim::Mutation mutation = sim::Mutation::kNone)
      : VirtualPump(seed, std::move(engine), workers, {faults.loss, faults.duplicate, 5 * kSecond},
                    mutation),
        faults_(faults) {
    for (int i = 0; i < workers; ++i) {
      workers_.push_back(std::make_unique<Worker>());
      workers_.back()->rank = i;
      At(static_cast<DurationNs>(random_.Below(300)) * kMillisecond, [this, i] { Attach(i); });
    }
    At(0, [this] { Tick(); });
  }

  // False: somebody was not done after ten virtual minutes.
  bool Run() {
    return RunUntil([this] { return done_ == workers_.size(); });
  }

  std::string stuck() const {
    std::string text;
    for (const auto& worker : workers_) {
      if (worker->done) continue;
      text += std::to_string(worker->rank) + ": " + worker->status.ToString();
      text += Explain(worker->rank);
    }
    return text;
  }
  int restarts() const { return restarts_; }
  std::vector<Status> statuses() const {
    std::vector<Status> all;
    for (const auto& worker : workers_) all.push_back(worker->status);
    return all;
  }

 private:
  struct Worker {
    Rank rank = 0;
    SessionCore core;
    int steps = 0;
    bool finishing = false;
    bool done = false;
    Status status;
    std::uint64_t reducing = 0;  // names the reduction or fetch under way; 0 none
    Iteration gain = 0;          // of the reduction under way
    // The inbox, what it adds to the replica's count, and the round that others can fetch here.
    std::int64_t inbox_rounds = 0;
    Iteration inbox_gain = 0;
    Iteration inbox_round = 0;
    GroupId result = kNoGroup;
    Instant muted_until;
    std::optional<Instant> timer;
  };
  struct Reduction {
    std::size_t members = 0;
    std::vector<std::pair<int, std::uint64_t>> started;
  };

  // ---- the controller ----

  void Arrives(const ControllerEnvelope& envelope) override {
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i]->core.incarnation() != envelope.incarnation) continue;
      Actions actions;
      workers_[i]->core.OnEnvelope(now_, envelope, &actions);
      Perform(static_cast<int>(i), std::move(actions));
    }
  }
  void Tick() {
    if (Chance(faults_.restart / 10)) {
      ++restarts_;
      RestartController();
    }
    if (Chance(faults_.mute / 10)) {
      workers_[random_.Below(workers_.size())]->muted_until = now_ + 2500 * kMillisecond;
    }
    TickController();
    At(10 * kMillisecond, [this] { Tick(); });
  }

  // ---- a worker ----

  void Attach(int i) {
    Worker& worker = *workers_[static_cast<std::size_t>(i)];
    worker.core.GiveIncarnation(++incarnations_);
    Actions actions;
    worker.core.Attach(now_, OptionsOf(i), &actions);
    Perform(i, std::move(actions));
  }

  void NextCall(int i) {
    Worker& worker = *workers_[static_cast<std::size_t>(i)];
    Actions actions;
    if (worker.steps++ < kSteps) {
      std::int64_t taken = 0;
      const Iteration iteration = AddInbox(&worker, &taken) + 1;
      worker.core.Step(now_, {.iteration = iteration, .step_ns = kMillisecond}, false, taken,
                       &actions);
    } else {
      worker.finishing = true;
      worker.core.Finish(now_, &actions);
    }
    Perform(i, std::move(actions));
  }

  // Where averages wait to be added to the parameters: adds them. Returns the replica's count.
  static Iteration AddInbox(Worker* worker, std::int64_t* taken) {
    if (!AveragesInBackground(worker->core.welcome().plan)) return worker->core.iteration();
    *taken = std::exchange(worker->inbox_rounds, 0);
    return worker->core.iteration() + std::exchange(worker->inbox_gain, 0);
  }

  void Perform(int i, Actions actions) {
    Worker& worker = *workers_[static_cast<std::size_t>(i)];
    for (const Action& action : actions) {
      if (const auto* send = std::get_if<SendToController>(&action)) {
        if (now_ >= worker.muted_until) ToController(send->envelope);
      } else if (const auto* reduce = std::get_if<StartReduce>(&action)) {
        Reduce(i, *reduce);
      } else if (std::holds_alternative<CancelReduce>(action) ||
                 std::holds_alternative<CancelFetch>(action) ||
                 std::holds_alternative<BecomeIncarnation>(action)) {
        worker.reducing = 0;
        if (std::holds_alternative<BecomeIncarnation>(action)) {
          worker.inbox_rounds = 0;
          worker.inbox_gain = 0;
          worker.result = kNoGroup;
        }
      } else if (const auto* fetch = std::get_if<StartFetch>(&action)) {
        Fetch(i, *fetch);
      } else if (const auto* apply = std::get_if<ApplyNow>(&action)) {
        At(kMillisecond, [this, i, iteration = apply->iteration] { Apply(i, iteration); });
      } else if (const auto* call = std::get_if<CallDone>(&action)) {
        worker.status = call->status;
        if (worker.finishing || !call->status.ok()) {
          worker.done = true;
          ++done_;
        } else {
          At(static_cast<DurationNs>(random_.Below(30)) * kMillisecond, [this, i] { NextCall(i); });
        }
      }
    }
    if (worker.core.wants_incarnation()) worker.core.GiveIncarnation(++incarnations_);
    const auto deadline = worker.core.NextDeadline();
    if (!deadline || (worker.timer && *worker.timer <= *deadline && *worker.timer > now_)) return;
    worker.timer = std::max(*deadline, now_ + 1);
    At(*worker.timer - now_, [this, i] {
      Actions more;
      workers_[static_cast<std::size_t>(i)]->core.OnTime(now_, &more);
      Perform(i, std::move(more));
    });
  }

  void Apply(int i, Iteration iteration) {
    Worker& worker = *workers_[static_cast<std::size_t>(i)];
    std::int64_t rounds = 1;
    if (TrainsInRounds(worker.core.welcome().plan)) {
      rounds = std::exchange(worker.inbox_rounds, 0);
      iteration = rounds > 0 ? worker.inbox_round : worker.core.iteration();
    } else if (AveragesInBackground(worker.core.welcome().plan)) {
      iteration = AddInbox(&worker, &rounds);
    }
    Actions more;
    worker.core.Applied(now_, iteration, rounds, &more);
    Perform(i, std::move(more));
  }

  // The result of a group is here.
  static void Commit(Worker* worker, GroupKind kind, GroupId id, Iteration iteration,
                     Iteration gain = 0) {
    if (kind == GroupKind::kTrain && AveragesInBackground(worker->core.welcome().plan)) {
      ++worker->inbox_rounds;
      worker->inbox_gain += gain;
    } else if (kind == GroupKind::kRound) {
      ++worker->inbox_rounds;
      worker->inbox_round = iteration;
      worker->result = id;
    } else if (kind != GroupKind::kTrain) {
      worker->result = kNoGroup;
    }
  }

  // Ends once every member has begun, or after a time limit.
  void Reduce(int i, const StartReduce& start) {
    const Group& group = start.group;
    Worker& worker = *workers_[static_cast<std::size_t>(i)];
    const std::uint64_t token = worker.reducing = ++tokens_;
    worker.result = kNoGroup;
    worker.gain = start.gain;
    const auto end = [this, id = group.id, kind = group.kind, at = group.iteration](
                         int member, std::uint64_t its, Status status) {
      Worker& w = *workers_[static_cast<std::size_t>(member)];
      if (w.reducing != its) return;
      w.reducing = 0;
      if (status.ok()) Commit(&w, kind, id, at, w.gain);
      Actions actions;
      w.core.OnReduced(now_, id, status, 0, &actions);
      Perform(member, std::move(actions));
    };
    std::set<Incarnation> members;
    for (const GroupMember& member : group.members) members.insert(member.incarnation);
    Reduction& reduction = reductions_[{*members.begin(), group.id}];
    reduction.members = group.members.size();
    reduction.started.emplace_back(i, token);
    At(kSecond, [=] { end(i, token, Status(Code::kDeadlineExceeded, "too long")); });
    if (reduction.started.size() < reduction.members) return;
    for (const auto& [member, its] : reduction.started) {
      const bool fails = Chance(faults_.reduce_fails);
      const int m = member;
      const std::uint64_t t = its;
      At(Delay(), [=] { end(m, t, fails ? Status(Code::kUnavailable, "fault") : Status::Ok()); });
    }
  }

  void Fetch(int i, const StartFetch& fetch) {
    Worker& worker = *workers_[static_cast<std::size_t>(i)];
    const std::uint64_t token = worker.reducing = ++tokens_;
    const bool fails = Chance(faults_.reduce_fails);
    At(5 * Delay(), [this, i, token, fails, fetch] {
      Worker& w = *workers_[static_cast<std::size_t>(i)];
      if (w.reducing != token) return;
      w.reducing = 0;
      const Worker* source = nullptr;
      for (const auto& peer : workers_) {
        if (peer->core.incarnation() == fetch.source.incarnation) source = peer.get();
      }
      const bool gone = source == nullptr || fails;
      const bool ok = !gone && (fetch.result == kNoGroup || source->result == fetch.result);
      Iteration iteration = 0;
      if (ok && fetch.result != kNoGroup) {
        iteration = source->inbox_round;
        Commit(&w, GroupKind::kRound, fetch.result, iteration);
      } else if (ok) {
        const bool rounds = TrainsInRounds(w.core.welcome().plan);
        w.inbox_rounds = rounds ? source->inbox_rounds : 0;
        w.inbox_gain = 0;
        w.inbox_round = source->inbox_round;
        iteration = w.inbox_rounds > 0 ? w.inbox_round : source->core.iteration();
      }
      Actions actions;
      w.core.OnFetched(now_, ok ? Status::Ok() : Status(Code::kUnavailable, "fault"), iteration,
                       &actions);
      Perform(i, std::move(actions));
    });
  }

  static constexpr int kSteps = 25;

  Faults faults_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::map<std::pair<Incarnation, GroupId>, Reduction> reductions_;  // by the lowest member
  Incarnation incarnations_ = 0;
  std::uint64_t tokens_ = 0;
  std::size_t done_ = 0;
  int restarts_ = 0;
};

struct Setting {
  const char* name;
  EngineOptions engine;
  Faults faults;
};

PReduceOptions ThreeOfThem() {
  PReduceOptions options;
  options.group_size = 3;
  return options;
}

EagerOptions Synced() {
  EagerOptions options;
  options.sync_every = 7;
  return options;
}

EsyncOptions Esync(EsyncOptions::Mode mode) {
  EsyncOptions options;
  options.mode = mode;
  return options;
}

PReduceOptions OverlappedThreeOfThem() {
  PReduceOptions options = ThreeOfThem();
  options.overlap = true;
  return options;
}

PragueOptions Prague(PragueOptions::Generator generator, bool overlap) {
  PragueOptions options;
  options.generator = generator;
  options.workers_per_host = 3;
  options.overlap = overlap;
  return options;
}

AdPsgdOptions Overlapped() {
  AdPsgdOptions options;
  options.overlap = true;
  options.section_length = 2;
  return options;
}

std::vector<EngineOptions> Engines() {
  using enum PragueOptions::Generator;
  return {AllReduceOptions{},
          ThreeOfThem(),
          OverlappedThreeOfThem(),
          Synced(),
          BackupOptions{},
          Esync(EsyncOptions::Mode::kBlocking),
          Esync(EsyncOptions::Mode::kDelayedAck),
          Prague(kRandom, false),
          Prague(kStatic, false),
          Prague(kSmart, false),
          Prague(kRandom, true),
          Prague(kStatic, true),
          Prague(kSmart, true),
          AdPsgdOptions{},
          Overlapped()};
}

std::vector<Setting> Settings() {
  std::vector<Setting> settings;
  for (const EngineOptions& engine : Engines()) {
    settings.push_back({"calm", engine, {}});
    settings.push_back({"lossy", engine, {.loss = 0.1, .duplicate = 0.1}});
    settings.push_back({"failing reductions", engine, {.reduce_fails = 0.1}});
    settings.push_back({"restarts", engine, {.loss = 0.02, .restart = 0.3}});
    settings.push_back({"lost leases", engine, {.mute = 0.1}});
    settings.push_back(
        {"all at once",
         engine,
         {.loss = 0.05, .duplicate = 0.05, .reduce_fails = 0.05, .restart = 0.1, .mute = 0.05}});
  }
  return settings;
}

TEST(CoreClusterTest, EverybodyFinishesAndNobodyBreaksTheProtocol) {
  std::uint64_t restarts = 0;
  std::uint64_t lost = 0;
  std::uint64_t late = 0;
  for (const Setting& setting : Settings()) {
    for (std::uint64_t seed = 1; seed <= 25; ++seed) {
      SCOPED_TRACE(std::string(setting.name) + ", " + std::string(EngineName(setting.engine)) +
                   ", seed " + std::to_string(seed));
      Cluster cluster(seed, 5, setting.engine, setting.faults);
      ASSERT_TRUE(cluster.Run()) << cluster.stuck();
      for (const Status& status : cluster.statuses()) {
        // Who was lost when all others finished has no job to come back to.
        const bool too_late = setting.faults.mute > 0 && status.code() == Code::kUnavailable &&
                              status.message().find("ended without") != std::string::npos;
        ASSERT_TRUE(status.ok() || too_late) << status.ToString();
        if (too_late) ++late;
      }
      for (const Record& record : cluster.records()) {
        lost += std::holds_alternative<LeaseExpired>(record.body) ? 1 : 0;
        const auto* left = std::get_if<WorkerLeft>(&record.body);
        ASSERT_FALSE(left != nullptr && left->why == LeftReason::kEvicted) << left->reason;
      }
      restarts += static_cast<std::uint64_t>(cluster.restarts());
      if (seed % 5 == 0) {
        Cluster again(seed, 5, setting.engine, setting.faults);
        ASSERT_TRUE(again.Run());
        ASSERT_EQ(again.HistoryHash(), cluster.HistoryHash());
      }
    }
  }
  EXPECT_GT(restarts, 50u);
  EXPECT_GT(lost, 50u);
  EXPECT_LT(late, lost / 2);
}

// Lines of tests/sim/mutants.md.
TEST(CoreClusterTest, DISABLED_MutantTable) {
  const auto settings_of = [](const sim::Mutant& mutant) {
    std::vector<Setting> settings = Settings();
    if (mutant.engine) {
      std::erase_if(settings, [&](const Setting& setting) {
        return EngineName(setting.engine) != EngineName(*mutant.engine);
      });
    }
    return settings;
  };
  std::vector<sim::Mutant> mutants = sim::AllMutants();
  std::erase_if(mutants, [&](const sim::Mutant& of) {
    return settings_of(of).empty() || (of.engine && !sim::ChangesDecisions(of.mutation) &&
                                       of.mutation != sim::Mutation::kRunsTooFar &&
                                       of.mutation != sim::Mutation::kScheduleTwisted);
  });
  sim::Hunt("core_cluster", mutants, 500, [&](const sim::Mutant& mutant, std::uint64_t seed) {
    const std::vector<Setting> settings = settings_of(mutant);
    const Setting& setting = settings[seed % settings.size()];
    Cluster cluster(seed, 5, setting.engine, setting.faults, mutant.mutation);
    if (!cluster.Run()) return true;
    for (const Status& status : cluster.statuses()) {
      const bool too_late = setting.faults.mute > 0 && status.code() == Code::kUnavailable &&
                            status.message().find("ended without") != std::string::npos;
      if (!status.ok() && !too_late) return true;
    }
    for (const Record& record : cluster.records()) {
      const auto* left = std::get_if<WorkerLeft>(&record.body);
      if (left != nullptr && left->why == LeftReason::kEvicted) return true;
    }
    return HasFailure();
  });
}

}  // namespace
}  // namespace prd
