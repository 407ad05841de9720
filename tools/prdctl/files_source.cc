#include "tools/prdctl/files_source.h"

#include <utility>

#include "server/history/rocks_history.h"

namespace prd::ctl {
namespace {

class FilesSource : public HistorySource {
 public:
  explicit FilesSource(std::unique_ptr<RocksHistory> history) : history_(std::move(history)) {}

  Result<std::vector<RunInfo>> Runs() override { return history_->ListRuns(); }

  Result<std::vector<Record>> Read(RunId run, std::uint64_t from, std::uint32_t max_bytes,
                                   std::uint32_t) override {
    return history_->Read(run, from, max_bytes);
  }

  Result<Snapshot> NewestSnapshot(RunId run) override { return history_->ReadSnapshot(run); }

  Result<DaemonStatus> Daemon() override {
    return Status(Code::kFailedPrecondition,
                  "only a running daemon can tell: give --admin ENDPOINT instead of --state-dir");
  }

 private:
  std::unique_ptr<RocksHistory> history_;
};

}  // namespace

Result<std::unique_ptr<HistorySource>> OpenFilesSource(const std::string& state_dir) {
  Result<std::unique_ptr<RocksHistory>> history = RocksHistory::OpenReadOnly(state_dir);
  if (!history.ok()) return history.status();
  return std::unique_ptr<HistorySource>(std::make_unique<FilesSource>(std::move(history).value()));
}

}  // namespace prd::ctl
