#include "engines/pump.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "engines/job_limits.h"
#include "engines/replay.h"

namespace prd {
namespace {

// How long an acknowledgement waits for a message that carries it along. Workers send again after
// about 250 ms.
constexpr DurationNs kAckDelay = 100 * kMillisecond;

constexpr std::size_t kMaxJobName = 256;

constexpr std::uint32_t kRetryRestoredMs = 100;

// A run takes note of so many refusals in a minute, and of the same one again after this.
constexpr std::size_t kMaxNoted = 32;
constexpr DurationNs kNotedFor = 60 * kSecond;
constexpr DurationNs kNoteAgain = 10 * kSecond;

// What a worker does not acknowledge is sent again after growing pauses.
constexpr DurationNs kFirstResendPause = 50 * kMillisecond;
constexpr DurationNs kLongestResendPause = kSecond;

std::size_t Index(Rank rank) { return static_cast<std::size_t>(rank); }

DurationNs LeaseNs(const Job& job) { return job.spec().lease_ms * kMillisecond; }

DurationNs GraceNs(const Job& job) { return job.spec().death_grace_ms * kMillisecond; }

// Bytes of a message as it is sent, about.
std::size_t SizeOf(const ControllerBody& body) {
  constexpr std::size_t kFixed = 128;
  constexpr std::size_t kItem = 192;
  return std::visit(
      [](const auto& message) {
        std::size_t size = kFixed;
        if constexpr (requires { message.reason.size(); }) size += message.reason.size();
        if constexpr (requires { message.members; }) size += kItem * message.members.size();
        if constexpr (requires { message.targets; }) size += kItem * message.targets.size();
        if constexpr (requires { message.incarnations; }) {
          size += sizeof(Incarnation) * message.incarnations.size();
        }
        if constexpr (requires { message.shards; }) size += kItem * message.shards.size();
        if constexpr (requires { message.own_weight; }) {
          size += kItem * (message.in.size() + message.out.size());
        }
        return size;
      },
      body);
}

std::uint64_t DrawNonZero(const std::function<std::uint64_t()>& random) {
  PRD_CHECK(random != nullptr);
  for (;;) {
    if (const std::uint64_t drawn = random(); drawn != 0) return drawn;
  }
}

}  // namespace

Pump::Pump(Options options, Catalog catalog, History* history, Transport* transport)
    : options_(std::move(options)),
      catalog_(std::move(catalog)),
      history_(history),
      transport_(transport),
      next_run_(options_.first_run),
      life_(DrawNonZero(options_.random)) {}

// ---- restore ----

Status Pump::Restore(Instant now, RunId run, JobSpec spec, std::string_view snapshot,
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
  if (job->ended()) KnowEnded(run, job->spec().name, job->identity().high, job->finished());
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
  Watch& watch = watches_[run];
  watch.floor = now;
  watch.snapshot_at = job->next_index();
  for (Rank rank = 0; Index(rank) < job->workers().size(); ++rank) {
    const Job::Worker& worker = job->workers()[Index(rank)];
    if (worker.state == Job::State::kAbsent) continue;
    Heard(now, *job, rank);
    presence_.Add(run, worker.incarnation, worker.identity);
  }
  restorer_.Add(*job);
  Schedule(*job);
  ++leases_[LeaseNs(*job)];
  jobs_[run] = std::move(job);
  return Status::Ok();
}

void Pump::KnowEnded(RunId run, const std::string& job, std::uint64_t identity, bool finished) {
  tombstones_.RememberEnded(run, job, identity, finished);
}

// ---- messages ----

void Pump::Receive(Instant now, std::int64_t wall_ns, const WorkerEnvelope& envelope) {
  ++counters_.messages;
  if (restorer_.has_next_runs()) StartNextRuns(now);
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

Status Pump::Act(Instant now, const std::string& name, OperatorActed act) {
  if (restorer_.has_next_runs()) StartNextRuns(now);
  const auto known = by_name_.find(name);
  if (known == by_name_.end() || jobs_.at(known->second)->ended()) {
    return Status(Code::kNotFound, "no run of job " + name + " goes on");
  }
  Job* const job = jobs_.at(known->second).get();
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
Status Pump::CheckSwitch(const Job& job, OperatorActed* act) const {
  PRD_CHECK(options_.spec_of != nullptr);
  const Result<JobSpec> spec = options_.spec_of(act->spec);
  if (!spec.ok()) return spec.status();
  act->next = next_run_;
  if (!NeedsGradients(spec->make_engine(spec->engine)->plan())) return Status::Ok();
  for (Rank rank = 0; Index(rank) < job.workers().size(); ++rank) {
    const Job::Worker& worker = job.workers()[Index(rank)];
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
bool Pump::Foreign(const WorkerEnvelope& envelope) const {
  const auto own = jobs_.find(envelope.run);
  if (own != jobs_.end() && envelope.rank >= 0) {  // most messages are what they say
    const std::vector<Job::Worker>& workers = own->second->workers();
    const bool holds = Index(envelope.rank) < workers.size() &&
                       workers[Index(envelope.rank)].incarnation == envelope.incarnation;
    if (holds) return workers[Index(envelope.rank)].token != envelope.token;
  }
  const std::vector<RunId> runs = presence_.RunsOf(envelope.incarnation);
  return std::any_of(runs.begin(), runs.end(),
                     [&](RunId run) { return jobs_.at(run)->Foreign(envelope); });
}

RunId Pump::RunOf(const std::string& job) const {
  const auto run = by_name_.find(job);
  return run == by_name_.end() ? kNoRun : run->second;
}

void Pump::OnHello(Instant now, std::int64_t wall_ns, const WorkerEnvelope& envelope) {
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
  Job* job = nullptr;
  const auto running = by_name_.find(hello.job);
  if (running != by_name_.end() && !jobs_.at(running->second)->ended()) {
    job = jobs_.at(running->second).get();
  } else {
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
      Heard(now, *job, admission.rank);
      Resend(now, job, admission.rank, job->link(admission.rank).last_out());
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

void Pump::Begin(Instant now, std::int64_t wall_ns, const FormerRun& former,
                 std::unique_ptr<Job> job) {
  JobOutput output;
  job->Start(now, wall_ns, {DrawNonZero(options_.random), life_}, former, &output);
  for (Record& record : output.records) records_.push_back(std::move(record));
  const RunId run = job->run();
  by_name_[job->spec().name] = run;
  watches_[run].floor = now;
  ++leases_[LeaseNs(*job)];
  jobs_[run] = std::move(job);
}

// The run of this number goes on where another one has ended.
void Pump::StartNextRun(Instant now, RunId run, const NextRun& next) {
  Result<JobSpec> spec = options_.spec_of(next.spec);
  // It was when the switch was recorded, perhaps by another version of prd: the workers begin anew.
  if (!spec.ok()) return;
  Begin(now, next.wall_ns, next.former, std::make_unique<Job>(run, *std::move(spec)));
  tombstones_.RememberDismissed(jobs_.at(run)->dismissed());
  Schedule(*jobs_.at(run));
}

void Pump::StartNextRuns(Instant now) {
  for (const auto& [run, next] : restorer_.TakeNextRuns()) StartNextRun(now, run, next);
}

// The run of this job takes note of it, now and then: others may wait for this worker. Without a
// run, or while that takes no input, the daemon's log does.
void Pump::RefuseHello(Instant now, Job* job, const WorkerEnvelope& envelope, Refused refusal) {
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
  std::deque<Noted>& noted = watches_[job->run()].noted;
  while (!noted.empty() && now - noted.front().at >= kNotedFor) noted.pop_front();
  const bool again = std::any_of(noted.begin(), noted.end(), [&](const Noted& known) {
    return known.refused == refused && now - known.at < kNoteAgain;
  });
  if (again || noted.size() >= kMaxNoted) return;
  noted.push_back({.at = now, .refused = refused});
  StepJob(now, job, refused);
  Schedule(*job);
}

void Pump::OnMember(Instant now, Job* job, const WorkerEnvelope& envelope) {
  const Job::Admission admission = job->Admit(envelope);
  if (admission.verdict == Job::Admission::Verdict::kRefuse) {
    Refuse(envelope.incarnation, *admission.refusal);
    return;
  }
  if (admission.verdict == Job::Admission::Verdict::kForeign) return;
  const Rank rank = admission.rank;
  const bool restored = restorer_.WaitsFor(job->run(), rank);
  if (!restored && envelope.ack > job->link(rank).last_out()) {
    Refuse(envelope.incarnation, {.code = Code::kAborted,
                                  .reason = RankName(rank) + " acknowledges what it was not sent"});
    return;
  }
  if (!restored && envelope.identity.low != life_) return;  // from before the restart; comes again
  if (!restored) job->OnAck(rank, envelope.ack);
  const bool owes = !restored && Owes(*job, rank);
  if (!owes) Heard(now, *job, rank);
  if (restored && !Confirm(now, job, rank, envelope)) return;
  if (restorer_.Waits(job->run())) {
    if (envelope.seq != 0) restorer_.Hold(envelope);
    return;
  }
  Contact& contact = watches_[job->run()].contacts[Index(rank)];
  // Messages that were held have been taken since.
  switch (restored ? job->Admit(envelope).verdict : admission.verdict) {
    case Job::Admission::Verdict::kStep:
      if (envelope.seq != 0) {
        if (!owes) StepJob(now, job, FromWorker{envelope});
        return;
      }
      Resend(now, job, rank, contact.sent_before);
      contact.sent_before = job->link(rank).last_out();
      Acknowledge(now, job, rank);
      return;
    case Job::Admission::Verdict::kDuplicate:
      // The worker lacks our answer, or only its acknowledgement.
      ++counters_.duplicates;
      Resend(now, job, rank, job->link(rank).last_out());
      Acknowledge(now, job, rank);
      return;
    case Job::Admission::Verdict::kGap:
      ++counters_.gaps;
      Acknowledge(now, job, rank);
      return;
    case Job::Admission::Verdict::kRefuse:
    case Job::Admission::Verdict::kForeign:
      return;
  }
}

// The first words of a restored worker in this life. False: there is nothing more to do with the
// message.
bool Pump::Confirm(Instant now, Job* job, Rank rank, const WorkerEnvelope& envelope) {
  if (envelope.identity.low != life_) {  // it has not heard of this life yet
    Acknowledge(now, job, rank);
    return false;
  }
  if (restorer_.ProvesLoss(*job, rank, envelope)) {
    ++counters_.histories_lost;
    StepJob(now, job, HistoryLost{.rank = rank, .incarnation = envelope.incarnation});
    return false;
  }
  restorer_.EndWait(job->run(), rank);
  job->OnAck(rank, envelope.ack);
  // What was on its way when the controller stopped.
  Resend(now, job, rank, job->link(rank).last_out());
  watches_[job->run()].contacts[Index(rank)].sent_before = job->link(rank).last_out();
  TakeHeld(now, job);
  return !job->ended();
}

// All workers of a restored run have been heard, or are gone.
void Pump::TakeHeld(Instant now, Job* job) {
  for (const WorkerEnvelope& envelope : restorer_.TakeHeld(job->run())) {
    if (job->ended()) return;
    OnMember(now, job, envelope);
  }
}

void Pump::StepJob(Instant now, Job* job, const Input& input) {
  output_.records.clear();
  output_.sends.clear();
  job->Step(now, input, &output_);
  NoteGone(*job, output_.records);
  tombstones_.RememberDismissed(job->dismissed());
  if (job->ended()) {
    KnowEnded(job->run(), job->spec().name, job->identity().high, job->finished());
    ended_.push_back(job->run());
  }
  Watch& watch = watches_[job->run()];
  for (JobOutput::Outgoing& send : output_.sends) {
    if (Index(send.rank) >= watch.contacts.size()) watch.contacts.resize(Index(send.rank) + 1);
    Contact& contact = watch.contacts[Index(send.rank)];
    // Nothing goes to a worker that may know of messages that this controller has forgotten.
    if (send.envelope.seq != 0 && restorer_.WaitsFor(job->run(), send.rank)) continue;
    contact.acked = send.envelope.ack;
    send.envelope.identity = IdentityOf(*job);
    send.envelope.progress = job->progress();
    sends_.push_back(std::move(send.envelope));
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
    Contact& contact = watch.contacts[Index(rank)];
    contact.acked = 1;
    contact.ends_at.reset();
    contact.sent_before = 0;
    contact.owing = false;
    contact.resent_after = 0;
    contact.resent_in_vain = 0;
    contact.resend_pause = 0;
    const Job::Worker& worker = job->workers()[Index(rank)];
    presence_.Add(job->run(), worker.incarnation, worker.identity);
    Heard(now, *job, rank);
    return;
  }
  if (job->workers()[Index(rank)].incarnation != from->envelope.incarnation) return;  // it has left
  if (const auto* finished = std::get_if<Finished>(&from->envelope.body)) {
    LookAt(now, job, finished->unreachable);
  }
  Contact& contact = watch.contacts[Index(rank)];
  if (contact.acked < from->envelope.seq && !contact.owed) {
    contact.owed = true;
    acks_.push_back({.due = now + kAckDelay, .run = job->run(), .rank = rank});
  }
}

// A peer reports these as unreachable, which proves nothing: the peer may be the one that is cut
// off, or lie. Each is sent an acknowledgement. If its host was reset, the kernel there answers
// with the end of the connection. The job has checked the ranks, and evicts who names others.
void Pump::LookAt(Instant now, Job* job, const std::vector<Rank>& ranks) {
  for (const Rank rank : ranks) {
    if (job->workers()[Index(rank)].state != Job::State::kAbsent) Acknowledge(now, job, rank);
  }
}

// WorkerLeft does not always mean gone: a worker may have finished, or joined anew with its own
// model.
void Pump::NoteGone(const Job& job, std::span<const Record> records) {
  for (const Record& record : records) {
    const auto* left = std::get_if<WorkerLeft>(&record.body);
    if (left != nullptr && left->rank >= 0) NoteGone(job, left->incarnation);
  }
}

void Pump::NoteGone(const Job& job, Incarnation incarnation) {
  if (incarnation == 0 || job.RankOf(incarnation) != kNoRank) return;
  presence_.Remove(job.run(), incarnation);
  tombstones_.RememberGone(incarnation);
}

// A worker that an operator has removed receives nothing but this refusal.
void Pump::Refuse(Incarnation to, Refused refusal) {
  ++counters_.refused;
  if (const std::string* const why = tombstones_.WhyDismissed(to)) {
    refusal = {.code = Code::kFailedPrecondition, .reason = *why};
  }
  sends_.push_back({.incarnation = to, .body = std::move(refusal)});
}

void Pump::Acknowledge(Instant now, Job* job, Rank rank) {
  const Seq ack = job->link(rank).last_in();
  watches_[job->run()].contacts[Index(rank)].acked = ack;
  sends_.push_back({.identity = IdentityOf(*job),
                    .incarnation = job->workers()[Index(rank)].incarnation,
                    .ack = ack,
                    .progress = job->progress(),
                    .body = HeartbeatAck{.waits_for = job->WaitsFor(now, rank)}});
}

// A healthy worker owes few acknowledgements, so most calls look at their number alone.
bool Pump::Owes(const Job& job, Rank rank) {
  Contact& contact = watches_[job.run()].contacts[Index(rank)];
  const auto& unacked = job.link(rank).unacked();
  if (unacked.empty()) contact.owing = false;
  const bool in_vain = contact.resent_in_vain >= kResentInVain &&
                       job.link(rank).oldest() == contact.resent_after + 1;
  if (!in_vain && unacked.size() <= kMinUnacked) return false;
  std::size_t bytes = 0;
  for (auto it = unacked.begin(); it != unacked.end() && bytes <= kMaxUnacked; ++it) {
    bytes += SizeOf(it->second);
  }
  if (!in_vain && bytes <= kMaxUnacked) return false;
  if (std::exchange(contact.owing, true)) return true;
  ++counters_.owing;
  if (options_.owing) options_.owing(job, rank);
  return true;
}

void Pump::Resend(Instant now, Job* job, Rank rank, Seq up_to) {
  const LinkEnd<ControllerBody>& link = job->link(rank);
  if (link.unacked().empty() || link.oldest() > up_to) return;
  Contact& contact = watches_[job->run()].contacts[Index(rank)];
  const Seq acked = link.oldest() - 1;
  if (acked > contact.resent_after) contact.resend_pause = contact.resent_in_vain = 0;
  if (contact.resend_pause > 0 && now < contact.resend_at) return;
  contact.resent_after = acked;
  ++contact.resent_in_vain;
  contact.resend_pause =
      std::clamp(2 * contact.resend_pause, kFirstResendPause, kLongestResendPause);
  contact.resend_at = now + contact.resend_pause;
  std::size_t messages = 0;
  std::size_t bytes = 0;
  for (const auto& [seq, body] : link.unacked()) {
    if (seq > up_to || messages >= kResendAtOnce || bytes >= kResendBytes) break;
    ++messages;
    bytes += SizeOf(body);
    ++counters_.resent;
    sends_.push_back({.identity = IdentityOf(*job),
                      .incarnation = job->workers()[Index(rank)].incarnation,
                      .seq = seq,
                      .ack = link.last_in(),
                      .progress = job->progress(),
                      .body = body});
  }
}

// ---- time ----

Pump::Contact& Pump::Heard(Instant now, const Job& job, Rank rank) {
  Watch& watch = watches_[job.run()];
  if (Index(rank) >= watch.contacts.size()) watch.contacts.resize(Index(rank) + 1);
  Contact& contact = watch.contacts[Index(rank)];
  contact.heard = now;
  if (!contact.watched) {
    contact.watched = true;
    watch.checks.emplace_back(now + LeaseNs(job) / 4, rank);
  }
  return contact;
}

// Notes when Tick is to look at this run. Called after whatever may have changed that.
void Pump::Schedule(const Job& job) {
  Watch& watch = watches_[job.run()];
  std::optional<Instant> due;
  if (!job.ended()) {
    if (!restorer_.Waits(job.run())) due = job.NextDeadline();
    if (!watch.checks.empty() && (!due || watch.checks.front().first < *due)) {
      due = watch.checks.front().first;
    }
    if (!watch.ends.empty() && (!due || watch.ends.front().first < *due)) {
      due = watch.ends.front().first;
    }
  }
  if (due == watch.due) return;
  if (watch.due) due_.erase({*watch.due, job.run()});
  if (due) due_.emplace(*due, job.run());
  watch.due = due;
}

// A controller that was itself stopped for long (suspended, swapped out) has heard nobody. Every
// run is looked at each quarter of its lease, so without a sleep no pause is as long as half of
// one.
void Pump::NoteSleep(Instant now) {
  if (!last_tick_ || leases_.empty() || now - *last_tick_ <= leases_.begin()->first / 2) return;
  for (const auto& [run, job] : jobs_) {
    if (now - *last_tick_ > LeaseNs(*job) / 2) watches_[run].floor = now;
  }
}

void Pump::Tick(Instant now) {
  if (restorer_.has_next_runs()) StartNextRuns(now);
  NoteSleep(now);
  std::vector<RunId> runs;
  for (auto it = due_.begin(); it != due_.end() && it->first <= now; ++it) {
    runs.push_back(it->second);
  }
  std::sort(runs.begin(), runs.end());  // by id, whichever was due first
  for (const RunId run : runs) {
    Job& job = *jobs_.at(run);
    CheckEnds(now, &job);
    CheckLeases(now, &job);
    TakeHeld(now, &job);
    if (!job.ended() && !restorer_.Waits(run)) {
      const std::optional<Instant> deadline = job.NextDeadline();
      if (deadline && *deadline <= now) StepJob(now, &job, DeadlineReached{});
    }
    Schedule(job);
  }
  PayAcks(now);
  last_tick_ = now;
}

// Every worker is looked at every quarter of its lease, so the queue stays in order of time and
// costs nothing per message.
void Pump::CheckLeases(Instant now, Job* job) {
  Watch& watch = watches_[job->run()];
  while (!watch.checks.empty() && watch.checks.front().first <= now && !job->ended()) {
    const Rank rank = watch.checks.front().second;
    watch.checks.pop_front();
    Contact& contact = watch.contacts[Index(rank)];
    contact.watched = false;
    const Job::Worker& worker = job->workers()[Index(rank)];
    if (worker.state == Job::State::kAbsent) continue;
    if (now - std::max(contact.heard, watch.floor) <= LeaseNs(*job)) {
      contact.watched = true;
      watch.checks.emplace_back(now + LeaseNs(*job) / 4, rank);
      continue;
    }
    ++counters_.leases_expired;
    StepJob(now, job, LeaseExpired{.rank = rank, .incarnation = worker.incarnation});
  }
}

void Pump::Connection(Instant now, Incarnation incarnation, bool there) {
  for (const RunId run : presence_.RunsOf(incarnation)) {
    const Job& job = *jobs_.at(run);
    const Rank rank = job.RankOf(incarnation);
    if (rank == kNoRank || job.ended()) continue;
    Watch& watch = watches_[run];
    Contact& contact = watch.contacts[Index(rank)];
    if (!there && contact.ends_at) continue;  // it has not come back since
    contact.ends_at.reset();
    if (there || GraceNs(job) == 0 || !job.workers()[Index(rank)].returns_at_once) continue;
    contact.ends_at = now + GraceNs(job);
    watch.ends.emplace_back(*contact.ends_at, rank);
    Schedule(job);
  }
}

// A controller that was itself held up, as by a full disk, has not seen who came back meanwhile: it
// waits once more.
void Pump::CheckEnds(Instant now, Job* job) {
  Watch& watch = watches_[job->run()];
  while (!watch.ends.empty() && watch.ends.front().first <= now && !job->ended()) {
    const auto [at, rank] = watch.ends.front();
    watch.ends.pop_front();
    Contact& contact = watch.contacts[Index(rank)];
    const Job::Worker& worker = job->workers()[Index(rank)];
    if (worker.state == Job::State::kAbsent || contact.ends_at != at) continue;
    if (now - at > GraceNs(*job) / 2) {
      contact.ends_at = now + GraceNs(*job);
      watch.ends.emplace_back(*contact.ends_at, rank);
      continue;
    }
    ++counters_.processes_ended;
    StepJob(now, job, ProcessEnded{.rank = rank, .incarnation = worker.incarnation});
  }
}

void Pump::PayAcks(Instant now) {
  while (!acks_.empty() && acks_.front().due <= now) {
    const Ack ack = acks_.front();
    acks_.pop_front();
    const auto it = jobs_.find(ack.run);
    if (it == jobs_.end()) continue;
    Contact& contact = watches_[ack.run].contacts[Index(ack.rank)];
    contact.owed = false;
    if (it->second->workers()[Index(ack.rank)].state == Job::State::kAbsent) continue;
    if (contact.acked < it->second->link(ack.rank).last_in()) {
      Acknowledge(now, it->second.get(), ack.rank);
    }
  }
}

std::optional<Instant> Pump::NextDeadline() const {
  std::optional<Instant> next;
  if (!due_.empty()) next = due_.begin()->first;
  if (!acks_.empty() && (!next || acks_.front().due < *next)) next = acks_.front().due;
  return next;
}

std::optional<DurationNs> Pump::Silence(Instant now, RunId run, Rank rank) const {
  const auto job = jobs_.find(run);
  if (job == jobs_.end() || rank < 0 || Index(rank) >= job->second->workers().size() ||
      job->second->workers()[Index(rank)].state == Job::State::kAbsent) {
    return std::nullopt;
  }
  return now - watches_.at(run).contacts[Index(rank)].heard;
}

// ---- out ----

Status Pump::Flush() {
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

// Of the runs that have records in this batch.
void Pump::TakeSnapshots() {
  RunId last = kNoRun;
  for (const Record& record : records_) {
    if (std::exchange(last, record.run) == record.run) continue;
    const auto job = jobs_.find(record.run);
    if (job == jobs_.end()) continue;
    Watch& watch = watches_[record.run];
    const std::uint64_t next = job->second->next_index();
    if (next - watch.snapshot_at < options_.snapshot_every) continue;
    // A failed snapshot only lengthens replay; the next is due after snapshot_every more records.
    (void)history_->SaveSnapshot(record.run, next, SaveState(*job->second)).ok();
    watch.snapshot_at = next;
  }
}

void Pump::DropEnded() {
  for (const RunId run : ended_) {
    const auto it = jobs_.find(run);
    const auto name = by_name_.find(it->second->spec().name);
    if (name != by_name_.end() && name->second == run) by_name_.erase(name);
    const auto lease = leases_.find(LeaseNs(*it->second));
    if (--lease->second == 0) leases_.erase(lease);
    if (const std::optional<Instant> due = watches_[run].due) due_.erase({*due, run});
    watches_.erase(run);
    restorer_.Remove(run);
    jobs_.erase(it);
  }
  ended_.clear();
}

}  // namespace prd
