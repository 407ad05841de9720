#include "tools/prdctl/replay.h"

#include <utility>
#include <vector>

#include "config/config.h"

namespace prd::ctl {
namespace {

Status Diverged(const Record& record, const std::string& what) {
  return Status(Code::kDataLoss, "run " + std::to_string(record.run) + ", record " +
                                     std::to_string(record.index) + ": " + what);
}

// Whether a recorded input can be applied to this state: Job::Step takes nothing else.
bool Applies(const Job& job, const Record& record) {
  if (job.ended() || record.now < job.last_now()) return false;
  if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    return from->envelope.seq != 0 &&
           job.Admit(from->envelope).verdict == Job::Admission::Verdict::kStep;
  }
  if (const auto* expired = std::get_if<LeaseExpired>(&record.body)) {
    const auto& workers = job.workers();
    return expired->rank >= 0 && static_cast<std::size_t>(expired->rank) < workers.size() &&
           workers[static_cast<std::size_t>(expired->rank)].state != Job::State::kAbsent;
  }
  const std::optional<Instant> deadline = job.NextDeadline();
  return std::holds_alternative<DeadlineReached>(record.body) && deadline &&
         *deadline <= record.now;
}

Input ToInput(const RecordBody& body) {
  if (const auto* from = std::get_if<FromWorker>(&body)) return *from;
  if (const auto* expired = std::get_if<LeaseExpired>(&body)) return *expired;
  return DeadlineReached{};
}

}  // namespace

Status Replayer::MakeJob(const Record& first) {
  const auto* started = std::get_if<RunStarted>(&first.body);
  if (started == nullptr || first.index != 0) {
    return Diverged(first, "a run begins with a RunStarted record of index 0");
  }
  Result<JobSpec> spec = JobSpecFromToml(started->spec);
  if (!spec.ok()) return Diverged(first, spec.status().message());
  job_ = std::make_unique<Job>(first.run, std::move(spec).value());
  return Status::Ok();
}

Status Replayer::Load(const Record& first, const Snapshot& snapshot) {
  PRD_RETURN_IF_ERROR(MakeJob(first));
  PRD_RETURN_IF_ERROR(job_->Load(snapshot.state));
  if (job_->next_index() != snapshot.index) {
    return Diverged(
        first, "the snapshot is not of the state before record " + std::to_string(snapshot.index));
  }
  return Status::Ok();
}

Status Replayer::Add(const Record& record) {
  if (!expected_.empty()) {
    if (!(expected_.front() == record)) return Diverged(record, "the replay decides otherwise");
    expected_.pop_front();
    ++decisions_;
    return Status::Ok();
  }
  output_.records.clear();
  output_.sends.clear();
  if (!job_) {
    PRD_RETURN_IF_ERROR(MakeJob(record));
    job_->Start(record.now, std::get<RunStarted>(record.body).wall_ns, &output_);
    ++decisions_;
  } else if (record.index != job_->next_index()) {
    return Diverged(record, "record " + std::to_string(job_->next_index()) + " is missing before");
  } else if (IsInput(record.body) && Applies(*job_, record)) {
    job_->Step(record.now, ToInput(record.body), &output_);
    ++inputs_;
  } else {
    return Diverged(record, "it does not follow from the records before it");
  }
  if (output_.records.empty() || !(output_.records.front() == record)) {
    return Diverged(record, "the replay writes it otherwise");
  }
  for (std::size_t i = 1; i < output_.records.size(); ++i) {
    expected_.push_back(std::move(output_.records[i]));
  }
  return Status::Ok();
}

namespace {

using Seen = std::function<void(const Record&)>;

Status ReplayFrom(HistorySource& source, RunId run, std::uint64_t from, Replayer* replayer,
                  const Seen& seen) {
  Status wrong;
  PRD_RETURN_IF_ERROR(ForEachRecord(source, run, from, [&](const Record& record) {
    wrong = replayer->Add(record);
    if (wrong.ok() && seen) seen(record);
    return wrong.ok();
  }));
  if (wrong.ok() && replayer->job() == nullptr) {
    return Status(Code::kDataLoss, "run " + std::to_string(run) + " has no records");
  }
  return wrong;
}

}  // namespace

Status ReplayAll(HistorySource& source, RunId run, Replayer* replayer, const Seen& seen) {
  return ReplayFrom(source, run, 0, replayer, seen);
}

Status ReplayToPresent(HistorySource& source, RunId run, Replayer* replayer, const Seen& seen) {
  Result<Snapshot> snapshot = source.NewestSnapshot(run);
  if (!snapshot.ok()) return snapshot.status();
  if (!snapshot->state.empty()) {
    Result<std::vector<Record>> first = source.Read(run, 0, 1, 0);
    if (!first.ok()) return first.status();
    // A snapshot of another version of prd cannot be read; the records say the same.
    Replayer loaded;
    if (!first->empty() && loaded.Load(first->front(), *snapshot).ok()) {
      PRD_RETURN_IF_ERROR(ReplayFrom(source, run, snapshot->index, &loaded, seen));
      *replayer = std::move(loaded);
      return Status::Ok();
    }
  }
  return ReplayFrom(source, run, 0, replayer, seen);
}

}  // namespace prd::ctl
