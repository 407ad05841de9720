// Workers that exchange updates under the real engine `hop`, in virtual time: on a network that
// loses, doubles and reorders notes, with pulls that fail, workers of all speeds, controllers that
// restart and leases that run out. Models are numbers, so that what is averaged can be held to the
// recursion that decentralised training is (Luo et al., ASPLOS 2019, Figure 1).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "tests/sim/mutant_hunt.h"
#include "tests/worker/virtual_pump.h"

namespace prd {
namespace {

struct Faults {
  double loss = 0;        // of messages and notes
  double duplicate = 0;   // of the same
  double pull_fails = 0;  // before or after its request came
  double restart = 0;     // of the controller, per 100 ms
  double mute = 0;        // of a worker for longer than its lease, per 100 ms
};

constexpr int kWorkers = 6;
constexpr int kSteps = 40;
constexpr std::uint64_t kSeeds = 16;

double Gradient(double x, int worker) { return 0.1 * (x - worker); }

class Walk : public VirtualPump {
 public:
  Walk(std::uint64_t seed, const HopOptions& options, Faults faults,
       sim::Mutation mutation = sim::Mutation::kNone)
      : VirtualPump(seed, options, kWorkers, {faults.loss, faults.duplicate, 4 * kSecond},
                    mutation),
        options_(options),
        faults_(faults) {
    for (int i = 0; i < kWorkers; ++i) {
      workers_.push_back(std::make_unique<Worker>());
      workers_.back()->rank = i;
      workers_.back()->x = 10 + i;
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
      text += std::to_string(worker->rank) + " at " + std::to_string(worker->core.iteration());
      text += Explain(worker->rank);
    }
    return text;
  }
  // Of all that workers had, and of what the controller decided.
  std::uint64_t Hash() const {
    std::uint64_t hash = HistoryHash();
    for (const auto& worker : workers_) {
      for (const auto& [k, x] : worker->models) hash = HashBytes(std::to_string(x), hash);
    }
    return hash;
  }
  bool Clean() const {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const auto& worker) { return worker->status.ok(); });
  }
  double model(int worker, Iteration k) const {
    return workers_[static_cast<std::size_t>(worker)]->models.at(k);
  }
  double start() const { return start_; }
  std::size_t most_published() const { return most_published_; }
  int mixed() const { return mixed_; }
  int jumps() const { return jumps_; }
  int dropped() const { return dropped_; }

 private:
  struct Held {
    Incarnation from = 0;
    Iteration stamp = 0;
    std::optional<double> value;  // once it is here
  };
  struct Worker {
    int rank = 0;
    SessionCore core;
    double x = 0;  // the model
    double gradient = 0;
    Iteration at = 0;                    // as others are told
    std::map<Iteration, double> models;  // by the iteration that was entered with them
    int steps = 0;
    bool calling = false;
    bool applying = false;
    bool finishing = false;
    bool done = false;
    Status status;
    std::uint64_t reducing = 0;  // names the reduction or fetch under way; 0 none
    Instant muted_until;
    std::optional<Instant> timer;
    // The data plane.
    std::set<Incarnation> met;
    std::map<Iteration, double> published;
    std::map<Ticket, Held> pulls;
    std::uint32_t slots = 1;  // the most that it ever had
  };
  struct Reduction {
    double sum = 0;
    std::size_t members = 0;
    std::vector<std::pair<int, std::uint64_t>> started;
  };
  struct Asked {
    int puller = 0;
    Incarnation incarnation = 0;
    Ticket ticket = 0;
  };

  Worker& Of(int i) { return *workers_[static_cast<std::size_t>(i)]; }
  int Find(Incarnation incarnation) const {
    for (const auto& worker : workers_) {
      if (worker->core.incarnation() == incarnation) return worker->rank;
    }
    return -1;
  }
  template <typename Call>
  void Drive(int i, const Call& call) {
    Actions actions;
    call(&Of(i).core, &actions);
    Perform(i, std::move(actions));
  }

