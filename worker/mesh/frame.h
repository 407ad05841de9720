// What workers send each other: a message of two parts, this header and a payload.
//
// The header is 96 bytes, little-endian, in the order of the struct; under MeshSecurity::kAead both
// are sealed on their way to other hosts (seal.h). Frames are read of admitted connections alone
// (door.h), and `from` is the worker that the connection is of. Every field is checked all the
// same: a member of the job may send anything.
#ifndef PRD_WORKER_MESH_FRAME_H_
#define PRD_WORKER_MESH_FRAME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "worker/core/exchange.h"

namespace prd {

// The version of the frames and of their payloads. Workers tell it to the controller, which admits
// those of one version alone to a job (Hello::mesh_version).
inline constexpr std::uint32_t kMeshVersion = 6;

enum class FrameKind : std::uint32_t {
  kRing = 1,     // a chunk of a reduction on its way around the ring
  kDirect = 2,   // a member's whole contribution to a small reduction, not weighted
  kFail = 3,     // the sender gave this group up; no payload
  kFetch = 4,    // "send me your replica, or a round's result"; no payload
  kReplica = 5,  // answers kFetch with a ReplicaInfo; then
  kChunk = 6,    // the bytes, in order
  kGone = 7,     // answers kFetch: the sender does not have that result; no payload
  kTree = 8,     // a small reduction's row on its way up or down the tree
  kPing = 9,     // "is something to come from you?"; no payload, but of a probe (prober.h)
  kPong = 10,    // answers kPing; with the payload of that
  // Outside of groups (exchange.h). `group` is the puller's number of the pull.
  kNote = 11,     // a PeerMessage
  kPull = 12,     // "send me this PeerItem"
  kParcel = 13,   // answers kPull with a ParcelInfo; then
  kPart = 14,     // the bytes, in order
  kRefused = 15,  // answers kPull: the sender does not have it, or not for this peer; no payload
  kStop = 16,     // the puller ends the pull; no payload
  kComm = 17,     // a CommMessage (worker/device/comm_message.h); `group` is 0
  kAck = 18,      // the frames of the receiver's stream `group` have come, up to number `offset`
};

// Which connection carries it.
inline bool IsSignal(FrameKind kind) {
  return kind == FrameKind::kPing || kind == FrameKind::kPong || kind == FrameKind::kAck;
}

// What a kPing asks about, and a kPong with it: the header's stage.
enum class Topic : std::uint32_t {
  kGroup = 0,  // the receiver's part in this group
  kFetch = 1,  // the answer to the sender's fetch of this number
  kPull = 2,   // the same of a pull
  kLife = 3,   // whether the receiver answers; with a number, see IsOfLost
};
inline constexpr std::uint32_t kTopics = 4;
// The header's chunk of a kPong.
enum class Answer : std::uint32_t {
  kToCome = 0,  // something is to come, or on its way
  kOver = 1,    // nothing is to come any more
  kBegun = 2,   // kGroup: the sender's device has begun, and is to come through without being asked
};

// The rows of bytes that a fetch copies, in the order in which they come.
enum class CopiedRow : std::uint32_t { kParameters = 0, kInitial = 1, kInbox = 2, kKept = 3 };
inline constexpr std::size_t kCopiedRows = 4;
inline constexpr std::uint32_t kParametersAlone = 1;

struct FrameHeader {
  FrameKind kind = FrameKind::kRing;
  RunId run = kNoRun;
  std::uint64_t group = 0;  // group id; of a fetch: a number the requester chose
  Incarnation from = 0;
  Incarnation to = 0;
  // kRing: 0 to 2n-3 (reduction.h). kTree: 0 up, 1 down. kFetch: kParametersAlone, or 0 for the
  // whole replica. kChunk: the CopiedRow. kPing, kPong: the Topic
  std::uint32_t stage = 0;
  std::uint32_t chunk = 0;   // kRing: within the shard. kPong: the Answer
  std::uint64_t offset = 0;  // of the payload in the row of bytes (layout.h). kFetch: the kRound
                             // whose result is wanted, kNoGroup for the replica
  std::uint64_t length = 0;  // of the payload, bytes. kRing: 0 is a chunk of zeros (reduction.h)
  // For data that may come twice (peers.h): the stream, and its number there, from 1. Else 0.
  std::uint64_t stream = 0;
  std::uint64_t number = 0;
  std::uint64_t done = 0;  // kRing: the cells of the chunk that are the result (reduction.h), a bit
                           // for each, the first one's the lowest
  std::uint64_t members = 0;  // kRing, kDirect, kTree: MarkOf the group
  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

// Tells groups of one number apart: a controller that has lost the end of its history gives numbers
// again, and frames of a group that it has forgotten may still come, of a worker that has gone.
// Equal for equal kinds, and equal members and weights in the same order.
std::uint64_t MarkOf(const Group& group);

// A kPing; `number` is what the topic has it to be.
FrameHeader PingOf(Topic topic, std::uint64_t number, RunId run, Incarnation from, Incarnation to);
// Whether a kPing says that frames of its receiver may have been lost on their way to its sender,
// though the connection stands, and a kPong answers that. The receiver is to send over another
// connection what is not acknowledged; if there is nothing, it answers kOver. The number, not 0, is
// the question's.
inline bool IsOfLost(const FrameHeader& header) {
  return header.stage == static_cast<std::uint32_t>(Topic::kLife) && header.group != 0;
}

inline constexpr std::size_t kFrameHeaderBytes = 96;

std::array<std::byte, kFrameHeaderBytes> EncodeHeader(const FrameHeader& header);
// nullopt: not a header of this version, or one whose length is not `payload_bytes`.
std::optional<FrameHeader> DecodeHeader(std::span<const std::byte> bytes,
                                        std::size_t payload_bytes);

// The payload of kReplica, little-endian. A round's result is a replica of an inbox alone.
struct ReplicaInfo {
  Iteration iteration = 0;
  // By CopiedRow; 0 where there is none: no initial model is kept, the inbox is empty, no state is
  // kept (ReplicaStore::kept).
  std::array<std::uint64_t, kCopiedRows> bytes{};
  std::int64_t inbox_rounds = 0;
  Iteration inbox_iteration = 0;
};

// The payloads of the exchange. Decoding checks sizes, kinds and ranges: numbers are from -1 to
// kMaxExchangeNumber, shares and counts of workers as they come.
inline constexpr std::int64_t kMaxExchangeNumber = std::numeric_limits<std::int64_t>::max() / 2;
inline constexpr std::size_t kMaxClocks = 4096;

struct ParcelInfo {
  std::uint64_t bytes = 0;
  ShardHeader enclosure;  // at most kMaxClocks clocks
};

std::vector<std::byte> EncodeNote(const PeerMessage& note);
std::optional<PeerMessage> DecodeNote(std::span<const std::byte> bytes);
std::vector<std::byte> EncodeParcel(const PeerItem& parcel);
std::optional<PeerItem> DecodeParcel(std::span<const std::byte> bytes);
std::vector<std::byte> EncodeParcelInfo(const ParcelInfo& info);
std::optional<ParcelInfo> DecodeParcelInfo(std::span<const std::byte> bytes);

}  // namespace prd

#endif  // PRD_WORKER_MESH_FRAME_H_
