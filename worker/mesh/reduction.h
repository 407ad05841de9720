// One weighted reduction as one member sees it: which bytes to send, what to do with those that
// come, and the result. No sockets, no clock; not thread safe.
//
// Ring (reduce-scatter, then all-gather; Patarasuk and Yuan, 2009), for n members at positions
// 0..n-1: the row of bytes is cut into n shards, shards into chunks. At stage t = 0 .. 2n-3 the
// member at position p sends chunks of shard (p - t) mod n to position p + 1, and so receives those
// of shard (p - 1 - t) mod n. Up to stage n-2 it adds its own weighted part to what it receives, in
// the received message itself; from stage n-2 on the chunk is final, and a copy is kept. Every
// received chunk but the last stage's goes on as the next stage's, at once. So each shard is summed
// in one order, by one chain of members, and everybody gets the same bits.
//
// Direct, for small rows: everybody sends everybody its own bytes, and sums them in ring order.
//
// The tensors are not written before Commit.
#ifndef PRD_WORKER_MESH_REDUCTION_H_
#define PRD_WORKER_MESH_REDUCTION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>
#include <zmq.hpp>

#include "prd/status.h"
#include "worker/mesh/frame.h"
#include "worker/mesh/kernels.h"
#include "worker/mesh/layout.h"

namespace prd {

class Reduction {
 public:
  struct Options {
    std::vector<double> weights;  // by position
    std::size_t position = 0;     // this member's
    // The initial model as a row of bytes, and its share; null when the share is 0.
    const std::byte* initial = nullptr;
    double initial_weight = 0;
    // Holds the result until all of it is here: as many bytes as the row, and the caller's.
    std::byte* staging = nullptr;
    std::size_t chunk_bytes = 0;   // a multiple of 8; equal on all members
    std::size_t direct_bytes = 0;  // rows up to this go directly; equal on all members
  };

  // A frame to send: header.kind, stage, chunk, offset and length are set.
  struct Outgoing {
    std::size_t to = 0;  // position
    FrameHeader header;
    zmq::message_t payload;
  };

  // `row` must outlive the reduction.
  Reduction(const Layout* row, Options options);

  // The next frame made of this member's own bytes; nullopt when all have been handed out.
  std::optional<Outgoing> NextOwn();

  // Takes a frame of the member at `from`. May append one frame to send on. An error means that the
  // member broke the protocol: the reduction cannot succeed any more.
  Status OnFrame(std::size_t from, const FrameHeader& header, zmq::message_t payload,
                 std::vector<Outgoing>* out);

  // Everything has been received, and all own frames handed out.
  bool Complete() const;

  // Writes the result to the tensors: the only change to them. Once. REQUIRES: Complete().
  void Commit();

 private:
  struct Shard {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  Shard ShardAt(std::size_t index) const;
  std::size_t ChunksOf(Shard shard) const;
  Status OnRing(const FrameHeader& header, zmq::message_t payload, std::vector<Outgoing>* out);
  Status OnDirect(std::size_t from, const FrameHeader& header, zmq::message_t payload);
  void CommitAlone();
  void CommitDirect();
  void AddInitial(std::size_t offset, std::size_t length);

  const Layout* row_;
  Options options_;
  std::size_t members_;
  std::vector<Weight> weights_;  // by position, then the initial model's
  bool direct_;
  std::size_t shard_bytes_ = 0;
  std::size_t own_next_ = 0;   // ring: the chunk of the own shard; direct: the distance to the peer
  std::size_t own_count_ = 0;  // frames of own bytes in all
  std::vector<std::vector<bool>> received_;    // by stage and chunk
  std::size_t missing_ = 0;                    // frames still to come
  std::vector<zmq::message_t> contributions_;  // direct: by position
  zmq::message_t own_;                         // direct: shared by the frames to all
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_REDUCTION_H_
