#include "engines/controller.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "engines/job_limits.h"
#include "engines/replay.h"

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

Controller::Controller(Options options, Catalog catalog, History* history, Transport* transport)
    : options_(std::move(options)),
      catalog_(std::move(catalog)),
      history_(history),
      transport_(transport),
      next_run_(options_.first_run),
      epoch_(DrawNonZero(options_.random)),
      links_(epoch_, options_.over_ack_limit, &sends_, &counters_) {}

// ---- restore ----

Status Controller::Restore(Instant now, RunId run, JobSpec spec, std::string_view snapshot,
                           std::uint64_t from, std::span<const Record> records) {
  auto job = std::make_unique<Job>(run, std::move(spec));
  if (!snapshot.empty()) {
    PRD_RETURN_IF_ERROR(job->Load(snapshot));
    if (job->run() != run || job->next_index() != from) {
      return Status(Code::kDataLoss, "run " + std::to_string(run) +
                                         ": the snapshot is not of the state before record " +
                                         std::to_string(from));
    }
  }
  Replay replay(job.get());
  for (const Record& record : records) PRD_RETURN_IF_ERROR(replay.Add(record));
  next_run_ = std::max(next_run_, run + 1);
  // The last batch was torn: its decisions are recorded before any of them is sent.
  records_.insert(records_.end(), replay.open().begin(), replay.open().end());
  for (const Job::Tally& tally : job->tallies()) NoteGone(*job, tally.gone);
  NoteGone(*job, records);
  tombstones_.RememberDismissed(job->dismissed());
  if (job->ended()) RememberEnded(run, job->spec().name, job->identity().high, job->finished());
  restorer_.RemoveNextRun(run);
  if (job->switching()) {
    const RunId next = job->switching()->next;
    next_run_ = std::max(next_run_, next + 1);
    if (job->next() != nullptr && !jobs_.contains(next)) {
      restorer_.AddNextRun(next, NextRunOf(*job, now));
    }
  }
  if (job->ended()) return Status::Ok();
  if (by_name_.contains(job->spec().name)) {
    return Status(Code::kDataLoss, "job " + job->spec().name + " has two runs that have not ended");
  }
  by_name_[job->spec().name] = run;
  states_[run].snapshot_at = job->next_index();
  links_.AddRun(now, *job);
  for (Rank rank = 0; RankIndex(rank) < job->workers().size(); ++rank) {
    const Job::Worker& worker = job->workers()[RankIndex(rank)];
    if (worker.state == Job::State::kAbsent) continue;
    links_.Heard(now, *job, rank);
    presence_.Add(run, worker.incarnation, worker.identity);
  }
  restorer_.Add(*job);
  Schedule(*job);
  jobs_[run] = std::move(job);
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
  const auto it = jobs_.find(envelope.run);
  if (it == jobs_.end() || it->second->ended()) {
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
  Job* const job = Running(name);
  if (job == nullptr) return Status(Code::kNotFound, "no run of job " + name + " goes on");
  if (restorer_.Waits(job->run())) {
    return Status(Code::kUnavailable,
                  "the daemon has just started, and waits to hear from the workers of job " + name +
                      "; try again");
  }
  if (act.verb == OperatorVerb::kSwitch) PRD_RETURN_IF_ERROR(CheckSwitch(*job, &act));
  PRD_RETURN_IF_ERROR(job->CheckAct(act));
  if (act.verb == OperatorVerb::kSwitch) ++next_run_;
  StepJob(now, job, act);
  Schedule(*job);
  return Status::Ok();
}

// All that would be found too late by the run that is to follow.
Status Controller::CheckSwitch(const Job& job, OperatorActed* act) const {
  PRD_CHECK(options_.spec_of != nullptr);
  const Result<JobSpec> spec = options_.spec_of(act->spec);
  if (!spec.ok()) return spec.status();
  act->next = next_run_;
  if (!NeedsGradients(spec->make_engine(spec->engine)->plan())) return Status::Ok();
  for (Rank rank = 0; RankIndex(rank) < job.workers().size(); ++rank) {
    const Job::Worker& worker = job.workers()[RankIndex(rank)];
    if (worker.state == Job::State::kAbsent || worker.gradients != HasGradients::kNone) continue;
    return Status(Code::kFailedPrecondition,
                  "engine " + std::string(EngineName(spec->engine)) +
                      " reduces gradients, and rank " + std::to_string(rank) + " of job " +
                      job.spec().name + " (pid " + std::to_string(worker.pid) + " on " +
                      worker.host_name + ") has attached without any");
  }
  return Status::Ok();
}

// In the name of an incarnation that is here, whatever run and rank the message names: a refusal
// would go to that incarnation.
bool Controller::Foreign(const WorkerEnvelope& envelope) const {
  const auto own = jobs_.find(envelope.run);
  if (own != jobs_.end() && envelope.rank >= 0) {  // most messages are what they say
    const std::vector<Job::Worker>& workers = own->second->workers();
    const bool holds = RankIndex(envelope.rank) < workers.size() &&
                       workers[RankIndex(envelope.rank)].incarnation == envelope.incarnation;
    if (holds) return workers[RankIndex(envelope.rank)].token != envelope.token;
  }
  const std::vector<RunId> runs = presence_.RunsOf(envelope.incarnation);
  return std::any_of(runs.begin(), runs.end(),
                     [&](RunId run) { return jobs_.at(run)->Foreign(envelope); });
}

RunId Controller::RunOf(const std::string& job) const {
  const auto run = by_name_.find(job);
  return run == by_name_.end() ? kNoRun : run->second;
}

Job* Controller::Running(const std::string& name) const {
  const auto run = by_name_.find(name);
  if (run == by_name_.end() || jobs_.at(run->second)->ended()) return nullptr;
  return jobs_.at(run->second).get();
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
  std::unique_ptr<Job> fresh;
  Job* job = Running(hello.job);
  if (job == nullptr) {
    Result<JobSpec> spec = catalog_(hello.job);
    if (!spec.ok()) {
      RefuseHello(now, nullptr, envelope,
                  {.code = spec.status().code(), .reason = spec.status().message()});
      return;
    }
    fresh = std::make_unique<Job>(next_run_, std::move(spec).value());
    job = fresh.get();
  }
  const Job::Admission admission = job->Admit(envelope);
  if (fresh == nullptr && restorer_.Waits(job->run()) &&
      admission.verdict == Job::Admission::Verdict::kStep) {
    Refuse(envelope.incarnation,
           {.code = Code::kUnavailable,
            .reason = "the daemon has just started, and waits to hear from the workers of job " +
                      hello.job,
            .retry_ms = kRetryRestoredMs});
    return;
  }
  switch (admission.verdict) {
    case Job::Admission::Verdict::kRefuse:
      RefuseHello(now, fresh == nullptr ? job : nullptr, envelope, *admission.refusal);
      return;
    case Job::Admission::Verdict::kDuplicate:
      ++counters_.duplicates;
      links_.Heard(now, *job, admission.rank);
      links_.Resend(now, *job, admission.rank);
      Schedule(*job);
      return;
    case Job::Admission::Verdict::kGap:
    case Job::Admission::Verdict::kForeign:
      return;
    case Job::Admission::Verdict::kStep:
      break;
  }
  if (fresh != nullptr) {
    ++next_run_;
    Begin(now, wall_ns, {}, std::move(fresh));
  }
  StepJob(now, job, FromWorker{envelope});
  Schedule(*job);
}

void Controller::Begin(Instant now, std::int64_t wall_ns, const FormerRun& former,
                       std::unique_ptr<Job> job) {
  JobOutput output;
  job->Start(now, wall_ns, {DrawNonZero(options_.random), epoch_}, former, &output);
  for (Record& record : output.records) records_.push_back(std::move(record));
  const RunId run = job->run();
  by_name_[job->spec().name] = run;
  links_.AddRun(now, *job);
  jobs_[run] = std::move(job);
}

// The run of this number goes on where another one has ended.
void Controller::StartNextRun(Instant now, RunId run, const NextRun& next) {
  Result<JobSpec> spec = options_.spec_of(next.spec);
  // It was when the switch was recorded, perhaps by another version of prd: the workers begin anew.
  if (!spec.ok()) return;
  Begin(now, next.wall_ns, next.former, std::make_unique<Job>(run, *std::move(spec)));
  tombstones_.RememberDismissed(jobs_.at(run)->dismissed());
  Schedule(*jobs_.at(run));
}

void Controller::StartNextRuns(Instant now) {
  if (!restorer_.has_next_runs()) return;
  for (const auto& [run, next] : restorer_.TakeNextRuns()) StartNextRun(now, run, next);
}

// The run of this job takes note of it, now and then: others may wait for this worker. Without a
// run, or while that takes no input, the daemon's log does.
void Controller::RefuseHello(Instant now, Job* job, const WorkerEnvelope& envelope,
                             Refused refusal) {
  const Hello& hello = std::get<Hello>(envelope.body);
  const HelloRefused refused{.rank = hello.rank,
                             .host_name = hello.host_name.substr(0, kMaxName),
                             .pid = hello.pid,
                             .code = refusal.code,
                             .reason = refusal.reason};
  Refuse(envelope.incarnation, std::move(refusal));
  if (job == nullptr || restorer_.Waits(job->run())) {
    if (options_.refused) options_.refused(hello.job.substr(0, kMaxJobName), refused);
    return;
  }
  std::deque<Noted>& noted = states_[job->run()].noted;
  while (!noted.empty() && now - noted.front().at >= kNotedFor) noted.pop_front();
  const bool again = std::any_of(noted.begin(), noted.end(), [&](const Noted& known) {
    return known.refused == refused && now - known.at < kNoteAgain;
  });
  if (again || noted.size() >= kMaxNoted) return;
  noted.push_back({.at = now, .refused = refused});
  StepJob(now, job, refused);
  Schedule(*job);
}

void Controller::OnMember(Instant now, Job* job, const WorkerEnvelope& envelope) {
  Job::Admission admission = job->Admit(envelope);
  if (admission.verdict == Job::Admission::Verdict::kRefuse) {
    Refuse(envelope.incarnation, *admission.refusal);
    return;
  }
  if (admission.verdict == Job::Admission::Verdict::kForeign) return;
  const Rank rank = admission.rank;
  bool over_limit = false;
  if (restorer_.WaitsFor(job->run(), rank)) {
    links_.Heard(now, *job, rank);
    if (!Confirm(now, job, rank, envelope)) return;
    admission = job->Admit(envelope);  // messages that were held have been taken since
  } else {
    if (envelope.ack > job->link(rank).last_out()) {
      Refuse(envelope.incarnation,
             {.code = Code::kAborted,
              .reason = RankName(rank) + " acknowledges what it was not sent"});
      return;
    }
    if (envelope.identity.low != epoch_) return;  // from before the restart; comes again
    links_.OnAck(now, job, rank, envelope.ack);
    over_limit = links_.OverAckLimit(*job, rank);
    if (!over_limit) links_.Heard(now, *job, rank);
  }
  if (restorer_.Waits(job->run())) {
    if (envelope.seq != 0) restorer_.Hold(envelope);
    return;
  }
  switch (admission.verdict) {
    case Job::Admission::Verdict::kStep:
      if (envelope.seq != 0) {
        if (!over_limit) StepJob(now, job, FromWorker{envelope});
        return;
      }
      links_.OnHeartbeat(now, *job, rank);
      return;
    case Job::Admission::Verdict::kDuplicate:
      // The worker lacks our answer, or only its acknowledgement.
      ++counters_.duplicates;
      links_.Resend(now, *job, rank);
      links_.Acknowledge(now, *job, rank);
      return;
    case Job::Admission::Verdict::kGap:
      ++counters_.gaps;
      links_.Acknowledge(now, *job, rank);
      return;
    case Job::Admission::Verdict::kRefuse:
    case Job::Admission::Verdict::kForeign:
      return;
  }
}

// The first words of a restored worker in this life. False: there is nothing more to do with the
// message.
bool Controller::Confirm(Instant now, Job* job, Rank rank, const WorkerEnvelope& envelope) {
  if (envelope.identity.low != epoch_) {  // it has not heard of this life yet
    links_.Acknowledge(now, *job, rank);
    return false;
  }
  if (restorer_.ProvesLoss(*job, rank, envelope)) {
    ++counters_.histories_lost;
    StepJob(now, job, HistoryLost{.rank = rank, .incarnation = envelope.incarnation});
    return false;
  }
  restorer_.EndWait(job->run(), rank);
  links_.OnAck(now, job, rank, envelope.ack);
  links_.OnReturn(now, *job, rank);
  TakeHeld(now, job);
  return !job->ended();
}

// All workers of a restored run have been heard, or are gone.
void Controller::TakeHeld(Instant now, Job* job) {
  for (const WorkerEnvelope& envelope : restorer_.TakeHeld(job->run())) {
    if (job->ended()) return;
    OnMember(now, job, envelope);
  }
}

void Controller::StepJob(Instant now, Job* job, const Input& input) {
  output_.records.clear();
  output_.sends.clear();
  job->Step(now, input, &output_);
  NoteGone(*job, output_.records);
  tombstones_.RememberDismissed(job->dismissed());
  if (job->ended()) {
    RememberEnded(job->run(), job->spec().name, job->identity().high, job->finished());
    ended_.push_back(job->run());
  }
  for (JobOutput::Outgoing& send : output_.sends) {
    // Nothing goes to a worker that may know of messages that this controller has forgotten.
    if (send.envelope.seq != 0 && restorer_.WaitsFor(job->run(), send.rank)) continue;
    links_.Send(*job, send.rank, std::move(send.envelope));
  }
  for (const Record& record : output_.records) {
    const auto* left = std::get_if<WorkerLeft>(&record.body);
    if (left != nullptr) restorer_.EndWait(job->run(), left->rank);
  }
  for (Record& record : output_.records) records_.push_back(std::move(record));
  if (job->ended() && job->next() != nullptr) {
    StartNextRun(now, job->switching()->next, NextRunOf(*job, now));
  }
  const auto* from = std::get_if<FromWorker>(&input);
  if (from == nullptr) return;
  Rank rank = from->envelope.rank;
  if (std::holds_alternative<Hello>(from->envelope.body)) {
    rank = output_.sends.front().rank;  // its Welcome
    const Job::Worker& worker = job->workers()[RankIndex(rank)];
    presence_.Add(job->run(), worker.incarnation, worker.identity);
    links_.Joined(now, *job, rank);
    return;
  }
  if (job->workers()[RankIndex(rank)].incarnation != from->envelope.incarnation)
    return;  // it has left
  if (const auto* finished = std::get_if<Finished>(&from->envelope.body)) {
    AckUnreachable(now, *job, finished->unreachable);
  }
  links_.OnTaken(now, *job, rank, from->envelope.seq);
}

// A peer reports these as unreachable, which proves nothing: the peer may be the one that is cut
// off, or lie. Each is sent an acknowledgement. If its host was reset, the kernel there answers
// with the end of the connection. The job has checked the ranks, and evicts who names others.
void Controller::AckUnreachable(Instant now, const Job& job, const std::vector<Rank>& ranks) {
  for (const Rank rank : ranks) {
    if (job.workers()[RankIndex(rank)].state != Job::State::kAbsent)
      links_.Acknowledge(now, job, rank);
  }
}

// WorkerLeft does not always mean gone: a worker may have finished, or joined anew with its own
// model.
void Controller::NoteGone(const Job& job, std::span<const Record> records) {
  for (const Record& record : records) {
    const auto* left = std::get_if<WorkerLeft>(&record.body);
    if (left != nullptr && left->rank >= 0) NoteGone(job, left->incarnation);
  }
}

void Controller::NoteGone(const Job& job, Incarnation incarnation) {
  if (incarnation == 0 || job.RankOf(incarnation) != kNoRank) return;
  presence_.Remove(job.run(), incarnation);
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
void Controller::Schedule(const Job& job) {
  RunState& state = states_[job.run()];
  std::optional<Instant> due;
  if (!job.ended()) {
    if (!restorer_.Waits(job.run())) due = job.NextDeadline();
    const std::optional<Instant> links = links_.NextDeadline(job);
    if (links && (!due || *links < *due)) due = links;
  }
  if (due == state.due) return;
  if (state.due) due_.erase({*state.due, job.run()});
  if (due) due_.emplace(*due, job.run());
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
  for (const RunId run : runs) {
    Job& job = *jobs_.at(run);
    while (!job.ended()) {
      const std::optional<Input> lost = links_.NextLost(now, job);
      if (!lost) break;
      StepJob(now, &job, *lost);
    }
    TakeHeld(now, &job);
    if (!job.ended() && !restorer_.Waits(run)) {
      const std::optional<Instant> deadline = job.NextDeadline();
      if (deadline && *deadline <= now) StepJob(now, &job, DeadlineReached{});
    }
    Schedule(job);
  }
  links_.SendDueAcks(now);
}

void Controller::Connection(Instant now, Incarnation incarnation, bool there) {
  for (const RunId run : presence_.RunsOf(incarnation)) {
    const Job& job = *jobs_.at(run);
    const Rank rank = job.RankOf(incarnation);
    if (rank == kNoRank || job.ended()) continue;
    if (links_.OnConnection(now, job, rank, there)) Schedule(job);
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
  for (const ControllerEnvelope& envelope : sends_) transport_->Send(envelope);
  sends_.clear();
  DropEnded();
  return Status::Ok();
}

// For the runs that have records in this batch.
void Controller::TakeSnapshots() {
  RunId last = kNoRun;
  for (const Record& record : records_) {
    if (std::exchange(last, record.run) == record.run) continue;
    const auto job = jobs_.find(record.run);
    if (job == jobs_.end()) continue;
    RunState& state = states_[record.run];
    const std::uint64_t next = job->second->next_index();
    if (next - state.snapshot_at < options_.snapshot_every) continue;
    // A failed snapshot only lengthens replay; the next is due after snapshot_every more records.
    (void)history_->SaveSnapshot(record.run, next, SaveState(*job->second)).ok();
    state.snapshot_at = next;
  }
}

void Controller::DropEnded() {
  for (const RunId run : ended_) {
    const auto it = jobs_.find(run);
    const auto name = by_name_.find(it->second->spec().name);
    if (name != by_name_.end() && name->second == run) by_name_.erase(name);
    if (const std::optional<Instant> due = states_[run].due) due_.erase({*due, run});
    states_.erase(run);
    restorer_.Remove(run);
    links_.RemoveRun(*it->second);
    jobs_.erase(it);
  }
  ended_.clear();
}

}  // namespace prd
