// HasStore: several session cores and the real pump with the engine ssp in virtual
// time: messages, notes and pulls get lost, doubled, late or fail, workers die and come back, the
// controller restarts. The shards hold numbers, and beside them whose updates are in them:
//   - every read has each update that the controller counted when it let the reader read, and none
//     twice; under lockstep none that is later than the read, and all who read at a clock get the
//     same numbers;
//   - who is told that an update is stored finds it with the owner and all holders;
//   - nothing is lost while no more workers than there are copies die before a placement is open;
//   - once the faults stop, all finish.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
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
  double loss = 0;       // of messages, notes and requests
  double duplicate = 0;  // of messages and notes
  double pull_fails = 0;
  double restart = 0;  // of the controller, per 100 ms
  double mute = 0;     // of a worker for longer than its lease, per 100 ms
  double death = 0;    // of a worker, per 100 ms
  double discard = 0;  // of a step's work
  bool none = false;
};

using Tag = std::pair<Incarnation, std::int64_t>;  // an update: whose, its clock

// Numbers, and the updates that are in them.
struct Row {
  std::vector<double> values;
  std::vector<Tag> tags;  // ascending

  void Add(const Row& other, double factor) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += factor * other.values[i];
    for (const Tag& tag : other.tags) tags.insert(std::ranges::upper_bound(tags, tag), tag);
  }
  bool Has(const Tag& tag) const { return std::ranges::binary_search(tags, tag); }
};

struct KeptShard {
  Row values;
  Row pending;
};

class Cluster : public VirtualPump {
 public:
  Cluster(std::uint64_t seed, int workers, SspOptions options, Faults faults,
          sim::Mutation mutation = sim::Mutation::kNone)
      : VirtualPump(seed, options, workers, {faults.loss, faults.duplicate, 8 * kSecond}, mutation),
        options_(options),
        faults_(faults) {
    for (int i = 0; i < workers; ++i) {
      workers_.push_back(std::make_unique<Worker>());
      At(static_cast<DurationNs>(random_.Below(300)) * kMillisecond, [this, i] { Attach(i); });
    }
    At(0, [this] { Tick(); });
  }

  // False: somebody was not done after ten virtual minutes.
  bool Run() {
    return RunUntil([this] { return Done(); });
  }

