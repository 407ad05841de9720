// The history as the pump sees it: what is recorded is also logged and counted.
#ifndef PRD_SERVER_RECORDER_H_
#define PRD_SERVER_RECORDER_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "engines/ports.h"

namespace prd {

class Recorder final : public History {
 public:
  // `history` must outlive this.
  explicit Recorder(History* history) : history_(history) {}

  Status Append(std::span<const Record> records) override;
  Status SaveSnapshot(RunId run, std::uint64_t index, std::string_view state) override;

  // Of a run that was restored.
  void Know(RunId run, const std::string& engine) { engines_[run] = engine; }

  // Groups formed since the daemon started, by engine.
  const std::map<std::string, std::uint64_t>& groups() const { return groups_; }
  std::uint64_t snapshots() const { return snapshots_; }

 private:
  void Note(const Record& record);

  History* history_;
  std::map<RunId, std::string> engines_;
  std::map<std::string, std::uint64_t> groups_;
  std::uint64_t snapshots_ = 0;
};

}  // namespace prd

#endif  // PRD_SERVER_RECORDER_H_
