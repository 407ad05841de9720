#include "worker/device/comm_message.h"

#include <cstring>
#include <string_view>

#include "common/base/archive.h"  // checks that the machine is little-endian

namespace prd {
namespace {

// As it is on the wire, before the unique id (of kCreate alone), the members and the reason.
struct WireComm {
  std::uint8_t kind;
  std::uint8_t way;
  std::uint8_t cover;
  std::uint8_t refusal;
  std::uint32_t members;
  std::uint64_t leader;
  std::uint64_t number;
  std::uint64_t group;
  std::uint32_t reason_bytes;
  std::uint32_t reserved;
};
static_assert(sizeof(WireComm) == 40);

void Append(std::vector<std::byte>* bytes, const void* data, std::size_t size) {
  const auto* from = static_cast<const std::byte*>(data);
  bytes->insert(bytes->end(), from, from + size);
}

std::size_t IdBytes(const WireComm& wire) {
  const bool has = wire.kind == static_cast<std::uint8_t>(CommMessage::Kind::kCreate);
  return has ? sizeof(Gpu::UniqueId) : 0;
}

bool InRange(const WireComm& wire) {
  return wire.kind <= static_cast<std::uint8_t>(CommMessage::Kind::kGone) &&
         wire.way <= static_cast<std::uint8_t>(Way::kExchange) && wire.cover <= 1 &&
         wire.refusal <= static_cast<std::uint8_t>(Refusal::kUnknown) && wire.reserved == 0 &&
         wire.members <= CommMessage::kMaxMembers && wire.reason_bytes <= CommMessage::kMaxReason;
}

}  // namespace

std::vector<std::byte> EncodeCommMessage(const CommMessage& message) {
  const std::string_view reason = std::string_view(message.reason).substr(0, message.kMaxReason);
  const WireComm wire{.kind = static_cast<std::uint8_t>(message.kind),
                      .way = static_cast<std::uint8_t>(message.way),
                      .cover = message.cover,
                      .refusal = static_cast<std::uint8_t>(message.refusal),
                      .members = static_cast<std::uint32_t>(message.members.size()),
                      .leader = message.comm.leader,
                      .number = message.comm.number,
                      .group = message.group,
                      .reason_bytes = static_cast<std::uint32_t>(reason.size()),
                      .reserved = 0};
  std::vector<std::byte> bytes;
  Append(&bytes, &wire, sizeof wire);
  Append(&bytes, message.id.data(), IdBytes(wire));
  Append(&bytes, message.members.data(), message.members.size() * sizeof(Incarnation));
  Append(&bytes, reason.data(), reason.size());
  return bytes;
}

std::optional<CommMessage> DecodeCommMessage(std::span<const std::byte> bytes) {
  WireComm wire;
  if (bytes.size() < sizeof wire) return std::nullopt;
  std::memcpy(&wire, bytes.data(), sizeof wire);
  bytes = bytes.subspan(sizeof wire);
  const std::size_t id = IdBytes(wire);
  const std::size_t members = wire.members * sizeof(Incarnation);
  if (!InRange(wire) || bytes.size() != id + members + wire.reason_bytes) return std::nullopt;
  CommMessage message{.kind = static_cast<CommMessage::Kind>(wire.kind),
                      .comm = {.leader = wire.leader, .number = wire.number},
                      .group = wire.group,
                      .way = static_cast<Way>(wire.way),
                      .cover = wire.cover != 0,
                      .refusal = static_cast<Refusal>(wire.refusal),
                      .members = std::vector<Incarnation>(wire.members),
                      .id = {},
                      .reason = {}};
  if (id != 0) std::memcpy(message.id.data(), bytes.data(), id);
  if (members != 0) std::memcpy(message.members.data(), bytes.data() + id, members);
  bytes = bytes.subspan(id + members);
  for (const std::byte byte : bytes) {  // human-readable: no terminal codes
    const char c = static_cast<char>(byte);
    message.reason.push_back(c >= ' ' && c <= '~' ? c : '?');
  }
  return message;
}

}  // namespace prd