  std::string stuck() const {
    std::string text;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i]->done) continue;
      text += std::to_string(i) + " after " + std::to_string(workers_[i]->steps) +
              " steps: " + workers_[i]->status.ToString();
      text += Explain(static_cast<Rank>(i));
    }
    return text;
  }
  std::vector<Status> statuses() const {
    std::vector<Status> all;
    for (const auto& worker : workers_) all.push_back(worker->status);
    return all;
  }
  int reads() const { return reads_; }
  int deaths() const { return deaths_; }
  int handovers() const { return handovers_; }

 private:
  struct Worker {
    std::unique_ptr<SessionCore> core;
    std::uint64_t life = 0;  // names the process
    int steps = 0;
    bool in_call = false;  // until its end is carried out
    bool finishing = false;
    bool done = false;
    Status status;
    std::uint64_t reducing = 0;
    Instant muted_until;
    std::optional<Instant> timer;
    // The replica, whole; what was read last; by shard, the update and what is kept.
    std::vector<double> parameters;
    std::vector<double> base;
    std::uint32_t shards = 0;
    std::vector<Row> delta;
    std::map<std::uint32_t, KeptShard> kept;
    std::map<Ticket, KeptShard> pulled;
    std::set<Ticket> pulling;
  };
  struct Asked {
    int puller = 0;
    std::uint64_t life = 0;
    Incarnation incarnation = 0;
    Ticket ticket = 0;
  };
  struct Reduction {
    std::size_t members = 0;
    std::vector<std::pair<int, std::uint64_t>> started;
  };

  // Of worker i, unless it has died by then.
  void Later(int i, DurationNs after, std::function<void()> run) {
    At(after, [this, i, life = Of(i).life, run = std::move(run)] {
      if (Of(i).life == life && Of(i).core) run();
    });
  }
  Worker& Of(int i) { return *workers_[static_cast<std::size_t>(i)]; }
  DurationNs Delay() override {
    const std::uint64_t most = random_.Below(20) == 0 ? 100 : 3;
    return 1 + static_cast<DurationNs>(random_.Below(most * kMillisecond));
  }
  bool Done() const {
    for (const auto& worker : workers_) {
      if (!worker->done) return false;
    }
    return true;
  }
  int Find(Incarnation incarnation) const {
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i]->core && workers_[i]->core->incarnation() == incarnation) {
        return static_cast<int>(i);
      }
    }
    return -1;
  }

  // ---- the controller ----

  void Seen(const Record& record) override {
    if (const auto* from = std::get_if<FromWorker>(&record.body)) {
      if (const auto* ready = std::get_if<Ready>(&from->envelope.body)) {
        counted_.emplace_back(from->envelope.incarnation, ready->iteration);
      }
    } else if (const auto* opened = std::get_if<PlacementOpened>(&record.body)) {
      opened_ = std::max(opened_, opened->epoch);
    } else if (const auto* set = std::get_if<PlacementSet>(&record.body)) {
      for (const ShardPlace& place : set->shards) {
        if (place.source == kNoRank && set->epoch > 1 && opened_ > 0) {
          ADD_FAILURE() << "updates were lost: " << set->reason;
        }
        handovers_ += place.source != place.owner ? 1 : 0;
      }
    }
  }
  void Leaves(const ControllerEnvelope& envelope) override {
    if (const auto* placement = std::get_if<Placement>(&envelope.body)) {
      placements_.emplace(placement->epoch, *placement);
      for (const GroupMember& member : placement->members) {
        counted_at_join_.try_emplace(member.incarnation, counted_.size());
      }
    }
    if (std::holds_alternative<QueryReply>(envelope.body)) {
      counted_at_answer_.try_emplace({envelope.incarnation, envelope.seq}, counted_.size());
    }
  }
  void Arrives(const ControllerEnvelope& envelope) override {
    const int i = Find(envelope.incarnation);
    if (i < 0) return;
    Actions actions;
    Of(i).core->OnEnvelope(now_, envelope, &actions);
    Perform(i, std::move(actions));
  }
  void Tick() {
    if (Chance(faults_.restart / 10)) RestartController();
    if (Chance(faults_.mute / 10)) {
      Worker& worker = *workers_[random_.Below(workers_.size())];
      if (worker.core && MayLose(worker)) {
        worker.muted_until = now_ + 2500 * kMillisecond;
        lost_.insert(worker.core->incarnation());
      }
    }
    if (Chance(faults_.death / 10)) Kill(static_cast<int>(random_.Below(workers_.size())));
    TickController();
    At(10 * kMillisecond, [this] { Tick(); });
  }

  // ---- life and death ----

  // Whether all that is acknowledged survives without this one too.
  bool MayLose(const Worker& worker) const {
    if (opened_ == 0 || worker.done || worker.finishing) return false;
    int lost = 0;
    std::set<Incarnation> members;
    for (auto it = placements_.lower_bound(opened_); it != placements_.end(); ++it) {
      for (const GroupMember& member : it->second.members) members.insert(member.incarnation);
    }
    for (const Incarnation incarnation : lost_) lost += members.contains(incarnation) ? 1 : 0;
    const int copies = static_cast<int>(placements_.at(opened_).members.size()) - 1;
    return lost_.contains(worker.core->incarnation()) || lost < std::min(options_.replicas, copies);
  }
  void Kill(int i) {
    Worker& worker = Of(i);
    if (!worker.core || !MayLose(worker)) return;
    ++deaths_;
    lost_.insert(worker.core->incarnation());
    const int steps = worker.steps;
    worker = Worker{};
    worker.steps = steps;
    worker.life = ++lives_;
    At(static_cast<DurationNs>(random_.Below(3000)) * kMillisecond, [this, i] { Attach(i); });
  }

  void Attach(int i) {
    Worker& worker = Of(i);
    worker.core = std::make_unique<SessionCore>();
    worker.life = ++lives_;
    worker.in_call = true;
    // Each begins with other numbers; all but one's are replaced.
    worker.parameters.assign(kElements, static_cast<double>(random_.Below(100)));
    worker.base = worker.parameters;
    worker.core->GiveIncarnation(++incarnations_);
    Actions actions;
    worker.core->Attach(now_, OptionsOf(i), &actions);
    Perform(i, std::move(actions));
  }

  void NextCall(int i) {
    Worker& worker = Of(i);
    worker.in_call = true;
    Actions actions;
    if (worker.steps++ < kSteps) {
      const bool discard = Chance(faults_.discard);
      std::vector<double>& moved = moved_[worker.core->iteration() + 1];
      moved.resize(kElements);
      for (std::size_t k = 0; k < kElements; ++k) {
        const double step = random_.Unit() - 0.5;
        worker.parameters[k] += step;
        moved[k] += step / static_cast<double>(workers_.size());
      }
      worker.core->Step(now_, {.iteration = 0, .step_ns = kMillisecond}, discard, 0, &actions);
    } else {
      worker.finishing = true;
      worker.core->Finish(now_, &actions);
    }
    Perform(i, std::move(actions));
  }

  // ---- the shell ----

  void Perform(int i, Actions actions) {
    for (const Action& action : actions) {
      std::visit([this, i](const auto& a) { Do(i, a); }, action);
    }
    Worker& worker = Of(i);
    if (worker.core->wants_incarnation()) worker.core->GiveIncarnation(++incarnations_);
    const auto deadline = worker.core->NextDeadline();
    if (!deadline || (worker.timer && *worker.timer <= *deadline && *worker.timer > now_)) return;
    worker.timer = std::max(*deadline, now_ + 1);
    Later(i, *worker.timer - now_, [this, i] {
      Actions more;
      Of(i).core->OnTime(now_, &more);
      Perform(i, std::move(more));
    });
  }
  template <typename Other>
  void Do(int, const Other&) {}
  void Do(int i, const SendToController& send) {
    if (now_ >= Of(i).muted_until) ToController(send.envelope);
  }
  void Do(int i, const BecomeIncarnation&) { Forget(i); }
  void Do(int i, const JoinRun&) { Forget(i); }
  void Forget(int i) {
    Worker& worker = Of(i);
    worker.reducing = 0;
    worker.kept.clear();
    worker.pulled.clear();
    worker.pulling.clear();
    worker.delta.clear();
    worker.shards = 0;
  }
  void Do(int i, const CancelReduce&) { Of(i).reducing = 0; }
  void Do(int i, const CancelFetch&) { Of(i).reducing = 0; }
  void Do(int i, const CallDone& call) {
    Worker& worker = Of(i);
    worker.status = call.status;
    worker.in_call = false;
    if (faults_.none && options_.staleness == 0) CheckMean(worker);
    if (worker.finishing || !call.status.ok()) {
      worker.done = true;
    } else {
      Later(i, static_cast<DurationNs>(random_.Below(30)) * kMillisecond,
            [this, i] { NextCall(i); });
    }
  }

  // Ends once every member has begun, or after a time limit.
  void Do(int i, const StartReduce& start) {
    const Group& group = start.group;
    const std::uint64_t token = Of(i).reducing = ++tokens_;
    const auto end = [this, id = group.id](int member, std::uint64_t its, Status status) {
      Worker& w = Of(member);
      if (w.reducing != its) return;
      w.reducing = 0;
      Actions actions;
      w.core->OnReduced(now_, id, status, 0, &actions);
      Perform(member, std::move(actions));
    };
    Reduction& reduction = reductions_[{group.members.front().incarnation, group.id}];
    reduction.members = group.members.size();
    reduction.started.emplace_back(i, token);
    Later(i, kSecond, [=] { end(i, token, Status(Code::kDeadlineExceeded, "too long")); });
    if (reduction.started.size() < reduction.members) return;
    const bool fails = Chance(faults_.pull_fails);
    if (!fails && group.kind == GroupKind::kInitial) {
      const Worker& first = Of(Find(group.members.front().incarnation));
      start_ = first.parameters;
      for (const auto& [member, its] : reduction.started) {
        if (Of(member).reducing != its) continue;
        Of(member).parameters = Of(member).base = first.parameters;
      }
    }
    for (const auto& [member, its] : reduction.started) {
      Later(member, Delay(), [=, m = member, t = its] {
        end(m, t, fails ? Status(Code::kUnavailable, "fault") : Status::Ok());
      });
    }
  }
  void Do(int i, const StartFetch& fetch) {
    const std::uint64_t token = Of(i).reducing = ++tokens_;
    const bool fails = Chance(faults_.pull_fails);
    Later(i, 5 * Delay(), [this, i, token, fails, fetch] {
      Worker& w = Of(i);
      if (w.reducing != token) return;
      w.reducing = 0;
      const int source = Find(fetch.source.incarnation);
      const bool ok = source >= 0 && !fails;
      if (ok) w.parameters = w.base = Of(source).parameters;
      Actions actions;
      w.core->OnFetched(now_, ok ? Status::Ok() : Status(Code::kUnavailable, "fault"),
                        ok ? Of(source).core->iteration() : 0, &actions);
      Perform(i, std::move(actions));
    });
  }

  // ---- the data plane ----

  void Do(int i, const SendNote& send) {
    const Incarnation from = Of(i).core->incarnation();
    const bool stored = send.note.kind == Note::Kind::kStored;
    if (stored && send.note.parcel.kind == Parcel::Kind::kDelta) CheckStored(send);
    if (Chance(faults_.loss)) return;
    for (int copies = Chance(faults_.duplicate) ? 2 : 1; copies > 0; --copies) {
      At(Delay(), [this, from, send] {
        const int to = Find(send.to);
        if (to < 0) return;
        Actions actions;
        Of(to).core->OnNote(now_, from, send.note, &actions);
        Perform(to, std::move(actions));
      });
    }
  }
  void Do(int i, const StartPull& pull) {
    Worker& worker = Of(i);
    EXPECT_TRUE(worker.pulling.insert(pull.ticket).second);
    const Asked asked{.puller = i,
                      .life = worker.life,
                      .incarnation = worker.core->incarnation(),
                      .ticket = pull.ticket};
    Later(i, 2 * kSecond, [this, asked] { EndPull(asked, nullptr, {}); });
    if (Chance(faults_.loss)) return;
    At(Delay(), [this, asked, pull] {
      const int source = Find(pull.from);
      if (source < 0) return At(100 * kMillisecond, [this, asked] { EndPull(asked, nullptr, {}); });
      const Request request = ++requests_;
      asked_[request] = asked;
      Actions actions;
      Of(source).core->OnRequest(now_, asked.incarnation, request, pull.parcel, &actions);
      Perform(source, std::move(actions));
    });
  }
  void EndPull(const Asked& asked, const KeptShard* what, const Enclosure& enclosure) {
    Worker& worker = Of(asked.puller);
    if (!worker.core || worker.life != asked.life ||
        worker.core->incarnation() != asked.incarnation ||
        worker.pulling.erase(asked.ticket) == 0) {
      return;
    }
    if (what != nullptr) worker.pulled[asked.ticket] = *what;
    Actions actions;
    worker.core->OnPulled(now_, asked.ticket,
                          what != nullptr ? Status::Ok() : Status(Code::kUnavailable, "fault"),
                          enclosure, &actions);
    Perform(asked.puller, std::move(actions));
  }
  void Do(int i, const DropPull& drop) {
    Of(i).pulling.erase(drop.ticket);
    Of(i).pulled.erase(drop.ticket);
  }
  void Do(int, const Refuse& refuse) {
    const auto it = asked_.find(refuse.request);
    ASSERT_NE(it, asked_.end()) << "answered twice";
    At(Delay(), [this, asked = it->second] { EndPull(asked, nullptr, {}); });
    asked_.erase(it);
  }
  void Do(int i, const Serve& serve) {
    const auto it = asked_.find(serve.request);
    ASSERT_NE(it, asked_.end()) << "answered twice";
    const Asked asked = it->second;
    asked_.erase(it);
    Worker& worker = Of(i);
    KeptShard what;
    if (serve.parcel.kind == Parcel::Kind::kDelta) {
      what.values = worker.delta.at(serve.parcel.shard);
    } else {
      what = worker.kept.at(serve.parcel.shard);
      if (serve.parcel.kind == Parcel::Kind::kShard) what.pending = {};
    }
    const bool fails = Chance(faults_.pull_fails);
    Enclosure with = serve.enclosure;
    if (mutation_ == sim::Mutation::kClockForgotten) with.clocks.clear();
    At(Delay(), [this, asked, what = std::move(what), enclosure = with, fails] {
      EndPull(asked, fails ? nullptr : &what, enclosure);
    });
  }

  // ---- shards ----

  std::size_t First(std::uint32_t shard, std::uint32_t shards) const {
    return kElements * shard / shards;
  }
  Row Cut(const std::vector<double>& row, std::uint32_t shard, std::uint32_t shards) const {
    const auto at = [&](std::uint32_t s) {
      return row.begin() + static_cast<std::ptrdiff_t>(First(s, shards));
    };
    return {.values = std::vector<double>(at(shard), at(shard + 1)), .tags = {}};
  }
  void Do(int i, const CutShards& cut) {
    EXPECT_EQ(Of(i).shards, 0u);
    Of(i).shards = cut.shards;
  }
  void Do(int i, const TakeDelta& take) {
    Worker& worker = Of(i);
    EXPECT_TRUE(worker.in_call);
    worker.delta.clear();
    const Tag tag{worker.core->incarnation(), worker.core->iteration() + 1};
    for (std::uint32_t shard = 0; shard < worker.shards; ++shard) {
      Row delta = Cut(worker.parameters, shard, worker.shards);
      const Row base = Cut(worker.base, shard, worker.shards);
      for (std::size_t k = 0; k < delta.values.size(); ++k) {
        delta.values[k] = take.share * (delta.values[k] - base.values[k]);
      }
      delta.tags = {tag};
      worker.delta.push_back(std::move(delta));
    }
  }
  KeptShard TakePulled(int i, Ticket ticket) {
    const auto it = Of(i).pulled.find(ticket);
    EXPECT_NE(it, Of(i).pulled.end());
    KeptShard pulled = std::move(it->second);
    Of(i).pulled.erase(it);
    return pulled;
  }
  void Do(int i, const KeepShard& keep) {
    Worker& worker = Of(i);
    if (keep.ticket != 0) {
      worker.kept[keep.shard] = TakePulled(i, keep.ticket);
      std::vector<double>& values = worker.kept[keep.shard].values.values;
      if (mutation_ == sim::Mutation::kCopyDamaged && !values.empty()) values.back() += 0.1;
      return;
    }
    KeptShard kept{.values = Cut(worker.parameters, keep.shard, worker.shards), .pending = {}};
    kept.pending.values.assign(kept.values.values.size(), 0);
    worker.kept[keep.shard] = std::move(kept);
  }
  void Do(int i, const AddDelta& add) {
    Worker& worker = Of(i);
    const Row delta =
        add.ticket == 0 ? worker.delta.at(add.shard) : TakePulled(i, add.ticket).values;
    KeptShard& kept = worker.kept.at(add.shard);
    if (mutation_ == sim::Mutation::kDeltaLost && delta.tags.front().second % 5 == 4) return;
    for (const Tag& tag : delta.tags) {
      ASSERT_FALSE(kept.values.Has(tag) || kept.pending.Has(tag))
          << "update " << tag.second << " of " << tag.first << " is added twice";
    }
    EXPECT_EQ(add.pending, options_.staleness == 0);
    EXPECT_GT(add.factor, 0);
    EXPECT_LE(add.factor, 1);
    (add.pending ? kept.pending : kept.values).Add(delta, add.factor);
  }
  void Do(int i, const MergePending& merge) {
    KeptShard& kept = Of(i).kept.at(merge.shard);
    kept.values.Add(kept.pending, 1);
    kept.pending.tags.clear();
    kept.pending.values.assign(kept.values.values.size(), 0);
  }
  void Do(int i, const ForgetShard& forget) { EXPECT_EQ(Of(i).kept.erase(forget.shard), 1u); }
  void Do(int i, const ReadShard& read) {
    Worker& worker = Of(i);
    ASSERT_TRUE(worker.in_call);
    const Row row =
        read.ticket == 0 ? worker.kept.at(read.shard).values : TakePulled(i, read.ticket).values;
    for (std::size_t k = 0; k < row.values.size(); ++k) {
      const std::size_t at = First(read.shard, worker.shards) + k;
      worker.parameters[at] = worker.base[at] = row.values[k];
    }
    CheckRead(worker, read.shard, row);
  }

  // ---- what must hold ----

  // Of what the controller had counted when it let this worker read, all must be there.
  void CheckRead(const Worker& worker, std::uint32_t shard, const Row& row) {
    ++reads_;
    const Incarnation reader = worker.core->incarnation();
    const std::int64_t clock = worker.core->iteration();
    std::size_t counted = counted_at_join_.at(reader);
    const auto answer = std::prev(counted_at_answer_.upper_bound({reader, UINT64_MAX}));
    if (answer->first.first == reader) counted = std::max(counted, answer->second);
    for (std::size_t k = 0; k < counted; ++k) {
      const auto& [whose, stamp] = counted_[k];
      if (options_.staleness == 0 && stamp > clock) continue;
      ASSERT_TRUE(row.Has(counted_[k]))
          << now_.ns << ": " << reader << " at clock " << clock << " misses update " << stamp
          << " of " << whose << " in shard " << shard;
    }
    ASSERT_EQ(std::ranges::adjacent_find(row.tags), row.tags.end());
    if (options_.staleness != 0) return;
    for (const Tag& tag : row.tags) ASSERT_LE(tag.second, std::max(clock, newest_read_[shard]));
    newest_read_[shard] = std::max(newest_read_[shard], clock);
    const auto [first, fresh] = read_at_.try_emplace({shard, clock}, row.values);
    if (newest_read_[shard] == clock) {
      ASSERT_EQ(first->second, row.values);
    }
  }
  // Without faults: lockstep gives what all-reduce of the same steps would.
  void CheckMean(const Worker& worker) const {
    std::vector<double> mean = start_;
    for (const auto& [clock, moved] : moved_) {
      if (clock > worker.core->iteration()) continue;
      for (std::size_t k = 0; k < kElements; ++k) mean[k] += moved[k];
    }
    for (std::size_t k = 0; k < kElements; ++k) {
      ASSERT_NEAR(worker.parameters[k], mean[k], 1e-9) << worker.core->iteration();
    }
  }
  void CheckStored(const SendNote& send) {
    const Parcel& parcel = send.note.parcel;
    const Placement& placement = placements_.at(parcel.epoch);
    const ShardPlace& place = placement.shards[parcel.shard];
    std::set<Rank> keepers(place.holders.begin(), place.holders.end());
    keepers.insert(place.owner);
    for (const GroupMember& member : placement.members) {
      const int at = Find(member.incarnation);
      if (!keepers.contains(member.rank) || at < 0 || !Of(at).kept.contains(parcel.shard)) continue;
      const KeptShard& kept = Of(at).kept.at(parcel.shard);
      const Tag tag{send.to, parcel.stamp};
      ASSERT_TRUE(kept.values.Has(tag) || kept.pending.Has(tag))
          << "update " << parcel.stamp << " of " << send.to << " is stored, but rank "
          << member.rank << " has it not in shard " << parcel.shard;
    }
  }

  static constexpr int kSteps = 40;
  static constexpr std::size_t kElements = 11;

  SspOptions options_;
  Faults faults_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::map<std::pair<Incarnation, GroupId>, Reduction> reductions_;
  std::map<Request, Asked> asked_;
  std::map<std::uint64_t, Placement> placements_;  // by epoch
  std::uint64_t opened_ = 0;
  std::set<Incarnation> lost_;
  std::vector<Tag> counted_;  // whose Ready the controller has taken
  // How many of them when it answered, by whose link and position.
  std::map<std::pair<Incarnation, Seq>, std::size_t> counted_at_answer_{{{0, 0}, 0}};
  std::map<Incarnation, std::size_t> counted_at_join_;  // when it was in a placement first
  std::map<std::pair<std::uint32_t, std::int64_t>, std::vector<double>> read_at_;
  std::map<std::uint32_t, std::int64_t> newest_read_;
  std::vector<double> start_;
  std::map<std::int64_t, std::vector<double>> moved_;  // mean of all steps, by the clock they end
  Incarnation incarnations_ = 0;
  std::uint64_t lives_ = 0;
  std::uint64_t tokens_ = 0;
  Request requests_ = 0;
  int reads_ = 0;
  int deaths_ = 0;
  int handovers_ = 0;
};

