#include "tools/prdctl/files_source.h"

#include <limits>
#include <utility>

#include "server/history/rocks_history.h"

namespace prd::ctl {
namespace {

class FilesSource : public HistorySource {
 public:
  FilesSource(std::string state_dir, std::unique_ptr<RocksHistory> history)
      : state_dir_(std::move(state_dir)), history_(std::move(history)) {}

  Result<std::vector<RunInfo>> Runs() override { return history_->ListRuns(); }

  Result<std::vector<Record>> Read(RunId run, std::uint64_t from, std::uint32_t max_bytes,
                                   std::uint32_t) override {
    return history_->Read(run, from, max_bytes);
  }

  Result<Snapshot> NewestSnapshot(RunId run) override { return history_->ReadSnapshot(run); }

  Result<std::string> Prune(const std::vector<RunId>& runs) override {
    // Nothing else goes for being opened.
    constexpr auto kNoBound = std::numeric_limits<std::int64_t>::max();
    Result<std::unique_ptr<RocksHistory>> history = RocksHistory::Open(
        state_dir_,
        {.bounds = {.runs_per_job = kNoBound, .runs = kNoBound, .bytes = kNoBound, .owners = {}}});
    if (!history.ok()) return history.status();
    const Result<std::size_t> removed = (*history)->Prune(runs);
    if (!removed.ok()) return removed.status();
    (*history)->Sweep();
    return std::to_string(*removed) + " runs removed";
  }

  Result<DaemonStatus> Daemon() override {
    return Status(Code::kFailedPrecondition,
                  "only a running daemon can tell: give --admin ENDPOINT instead of --state-dir");
  }

 private:
  const std::string state_dir_;
  std::unique_ptr<RocksHistory> history_;
};

}  // namespace

Result<std::unique_ptr<HistorySource>> OpenFilesSource(const std::string& state_dir) {
  Result<std::unique_ptr<RocksHistory>> history = RocksHistory::OpenReadOnly(state_dir);
  if (!history.ok()) return history.status();
  return std::unique_ptr<HistorySource>(
      std::make_unique<FilesSource>(state_dir, std::move(history).value()));
}

}  // namespace prd::ctl
