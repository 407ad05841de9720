// The memory of a sharded store (StorePlan) in one worker: the shards that it keeps,
// as owner or holder, and its own update on its way to them.
//
// A kept shard is a row of its values and, in lockstep, a row of pending updates behind it. A slice
// keeps the bytes of the moment when it was asked for, also when the shard changes later. All
// slices between two changes share one copy. Used by the background thread alone; calls that touch
// the replica take the store's mutex.
#ifndef PRD_WORKER_MESH_SHARDS_H_
#define PRD_WORKER_MESH_SHARDS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "worker/memory/buffers.h"
#include "worker/mesh/replica_store.h"

namespace prd {

struct ByteRange {
  std::size_t begin = 0;
  std::size_t length = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// The part of a row of so many bytes that is in this shard. Shards follow one another, are of
// equal size but for less than 16 bytes, and never split an element (layout.h); of a small row,
// some are empty. REQUIRES: shard < shards.
ByteRange ShardRange(std::size_t bytes, std::uint32_t shards, std::uint32_t shard);

// Bytes that do not change while a pointer to them is left.
struct Slice {
  std::shared_ptr<const Buffer> buffer;  // null: there is no such thing
  ByteRange range;
};

class Shards {
 public:
  Shards(ReplicaStore* store, Buffers* buffers) : store_(store), buffers_(buffers) {}

  // Forgets everything.
  void Reset(bool lockstep);
  // Into this many; what was cut otherwise is forgotten.
  void Cut(std::uint32_t shards);
  std::uint32_t count() const { return count_; }
  bool Kept(std::uint32_t shard) const { return kept_.contains(shard); }

  // REQUIRES of all below: shard < count().
  ByteRange RangeOf(std::uint32_t shard) const;
  // The bytes of a state: values, and in lockstep what is pending.
  std::size_t StateBytes(std::uint32_t shard) const;

  // Null buffers: this worker's own (parameters; delta; shard). Others have the shard's size, a
  // state StateBytes. REQUIRES: Kept(), but for Keep, Forget, and Read with a buffer; a delta
  // was taken before Add without one; pending and Merge: lockstep.
  void TakeDelta(double share);
  void Keep(std::uint32_t shard, std::shared_ptr<Buffer> state);
  void Add(std::uint32_t shard, const Buffer* delta, double factor, bool pending);
  void Merge(std::uint32_t shard);
  void Read(std::uint32_t shard, std::shared_ptr<const Buffer> values, bool keeps_move);
  void Forget(std::uint32_t shard) { kept_.erase(shard); }

  // Without a buffer where there is none: the shard is not kept, no delta was taken.
  Slice Delta(std::uint32_t shard) const;
  Slice Values(std::uint32_t shard);
  Slice State(std::uint32_t shard);

 private:
  struct Shard {
    std::shared_ptr<Buffer> row;
    std::weak_ptr<const Buffer> values;  // copies that are still pointed to
    std::weak_ptr<const Buffer> state;
  };
  Shard& At(std::uint32_t shard);
  std::shared_ptr<const Buffer> Copy(const Shard& shard, std::size_t bytes);
  void AddTo(std::uint32_t shard, std::byte* row, const std::byte* delta, double factor);

  ReplicaStore* store_;
  Buffers* buffers_;
  bool lockstep_ = false;
  std::uint32_t count_ = 0;
  std::map<std::uint32_t, Shard> kept_;
  std::shared_ptr<Buffer> delta_;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_SHARDS_H_
