// One weighted reduction as one member sees it: which bytes to send, how to add received bytes, and
// the result. No sockets, no clock; not thread safe.
//
// Contributors are the Q of the n members with a weight other than 0. The others are nulls: they
// bring nothing, not even NaN, and get the result (passive participants in eager-SGD; Li et al.,
// PPoPP 2020, section 5). All members see the weights, and so agree on the contributors without a
// message. Only contributors' bytes are moved.
//
// Ring (reduce-scatter, then all-gather; Patarasuk and Yuan, 2009). At places 0..Q-1 stand the
// contributors, at Q..n-1 the nulls, both in the order of their positions. The row of bytes is cut
// into Q shards, shards into chunks. The first Q-1 stages sum, around the ring of the contributors:
// at stage t the contributor at place c sends chunks of shard (c - t) mod Q to place c + 1 mod Q,
// and adds its own weighted part to what it receives, in the received message itself. So shard s is
// final at place (s - 1) mod Q, and the n-1 stages from Q-1 on pass it around the ring of all
// members: at stage Q-1+h, place p sends those of the shard that is final at place (p - h) mod n,
// if there is one, to place p + 1 mod n; everybody keeps a copy. Every received chunk but the last
// stage's goes on as the next stage's, at once. So a row moves (Q-1) + (n-1) times in all, each
// shard is summed in one order, by one chain of members, and everybody gets the same bits. A chunk
// of the result that is all zeros is passed on without its bytes: state that no step has written
// yet, gradients of rows of an embedding that no sample had.
//
// Where only neighbours may send to each other (Options::ring_only), the ring is that of the
// members' positions, whatever the row's size, and nulls stand in it as contributors of zeros.
//
// Direct, for small rows in groups of up to kDirectMembers: every contributor sends everybody else
// its own bytes, and everybody sums them in the order of positions. A row moves Q (n-1) times.
//
// Tree, for small rows in larger groups, where messages cost more than bytes: at the root stands
// place 0, and place p sends to place (p - 1) / kTreeFanOut. Each contributor adds its own weighted
// part and what comes from its children (in the order of their places) and sends the sum up; the
// root's is the result, which comes down the same way to all. As contributors have the first
// places, no null is asked for anything, and a row moves (Q-1) + (n-1) times.
//
// The initial model's part is added where the result comes to rest, by each member from its own
// copy; it moves nowhere. With no contributor (Q = 0) nothing is sent or received, and the result
// is the initial model's part alone: zeros, if its share is 0.
//
// The tensors are only read, and not any more once Complete; but where the result comes in place of
// them (Into), of which a reduction that fails has written some chunks. Where its members then try
// again, what they hold is no longer what they are to contribute. So each of them notes which parts
// of its row are the result (Options::done), by cells, which are cut alike for every group that
// reduces such rows. Around the ring, a cell that is done at one member replaces the sum there
// (FrameHeader::done), and the members after it pass it on as it is. So what one member has, all
// get; what none has is summed anew, of those who are left.
//
// Changes since a round's start (Payload::kChange) are reduced in place, too (kBase): a member's
// part is its row less the base, and the result's share is added to the base where it comes to
// rest. So the row never holds anything but what the member had, and what it is to have. A cell
// that is done is such a value, not a mean, and is marked as long as it goes around.
#ifndef PRD_WORKER_MESH_REDUCTION_H_
#define PRD_WORKER_MESH_REDUCTION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "prd/status.h"
#include "worker/memory/kernels.h"
#include "worker/memory/layout.h"
#include "worker/memory/shared_bytes.h"
#include "worker/mesh/frame.h"