struct Setting {
  const char* name;
  Faults faults;
};

std::vector<Setting> Settings() {
  return {{"calm", {.none = true}},
          {"lossy", {.loss = 0.1, .duplicate = 0.1, .discard = 0.1}},
          {"failing pulls", {.pull_fails = 0.1}},
          {"restarts", {.loss = 0.02, .restart = 0.3}},
          {"lost leases", {.mute = 0.3}},
          {"deaths", {.death = 0.5}},
          {"all at once",
           {.loss = 0.05,
            .duplicate = 0.05,
            .pull_fails = 0.05,
            .restart = 0.1,
            .mute = 0.1,
            .death = 0.3,
            .discard = 0.05}}};
}

std::vector<SspOptions> Options() {
  using enum SspOptions::LearningRate;
  return {{.staleness = 0, .replicas = 1, .shards = 0},
          {.staleness = 3, .replicas = 1, .shards = 0},
          {.staleness = -1, .learning_rate = kStalenessAware, .replicas = 2, .shards = 5},
          {.staleness = 1, .learning_rate = kStalenessAware, .replicas = 0, .shards = 3},
          {.staleness = 0, .replicas = 2, .shards = 17}};
}

// More by hand: PRD_SEEDS=100.
std::uint64_t Seeds() {
  const char* seeds = std::getenv("PRD_SEEDS");
  return seeds != nullptr ? std::strtoull(seeds, nullptr, 10) : 3;
}

