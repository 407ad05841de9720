#include "engines/job.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "engines/words.h"

namespace prd {
namespace {

constexpr std::uint32_t kStateVersion = 2;

// Far above any training run; keeps arithmetic on what peers say clear of overflow.
constexpr Iteration kMaxIteration = Iteration{1} << 53;
constexpr Iteration kMaxJump = 1'000'000;
constexpr std::int64_t kMaxSamples = std::int64_t{1} << 50;
constexpr std::size_t kMaxName = 256;
constexpr std::size_t kMaxEndpoints = 8;

template <typename T>
bool Erase(std::vector<T>* from, const T& value) {
  const auto it = std::find(from->begin(), from->end(), value);
  if (it == from->end()) return false;
  from->erase(it);
  return true;
}

}  // namespace

void Job::Worker::Archive(StateArchive& ar) {
  bool waiting = signal.has_value();
  Ready ready = signal.value_or(Ready{});
  ar(state, incarnation, host, host_name, pid, endpoints, iteration, group, last_group, last_ok,
     waiting, ready.iteration, ready.step_ns, ready.samples, held, finish_held, source, bare, since,
     link);
  if (!ar.saving()) signal = waiting ? std::optional<Ready>(ready) : std::nullopt;
}

void Job::Running::Archive(StateArchive& ar) {
  ar(kind, members, pending, ok, failed, iteration, aborted, failure, since);
}

Job::Job(RunId run, JobSpec spec)
    : run_(run), spec_(std::move(spec)), engine_(spec_.make_engine(spec_.engine)) {}

void Job::Start(Instant now, std::int64_t wall_ns, JobOutput* out) {
  PRD_CHECK(next_index_ == 0);
  now_ = now;
  out_ = out;
  Write(RunStarted{.job = spec_.name,
                   .engine = std::string(EngineName(spec_.engine)),
                   .spec = spec_.text,
                   .wall_ns = wall_ns});
  out_ = nullptr;
}

// ---- admission ----

bool Job::Present(Rank rank) const {
  return rank >= 0 && Index(rank) < workers_.size() &&
         workers_[Index(rank)].state != State::kAbsent;
}

std::optional<Refused> Job::CheckHello(const WorkerEnvelope& envelope, const Hello& hello) const {
  const auto no = [](std::string reason, Code code = Code::kInvalidArgument,
                     std::uint32_t retry_ms = 0) {
    return Refused{.code = code, .reason = std::move(reason), .retry_ms = retry_ms};
  };
  if (hello.version != kProtocolVersion) {
    return no("protocol version: found " + std::to_string(hello.version) + ", this daemon speaks " +
              std::to_string(kProtocolVersion));
  }
  if (envelope.incarnation == 0 || envelope.seq != 1) {
    return no("a Hello carries an incarnation other than 0 and sequence number 1");
  }
  if (hello.rank < kNoRank || hello.rank >= spec_.max_workers) {
    return no("rank: found " + std::to_string(hello.rank) + ", allowed is 0 to " +
              std::to_string(spec_.max_workers - 1) + " (max_workers of the job), or -1 for any");
  }
  if (hello.world_size < 0 || hello.world_size > spec_.max_workers) {
    return no("world size: found " + std::to_string(hello.world_size) + ", allowed is 0 to " +
              std::to_string(spec_.max_workers) + " (max_workers of the job)");
  }
  if (hello.iteration < 0 || hello.iteration > kMaxIteration) {
    return no("iteration: found " + std::to_string(hello.iteration) + ", out of range");
  }
  std::size_t longest = std::max(hello.host.size(), hello.host_name.size());
  for (const std::string& endpoint : hello.endpoints) longest = std::max(longest, endpoint.size());
  if (longest > kMaxName || hello.endpoints.empty() || hello.endpoints.size() > kMaxEndpoints) {
    return no("a Hello carries 1 to " + std::to_string(kMaxEndpoints) +
              " endpoints, and no text over " + std::to_string(kMaxName) + " bytes");
  }
  if (model_hash_ != 0 && hello.model_hash != model_hash_) {
    return no(
        "the model differs from that of the job's other workers: same tensors, in the same "
        "order, with the same sizes and dtypes are needed (this worker has " +
        std::to_string(hello.model_bytes) + " bytes of parameters)");
  }
  if (Count(State::kFinal) > 0) {
    return no("job " + spec_.name + " is taking its final average; a new run can begin after it",
              Code::kUnavailable, 500);
  }
  if (hello.rank == kNoRank && live_ >= spec_.max_workers) {
    return no("the job has all its " + std::to_string(spec_.max_workers) + " workers (max_workers)",
              Code::kResourceExhausted);
  }
  if (Present(hello.rank)) {
    const Worker& holder = workers_[Index(hello.rank)];
    return no("rank " + std::to_string(hello.rank) + " of job " + spec_.name + " is held by pid " +
                  std::to_string(holder.pid) + " on " + holder.host_name +
                  "; if that one is dead, its lease of " + std::to_string(spec_.lease_ms) +
                  " ms will run out",
              Code::kUnavailable, std::max(spec_.lease_ms / 4, 50u));
  }
  return std::nullopt;
}

Job::Admission Job::Admit(const WorkerEnvelope& envelope) const {
  using Verdict = Admission::Verdict;
  const auto refuse = [](Code code, std::string reason) {
    return Admission{.verdict = Verdict::kRefuse,
                     .refusal = Refused{.code = code, .reason = std::move(reason)}};
  };
  if (const auto* hello = std::get_if<Hello>(&envelope.body)) {
    const auto known = by_incarnation_.find(envelope.incarnation);
    if (known != by_incarnation_.end()) {
      return {.verdict = Verdict::kDuplicate, .rank = known->second};
    }
    std::optional<Refused> refusal = CheckHello(envelope, *hello);
    if (!refusal) return {.verdict = Verdict::kStep};
    return {.verdict = Verdict::kRefuse, .refusal = std::move(refusal)};
  }
  if (!Present(envelope.rank) ||
      workers_[Index(envelope.rank)].incarnation != envelope.incarnation) {
    return refuse(Code::kAborted, "rank " + std::to_string(envelope.rank) + " of job " +
                                      spec_.name +
                                      " is not held by this incarnation (any more): its lease ran "
                                      "out, it left, or it never joined");
  }
  if (std::holds_alternative<Heartbeat>(envelope.body) != (envelope.seq == 0)) {
    return refuse(Code::kInvalidArgument,
                  "heartbeats carry sequence number 0, and no other message does");
  }
  if (envelope.seq == 0) return {.verdict = Verdict::kStep, .rank = envelope.rank};
  switch (link(envelope.rank).Check(envelope.seq)) {
    case LinkEnd<ControllerBody>::Verdict::kDuplicate:
      return {.verdict = Verdict::kDuplicate, .rank = envelope.rank};
    case LinkEnd<ControllerBody>::Verdict::kGap:
      return {.verdict = Verdict::kGap, .rank = envelope.rank};
    case LinkEnd<ControllerBody>::Verdict::kDeliver:
      break;
  }
  return {.verdict = Verdict::kStep, .rank = envelope.rank};
}

// ---- one input ----

void Job::Step(Instant now, const Input& input, JobOutput* out) {
  PRD_CHECK(now >= now_ && !ended_);
  now_ = now;
  out_ = out;
  if (const auto* from = std::get_if<FromWorker>(&input)) {
    const WorkerEnvelope& envelope = from->envelope;
    Write(*from);
    if (std::holds_alternative<Hello>(envelope.body)) {
      OnHello(envelope);
    } else {
      const Rank rank = envelope.rank;
      At(rank).link.OnReceive(envelope.seq);
      At(rank).link.OnAck(envelope.ack);
      std::string wrong;
      if (const auto* ready = std::get_if<Ready>(&envelope.body)) wrong = OnReady(rank, *ready);
      if (const auto* done = std::get_if<Finished>(&envelope.body)) wrong = OnFinished(rank, *done);
      if (const auto* adopted = std::get_if<Adopted>(&envelope.body))
        wrong = OnAdopted(rank, *adopted);
      if (std::holds_alternative<Finish>(envelope.body)) wrong = OnFinish(rank);
      if (const auto* leave = std::get_if<Leave>(&envelope.body)) wrong = OnLeave(rank, *leave);
      if (!wrong.empty()) {
        out_->sends.push_back({rank,
                               {.incarnation = envelope.incarnation,
                                .body = Refused{.code = Code::kInvalidArgument, .reason = wrong}}});
        Remove(rank, LeftReason::kEvicted, wrong);
      }
    }
  } else if (const auto* expired = std::get_if<LeaseExpired>(&input)) {
    Write(*expired);
    Remove(expired->rank, LeftReason::kLost,
           "its lease of " + std::to_string(spec_.lease_ms) + " ms ran out");
  } else {
    Write(DeadlineReached{});
    ToEngine(DeadlineEvent{});
  }
  Progress();
  out_ = nullptr;
}

Record& Job::Write(RecordBody body) {
  return out_->records.emplace_back(
      Record{.run = run_, .index = next_index_++, .now = now_, .body = std::move(body)});
}

void Job::Send(Rank rank, ControllerBody body) {
  Worker& worker = At(rank);
  const auto& [seq, kept] = worker.link.Push(std::move(body));
  out_->sends.push_back({rank,
                         {.incarnation = worker.incarnation,
                          .seq = seq,
                          .ack = worker.link.last_in(),
                          .body = kept}});
}

void Job::SetState(Rank rank, State state) {
  Worker& worker = At(rank);
  --counts_[static_cast<std::size_t>(worker.state)];
  worker.state = state;
  ++counts_[static_cast<std::size_t>(state)];
  worker.since = now_;
}

void Job::OnHello(const WorkerEnvelope& envelope) {
  const Hello& hello = std::get<Hello>(envelope.body);
  Rank rank = hello.rank;
  if (rank == kNoRank) {
    rank = 0;
    while (Present(rank)) ++rank;
  }
  if (Index(rank) >= workers_.size()) workers_.resize(Index(rank) + 1);
  Worker& worker = At(rank);
  worker = Worker{};
  worker.incarnation = envelope.incarnation;
  worker.host = hello.host;
  worker.host_name = hello.host_name;
  worker.pid = hello.pid;
  worker.endpoints = hello.endpoints;
  worker.iteration = hello.iteration;
  worker.link.OnReceive(envelope.seq);
  SetState(rank, State::kJoining);
  by_incarnation_[envelope.incarnation] = rank;
  ++live_;
  if (model_hash_ == 0) model_hash_ = hello.model_hash;
  if (start_workers_ == 0) {
    start_workers_ = spec_.workers > 0 ? spec_.workers : std::max(1, hello.world_size);
  }
  Send(rank, Welcome{.run = run_,
                     .rank = rank,
                     .job = spec_.name,
                     .engine = std::string(EngineName(spec_.engine)),
                     .strategy = engine_->strategy(),
                     .workers = start_workers_,
                     .lease_ms = spec_.lease_ms,
                     .heartbeat_ms = spec_.heartbeat_ms,
                     .keep_initial = engine_->MayUseInitial()});
}

std::string Job::OnReady(Rank rank, const Ready& ready) {
  Worker& worker = At(rank);
  // After the common start a worker may be quicker with its first step than others with their
  // report.
  const bool early = worker.state == State::kStarting && worker.group == kNoGroup;
  if ((worker.state != State::kActive && !early) || worker.group != kNoGroup || worker.signal ||
      worker.finish_held) {
    return "a ready signal while " + Explain(now_, rank);
  }
  if (ready.iteration < worker.iteration || ready.iteration > worker.iteration + kMaxJump ||
      ready.iteration > kMaxIteration) {
    return "a ready signal for iteration " + std::to_string(ready.iteration) +
           ", after iteration " + std::to_string(worker.iteration);
  }
  if (ready.step_ns < 0 || ready.samples < 0 || ready.samples > kMaxSamples) {
    return "a ready signal with a step time of " + std::to_string(ready.step_ns) + " ns and " +
           std::to_string(ready.samples) + " samples";
  }
  worker.signal = ready;
  worker.since = now_;
  if (!worker.held) HandSignal(rank);
  return {};
}

std::string Job::OnFinished(Rank rank, const Finished& finished) {
  Worker& worker = At(rank);
  if (finished.group == kNoGroup || worker.group != finished.group) {
    return "a report on group " + std::to_string(finished.group) + " while " + Explain(now_, rank);
  }
  const GroupId id = finished.group;
  Running& group = groups_.at(id);
  const bool ok = finished.outcome == Outcome::kOk;
  Erase(&group.pending, rank);
  (ok ? group.ok : group.failed).push_back(rank);
  worker.group = kNoGroup;
  worker.last_group = id;
  worker.last_ok = ok;
  worker.since = now_;
  if (ok) {
    worker.iteration = group.iteration;
    worker.bare = false;
  }
  // Until the last member has reported, it is open whether those who failed go on from where they
  // are or from the others' result; and nobody trains before the common start is made.
  if (group.kind == GroupKind::kInitial || (!ok && AllOrNone(group.kind))) worker.held = true;
  if (group.kind == GroupKind::kTrain) {
    ToEngine(FinishedEvent{.rank = rank, .group = id, .ok = ok});
  }
  if (!ok) FailGroup(id, "it failed on rank " + std::to_string(rank) + ": " + finished.detail);
  EndIfDone(id);
  return {};
}

std::string Job::OnAdopted(Rank rank, const Adopted& adopted) {
  Worker& worker = At(rank);
  if (worker.source == kNoRank) return "an answer to no order to adopt";
  if (adopted.ok && (adopted.iteration < 0 || adopted.iteration > kMaxIteration)) {
    return "adopted a model of iteration " + std::to_string(adopted.iteration);
  }
  const Rank source = worker.source;
  worker.source = kNoRank;
  worker.since = now_;
  worker.signal.reset();  // sent before the order arrived; after a failure the worker signals again
  if (!adopted.ok) {
    const Rank other = SourceFor(rank, source);
    if (other != kNoRank) {
      OrderAdopt(rank, other, "rank " + std::to_string(source) + " did not answer");
    } else if (worker.state == State::kAdopting) {
      SetState(rank, State::kJoining);
    } else if (worker.bare) {
      ++stranded_;  // and held until somebody has a replica
    } else {
      worker.held = false;  // nobody has anything better than its own
    }
    return {};
  }
  worker.iteration = adopted.iteration;
  worker.held = false;
  worker.bare = false;
  if (worker.state == State::kAdopting) {
    Activate(rank, adopted.iteration, "adopted the model of rank " + std::to_string(source));
  }
  return {};
}

std::string Job::OnFinish(Rank rank) {
  Worker& worker = At(rank);
  if (worker.state == State::kStarting && worker.group == kNoGroup && !worker.signal) {
    worker.finish_held = true;
    return {};
  }
  if (worker.state != State::kActive || worker.group != kNoGroup || worker.signal || worker.held) {
    return "finished while " + Explain(now_, rank);
  }
  SetState(rank, State::kFinishing);
  Write(WorkerLeft{.rank = rank,
                   .incarnation = worker.incarnation,
                   .why = LeftReason::kFinished,
                   .reason = "finished at iteration " + std::to_string(worker.iteration)});
  ToEngine(LeftEvent{.rank = rank, .why = LeftReason::kFinished});
  return {};
}

std::string Job::OnLeave(Rank rank, const Leave& leave) {
  const std::string reason = leave.reason.substr(0, kMaxName);
  Send(rank, Released{.reason = "left: " + reason});
  Remove(rank, LeftReason::kLeft, reason);
  return {};
}

// ---- workers ----

void Job::Remove(Rank rank, LeftReason why, const std::string& reason) {
  const Worker gone = At(rank);
  if (Stranded(rank)) --stranded_;
  by_incarnation_.erase(gone.incarnation);
  SetState(rank, State::kAbsent);
  At(rank) = Worker{};
  --live_;
  Write(WorkerLeft{.rank = rank, .incarnation = gone.incarnation, .why = why, .reason = reason});
  if (gone.state == State::kActive) ToEngine(LeftEvent{.rank = rank, .why = why});
  if (gone.group == kNoGroup) return;
  Erase(&groups_.at(gone.group).pending, rank);
  FailGroup(gone.group, "rank " + std::to_string(rank) + " is gone: " + reason);
  EndIfDone(gone.group);
}

void Job::Activate(Rank rank, Iteration iteration, const std::string& reason) {
  Worker& worker = At(rank);
  SetState(rank, State::kActive);
  worker.iteration = iteration;
  Write(WorkerJoined{.rank = rank,
                     .incarnation = worker.incarnation,
                     .host_name = worker.host_name,
                     .pid = worker.pid,
                     .iteration = iteration,
                     .reason = reason});
  ToEngine(JoinedEvent{.rank = rank, .iteration = iteration, .host = worker.host});
}

void Job::HandSignal(Rank rank) {
  const Worker& worker = At(rank);
  if (worker.state == State::kActive && worker.signal) {
    ToEngine(ReadyEvent{.rank = rank, .ready = *worker.signal});
  }
}

Rank Job::SourceFor(Rank rank, Rank avoid) const {
  const Worker& taker = workers_[Index(rank)];
  // In a job of rounds only the newest replicas will do: one that has finished stays behind while
  // others train on.
  Iteration newest = 0;
  if (AllOrNone(GroupKind::kTrain)) {
    for (const Worker& w : workers_) {
      const bool trains = w.state == State::kActive || w.state == State::kFinishing;
      if (trains && !w.bare) newest = std::max(newest, w.iteration);
    }
  }
  Rank best = kNoRank;
  int best_score = -1;
  constexpr int kBest = 3;
  for (Rank r = 0; Index(r) < workers_.size() && best_score < kBest; ++r) {
    const Worker& w = workers_[Index(r)];
    const bool has_model = w.state == State::kActive || w.state == State::kFinishing ||
                           (w.state == State::kFinal && taker.state == State::kFinal);
    if (!has_model || r == rank || w.held || w.bare || w.source != kNoRank) continue;
    if (taker.state != State::kFinal && w.iteration < newest) continue;
    const int score = (r != avoid ? 2 : 0) + (w.host == taker.host ? 1 : 0);
    if (score > best_score) {
      best = r;
      best_score = score;
    }
  }
  return best;
}

void Job::OrderAdopt(Rank rank, Rank source, const std::string& reason) {
  Worker& worker = At(rank);
  const Worker& from = At(source);
  worker.source = source;
  worker.held = true;
  worker.since = now_;
  worker.signal.reset();
  Write(AdoptOrdered{.rank = rank, .source = source, .reason = reason});
  Send(rank, Adopt{.source = {.rank = source,
                              .incarnation = from.incarnation,
                              .weight = 0,
                              .host = from.host,
                              .endpoints = from.endpoints},
                   .reason = reason});
}

// ---- groups ----

bool Job::AllOrNone(GroupKind kind) const {
  return kind != GroupKind::kTrain || engine_->strategy() == Strategy::kReduceGradients;
}

void Job::ToEngine(const Event& event) {
  effects_.clear();
  engine_->Step(now_, event, &next_group_, &effects_);
  for (FormGroup& form : effects_) Announce(GroupKind::kTrain, std::move(form));
}

void Job::Announce(GroupKind kind, FormGroup form) {
  Group group{.id = form.id,
              .kind = kind,
              .members = {},
              .iteration = form.iteration,
              .initial_weight = form.initial_weight,
              .reason = form.reason};
  Running running{.kind = kind,
                  .members = form.members,
                  .pending = {},
                  .ok = {},
                  .failed = {},
                  .iteration = form.iteration,
                  .failure = {},
                  .since = now_};
  for (const GroupShare& share : form.members) {
    Worker& worker = At(share.rank);
    PRD_CHECK(worker.state != State::kAbsent && worker.group == kNoGroup);
    PRD_CHECK(kind != GroupKind::kTrain || (worker.state == State::kActive && worker.signal));
    worker.group = form.id;
    worker.signal.reset();
    worker.since = now_;
    running.pending.push_back(share.rank);
    group.members.push_back({.rank = share.rank,
                             .incarnation = worker.incarnation,
                             .weight = share.weight,
                             .host = worker.host,
                             .endpoints = worker.endpoints});
  }
  groups_.emplace_hint(groups_.end(), form.id, std::move(running));
  Write(GroupFormed{.id = form.id,
                    .kind = kind,
                    .members = form.members,
                    .iteration = form.iteration,
                    .initial_weight = form.initial_weight,
                    .reason = std::move(form.reason)});
  for (const GroupShare& share : form.members) Send(share.rank, group);
}

void Job::FailGroup(GroupId id, const std::string& why) {
  Running& group = groups_.at(id);
  if (group.aborted) return;
  group.aborted = true;
  group.failure = why;
  for (const Rank rank : group.pending) Send(rank, Abort{.group = id, .reason = why});
}

void Job::EndIfDone(GroupId id) {
  const auto it = groups_.find(id);
  if (!it->second.pending.empty()) return;
  const Running group = std::move(it->second);
  groups_.erase(it);
  // Who reported and then left, or came back as another incarnation, is neither.
  const auto still = [&](const std::vector<Rank>& ranks) {
    std::vector<Rank> present;
    for (const Rank rank : ranks) {
      if (Present(rank) && At(rank).last_group == id) present.push_back(rank);
    }
    return present;
  };
  const bool ok = group.ok.size() == group.members.size();
  Write(GroupEnded{.id = id, .ok = ok, .reason = ok ? std::string() : group.failure});
  if (group.kind == GroupKind::kTrain) ToEngine(EndedEvent{.group = id, .ok = ok});
  if (AllOrNone(group.kind)) Settle(group, still(group.ok), still(group.failed));
}

// An all-or-none group has ended: those who have its result are the truth.
void Job::Settle(const Running& group, const std::vector<Rank>& ok,
                 const std::vector<Rank>& failed) {
  if (group.kind == GroupKind::kInitial) {
    started_ = started_ || !ok.empty();
    for (const Rank rank : ok) {
      At(rank).held = false;
      Activate(rank, group.iteration, "common start");
    }
    for (const Rank rank : ok) {  // once the engine knows all of them
      HandSignal(rank);
      if (At(rank).finish_held) PRD_CHECK(OnFinish(rank).empty());
    }
    for (const Rank rank : failed) {
      At(rank).signal.reset();
      At(rank).held = false;
      SetState(rank, State::kJoining);
    }
    return;
  }
  for (const Rank rank : failed) {
    if (!ok.empty()) {
      OrderAdopt(rank, ok.front(), "others have the result of the group that failed here");
    } else if (group.kind == GroupKind::kFinal) {
      At(rank).held = false;
      SetState(rank, State::kFinishing);
    } else {
      At(rank).held = false;
      HandSignal(rank);
    }
  }
}

// ---- the job as a whole ----

// A group of all workers in `from`: the common start or the final average.
void Job::Collective(GroupKind kind, State from, State to) {
  FormGroup form{.id = next_group_++, .members = {}, .iteration = 0, .reason = {}};
  for (Rank rank = 0; Index(rank) < workers_.size(); ++rank) {
    if (At(rank).state != from) continue;
    form.members.push_back({.rank = rank, .weight = 0, .iteration = At(rank).iteration});
    SetState(rank, to);
  }
  if (kind == GroupKind::kInitial) {
    form.members.front().weight = 1;
    form.iteration = form.members.front().iteration;
    form.reason = "common start: " + std::to_string(form.members.size()) +
                  " workers take the parameters of rank " +
                  std::to_string(form.members.front().rank);
  } else {
    for (GroupShare& share : form.members) {
      share.weight = 1.0 / static_cast<double>(form.members.size());
      form.iteration = std::max(form.iteration, share.iteration);
    }
    form.reason = "final average of all " + std::to_string(form.members.size()) + " workers";
  }
  std::sort(form.members.begin(), form.members.end(), [this](const auto& a, const auto& b) {
    return std::pair(At(a.rank).host, a.rank) < std::pair(At(b.rank).host, b.rank);
  });
  Announce(kind, std::move(form));
}

// Lets late workers copy a running one's replica.
void Job::AdmitJoiners() {
  const bool rounds = AllOrNone(GroupKind::kTrain);
  // In a job of rounds, replicas stand still while no round runs; the joiner is part of the barrier
  // from now on, so none begins before it has caught up.
  if (rounds && !groups_.empty()) return;
  bool source_found = true;
  int left = Count(State::kJoining);
  for (Rank rank = 0; Index(rank) < workers_.size() && source_found && left > 0; ++rank) {
    if (At(rank).state != State::kJoining) continue;
    --left;
    const Rank source = SourceFor(rank, kNoRank);
    source_found = source != kNoRank;
    if (!source_found) break;
    const std::string reason = "joins a running job";
    if (rounds) {
      Activate(rank, At(source).iteration, reason);
    } else {
      SetState(rank, State::kAdopting);
    }
    OrderAdopt(rank, source, reason);
  }
  // Nobody has a trained replica any more: those who are there make a new common start.
  if (!source_found && Count(State::kJoining) == live_) started_ = false;
}

bool Job::Stranded(Rank rank) const {
  const Worker& worker = workers_[Index(rank)];
  return worker.state == State::kActive && worker.bare && worker.source == kNoRank;
}

// Workers of the barrier that have nothing to train yet: copies of whoever has a replica now, or
// back to the common start when nobody is left who might get one.
void Job::HelpStranded() {
  const bool hopeless = stranded_ + Count(State::kJoining) == live_;
  for (Rank rank = 0; Index(rank) < workers_.size() && stranded_ > 0; ++rank) {
    if (!Stranded(rank)) continue;
    const Rank source = SourceFor(rank, kNoRank);
    if (source == kNoRank && !hopeless) return;
    --stranded_;
    if (source != kNoRank) {
      OrderAdopt(rank, source, "joins a running job");
      continue;
    }
    SetState(rank, State::kJoining);
    At(rank).held = false;
    Write(WorkerLeft{.rank = rank,
                     .incarnation = At(rank).incarnation,
                     .why = LeftReason::kLeft,
                     .reason = "nobody has a model to copy: waits for a common start"});
    ToEngine(LeftEvent{.rank = rank, .why = LeftReason::kLeft});
  }
}

void Job::Progress() {
  if (stranded_ > 0) HelpStranded();
  if (Count(State::kJoining) > 0 && started_) AdmitJoiners();
  if (!started_ && Count(State::kStarting) == 0 && start_workers_ > 0 &&
      Count(State::kJoining) >= start_workers_) {
    Collective(GroupKind::kInitial, State::kJoining, State::kStarting);
  }
  if (live_ > 0 && Count(State::kFinishing) == live_) {
    Collective(GroupKind::kFinal, State::kFinishing, State::kFinal);
  }
  if (Count(State::kFinal) > 0 && groups_.empty()) {
    bool copying = false;
    for (const Worker& worker : workers_) {
      copying = copying || (worker.state == State::kFinal && worker.source != kNoRank);
    }
    for (Rank rank = 0; Index(rank) < workers_.size() && !copying; ++rank) {
      if (At(rank).state != State::kFinal) continue;
      Send(rank, Released{.reason = "the job is done"});
      Remove(rank, LeftReason::kLeft, "the job is done");
    }
  }
  if (live_ == 0 && !ended_ && start_workers_ > 0) {
    ended_ = true;
    Write(RunEnded{.reason = "the last worker has gone"});
  }
}

// ---- for people ----

std::string Job::Explain(Instant now, Rank rank) const {
  if (!Present(rank)) return "no worker holds rank " + std::to_string(rank);
  const Worker& worker = workers_[Index(rank)];
  const std::string age = words::Duration(now - worker.since);
  if (worker.group != kNoGroup) {
    const Running& group = groups_.at(worker.group);
    std::vector<Rank> members;
    for (const GroupShare& share : group.members) members.push_back(share.rank);
    return "in group " + std::to_string(worker.group) + " of " + words::Ranks(members) + " for " +
           age + "; not through yet: " + words::Ranks(group.pending) +
           (group.aborted ? "; called off: " + group.failure : "");
  }
  if (worker.source != kNoRank) {
    return "copying the model of rank " + std::to_string(worker.source) + " for " + age;
  }
  const std::string last = worker.last_group == kNoGroup
                               ? std::string()
                               : "; last: group " + std::to_string(worker.last_group) +
                                     (worker.last_ok ? ", ok" : ", failed here");
  switch (worker.state) {
    case State::kJoining:
      return started_ ? "waiting for the running round to end before it copies a model"
                      : "waiting for the common start: " + std::to_string(Count(State::kJoining)) +
                            " of " + std::to_string(start_workers_) + " workers are here";
    case State::kStarting:
      return "has the common start; waiting for the others to have it";
    case State::kFinishing: {
      std::vector<Rank> others;
      for (Rank r = 0; Index(r) < workers_.size(); ++r) {
        if (Present(r) && workers_[Index(r)].state != State::kFinishing) others.push_back(r);
      }
      return "finished " + age + " ago; waiting for " + words::Ranks(others) + " to finish";
    }
    case State::kFinal:
      return "has the final average; waiting for the others to have it";
    case State::kActive:
      if (worker.signal && worker.held) {
        return "ready; held back until all members of group " + std::to_string(worker.last_group) +
               " have reported";
      }
      if (worker.signal) return engine_->Explain(now, rank);
      return "computing after iteration " + std::to_string(worker.iteration) + " for " + age + last;
    case State::kAdopting:
    case State::kAbsent:
      break;
  }
  return "waiting";
}

// ---- the state as a value ----

void Job::Archive(StateArchive& ar) {
  std::uint32_t version = kStateVersion;
  ar(version);
  if (version != kStateVersion) ar.Fail();
  ar(next_index_, now_, start_workers_, started_, ended_, model_hash_, next_group_, workers_,
     groups_);
  engine_->Archive(ar);
}

Status Job::Load(std::string_view state) {
  StateArchive ar = StateArchive::Loader(state);
  Archive(ar);
  if (!ar.ok() || !ar.AtEnd()) {
    return Status(Code::kDataLoss, "the snapshot of run " + std::to_string(run_) +
                                       " is damaged, or of another version of prd");
  }
  live_ = 0;
  stranded_ = 0;
  counts_.fill(0);
  by_incarnation_.clear();
  for (Rank rank = 0; Index(rank) < workers_.size(); ++rank) {
    ++counts_[static_cast<std::size_t>(At(rank).state)];
    if (!Present(rank)) continue;
    ++live_;
    if (Stranded(rank)) ++stranded_;
    by_incarnation_[At(rank).incarnation] = rank;
  }
  return Status::Ok();
}

std::uint64_t Job::StateHash() const {
  StateArchive ar = StateArchive::Hasher();
  const_cast<Job*>(this)->Archive(ar);  // a Hasher only reads
  return HashBytes(ar.bytes());
}

}  // namespace prd
