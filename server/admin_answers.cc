#include "server/admin_answers.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace prd {
namespace {

// Runs that one answer looks at. An identity of few jobs among many gets short pages.
constexpr std::size_t kRunsATime = 4096;
// The bytes of a run in an answer, without its texts.
constexpr std::size_t kRunBytes = 128;

}  // namespace

AdminReply ToReply(const Status& status) {
  return AdminError{.code = status.code(), .message = status.message()};
}

Status AdminAnswers::MaySee(const Rights& rights, RunId run) const {
  const std::optional<std::string> job = history_->JobOf(run);
  if (!job || rights.Covers(*job)) return Status::Ok();
  return Status(Code::kNotFound, "run " + std::to_string(run) + " is not in the history");
}

bool AdminAnswers::Waits(const ReadRecords& read) const {
  const std::optional<std::uint64_t> next = history_->NextIndex(read.run);
  return next && *next <= read.from;
}

AdminReply AdminAnswers::Answer(const Rights& rights, const AdminRequest& request) const {
  if (const auto* list = std::get_if<ListRuns>(&request)) return Runs(rights, *list);
  if (const auto* read = std::get_if<ReadRecords>(&request)) return Records(rights, *read);
  if (const auto* read = std::get_if<ReadSnapshot>(&request)) return PartOf(rights, *read);
  return AdminError{.code = Code::kInternal, .message = "not a question to the history"};
}

AdminReply AdminAnswers::Runs(const Rights& rights, const ListRuns& list) const {
  const RunId before = list.before == kNoRun ? ~RunId{0} : list.before;
  std::vector<RunInfo> runs = list.live ? history_->ListLiveRuns(before, kRunsATime)
                                        : history_->ListRuns(before, kRunsATime);
  RunList page;
  std::size_t bytes = 0;
  for (RunInfo& run : runs) {
    bytes += rights.Covers(run.job)
                 ? kRunBytes + run.job.size() + run.engine.size() + run.end.size()
                 : 0;
    if (bytes > kMaxReplyBytes) break;
    page.next = run.run;
    if (rights.Covers(run.job)) page.runs.push_back(std::move(run));
  }
  const bool all = runs.size() < kRunsATime && !runs.empty() && page.next == runs.back().run;
  if (all || runs.empty()) page.next = kNoRun;
  return page;
}

AdminReply AdminAnswers::Records(const Rights& rights, const ReadRecords& read) const {
  const Status may = MaySee(rights, read.run);
  if (!may.ok()) return ToReply(may);
  Result<std::vector<Record>> records =
      history_->Read(read.run, read.from, std::min(read.max_bytes, kMaxReplyBytes));
  if (!records.ok()) return ToReply(records.status());
  return RecordBatch{std::move(*records)};
}

AdminReply AdminAnswers::PartOf(const Rights& rights, const ReadSnapshot& read) const {
  const Status may = MaySee(rights, read.run);
  if (!may.ok()) return ToReply(may);
  Result<Snapshot> found = history_->ReadSnapshot(read.run);
  if (!found.ok()) return ToReply(found.status());
  found->bytes = found->state.size();
  const std::size_t from = std::min<std::size_t>(read.from, found->state.size());
  found->state = found->state.substr(from, kMaxReplyBytes);
  return std::move(*found);
}

DaemonStatus AdminAnswers::StatusFor(const Rights& rights, DaemonStatus status) const {
  if (!rights.operates) {
    status.counters.clear();
    status.stalled.clear();
  }
  std::erase_if(status.silences, [&](const WorkerSilence& silence) {
    const std::optional<std::string> job = history_->JobOf(silence.run);
    return !job || !rights.Covers(*job);
  });
  return status;
}

}  // namespace prd
