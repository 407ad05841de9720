// What a peer copies: a replica, or a round's result, as it is at one moment.
#ifndef PRD_WORKER_MESH_COPIED_ROWS_H_
#define PRD_WORKER_MESH_COPIED_ROWS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/messages.h"
#include "worker/memory/buffers.h"
#include "worker/memory/layout.h"
#include "worker/memory/shared_bytes.h"
#include "worker/mesh/frame.h"

namespace prd {

// Rows of host memory are read where they stand, chunk by chunk as they are sent, until they are
// about to change: then what is left of them is copied. Under an engine whose rounds wait for the
// worker that copies, nothing changes meanwhile, and nothing is copied.
//
// Threads: the background thread, but for CopyRest.
class CopiedRows {
 public:
  // Memory for the rest comes from this pool.
  explicit CopiedRows(Buffers buffers) : buffers_(std::move(buffers)) {}

  // Before it is shared. A row that nobody sets has no bytes.
  void SetStanding(CopiedRow row, Layout layout);
  void SetCopy(CopiedRow row, std::shared_ptr<Buffer> copy);
  // So many peers read it. What one alone has read need not be copied.
  void AddReader() { ++readers_; }

  std::uint64_t BytesOf(std::size_t row) const { return rows_[row].bytes; }
  // Rows are read where they stand.
  bool stands() const { return stands_.load(std::memory_order_acquire); }
  // There was no memory for the rest: it cannot be read.
  bool lost() const { return !stands() && lost_; }
  // Bytes of the row from its front that can be read now, though a device copies it. Of one that
  // failed: all, and they are not to be read.
  std::uint64_t Ready(std::size_t row) const;
  // REQUIRES: they can be read; the store's mutex is held while stands().
  SharedBytes Read(std::size_t row, std::uint64_t offset, std::uint64_t length);
  // The rows are about to change. REQUIRES: the store's mutex is held. Any thread.
  void CopyRest();

 private:
  struct Row {
    std::uint64_t bytes = 0;
    Layout standing;               // of no bytes: there is a copy
    std::uint64_t read = 0;        // by the one reader, of what stands
    std::shared_ptr<Buffer> copy;  // from `copied_from` on
    std::uint64_t copied_from = 0;
  };
  void CopyRestOf(Row* row);

  Buffers buffers_;
  std::array<Row, kCopiedRows> rows_;
  std::atomic<bool> stands_ = false;
  bool lost_ = false;
  int readers_ = 0;
};

// Those whose rows stand. The store's mutex guards it.
class StandingRows {
 public:
  void Add(const std::shared_ptr<CopiedRows>& rows) { all_.push_back(rows); }
  void CopyRest() {
    for (const std::weak_ptr<CopiedRows>& each : all_) {
      if (const std::shared_ptr<CopiedRows> rows = each.lock()) rows->CopyRest();
    }
    all_.clear();
  }

 private:
  std::vector<std::weak_ptr<CopiedRows>> all_;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_COPIED_ROWS_H_