  // ---- the controller ----

  void Arrives(const ControllerEnvelope& envelope) override {
    const int i = Find(envelope.incarnation);
    if (i < 0) return;
    const auto* hood = std::get_if<Neighbourhood>(&envelope.body);
    if (hood != nullptr) Of(i).slots = std::max(Of(i).slots, hood->slots);
    Drive(i, [&](SessionCore* core, Actions* out) { core->OnEnvelope(now_, envelope, out); });
  }
  void Tick() {
    if (Chance(faults_.restart / 10)) RestartController();
    if (Chance(faults_.mute / 10)) {
      Of(static_cast<int>(random_.Below(kWorkers))).muted_until = now_ + 2500 * kMillisecond;
    }
    TickController();
    At(5 * kMillisecond, [this] { Tick(); });
  }

  // ---- the training loop ----

  void Attach(int i) {
    Of(i).core.GiveIncarnation(++incarnations_);
    Of(i).calling = true;
    Drive(i, [&](SessionCore* core, Actions* out) { core->Attach(now_, OptionsOf(i), out); });
  }
  // Ranks 0 and 2 are stragglers; on a ring both are neighbours of 1.
  DurationNs ComputeTime(int i) {
    return static_cast<DurationNs>(1 + random_.Below(20)) * kMillisecond *
           (i == 0 || i == 2 ? 5 : 1);
  }
  void NextCall(int i) {
    Worker& worker = Of(i);
    worker.calling = true;
    worker.gradient = Gradient(worker.x, i);
    if (worker.steps++ >= kSteps) {
      worker.finishing = true;
      return Drive(i, [&](SessionCore* core, Actions* out) { core->Finish(now_, out); });
    }
    if (AppliesFirst(worker.core.welcome().plan)) worker.x -= worker.gradient;
    Drive(i, [&](SessionCore* core, Actions* out) {
      core->Step(now_, {.step_ns = kMillisecond}, false, 0, out);
    });
  }
  void EndCall(int i, const CallDone& call) {
    Worker& worker = Of(i);
    worker.calling = false;
    worker.at = worker.core.iteration();
    worker.status = call.status;
    if (worker.finishing || !call.status.ok()) {
      worker.done = true;
      ++done_;
      return;
    }
    if (worker.steps > 0) {
      EXPECT_EQ(call.step.iteration, worker.core.iteration());
      if (call.step.adopted) worker.models.clear();
      if (!worker.models.empty() && call.step.iteration > worker.models.rbegin()->first + 1) {
        ++jumps_;
      }
      worker.models[call.step.iteration] = worker.x;
    }
    At(ComputeTime(i), [this, i] { NextCall(i); });
  }
  void Apply(int i) {
    Worker& worker = Of(i);
    EXPECT_TRUE(worker.calling && worker.applying);
    worker.applying = false;
    worker.x -= worker.gradient;
    Drive(i,
          [&](SessionCore* core, Actions* out) { core->Applied(now_, core->iteration(), 1, out); });
  }

  // ---- actions ----

  void Perform(int i, Actions actions) {
    Worker& worker = Of(i);
    for (const Action& action : actions) {
      std::visit([this, i](const auto& of) { Do(i, of); }, action);
    }
    Look(worker);
    if (worker.core.wants_incarnation()) worker.core.GiveIncarnation(++incarnations_);
    const auto deadline = worker.core.NextDeadline();
    if (!deadline || (worker.timer && *worker.timer <= *deadline && *worker.timer > now_)) return;
    worker.timer = std::max(*deadline, now_ + 1);
    At(*worker.timer - now_,
       [this, i] { Drive(i, [&](SessionCore* core, Actions* out) { core->OnTime(now_, out); }); });
  }
  void Do(int i, const SendToController& action) {
    if (now_ >= Of(i).muted_until) ToController(action.envelope);
  }
  void Do(int i, const BecomeIncarnation&) { Forget(i); }
  void Do(int i, const JoinRun&) { Forget(i); }
  void Do(int i, const CancelReduce&) { Of(i).reducing = 0; }
  void Do(int i, const CancelFetch&) { Of(i).reducing = 0; }
  void Do(int i, const CallDone& action) { EndCall(i, action); }
  void Do(int i, const ApplyNow&) {
    EXPECT_TRUE(Of(i).calling && !Of(i).applying);
    Of(i).applying = true;
    At(kMillisecond, [this, i] { Apply(i); });
  }
  template <typename Other>
  void Do(int, const Other&) {
    ADD_FAILURE() << "not an action of this strategy";
  }
  void Forget(int i) {
    Of(i).reducing = 0;
    Of(i).met.clear();
    Of(i).published.clear();
    Of(i).pulls.clear();
  }

