// The history in memory, with a disk's ways of failing.
//
//   kFails   Append returns an error and keeps nothing.
//   kTorn    the controller dies in Append: any number of the batch's first records is kept, also
//            none or all of them. Append does not return (ControllerDied).
//
// And of forgetting what it has acknowledged: it goes back to what it was before some writes, as a
// disk without its last ones, or one on which an old copy was put back.
#ifndef PRD_TOOLS_SIM_HISTORY_STORE_H_
#define PRD_TOOLS_SIM_HISTORY_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/prng.h"
#include "engines/ports.h"

namespace prd::sim {

// Thrown out of Append; whoever runs the controller drops it.
struct ControllerDied {};

// A number for a record's content; equal histories have equal sequences of them.
std::uint64_t HashRecord(const Record& record);

class HistoryStore final : public History {
 public:
  enum class Fate { kFine, kFails, kTorn };
  struct Run {
    std::vector<Record> records;  // empty when not kept
    std::uint64_t next_index = 0;
    Instant last;
    std::uint64_t snapshot_index = 0;
    std::string snapshot;  // empty: none
  };

  // `keep`: hold records for recovery, not only count them. `seen` is called for each record once
  // it is durable. `forgets`: hold also what Forget needs.
  HistoryStore(bool keep, std::function<void(const Record&)> seen, bool forgets = false)
      : keep_(keep), forgets_(forgets), seen_(std::move(seen)) {}

  // What happens to the next write; asked once per Append.
  void SetFate(std::function<Fate()> fate) { fate_ = std::move(fate); }
  void SetTear(std::function<std::uint64_t(std::uint64_t bound)> below) {
    below_ = std::move(below);
  }

  Status Append(std::span<const Record> records) override;
  Status SaveSnapshot(RunId run, std::uint64_t index, std::string_view state) override;

  // REQUIRES, of these three: it forgets.
  std::size_t writes() const { return writes_.size(); }  // batches and snapshots
  std::size_t WritesSince(Instant at) const;
  // Goes back to before the newest so many writes.
  void Forget(std::size_t writes);

  const std::map<RunId, Run>& runs() const { return runs_; }
  std::uint64_t hash() const { return hash_; }
  std::uint64_t records() const { return records_; }

 private:
  struct Write {
    Instant at;
    std::vector<RunId> records;  // of these runs, in order
    // Or the snapshot of a run: what there was before.
    RunId run = kNoRun;
    std::uint64_t snapshot_index = 0;
    std::string snapshot;
  };

  void Keep(const Record& record);
  void Undo(const Write& write);

  const bool keep_;
  const bool forgets_;
  std::vector<Write> writes_;
  std::function<void(const Record&)> seen_;
  std::function<Fate()> fate_;
  std::function<std::uint64_t(std::uint64_t)> below_;
  std::map<RunId, Run> runs_;
  std::uint64_t hash_ = 0;
  std::uint64_t records_ = 0;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_HISTORY_STORE_H_
