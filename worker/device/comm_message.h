// What the members of a communicator say to each other, as values and as on the wire.
// communicators.h has the protocol.
#ifndef PRD_WORKER_DEVICE_COMM_MESSAGE_H_
#define PRD_WORKER_DEVICE_COMM_MESSAGE_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/messages.h"
#include "worker/device/gpu.h"

namespace prd {

// Leader, and a number that it gave.
struct CommId {
  Incarnation leader = 0;
  std::uint64_t number = 0;
  friend auto operator<=>(const CommId&, const CommId&) = default;
};

enum class Way : std::uint8_t {
  kStaged = 0,      // through the CPU mesh
  kCollective = 1,  // an all-reduce, on a communicator of these members
  kExchange = 2,    // sends and receives, on a communicator that covers them
};

// Why a proposal is declined.
enum class Refusal : std::uint8_t {
  kNoDevice = 0,  // or no NCCL: there never will be
  kBusy = 1,      // another one is being made here
  kNoRoom = 2,
  kUnknown = 3,  // not all of the members have been in a group with this one
};

struct CommMessage {
  enum class Kind : std::uint8_t {
    kPropose = 0,  // members, cover
    kAccept = 1,
    kDecline = 2,  // refusal, reason
    kCreate = 3,   // id
    kReady = 4,    // group: the newest that has begun here
    kBroken = 5,   // reason; members: those that are gone, if that is why
    kRetire = 6,
    kGiveUp = 7,    // asks the leader to retire it
    kWay = 8,       // group, way
    kUse = 9,       // group: it is used for those after this one
    kRetired = 10,  // of a cover: the sender leads no further group on it
    kAsk = 11,      // group: what is its way? none: is it there?
    kGone = 12,     // the sender does not have it (any more)
  };
  static constexpr std::size_t kMaxMembers = 1024;
  static constexpr std::size_t kMaxReason = 512;

  Kind kind = Kind::kPropose;
  CommId comm;  // of kWay: none if it is staged
  GroupId group = kNoGroup;
  Way way = Way::kStaged;
  bool cover = false;
  Refusal refusal = Refusal::kNoDevice;
  std::vector<Incarnation> members{};  // of kPropose: in the order of their ranks
  Gpu::UniqueId id{};
  std::string reason{};
  friend bool operator==(const CommMessage&, const CommMessage&) = default;
};

// As on the wire, the payload of a frame. Decoding checks sizes, kinds and ranges.
std::vector<std::byte> EncodeCommMessage(const CommMessage& message);
std::optional<CommMessage> DecodeCommMessage(std::span<const std::byte> bytes);

}  // namespace prd

#endif  // PRD_WORKER_DEVICE_COMM_MESSAGE_H_
