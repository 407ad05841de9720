#include "engines/controller.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "engines/run_limits.h"

namespace prd {
namespace {

constexpr std::size_t kMaxJobName = 256;

constexpr std::uint32_t kRetryRestoredMs = 100;

// A run takes note of so many refusals in a minute, and of the same one again after this.
constexpr std::size_t kMaxNoted = 32;
constexpr DurationNs kNotedFor = 60 * kSecond;
constexpr DurationNs kNoteAgain = 10 * kSecond;

std::uint64_t DrawNonZero(const std::function<std::uint64_t()>& random) {
  PRD_CHECK(random != nullptr);
  for (;;) {
    if (const std::uint64_t drawn = random(); drawn != 0) return drawn;
  }
}

}  // namespace

Controller::Controller(Options options, Catalog catalog, History* history, Messenger* messenger)
    : options_(std::move(options)),
      catalog_(std::move(catalog)),
      history_(history),
      messenger_(messenger),
      next_run_(options_.first_run),
      epoch_(DrawNonZero(options_.random)),
      links_(epoch_, options_.over_ack_limit, &sends_, &counters_) {}

// ---- restore ----

Status Controller::Restore(Instant now, StoredRun stored) {
  std::unique_ptr<Run> run = stored.TakeRun();
  const RunId id = run->id();
  next_run_ = std::max(next_run_, id + 1);
  // The last batch was torn: its decisions are recorded before any of them is sent.
  records_.insert(records_.end(), stored.open().begin(), stored.open().end());
  for (const RankTally& tally : run->tallies()) NoteGone(*run, tally.gone);
  for (const Incarnation left : stored.left()) NoteGone(*run, left);
  tombstones_.RememberDismissed(run->dismissed());
  if (run->ended()) RememberEnded(id, run->spec().name, run->identity().high, run->finished());
  restorer_.RemoveNextRun(id);
  if (run->switching()) {
    const RunId next = run->switching()->next;
    next_run_ = std::max(next_run_, next + 1);
    if (run->next() != nullptr && !runs_.contains(next)) {
      restorer_.AddNextRun(next, NextRunOf(*run, now));
    }
  }
  if (run->ended()) return Status::Ok();
  if (by_name_.contains(run->spec().name)) {
    return Status(Code::kDataLoss, "job " + run->spec().name + " has two runs that have not ended");
  }
  by_name_[run->spec().name] = id;
  states_[id].snapshot_at = stored.loaded();
  links_.AddRun(now, *run);
  for (Rank rank = 0; RankIndex(rank) < run->workers().size(); ++rank) {
    const RunWorker& worker = run->workers()[RankIndex(rank)];
    if (worker.state == WorkerState::kAbsent) continue;
    links_.Heard(now, *run, rank);
    presence_.Add(id, worker.incarnation, worker.identity);
  }
  restorer_.Add(*run);
  Schedule(*run);
  runs_[id] = std::move(run);
  return Status::Ok();
}

// ---- messages ----

void Controller::Receive(Instant now, std::int64_t wall_ns, const WorkerEnvelope& envelope) {
  ++counters_.messages;
  StartNextRuns(now);
  if (Foreign(envelope)) {
    ++counters_.foreign;
    return;
  }
  if (tombstones_.WhyDismissed(envelope.incarnation) != nullptr) {
    Refuse(envelope.incarnation, {});
    return;
  }
  if (std::holds_alternative<Hello>(envelope.body)) {
    OnHello(now, wall_ns, envelope);
    return;
  }
  const auto it = runs_.find(envelope.run);
  if (it == runs_.end() || it->second->ended()) {
    Refuse(envelope.incarnation, {.code = Code::kAborted,
                                  .reason = "run " + std::to_string(envelope.run) +
                                            " is not (or no longer) running here"});
    return;
  }
  OnMember(now, it->second.get(), envelope);
  Schedule(*it->second);
}

Status Controller::Act(Instant now, const std::string& name, OperatorActed act) {
  StartNextRuns(now);
  Run* const run = Running(name);
  if (run == nullptr) return Status(Code::kNotFound, "no run of job " + name + " goes on");
  if (restorer_.Waits(run->id())) {
    return Status(Code::kUnavailable,
                  "the daemon has just started, and waits to hear from the workers of job " + name +
                      "; try again");
  }
  if (act.verb == OperatorVerb::kSwitch) PRD_RETURN_IF_ERROR(CheckSwitch(*run, &act));
  PRD_RETURN_IF_ERROR(run->CheckAct(act));
  if (act.verb == OperatorVerb::kSwitch) ++next_run_;
  StepRun(now, run, act);
  Schedule(*run);
  return Status::Ok();
}

// All that would be found too late by the run that is to follow.
Status Controller::CheckSwitch(const Run& run, OperatorActed* act) const {
  PRD_CHECK(options_.spec_of != nullptr);
  const Result<JobSpec> spec = options_.spec_of(act->spec);
  if (!spec.ok()) return spec.status();
  act->next = next_run_;
  if (spec->batch > 0 && spec->batch < run.live()) {
    return Status(Code::kFailedPrecondition,
                  "a batch of " + std::to_string(spec->batch) + " samples is too few for the " +
                      std::to_string(run.live()) + " workers of job " + run.spec().name);
  }
  if (!NeedsGradients(spec->make_engine(spec->engine)->plan())) return Status::Ok();
  for (Rank rank = 0; RankIndex(rank) < run.workers().size(); ++rank) {
    const RunWorker& worker = run.workers()[RankIndex(rank)];
    if (worker.state == WorkerState::kAbsent || worker.gradients != HasGradients::kNone) continue;
    return Status(Code::kFailedPrecondition,
                  "engine " + std::string(EngineName(spec->engine)) +
                      " reduces gradients, and rank " + std::to_string(rank) + " of job " +
                      run.spec().name + " (pid " + std::to_string(worker.pid) + " on " +
                      worker.host_name + ") has attached without any");
  }
  return Status::Ok();
}

// In the name of an incarnation that is here, whatever run and rank the message names: a refusal
// would go to that incarnation.
bool Controller::Foreign(const WorkerEnvelope& envelope) const {
  const auto own = runs_.find(envelope.run);
  if (own != runs_.end() && envelope.rank >= 0) {  // most messages are what they say
    const std::vector<RunWorker>& workers = own->second->workers();
    const bool holds = RankIndex(envelope.rank) < workers.size() &&
                       workers[RankIndex(envelope.rank)].incarnation == envelope.incarnation;
    if (holds) return workers[RankIndex(envelope.rank)].token != envelope.token;
  }
  const std::vector<RunId> runs = presence_.RunsOf(envelope.incarnation);
  return std::any_of(runs.begin(), runs.end(),
                     [&](RunId run) { return IsForeign(*runs_.at(run), envelope); });
}

RunId Controller::RunOf(const std::string& job) const {
  const auto run = by_name_.find(job);
  return run == by_name_.end() ? kNoRun : run->second;
}

Run* Controller::Running(const std::string& name) const {
  const auto run = by_name_.find(name);
  if (run == by_name_.end() || runs_.at(run->second)->ended()) return nullptr;
  return runs_.at(run->second).get();
}

void Controller::OnHello(Instant now, std::int64_t wall_ns, const WorkerEnvelope& envelope) {
  const Hello& hello = std::get<Hello>(envelope.body);
  if (hello.job.empty() || hello.job.size() > kMaxJobName) {
    RefuseHello(
        now, nullptr, envelope,
        {.code = Code::kInvalidArgument,
         .reason = "a job's name has 1 to 256 bytes, found " + std::to_string(hello.job.size())});
    return;
  }
  // Its worker has gone on from there: admitted again, it would speak of what it did before.
  if (tombstones_.IsGone(envelope.incarnation)) {
    Refuse(envelope.incarnation,
           {.code = Code::kAborted, .reason = "this incarnation is over: it left, or was lost"});
    return;
  }
  // Not to be admitted to another run either: its replica is that of a job that is done.
  if (std::string why = tombstones_.RejectReason(hello.former); !why.empty()) {
    RefuseHello(now, nullptr, envelope,
                {.code = Code::kFailedPrecondition, .reason = std::move(why)});
    return;
  }
  std::unique_ptr<Run> fresh;
  Run* run = Running(hello.job);
  if (run == nullptr) {
    Result<JobSpec> spec = catalog_(hello.job);
    if (!spec.ok()) {
      RefuseHello(now, nullptr, envelope,
                  {.code = spec.status().code(), .reason = spec.status().message()});
      return;
    }
    fresh = std::make_unique<Run>(next_run_, std::move(spec).value());
    run = fresh.get();
  }
  const Admission admission = run->Admit(envelope);
  if (fresh == nullptr && restorer_.Waits(run->id()) &&
      admission.verdict == Admission::Verdict::kStep) {
    Refuse(envelope.incarnation,
           {.code = Code::kUnavailable,
            .reason = "the daemon has just started, and waits to hear from the workers of job " +
                      hello.job,
            .retry_ms = kRetryRestoredMs});
    return;
  }
  switch (admission.verdict) {
    case Admission::Verdict::kRefuse:
      RefuseHello(now, fresh == nullptr ? run : nullptr, envelope, *admission.refusal);
      return;
    case Admission::Verdict::kDuplicate:
      ++counters_.duplicates;
      links_.Heard(now, *run, admission.rank);
      links_.Resend(now, *run, admission.rank);
      Schedule(*run);
      return;
    case Admission::Verdict::kGap:
    case Admission::Verdict::kForeign:
      return;
    case Admission::Verdict::kStep:
      break;
  }
  if (fresh != nullptr) {
    ++next_run_;
    Begin(now, wall_ns, {}, std::move(fresh));
  }
  StepRun(now, run, FromWorker{envelope});
  Schedule(*run);
}

void Controller::Begin(Instant now, std::int64_t wall_ns, const FormerRun& former,
                       std::unique_ptr<Run> run) {
  RunOutput output;
  run->Start(now, wall_ns, {DrawNonZero(options_.random), epoch_}, former, &output);
  for (Record& record : output.records) records_.push_back(std::move(record));
  const RunId id = run->id();
  by_name_[run->spec().name] = id;
  links_.AddRun(now, *run);
  runs_[id] = std::move(run);
}

// The run of this number goes on where another one has ended.
void Controller::StartNextRun(Instant now, RunId run, const NextRun& next) {
  Result<JobSpec> spec = options_.spec_of(next.spec);
  // It was when the switch was recorded, perhaps by another version of prd: the workers begin anew.
  if (!spec.ok()) return;
  Begin(now, next.wall_ns, next.former, std::make_unique<Run>(run, *std::move(spec)));
  tombstones_.RememberDismissed(runs_.at(run)->dismissed());
  Schedule(*runs_.at(run));
}

void Controller::StartNextRuns(Instant now) {
  if (!restorer_.has_next_runs()) return;
  for (const auto& [run, next] : restorer_.TakeNextRuns()) StartNextRun(now, run, next);
}

// The run of this job takes note of it, now and then: others may wait for this worker. Without a
// run, or while that takes no input, the daemon's log does.
void Controller::RefuseHello(Instant now, Run* run, const WorkerEnvelope& envelope,
                             Refused refusal) {
  const Hello& hello = std::get<Hello>(envelope.body);
  const HelloRefused refused{.rank = hello.rank,
                             .host_name = hello.host_name.substr(0, kMaxName),
                             .pid = hello.pid,
                             .code = refusal.code,
                             .reason = refusal.reason};
  Refuse(envelope.incarnation, std::move(refusal));
  if (run == nullptr || restorer_.Waits(run->id())) {
    if (options_.refused) options_.refused(hello.job.substr(0, kMaxJobName), refused);
    return;
  }
  std::deque<Noted>& noted = states_[run->id()].noted;
  while (!noted.empty() && now - noted.front().at >= kNotedFor) noted.pop_front();
  const bool again = std::any_of(noted.begin(), noted.end(), [&](const Noted& known) {
    return known.refused == refused && now - known.at < kNoteAgain;
  });
  if (again || noted.size() >= kMaxNoted) return;
  noted.push_back({.at = now, .refused = refused});
  StepRun(now, run, refused);
  Schedule(*run);
}

void Controller::OnMember(Instant now, Run* run, const WorkerEnvelope& envelope) {
  Admission admission = run->Admit(envelope);
  if (admission.verdict == Admission::Verdict::kRefuse) {
    Refuse(envelope.incarnation, *admission.refusal);
    return;
  }
  if (admission.verdict == Admission::Verdict::kForeign) return;
  const Rank rank = admission.rank;
  bool over_limit = false;
  if (restorer_.WaitsFor(run->id(), rank)) {
    links_.Heard(now, *run, rank);
    if (!Confirm(now, run, rank, envelope)) return;
    admission = run->Admit(envelope);  // messages that were held have been taken since
  } else {
    if (envelope.ack > run->link(rank).last_out()) {
      Refuse(envelope.incarnation,
             {.code = Code::kAborted,
              .reason = RankName(rank) + " acknowledges what it was not sent"});
      return;
    }
    if (envelope.identity.low != epoch_) return;  // from before the restart; comes again
    links_.OnAck(now, run, rank, envelope.ack);
    over_limit = links_.OverAckLimit(*run, rank);
    if (!over_limit) links_.Heard(now, *run, rank);
  }
  if (restorer_.Waits(run->id())) {
    if (envelope.seq != 0) restorer_.Hold(envelope);
    return;
  }
  switch (admission.verdict) {
    case Admission::Verdict::kStep:
      if (envelope.seq != 0) {
        if (!over_limit) StepRun(now, run, FromWorker{envelope});
        return;
      }
      links_.OnHeartbeat(now, *run, rank);
      return;
    case Admission::Verdict::kDuplicate:
      // The worker lacks our answer, or only its acknowledgement.
      ++counters_.duplicates;
      links_.Resend(now, *run, rank);
      links_.Acknowledge(now, *run, rank);
      return;
    case Admission::Verdict::kGap:
      ++counters_.gaps;
      links_.Acknowledge(now, *run, rank);
      return;
    case Admission::Verdict::kRefuse:
    case Admission::Verdict::kForeign:
      return;
  }
}

// The first words of a restored worker in this life. False: there is nothing more to do with the
// message.
bool Controller::Confirm(Instant now, Run* run, Rank rank, const WorkerEnvelope& envelope) {
  if (envelope.identity.low != epoch_) {  // it has not heard of this life yet
    links_.Acknowledge(now, *run, rank);
    return false;
  }
  if (restorer_.ProvesLoss(*run, rank, envelope)) {
    ++counters_.histories_lost;
    StepRun(now, run, HistoryLost{.rank = rank, .incarnation = envelope.incarnation});
    return false;
  }
  restorer_.EndWait(run->id(), rank);
  links_.OnAck(now, run, rank, envelope.ack);
  links_.OnReturn(now, *run, rank);
  TakeHeld(now, run);
  return !run->ended();
}

// All workers of a restored run have been heard, or are gone.
void Controller::TakeHeld(Instant now, Run* run) {
  for (const WorkerEnvelope& envelope : restorer_.TakeHeld(run->id())) {
    if (run->ended()) return;
    OnMember(now, run, envelope);
  }
}

void Controller::StepRun(Instant now, Run* run, const Input& input) {
  output_.records.clear();
  output_.sends.clear();
  run->Step(now, input, &output_);
  NoteGone(*run, output_.records);
  tombstones_.RememberDismissed(run->dismissed());
  if (run->ended()) {
    RememberEnded(run->id(), run->spec().name, run->identity().high, run->finished());
    ended_.push_back(run->id());
  }
  for (RunOutput::Outgoing& send : output_.sends) {
    // Nothing goes to a worker that may know of messages that this controller has forgotten.
    if (send.envelope.seq != 0 && restorer_.WaitsFor(run->id(), send.rank)) continue;
    links_.Send(*run, send.rank, std::move(send.envelope));
  }
  for (const Record& record : output_.records) {
    const auto* left = std::get_if<WorkerLeft>(&record.body);
    if (left != nullptr) restorer_.EndWait(run->id(), left->rank);
  }
  for (Record& record : output_.records) records_.push_back(std::move(record));
  if (run->ended() && run->next() != nullptr) {
    StartNextRun(now, run->switching()->next, NextRunOf(*run, now));
  }
  const auto* from = std::get_if<FromWorker>(&input);
  if (from == nullptr) return;
  Rank rank = from->envelope.rank;
  if (std::holds_alternative<Hello>(from->envelope.body)) {
    rank = output_.sends.front().rank;  // its Welcome
    const RunWorker& worker = run->workers()[RankIndex(rank)];
    presence_.Add(run->id(), worker.incarnation, worker.identity);
    links_.Joined(now, *run, rank);
    return;
  }
  if (run->workers()[RankIndex(rank)].incarnation != from->envelope.incarnation)
    return;  // it has left
  if (const auto* finished = std::get_if<Finished>(&from->envelope.body)) {
    AckUnreachable(now, *run, finished->unreachable);
  }
  links_.OnTaken(now, *run, rank, from->envelope.seq);
}

// A peer reports these as unreachable, which proves nothing: the peer may be the one that is cut
// off, or lie. Each is sent an acknowledgement. If its host was reset, the kernel there answers
// with the end of the connection. The job has checked the ranks, and evicts who names others.
void Controller::AckUnreachable(Instant now, const Run& run, const std::vector<Rank>& ranks) {
  for (const Rank rank : ranks) {
    if (run.workers()[RankIndex(rank)].state != WorkerState::kAbsent)
      links_.Acknowledge(now, run, rank);
  }
}

// WorkerLeft does not always mean gone: a worker may have finished, or joined anew with its own
// model.
void Controller::NoteGone(const Run& run, std::span<const Record> records) {
  for (const Record& record : records) {
    const auto* left = std::get_if<WorkerLeft>(&record.body);
    if (left != nullptr && left->rank >= 0) NoteGone(run, left->incarnation);
  }
}

void Controller::NoteGone(const Run& run, Incarnation incarnation) {
  if (incarnation == 0 || run.RankOf(incarnation) != kNoRank) return;
  presence_.Remove(run.id(), incarnation);
  tombstones_.RememberGone(incarnation);
}

// A worker that an operator has removed receives nothing but this refusal.
void Controller::Refuse(Incarnation to, Refused refusal) {
  ++counters_.refused;
  if (const std::string* const why = tombstones_.WhyDismissed(to)) {
    refusal = {.code = Code::kFailedPrecondition, .reason = *why};
  }
  sends_.push_back({.incarnation = to, .body = std::move(refusal)});
}

// ---- time ----

// Notes when Tick is to look at this run. Called after whatever may have changed that.
void Controller::Schedule(const Run& run) {
  RunState& state = states_[run.id()];
  std::optional<Instant> due;
  if (!run.ended()) {
    if (!restorer_.Waits(run.id())) due = run.NextDeadline();
    const std::optional<Instant> links = links_.NextDeadline(run);
    if (links && (!due || *links < *due)) due = links;
  }
  if (due == state.due) return;
  if (state.due) due_.erase({*state.due, run.id()});
  if (due) due_.emplace(*due, run.id());
  state.due = due;
}

void Controller::Tick(Instant now) {
  StartNextRuns(now);
  links_.NoteSleep(now);
  std::vector<RunId> runs;
  for (auto it = due_.begin(); it != due_.end() && it->first <= now; ++it) {
    runs.push_back(it->second);
  }
  std::sort(runs.begin(), runs.end());  // by id, whichever was due first
  for (const RunId id : runs) {
    Run& run = *runs_.at(id);
    while (!run.ended()) {
      const std::optional<Input> lost = links_.NextLost(now, run);
      if (!lost) break;
      StepRun(now, &run, *lost);
    }
    TakeHeld(now, &run);
    if (!run.ended() && !restorer_.Waits(id)) {
      const std::optional<Instant> deadline = run.NextDeadline();
      if (deadline && *deadline <= now) StepRun(now, &run, DeadlineReached{});
    }
    Schedule(run);
  }
  links_.SendDueAcks(now);
}

void Controller::Connection(Instant now, Incarnation incarnation, bool there) {
  for (const RunId id : presence_.RunsOf(incarnation)) {
    const Run& run = *runs_.at(id);
    const Rank rank = run.RankOf(incarnation);
    if (rank == kNoRank || run.ended()) continue;
    if (links_.OnConnection(now, run, rank, there)) Schedule(run);
  }
}

std::optional<Instant> Controller::NextDeadline() const {
  std::optional<Instant> next = links_.NextAck();
  if (!due_.empty() && (!next || due_.begin()->first < *next)) next = due_.begin()->first;
  return next;
}

// ---- out ----

Status Controller::Flush() {
  if (!records_.empty()) {
    PRD_RETURN_IF_ERROR(history_->Append(records_));
    counters_.records += records_.size();
    TakeSnapshots();
    records_.clear();
  }
  for (const ControllerEnvelope& envelope : sends_) messenger_->Send(envelope);
  sends_.clear();
  DropEnded();
  return Status::Ok();
}

// For the runs that have records in this batch.
void Controller::TakeSnapshots() {
  RunId last = kNoRun;
  for (const Record& record : records_) {
    if (std::exchange(last, record.run) == record.run) continue;
    const auto run = runs_.find(record.run);
    if (run == runs_.end()) continue;
    RunState& state = states_[record.run];
    const std::uint64_t next = run->second->next_index();
    if (next - state.snapshot_at < options_.snapshot_every) continue;
    // A failed snapshot only lengthens replay; the next is due after snapshot_every more records.
    (void)history_->SaveSnapshot(record.run, next, SaveState(*run->second)).ok();
    state.snapshot_at = next;
  }
}

void Controller::DropEnded() {
  for (const RunId run : ended_) {
    const auto it = runs_.find(run);
    const auto name = by_name_.find(it->second->spec().name);
    if (name != by_name_.end() && name->second == run) by_name_.erase(name);
    if (const std::optional<Instant> due = states_[run].due) due_.erase({*due, run});
    states_.erase(run);
    restorer_.Remove(run);
    links_.RemoveRun(*it->second);
    runs_.erase(it);
  }
  ended_.clear();
}

}  // namespace prd