namespace prd {

class Reduction {
 public:
  enum class Into : std::uint8_t { kNowhere, kStaging, kRow, kChange, kBase };
  struct Options {
    std::vector<double> weights;  // by position
    std::size_t position = 0;     // this member's
    // The initial model as a row of bytes, and its share. Null where the share is 0, or the owner
    // adds it itself (initial_share).
    const std::byte* initial = nullptr;
    double initial_weight = 0;
    // Where the result comes, chunk by chunk as they are final: to `staging`, the caller's, of as
    // many bytes as the row; or in place of the row's own bytes, as it is, less what stood there,
    // or its share of it added to `base`. No part of a result comes before this member's own part
    // of it has been read. kNowhere: it is not wanted, for it is this member's own part. That is so
    // where its weight is 1, all others are 0, there is no initial model, and the group is of one
    // member or its rows are not small.
    Into into = Into::kNowhere;
    std::byte* staging = nullptr;
    // kBase: the row that is subtracted from the own one, and added to.
    const std::byte* base = nullptr;
    Weight share{1, 1};
    // Equal on all members: some of them have kBase, so a cell that is done is marked until it
    // comes to rest.
    bool settles = false;
    std::size_t chunk_bytes = 0;   // a multiple of 8; equal on all members
    std::size_t direct_bytes = 0;  // rows up to this are small; equal on all members
    bool ring_only = false;        // Group::ring_only
    // By cell: the row's own bytes are the result already, of a group before that failed. With what
    // comes to rest in the row here. The caller's, as long as the reduction; all false, or empty,
    // where nothing is done yet. Null: nothing is noted. Around the ring, with kRow, kBase or
    // kNowhere.
    std::vector<bool>* done = nullptr;
    // Called once, before the first part of the result comes to rest. May be empty.
    std::function<void()> before_landing;
  };

  // The same on all workers of a job. Measured on 4 cores, 64 bytes: directly among 4 members 0.25
  // ms, among 32 about 17 ms, nearly all of it for the 992 messages; through trees of fan-out 4, 6,
  // 8 and 31 among 32 members 2.0, 1.6, 1.3 and 1.6 ms.
  static constexpr std::size_t kDirectMembers = 4;
  static constexpr std::size_t kTreeFanOut = 8;

  // A frame to send: header.kind, stage, chunk, offset and length are set.
  struct Outgoing {
    std::size_t to = 0;  // position
    FrameHeader header;
    SharedBytes payload;
  };

  // `row` holds this member's own part, and must outlive the reduction. Of a null, its sizes and
  // dtypes alone matter. Neither row nor initial model is read before NextOwn or OnFrame.
  Reduction(const Layout* row, Options options);

  // Whether this member sends to that one, or waits for bytes that come through it, and so has to
  // notice its loss at once. Around the ring a member looks out for the one after it. Where it has
  // completed, the loss is noticed by those who wait in vain: they look out for whom they await.
  bool Needs(std::size_t position) const;

  // Whether frames of that member are still to come, or own frames wait until it has taken earlier
  // ones. While that is so, the reduction cannot complete without it.
  bool Awaits(std::size_t position) const;

  // Ring: the member that NextOwn's frames go to; better made when the connection there is idle.
  // nullopt: direct, or there are none.
  std::optional<std::size_t> OwnTo() const;

  // The next frame made of this member's own bytes; nullopt when all have been handed out. To be
  // called until then by all members, also where there is none to send (a group of one, Q = 0).
  std::optional<Outgoing> NextOwn();

  // Takes a frame of the member at `from`. May append one frame to send on. An error means that the
  // member broke the protocol: the reduction cannot succeed any more.
  Status OnFrame(std::size_t from, const FrameHeader& header, SharedBytes payload,
                 std::vector<Outgoing>* out);

  // Everything has been received, and all own frames handed out: the result is where it comes.
  bool Complete() const;

  // Some of the result is where it comes. All contributors have begun then.
  bool landed() const { return landed_; }

  // Cells of a row of so many bytes that have come to `staging`, and are not the result but what
  // the base is to become. Empty: there are none.
  const std::vector<bool>& settled() const { return settled_; }
  std::size_t cell_bytes() const { return cell_bytes_; }