  // Ends once every member has begun, or after a time limit.
  void Do(int i, const StartReduce& start) {
    const Group& group = start.group;
    EXPECT_NE(group.kind, GroupKind::kTrain);
    const std::uint64_t token = Of(i).reducing = ++tokens_;
    Incarnation lowest = group.members[0].incarnation;
    double share = 0;
    for (const GroupMember& member : group.members) {
      lowest = std::min(lowest, member.incarnation);
      if (member.incarnation == Of(i).core.incarnation()) share = member.weight * Of(i).x;
    }
    Reduction& reduction = reductions_[{lowest, group.id}];
    reduction.sum += share;
    reduction.members = group.members.size();
    reduction.started.emplace_back(i, token);
    At(kSecond, [this, i, token, id = group.id] { EndReduce(i, token, id, std::nullopt); });
    if (reduction.started.size() < reduction.members) return;
    if (group.kind == GroupKind::kInitial) start_ = reduction.sum;
    for (const auto& [member, its] : reduction.started) {
      At(Delay(), [this, m = member, t = its, id = group.id, sum = reduction.sum] {
        EndReduce(m, t, id, sum);
      });
    }
  }
  void EndReduce(int i, std::uint64_t token, GroupId id, std::optional<double> sum) {
    if (Of(i).reducing != token) return;
    Of(i).reducing = 0;
    if (sum) Of(i).x = *sum;
    const Status status = sum ? Status::Ok() : Status(Code::kDeadlineExceeded, "too long");
    Drive(i, [&](SessionCore* core, Actions* out) { core->OnReduced(now_, id, status, 0, out); });
  }
  void Do(int i, const StartFetch& fetch) {
    const std::uint64_t token = Of(i).reducing = ++tokens_;
    At(5 * Delay(), [this, i, token, from = fetch.source.incarnation] {
      if (Of(i).reducing != token) return;
      Of(i).reducing = 0;
      const int source = Find(from);
      if (source >= 0) Of(i).x = Of(source).x;
      const Iteration iteration = source >= 0 ? Of(source).core.iteration() : 0;
      const Status status = source >= 0 ? Status::Ok() : Status(Code::kUnavailable, "gone");
      Drive(i, [&](SessionCore* core, Actions* out) {
        core->OnFetched(now_, status, iteration, out);
      });
    });
  }

  // ---- exchanges ----

