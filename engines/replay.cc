#include "engines/replay.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace prd {
namespace {

Status Diverged(const Record& record, const std::string& what) {
  return Status(Code::kDataLoss, "run " + std::to_string(record.run) + ", record " +
                                     std::to_string(record.index) + ": " + what);
}

Input ToInput(const RecordBody& body) {
  if (const auto* from = std::get_if<FromWorker>(&body)) return *from;
  if (const auto* expired = std::get_if<LeaseExpired>(&body)) return *expired;
  if (const auto* ended = std::get_if<ProcessEnded>(&body)) return *ended;
  if (const auto* lost = std::get_if<HistoryLost>(&body)) return *lost;
  if (const auto* refused = std::get_if<HelloRefused>(&body)) return *refused;
  if (const auto* acted = std::get_if<OperatorActed>(&body)) return *acted;
  return DeadlineReached{};
}

// Whether a recorded input can be applied to this state: Run::Step takes nothing else.
bool Applies(const Run& run, const Record& record) {
  if (!IsInput(record.body) || run.ended() || record.now < run.last_now()) return false;
  if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    return from->envelope.seq != 0 &&
           run.Admit(from->envelope).verdict == Admission::Verdict::kStep;
  }
  const auto present = [&run](Rank rank) {
    return rank >= 0 && RankIndex(rank) < run.workers().size() &&
           run.workers()[RankIndex(rank)].state != WorkerState::kAbsent;
  };
  if (const auto* expired = std::get_if<LeaseExpired>(&record.body)) return present(expired->rank);
  if (const auto* ended = std::get_if<ProcessEnded>(&record.body)) return present(ended->rank);
  if (const auto* lost = std::get_if<HistoryLost>(&record.body)) return present(lost->rank);
  if (std::holds_alternative<HelloRefused>(record.body)) return true;
  if (const auto* acted = std::get_if<OperatorActed>(&record.body))
    return run.CheckAct(*acted).ok();
  const std::optional<Instant> deadline = run.NextDeadline();
  return deadline && *deadline <= record.now;
}

}  // namespace

Status Replay::Add(const Record& record) {
  const std::uint64_t expected = open_.empty() ? run_->next_index() : open_.front().index;
  if (record.run != run_->id() || record.index != expected) {
    return Diverged(record, "record " + std::to_string(expected) + " of run " +
                                std::to_string(run_->id()) + " is missing before it");
  }
  if (!open_.empty()) {
    if (!(open_.front() == record))
      return Diverged(record,
                      "the replay decides otherwise there: another version of prd has recorded "
                      "it, or it is damaged");
    open_.pop_front();
    ++decisions_;
    return Status::Ok();
  }
  output_.records.clear();
  output_.sends.clear();
  if (const auto* started = std::get_if<RunStarted>(&record.body);
      started != nullptr && record.index == 0) {
    run_->Start(record.now, started->wall_ns, started->identity, started->former, &output_);
    ++decisions_;
  } else if (Applies(*run_, record)) {
    run_->Step(record.now, ToInput(record.body), &output_);
    ++inputs_;
  } else {
    return Diverged(record, "it does not follow from the records before it");
  }
  if (!(output_.records.front() == record)) {
    return Diverged(record, "the replay writes it otherwise");
  }
  for (std::size_t i = 1; i < output_.records.size(); ++i) {
    open_.push_back(std::move(output_.records[i]));
  }
  return Status::Ok();
}

Status StoredRun::Load(std::string_view snapshot, std::uint64_t from) {
  if (snapshot.empty()) return Status::Ok();
  const RunId id = run_->id();
  PRD_RETURN_IF_ERROR(run_->Load(snapshot));
  if (run_->id() != id || run_->next_index() != from) {
    return Status(Code::kDataLoss, "run " + std::to_string(id) +
                                       ": the snapshot is not of the state before record " +
                                       std::to_string(from));
  }
  loaded_ = from;
  return Status::Ok();
}

Status StoredRun::Add(std::span<const Record> records) {
  for (const Record& record : records) {
    PRD_RETURN_IF_ERROR(replay_.Add(record));
    const auto* left = std::get_if<WorkerLeft>(&record.body);
    if (left != nullptr && left->rank >= 0) left_.push_back(left->incarnation);
  }
  return Status::Ok();
}

}  // namespace prd
