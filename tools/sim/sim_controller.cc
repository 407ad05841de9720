#include "tools/sim/sim_controller.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "config/config.h"
#include "engines/engine_watch.h"
#include "engines/violation.h"
#include "tools/sim/trace.h"

namespace prd::sim {
namespace {

constexpr DurationNs kRetryWrite = 10 * kMillisecond;
constexpr std::uint64_t kIdentities = 0x6964656e74000000u;

std::string Words(const WorkerJoined& joined) {
  return RankName(joined.rank) + " joins at iteration " + std::to_string(joined.iteration) + ": " +
         joined.reason;
}
std::string Words(const WorkerLeft& left) {
  return RankName(left.rank) + " leaves: " + left.reason;
}
std::string Words(const GroupFormed& formed) {
  std::string text = GroupName(formed.id) + " of";
  for (const GroupShare& share : formed.members) text += " " + std::to_string(share.rank);
  return text + ": " + formed.reason;
}
std::string Words(const GroupEnded& ended) {
  return GroupName(ended.id) + " ends" + (ended.ok ? "" : ": " + ended.reason);
}
std::string Words(const AdoptOrdered& ordered) {
  return RankName(ordered.rank) + " is to copy rank " + std::to_string(ordered.source) + ": " +
         ordered.reason;
}
std::string Words(const UpdateDropped& dropped) {
  return RankName(dropped.rank) + " loses its update: " + dropped.reason;
}
std::string Words(const QueryAnswered& answered) {
  return RankName(answered.rank) + " is told " + (answered.ready ? "READY" : "NOT-READY") + " (" +
         std::to_string(answered.next) + "): " + answered.reason;
}
std::string Words(const ScheduleSet& set) {
  return std::to_string(set.members.size()) + " workers draw their groups from " +
         std::to_string(set.first) + " on: " + set.reason;
}
std::string Words(const NeighboursSet& set) {
  std::string text = RankName(set.rank) + " at " + std::to_string(set.at) + " gets updates of";
  for (const InEdge& edge : set.in) {
    text += " " + std::to_string(edge.rank) + " from " + std::to_string(edge.from) + " on,";
  }
  return text + ": " + set.reason;
}
std::string Words(const PlacementSet& set) {
  std::string text = "placement " + std::to_string(set.epoch) + ", shards at";
  for (const ShardPlace& place : set.shards) text += " " + std::to_string(place.owner);
  return text + ": " + set.reason;
}
std::string Words(const PlacementOpened& opened) {
  return "placement " + std::to_string(opened.epoch) + " opens";
}
std::string Words(const LeaseExpired& expired) {
  return "the lease of rank " + std::to_string(expired.rank) + " runs out";
}
std::string Words(const ProcessEnded& ended) {
  return "the process of rank " + std::to_string(ended.rank) + " has ended";
}
std::string Words(const FromWorker& from) {
  return "message " + std::to_string(from.envelope.seq) + " of rank " +
         std::to_string(from.envelope.rank) + ", kind " +
         std::to_string(from.envelope.body.index());
}
std::string Words(const RunStarted& started) {
  return "run of " + started.engine + " starts" +
         (started.former.known() ? ", after run " + std::to_string(started.former.run) : "");
}
std::string Words(const RunEnded& ended) { return "run ends: " + ended.reason; }
std::string Words(const DeadlineReached&) { return "a deadline of the engine"; }
std::string Words(const HistoryLost& lost) {
  return RankName(lost.rank) + " proves that the history lost its end";
}
std::string Words(const LinkChanged& changed) {
  return "the link between ranks " + std::to_string(changed.a) + " and " +
         std::to_string(changed.b) + (changed.works ? " works again" : " is broken") + ": " +
         changed.reason;
}

std::string Words(const HelloRefused& refused) {
  return RankName(refused.rank) + " is refused: " + refused.reason;
}
std::string Words(const OperatorActed& acted) {
  return acted.by + " says " + VerbName(acted.verb) +
         (acted.rank == kNoRank ? "" : " rank " + std::to_string(acted.rank)) +
         (acted.host.empty() ? "" : " host " + acted.host) +
         (acted.spec.empty() ? "" : " to " + acted.spec + ", in run " + std::to_string(acted.next));
}
std::string Words(const ReplicasDiffer& differ) {
  return "replicas differ after group " + std::to_string(differ.group) + ": " + differ.reason;
}
std::string Words(const GoalReached& goal) {
  return "the goal is reached with " + std::to_string(goal.trained.steps) + " steps";
}

std::string Words(const NumbersAveraged& averaged) {
  return "the mean of numbers of " + std::to_string(averaged.ranks.size()) + " workers, in round " +
         std::to_string(averaged.round);
}

std::string Words(const SharesSet& set) {
  std::string text = "shares";
  for (const ShareGiven& share : set.shares) {
    text += " " + std::to_string(share.rank) + ":" + std::to_string(share.samples);
  }
  return text + (set.more ? " more in step " : " from step ") + std::to_string(set.from) + ": " +
         set.reason;
}

// Where a copy of the controller writes to and sends to.
class Nowhere final : public History, public Messenger {
 public:
  Status Append(std::span<const Record>) override { return Status::Ok(); }
  Status SaveSnapshot(RunId, std::uint64_t, std::string_view) override { return Status::Ok(); }
  void Send(const ControllerEnvelope&) override {}
};

bool Forgets(const FaultsPart& faults) {
  return faults.forget > 0 || faults.wipe > 0 || faults.old_copy > 0;
}

}  // namespace

std::string Describe(const Record& record) {
  return "              record " + std::to_string(record.run) + "/" + std::to_string(record.index) +
         ": " + std::visit([](const auto& of) { return Words(of); }, record.body);
}

SimController::SimController(World* world, Mutation mutation,
                             std::function<void(const Record&)> seen, std::function<void()> forgot)
    : world_(world),
      mutation_(mutation),
      identities_(world->seed ^ kIdentities),
      forgot_(std::move(forgot)),
      store_(
          world->workload.controller.keep_records != 0,
          [this, seen](const Record& record) {
            laws_->Seen(record);
            const auto* ended = std::get_if<ProcessEnded>(&record.body);
            if (ended != nullptr) book_.Seen(record.now, *ended);
            seen(record);
          },
          Forgets(world->workload.faults)),
      book_(world->workload.job.death_grace_ms * kMillisecond) {
  NewLaws();
  store_.SetFate([this] {
    if (world_->Fault(world_->workload.faults.append_fails)) return HistoryStore::Fate::kFails;
    if (world_->Fault(world_->workload.faults.torn)) return HistoryStore::Fate::kTorn;
    return HistoryStore::Fate::kFine;
  });
  store_.SetTear([this](std::uint64_t bound) { return world_->prng.Below(bound); });
  front_ = MakeMutantHistory(mutation, &store_);
}

Result<JobSpec> SimController::Spec(const std::string& name) const {
  JobSpec spec = world_->workload.job;
  spec.name = name;
  if (spec.workers == 0) spec.workers = static_cast<int>(world_->workload.cluster.workers);
  spec.text = "simulated";
  if (mutation_ == Mutation::kDifferenceKept) spec.on_divergence = JobSpec::OnDivergence::kWarn;
  const int workers = spec.workers;
  spec.make_engine = [mutation = mutation_, workers](const EngineOptions& options) {
    return std::make_unique<EngineWatch>(MakeMutant(options, mutation, workers), options);
  };
  return spec;
}

// A switched run's text is its engine alone.
JobSpec SimController::SpecOf(const std::string& text) const {
  JobSpec spec = *Spec("sim");
  if (text == spec.text) return spec;
  const Result<EngineOptions> engine = ParseEngine(text);
  PRD_CHECK(engine.ok());
  spec.engine = *engine;
  spec.text = text;
  return spec;
}

void SimController::NewLaws() {
  laws_.emplace(MakeEngine(world_->workload.job.engine)->plan(), [this](const RunStarted& started) {
    return MakeEngine(SpecOf(started.spec).engine)->plan();
  });
}

// ---- death and recovery ----

std::unique_ptr<Controller> SimController::Recover(bool from_snapshots, History* history,
                                                   Messenger* messenger) {
  RunId first = 1;
  for (const auto& [id, run] : store_.runs()) first = std::max(first, id + 1);
  const ControllerPart& part = world_->workload.controller;
  const Controller::Options options{
      .first_run = first,
      .snapshot_every = static_cast<std::uint64_t>(part.snapshot_every),
      .random = [this] { return identities_.Next(); },
      .spec_of = [this](const std::string& text) -> Result<JobSpec> { return SpecOf(text); }};
  auto controller = std::make_unique<Controller>(
      options, [this](const std::string& name) { return Spec(name); }, history, messenger);
  for (const auto& [id, run] : store_.runs()) {
    const std::uint64_t from = from_snapshots ? run.snapshot_index : 0;
    const std::string_view state = from_snapshots ? std::string_view(run.snapshot) : "";
    const auto* started =
        run.records.empty() ? nullptr : std::get_if<RunStarted>(&run.records.front().body);
    const JobSpec spec = started != nullptr ? SpecOf(started->spec) : *Spec("sim");
    StoredRun stored(id, spec);
    Status status = stored.Load(state, from);
    if (status.ok()) status = stored.Add(std::span(run.records).subspan(from));
    if (status.ok()) status = controller->Restore(world_->now, std::move(stored));
    if (!status.ok()) throw Violation("replay-state", status.ToString());
  }
  return controller;
}

std::map<RunId, std::uint64_t> SimController::Hashes(const Controller& controller) const {
  std::map<RunId, std::uint64_t> hashes;
  for (const auto& [id, run] : controller.runs()) hashes[id] = run->StateHash();
  return hashes;
}

void SimController::Compare(const std::map<RunId, std::uint64_t>& had, const Controller& controller,
                            const char* how) const {
  if (Hashes(controller) != had) throw Violation("replay-state", how);
}

void SimController::Start() {
  History* history = front_ != nullptr ? front_.get() : &store_;
  controller_ = Recover(true, history, this);
  stalled_ = false;
  if (!store_.runs().empty()) {
    if (!hashes_.empty())
      Compare(hashes_, *controller_, "the state differs from that before the crash");
    Nowhere nowhere;
    const std::unique_ptr<Controller> other = Recover(false, &nowhere, &nowhere);
    Compare(Hashes(*controller_), *other,
            "replays from a snapshot and from the first record differ");
  }
  TurnAt(world_->now);
}

void SimController::CheckReplay() {
  if (controller_ == nullptr || controller_->pending() || front_ != nullptr) return;
  if (world_->workload.controller.keep_records == 0) return;
  Nowhere nowhere;
  const std::unique_ptr<Controller> other = Recover(false, &nowhere, &nowhere);
  Compare(Hashes(*controller_), *other, "a replay of the whole history gives another state");
}

void SimController::Die() {
  introductions_.ControllerDied();
  hashes_.clear();
  if (!controller_->pending() && front_ == nullptr) hashes_ = Hashes(*controller_);
  controller_.reset();
  inbox_.clear();
  connections_.clear();
  claims_.clear();
  ends_.clear();
  ended_.clear();
  book_.ControllerDied();
  front_ = MakeMutantHistory(mutation_, &store_);
  turn_at_ = {INT64_MAX};
  ++restarts_;
  if (world_->now < frozen_until_) frozen_until_ = busy_until_ = world_->now;
  const double away = world_->workload.faults.controller_away_ms * world_->prng.Unit();
  world_->queue.Push(world_->now + FromMs(away), EventKind::kControllerStarts);
  world_->Disturbed(world_->now + FromMs(away));
  if (Forgets(world_->workload.faults)) MayForget();
}

// What is left in the history is what the laws are about from now on: nothing that a controller
// does can follow from what it has forgotten.
void SimController::MayForget() {
  const FaultsPart& faults = world_->workload.faults;
  std::size_t lost = 0;
  if (world_->Rolled(faults.wipe)) {
    lost = store_.writes();
  } else if (world_->Rolled(faults.old_copy)) {
    lost = store_.WritesSince(world_->now - FromMs(faults.old_copy_ms * world_->dice.Unit()));
  } else if (world_->Rolled(faults.forget)) {
    const auto most = static_cast<std::uint64_t>(faults.forget_batches);
    lost = std::min(store_.writes(), static_cast<std::size_t>(1 + world_->dice.Below(most)));
  }
  if (lost == 0) return;
  store_.Forget(lost);
  world_->forgot = true;
  hashes_.clear();
  NewLaws();
  for (const auto& [id, run] : store_.runs()) {
    for (const Record& record : run.records) laws_->Seen(record);
  }
  forgot_();
}

void SimController::MayDie(DurationNs period) {
  const double share = static_cast<double>(period) / kSecond;
  if (world_->Fault(world_->workload.faults.controller_dies_per_s * share) &&
      controller_ != nullptr) {
    Die();
  }
}

void SimController::MayFreeze(DurationNs period) {
  const FaultsPart& faults = world_->workload.faults;
  const double share = static_cast<double>(period) / kSecond;
  if (world_->Rolled(faults.clock_steps_per_s * share)) {
    wall_ahead_ = FromMs(faults.clock_step_ms * (2 * world_->dice.Unit() - 1));
  }
  if (!world_->Rolled(faults.controller_freezes_per_s * share) || controller_ == nullptr) return;
  frozen_until_ = world_->now + world_->FreezeNs();
  busy_until_ = std::max(busy_until_, frozen_until_);
  world_->Disturbed(frozen_until_);
  book_.Held(world_->now, frozen_until_);
  TurnAt(frozen_until_);
}

// ---- messages ----

void SimController::TurnAt(Instant at) {
  at = std::max({at, world_->now, busy_until_});
  if (at >= turn_at_ && turn_at_ >= world_->now) return;
  turn_at_ = at;
  world_->queue.Push(at, EventKind::kTurn);
}

void SimController::Receive(Mailed mailed) {
  if (controller_ == nullptr || Swallows(mutation_, mailed.envelope)) return;
  if (mailed.connection > 0) {
    book_.Spoke(world_->now, mailed.envelope.incarnation, mailed.connection);
  }
  inbox_.push_back(std::move(mailed));
  Wake();
}

void SimController::OnConnectionEnds(std::uint32_t worker, std::uint64_t connection) {
  if (controller_ == nullptr) return;
  book_.Ended(world_->now, connection);
  if (mutation_ == Mutation::kEndForgotten && stalled_) return;
  ends_.push_back({.worker = worker, .connection = connection});
  Wake();
}

void SimController::Wake() {
  if (busy_until_ <= world_->now && !stalled_) {
    Turn();
  } else if (!stalled_) {
    TurnAt(busy_until_);
  }
}

void SimController::Turn() {
  if (controller_ == nullptr) return;
  if (turn_at_ <= world_->now) turn_at_ = {INT64_MAX};
  if (world_->now < busy_until_) return TurnAt(busy_until_);
  if (stalled_) return Flush();
  const double us = world_->workload.controller.service_us * static_cast<double>(inbox_.size());
  busy_until_ = world_->now + FromUs(us);
  book_.Held(world_->now, busy_until_);
  const std::int64_t wall_ns = world_->now.ns + wall_ahead_;
  for (const Mailed& mailed : inbox_) Take(mailed, wall_ns);
  inbox_.clear();
  TakeEnds();
  controller_->Tick(world_->now);
  Flush();
}

Status SimController::Act(const OperatorActed& act) {
  const Status away(Code::kUnavailable, "no controller, or it cannot write");
  if (controller_ == nullptr || stalled_ || world_->now < frozen_until_) return away;
  const Status status = controller_->Act(world_->now, "sim", act);
  if (!status.ok()) return status;
  Flush();  // it may die here, with or without the record
  return controller_ == nullptr || stalled_ ? away : status;
}

void SimController::TakeEnds() {
  for (const End& end : std::exchange(ends_, {})) {
    ended_.insert(end.connection);
    const auto claim = claims_.find(end.connection);
    if (end.whose != 0 && connections_[end.whose] != end.connection) continue;  // back since
    Incarnation whose = end.whose != 0 ? end.whose : claim == claims_.end() ? 0 : claim->second;
    if (mutation_ == Mutation::kOldEndCounts) {
      for (const auto& [connection, incarnation] : claims_) {
        if (WorkerOf(incarnation) == end.worker) whose = incarnation;
      }
    }
    if (whose != 0) controller_->Connection(world_->now, whose, false);
  }
}

void SimController::Claim(const Mailed& mailed) {
  const auto& [envelope, connection] = mailed;
  if (connection == 0) return;
  std::uint64_t& newest = connections_[envelope.incarnation];
  if (connection < newest) return;
  if (connection > newest) {
    claims_.erase(newest);
    newest = connection;
    claims_[connection] = envelope.incarnation;
    controller_->Connection(world_->now, envelope.incarnation, true);
  }
  if (!ended_.contains(connection)) return;
  ends_.push_back({.worker = WorkerOf(envelope.incarnation),
                   .connection = connection,
                   .whose = envelope.incarnation});
}

void SimController::Take(const Mailed& mailed, std::int64_t wall_ns) {
  const WorkerEnvelope& envelope = mailed.envelope;
  if (world_->workload.faults.forgeries_per_s > 0) {
    if (const auto owner = Forged(envelope)) {
      return CheckForged(envelope, *owner->first, owner->second, wall_ns);
    }
  }
  Claim(mailed);
  const auto* reports = std::get_if<Finished>(&envelope.body);
  if (mutation_ == Mutation::kHintIsProof && reports != nullptr) {
    const auto run = controller_->runs().find(envelope.run);
    for (const Rank other : reports->unreachable) {
      if (run == controller_->runs().end() || other < 0) continue;
      const auto& workers = run->second->workers();
      if (static_cast<std::size_t>(other) >= workers.size()) continue;
      controller_->Connection(world_->now, workers[static_cast<std::size_t>(other)].incarnation,
                              false);
    }
  }
  WorkerEnvelope taken = envelope;
  if (auto* hello = std::get_if<Hello>(&taken.body);
      hello != nullptr && mutation_ == Mutation::kFinishedForgotten && HasFinished(hello->former)) {
    hello->former = {};
  }
  Conceal(mutation_, *controller_, &taken);
  controller_->Receive(world_->now, wall_ns, taken);
}

void SimController::CheckForged(const WorkerEnvelope& forged, const Run& run, Rank rank,
                                std::int64_t wall_ns) {
  const auto marks = [&] {
    const Controller::Counters& of = controller_->counters();
    return std::vector<std::uint64_t>{of.duplicates, of.gaps, of.refused, of.resent};
  };
  const std::vector<std::uint64_t> before = marks();
  const std::map<RunId, std::uint64_t> hashes = Hashes(*controller_);
  const std::optional<DurationNs> silence = controller_->Silence(world_->now, run.id(), rank);
  WorkerEnvelope taken = forged;
  Conceal(mutation_, *controller_, &taken);
  controller_->Receive(world_->now, wall_ns, taken);
  const char* const what = Hashes(*controller_) != hashes ? "changes the job"
                           : marks() != before            ? "is answered"
                           : controller_->Silence(world_->now, run.id(), rank) != silence
                               ? "counts as a sign of life"
                               : nullptr;
  if (what == nullptr) return;
  throw Violation("forged", std::string("a ") + WordOf(forged.body) + " in the name of rank " +
                                std::to_string(rank) + ", without its token, " + what);
}

std::optional<std::pair<const Run*, Rank>> SimController::Forged(
    const WorkerEnvelope& envelope) const {
  for (const auto& [id, run] : controller_->runs()) {
    for (std::size_t i = 0; i < run->workers().size(); ++i) {
      const RunWorker& worker = run->workers()[i];
      if (worker.incarnation != envelope.incarnation || worker.incarnation == 0) continue;
      if (worker.token == envelope.token) return std::nullopt;
      return std::pair<const Run*, Rank>(run.get(), static_cast<Rank>(i));
    }
  }
  return std::nullopt;
}

bool SimController::HasFinished(const RunIdentity& run) const {
  return std::any_of(store_.runs().begin(), store_.runs().end(), [&](const auto& entry) {
    const std::vector<Record>& records = entry.second.records;
    const auto* started =
        records.empty() ? nullptr : std::get_if<RunStarted>(&records.front().body);
    const auto* ended = records.empty() ? nullptr : std::get_if<RunEnded>(&records.back().body);
    return started != nullptr && ended != nullptr && ended->finished &&
           started->identity.high == run.high;
  });
}

void SimController::Flush() {
  try {
    stalled_ = !controller_->Flush().ok();
  } catch (const ControllerDied&) {
    Die();
    hashes_.clear();  // what it had in mind is not what the disk has
    return;
  }
  if (stalled_) {
    book_.Held(world_->now, world_->now + kRetryWrite);
    return TurnAt(world_->now + kRetryWrite);
  }
  if (world_->control.tells_ends()) book_.Check(world_->now, *controller_);
  introductions_.EndTurn();
  const std::optional<Instant> next = controller_->NextDeadline();
  if (next) TurnAt(*next);
  if (!inbox_.empty()) TurnAt(busy_until_);
}

void SimController::Send(const ControllerEnvelope& envelope) {
  laws_->Sent(envelope);
  const std::optional<ControllerEnvelope> other = Twisted(mutation_, envelope);
  introductions_.Sent(other ? *other : envelope);
  world_->control.SendToWorker(other ? *other : envelope);
}

}  // namespace prd::sim