  void Do(int i, const Meet& action) {
    Of(i).met.clear();
    for (const GroupMember& peer : action.peers) Of(i).met.insert(peer.incarnation);
  }
  void Do(int i, const SetIteration& action) {
    EXPECT_GE(action.iteration, Of(i).at);
    Of(i).at = action.iteration;
  }
  void Do(int i, const SendNote& action) {
    if (!Of(i).met.contains(action.to) || Chance(faults_.loss)) return;
    for (int copies = Chance(faults_.duplicate) ? 2 : 1; copies > 0; --copies) {
      At(Delay(), [this, action, from = Of(i).core.incarnation()] {
        const int to = Find(action.to);
        if (to < 0) return;
        Drive(to,
              [&](SessionCore* core, Actions* out) { core->OnNote(now_, from, action.note, out); });
      });
    }
  }
  void Do(int i, const StartPull& action) {
    Worker& worker = Of(i);
    ASSERT_TRUE(
        worker.pulls.emplace(action.ticket, Held{action.from, action.parcel.stamp, std::nullopt})
            .second);
    const Asked asked{i, worker.core.incarnation(), action.ticket};
    if (!worker.met.contains(action.from) || Chance(faults_.pull_fails)) {
      return EndPull(asked, std::nullopt);
    }
    At(Delay(), [this, asked, action] {
      const int source = Find(action.from);
      if (source < 0 || !Of(source).met.contains(asked.incarnation)) {
        return EndPull(asked, std::nullopt);
      }
      asked_[++requests_] = asked;
      Drive(source, [&](SessionCore* core, Actions* out) {
        core->OnRequest(now_, asked.incarnation, requests_, action.parcel, out);
      });
    });
  }
  void Do(int i, const Serve& action) {
    ASSERT_TRUE(Of(i).published.contains(action.parcel.stamp));
    const Asked asked = asked_.extract(action.request).mapped();
    const double value = Of(i).published.at(action.parcel.stamp);
    EndPull(asked, Chance(faults_.pull_fails) ? std::nullopt : std::optional(value));
  }
  void Do(int, const Refuse& action) {
    EndPull(asked_.extract(action.request).mapped(), std::nullopt);
  }
  void EndPull(const Asked& asked, std::optional<double> value) {
    At(2 * Delay(), [this, asked, value] {
      Worker& worker = Of(asked.puller);
      if (worker.core.incarnation() != asked.incarnation) return;
      const auto pull = worker.pulls.find(asked.ticket);
      if (pull == worker.pulls.end()) return;
      pull->second.value = value;
      if (!value) worker.pulls.erase(pull);
      const Status status = value ? Status::Ok() : Status(Code::kUnavailable, "fault");
      Drive(asked.puller, [&](SessionCore* core, Actions* out) {
        core->OnPulled(now_, asked.ticket, status, {}, out);
      });
    });
  }
  void Do(int i, const DropPull& action) {
    if (mutation_ != sim::Mutation::kDropIgnored) {
      EXPECT_EQ(Of(i).pulls.erase(action.ticket), 1u);
    }
    ++dropped_;
  }
  void Do(int i, const PublishUpdate& action) {
    EXPECT_FALSE(Of(i).applying);
    EXPECT_TRUE(Of(i).published.emplace(action.iteration, Of(i).x).second);
  }
  void Do(int i, const RetireUpdate& action) {
    EXPECT_EQ(Of(i).published.erase(action.iteration), 1u);
  }
  void Do(int i, const MixUpdates& action) {
    Worker& worker = Of(i);
    EXPECT_TRUE(worker.calling && !worker.applying);
    std::vector<MixUpdates::Update> updates(action.updates.begin(), action.updates.end());
    if (mutation_ == sim::Mutation::kUpdateTwice && !updates.empty()) updates.front().weight *= 2;
    double sum = action.own_weight;
    double x = action.own_weight * worker.x;
    std::set<Iteration> stamps;
    std::set<Incarnation> from;
    for (const MixUpdates::Update& update : updates) {
      const auto pull = worker.pulls.find(update.ticket);
      ASSERT_TRUE(pull != worker.pulls.end() && pull->second.value);
      EXPECT_TRUE(from.insert(pull->second.from).second) << "two updates of one neighbour";
      stamps.insert(pull->second.stamp);
      sum += update.weight;
      x += update.weight * *pull->second.value;
      worker.pulls.erase(pull);
    }
    EXPECT_NEAR(sum, 1, 1e-12);
    EXPECT_GE(*stamps.begin(), worker.at - options_.staleness);
    EXPECT_TRUE(options_.staleness > 0 || stamps.size() == 1);
    worker.x = x;
    ++mixed_;
  }