TEST(StoreWalkTest, NothingAcknowledgedIsLostAndAllFinish) {
  int reads = 0;
  int deaths = 0;
  int handovers = 0;
  for (const SspOptions& options : Options()) {
    for (const Setting& setting : Settings()) {
      for (std::uint64_t seed = 1; seed <= Seeds(); ++seed) {
        SCOPED_TRACE(std::string(setting.name) + ", staleness " +
                     std::to_string(options.staleness) + ", replicas " +
                     std::to_string(options.replicas) + ", seed " + std::to_string(seed));
        Cluster cluster(seed, 5, options, setting.faults);
        ASSERT_TRUE(cluster.Run()) << cluster.stuck();
        ASSERT_FALSE(HasFailure());
        for (const Status& status : cluster.statuses()) {
          // Who was lost when all others finished has no job to come back to.
          const bool lost = setting.faults.mute + setting.faults.death > 0;
          ASSERT_TRUE(status.ok() || (lost && status.code() == Code::kUnavailable))
              << status.ToString();
        }
        for (const Record& record : cluster.records()) {
          const auto* left = std::get_if<WorkerLeft>(&record.body);
          ASSERT_FALSE(left != nullptr && left->why == LeftReason::kEvicted) << left->reason;
        }
        reads += cluster.reads();
        deaths += cluster.deaths();
        handovers += cluster.handovers();
        if (seed > 1) continue;
        Cluster again(seed, 5, options, setting.faults);
        ASSERT_TRUE(again.Run());
        ASSERT_EQ(again.HistoryHash(), cluster.HistoryHash());
      }
    }
  }
  EXPECT_GT(reads, 100'000);
  EXPECT_GT(deaths, 50);
  EXPECT_GT(handovers, 500);
}

// Lines of tests/sim/mutants.md.
TEST(StoreWalkTest, DISABLED_MutantTable) {
  std::vector<sim::Mutant> mutants = sim::AllMutants();
  std::erase_if(mutants, [](const sim::Mutant& of) {
    return of.engine && EngineName(*of.engine) != EngineName(SspOptions{});
  });
  sim::Hunt("store_walk", mutants, 100, [](const sim::Mutant& mutant, std::uint64_t seed) {
    const std::vector<SspOptions> all = Options();
    const std::vector<Setting> settings = Settings();
    const Faults& faults = settings[seed / all.size() % settings.size()].faults;
    Cluster cluster(seed, 5, all[seed % all.size()], faults, mutant.mutation);
    if (!cluster.Run()) return true;
    for (const Status& status : cluster.statuses()) {
      const bool lost = faults.mute + faults.death > 0;
      if (!status.ok() && !(lost && status.code() == Code::kUnavailable)) return true;
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