  // The initial model's share, as rounded together with the weights.
  Weight initial_share() const { return weights_.back(); }

 private:
  struct Shard {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  bool contributes() const { return place_ < contributors_; }
  bool adds() const { return options_.weights[options_.position] != 0; }
  // The parent of this place in the tree. The root is its own.
  static std::size_t ParentOf(std::size_t place) {
    return place == 0 ? 0 : (place - 1) / kTreeFanOut;
  }
  std::size_t PlaceOf(std::size_t position) const;
  // The places [first, first + kTreeFanOut) below `limit` that are this member's children.
  Shard ChildrenBelow(std::size_t limit) const;
  bool alone() const { return members_ == 1 || contributors_ == 0; }
  std::size_t CellsIn(std::size_t bytes) const { return (bytes + cell_bytes_ - 1) / cell_bytes_; }
  Shard ShardAt(std::size_t index) const;
  std::size_t ChunksOf(Shard shard) const;
  bool Sums(std::size_t stage) const { return stage + 1 < contributors_; }
  std::optional<std::size_t> ReceivedAt(std::size_t stage) const;
  std::size_t Before(std::size_t stage) const;
  std::size_t After(std::size_t stage) const;
  bool AwaitsChunks(std::size_t position) const;
  Outgoing NextDirect();
  Outgoing NextRing();
  void TakeOwn();
  std::uint64_t DoneIn(std::size_t offset, std::size_t length) const;
  void AddPart(std::size_t offset, std::size_t length, std::byte* sum, bool first);
  std::uint64_t AddOwn(std::size_t offset, std::size_t length, std::byte* sum, bool first,
                       std::uint64_t done);
  Status OnRing(std::size_t from, const FrameHeader& header, SharedBytes payload,
                std::vector<Outgoing>* out);
  Status OnDirect(std::size_t from, const FrameHeader& header, SharedBytes payload);
  Status OnTree(std::size_t from, const FrameHeader& header, SharedBytes payload,
                std::vector<Outgoing>* out);
  void SendUpIfSummed(std::vector<Outgoing>* out);
  void SendDown(const SharedBytes& sum, std::vector<Outgoing>* out);
  void ReduceAlone();
  void SumDirect();
  const std::byte* OwnPart(DType dtype, const std::byte* data, std::size_t offset, std::size_t run);
  void Keep(std::size_t offset, std::size_t length, const SharedBytes& chunk, std::uint64_t done);
  void KeepPart(std::size_t offset, std::size_t length, const std::byte* values, bool settled);
  static void OmitZeros(SharedBytes* chunk);

  const Layout* row_;
  Options options_;
  std::size_t members_;            // n
  std::size_t contributors_ = 0;   // Q
  std::vector<Weight> weights_;    // by position, then the initial model's
  std::vector<std::size_t> ring_;  // positions by place
  std::size_t place_ = 0;          // this member's
  enum class Way : std::uint8_t { kRing, kDirect, kTree };
  Way way_ = Way::kRing;
  std::size_t shard_bytes_ = 0;
  std::size_t cell_bytes_ = 0;
  std::size_t own_next_ = 0;   // ring: the chunk of the own shard; direct: the distance to the peer
  std::size_t own_count_ = 0;  // frames of own bytes in all; tree, alone: 1, though there is none
  std::vector<std::vector<bool>> received_;  // by stage and chunk
  std::size_t missing_ = 0;                  // frames still to come
  std::vector<SharedBytes> contributions_;   // direct: by position; tree: by place
  SharedBytes own_;                          // direct: shared by the frames to all; tree: the sum
  std::vector<Outgoing> ready_;              // tree: what the own part has set free
  std::vector<bool> settled_;
  std::vector<std::byte> scratch_;
  bool landed_ = false;
  bool summed_ = false;  // tree: the own part and all children's are in own_
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_REDUCTION_H_