  // What must hold at any time.
  void Look(const Worker& worker) {
    std::map<Incarnation, std::uint32_t> held;
    const std::uint32_t most = options_.staleness > 0 ? 2 : worker.slots;
    for (const auto& [ticket, pull] : worker.pulls) EXPECT_LE(++held[pull.from], most);
    most_published_ = std::max(most_published_, worker.published.size());
  }

  HopOptions options_;
  Faults faults_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::map<std::pair<Incarnation, GroupId>, Reduction> reductions_;  // by the lowest member
  std::map<Request, Asked> asked_;
  Request requests_ = 0;
  Incarnation incarnations_ = 0;
  std::uint64_t tokens_ = 0;
  std::size_t done_ = 0;
  double start_ = 0;
  std::size_t most_published_ = 0;
  int mixed_ = 0;
  int jumps_ = 0;
  int dropped_ = 0;
};

// ---- settings ----

struct Setting {
  const char* name;
  HopOptions options;
};

std::vector<Setting> Settings() {
  HopOptions standard;
  HopOptions no_tokens;
  no_tokens.max_iteration_gap = 0;
  HopOptions serial;
  serial.order = HopOptions::Order::kSerial;
  HopOptions backups;
  backups.backups = 1;
  HopOptions stale;
  stale.staleness = 3;
  HopOptions hybrid = stale;
  hybrid.backups = 1;
  HopOptions skips = backups;
  skips.max_jump = 4;
  skips.graph.kind = Graph::Kind::kRing;
  HopOptions stale_skips = stale;
  stale_skips.max_jump = 10;
  return {{"standard", standard}, {"without tokens", no_tokens},
          {"serial", serial},     {"backups", backups},
          {"staleness", stale},   {"hybrid", hybrid},
          {"skips", skips},       {"skips, staleness", stale_skips}};
}

constexpr Faults kCalm;
constexpr Faults kLossy{.loss = 0.1, .duplicate = 0.1, .pull_fails = 0.1};
constexpr Faults kRestarts{.loss = 0.02, .pull_fails = 0.02, .restart = 0.3};
constexpr Faults kLosses{
    .loss = 0.05, .duplicate = 0.05, .pull_fails = 0.05, .restart = 0.1, .mute = 0.1};

TEST(NeighboursWalkTest, EverybodyFinishesAndNobodyBreaksTheProtocol) {
  int lost = 0;
  int late = 0;
  for (const Setting& setting : Settings()) {
    int jumps = 0;
    int dropped = 0;
    for (const Faults& faults : {kCalm, kLossy, kRestarts, kLosses}) {
      for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
        SCOPED_TRACE(std::string(setting.name) + ", loss " + std::to_string(faults.loss) +
                     ", seed " + std::to_string(seed));
        Walk walk(seed, setting.options, faults);
        ASSERT_TRUE(walk.Run()) << walk.stuck();
        ASSERT_FALSE(HasFailure());
        // Who was lost when all others finished has no job to come back to.
        EXPECT_TRUE(faults.mute > 0 || walk.Clean());
        if (!walk.Clean()) ++late;
        for (const Record& record : walk.records()) {
          lost += std::holds_alternative<LeaseExpired>(record.body) ? 1 : 0;
          const auto* left = std::get_if<WorkerLeft>(&record.body);
          ASSERT_FALSE(left != nullptr && left->why == LeftReason::kEvicted) << left->reason;
        }
        EXPECT_GT(walk.mixed(), kWorkers * kSteps / 3);
        jumps += walk.jumps();
        dropped += walk.dropped();
        EXPECT_LE(walk.most_published(), faults.loss > 0 ? 70u : 8u);
        if (seed % 4 == 0) {
          Walk again(seed, setting.options, faults);
          ASSERT_TRUE(again.Run());
          ASSERT_EQ(again.Hash(), walk.Hash());
        }
      }
    }
    EXPECT_GT(jumps, setting.options.max_jump > 0 ? 20 : -1);
    EXPECT_GT(dropped, setting.options.backups > 0 ? 20 : -1);
  }
  EXPECT_GT(lost, 50);
  EXPECT_LT(late, lost);
}

// x_i(k+1) = sum over j of W_ij x_j(k) - gradient of x_i(k); in the serial order of x_j(k) with its
// gradient. Whatever the network does meanwhile.
void ExpectRecursion(const Walk& walk, bool serial) {
  std::map<Rank, NeighboursSet> hoods;
  for (const Record& record : walk.records()) {
    if (const auto* set = std::get_if<NeighboursSet>(&record.body)) hoods.emplace(set->rank, *set);
  }
  ASSERT_EQ(hoods.size(), static_cast<std::size_t>(kWorkers));
  std::vector<double> x(kWorkers, walk.start());
  // Near the end some have finished, and the others go on without them.
  for (Iteration k = 1; k <= kSteps - 8; ++k) {
    std::vector<double> sent = x;
    for (int i = 0; i < kWorkers; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (serial) sent[at] -= Gradient(x[at], i);
    }
    std::vector<double> next(kWorkers);
    for (int i = 0; i < kWorkers; ++i) {
      const auto at = static_cast<std::size_t>(i);
      next[at] = hoods[i].own_weight * sent[at] - (serial ? 0 : Gradient(x[at], i));
      for (const InEdge& edge : hoods[i].in) {
        next[at] += edge.weight * sent[static_cast<std::size_t>(edge.rank)];
      }
      ASSERT_NEAR(walk.model(i, k), next[at], 1e-9) << "worker " << i << ", iteration " << k;
    }
    x = next;
  }
}

// Who missed the common start has other neighbours before than after.
bool CopiedLate(const Walk& walk) {
  return std::any_of(walk.records().begin(), walk.records().end(), [](const Record& record) {
    return std::holds_alternative<AdoptOrdered>(record.body);
  });
}

TEST(NeighboursWalkTest, StandardTrainingIsItsRecursionWhateverTheNetworkDoes) {
  std::uint64_t held = 0;
  for (const Setting& setting : Settings()) {
    const HopOptions& options = setting.options;
    if (options.backups > 0 || options.staleness > 0) continue;
    for (const Faults& faults : {kCalm, kLossy, kRestarts}) {
      for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
        SCOPED_TRACE(std::string(setting.name) + ", seed " + std::to_string(seed));
        Walk walk(seed, options, faults);
        ASSERT_TRUE(walk.Run()) << walk.stuck();
        if (CopiedLate(walk)) continue;
        ExpectRecursion(walk, options.order == HopOptions::Order::kSerial);
        if (HasFatalFailure()) return;
        ++held;
      }
    }
  }
  EXPECT_GT(held, 8 * kSeeds);
}

// Lines of tests/sim/mutants.md.
TEST(NeighboursWalkTest, DISABLED_MutantTable) {
  std::vector<sim::Mutant> mutants = sim::AllMutants();
  std::erase_if(mutants, [](const sim::Mutant& of) {
    return of.engine && EngineName(*of.engine) != EngineName(HopOptions{});
  });
  sim::Hunt("neighbours_walk", mutants, 500, [](const sim::Mutant& mutant, std::uint64_t seed) {
    const std::vector<Setting> settings = Settings();
    const Faults all[] = {kCalm, kLossy, kRestarts, kLosses};
    const HopOptions& options = settings[seed % settings.size()].options;
    const Faults& faults = all[seed / settings.size() % std::size(all)];
    Walk walk(seed, options, faults, mutant.mutation);
    if (!walk.Run()) return true;
    if (faults.mute == 0 && !walk.Clean()) return true;
    for (const Record& record : walk.records()) {
      const auto* left = std::get_if<WorkerLeft>(&record.body);
      if (left != nullptr && left->why == LeftReason::kEvicted) return true;
    }
    const bool standard = options.backups == 0 && options.staleness == 0 && faults.mute == 0;
    if (standard && !CopiedLate(walk)) {
      ExpectRecursion(walk, options.order == HopOptions::Order::kSerial);
    }
    return HasFailure();
  });
}

}  // namespace
}  // namespace prd
